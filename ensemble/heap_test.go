package ensemble

import (
	"runtime/debug"
	"testing"
)

func TestGCPercentFollowsTheHeap(t *testing.T) {
	for live, want := range map[uint64]int{
		0:         4000, // nothing lives yet
		4 << 20:   1000, // 40 MiB of headroom
		40 << 20:  100,
		240 << 20: 16, // from here on a sixth
		1 << 30:   16,
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
