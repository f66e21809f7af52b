package zab

import (
	"fmt"

	"kvd/kv"
	"kvd/zab/quorum"
)

// Peer is one member's part in the broadcast. See the package comment for how to drive it.
type Peer struct {
	cfg  Config
	hist History
	now  int // ticks since start

	// durable is what the disk holds: changed by Persisted and SnapshotTaken only. Every promise and every
	// report of this member's history is made from it (zab-rules, idea 2).
	durable DurableState
	// inflight are the writes handed out (or about to be) and not yet persisted, oldest first.
	inflight []inflightWrite
	nextSeq  uint64
	// last ends the log including inflight writes. Invariant: durable.Last == last when inflight is empty.
	last      kv.Zxid
	lastChain uint64
	tail      tail

	// committed is the newest entry known committed. Volatile: it restarts at the base.
	// Invariant: applying <= min(committed, durable.Last) unless a restore is pending; see flushApply.
	committed kv.Zxid
	// applying is what was handed to the applier, applied what it has reported back.
	applying, applied kv.Zxid
	// handed is what the applier was given and has not reported applied: what waits there pins memory.
	handed window
	// restore is an installed snapshot that the applier has not been told of: it waits until its zxid is
	// known committed, so that nothing uncommitted is ever visible (S24).
	restore *SnapshotRef

	role  Role
	stage Stage
	// generation numbers roles; a completion of an older one counts for nothing but durability.
	generation uint64
	// start is the decision that waits until the writes of the previous role have drained (S20).
	start  *startRole
	leader *leader // non-nil iff role == Leading and started
	learn  *learner
	// parked are learners that dialled while this member was still looking: they may have finished the election a
	// little earlier. Adopted by Lead, refused by Follow.
	parked []parkedLink
	dials  uint64

	disk struct {
		oldestMs     uint32
		free         uint64
		low          bool
		wantSnapshot bool
		snapshotting bool
	}
	touches func() []byte
	digest  func(kv.Zxid) (uint64, bool)

	// out gathers the next Ready, spare is the one handed out last: their slices alternate.
	out, spare Ready
	dirty      bool
	shared     []sharedBatch // proposals built in this flush, to be shared between links
}

type startRole struct {
	role   Role
	leader quorum.MemberID
}

type parkedLink struct {
	peer quorum.MemberID
	link LinkID
	msgs []Message
}

// writeKind says what a completed write means for the protocol.
type writeKind uint8

const (
	writeAppend    writeKind = iota // live proposals
	writePromise                    // accepted epoch
	writeStage                      // a part of the history, old current epoch
	writeNewLeader                  // the rest of the history and the current epoch (learner)
	writeCurrent                    // the current epoch (leader)
	writeMark                       // a mark that no part of the protocol waits for
)

// inflightWrite is the effect a Write will have on the durable state.
type inflightWrite struct {
	seq        uint64
	kind       writeKind
	generation uint64
	link       LinkID
	epoch      kv.Epoch
	born       int // tick

	promise   *Promise
	install   *SnapshotRef
	current   kv.Epoch
	trusted   bool
	clearSole bool
	last      kv.Zxid // end of the log after it
	lastChain uint64
}

// New returns a member that is looking, with what its disk holds. It fails if the configuration is
// contradictory or the durable state is one that no legal run leaves.
func New(cfg Config, st DurableState, h History) (*Peer, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("zab: configuration: %w", err)
	}
	seed := kv.ChainSeed()
	if st.Last == 0 {
		st.LastChain = seed
	}
	if st.Base == 0 {
		st.BaseChain = seed
	}
	if st.LogStart == 0 {
		st.LogStartChain = seed
	}
	if err := st.check(); err != nil {
		return nil, fmt.Errorf("zab: durable state: %w", err)
	}
	p := &Peer{cfg: cfg, hist: h, durable: st, last: st.Last, lastChain: st.LastChain, committed: st.Base, applying: st.Base, applied: st.Base}
	p.tail.reset(st.Last, st.LastChain)
	return p, nil
}

// Lead starts leading, as the election decided. Only when looking; waits by itself until writes of the
// previous role are done. A member that may not lead (observer, unknown) goes back to looking.
func (p *Peer) Lead() { p.decide(startRole{role: Leading, leader: p.cfg.ID}) }

