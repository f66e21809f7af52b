package sim

import (
	"kvd/kv"
)

// What the ghost checks on the way from the commit point to the tree: A(m), its order, and its content.

// applicable: the broadcast hands entries up to z to the applier: they are committed, and durable here.
func (g *ghost) applicable(m *Member, z kv.Zxid) {
	g.declare(m, z)
	if last, _ := m.disk.last(); z > last {
		g.sim.fail("P13", "member %d is to apply %v, its disk ends at %v", m.ID, z, last)
	}
}

// applied is P6, P13, P17, P18, P19 for one applied entry.
func (g *ghost) appliedEntry(m *Member, e *kv.Entry) {
	s, gm := g.sim, g.of(m)
	switch i, ok := g.pos[e.Zxid]; {
	case !ok:
		s.fail("P6", "member %d applies %v, which is not committed", m.ID, e.Zxid)
		return
	case g.g[i].chain != e.Chain:
		s.fail("P6", "member %d applies another %v than the committed one", m.ID, e.Zxid)
		return
	case gm.applied == 0 && i != 0, gm.applied != 0 && (i == 0 || g.g[i-1].zxid != gm.applied):
		s.fail("P6", "member %d applies %v after %v", m.ID, e.Zxid, gm.applied)
		return
	}
	if p, ok := g.proposed[e.Zxid]; !ok || p.chain != e.Chain {
		s.fail("P17", "member %d applies %v, which no established leader proposed", m.ID, e.Zxid)
	}
	if f, ok := g.followed[e.Zxid]; ok && (f.prev != gm.applied || f.chain != e.Chain) {
		s.fail("P18", "member %d applies %v after %v, another one after %v", m.ID, e.Zxid, gm.applied, f.prev)
	}
	g.followed[e.Zxid] = step{gm.applied, e.Chain}
	if e.Zxid <= gm.applied || e.Zxid.Epoch() < gm.applied.Epoch() {
		s.fail("P19", "member %d applies %v after %v", m.ID, e.Zxid, gm.applied)
	}
	gm.applied, gm.appliedChain = e.Zxid, e.Chain
	if last, _ := m.disk.last(); e.Zxid > last {
		s.fail("P13", "member %d applies %v, its disk ends at %v", m.ID, e.Zxid, last)
	}
}

// appliedView compares the content of trees at equal zxids (P20, C4).
func (g *ghost) appliedView(m *Member, v *kv.View) {
	if v.Zxid() != g.of(m).applied || v.Chain() != g.of(m).appliedChain {
		g.sim.fail("P20", "member %d: its tree is at %v, it has applied %v", m.ID, v.Zxid(), g.of(m).applied)
		return
	}
	if d, ok := g.digests[v.Zxid()]; ok && d != v.Digest() {
		g.sim.fail("P20", "member %d: the tree at %v has digest %x, elsewhere %x", m.ID, v.Zxid(), v.Digest(), d)
	}
	g.digests[v.Zxid()] = v.Digest()
}

// restored: the tree was replaced by an installed snapshot.
func (g *ghost) restored(m *Member, p *point, v *kv.View) {
	gm := g.of(m)
	gm.applied, gm.appliedChain = p.zxid, p.chain
	g.checkApplied(m)
	g.appliedView(m, v)
}

// checkApplied is P6 for a tree that was loaded whole.
func (g *ghost) checkApplied(m *Member) {
	gm := g.of(m)
	if gm.applied == 0 || gm.dirty {
		return
	}
	if i, ok := g.pos[gm.applied]; !ok || g.g[i].chain != gm.appliedChain {
		g.sim.fail("P6", "member %d loads a snapshot at %v, which is not committed", m.ID, gm.applied)
	}
}

// snapshot is P20 for a snapshot that a member makes itself.
func (g *ghost) snapshot(m *Member, v *kv.View) {
	if i, ok := g.pos[v.Zxid()]; !ok || g.g[i].chain != v.Chain() {
		g.sim.fail("P20", "member %d makes a snapshot at %v, which is not committed", m.ID, v.Zxid())
		return
	}
	if d, ok := g.digests[v.Zxid()]; ok && d != v.Digest() {
		g.sim.fail("P20", "member %d: its snapshot at %v has digest %x, elsewhere %x", m.ID, v.Zxid(), v.Digest(), d)
	}
}
