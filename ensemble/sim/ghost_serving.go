package sim

import "kvd/zab"

// serves is P15 when a member answers a client: a leader has been established in this attempt, and a learner has received
// UPTODATE from its leader since it was last looking, on a link that lasts, or whose end it has just been told of: who answers clients at that moment does so at the same time. What the member says of itself (Serving) is not
// asked: that is the claim. A re-epoch over existing links changes none of it (S39).
func (g *ghost) serves(m *Member) {
	ok := false
	switch m.role.Role {
	case zab.Leading:
		_, ok = g.sessions.began[m.inc]
	case zab.Following, zab.Observing:
		ok = m.upToDate != 0 && m.upToDate == m.role.Leader && (m.role.Stage == zab.Broadcast || m.dialled() || m.unshut)
	}
	if !ok {
		g.sim.fail("P15", "member %d answers a client in %v %v (leader %d, UPTODATE from %d)", m.ID, m.role.Role, m.role.Stage, m.role.Leader, m.upToDate)
	}
}

// dialled reports whether a learner has a link to a leader, as far as it knows.
func (m *Member) dialled() bool {
	for _, l := range m.links {
		if l.dialler == m && !l.told[0] {
			return true
		}
	}
	return false
}
