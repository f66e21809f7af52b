package sim

import (
	"math/rand/v2"

	"kvd/ensemble/replica"
	"kvd/kv"
	"kvd/snapshot"
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
	spoiled uint64   // added to the digests that it tells

	fresh int // where the writes of the present Ready begin in the queue

	// The process.
	rep       *replica.Replica
	tree      *kv.Tree
	paused    bool
	deferred  []event
	woke      bool  // the next tick follows a gap
	wallMs    int64 // how far its wall clock is off
	stale     int   // ticks without a leader, or a quorum, that could be heard
	links     map[zab.LinkID]*link
	dialling  uint64
	received  map[uint64]*point // by SnapshotRef.Handle
	saving    *point            // files written, the batch that refers to them not queued yet
	saved     *kv.View          // the content of the newest snapshot written in this life
	role      zab.RoleChange
	inc       zab.Incarnation
	unshut    bool            // it was told of the end of a link, and has not carried out what follows from that
	upToDate  quorum.MemberID // the leader that sent UPTODATE since it was last looking, 0 none (P15)
	serving   replica.Serving
	applyQ    []applyItem
	applying  bool
	applyHeld bool
	snapping  bool
	sinceSnap int
	handed    content // the disk's content as it will be when all queued writes are done
	port      port
	// touches came since the last PING reply, sureTouches before it.
	touches, sureTouches []touch

	// Crash points set by CrashAt.
	crashAt func(at Point, m *Message) bool

	limits replica.Config // its settings, with their defaults

	config *quorum.Config // its own, if it differs from the others'
}

type applyItem struct {
	restore        *zab.SnapshotRef
	after, through kv.Zxid
	entries        []kv.Entry
}

func newMember(s *Sim, id quorum.MemberID) *Member {
	m := &Member{sim: s, ID: id, disk: disk{content: emptyContent(), store: snapshot.NewMemory()}}
	if s.opt.Fresh {
		m.disk.unknown = true
	} else {
		m.cluster = [16]byte{1}
	}
	m.disk.holes = s.opt.ZabMutations.AcceptHoles
	return m
}

// Start starts a member from what its disk holds. That it cannot is a broken property (L7).
func (s *Sim) Start(id quorum.MemberID) {
	if err := s.TryStart(id); err != nil {
		s.fail("L7", "member %d cannot start: %v", id, err)
	}
}

// TryStart starts a member and returns its refusal, if it refuses.
func (s *Sim) TryStart(id quorum.MemberID) error {
	m := s.member(id)
	if m.Up {
		return nil
	}
	s.logf("start %d: %+v", id, describe(&m.disk.content))
	s.lives++
	m.Up, m.life, m.paused, m.woke, m.deferred = true, s.lives, false, false, nil
	m.links, m.received = map[zab.LinkID]*link{}, map[uint64]*point{}
	m.stale = 0
	m.role, m.serving, m.dialling, m.inc = zab.RoleChange{}, replica.Serving{}, 0, 0
	m.applyHeld, m.upToDate, m.unshut = false, 0, false
	m.applyQ, m.applying, m.snapping, m.sinceSnap = nil, false, false, 0
	m.disk.writes, m.disk.born, m.disk.running = nil, nil, false
	if m.disk.mode == diskFail {
		m.disk.mode = diskOK
	}
	m.handed = m.disk.content.clone()
	m.port.start(m)

	view, base := kv.NewView(), kv.Zxid(0)
	m.saved, m.saving = nil, nil
	m.retain()
	if p, ok := m.disk.newestPoint(); ok {
		if view, base = m.load(&p), p.zxid; view == nil {
			m.Up = false
			return nil // told already
		}
	}
	m.tree = kv.NewTree(view)
	m.touches, m.sureTouches = nil, nil
	cfg := replica.Config{
		ID: id, Members: s.config, TickMs: tickMs,
		Rand: rand.New(rand.NewPCG(s.rng.Uint64(), uint64(id))),
		Incarnation: func() zab.Incarnation {
			s.incs++
			m.inc = zab.Incarnation(s.incs)
			return m.inc
		},
		ZabMutations: s.opt.ZabMutations, ElectionMutations: s.opt.ElectionMutations, Mutations: s.opt.ReplicaMutations,
		Preparer: kv.PreparerOptions{ExtendedTypes: true, Mutations: s.opt.TreeMutations}, ContainerTicks: 8, ContainerMaxPerMinute: 3000,
	}
	if m.config != nil {
		cfg.Members = *m.config
	}
	if s.opt.Tune != nil {
		s.opt.Tune(id, &cfg)
	}
	if s.syncTicks = cfg.SyncTicks; s.syncTicks == 0 {
		s.syncTicks = 20
	}
	rep, err := replica.New(cfg, replica.Start{
		Durable:  m.disk.durable(),
		Identity: replica.Identity{ClusterID: m.cluster, Suspect: m.suspect, Run: m.life, Mint: [16]byte{0xaa, byte(m.life)}},
		Applied:  base,
		View:     m.tree.View,
		Digests:  toldDigests{m},
		History:  &m.disk.content,
	})
	if err != nil {
		m.Up = false
		return err
	}
	m.rep, m.limits = rep, cfg
	s.ghost.started(m)
	for _, o := range s.members {
		if o != m && o.Up {
			s.electionConns(m, o)
		}
	}
	s.after(s.between(1, tickMs), m, "tick", m.tick)
	m.run()
	return nil
}

