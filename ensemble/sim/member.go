package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"kvd/ensemble/replica"
	"kvd/kv"
	"kvd/zab"
	"kvd/zab/quorum"
)

// Member is one simulated member: a replica, its disk, its applier and its client port. What is not on the disk is
// lost when it crashes.
type Member struct {
	sim *Sim
	ID  quorum.MemberID
	// Up: the process runs.
	Up   bool
	life uint64 // unique; changes with every start

	disk    disk
	cluster [16]byte // zero: blank
	suspect bool     // the identity file and the log do not agree

	fresh int // where the writes of the present Ready begin in the queue

	// The process.
	rep       *replica.Replica
	tree      *kv.Tree
	paused    bool
	deferred  []event
	woke      bool // the next tick follows a gap
	links     map[zab.LinkID]*link
	dialling  uint64
	received  map[uint64]*point // by SnapshotRef.Handle
	role      zab.RoleChange
	inc       zab.Incarnation
	serving   replica.Serving
	applyQ    []applyItem
	applying  bool
	snapping  bool
	sinceSnap int
	handed    content // the disk's content as it will be when all queued writes are done
	port      port

	// Crash points set by CrashAt.
	crashAt func(at Point, m *Message) bool
}

type applyItem struct {
	restore        *zab.SnapshotRef
	after, through kv.Zxid
	entries        []kv.Entry
}

func newMember(s *Sim, id quorum.MemberID) *Member {
	m := &Member{sim: s, ID: id, disk: disk{content: emptyContent()}}
	if s.opt.Fresh {
		m.disk.unknown = true
	} else {
		m.cluster = [16]byte{1}
	}
	m.disk.holes = s.opt.ZabMutations.AcceptHoles
	return m
}

// Start starts a member from what its disk holds.
func (s *Sim) Start(id quorum.MemberID) {
	m := s.member(id)
	if m.Up {
		return
	}
	s.logf("start %d: %+v", id, describe(&m.disk.content))
	s.lives++
	m.Up, m.life, m.paused, m.woke, m.deferred = true, s.lives, false, false, nil
	m.links, m.received = map[zab.LinkID]*link{}, map[uint64]*point{}
	m.role, m.serving, m.dialling, m.inc = zab.RoleChange{}, replica.Serving{}, 0, 0
	m.applyQ, m.applying, m.snapping, m.sinceSnap = nil, false, false, 0
	m.disk.writes, m.disk.born, m.disk.running = nil, nil, false
	if m.disk.mode == diskFail {
		m.disk.mode = diskOK
	}
	m.handed = m.disk.content.clone()
	m.port.start(m)

	view, base := kv.NewView(), kv.Zxid(0)
	if p, ok := m.disk.newestPoint(); ok {
		view, base = p.view, p.zxid
	}
	m.tree = kv.NewTree(view)
	cfg := replica.Config{
		ID: id, Members: s.config, TickMs: tickMs,
		Rand: rand.New(rand.NewPCG(s.rng.Uint64(), uint64(id))),
		Incarnation: func() zab.Incarnation {
			s.incs++
			m.inc = zab.Incarnation(s.incs)
			return m.inc
		},
		ZabMutations: s.opt.ZabMutations, ElectionMutations: s.opt.ElectionMutations,
	}
	if s.opt.Tune != nil {
		s.opt.Tune(id, &cfg)
	}
	rep, err := replica.New(cfg, replica.Start{
		Durable:  m.disk.durable(),
		Identity: replica.Identity{ClusterID: m.cluster, Suspect: m.suspect, Run: m.life, Mint: [16]byte{0xaa, byte(m.life)}},
		Applied:  base,
		View:     m.tree.View,
		History:  &m.disk.content,
	})
	if err != nil {
		s.fail("L7", "member %d cannot start: %v", id, err)
		m.Up = false
		return
	}
	m.rep = rep
	s.ghost.started(m)
	for _, o := range s.members {
		if o != m && o.Up {
			s.electionConns(m, o)
		}
	}
	s.after(s.between(1, tickMs), m, "tick", m.tick)
	m.run()
}

