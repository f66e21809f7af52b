package ensemble

import (
	"runtime/debug"
	"testing"
)

func TestGCPercentFollowsTheHeap(t *testing.T) {
	for live, want := range map[uint64]int{
		0:         4800, // nothing lives yet
		4 << 20:   1200, // 48 MiB of headroom
		48 << 20:  100,
		192 << 20: 25, // from here on a quarter
		1 << 30:   25,
	} {
		if got := gcPercentFor(live); got != want {
			t.Errorf("%d MiB live: %d percent, want %d", live>>20, got, want)
		}
	}
}

func TestTuneGCRestoresWhatItFound(t *testing.T) {
	before := debug.SetGCPercent(123)
	defer debug.SetGCPercent(before)
	stop := TuneGC()
	stop()
	if got := debug.SetGCPercent(123); got != 123 {
		t.Errorf("percent %d after stop, want 123", got)
	}
}
