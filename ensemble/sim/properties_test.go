package sim

import (
	"strings"
	"testing"

	"kvd/zab"
)

// violated runs a scene with a mistake switched on and demands that one of the named properties breaks.
func violated(t *testing.T, s *Sim, properties ...string) {
	t.Helper()
	if s.failure == nil {
		t.Fatalf("nothing broke; want one of %v", properties)
	}
	for _, p := range properties {
		if strings.HasPrefix(s.failure.Error(), p+" ") {
			t.Logf("caught: %v", s.failure)
			s.failure = nil
			return
		}
	}
	t.Fatalf("broke %v; want one of %v", s.failure, properties)
}

// TestDirectedMutants shows the mistakes that random schedules find too seldom (or never, because the election hides
// them) on the scenario made for each.
func TestDirectedMutants(t *testing.T) {
	t.Run("already promised still counted", func(t *testing.T) {
		s := scene(t, Options{ZabMutations: zab.Mutations{CountAlreadyPromised: true}})
		duel(t, s)
		violated(t, s, "P2", "P3", "P8")
	})
	t.Run("recency check skipped", func(t *testing.T) {
		s := scene(t, Options{ZabMutations: zab.Mutations{RecencyCheckSkipped: true}})
		s.ghost.reset()
		staleWinner(t, s)
		violated(t, s, "P7", "P8", "P14")
	})
	t.Run("current epoch before the history", func(t *testing.T) {
		for _, at := range []Point{BeforePersist, AfterPersist} {
			for n := range 8 {
				s := scene(t, Options{ZabMutations: zab.Mutations{CurrentEpochBeforeHistory: true}})
				adoption(t, s, at, n)
				if s.failure != nil {
					violated(t, s, "P7", "P8", "P9", "P11", "P14")
					return
				}
			}
		}
		t.Fatal("no crash point showed it")
	})
}
