package zab

import (
	"fmt"
	"slices"

	"kvd/kv"
	"kvd/zab/quorum"
)

// onFollowerInfo: phase 1, step 1. The learner's promise bounds the epoch from below.
func (p *Peer) onFollowerInfo(pr *progress, m *FollowerInfo) {
	l := p.leader
	if pr.stage != linkOpen {
		p.dropLink(pr, "FOLLOWERINFO twice")
		return
	}
	if why := p.cfg.Levels.unservedBy(m.Protocol, m.Format); why != "" {
		l.remove(pr)
		p.refuse(pr.peer, pr.link, fmt.Sprintf("member %d: %s", pr.peer, why), false)
		return
	}
	if m.ConfigVersion != p.cfg.Members.Version {
		p.event("config-version", "peer=%d theirs=%d ours=%d", pr.peer, m.ConfigVersion, p.cfg.Members.Version)
	}
	pr.stage = linkInfo
	pr.progressAt = p.now
	pr.accepted, pr.configVersion, pr.protocol, pr.format = m.Accepted, m.ConfigVersion, m.Protocol, m.Format
	switch {
	case l.epoch == 0:
		p.checkInfos()
	case m.Accepted > l.epoch:
		// S62: it can never accept this epoch. Not started yet: start above it. Established: change epoch.
		if p.cfg.Mutations.RefuseHigherPromise {
			l.remove(pr)
			p.refuse(pr.peer, pr.link, "its accepted epoch is higher", false)
			return
		}
		if m.Accepted == maxEpoch {
			p.dropLink(pr, "its accepted epoch leaves no higher one")
			return
		}
		p.raiseEpoch(m.Accepted+1, fmt.Sprintf("member %d has promised epoch %d", pr.peer, m.Accepted))
	case l.promised:
		p.offer(pr)
	}
}

const maxEpoch = ^kv.Epoch(0)

// checkInfos: phase 1, step 2. A quorum's accepted epochs are known: propose one above them all.
func (p *Peer) checkInfos() {
	l := p.leader
	highest := p.durable.Accepted.Epoch
	infos := 1
	for _, pr := range l.links {
		if pr.stage == linkOpen {
			continue
		}
		highest = max(highest, pr.accepted)
		if pr.voter {
			infos++
		}
	}
	p.noteBest(&l.best.infos, infos)
	if infos < p.cfg.Members.Majority() {
		return
	}
	if highest == maxEpoch {
		p.Look("epochs are exhausted")
		return
	}
	p.promiseEpoch(highest + 1)
}

// promiseEpoch persists this member's own promise; LEADERINFO waits for it (ZK-1291, P12).
func (p *Peer) promiseEpoch(e kv.Epoch) {
	l := p.leader
	l.epoch, l.promised, l.selfSynced = e, false, false
	l.epochAcks = l.epochAcks[:0]
	l.best = struct{ infos, acks, synced int }{}
	l.progressAt = p.now
	for _, pr := range l.links {
		if pr.stage == linkOpen {
			continue
		}
		if pr.inTransfer() {
			pr.waiting = true
			continue
		}
		pr.restart(p.now)
		pr.stage = linkInfo
		if p.cfg.Mutations.OfferBeforePromise {
			p.offer(pr)
		}
	}
	p.write(Write{Promise: &Promise{Epoch: e, To: l.inc}}, writePromise, 0, e)
	p.event("epoch", "propose=%d", e)
}

// promiseDurable: this member has acked the epoch itself; its history is frozen until it is established.
func (p *Peer) promiseDurable() {
	l := p.leader
	l.promised = true
	l.frozen, l.frozenChain = recency{p.durable.Current, p.durable.Last}, p.durable.LastChain
	l.epochAcks = append(l.epochAcks, p.cfg.ID)
	for _, pr := range slices.Clone(l.links) {
		if pr.stage == linkInfo {
			p.offer(pr)
		}
	}
	p.checkEpochAcks()
}

// offer sends LEADERINFO.
func (p *Peer) offer(pr *progress) {
	l := p.leader
	pr.stage = linkOffered
	pr.progressAt = p.now
	p.send(pr.peer, pr.link, &LeaderInfo{
		Epoch: l.epoch, Incarnation: l.inc, ConfigVersion: p.cfg.Members.Version, Levels: p.cfg.Levels, Protocol: p.cfg.Protocol, Format: p.cfg.Format,
	})
}

