package sim

import (
	"fmt"

	"kvd/kv"
	"kvd/zab"
	"kvd/zab/quorum"
)

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
