package replica

import (
	"fmt"

	"kvd/fle"
)

// A sole survivor (zab.DurableState.Sole) elects itself. Safety is zab's; here are the courtesies: it listens first, does
// not begin before there is a quorum to bring up to date, and gives up when it hears of a healthy voter that holds more.

// aloneTicks is how long a sole survivor looks for a leader, or for voters that are well, before it leads without votes: 2 s.
const aloneTicks = 40

func (r *Replica) tickSole() {
	if !r.electing || r.stopping || r.now < r.aloneAt || !r.zab.Durable().Sole {
		return
	}
	if r.forming.machine.Connected() < r.cfg.Members.Majority() {
		return // nobody to bring up to date yet
	}
	r.event("sole-survivor", "leading without a quorum of voters, to bring the others up to date")
	r.election.LeadAlone()
}

// heardOf compares a voter's report with what this sole survivor holds. One with the same last entry may have been synced
// by this very member: the digests of ACKEPOCH decide about it.
func (r *Replica) heardOf(n *fle.Notification) {
	d := r.zab.Durable()
	if !d.Sole || n.Unknown || !r.cfg.Members.IsVoter(n.From) {
		return
	}
	greater := n.SenderEpoch > d.Current || n.SenderEpoch == d.Current && n.SenderZxid > d.Last
	switch {
	case n.Established > d.Current:
		r.giveUpSole(fmt.Sprintf("member %d says that an ensemble is established in epoch %d", n.From, n.Established))
	case greater && n.SenderZxid != d.Last:
		r.giveUpSole(fmt.Sprintf("member %d is well and holds more than this one: epoch %d, last %v", n.From, n.SenderEpoch, n.SenderZxid))
	}
}

// giveUpSole takes the mark away. A member that looks is silent until that is durable: a vote speaks of a disk that has
// stopped moving (P21).
func (r *Replica) giveUpSole(reason string) {
	r.zab.GiveUpSole(reason)
	if r.electing && !r.zab.Drained() {
		r.election.Stop()
		r.electing, r.wantElection = false, true
	}
}
