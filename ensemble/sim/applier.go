package sim

import (
	"fmt"

	"kvd/zab"
	"kvd/zab/quorum"
)

// HoldApply stops a member's applier, as a slow processor does; ReleaseApply lets it go on.
func (s *Sim) HoldApply(id quorum.MemberID) { s.member(id).applyHeld = true }

// ReleaseApply lets a member that HoldApply stopped go on.
func (s *Sim) ReleaseApply(id quorum.MemberID) {
	m := s.member(id)
	m.applyHeld = false
	m.startApplier()
}

// startApplier lets the applier take its next piece of work.
func (m *Member) startApplier() {
	if m.applying || m.applyHeld || len(m.applyQ) == 0 {
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
		view := m.load(&p)
		if view == nil {
			return
		}
		m.port.installed(func() { m.tree.Reset(view) }, m.tree.View(), view)
		s.snaps++
		s.ghost.restored(m, &p, view)
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
