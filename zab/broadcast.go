package zab

import (
	"fmt"

	"kvd/kv"
	"kvd/zab/quorum"
)

// Propose assigns the next zxid to payload and logs it here and at the learners. The payload is retained.
// It fails with ErrNotLeader, ErrBusy (bounds, epoch change, hand-over) or ErrTooLarge; then nothing happened.
func (p *Peer) Propose(payload []byte) (kv.Zxid, error) {
	l := p.leader
	if l == nil || p.stage != Broadcast {
		if l != nil && l.everEstablished {
			return 0, ErrBusy // a re-epoch is running: the request waits, client sessions are kept
		}
		return 0, ErrNotLeader
	}
	if l.wantEpoch != 0 || l.resigning ||
		l.outstandingCount >= p.cfg.MaxOutstandingEntries || l.outstandingBytes >= p.cfg.MaxOutstandingBytes {
		return 0, ErrBusy
	}
	if len(payload) > p.cfg.MaxPayloadBytes {
		return 0, fmt.Errorf("%w: %d bytes, limit %d", ErrTooLarge, len(payload), p.cfg.MaxPayloadBytes)
	}
	if p.cfg.Mutations.WaitForSlowest && l.windowFull(p.cfg.WindowEntries) {
		return 0, ErrBusy
	}
	if p.rolloverDue() {
		p.dirty = true
		if p.cfg.Mutations.RolloverByElection {
			p.Look("counter exhausted")
			return 0, ErrNotLeader
		}
		p.raiseEpoch(l.epoch+1, "counter exhausted")
		return 0, ErrBusy
	}
	p.dirty = true
	z := l.next
	e := kv.Entry{Zxid: z, Chain: kv.ChainDigest(p.lastChain, z, payload), Payload: payload}
	p.appendLive(e, 0, l.epoch)
	l.next = z + 1
	l.outstandingCount++
	l.outstandingBytes += entryBytes(&e)
	if p.cfg.Mutations.AckBeforeSync {
		p.advanceCommit()
	}
	return z, nil
}

// NextZxid is what Propose will assign; 0 if this member is not an established leader.
func (p *Peer) NextZxid() kv.Zxid {
	if p.leader == nil || p.stage != Broadcast {
		return 0
	}
	return p.leader.next
}

// onAck: everything up to z is durable at the learner.
func (p *Peer) onAck(pr *progress, m *Ack) {
	if m.Epoch != p.leader.epoch {
		return // of the epoch before a re-epoch: not an error, and no credit (S39)
	}
	if pr.stage != linkLive {
		p.dropLink(pr, "ACK before ACK(NEWLEADER)")
		return
	}
	if m.Zxid < pr.match || m.Zxid > pr.cursor {
		p.dropLink(pr, fmt.Sprintf("ACK of %s, sent up to %s, acked before %s", m.Zxid, pr.cursor, pr.match))
		return
	}
	pr.match = m.Zxid
	pr.window.ack(m.Zxid)
	if pr.voter {
		p.advanceCommit()
	}
}

// advanceCommit commits what a quorum holds durably. Only an entry of this leader's own epoch commits by
// counting; it takes everything before it along (S37).
func (p *Peer) advanceCommit() {
	l := p.leader
	if p.stage != Broadcast || p.committed == p.last {
		return
	}
	z := kv.Zxid(p.cfg.Members.QuorumValue(func(id quorum.MemberID) uint64 { return uint64(p.matchOf(id)) }))
	if p.cfg.Mutations.CommitNewestAck {
		for _, pr := range l.links {
			z = max(z, pr.match)
		}
	}
	z = min(z, p.last)
	if z <= p.committed || z.Epoch() != l.epoch {
		return
	}
	n, bytes, _ := p.tail.between(p.committed, z) // everything uncommitted is in memory
	l.outstandingCount -= n
	l.outstandingBytes -= bytes
	p.committed = z
}

func (p *Peer) matchOf(id quorum.MemberID) kv.Zxid {
	l := p.leader
	if id == p.cfg.ID {
		if p.cfg.Mutations.AckBeforeSync {
			return p.last
		}
		return p.durable.Last
	}
	var z kv.Zxid
	for _, pr := range l.links {
		if pr.peer == id && pr.stage == linkLive {
			z = pr.match
		}
	}
	if p.cfg.Mutations.TruncateAgainstCommitted {
		z = max(z, l.keptMatch[id])
	}
	return z
}