// wallEpoch is the wall clock at virtual time 0.
const wallEpoch = 1_700_000_000_000

func (m *Member) tick() {
	s := m.sim
	gap := m.woke
	m.woke = false
	m.rep.SetDisk(m.disk.oldestMs(s.now), 1<<40)
	m.rep.Tick(replica.Clock{WallMs: wallEpoch + s.now, Gap: gap})
	m.maybeSnapshot()
	d := int64(tickMs)
	if !s.calm {
		d += s.between(-1, 2)
	}
	s.after(d, m, "tick", m.tick)
}

// Crash ends the process. Of the writes that were not completed a random prefix reached the disk; each is there wholly
// or not at all.
func (s *Sim) Crash(id quorum.MemberID) { s.crash(s.member(id), -1) }

// CrashLosing ends the process and keeps exactly the first n writes of those that were not completed.
func (s *Sim) CrashLosing(id quorum.MemberID, n int) { s.crash(s.member(id), n) }

func (s *Sim) crash(m *Member, keep int) {
	if !m.Up {
		return
	}
	if keep < 0 {
		keep = s.rng.IntN(len(m.disk.writes) + 1)
	}
	if m.disk.mode == diskHang {
		keep = 0
	}
	s.logf("crash %d, %d of %d unfinished writes kept", m.ID, keep, len(m.disk.writes))
	for i := range min(keep, len(m.disk.writes)) {
		m.diskApply(&m.disk.writes[i])
	}
	m.Up, m.paused, m.deferred = false, false, nil
	m.disk.writes, m.disk.born, m.disk.running = nil, nil, false
	if m.disk.mode == diskHang {
		m.disk.mode = diskOK // the operator replaced whatever hung
	}
	m.port.closeAll()
	for _, l := range s.links {
		if side := l.side(m); (l.dialler == m || l.acceptor == m) && l.life[side] != 0 && !l.told[side] {
			l.told[side] = true
			s.reset(l)
		}
	}
	for _, o := range s.members {
		if o != m && o.Up {
			s.electionConns(m, o)
		}
	}
	s.dropDead()
	s.ghost.crashed(m)
}

// Pause stops the process; what arrives meanwhile is there when it resumes.
func (s *Sim) Pause(id quorum.MemberID) {
	if m := s.member(id); m.Up && !m.paused {
		s.logf("pause %d", id)
		m.paused = true
	}
}

// Resume continues a paused process: it handles what has arrived, then ticks once, knowing that there was a gap.
func (s *Sim) Resume(id quorum.MemberID) {
	m := s.member(id)
	if !m.Up || !m.paused {
		return
	}
	s.logf("resume %d", id)
	m.paused = false
	m.woke = true
	late := m.deferred
	m.deferred = nil
	for pass := range 2 { // everything received first, the tick last
		for _, e := range late {
			if (e.name == "tick") == (pass == 1) {
				s.afterLife(0, m, e.life, e.name, e.do)
			}
		}
	}
}

// DiskHang lets a member's disk accept writes and complete none. DiskOK ends it.
func (s *Sim) DiskHang(id quorum.MemberID) {
	s.logf("disk %d hang", id)
	s.member(id).disk.mode = diskHang
}

// DiskOK lets the disk work again.
func (s *Sim) DiskOK(id quorum.MemberID) {
	m := s.member(id)
	if m.disk.mode == diskOK {
		return
	}
	s.logf("disk %d ok", id)
	m.disk.mode = diskOK
	m.startDisk()
}

// DiskFail makes the next sync of a member fail: the process stops, as rule 2 of the design demands.
func (s *Sim) DiskFail(id quorum.MemberID) {
	s.logf("disk %d fail", id)
	s.member(id).disk.mode = diskFail
}

// Wipe removes everything from the disk of a member that is down. With keepFile the identity file survives: the member is
// suspect; without it is blank.
func (s *Sim) Wipe(id quorum.MemberID, keepFile bool) {
	m := s.member(id)
	if m.Up {
		panic("sim: wipe of a running member")
	}
	s.logf("wipe %d", id)
	m.disk.content = emptyContent()
	m.disk.unknown = true
	m.suspect = keepFile
	if !keepFile {
		m.cluster = [16]byte{}
	}
	s.ghost.wiped(m)
}

