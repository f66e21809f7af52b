package sim

import (
	"fmt"
	"sort"

	"kvd/kv"
	"kvd/snapshot"
	"kvd/zab"
)

// diskMode is what a member's disk does with the writes it is given.
type diskMode uint8

const (
	diskOK   diskMode = iota
	diskHang          // accepts writes, completes none
	diskFail          // the next completion is an error: the member stops
	diskFull          // every completion is an error, until there is room again
)

// content is what a disk holds. It has the semantics of package wal: writes are atomic and happen in order, a
// history is contiguous, and what a crash leaves is a prefix of the writes that contains every completed one.
type content struct {
	accepted zab.Promise
	current  kv.Epoch
	unknown  bool
	sole     bool // kvd recover --sole-survivor

	base, logStart           kv.Zxid
	baseChain, logStartChain uint64
	// entries are those after logStart.
	entries []kv.Entry
	points  []point // oldest first; the newest is base
}

func emptyContent() content {
	return content{baseChain: kv.ChainSeed(), logStartChain: kv.ChainSeed()}
}

func (c *content) clone() content {
	n := *c
	n.entries = append([]kv.Entry(nil), c.entries...)
	n.points = append([]point(nil), c.points...)
	return n
}

func (c *content) last() (kv.Zxid, uint64) {
	if n := len(c.entries); n > 0 {
		return c.entries[n-1].Zxid, c.entries[n-1].Chain
	}
	return c.logStart, c.logStartChain
}

func (c *content) lastZxid() kv.Zxid { z, _ := c.last(); return z }

// find returns the number of entries at or below z.
func (c *content) find(z kv.Zxid) int {
	return sort.Search(len(c.entries), func(i int) bool { return c.entries[i].Zxid > z })
}

// Locate implements zab.History for what is durable.
func (c *content) Locate(z kv.Zxid) (kv.Zxid, uint64, bool) {
	if z < c.logStart {
		return 0, 0, false
	}
	if i := c.find(z); i > 0 {
		return c.entries[i-1].Zxid, c.entries[i-1].Chain, true
	}
	return c.logStart, c.logStartChain, true
}

// holds reports whether the history on this disk, snapshot included, has the entry z of that chain. Below the log
// start it cannot be known from the disk; then the answer is that of the retained part, which implies the rest.
func (c *content) holds(z kv.Zxid, chain uint64) bool {
	at, h, ok := c.Locate(z)
	return ok && at == z && h == chain
}

func (c *content) durable() zab.DurableState {
	last, chain := c.last()
	return zab.DurableState{
		Accepted: c.accepted, Current: c.current, Base: c.base, BaseChain: c.baseChain,
		LogStart: c.logStart, LogStartChain: c.logStartChain, Last: last, LastChain: chain, Unknown: c.unknown, Sole: c.sole,
	}
}

func (c *content) newestPoint() (point, bool) {
	if n := len(c.points); n > 0 {
		return c.points[n-1], true
	}
	return point{}, false
}

// diskWrite is one batch in the queue: the broadcast's, or the shell's own about a snapshot.
type diskWrite struct {
	w        zab.Write
	install  *point // content of w.Install
	snapshot *point // own snapshot: base := it
	logStart kv.Zxid
}

// apply carries out one batch. It fails on what package wal refuses: a history with a hole, a truncation below base.
// holes lets it pass, for the mutation that must be caught by a checker instead.
func (c *content) apply(w *diskWrite, holes bool) error {
	if p := w.w.Promise; p != nil {
		c.accepted = *p
	}
	if w.install != nil {
		c.base, c.baseChain = w.install.zxid, w.install.chain
		c.logStart, c.logStartChain = c.base, c.baseChain
		c.entries = nil
		c.points = []point{*w.install}
	}
	if t := w.w.Truncate; t != nil {
		if *t < c.base {
			return fmt.Errorf("truncation to %v is below the base %v", *t, c.base)
		}
		n := c.find(*t)
		c.entries = c.entries[:n:n]
	}
	for i := range w.w.Append {
		e := &w.w.Append[i]
		prev, chain := c.last()
		if !holes && (!e.Zxid.Follows(prev) || e.Chain != kv.ChainDigest(chain, e.Zxid, e.Payload)) {
			return fmt.Errorf("entry %v does not continue the history at %v", e.Zxid, prev)
		}
		c.entries = append(c.entries, *e)
	}
	if w.w.Current != 0 {
		c.current = w.w.Current
	}
	if w.w.Trusted {
		c.unknown = false
	}
	if w.w.ClearSole {
		c.sole = false
	}
	if s := w.snapshot; s != nil && s.zxid > c.base {
		c.base, c.baseChain = s.zxid, s.chain
		c.points = append(c.points, *s)
		if n := len(c.points); n > 3 {
			c.points = append([]point(nil), c.points[n-3:]...)
		}
		if at, chain, ok := c.Locate(w.logStart); ok && at == w.logStart && at <= c.base {
			c.entries = append([]kv.Entry(nil), c.entries[c.find(at):]...)
			c.logStart, c.logStartChain = at, chain
			for len(c.points) > 1 && c.points[0].zxid < at {
				c.points = c.points[1:]
			}
		}
	}
	return nil
}

// disk is one member's disk: content that survives everything, and a queue of writes that does not.
type disk struct {
	content
	store   *snapshot.Memory
	mode    diskMode
	writes  []diskWrite
	born    []int64 // of each write, virtual ms
	low     bool    // space is below the low mark
	running bool    // a sync is under way
	holes   bool
}

// oldestMs is the age of the oldest unfinished write.
func (d *disk) oldestMs(now int64) uint32 {
	if len(d.born) == 0 {
		return 0
	}
	return uint32(now - d.born[0])
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
		if s.opt.ShellMutations.IgnoreFailedSync {
			d.mode = diskOK
			m.lost(n)
			return
		}
		s.logf("%d stops: its disk failed", m.ID)
		s.crash(m, s.rng.IntN(n+1))
		return
	case diskFull:
		s.logf("%d stops: its disk is full", m.ID)
		s.crash(m, 0)
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
			m.retain()
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

// lost is a failed sync that nobody minds: the writes are gone and reported as done.
func (m *Member) lost(n int) {
	d := &m.disk
	seq := d.writes[n-1].w.Seq
	d.writes = append([]diskWrite(nil), d.writes[n:]...)
	d.born = append([]int64(nil), d.born[n:]...)
	d.holes = true
	m.rep.Persisted(seq)
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
