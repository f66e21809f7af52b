package zab

import (
	"fmt"
	"slices"
)

// This file is what the leader of an ensemble does differently that lost a quorum of its disks for good, and whose operator
// told the member that holds the most to go on: kvd recover --sole-survivor (DurableState.Sole).
//
// Nothing of a quorum's arithmetic is given up. The epoch still needs acks of a quorum, the history ACK(NEWLEADER) of a
// quorum; only the epoch acks of members that are Unknown count, which they do not otherwise, because what they may have
// forgotten could be newer than the leader's history. That there is nothing newer is what the operator vouches for. So two
// members that were both told to go on cannot both be established: their quorums share a member, which promises an epoch to
// one of them (P2, P3), and once it was brought up to date it is no longer Unknown and the other one meets the recency
// check (S10).
//
// The member's own current epoch rises last, in the batch that takes the mark away, when a quorum holds its history. Until
// then its own pair is what it was, so that a voter that holds more is recognised, and the member that gives up for it
// votes as if nothing had happened. A crash before that batch leaves the mark, and the next start goes on; those that were
// synced already have the same history under a greater epoch, which sameHistory recognises. After it, a quorum are ordinary
// voters.

// endSole makes a quorum's history that of the epoch, and this member an ordinary one. Established is who has that on disk.
func (p *Peer) endSole() {
	l := p.leader
	if l.soleWritten {
		return
	}
	l.soleWritten = true
	p.write(Write{Current: l.epoch, ClearSole: true}, writeCurrent, 0, l.epoch)
	p.event("sole-survivor", "a quorum holds this member's history, through %s: it is an ordinary voter again", p.last)
}

// syncsUnknown reports whether a member that may have forgotten something is to be brought up to date before this leader is
// established: if its promise is part of what lets this one lead.
func (p *Peer) syncsUnknown(pr *progress) bool {
	return p.leader.sole && slices.Contains(p.leader.epochAcks, pr.peer)
}

// sameHistory reports whether a voter holds exactly what this leader holds. It was synced by an earlier attempt of this
// survivor then, and leading it takes nothing from it, whatever its current epoch.
func (p *Peer) sameHistory(pr *progress) bool {
	return pr.ack.Last == p.leader.frozen.last && pr.ack.Chain == p.leader.frozenChain
}

// GiveUpSole ends what kvd recover --sole-survivor began, if the mark is still there: the shell heard of a healthy voter
// that holds more, or the leader did. The member is an ordinary voter again, durably, with all it holds.
func (p *Peer) GiveUpSole(reason string) {
	if !p.durable.Sole || p.leader != nil && p.leader.soleWritten {
		return
	}
	for _, w := range p.inflight {
		if w.clearSole {
			return
		}
	}
	p.dirty = true
	p.event("sole-survivor", "given up: %s; if that one is to be given up instead, run kvd recover on the member that holds the most", reason)
	if p.leader != nil {
		p.Look(fmt.Sprintf("no sole survivor: %s", reason))
	}
	p.write(Write{ClearSole: true}, writeMark, 0, 0)
}
