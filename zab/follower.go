package zab

import (
	"fmt"

	"kvd/kv"
	"kvd/zab/quorum"
)

// learnerStage is how far this member has come with its leader in the current epoch.
type learnerStage uint8

const (
	learnDialing   learnerStage = iota // no link
	learnInfo                          // FOLLOWERINFO sent
	learnPromising                     // promise being written, or the disk still busy
	learnAcked                         // ACKEPOCH sent: waits for DIFF, TRUNC or SNAP
	learnRefused                       // NEEDSNAPSHOT sent: the old stream is ignored until SNAP
	learnSnapshot                      // SNAP received: the shell takes in files
	learnHistory                       // history is streamed
	learnProving                       // NEWLEADER received, its batch is being written
	learnProven                        // ACK(NEWLEADER) sent
	learnServing                       // UPTODATE received
)

func (s learnerStage) String() string {
	return [...]string{"dialing", "info", "promising", "acked", "refused", "snapshot", "history", "proving", "proven", "serving"}[s]
}

// learner is the state of following one leader, over one link after the other until synchronized.
type learner struct {
	full bool // the leader's word about disk space: see Peer.Full

	leader  quorum.MemberID
	link    LinkID // 0: none
	attempt uint64
	retry   bool // dial again, at the tick retryAt or the next one
	retryAt int
	refused int  // dials that failed in a row
	broken  int  // links that broke before broadcast
	known   bool // LEADERINFO was received in this term: the leader did lead
	stage   learnerStage

	epoch kv.Epoch
	inc   Incarnation

	// The stream before NEWLEADER. received ends it; what is not written yet is in buffer.
	install       *SnapshotRef // to go into the first Write
	truncate      *kv.Zxid     // likewise
	snapZxid      kv.Zxid      // announced by SNAP
	snapChain     uint64
	received      kv.Zxid
	receivedChain uint64
	receivedSent  kv.Zxid
	buffer        []kv.Entry
	bufferBytes   int
	stagedBytes   int // handed out in stages and not yet durable
	staged        []int

	// pendingCommit is the commit point heard before UPTODATE: remembered, not acted on (S17, ZK-4394).
	pendingCommit kv.Zxid
	ackSent       kv.Zxid
	syncs         []uint64

	heard int // tick of the newest message, or of the newest progress while history is transferred
}

// startLearning begins phase 1 as a learner.
func (p *Peer) startLearning(leader quorum.MemberID) {
	p.learn = &learner{leader: leader, heard: p.now}
	if leader == p.cfg.ID || !p.cfg.Members.IsVoter(leader) {
		p.Look(fmt.Sprintf("member %d cannot be followed", leader))
		return
	}
	p.dial()
}

func (p *Peer) dial() {
	f := p.learn
	p.dials++
	f.attempt, f.retry, f.stage = p.dials, false, learnDialing
	p.out.Connect = &Connect{Leader: f.leader, Attempt: f.attempt}
}

// ConnectFailed reports that the dial of that attempt failed; older attempts are ignored.
func (p *Peer) ConnectFailed(attempt uint64) {
	f := p.learn
	if f == nil || f.attempt != attempt || f.link != 0 || f.stage != learnDialing {
		return
	}
	p.dirty = true
	f.refused++
	if f.known || f.refused >= dialAttempts {
		p.leave("leader %d cannot be reached", f.leader)
		return
	}
	f.retry = true
}

// dialAttempts is how often in a row a dial may fail. A member that has not finished the election yet takes the link
// all the same, so a failing dial means that it is gone or out of reach (zab-rules g 8).
const dialAttempts = 4

// learnerLinked opens the link with FOLLOWERINFO (phase 1, step 1).
func (p *Peer) learnerLinked(link LinkID) {
	f := p.learn
	f.link, f.stage, f.retry, f.refused, f.heard = link, learnInfo, false, 0, p.now
	a := p.durable.Accepted
	p.send(f.leader, link, &FollowerInfo{
		Accepted: a.Epoch, PromisedTo: a.To, ConfigVersion: p.cfg.Members.Version, Protocol: p.cfg.Protocol, Format: p.cfg.Format,
	})
}

// learnerUnlinked: before broadcast a lost link is dialled again, because the promise is kept with the leader's
// incarnation and may count at once (S09). In broadcast the leader has probably died: elect.
func (p *Peer) learnerUnlinked() {
	f := p.learn
	if p.stage == Broadcast {
		f.link = 0
		p.Look("the link to the leader broke")
		return
	}
	p.failSyncs(f)
	f.link = 0
	f.dropStream()
	// At once, then at growing distances: each attempt may cost the leader a whole history.
	f.retry, f.retryAt = true, p.now+min(1<<min(f.broken, 10)-1, p.cfg.SyncTicks/4)
	f.broken++
	f.stage = learnDialing
	if p.stage != Discovery {
		p.setStage(Discovery, "the link broke during synchronization")
	}
}

