package zab

import (
	"fmt"
	"slices"

	"kvd/kv"
	"kvd/zab/quorum"
)

// leader is the state of one attempt to lead, in one or (by re-epoch) several epochs.
type leader struct {
	inc Incarnation
	// epoch is 0 until a quorum's accepted epochs are known, then the one being established or served.
	epoch    kv.Epoch
	promised bool // epoch's promise is durable here: LEADERINFO may go out (ZK-1291, P12)
	// frozen is this member's own pair at its own epoch ack (zab-rules a, initial history).
	frozen      recency
	frozenChain uint64
	// epochAcks are the voters whose ACKEPOCH of epoch counts. A promise is durable, so it outlives the link.
	epochAcks  []quorum.MemberID
	selfSynced bool // own current epoch is durable: its own acks count
	// sole: this attempt began as that of a sole survivor; soleWritten: the write that ends that is handed out.
	sole, soleWritten bool
	// everEstablished: this attempt has served some epoch already (a re-epoch follows).
	everEstablished bool

	// wantEpoch, if not 0, is the epoch to change to once everything outstanding is committed.
	wantEpoch   kv.Epoch
	wantReason  string
	resigning   bool
	resignSince int

	next             kv.Zxid // what Propose will assign
	outstandingCount int
	outstandingBytes int

	links []*progress // ascending by peer

	progressAt int // tick of the newest step towards establishment
	best       struct{ infos, acks, synced int }

	full bool // see Peer.Full

	probe    uint64
	pingedAt int
	digestAt kv.Zxid // PINGs ask for the digest there
	syncs    []syncWait

	// keptMatch and keptCursor are used by mutations only.
	keptMatch, keptCursor map[quorum.MemberID]kv.Zxid
}

// syncWait is a SYNC that waits for a quorum round begun after it arrived (S36).
type syncWait struct {
	to    quorum.MemberID
	link  LinkID
	id    uint64
	probe uint64 // 0: its round has not begun
	zxid  kv.Zxid
}

func (l *leader) find(id quorum.MemberID) *progress {
	for _, pr := range l.links {
		if pr.peer == id {
			return pr
		}
	}
	return nil
}

func (l *leader) remove(pr *progress) {
	if l.keptMatch != nil && pr.stage == linkLive {
		l.keptMatch[pr.peer] = max(l.keptMatch[pr.peer], pr.match)
		l.keptCursor[pr.peer] = pr.cursor
	}
	l.links = slices.DeleteFunc(l.links, func(x *progress) bool { return x == pr })
	l.syncs = slices.DeleteFunc(l.syncs, func(s syncWait) bool { return s.link == pr.link && s.to == pr.peer })
}

// startLeading begins discovery. The disk is quiet: durable is the whole truth.
func (p *Peer) startLeading() {
	p.leader = &leader{inc: p.cfg.Incarnation(), progressAt: p.now, pingedAt: p.now, sole: p.durable.Sole}
	if p.cfg.Mutations.TruncateAgainstCommitted || p.cfg.Mutations.RegistrationKeptAcrossLinks {
		p.leader.keptMatch, p.leader.keptCursor = map[quorum.MemberID]kv.Zxid{}, map[quorum.MemberID]kv.Zxid{}
	}
	switch {
	case !p.cfg.Members.IsVoter(p.cfg.ID):
		p.Look("not a voter: may not lead")
		return
	case p.durable.Unknown:
		p.Look("may have forgotten something: may not lead")
		return
	}
	parked := p.parked
	p.parked = nil
	for _, k := range parked {
		if p.leader == nil { // a message of an earlier one ended this attempt
			p.closeLink(k.peer, k.link, "not leading")
			continue
		}
		p.learnerConnected(k.peer, k.link)
		for _, m := range k.msgs {
			p.Step(k.peer, k.link, m)
		}
	}
	if p.leader != nil {
		p.checkInfos()
	}
}

// learnerConnected registers a new link; whatever an earlier one of the same member had is forgotten.
func (p *Peer) learnerConnected(peer quorum.MemberID, link LinkID) {
	l := p.leader
	if old := l.find(peer); old != nil {
		l.remove(old)
		p.closeLink(peer, old.link, "replaced by a newer link")
	}
	pr := &progress{peer: peer, link: link, voter: p.cfg.Members.IsVoter(peer), heard: p.now, progressAt: p.now}
	i, _ := slices.BinarySearchFunc(l.links, peer, func(x *progress, id quorum.MemberID) int { return int(x.peer) - int(id) })
	l.links = slices.Insert(l.links, i, pr)
}