// sharedBatch is a message built in this flush. Learners at the same cursor get the same pointer, and the shell
// encodes it once.
type sharedBatch struct {
	prev, last kv.Zxid
	inform     bool
	commit     kv.Zxid
	msg        Message
	entries    []kv.Entry
	bytes      int
}

// flushLeader streams to every learner what its window allows, then the commit point, then answers what a quorum
// round has confirmed.
func (p *Peer) flushLeader() {
	l := p.leader
	for i := 0; i < len(l.links); {
		pr := l.links[i]
		p.pump(pr)
		if i < len(l.links) && l.links[i] == pr { // still there
			i++
		}
	}
	clear(p.shared)
	p.shared = p.shared[:0]
	if p.stage != Broadcast {
		return
	}
	p.flushCommits()
	p.flushSyncs()
	switch {
	case l.resigning && p.committed == p.last:
		p.Look("resigned")
	case l.wantEpoch != 0: // behind the last COMMITs of the old one
		p.maybeReepoch()
	}
}

// pump moves one learner's cursor. History, NEWLEADER and live proposals come from the same cursor.
func (p *Peer) pump(pr *progress) {
	for {
		var limit kv.Zxid
		switch pr.stage {
		case linkHistory:
			if pr.cursor == pr.target {
				p.sendNewLeader(pr)
				continue
			}
			limit = pr.target
		case linkProving, linkLive:
			limit = p.last
			if !pr.voter {
				limit = p.committed
			}
		case linkOpen, linkInfo, linkOffered, linkAcked, linkChoosing, linkSnapping:
			return
		}
		if pr.cursor >= limit || pr.reading {
			return
		}
		room := p.cfg.WindowEntries - pr.window.entries
		if room <= 0 || pr.window.bytes >= p.cfg.WindowBytes {
			return
		}
		if pr.cursor < p.tail.start {
			pr.reading = true
			p.out.Reads = append(p.out.Reads, ReadLog{To: pr.peer, Link: pr.link, After: pr.cursor, Through: min(limit, p.tail.start), MaxBytes: p.cfg.MaxBatchBytes})
			return
		}
		if !p.sendBatch(pr, limit, room) {
			return
		}
	}
}

// sendBatch sends the next entries from memory.
func (p *Peer) sendBatch(pr *progress, limit kv.Zxid, room int) bool {
	inform := !pr.voter && pr.stage != linkHistory
	for i := range p.shared {
		s := &p.shared[i]
		if s.prev == pr.cursor && s.inform == inform && s.last <= limit && len(s.entries) <= room && (s.commit == 0 || pr.stage != linkHistory) {
			p.sent(pr, s)
			return true
		}
	}
	entries := p.tail.after(pr.cursor, limit, p.cfg.MaxBatchBytes, room)
	if entries == nil {
		return false
	}
	p.sent(pr, p.build(pr, entries, inform))
	return true
}

// build makes the message for entries at pr's cursor.
func (p *Peer) build(pr *progress, entries []kv.Entry, inform bool) *sharedBatch {
	s := sharedBatch{prev: pr.cursor, last: entries[len(entries)-1].Zxid, inform: inform, entries: entries}
	for i := range entries {
		s.bytes += entryBytes(&entries[i])
	}
	if inform {
		s.commit = s.last
		s.msg = &Inform{Prev: pr.cursor, PrevChain: pr.cursorChain, Entries: entries}
	} else {
		if p.stage == Broadcast && pr.stage != linkHistory {
			s.commit = min(p.committed, s.last)
		}
		s.msg = &Proposal{Prev: pr.cursor, PrevChain: pr.cursorChain, Entries: entries, Commit: s.commit}
	}
	p.shared = append(p.shared, s)
	return &p.shared[len(p.shared)-1]
}

func (p *Peer) sent(pr *progress, s *sharedBatch) {
	p.send(pr.peer, pr.link, s.msg)
	pr.window.add(sentBatch{last: s.last, entries: len(s.entries), bytes: s.bytes, sent: p.now})
	pr.cursor, pr.cursorChain = s.last, s.entries[len(s.entries)-1].Chain
	pr.commitSent = max(pr.commitSent, s.commit)
}