// Follow starts following (or observing) leader, as the election decided. Only when looking.
func (p *Peer) Follow(leader quorum.MemberID) {
	role := Following
	if p.cfg.Members.IsObserver(p.cfg.ID) {
		role = Observing
	}
	p.decide(startRole{role: role, leader: leader})
}

func (p *Peer) decide(s startRole) {
	if p.role != Looking {
		return
	}
	p.dirty = true
	p.generation++
	p.role, p.stage = s.role, Discovery
	p.start = &s
	p.roleChanged("elected")
	p.startIfDrained()
}

// startIfDrained begins the decided role once no write is in flight: everything this member will say about
// itself must be what the disk holds (S20, P21).
func (p *Peer) startIfDrained() {
	if p.start == nil || len(p.inflight) > 0 {
		return
	}
	s := *p.start
	p.start = nil
	if s.role == Leading {
		p.startLeading()
		return
	}
	for _, k := range p.parked {
		p.refuse(k.peer, k.link, "not leading", true)
	}
	p.parked = nil
	p.startLearning(s.leader)
}

// Look gives up the role now. The writes in flight stay in flight: the election must wait for Drained.
func (p *Peer) Look(reason string) {
	if p.role == Looking {
		return
	}
	p.dirty = true
	if l := p.leader; l != nil {
		for _, pr := range l.links {
			// Told, they elect at once; else they would dial again and wait for a leader that is none.
			if !pr.inTransfer() {
				p.send(pr.peer, pr.link, &Resign{Epoch: l.epoch})
			}
			p.closeLink(pr.peer, pr.link, reason)
		}
		for _, s := range l.syncs {
			if s.to == p.cfg.ID {
				p.out.Synced = append(p.out.Synced, Synced{ID: s.id})
			}
		}
	}
	if f := p.learn; f != nil {
		if f.link != 0 {
			p.closeLink(f.leader, f.link, reason)
		}
		p.failSyncs(f)
	}
	p.leader, p.learn, p.start = nil, nil, nil
	p.generation++
	p.role, p.stage = Looking, Discovery
	p.roleChanged(reason)
}

func (p *Peer) roleChanged(reason string) {
	c := &RoleChange{Role: p.role, Stage: p.stage, Leader: p.leaderID(), Epoch: p.epoch(), Reason: reason}
	p.out.Role = c
	p.event("role", "role=%s stage=%s leader=%d epoch=%d reason=%q", c.Role, c.Stage, c.Leader, c.Epoch, reason)
}

func (p *Peer) setStage(s Stage, reason string) {
	p.stage = s
	p.roleChanged(reason)
}

func (p *Peer) leaderID() quorum.MemberID {
	switch {
	case p.role == Leading:
		return p.cfg.ID
	case p.learn != nil:
		return p.learn.leader
	case p.start != nil:
		return p.start.leader
	}
	return 0
}

// epoch is the epoch this member is in, or is establishing; 0 if none.
func (p *Peer) epoch() kv.Epoch {
	switch {
	case p.leader != nil:
		return p.leader.epoch
	case p.learn != nil:
		return p.learn.epoch
	}
	return 0
}

func (p *Peer) event(kind, format string, args ...any) {
	p.out.Events = append(p.out.Events, Event{Kind: kind, Text: fmt.Sprintf(format, args...)})
}

func (p *Peer) send(to quorum.MemberID, link LinkID, m Message) {
	p.out.Send = append(p.out.Send, Outbound{To: to, Link: link, Msg: m})
}

func (p *Peer) closeLink(peer quorum.MemberID, link LinkID, reason string) {
	p.out.CloseLinks = append(p.out.CloseLinks, CloseLink{Peer: peer, Link: link, Reason: reason})
}

func (p *Peer) refuse(peer quorum.MemberID, link LinkID, reason string, notLeading bool) {
	p.send(peer, link, &Refuse{Reason: reason, NotLeading: notLeading})
	p.closeLink(peer, link, reason)
	if !notLeading {
		p.event("refused", "peer=%d reason=%q", peer, reason)
	}
}

