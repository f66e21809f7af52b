package sim

// checkBounds is L6 at a member, each tick: what waits for a leader, what is on its way to one, and what waits for a quorum
// stay within the bounds that the configuration gives. Those that are 0 take their large defaults and are not met here.
func (m *Member) checkBounds() {
	st, c := m.rep.Status(), &m.limits
	for _, b := range [...]struct {
		what     string
		now, max int
	}{
		{"operations queued", st.Queued, c.MaxQueuedOps},
		{"operations forwarded", st.Outstanding, c.MaxForwardedOps},
		{"proposals outstanding", st.OutstandingCount, c.MaxOutstandingEntries},
	} {
		if b.max > 0 && b.now > b.max {
			m.sim.fail("L6", "member %d has %d %s, the bound is %d", m.ID, b.now, b.what, b.max)
		}
	}
}