// run carries out what the replica wants done.
func (m *Member) run() {
	for m.Up && m.rep.HasReady() && m.sim.failure == nil {
		rd := m.rep.Ready()
		m.carryOut(&rd)
	}
}

// carryOut does what production's loop does, in the order that Ready's fields demand.
func (m *Member) carryOut(rd *replica.Ready) {
	s := m.sim
	for _, e := range rd.Events {
		if s.opt.Trace {
			s.logf("%d event %s %s", m.ID, e.Kind, e.Text)
		}
		s.happened[e.Kind]++
		// Ready.Role is only the newest of several changes; each is also an event.
		if e.Kind == "role" && strings.HasPrefix(e.Text, "role=leading") {
			m.leads(e.Text)
		}
	}
	if rd.Role != nil {
		m.role = *rd.Role
	}
	m.fresh = len(m.disk.writes)
	for i := range rd.Writes {
		m.write(&rd.Writes[i])
	}
	for i := range rd.Send {
		o := &rd.Send[i]
		m.send(o.To, o.Link, o.Msg)
		if !m.Up {
			return // a crash point
		}
	}
	for _, c := range rd.CloseLinks {
		if l := m.links[c.Link]; l != nil {
			s.logf("%d closes link %d to %d: %s", m.ID, c.Link, c.Peer, c.Reason)
			s.closeLink(l, l.side(m))
		}
	}
	if rd.Connect != nil {
		s.dial(m, rd.Connect.Leader, rd.Connect.Attempt)
	}
	for _, q := range rd.Snapshots {
		m.chooseSnapshot(q)
	}
	for _, q := range rd.Reads {
		s.after(s.between(0, 3), m, "log read", func() { m.readLog(q) })
	}
	if rd.Restore != nil {
		ref := *rd.Restore
		m.applyQ = append(m.applyQ, applyItem{restore: &ref})
	}
	for _, a := range rd.Apply {
		m.applyQ = append(m.applyQ, applyItem{after: a.After, through: a.Through, entries: a.Entries})
		s.ghost.applicable(m, a.Through)
	}
	m.startApplier()
	if rd.Identity != nil {
		id := *rd.Identity
		s.after(s.diskDelay(), m, "identity", func() {
			m.cluster = id.ClusterID
			if id.Trusted {
				m.disk.unknown, m.handed.unknown = false, false
			}
			m.rep.IdentityPersisted()
		})
	}
	for _, e := range rd.Elections {
		msg := Message{From: m.ID, To: e.To, Kind: "NOTIFICATION", kind: e.Kind, payload: e.Payload}
		if e.Kind == replica.KindIdentity {
			msg.Kind = "IDENTITY"
		}
		s.ghost.sentElection(m, &msg)
		s.sendElection(msg)
	}
	if rd.Serving != nil {
		m.serving = *rd.Serving
		m.port.servingChanged()
	}
	for _, f := range rd.Failed {
		m.port.failed(f)
	}
	for _, v := range rd.Revalidated {
		m.port.revalidated(v)
	}
	for _, y := range rd.Synced {
		m.port.synced(y)
	}
	if rd.SnapshotTurn {
		m.takeSnapshot()
	}
	if rd.Stopped {
		s.logf("%d stopped", m.ID)
		s.crash(m, 1<<30)
		if s.calm { // settling: everybody is to be up
			s.after(500, nil, "restart", func() { s.Start(m.ID) })
		}
	}
}

// leads tells the ghost that a prospective leader has passed phase 1 or is established.
func (m *Member) leads(text string) {
	var stage string
	var leader, epoch uint64
	if _, err := fmt.Sscanf(text, "role=leading stage=%s leader=%d epoch=%d", &stage, &leader, &epoch); err != nil {
		panic(fmt.Sprintf("sim: role event %q: %v", text, err))
	}
	switch stage {
	case "synchronization":
		m.sim.ghost.promised(m, kv.Epoch(epoch))
	case "broadcast":
		m.sim.ghost.establish(m, kv.Epoch(epoch))
	}
}