// dropLink closes one learner's link; this member keeps leading.
func (p *Peer) dropLink(pr *progress, reason string) {
	p.leader.remove(pr)
	p.closeLink(pr.peer, pr.link, reason)
	p.event("link-closed", "peer=%d reason=%q", pr.peer, reason)
}

// stepLeader takes in a message from a learner's current link.
func (p *Peer) stepLeader(pr *progress, m Message) {
	pr.heard = p.now
	switch m := m.(type) {
	case *FollowerInfo:
		p.onFollowerInfo(pr, m)
	case *AckEpoch:
		p.onAckEpoch(pr, m)
	case *NeedSnapshot:
		p.onNeedSnapshot(pr, m)
	case *Received:
		p.onReceived(pr, m)
	case *AckNewLeader:
		p.onAckNewLeader(pr, m)
	case *Ack:
		p.onAck(pr, m)
	case *PingReply:
		p.onPingReply(pr, m)
	case *Request:
		// A learner forwards only after UPTODATE; during a re-epoch such requests may still be on the way.
		if !p.leader.everEstablished {
			p.dropLink(pr, "request before UPTODATE")
			return
		}
		p.out.Inbound = append(p.out.Inbound, Inbound{From: pr.peer, Link: pr.link, Payload: m.Payload})
	case *SyncRequest:
		p.leader.syncs = append(p.leader.syncs, syncWait{to: pr.peer, link: pr.link, id: m.ID})
	case *Refuse:
		p.event("refused-by", "peer=%d reason=%q", pr.peer, m.Reason)
		p.dropLink(pr, "refused by the learner: "+m.Reason)
	case *LeaderInfo, *Diff, *Trunc, *Snap, *Proposal, *Inform, *NewLeader, *UpToDate, *Commit, *Ping, *Reply, *SyncReply, *Resign:
		p.dropLink(pr, fmt.Sprintf("a learner sent %T", m))
	}
}

// onAckNewLeader: the learner holds the history named in NEWLEADER, and the epoch, durably.
func (p *Peer) onAckNewLeader(pr *progress, m *AckNewLeader) {
	l := p.leader
	if m.Epoch != l.epoch {
		return // of an epoch that a re-epoch has replaced
	}
	if pr.stage != linkProving || m.Last != pr.target {
		p.dropLink(pr, "ACK(NEWLEADER) that was not asked for")
		return
	}
	pr.stage = linkLive
	pr.match = m.Last
	pr.window.ack(m.Last)
	p.event("synced", "peer=%d epoch=%d last=%s", pr.peer, m.Epoch, m.Last)
	if p.stage == Synchronization {
		p.checkEstablished()
	} else {
		p.advanceCommit()
	}
}

// selfWrote: a write of this attempt is durable.
func (p *Peer) leaderWrote(w inflightWrite) {
	l := p.leader
	switch w.kind {
	case writePromise:
		if w.epoch == l.epoch {
			p.promiseDurable()
		}
	case writeCurrent:
		if w.epoch == l.epoch {
			l.selfSynced = true
			p.checkEstablished()
		}
	case writeAppend, writeStage, writeNewLeader, writeMark:
	}
}

// checkEstablished: ACK(NEWLEADER) from a quorum including this member commits the whole initial history
// (zab-rules c, phase 2) and opens broadcast.
func (p *Peer) checkEstablished() {
	l := p.leader
	if p.stage != Synchronization || !l.selfSynced && !l.sole {
		return
	}
	synced := 0
	in := func(id quorum.MemberID) bool {
		if id == p.cfg.ID {
			return true
		}
		pr := l.find(id)
		return pr != nil && pr.counted()
	}
	for _, id := range p.cfg.Members.Voters {
		if in(id) {
			synced++
		}
	}
	p.noteBest(&l.best.synced, synced)
	if !p.cfg.Members.HasQuorum(in) {
		return
	}
	if !l.selfSynced {
		p.endSole()
		return
	}
	p.committed = p.last
	l.next = kv.MakeZxid(l.epoch, 1)
	l.outstandingCount, l.outstandingBytes = 0, 0
	l.everEstablished = true
	p.setStage(Broadcast, "established")
	// Those that had to wait for an established leader: observers, and members that may have forgotten something.
	for _, pr := range slices.Clone(l.links) {
		if pr.stage == linkAcked {
			p.startSync(pr)
		}
	}
}

// noteBest resets the no-progress clock when a count reaches a new height in this epoch.
func (p *Peer) noteBest(best *int, v int) {
	if v > *best {
		*best = v
		p.leader.progressAt = p.now
	}
}