// dropStream forgets everything received and not yet handed to the disk.
func (f *learner) dropStream() {
	f.install, f.truncate, f.buffer, f.bufferBytes = nil, nil, nil, 0
	f.snapZxid, f.snapChain = 0, 0
	f.received, f.receivedChain, f.receivedSent = 0, 0, 0
	f.pendingCommit = 0
}

func (p *Peer) failSyncs(f *learner) {
	for _, id := range f.syncs {
		p.out.Synced = append(p.out.Synced, Synced{ID: id})
	}
	f.syncs = nil
}

// leave gives up this leader because of what it sent.
func (p *Peer) leave(format string, args ...any) { p.Look(fmt.Sprintf(format, args...)) }

// stepLearner takes in a message from the leader's current link.
func (p *Peer) stepLearner(m Message) {
	f := p.learn
	if _, ping := m.(*Ping); !ping || !f.streaming() {
		f.heard = p.now
	}
	switch m := m.(type) {
	case *LeaderInfo:
		p.onLeaderInfo(m)
	case *Diff:
		p.onDiff(m)
	case *Trunc:
		p.onTrunc(m)
	case *Snap:
		p.onSnap(m)
	case *Proposal:
		p.onEntries(m.Prev, m.PrevChain, m.Entries, m.Commit)
	case *Inform:
		commit := kv.Zxid(0)
		if n := len(m.Entries); n > 0 {
			commit = m.Entries[n-1].Zxid
		}
		p.onEntries(m.Prev, m.PrevChain, m.Entries, commit)
	case *NewLeader:
		p.onNewLeader(m)
	case *UpToDate:
		p.onUpToDate(m)
	case *Commit:
		if m.Epoch == f.epoch {
			p.learnCommit(m.Zxid)
		}
	case *Ping:
		p.onPing(m)
	case *Reply:
		p.out.Inbound = append(p.out.Inbound, Inbound{From: f.leader, Link: f.link, Payload: m.Payload})
	case *SyncReply:
		for i, id := range f.syncs {
			if id == m.ID {
				f.syncs = append(f.syncs[:i], f.syncs[i+1:]...)
				p.out.Synced = append(p.out.Synced, Synced{ID: m.ID, Zxid: m.Zxid, OK: true})
				break
			}
		}
	case *Resign:
		p.Look("the leader resigned")
	case *Refuse:
		if m.NotLeading {
			p.leave("member %d does not lead", f.leader)
			return
		}
		p.event("refused-by", "peer=%d reason=%q", f.leader, m.Reason)
		p.leave("refused by member %d: %s", f.leader, m.Reason)
	case *FollowerInfo, *AckEpoch, *NeedSnapshot, *Received, *AckNewLeader, *Ack, *PingReply, *Request, *SyncRequest:
		p.leave("the leader sent %T", m)
	}
}

// streaming: the ball is with the leader's stream, so its pings alone are not progress.
func (f *learner) streaming() bool {
	return f.stage == learnSnapshot || f.stage == learnHistory || f.stage == learnRefused
}

// onLeaderInfo: phase 1, step 3. On an existing link it begins a re-epoch: what has arrived is finished first, and no
// ack of the old epoch leaves any more.
func (p *Peer) onLeaderInfo(m *LeaderInfo) {
	f := p.learn
	if why := m.Levels.unservedBy(p.cfg.Protocol, p.cfg.Format); why != "" {
		p.send(f.leader, f.link, &Refuse{Reason: fmt.Sprintf("member %d: %s", p.cfg.ID, why)})
		p.event("refused", "leader=%d reason=%q", f.leader, why)
		p.leave("cannot serve the ensemble: %s", why)
		return
	}
	if why := p.cfg.Levels.unservedBy(m.Protocol, m.Format); why != "" {
		p.send(f.leader, f.link, &Refuse{Reason: fmt.Sprintf("leader %d: %s", f.leader, why)})
		p.event("refused", "leader=%d reason=%q", f.leader, why)
		p.leave("leader %d cannot serve the ensemble: %s", f.leader, why)
		return
	}
	accepted := p.durable.Accepted
	for _, w := range p.inflight {
		if w.promise != nil {
			accepted = *w.promise
		}
	}
	if m.Epoch < accepted.Epoch || m.Epoch <= f.epoch && f.stage != learnInfo {
		p.leave("leader %d proposes epoch %d, promised is %d", f.leader, m.Epoch, accepted.Epoch)
		return
	}
	f.known = true
	f.dropStream()
	f.epoch, f.inc = m.Epoch, m.Incarnation
	f.stage = learnPromising
	if p.stage != Discovery {
		p.setStage(Discovery, "re-epoch")
	}
	switch {
	case m.Epoch > accepted.Epoch:
		p.write(Write{Promise: &Promise{Epoch: m.Epoch, To: m.Incarnation}}, writePromise, f.link, m.Epoch)
	case p.cfg.Mutations.PromiseCountsOnce:
		f.inc = 0
	}
	p.ackEpochIfDrained()
}

