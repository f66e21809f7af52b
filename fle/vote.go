package fle

import (
	"fmt"

	"kvd/kv"
	"kvd/zab/quorum"
)

// Round is the election's logical clock. It is volatile and has nothing to do with epochs.
type Round uint64

// maxRound bounds the rounds taken from a peer, so that no notification can make the counter wrap.
const maxRound Round = 1 << 62

// Candidate is what a member has to offer: its durable current epoch and last zxid, read with no disk
// write in flight (ZK-2845, ZK-4712).
type Candidate struct {
	Epoch kv.Epoch
	Zxid  kv.Zxid
	// Unknown: the member may have forgotten something (design rule 8). It votes for nobody, is not
	// counted, and may only join a standing leader.
	Unknown bool
	// Sole: the member was told by its operator to go on without a quorum of voters (kvd recover --sole-survivor). It may
	// call LeadAlone; everybody may follow it then.
	Sole bool
}

// Vote proposes Leader, whose history is described by Epoch (its current epoch; the established epoch once
// settled, ZK-1732) and Zxid. The zero Vote names nobody.
type Vote struct {
	Leader quorum.MemberID
	Epoch  kv.Epoch
	Zxid   kv.Zxid
}

// String prints leader, epoch and zxid: (3 e5 5:43).
func (v Vote) String() string {
	if v.Leader == 0 {
		return "(nobody)"
	}
	return fmt.Sprintf("(%d e%d %s)", v.Leader, v.Epoch, v.Zxid)
}

// Beats reports whether v is the better vote: greater epoch, then greater zxid, then greater id. The epoch
// comes first (ZK-1082): by zxid alone a member holding skipped entries of an older epoch would win over
// one that adopted a newer, shorter history (S04).
func (v Vote) Beats(o Vote) bool {
	if v.Epoch != o.Epoch {
		return v.Epoch > o.Epoch
	}
	if v.Zxid != o.Zxid {
		return v.Zxid > o.Zxid
	}
	return v.Leader > o.Leader
}

// Mutations are deliberate mistakes for the tests that show that a checker catches them. The zero value has none.
type Mutations struct {
	// VotesByZxidOnly drops the epoch from the vote order (ZK-1082).
	VotesByZxidOnly bool

	// The following are noticed by the catalogue's scripts in ensemble/sim, each by that of its scenario.

	// JoinComparesVotes: a standing leader is joined only if its followers report equal votes and rounds (S45, ZK-1805).
	JoinComparesVotes bool
	// FollowUnheard: a candidate counts as heard when others relay its vote (S46).
	FollowUnheard bool
	// NoResend: what was said once is not said again unless something changes (S47).
	NoResend bool
	// LaggardDeposes: an established leader gives up when somebody looks in a higher round (S51).
	LaggardDeposes bool
	// DeafWhileFinalizing: in the finalize wait everything but a better vote is thrown away (S52).
	DeafWhileFinalizing bool
	// NeverAbdicate: a leader that is not established stays although its electors have moved on (S12).
	NeverAbdicate bool
}

// beats is Vote.Beats with the configured mistakes.
func (m Mutations) beats(v, o Vote) bool {
	if m.VotesByZxidOnly {
		v.Epoch, o.Epoch = 0, 0
	}
	return v.Beats(o)
}
