package fle

import "math/rand/v2"

// Tick moves all timers by one tick. Only a LOOKING member has any.
func (e *Election) Tick() {
	if !e.looking() {
		return
	}
	// Input from others does not postpone a resend: a chatty peer would keep this member from repeating what
	// a third one lost (S47).
	e.resendLeft--
	if e.resendLeft <= 0 && !e.cfg.Mutations.NoResend {
		e.broadcast()
		e.backoff = min(2*e.backoff, e.cfg.ResendMaxTicks)
		e.arm()
	}
	if e.finalizing {
		e.finalizeLeft--
		if e.finalizeLeft <= 0 {
			e.settle(e.vote)
			return
		}
	}
	e.tickUnheard()
}

// tickUnheard gives up a candidate that only others hear (S46): a member must not settle on it, and must not
// keep the rest from agreeing on one that all can reach. It is patient enough for a lost notification and
// its resend, less so when the candidate's connection is known to be closed.
func (e *Election) tickUnheard() {
	i, ok := e.voter(e.vote.Leader)
	if !ok || e.heard(e.vote.Leader) {
		return
	}
	p := &e.peers[i]
	p.unheard++
	limit := e.cfg.FinalizeTicks + 2*e.cfg.ResendTicks
	if p.gone {
		limit = e.cfg.FinalizeTicks
	}
	if p.unheard < limit {
		return
	}
	e.penalise(i)
	e.startRound(e.round + 1)
	e.broadcast()
	e.evaluate()
}

// resetBackoff starts the resend interval anew: the round or the connectivity changed.
func (e *Election) resetBackoff() {
	e.backoff = e.cfg.ResendTicks
	e.arm()
}

// arm sets the next resend to the interval with a jitter of a quarter to either side.
func (e *Election) arm() {
	e.resendLeft = max(1, e.backoff-e.backoff/4+rand.New(&e.rng).IntN(e.backoff/2+1))
}