// tickLeader checks every deadline of a leader.
func (p *Peer) tickLeader() {
	l := p.leader
	for _, pr := range slices.Clone(l.links) {
		p.tickLink(pr)
	}
	// A leader without a quorum of fresh links must not look like one (S05, S41).
	if p.stage == Broadcast || l.everEstablished {
		if !p.cfg.Members.HasQuorum(p.fresh) && !p.observersCounted() {
			p.Look("no quorum heard within the sync limit")
			return
		}
	}
	if p.stage != Broadcast && p.now-l.progressAt > p.phaseLimit() {
		p.Look("no progress towards an established epoch in " + p.stage.String())
		return
	}
	if len(p.inflight) > 0 && p.now-p.inflight[0].born > p.cfg.StallTicks && !p.cfg.Mutations.IgnoreOwnHang {
		p.Look("own disk did not finish a write within the stall limit")
		return
	}
	if p.hungAlone() {
		p.Look("own disk hangs and the others are well")
		return
	}
	if l.resigning && p.now-l.resignSince > p.cfg.SyncTicks {
		p.Look("resigned")
		return
	}
	if p.now-l.pingedAt >= p.cfg.PingTicks {
		p.pingAll()
	}
}

// phaseLimit bounds a phase without progress. Discovery moves a few small messages and one write: if the learners that
// voted for this member do not come, or do not answer, they are somewhere else, and waiting out the init limit, made for
// the transfer of a history, would only keep the ensemble down.
func (p *Peer) phaseLimit() int {
	if p.stage == Discovery {
		return min(p.cfg.InitTicks, 3*p.cfg.SyncTicks)
	}
	return p.cfg.InitTicks
}

// tickLink closes one learner's link when it has failed (zab-rules c, timeouts).
func (p *Peer) tickLink(pr *progress) {
	if p.cfg.Mutations.IgnoreSilence {
		return
	}
	switch pr.stage {
	case linkLive:
		if p.now-pr.heard > p.cfg.SyncTicks {
			p.dropLink(pr, "silent for the sync limit")
			return
		}
		if at, ok := pr.window.oldest(); ok && p.now-at > p.cfg.StallTicks {
			p.dropLink(pr, "oldest proposal unacked for the stall limit")
		}
	case linkInfo, linkAcked:
		pr.progressAt = p.now // waits for this side
		if p.now-pr.heard > p.cfg.InitTicks {
			p.dropLink(pr, "silent for the init limit")
		}
	case linkOpen, linkOffered, linkChoosing, linkSnapping, linkHistory, linkProving:
		if p.now-pr.progressAt > p.cfg.InitTicks {
			p.dropLink(pr, "no progress within the init limit, at "+pr.stage.String())
		}
	}
}

// fresh reports whether a voter was heard within the sync limit; during a re-epoch a link is enough, else it
// must be synced.
func (p *Peer) fresh(id quorum.MemberID) bool {
	if id == p.cfg.ID {
		return true
	}
	pr := p.leader.find(id)
	return pr != nil && (p.now-pr.heard <= p.cfg.SyncTicks || p.cfg.Mutations.IgnoreSilence) && (pr.stage == linkLive || p.stage != Broadcast && pr.stage != linkOpen)
}

// observersCounted is the quorum check with a deliberate mistake.
func (p *Peer) observersCounted() bool {
	if !p.cfg.Mutations.CountObservers {
		return false
	}
	n := 1
	for _, pr := range p.leader.links {
		if p.now-pr.heard <= p.cfg.SyncTicks {
			n++
		}
	}
	return n >= p.cfg.Members.Majority()
}

// hungAlone is design rule 10: resign over a hung disk only if a quorum made of others reports healthy ones.
func (p *Peer) hungAlone() bool {
	if p.disk.oldestMs < p.cfg.HangMs || p.stage != Broadcast || p.cfg.Mutations.IgnoreOwnHang {
		return false
	}
	return p.cfg.Members.HasQuorum(func(id quorum.MemberID) bool {
		pr := p.leader.find(id)
		return id != p.cfg.ID && pr != nil && pr.counted() && pr.report != nil &&
			p.now-pr.reportAt <= 2*p.cfg.PingTicks && pr.report.OldestWriteMs < p.disk.oldestMs/2
	})
}

// Resign hands leadership over: no more proposals are taken, outstanding ones may commit (within SyncTicks), then
// the learners are told and elect at once. No effect on a member that does not lead.
func (p *Peer) Resign() {
	l := p.leader
	switch {
	case p.role != Leading || l != nil && l.resigning:
	case l == nil || p.stage != Broadcast: // nothing is outstanding
		p.Look("resigned")
	default:
		p.dirty = true
		l.resigning, l.resignSince = true, p.now
	}
}