// LogRead answers Ready.Reads. An error means that the entries are gone (compacted): SNAP. Late answers for
// links that have moved on are ignored.
func (p *Peer) LogRead(link LinkID, after kv.Zxid, entries []kv.Entry, err error) {
	if p.leader == nil {
		return
	}
	for _, pr := range p.leader.links {
		if pr.link == link && pr.reading && pr.cursor == after {
			p.dirty = true
			pr.reading = false
			p.streamRead(pr, entries, err)
			return
		}
	}
}

func (p *Peer) streamRead(pr *progress, entries []kv.Entry, err error) {
	if err != nil || len(entries) == 0 {
		if pr.stage != linkHistory {
			p.dropLink(pr, "the log no longer holds what it needs")
			return
		}
		pr.needSnapshot = true
		p.event("sync", "peer=%d the log no longer holds what follows %s", pr.peer, pr.cursor)
		p.startSync(pr)
		return
	}
	limit := p.last
	if pr.stage == linkHistory {
		limit = pr.target
	} else if !pr.voter {
		limit = p.committed
	}
	prev, chain := pr.cursor, pr.cursorChain
	room := p.cfg.WindowEntries - pr.window.entries
	n := 0
	for i := range entries {
		e := &entries[i]
		if e.Zxid > limit || n == room {
			break
		}
		// A hole in a read is a hole in the learner (S21).
		if !e.Zxid.Follows(prev) || kv.ChainDigest(chain, e.Zxid, e.Payload) != e.Chain {
			p.event("alarm", "own log is broken at %s", e.Zxid)
			p.dropLink(pr, "own log is broken")
			return
		}
		prev, chain = e.Zxid, e.Chain
		n++
	}
	if n == 0 {
		return
	}
	inform := !pr.voter && pr.stage != linkHistory
	p.sent(pr, p.build(pr, entries[:n:n], inform))
	clear(p.shared)
	p.shared = p.shared[:0]
}

// sendNewLeader ends the history.
func (p *Peer) sendNewLeader(pr *progress) {
	commit := kv.Zxid(0)
	if p.stage == Broadcast {
		commit = min(p.committed, pr.cursor)
	}
	pr.stage = linkProving
	pr.progressAt = p.now
	pr.commitSent = commit
	p.send(pr.peer, pr.link, &NewLeader{Epoch: p.leader.epoch, Last: pr.cursor, Chain: pr.cursorChain, Commit: commit})
}

// onReceived opens the window of a history in transit.
func (p *Peer) onReceived(pr *progress, m *Received) {
	if m.Epoch != p.leader.epoch || pr.stage != linkHistory && pr.stage != linkProving {
		return
	}
	if m.Zxid > pr.cursor {
		p.dropLink(pr, "received what was not sent")
		return
	}
	if m.Zxid > pr.received {
		pr.received = m.Zxid
		pr.window.ack(m.Zxid)
		pr.progressAt = p.now
		if pr.voter {
			p.leader.progressAt = p.now
		}
	}
}

// flushCommits tells each learner the commit point, as far as it has been sent entries, and lets it serve
// when little is missing (zab-rules g 4).
func (p *Peer) flushCommits() {
	l := p.leader
	var shared *Commit
	for _, pr := range l.links {
		if pr.stage != linkProving && pr.stage != linkLive {
			continue
		}
		c := min(p.committed, pr.cursor)
		if pr.stage == linkLive && !pr.upToDate && p.closeBehind(pr) {
			pr.upToDate = true
			pr.commitSent = c
			p.send(pr.peer, pr.link, &UpToDate{Epoch: l.epoch, Commit: c})
			continue
		}
		if c > pr.commitSent {
			pr.commitSent = c
			if shared == nil || shared.Zxid != c {
				shared = &Commit{Epoch: l.epoch, Zxid: c}
			}
			p.send(pr.peer, pr.link, shared)
		}
	}
}

// closeBehind: less than half a window lies between what the learner holds and what it should.
func (p *Peer) closeBehind(pr *progress) bool {
	end := p.last
	if !pr.voter {
		end = p.committed
	}
	if pr.match >= end {
		return true
	}
	n, bytes, ok := p.tail.between(pr.match, end)
	return ok && n <= p.cfg.WindowEntries/2 && bytes <= p.cfg.WindowBytes/2
}