// send puts one message on a link, behind the files if it announces a snapshot.
func (m *Member) send(to quorum.MemberID, id zab.LinkID, z zab.Message) {
	s := m.sim
	l := m.links[id]
	if l == nil {
		return
	}
	msg := Message{From: m.ID, To: to, Kind: kindOf(z), Zab: z}
	if m.crashesAt(BeforeSend, &msg) {
		return
	}
	s.ghost.sent(m, l, &msg)
	if s.opt.CodecEvery > 0 && s.rng.IntN(s.opt.CodecEvery) == 0 {
		msg.Zab = s.recode(z)
	}
	s.sendLink(l, l.side(m), msg)
	if _, ok := z.(*zab.Snap); ok {
		m.stream(l, id)
	}
	m.crashesAt(AfterSend, &msg)
}

func (s *Sim) recode(z zab.Message) zab.Message {
	b, err := zab.AppendMessage(nil, z)
	if err != nil {
		s.fail("codec", "%T cannot be encoded: %v", z, err)
		return z
	}
	out, err := zab.DecodeMessage(b)
	if err != nil {
		s.fail("codec", "%T cannot be decoded: %v", z, err)
		return z
	}
	return out
}

// write queues one batch of the broadcast.
func (m *Member) write(w *zab.Write) {
	s := m.sim
	d := diskWrite{w: *w}
	if w.Install != nil {
		d.install = m.received[w.Install.Handle]
		if d.install == nil {
			s.fail("P20", "member %d installs a snapshot %+v that it never received", m.ID, *w.Install)
			return
		}
	}
	m.queueWrite(d)
}

func (m *Member) queueWrite(d diskWrite) {
	s := m.sim
	s.ghost.handed(m, &d)
	if err := m.handed.apply(&d, m.disk.holes); err != nil {
		s.fail("P4", "member %d hands out a write that the log refuses: %v", m.ID, err)
		return
	}
	m.disk.writes = append(m.disk.writes, d)
	m.disk.born = append(m.disk.born, s.now)
	m.startDisk()
}

func (s *Sim) diskDelay() int64 {
	switch r := s.rng.IntN(32); {
	case s.calm:
		return 1
	case r == 0:
		return s.between(0, int64(s.opt.SlowDisk)*8)
	}
	return s.between(0, int64(s.opt.SlowDisk))
}

// startDisk begins the next sync, which takes in everything that waits at that moment.
func (m *Member) startDisk() {
	d := &m.disk
	if d.running || len(d.writes) == 0 || d.mode == diskHang {
		return
	}
	d.running = true
	n := len(d.writes)
	m.sim.after(m.sim.diskDelay(), m, "sync", func() { m.synced(n) })
}

// synced completes the first n writes of the queue.
func (m *Member) synced(n int) {
	s, d := m.sim, &m.disk
	d.running = false
	switch d.mode {
	case diskHang:
		return
	case diskFail:
		s.logf("%d stops: its disk failed", m.ID)
		s.crash(m, s.rng.IntN(n+1))
		return
	}
	seq := uint64(0)
	for i := range n {
		if m.crashesAt(BeforePersist, nil) {
			return
		}
		w := &d.writes[i]
		m.diskApply(w)
		if s.failure != nil {
			return
		}
		if w.w.Seq != 0 {
			seq = w.w.Seq
		}
		if p := w.snapshot; p != nil {
			m.snapping = false
			m.rep.SnapshotTaken(p.zxid, p.chain, d.logStart, d.logStartChain)
			m.rep.SetSnapshot(false, false)
		}
	}
	d.writes = append([]diskWrite(nil), d.writes[n:]...)
	d.born = append([]int64(nil), d.born[n:]...)
	if m.crashesAt(AfterPersist, nil) {
		return
	}
	if seq != 0 {
		m.rep.Persisted(seq)
	}
	m.startDisk()
}