// onAckEpoch: phase 1, steps 3 and 4, and row 0 of the synchronization table.
func (p *Peer) onAckEpoch(pr *progress, m *AckEpoch) {
	l := p.leader
	if m.Epoch != l.epoch {
		return // of an epoch that has been given up
	}
	if pr.stage != linkOffered {
		p.dropLink(pr, "ACKEPOCH that was not asked for")
		return
	}
	pr.ack = *m
	pr.accepted = m.Epoch
	pr.stage = linkAcked
	pr.progressAt = p.now
	if p.mustAbdicate(pr) {
		p.event("abdicate", "peer=%d theirs=%d/%s own=%d/%s", pr.peer, m.Current, m.Last, l.frozen.current, l.frozen.last)
		if l.sole {
			p.GiveUpSole(fmt.Sprintf("member %d holds more than this one: epoch %d, last %s", pr.peer, m.Current, m.Last))
			return
		}
		p.Look(fmt.Sprintf("member %d has a newer history (%d, %s)", pr.peer, m.Current, m.Last))
		return
	}
	countable := !m.AlreadyPromised || p.cfg.Mutations.CountAlreadyPromised
	if pr.voter && countable && (!m.Unknown || l.sole) && !slices.Contains(l.epochAcks, pr.peer) {
		l.epochAcks = append(l.epochAcks, pr.peer)
	}
	if p.stage == Discovery {
		p.checkEpochAcks()
		return
	}
	p.startSync(pr)
}

// mustAbdicate is the recency check: never lead, and never truncate, a voter whose history is newer (S10). An
// observer's and an unknown member's history decide nothing.
func (p *Peer) mustAbdicate(pr *progress) bool {
	l := p.leader
	if p.stage == Broadcast || !pr.voter || pr.ack.Unknown || p.cfg.Mutations.RecencyCheckSkipped {
		return false
	}
	if p.cfg.Mutations.RecencyByZxidOnly {
		return pr.ack.Last > l.frozen.last
	}
	if l.sole && p.sameHistory(pr) {
		return false
	}
	return recency{pr.ack.Current, pr.ack.Last}.greater(l.frozen)
}

// checkEpochAcks: a quorum has promised the epoch, so nobody else can establish it (P3): phase 2.
func (p *Peer) checkEpochAcks() {
	l := p.leader
	if p.stage != Discovery || !l.promised {
		return
	}
	p.noteBest(&l.best.acks, len(l.epochAcks))
	in := func(id quorum.MemberID) bool { return slices.Contains(l.epochAcks, id) }
	if !p.cfg.Members.HasQuorum(in) {
		return
	}
	l.progressAt = p.now
	p.setStage(Synchronization, "a quorum promised the epoch")
	if !l.sole {
		// The leader's own log is its history already: only the current epoch is missing.
		p.write(Write{Current: l.epoch}, writeCurrent, 0, l.epoch)
	}
	for _, pr := range slices.Clone(l.links) {
		if pr.stage == linkAcked {
			p.startSync(pr)
		}
	}
}

// startSync chooses how the learner gets the leader's history, and starts the stream. Reading the end of the log
// and registering the learner for what follows is this one step (S38).
func (p *Peer) startSync(pr *progress) {
	if p.stage != Broadcast && (!pr.voter || pr.ack.Unknown && !p.syncsUnknown(pr)) {
		return // only an established leader takes them in (design rule 8; zab-rules c, counter rollover)
	}
	c := syncCase{
		electionOpen: false, // row 0 was asked when the ACKEPOCH arrived
		logStart:     p.durable.LogStart, last: p.last, locate: p.locate,
		learner: recency{pr.ack.Current, pr.ack.Last}, chain: pr.ack.Chain, base: pr.ack.Base,
		needSnapshot: pr.needSnapshot,
	}
	if p.cfg.Mutations.TruncateAgainstCommitted {
		c.last = p.committed
		c.locate = func(z kv.Zxid) (kv.Zxid, uint64, bool) { return p.locate(min(z, p.committed)) }
	}
	if costs, ok := p.hist.(SyncCosts); ok && p.cfg.DiffShare > 0 && !pr.diffOnly && pr.ack.Last < p.last {
		c.diffTooLarge = costs.DiffBytes(pr.ack.Last)*100 > costs.SnapshotBytes()*int64(p.cfg.DiffShare)
	}
	pr.plan = c.decide()
	p.event("sync", "peer=%d row=%d %s point=%s from=%d/%s base=%s", pr.peer, pr.plan.row, pr.plan.kind, pr.plan.point, pr.ack.Current, pr.ack.Last, pr.ack.Base)
	if pr.plan.alarm {
		p.event("alarm", "peer=%d digests differ at %s", pr.peer, pr.ack.Last)
	}
	pr.target = p.last
	if !pr.voter {
		// An observer holds nothing uncommitted, unless it was a voter once.
		pr.target = max(p.committed, pr.plan.point)
	}
	if p.cfg.Mutations.TruncateAgainstCommitted {
		pr.target = max(p.committed, pr.plan.point) // what is outstanding follows as live proposals
	}
	pr.progressAt = p.now
	switch pr.plan.kind {
	case planDiff:
		p.send(pr.peer, pr.link, &Diff{After: pr.plan.point})
		p.startStream(pr, pr.plan.point, pr.plan.chain)
	case planTrunc:
		p.send(pr.peer, pr.link, &Trunc{To: pr.plan.point, Chain: pr.plan.chain})
		p.startStream(pr, pr.plan.point, pr.plan.chain)
	case planSnap:
		p.askSnapshot(pr)
	case planAbdicate:
		p.Look(fmt.Sprintf("member %d has a newer history", pr.peer))
	}
}

