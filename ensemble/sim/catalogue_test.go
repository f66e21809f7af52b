package sim

import (
	"testing"

	"kvd/ensemble/replica"
	"kvd/zab/quorum"
)

// Directed tests that are no scenarios of the catalogue.

// TestFastFailover: with three members and refused connections a crashed leader is replaced in well under a second.
func TestFastFailover(t *testing.T) {
	s := scene(t, Options{Tune: func(_ quorum.MemberID, c *replica.Config) { c.FinalizeTicks = 4 }})
	led(t, s, 3)
	s.Run(20)
	s.Crash(3)
	began := s.Now()
	check(t, s.Established(40, 2) != nil && s.Until(5, func() bool { return s.Leader().serving.Open }), "nobody took over")
	if took := s.Now() - began; took > 200 {
		t.Fatalf("it took %d ms", took)
	}
	recovered(t, s)
}

// TestFormingFromBlank: blank members form one ensemble, whatever the order in which they start and however often one of
// them crashes on the way.
func TestFormingFromBlank(t *testing.T) {
	for crashes := range 6 {
		s := NewScript(Options{Fresh: true, Seed: uint64(crashes)})
		for _, id := range []quorum.MemberID{2, 3} {
			s.Start(id)
		}
		s.Run(50)
		check(t, s.Leader() == nil, "formed without hearing from all voters")
		s.Start(1)
		for range crashes {
			s.Run(1)
			id := quorum.MemberID(1 + s.rng.IntN(3))
			s.Crash(id)
			s.Run(2)
			s.Start(id)
		}
		check(t, s.Until(300, s.recovered), "%d crashes: not formed: %s", crashes, s.describe())
		for _, m := range s.members {
			check(t, m.cluster == s.member(1).cluster && m.cluster != [16]byte{}, "member %d belongs to %x", m.ID, m.cluster)
		}
		check(t, s.OK(s.W(1, "x")), "no write")
		recovered(t, s)
	}
}