// diskApply makes one batch durable and checks what it did.
func (m *Member) diskApply(w *diskWrite) {
	before := m.sim.ghost.beforeDisk(m)
	if err := m.disk.content.apply(w, m.disk.holes); err != nil {
		m.sim.fail("P4", "member %d: %v", m.ID, err)
		return
	}
	if w.w.Trusted {
		m.suspect = false
	}
	m.sim.ghost.diskChanged(m, w, before)
}

// startApplier lets the applier take its next piece of work.
func (m *Member) startApplier() {
	if m.applying || len(m.applyQ) == 0 {
		return
	}
	m.applying = true
	s := m.sim
	d := int64(0)
	if !s.calm {
		d = s.between(0, int64(s.opt.SlowApply))
	}
	s.after(d, m, "apply", m.apply)
}

func (m *Member) apply() {
	s := m.sim
	m.applying = false
	it := &m.applyQ[0]
	switch {
	case it.restore != nil:
		p, ok := m.disk.newestPoint()
		for i := range m.disk.points {
			if m.disk.points[i].zxid == it.restore.Zxid {
				p, ok = m.disk.points[i], true
			}
		}
		if !ok || p.zxid != it.restore.Zxid {
			s.fail("P20", "member %d is to load snapshot %v, its disk has %v", m.ID, it.restore.Zxid, p.zxid)
			return
		}
		m.tree.Reset(p.view)
		s.snaps++
		s.ghost.restored(m, &p)
		m.applyQ = m.applyQ[1:]
		m.rep.Applied(p.zxid, 0)
		m.port.applied()
		m.startApplier()
		return
	case it.entries == nil:
		i, j := m.disk.find(it.after), m.disk.find(it.through)
		it.entries = m.disk.entries[i:j:j]
		if len(it.entries) == 0 {
			s.fail("P13", "member %d is to apply (%v, %v] from its log, which has none of it (log from %v)", m.ID, it.after, it.through, m.disk.logStart)
			return
		}
	}
	n := len(it.entries)
	if !s.calm {
		n = 1 + s.rng.IntN(n)
	}
	batch := it.entries[:n]
	token := m.port.applyBatch(batch)
	if s.failure != nil {
		return
	}
	z := batch[n-1].Zxid
	m.sinceSnap += n
	if it.entries = it.entries[n:]; len(it.entries) == 0 {
		if z != it.through {
			s.fail("P13", "member %d was to apply through %v and was given %v", m.ID, it.through, z)
			return
		}
		m.applyQ = m.applyQ[1:]
	}
	m.rep.Applied(z, token)
	m.port.applied()
	m.startApplier()
}

// maybeSnapshot asks for the turn to write a snapshot.
func (m *Member) maybeSnapshot() {
	if e := m.sim.opt.SnapshotEvery; e > 0 && m.sinceSnap >= e && !m.snapping {
		m.rep.SetSnapshot(true, false)
	}
}

// takeSnapshot writes a snapshot of the present view: the content in a while, then the batch that refers to it.
func (m *Member) takeSnapshot() {
	v := m.tree.View()
	if m.snapping || v.Zxid() == 0 || v.Zxid() <= m.handed.base {
		m.rep.SetSnapshot(false, false)
		m.sinceSnap = 0
		return
	}
	s := m.sim
	m.snapping, m.sinceSnap = true, 0
	m.rep.SetSnapshot(false, true)
	p := &point{zxid: v.Zxid(), chain: v.Chain(), view: s.rebuilt(v)}
	s.ghost.snapshot(m, p)
	s.after(s.between(5, 100), m, "snapshot", func() {
		if p.zxid <= m.handed.base {
			m.snapping = false // overtaken by an installed one
			m.rep.SetSnapshot(false, false)
			return
		}
		start := m.handed.logStart
		if n := len(m.handed.points); n > 0 && s.rng.IntN(2) == 0 {
			start = m.handed.points[s.rng.IntN(n)].zxid
		}
		if need, ok := m.rep.OldestNeeded(); ok {
			start = min(start, need)
		}
		s.logf("%d snapshot %v, log from %v", m.ID, p.zxid, start)
		m.queueWrite(diskWrite{snapshot: p, logStart: max(start, m.handed.logStart)})
	})
}

