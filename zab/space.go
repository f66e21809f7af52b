package zab

import "kvd/zab/quorum"

// SetLow says whether the space where this member's log lies is below its low mark (design 8). It travels in PING replies.
func (p *Peer) SetLow(low bool) { p.disk.low = low }

// Full reports that operations which add data are to be refused: the voters with room on their disks are no quorum. A
// learner has it from its leader's PING. What is refused in between is refused by the leader; both ask this. False for a
// member that follows nobody.
func (p *Peer) Full() bool {
	switch {
	case p.leader != nil:
		return p.leader.full
	case p.learn != nil:
		return p.learn.full
	}
	return false
}

// roomy reports whether a voter takes part and has not said that its disk is low.
func (p *Peer) roomy(id quorum.MemberID) bool {
	if id == p.cfg.ID {
		return !p.disk.low
	}
	pr := p.leader.find(id)
	return pr != nil && pr.counted() && (pr.report == nil || !pr.report.LowDisk)
}

// checkSpace renews Full once a PING round. A low minority changes nothing: should its disks fill up it leaves, and the
// others are a quorum.
func (p *Peer) checkSpace() {
	l := p.leader
	full := p.stage == Broadcast && !p.cfg.Members.HasQuorum(p.roomy)
	var low []quorum.MemberID
	if full {
		for _, id := range p.cfg.Members.Voters {
			if pr := l.find(id); id == p.cfg.ID && p.disk.low || pr != nil && pr.report != nil && pr.report.LowDisk {
				low = append(low, id)
			}
		}
		// Without a low disk the quorum is short of links, which is not this file's business.
		full = len(low) > 0
	}
	if full == l.full {
		return
	}
	l.full = full
	p.dirty = true
	if full {
		p.event("space", "refusing operations that add data: disk space is low at voters %v, and the others are no quorum", low)
	} else {
		p.event("space", "operations that add data are taken again")
	}
}