// LinkUp reports a new connection. At the leader: a learner has connected. At a learner: the dial that
// Ready.Connect asked for succeeded (dialled is true).
func (p *Peer) LinkUp(peer quorum.MemberID, link LinkID, dialled bool) {
	p.dirty = true
	if dialled {
		if f := p.learn; f != nil && f.leader == peer && f.link == 0 {
			p.learnerLinked(link)
			return
		}
		p.closeLink(peer, link, "no longer wanted")
		return
	}
	switch {
	case !p.cfg.Members.IsMember(peer) || peer == p.cfg.ID:
		p.refuse(peer, link, fmt.Sprintf("member %d is not in configuration v%d", peer, p.cfg.Members.Version), false)
	case p.leader != nil:
		p.learnerConnected(peer, link)
	case p.role == Looking || p.role == Leading:
		p.unpark(peer, 0)
		p.parked = append(p.parked, parkedLink{peer: peer, link: link})
	default:
		p.refuse(peer, link, "not leading", true)
	}
}

// unpark forgets parked links of peer except keep, closing them.
func (p *Peer) unpark(peer quorum.MemberID, keep LinkID) {
	kept := p.parked[:0]
	for _, k := range p.parked {
		if k.peer == peer && k.link != keep {
			p.closeLink(peer, k.link, "replaced by a newer link")
			continue
		}
		kept = append(kept, k)
	}
	p.parked = kept
}

// LinkDown reports that a connection has ended. Unknown links are ignored.
func (p *Peer) LinkDown(peer quorum.MemberID, link LinkID) {
	p.dirty = true
	for i, k := range p.parked {
		if k.link == link {
			p.parked = append(p.parked[:i], p.parked[i+1:]...)
			return
		}
	}
	if l := p.leader; l != nil {
		if pr := l.find(peer); pr != nil && pr.link == link {
			l.remove(pr)
		}
	}
	if f := p.learn; f != nil && f.leader == peer && f.link == link {
		p.learnerUnlinked()
	}
}

// Step takes in one message. It never fails: old news is ignored, a message that must not be is answered by
// Ready.CloseLinks. The message's slices are retained.
func (p *Peer) Step(from quorum.MemberID, link LinkID, m Message) {
	p.dirty = true
	if l := p.leader; l != nil {
		if pr := l.find(from); pr != nil && pr.link == link {
			p.stepLeader(pr, m)
			return
		}
	}
	if f := p.learn; f != nil && f.link == link && f.leader == from {
		p.stepLearner(m)
		return
	}
	for i := range p.parked {
		if k := &p.parked[i]; k.link == link && k.peer == from {
			if len(k.msgs) >= 4 { // a learner says one thing before the leader answers
				p.closeLink(from, link, "too many messages before LEADERINFO")
				p.parked = append(p.parked[:i], p.parked[i+1:]...)
				return
			}
			k.msgs = append(k.msgs, m)
			return
		}
	}
}

// Tick advances time by one tick.
func (p *Peer) Tick() {
	p.dirty = true
	p.now++
	switch {
	case p.leader != nil:
		p.tickLeader()
	case p.learn != nil:
		p.tickLearner()
	case p.role != Looking && p.start != nil:
		// Waiting for the previous role's writes: a member that cannot drain takes no part (zab-rules g 11).
		if p.now-p.inflight[0].born > p.cfg.InitTicks {
			p.Look("writes of the previous role did not finish")
		}
	}
}

// write queues w with its meaning. The caller has filled everything but Seq.
func (p *Peer) write(w Write, kind writeKind, link LinkID, epoch kv.Epoch) {
	p.nextSeq++
	w.Seq = p.nextSeq
	p.out.Writes = append(p.out.Writes, w)
	p.inflight = append(p.inflight, inflightWrite{
		seq: w.Seq, kind: kind, generation: p.generation, link: link, epoch: epoch, born: p.now,
		promise: w.Promise, install: w.Install, current: w.Current, trusted: w.Trusted, clearSole: w.ClearSole, last: p.last, lastChain: p.lastChain,
	})
}

// appendLive adds one entry that directly follows the log, merging it with the others of this step into one Write.
func (p *Peer) appendLive(e kv.Entry, link LinkID, epoch kv.Epoch) {
	chunk, fresh := p.tail.add(e)
	p.last, p.lastChain = e.Zxid, e.Chain
	n := len(p.out.Writes)
	if !fresh && n > 0 && len(p.inflight) > 0 {
		w, f := &p.out.Writes[n-1], &p.inflight[len(p.inflight)-1]
		if f.kind == writeAppend && f.seq == w.Seq && f.generation == p.generation && f.link == link {
			k := len(w.Append)
			w.Append = chunk[len(chunk)-k-1 : len(chunk) : len(chunk)]
			f.last, f.lastChain = e.Zxid, e.Chain
			return
		}
	}
	i := len(chunk) - 1
	p.write(Write{Append: chunk[i : i+1 : i+1]}, writeAppend, link, epoch)
}

