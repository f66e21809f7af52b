package sim

import (
	"kvd/kv"
	"kvd/zab"
	"kvd/zab/quorum"
)

// toldDigests are the digests that a member tells the others.
type toldDigests struct{ m *Member }

func (d toldDigests) DigestAt(z kv.Zxid) (uint64, bool) {
	digest, ok := d.m.tree.DigestAt(z)
	return digest + d.m.spoiled, ok
}

func (d toldDigests) NewestDigest() kv.DigestAt {
	n := d.m.tree.NewestDigest()
	n.Digest += d.m.spoiled
	return n
}

// Spoil makes a member's tree one that differs from the others', as far as digests tell, until it is synced again.
func (s *Sim) Spoil(id quorum.MemberID) {
	s.logf("spoil %d", id)
	s.member(id).spoiled = 1
}

// diverged does what the shell does with a member whose tree is wrong: it ends, and starts again as one that may have
// forgotten everything.
func (m *Member) diverged(d *zab.Divergence) {
	s := m.sim
	if m.spoiled == 0 {
		s.fail("P18", "member %d is told that its tree differs at %v (agreed at %v); it does not", m.ID, d.At, d.After)
		return
	}
	s.logf("%d diverged after %v, at %v", m.ID, d.After, d.At)
	s.crash(m, 1<<30)
	m.spoiled = 0
	s.Wipe(m.ID, true)
	s.after(10, nil, "restart", func() { s.Start(m.ID) })
}
