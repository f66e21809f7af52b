package replica

import (
	"fmt"

	"kvd/fle"
	"kvd/zab"
	"kvd/zab/quorum"
)

// Hand-over between election and broadcast is one-directional: a decision calls zab.Lead or zab.Follow; zab's
// return to Looking starts a new election, once every disk write handed out is done (zab-rules b, entering
// LOOKING: the vote speaks of the disk, and the disk must have stopped moving; S20, ZK-2845, ZK-4712).

// ElectionUp reports that the election connection to a peer is usable.
func (r *Replica) ElectionUp(id quorum.MemberID) {
	r.election.PeerConnected(id)
	r.formingUp(id)
	r.advanceElection()
}

// ElectionDown reports that the election connection to a peer is closed or refused.
func (r *Replica) ElectionDown(id quorum.MemberID) {
	r.election.PeerGone(id)
	r.formingDown(id)
	r.advanceElection()
}

// ElectionMessage hands in a payload from a peer's election connection. A malformed one is dropped and told as
// an event (ZK-3769).
func (r *Replica) ElectionMessage(from quorum.MemberID, kind byte, payload []byte) {
	if r.deaf {
		return
	}
	switch kind {
	case KindNotification:
		n, err := fle.DecodeNotification(payload)
		if err != nil || n.From != from {
			r.deaf = r.cfg.Mutations.DeafAfterMalformed
			r.event("notification-dropped", fmt.Sprintf("from=%d err=%q", from, errText(err, "sender differs from the connection's peer")))
			return
		}
		r.heardOf(&n)
		r.election.Step(n)
	case KindIdentity:
		r.formingMessage(from, payload)
	default:
		r.event("notification-dropped", fmt.Sprintf("from=%d err=\"unknown kind %d\"", from, kind))
	}
	r.advanceElection()
}

func errText(err error, otherwise string) string {
	if err != nil {
		return err.Error()
	}
	return otherwise
}

// advanceElection starts an election that waits, and carries out what the election decided.
func (r *Replica) advanceElection() {
	if r.wantElection && r.mayElect() {
		d := r.zab.Durable()
		r.wantElection, r.electing = false, true
		r.election.Look(fle.Candidate{Epoch: d.Current, Zxid: d.Last, Unknown: d.Unknown && !r.cfg.ZabMutations.HideUnknown, Sole: d.Sole})
		r.aloneAt = r.now + aloneTicks
	}
	r.followDue()
	er := r.election.Ready()
	for i := range er.Send {
		b := fle.AppendNotification(nil, er.Send[i].Notification)
		o := r.out()
		o.Elections = append(o.Elections, ElectionSend{To: er.Send[i].To, Kind: KindNotification, Payload: b})
	}
	if er.Decision != nil {
		r.decided(er.Decision)
	}
	if er.Abdicate && r.role.Role == zab.Leading {
		r.zab.Look("the voters that elected this member changed their minds")
	}
}

func (r *Replica) mayElect() bool {
	return !r.stopping && r.role.Role == zab.Looking && (r.zab.Drained() || r.cfg.Mutations.VoteUndrained) && r.formed()
}

func (r *Replica) decided(d *fle.Decision) {
	if !r.electing {
		return
	}
	r.electing = false
	r.event("elected", fmt.Sprintf("state=%v leader=%d epoch=%d zxid=%v round=%d", d.State, d.Leader, d.Vote.Epoch, d.Vote.Zxid, d.Round))
	if d.State == fle.Leading {
		r.zab.Lead()
		return
	}
	f := &r.following
	f.wait = d.Leader == f.leader && r.now < f.at
	if !f.wait {
		r.zab.Follow(d.Leader)
	}
}

// following spaces out attempts to follow the same leader: a leader that stands is found again at once, and if it
// refuses this member, or cannot bring it up to date, each attempt costs it a link and perhaps a whole snapshot.
type following struct {
	leader quorum.MemberID
	failed int   // attempts in a row that did not end in broadcast
	at     int64 // tick from which on the next one may begin
	wait   bool  // it is decided and waits for that
}

// maxFollowPause is the longest pause, in ticks: 2 s.
const maxFollowPause = 40