// TakeSnapshot makes a member write a snapshot now and drop its log up to it.
func (s *Sim) TakeSnapshot(id quorum.MemberID) {
	m := s.member(id)
	v := m.tree.View()
	if v.Zxid() <= m.handed.base {
		return
	}
	start := v.Zxid()
	if need, ok := m.rep.OldestNeeded(); ok {
		start = max(m.handed.logStart, min(start, need))
	}
	p := &point{zxid: v.Zxid(), chain: v.Chain(), view: s.rebuilt(v)}
	s.logf("%d snapshot %v, log from %v", id, p.zxid, start)
	s.ghost.snapshot(m, p)
	m.queueWrite(diskWrite{snapshot: p, logStart: start})
}

// rebuilt sends a view through the records of a snapshot and back.
func (s *Sim) rebuilt(v *kv.View) *kv.View {
	if s.rng.IntN(4) != 0 {
		return v
	}
	b := kv.NewBuilder()
	err := v.Records(func(table uint8, key, value []byte) error { return b.Add(table, key, value) })
	if err != nil {
		s.fail("P20", "records of a view: %v", err)
		return v
	}
	out, err := b.Finish(v.Zxid(), v.Chain(), v.Digest())
	if err != nil {
		s.fail("P20", "building a view from its records: %v", err)
		return v
	}
	return out
}

// chooseSnapshot answers a request to stream the newest snapshot point; without one it is taken now.
func (m *Member) chooseSnapshot(q zab.SendSnapshot) {
	p, ok := m.disk.newestPoint()
	if !ok {
		v := m.tree.View()
		if v.Zxid() != 0 {
			p, ok = point{zxid: v.Zxid(), chain: v.Chain(), view: v}, true
			m.sim.ghost.snapshot(m, &p)
		}
	}
	if ok {
		if l := m.links[q.Link]; l != nil {
			l.chosen = &p
		}
	}
	m.rep.SnapshotChosen(q.Link, p.zxid, p.chain, ok)
}

// stream sends the files behind their SNAP message.
func (m *Member) stream(l *link, id zab.LinkID) {
	s := m.sim
	if l.chosen == nil {
		s.fail("P20", "member %d sends SNAP without a chosen snapshot", m.ID)
		return
	}
	p := l.chosen
	l.chosen = nil
	side := l.side(m)
	s.afterLife(s.between(0, 50), m, m.life, "snapshot stream", func() {
		m.rep.SnapshotProgress(id)
		s.sendLink(l, side, Message{From: m.ID, To: l.end(1 - side).ID, Kind: "FILES", point: p})
		m.rep.SnapshotSent(id, true)
	})
}

// receiveSnapshot takes in the files.
func (m *Member) receiveSnapshot(l *link, fromSide int, p *point) {
	s := m.sim
	s.handles++
	m.received[s.handles] = p
	m.rep.SnapshotReceived(l.id[1-fromSide], zab.SnapshotRef{Zxid: p.zxid, Chain: p.chain, Handle: s.handles}, true)
}

// readLog answers a request to read entries that are no longer in memory.
func (m *Member) readLog(q zab.ReadLog) {
	if q.After < m.disk.logStart {
		m.rep.LogRead(q.Link, q.After, nil, fmt.Errorf("compacted up to %v", m.disk.logStart))
		return
	}
	i, j := m.disk.find(q.After), m.disk.find(q.Through)
	bytes := 0
	for k := i; k < j; k++ {
		if bytes += len(m.disk.entries[k].Payload); bytes > q.MaxBytes && k > i {
			j = k
			break
		}
	}
	m.rep.LogRead(q.Link, q.After, m.disk.entries[i:j:j], nil)
}

func describe(c *content) string {
	last, _ := c.last()
	return fmt.Sprintf("accepted=%d current=%d last=%v base=%v logStart=%v unknown=%v", c.accepted.Epoch, c.current, last, c.base, c.logStart, c.unknown)
}
