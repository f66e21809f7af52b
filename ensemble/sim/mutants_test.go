package sim

import "testing"

// TestMutantsAreCaught switches each deliberate mistake on and demands that random schedules find it. A checker that
// stays silent under them proves nothing by being silent without them.
func TestMutantsAreCaught(t *testing.T) {
	for _, m := range Mutants() {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			n, found := m.Hunt(1, 500)
			if found == nil {
				t.Fatalf("%d seeds did not catch it", n)
			}
			t.Logf("caught by seed %d after %d seeds: %v", found.Seed, n, found.Err)
		})
	}
}
