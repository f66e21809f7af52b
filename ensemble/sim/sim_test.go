package sim

import (
	"flag"
	"testing"
)

var (
	schedules = flag.Int("schedules", 300, "random schedules to run")
	seed      = flag.Uint64("seed", 0, "run this one seed and print its trace")
	steps     = flag.Int("steps", 500, "events of each schedule before healing")
)

func TestRandomSchedules(t *testing.T) {
	if *seed != 0 {
		r := Run(Schedule{Seed: *seed, Steps: *steps, Trace: true})
		t.Logf("%s", r.Trace)
		if r.Err != nil {
			t.Fatalf("seed %d: %v", *seed, r.Err)
		}
		return
	}
	n := *schedules
	if testing.Short() {
		n = min(n, 60)
	}
	for i := range n {
		r := Run(Schedule{Seed: uint64(i + 1), Steps: *steps})
		if r.Err != nil {
			t.Fatalf("seed %d: %v\nreplay: go test ./ensemble/sim -run '^%s$' -v -steps=%d -seed=%d", r.Seed, r.Err, t.Name(), *steps, r.Seed)
		}
	}
}