func (p *Peer) startStream(pr *progress, z kv.Zxid, chain uint64) {
	pr.stage = linkHistory
	pr.cursor, pr.cursorChain, pr.received = z, chain, z
	if kept := p.leader.keptCursor[pr.peer]; p.cfg.Mutations.RegistrationKeptAcrossLinks && kept > z && kept <= pr.target {
		_, pr.cursorChain, _ = p.locate(kept)
		pr.cursor = kept
	}
}

func (p *Peer) askSnapshot(pr *progress) {
	pr.stage = linkChoosing
	pr.reading = false
	pr.window.clear()
	p.out.Snapshots = append(p.out.Snapshots, SendSnapshot{To: pr.peer, Link: pr.link})
}

// onNeedSnapshot: the learner could not follow a DIFF or TRUNC (below its base, or unknown to it).
func (p *Peer) onNeedSnapshot(pr *progress, m *NeedSnapshot) {
	p.event("need-snapshot", "peer=%d reason=%q", pr.peer, m.Reason)
	if pr.stage == linkInfo || pr.stage == linkOffered || pr.inTransfer() {
		return // of an earlier epoch
	}
	if pr.needSnapshot || pr.stage != linkHistory && pr.stage != linkProving {
		p.dropLink(pr, "NEEDSNAPSHOT that cannot be")
		return
	}
	pr.needSnapshot = true
	p.startSync(pr)
}

// bySnapshotLink finds the learner whose snapshot transfer is on link.
func (p *Peer) bySnapshotLink(link LinkID, s linkStage) *progress {
	if p.leader == nil {
		return nil
	}
	for _, pr := range p.leader.links {
		if pr.link == link && pr.stage == s {
			return pr
		}
	}
	return nil
}

// SnapshotChosen answers Ready.Snapshots: the shell will stream the point at z behind the SNAP message that the
// next Ready carries. ok is false if it has none: the link is closed.
func (p *Peer) SnapshotChosen(link LinkID, z kv.Zxid, chain uint64, ok bool) {
	pr := p.bySnapshotLink(link, linkChoosing)
	if pr == nil {
		return
	}
	p.dirty = true
	if !ok {
		p.dropLink(pr, "no snapshot to send")
		return
	}
	at, c, found := p.locate(z)
	if z < p.durable.LogStart || !found || at != z || c != chain {
		p.dropLink(pr, fmt.Sprintf("the snapshot chosen at %s is not in the log", z))
		return
	}
	if pr.plan.row == 8 && z <= pr.ack.Last {
		// Cheaper it may be, but it would take back what the learner has acked and applied (P8, P14).
		pr.diffOnly = true
		p.startSync(pr)
		return
	}
	pr.stage = linkSnapping
	pr.progressAt = p.now
	pr.cursor, pr.cursorChain, pr.received = z, chain, z
	if p.stage != Discovery {
		pr.target = max(pr.target, z)
	}
	p.send(pr.peer, pr.link, &Snap{Zxid: z, Chain: chain})
}

// SnapshotProgress reports that a snapshot transfer on link moves, at either side, or that a large message is
// arriving on it: a sign of life, without effect on acks or credit.
func (p *Peer) SnapshotProgress(link LinkID) {
	if f := p.learn; f != nil && f.link == link {
		f.heard = p.now
		return
	}
	if p.leader == nil {
		return
	}
	for _, pr := range p.leader.links {
		if pr.link != link {
			continue
		}
		pr.heard = p.now
		if pr.inTransfer() && !p.cfg.Mutations.AbsoluteInitLimit { // choosing may mean writing the first one
			pr.progressAt = p.now
			if pr.voter {
				p.leader.progressAt = p.now
			}
		}
	}
}

// SnapshotSent reports that the files are on the link; the stream goes on behind them.
func (p *Peer) SnapshotSent(link LinkID, ok bool) {
	pr := p.bySnapshotLink(link, linkSnapping)
	if pr == nil {
		return
	}
	p.dirty = true
	if !ok {
		p.dropLink(pr, "the snapshot could not be sent")
		return
	}
	pr.progressAt = p.now
	if pr.waiting { // the epoch changed meanwhile
		pr.waiting = false
		pr.restart(p.now)
		pr.stage = linkInfo
		if p.leader.promised {
			p.offer(pr)
		}
		return
	}
	pr.stage = linkHistory
}