// Persisted reports that all writes up to seq are durable.
func (p *Peer) Persisted(seq uint64) {
	p.dirty = true
	n := 0
	for n < len(p.inflight) && p.inflight[n].seq <= seq {
		w := &p.inflight[n]
		n++
		d := &p.durable
		if w.promise != nil {
			d.Accepted = *w.promise
		}
		if w.install != nil {
			d.Base, d.BaseChain = w.install.Zxid, w.install.Chain
			d.LogStart, d.LogStartChain = w.install.Zxid, w.install.Chain
		}
		if w.current != 0 {
			d.Current = w.current
		}
		if w.trusted {
			d.Unknown = false
		}
		if w.clearSole {
			d.Sole = false
		}
		d.Last, d.LastChain = w.last, w.lastChain
		if w.install != nil {
			p.installed(*w.install)
		}
		if w.generation == p.generation {
			p.completed(*w)
		}
	}
	if n == 0 {
		return
	}
	p.inflight = p.inflight[:copy(p.inflight, p.inflight[n:])]
	if len(p.inflight) == 0 {
		p.drained()
	}
	if p.leader != nil {
		p.advanceCommit()
	}
	p.evict()
}

// installed: the tree restarts from the snapshot as soon as its zxid is known committed. What this member believed
// committed belonged to the history that the snapshot replaces.
func (p *Peer) installed(ref SnapshotRef) {
	p.committed = 0
	p.restore = &ref
}

// completed lets the role act on a write of its own.
func (p *Peer) completed(w inflightWrite) {
	switch {
	case p.leader != nil:
		p.leaderWrote(w)
	case p.learn != nil:
		p.learnerWrote(w)
	}
}

func (p *Peer) drained() {
	p.startIfDrained()
	if p.learn != nil {
		p.ackEpochIfDrained()
	}
}

// evict bounds the memory of the tail: only durable entries go, at the leader only committed ones.
func (p *Peer) evict() {
	z := p.durable.Last
	if p.leader != nil {
		z = min(z, p.committed)
	}
	p.tail.evict(z, p.cfg.TailBytes)
}

// locate looks into the whole log, what is in flight included.
func (p *Peer) locate(z kv.Zxid) (at kv.Zxid, chain uint64, ok bool) {
	if at, chain, ok = p.tail.locate(z); !ok {
		at, chain, ok = p.hist.Locate(z)
	}
	if ok && at == 0 {
		chain = kv.ChainSeed()
	}
	return at, chain, ok
}

// Applied reports that the applier's tree is at z.
func (p *Peer) Applied(z kv.Zxid) {
	if z <= p.applied || z > p.applying {
		return
	}
	p.applied = z
	p.handed.ack(z)
	if p.restore == nil && p.applying < p.applicable() {
		p.dirty = true // what was held back may go now
	}
}

// SnapshotTaken reports a durable snapshot point of this member's own and what its log still holds.
func (p *Peer) SnapshotTaken(z kv.Zxid, chain uint64, logStart kv.Zxid, logStartChain uint64) {
	d := &p.durable
	if z > d.Base && z <= d.Last {
		if at, c, ok := p.locate(z); !ok || at != z || c != chain {
			p.dirty = true
			p.event("alarm", "snapshot at %s is not of this log", z)
			return
		}
		d.Base, d.BaseChain = z, chain
	}
	if logStart > d.LogStart && logStart <= d.Base {
		d.LogStart, d.LogStartChain = logStart, logStartChain
	}
}

// SetDisk reports the age of the oldest unfinished write (ms) and the free space (bytes).
func (p *Peer) SetDisk(oldestWriteMs uint32, free uint64) {
	p.disk.oldestMs, p.disk.free = oldestWriteMs, free
}

// SetSnapshotState says whether this member would like the turn to write a snapshot, and whether it writes one.
// It travels in PING replies.
func (p *Peer) SetSnapshotState(want, active bool) {
	p.disk.wantSnapshot, p.disk.snapshotting = want, active
}

// SetTouches gives the function that yields the client-session touch table for the next PING reply.
func (p *Peer) SetTouches(fn func() []byte) { p.touches = fn }