// checkStale is L4: a leader that no quorum can reach, and a follower that its leader cannot reach, look within the sync
// limit and a little.
func (m *Member) checkStale(gap bool) {
	s := m.sim
	hears := func(from *Member) bool { return from.Up && !from.paused && s.reachable(from, m) }
	alive := m.role.Stage != zab.Broadcast
	switch m.role.Role {
	case zab.Looking:
		alive = true
	case zab.Leading:
		alive = alive || s.config.HasQuorum(func(id quorum.MemberID) bool { return id == m.ID || hears(s.member(id)) })
	case zab.Following, zab.Observing:
		alive = alive || hears(s.member(m.role.Leader))
	}
	if alive || gap {
		m.stale = 0
		return
	}
	if m.stale++; m.stale > s.syncTicks+staleTicks {
		s.fail("L4", "member %d is %v %v in epoch %d, %d ticks after it could last hear from its leader or a quorum", m.ID, m.role.Role, m.role.Stage, m.role.Epoch, m.stale)
	}
}

// staleTicks is what L4 allows beyond the sync limit: messages that were on their way, and the tick that notices.
const staleTicks = 8

// wallEpoch is the wall clock at virtual time 0.
const wallEpoch = 1_700_000_000_000

func (m *Member) tick() {
	s := m.sim
	gap := m.woke
	m.woke = false
	m.rep.SetDisk(m.disk.oldestMs(s.now), 1<<40)
	m.rep.SetDiskLow(m.disk.low)
	m.rep.Tick(replica.Clock{WallMs: wallEpoch + s.now + m.wallMs, Gap: gap})
	m.checkStale(gap)
	m.checkBounds()
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
	m.disk.store.Crash()
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
	for _, o := range s.members {
		o.stale = 0
	}
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
	if m.disk.mode == diskOK && !m.disk.low {
		return
	}
	s.logf("disk %d ok", id)
	m.disk.low = false
	m.disk.mode = diskOK
	m.startDisk()
}

// DiskFail makes the next sync of a member fail: the process stops, as rule 2 of the design demands.
func (s *Sim) DiskFail(id quorum.MemberID) {
	s.logf("disk %d fail", id)
	s.member(id).disk.mode = diskFail
}

// DiskFull makes every sync of a member fail until DiskOK: it stops at each write, however often it is started.
func (s *Sim) DiskFull(id quorum.MemberID) {
	s.logf("disk %d full", id)
	s.member(id).disk.mode = diskFull
}

// DiskLow puts the space for a member's log below its low mark, until DiskOK.
func (s *Sim) DiskLow(id quorum.MemberID) {
	s.logf("disk %d low", id)
	s.member(id).disk.low = true
	s.lowSpace = true
}

// Clock moves a member's wall clock by so many milliseconds. Time-outs go by ticks and must not notice.
func (s *Sim) Clock(id quorum.MemberID, ms int64) {
	s.logf("clock %d by %d ms", id, ms)
	s.member(id).wallMs += ms
}

// Damage spoils the log of a member that is down, from entry z on. What stands before z is what package wal finds whole; the
// entries after it are lost, the watermark says so, and the member is unknown (zab-rules f, S35).
func (s *Sim) Damage(id quorum.MemberID, z kv.Zxid) {
	m := s.member(id)
	if m.Up {
		panic("sim: damage to a running member")
	}
	s.logf("damage %d from %v", id, z)
	if z <= m.disk.base { // then nothing of the log is believed, and without it the snapshots say nothing
		s.Wipe(id, true)
		return
	}
	n := m.disk.find(z - 1)
	m.disk.entries = m.disk.entries[:n:n]
	m.disk.unknown = !s.opt.ShellMutations.DamageIsATornTail
	s.ghost.lossy = true
	gm := s.ghost.of(m)
	gm.match = s.ghost.matching(&m.disk.content, gm.match, nil)
	s.ghost.checkQuorums()
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
	m.disk.store = snapshot.NewMemory()
	m.disk.unknown = true
	m.suspect = keepFile
	if !keepFile {
		m.cluster = [16]byte{}
	}
	s.ghost.wiped(m)
}
