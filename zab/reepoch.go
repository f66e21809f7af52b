package zab

import "kvd/kv"

// raiseEpoch changes to epoch e or a higher one over the existing links: phases 1 and 2 again, with no election.
// A leader that serves lets its outstanding proposals commit first; Propose answers ErrBusy meanwhile.
// Used for counter exhaustion (S39) and for a learner that has promised more than this epoch (S62).
func (p *Peer) raiseEpoch(e kv.Epoch, reason string) {
	l := p.leader
	if e <= l.wantEpoch {
		return
	}
	l.wantEpoch, l.wantReason = e, reason
	p.event("re-epoch", "from=%d to=%d reason=%q", l.epoch, e, reason)
	if p.stage != Broadcast {
		p.maybeReepoch()
	}
}

// maybeReepoch starts the wanted epoch when nothing stands in its way. While serving it is called by the flush.
func (p *Peer) maybeReepoch() {
	l := p.leader
	if l.wantEpoch == 0 || l.resigning {
		return
	}
	if p.stage == Broadcast && p.committed < p.last {
		return
	}
	e := max(l.wantEpoch, l.epoch+1)
	for _, pr := range l.links { // nobody on a link may be locked out of this one too
		if pr.stage != linkOpen && pr.accepted >= e && pr.accepted < maxEpoch {
			e = pr.accepted + 1
		}
	}
	reason := l.wantReason
	l.wantEpoch, l.wantReason = 0, ""
	for i := range l.syncs {
		l.syncs[i].probe = 0 // its round was of the old epoch
	}
	if p.stage != Discovery {
		p.setStage(Discovery, "re-epoch: "+reason)
	}
	p.promiseEpoch(e)
}

// rolloverDue reports that the counter must not go further in this epoch.
func (p *Peer) rolloverDue() bool {
	l := p.leader
	return l.next.Counter() >= p.cfg.RolloverCounter
}