// SetLevels takes over the active levels when the replicated value has been applied. A leader refuses links
// that cannot serve them.
func (p *Peer) SetLevels(v Levels) {
	p.dirty = true
	p.cfg.Levels = v
	if why := v.unservedBy(p.cfg.Protocol, p.cfg.Format); why != "" {
		p.event("levels", "unserved=%q", why)
		p.Look(why)
		return
	}
	if l := p.leader; l != nil {
		for _, pr := range append([]*progress(nil), l.links...) {
			if why := v.unservedBy(pr.protocol, pr.format); pr.stage != linkOpen && why != "" {
				l.remove(pr)
				p.refuse(pr.peer, pr.link, fmt.Sprintf("member %d: %s", pr.peer, why), false)
			}
		}
	}
}

// Durable returns what the disk holds as of the last Persisted.
func (p *Peer) Durable() DurableState { return p.durable }

// Drained reports that no write handed out is unfinished: votes may be taken from Durable.
func (p *Peer) Drained() bool { return len(p.inflight) == 0 }

// HasReady reports whether Ready may return something.
func (p *Peer) HasReady() bool { return p.dirty }

// Ready returns everything that happened since the last call and must be carried out now, in the order of
// its fields. Its slices are valid until the next call.
func (p *Peer) Ready() Ready {
	if !p.dirty {
		return Ready{}
	}
	p.flush()
	p.dirty = false
	rd := p.out
	p.out, p.spare = p.spare.emptied(), rd
	return rd
}

// emptied keeps the memory and forgets the content.
func (r Ready) emptied() Ready {
	clear(r.Send)
	clear(r.Writes)
	clear(r.Apply)
	clear(r.Inbound)
	clear(r.Reports)
	return Ready{
		Writes: r.Writes[:0], Send: r.Send[:0], CloseLinks: r.CloseLinks[:0], Snapshots: r.Snapshots[:0], Reads: r.Reads[:0],
		Apply: r.Apply[:0], Synced: r.Synced[:0], Inbound: r.Inbound[:0], Reports: r.Reports[:0], Events: r.Events[:0],
	}
}

// flush produces what is cheaper to produce once per Ready than once per input.
func (p *Peer) flush() {
	switch {
	case p.leader != nil:
		p.flushLeader()
	case p.learn != nil:
		p.flushLearner()
	}
	p.flushApply()
}

// flushApply hands over what has become committed and durable.
func (p *Peer) flushApply() {
	if p.restore != nil {
		if p.committed < p.restore.Zxid {
			return
		}
		p.applying, p.applied = p.restore.Zxid, p.restore.Zxid
		p.handed.clear()
		p.out.Restore, p.restore = p.restore, nil
	}
	through := p.applicable()
	for p.applying < through {
		room, roomBytes := p.cfg.MaxOutstandingEntries-p.handed.entries, p.cfg.MaxOutstandingBytes-p.handed.bytes
		if room <= 0 || roomBytes <= 0 {
			return // goes on as the applier reports; what leaves the tail meanwhile is handed over as one range
		}
		es := p.tail.after(p.applying, through, min(p.cfg.StageBytes, roomBytes), min(chunkEntries, room))
		if es == nil { // older than what is in memory
			to := min(through, p.tail.start)
			if to <= p.applying {
				return
			}
			p.out.Apply = append(p.out.Apply, Apply{After: p.applying, Through: to})
			p.handedOver(to, nil)
			continue
		}
		to := es[len(es)-1].Zxid
		p.out.Apply = append(p.out.Apply, Apply{After: p.applying, Through: to, Entries: es})
		p.handedOver(to, es)
	}
}

// handedOver counts what was given to the applier. A range costs it next to nothing until it is read, in pieces.
func (p *Peer) handedOver(to kv.Zxid, es []kv.Entry) {
	b := sentBatch{last: to, entries: max(1, len(es))}
	for i := range es {
		b.bytes += entryBytes(&es[i])
	}
	p.handed.add(b)
	p.applying = to
}

// applicable is up to where entries are committed and durable. last is below durable.Last while a truncation is on its
// way to the disk: what goes was never committed, but a leader that lies about its commit point must not make this
// member look for it.
func (p *Peer) applicable() kv.Zxid { return min(p.committed, p.durable.Last, p.last) }