// Sync asks for a confirmed read point; answered in Ready.Synced. A leader confirms by a quorum PING round that
// begins after this call, a learner asks its leader (S36). Not OK: the role or link ended first.
func (p *Peer) Sync(id uint64) {
	p.dirty = true
	switch {
	case p.leader != nil && (p.stage == Broadcast || p.leader.everEstablished):
		p.leader.syncs = append(p.leader.syncs, syncWait{to: p.cfg.ID, id: id})
	case p.learn != nil && p.stage == Broadcast:
		p.learn.syncs = append(p.learn.syncs, id)
		p.send(p.learn.leader, p.learn.link, &SyncRequest{ID: id})
	default:
		p.out.Synced = append(p.out.Synced, Synced{ID: id})
	}
}

// confirmed is the newest PING round that a quorum has answered.
func (p *Peer) confirmed() uint64 {
	return p.cfg.Members.QuorumValue(func(id quorum.MemberID) uint64 {
		if id == p.cfg.ID {
			return p.leader.probe
		}
		if pr := p.leader.find(id); pr != nil && pr.counted() {
			return pr.probe
		}
		return 0
	})
}

func (p *Peer) flushSyncs() {
	l := p.leader
	if len(l.syncs) == 0 {
		return
	}
	p.answerSyncs()
	waiting := false
	for i := range l.syncs {
		waiting = waiting || l.syncs[i].probe == 0
	}
	if waiting && p.confirmed() == l.probe { // no round is running: begin one for all that gathered
		p.pingAll()
		p.answerSyncs()
	}
}

func (p *Peer) answerSyncs() {
	l := p.leader
	confirmed := p.confirmed()
	kept := l.syncs[:0]
	for _, s := range l.syncs {
		if p.cfg.Mutations.SyncWithoutRound {
			s.probe, s.zxid = confirmed, p.committed
		}
		switch {
		case !p.cfg.Mutations.SyncWithoutRound && (s.probe == 0 || s.probe > confirmed):
			kept = append(kept, s)
		case s.to == p.cfg.ID:
			p.out.Synced = append(p.out.Synced, Synced{ID: s.id, Zxid: s.zxid, OK: true})
		default:
			p.send(s.to, s.link, &SyncReply{ID: s.id, Zxid: s.zxid})
		}
	}
	l.syncs = kept
}

// pingAll begins a PING round on every link that has introduced itself.
func (p *Peer) pingAll() {
	l := p.leader
	l.probe++
	l.pingedAt = p.now
	p.checkSpace()
	if p.stage == Broadcast {
		for i := range l.syncs {
			if l.syncs[i].probe == 0 {
				l.syncs[i].probe, l.syncs[i].zxid = l.probe, p.committed
			}
		}
	}
	for _, pr := range l.links {
		if pr.stage == linkOpen {
			continue
		}
		m := &Ping{Epoch: l.epoch, Probe: l.probe, Full: l.full}
		if p.stage == Broadcast && (pr.stage == linkProving || pr.stage == linkLive) {
			m.Commit = min(p.committed, pr.cursor)
			pr.commitSent = max(pr.commitSent, m.Commit)
		}
		m.SnapshotTurn, pr.grantTurn = pr.grantTurn, false
		if p.stage == Broadcast && pr.stage == linkLive {
			m.DigestAt = l.digestAt
			m.DivergedAfter, m.DivergedAt = pr.diverged.After, pr.diverged.At
			pr.diverged = Divergence{}
		}
		p.send(pr.peer, pr.link, m)
	}
}

// GrantSnapshotTurn lets a learner write its own snapshot; the next PING to it says so.
func (p *Peer) GrantSnapshotTurn(id quorum.MemberID) {
	if p.leader != nil {
		if pr := p.leader.find(id); pr != nil {
			pr.grantTurn = true
		}
	}
}

func (p *Peer) onPingReply(pr *progress, m *PingReply) {
	l := p.leader
	if m.Probe > l.probe {
		p.dropLink(pr, "answered a PING that was not sent")
		return
	}
	if m.Epoch == l.epoch && m.Probe > pr.probe {
		pr.probe = m.Probe
	}
	pr.report, pr.reportAt = m, p.now
	p.out.Reports = append(p.out.Reports, PeerReport{From: pr.peer, Reply: m})
}

// SendReply answers a Request on the link it came from. Nothing is sent if that link is gone.
func (p *Peer) SendReply(to quorum.MemberID, link LinkID, payload []byte) {
	if p.leader == nil {
		return
	}
	if pr := p.leader.find(to); pr != nil && pr.link == link {
		p.dirty = true
		p.send(to, link, &Reply{Payload: payload})
	}
}