// attemptFailed notes that an attempt came to nothing. The first pause follows the second failure: an election that
// begins while the leader of the last one goes costs one.
func (f *following) attemptFailed(leader quorum.MemberID, now int64) {
	if f.leader != leader {
		*f = following{leader: leader}
	}
	f.failed++
	f.at = now
	if f.failed > 1 {
		f.at += min(maxFollowPause, int64(1)<<min(f.failed-1, 10))
	}
}

// followDue begins the attempt that waited.
func (r *Replica) followDue() {
	f := &r.following
	if f.wait && r.now >= f.at {
		f.wait = false
		if !r.stopping && r.role.Role == zab.Looking {
			r.zab.Follow(f.leader)
		}
	}
}

// roleChanged follows zab through roles and stages.
func (r *Replica) roleChanged(c zab.RoleChange) {
	old := r.role
	r.role = c
	switch {
	case c.Role == zab.Looking:
		r.endTerm(old, c.Reason)
	case c.Role == zab.Leading:
		r.leaderStage(c)
	}
	if c.Role != zab.Looking && c.Stage == zab.Broadcast {
		r.election.SetEstablished(c.Epoch, uint64(r.zab.Status().Incarnation))
		if c.Role != zab.Leading {
			r.clients.blocked = false
			r.following = following{}
		}
	}
	r.refreshServing()
}

// endTerm gives up everything that belonged to the term and asks for an election.
func (r *Replica) endTerm(old zab.RoleChange, reason string) {
	if (old.Role == zab.Following || old.Role == zab.Observing) && old.Stage != zab.Broadcast {
		r.election.AttemptFailed(old.Leader)
		r.following.attemptFailed(old.Leader, r.now)
	}
	r.election.Stop() // silent until the disk has drained and a new round begins
	r.electing, r.wantElection = false, true
	r.lead = nil
	r.turns.reset()
	r.audit.reset()
	r.clients.dropGaps()
	r.clients.dropGone()
	r.clients.endTerm(r)
	if r.stopping {
		r.leaving = true
	}
}

// refreshServing tells the shell when what clients may expect has changed.
func (r *Replica) refreshServing() {
	s := Serving{Role: r.role.Role}
	if s.Role != zab.Looking {
		s.Leader, s.Epoch = r.role.Leader, r.role.Epoch
		if s.Role == zab.Leading {
			s.Leader = r.cfg.ID
		}
		if r.role.Stage == zab.Broadcast {
			s.Since = r.serving.Since
			if !r.serving.Open || r.serving.Epoch != s.Epoch {
				s.Since = r.zab.Status().Committed
			}
			s.Open = s.Role != zab.Leading || (r.lead != nil && r.lead.open)
		} else if r.serving.Open && r.serving.Role == s.Role && r.serving.Leader == s.Leader && (r.lead != nil || r.link != 0) {
			return // a re-epoch over existing links: clients notice nothing but a pause (S39)
		}
	}
	if s == r.serving {
		return
	}
	r.serving = s
	r.out().Serving = &s
}

// Shutdown ends the member's part: it takes no more operations, lets what is outstanding commit (a leader then
// hands over at once), and reports Ready.Stopped. It may be called once more to no effect.
func (r *Replica) Shutdown() {
	if r.stopping {
		return
	}
	r.stopping, r.stopAt = true, r.now+int64(r.cfg.ShutdownTicks)
	r.pump() // what waits and can still go, goes
	r.clients.refuseQueued(r)
	if r.role.Role == zab.Looking {
		r.leaving = true
	} else if r.role.Role == zab.Leading {
		r.leaving = true
		r.zab.Resign()
	}
	r.tickShutdown()
}

func (r *Replica) tickShutdown() {
	if !r.stopping || r.stopped {
		return
	}
	late := r.now >= r.stopAt
	if r.role.Role != zab.Looking && (late || (!r.leaving && r.clients.outstanding.len() == 0)) {
		r.leaving = true
		r.zab.Look("shutting down")
	}
	if r.leaving && r.role.Role == zab.Looking {
		if late {
			r.clients.failOutstanding(r)
		}
		r.election.Stop()
		r.stopped = r.clients.outstanding.len() == 0 && (late || r.zab.Drained())
	}
}