// ackEpochIfDrained reports the durable history once the promise, and every write before it, is on disk (P12, P21).
func (p *Peer) ackEpochIfDrained() {
	f := p.learn
	d := &p.durable
	if f.stage != learnPromising || f.link == 0 || len(p.inflight) > 0 || d.Accepted.Epoch != f.epoch {
		return
	}
	f.stage = learnAcked
	p.send(f.leader, f.link, &AckEpoch{
		Epoch: f.epoch, Current: d.Current, Last: d.Last, Chain: d.LastChain, Base: d.Base,
		AlreadyPromised: d.Accepted.To != f.inc, Unknown: d.Unknown && !p.cfg.Mutations.HideUnknown,
	})
}

// onEntries takes in a batch: history before NEWLEADER, live proposals or informs after it.
func (p *Peer) onEntries(prev kv.Zxid, prevChain uint64, entries []kv.Entry, commit kv.Zxid) {
	f := p.learn
	switch f.stage {
	case learnRefused, learnPromising:
		return // of the stream that was refused, or of the epoch being left
	case learnHistory:
		if es := p.verify(prev, prevChain, entries, f.received, f.receivedChain); es != nil {
			p.buffer(es)
		}
	case learnProving, learnProven, learnServing:
		es := p.verify(prev, prevChain, entries, p.last, p.lastChain)
		for i := range es {
			p.appendLive(es[i], f.link, f.epoch)
		}
	case learnDialing, learnInfo, learnAcked, learnSnapshot:
		p.leave("entries at %s", f.stage)
		return
	}
	if p.learn == f && commit != 0 {
		p.learnCommit(commit)
	}
}

// verify refuses a hole, an altered digest or an altered payload, and skips what is held already with the same
// digest (P4, P5). nil: nothing to append, or the leader was left.
func (p *Peer) verify(prev kv.Zxid, prevChain uint64, entries []kv.Entry, last kv.Zxid, lastChain uint64) []kv.Entry {
	f := p.learn
	if p.cfg.Mutations.AcceptHoles || p.cfg.Mutations.RegistrationKeptAcrossLinks {
		for len(entries) > 0 && entries[0].Zxid <= last {
			entries = entries[1:]
		}
		return entries
	}
	for len(entries) > 0 && entries[0].Zxid <= last {
		e := &entries[0]
		at, chain, ok := p.locate(e.Zxid)
		if f.stage == learnHistory || !ok || at != e.Zxid || chain != e.Chain {
			p.leave("entry %s again, with another content or too early", e.Zxid)
			return nil
		}
		prev, prevChain = e.Zxid, e.Chain
		entries = entries[1:]
	}
	if len(entries) == 0 {
		return nil
	}
	if prev != last || prevChain != lastChain {
		p.leave("a hole: the batch follows %s, the log ends at %s", prev, last)
		return nil
	}
	for i := range entries {
		e := &entries[i]
		if !e.Zxid.Follows(prev) {
			p.leave("a hole: %s after %s", e.Zxid, prev)
			return nil
		}
		if kv.ChainDigest(prevChain, e.Zxid, e.Payload) != e.Chain {
			p.event("alarm", "leader=%d digest of %s does not match", f.leader, e.Zxid)
			p.leave("the digest of %s does not match", e.Zxid)
			return nil
		}
		prev, prevChain = e.Zxid, e.Chain
	}
	if prev.Epoch() > f.epoch {
		p.leave("entry %s is of an epoch above %d", prev, f.epoch)
		return nil
	}
	return entries
}

// learnerWrote: a write of this term is durable.
func (p *Peer) learnerWrote(w inflightWrite) {
	f := p.learn
	if f.stage != learnServing {
		f.heard = p.now // own disk moved: progress of the synchronization
	}
	switch w.kind {
	case writeStage:
		f.stagedBytes -= f.staged[0]
		f.staged = f.staged[1:]
	case writeNewLeader:
		if w.link == f.link && w.epoch == f.epoch && f.stage == learnProving {
			p.ackNewLeader(w.last)
		}
	case writeAppend, writePromise, writeCurrent, writeMark:
	}
}

