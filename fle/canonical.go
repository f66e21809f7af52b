package fle

import (
	"encoding/binary"
	"slices"
)

// Clone returns an independent copy, including the jitter's random stream and what Ready has not returned yet.
func (e *Election) Clone() *Election {
	c := *e
	c.peers = slices.Clone(e.peers)
	c.pending = slices.Clone(e.pending)
	c.send = nil
	if e.decision != nil {
		d := *e.decision
		c.decision = &d
	}
	return &c
}

// AppendCanonical appends the state in a form in which equal states have equal bytes: everything that
// future behaviour depends on, except the random stream, which only moves resends by a few ticks.
func (e *Election) AppendCanonical(dst []byte) []byte {
	u := func(v uint64) { dst = binary.BigEndian.AppendUint64(dst, v) }
	b := func(v bool) { u(bit(v)) }
	vote := func(v Vote) { u(uint64(v.Leader)); u(uint64(v.Epoch)); u(uint64(v.Zxid)) }

	u(uint64(e.cfg.ID))
	u(e.cfg.Members.Version)
	b(e.taking)
	u(uint64(e.state))
	u(uint64(e.round))
	u(uint64(e.own.Epoch))
	u(uint64(e.own.Zxid))
	b(e.own.Unknown)
	vote(e.vote)
	for i := range e.peers {
		p := &e.peers[i]
		b(p.ballot.valid)
		if p.ballot.valid { // stale content behind a cleared flag must not make equal states differ
			vote(p.ballot.vote)
		}
		b(p.standing.valid)
		if p.standing.valid {
			u(uint64(p.standing.state))
			u(uint64(p.standing.round))
			vote(p.standing.vote)
		}
		b(p.gone)
		u(uint64(max(p.penalty, e.round) - e.round))
		u(uint64(p.unheard))
		b(p.defected)
	}
	b(e.finalizing)
	if e.finalizing {
		u(uint64(e.finalizeLeft))
	}
	if e.looking() {
		u(uint64(e.backoff))
		u(uint64(e.resendLeft))
	}
	u(uint64(e.established))
	u(e.incarnation)
	for _, p := range e.pending {
		b(p)
	}
	b(e.decision != nil)
	b(e.abdicate)
	b(e.abdicated)
	return dst
}