// onUpToDate: the leader is established and this member is close behind; clients may be served.
func (p *Peer) onUpToDate(m *UpToDate) {
	f := p.learn
	if m.Epoch != f.epoch || f.stage != learnProven {
		if f.stage == learnPromising {
			return
		}
		p.leave("UPTODATE of epoch %d at %s of epoch %d", m.Epoch, f.stage, f.epoch)
		return
	}
	f.stage = learnServing
	p.setStage(Broadcast, "up to date")
	p.learnCommit(max(f.pendingCommit, m.Commit))
	f.pendingCommit = 0
}

// learnCommit moves the commit point. It is cumulative and never beyond what has been received: then something was lost
// on the way, and the only cure is a new synchronization.
func (p *Peer) learnCommit(z kv.Zxid) {
	f := p.learn
	switch f.stage {
	case learnProving, learnProven, learnServing:
	case learnDialing, learnInfo, learnPromising, learnAcked, learnRefused, learnSnapshot, learnHistory:
		return // of an epoch or stream being left; NEWLEADER brings the point again
	}
	if z > p.last {
		p.leave("COMMIT of %s, the log ends at %s", z, p.last)
		return
	}
	if f.stage != learnServing {
		f.pendingCommit = max(f.pendingCommit, z)
		return
	}
	p.committed = max(p.committed, z)
}

// onPing answers, and takes the commit point.
func (p *Peer) onPing(m *Ping) {
	f := p.learn
	if m.Commit != 0 && m.Epoch == f.epoch {
		p.learnCommit(m.Commit)
		if p.learn != f {
			return
		}
	}
	p.out.SnapshotTurn = p.out.SnapshotTurn || m.SnapshotTurn
	f.full = m.Full
	r := &PingReply{
		Epoch: f.epoch, Probe: m.Probe, Applied: p.applied, OldestWriteMs: p.disk.oldestMs, FreeDisk: p.disk.free, LowDisk: p.disk.low,
		WantSnapshot: p.disk.wantSnapshot, SnapshotActive: p.disk.snapshotting,
	}
	if m.DivergedAt != 0 && m.Epoch == f.epoch {
		p.out.Diverged = &Divergence{After: m.DivergedAfter, At: m.DivergedAt}
	}
	if m.DigestAt != 0 && m.DigestAt <= p.applied && p.digest != nil {
		if d, ok := p.digest(m.DigestAt); ok {
			r.DigestAt, r.Digest = m.DigestAt, d
		}
	}
	if p.touches != nil {
		r.Touched = p.touches()
	}
	p.send(f.leader, f.link, r)
}

// flushLearner sends what is said once per Ready: the cumulative ack, and the flow control of a history.
func (p *Peer) flushLearner() {
	f := p.learn
	switch f.stage {
	case learnProven, learnServing:
		z := p.durable.Last
		if p.cfg.Mutations.AckBeforeSync {
			z = p.last
		}
		if z > f.ackSent {
			f.ackSent = z
			p.send(f.leader, f.link, &Ack{Epoch: f.epoch, Zxid: z})
		}
	case learnHistory:
		if f.received > f.receivedSent && f.stagedBytes <= 2*p.cfg.StageBytes {
			f.receivedSent = f.received
			p.send(f.leader, f.link, &Received{Epoch: f.epoch, Zxid: f.received})
		}
	case learnDialing, learnInfo, learnPromising, learnAcked, learnRefused, learnSnapshot, learnProving:
	}
}

// tickLearner checks the deadlines of a learner.
func (p *Peer) tickLearner() {
	f := p.learn
	limit := p.cfg.SyncTicks // a leader pings in every phase
	switch f.stage {
	case learnRefused, learnSnapshot, learnHistory, learnPromising, learnProving: // transfer, or the own disk
		limit = p.cfg.InitTicks
	case learnDialing, learnInfo, learnAcked, learnProven, learnServing:
	}
	if p.now-f.heard > limit {
		p.leave("nothing from leader %d within %d ticks, at %s", f.leader, limit, f.stage)
		return
	}
	if f.retry && f.link == 0 && p.now >= f.retryAt {
		p.dial()
	}
}

// SendRequest sends an opaque batch to the leader. false: not in broadcast, nothing was sent.
func (p *Peer) SendRequest(payload []byte) bool {
	f := p.learn
	if f == nil || p.stage != Broadcast {
		return false
	}
	p.dirty = true
	p.send(f.leader, f.link, &Request{Payload: payload})
	return true
}
