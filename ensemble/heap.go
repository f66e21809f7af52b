package ensemble

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
)

// Headroom of the garbage collector: how much is allocated between two collections. With the default of
// "as much as is live" a small member collects hundreds of times a second under load and a large one holds twice
// its tree.
const (
	minHeadroom = 48 << 20 // small heaps: a collection is cheap, but not so cheap
	headroomPer = 4        // large heaps: a quarter of what is live
)

// gcPercentFor returns the GOGC that gives a live heap its headroom.
func gcPercentFor(liveBytes uint64) int {
	live := max(liveBytes, 1<<20)
	headroom := max(live/headroomPer, minHeadroom)
	return int(min(100*headroom/live, 4800))
}

// TuneGC makes the garbage collector of this process follow the size of the live heap, until stop is called. It is
// for a process whose purpose is to be a member (kvd); an embedded member leaves its host's settings alone.
// A GOGC given by the user is the caller's to respect: it then does not call this.
func TuneGC() (stop func()) {
	var stopped atomic.Bool
	last := gcPercentFor(liveHeap())
	old := debug.SetGCPercent(last)
	// A finalizer that arms itself again runs once after each collection, on the runtime's own goroutine.
	var adjust func(*sentinel)
	adjust = func(*sentinel) {
		if stopped.Load() {
			return
		}
		p := gcPercentFor(liveHeap())
		if d := p - last; d > last/10 || -d > last/10 {
			debug.SetGCPercent(p) // stops the world for a moment: not for every percent
			last = p
		}
		runtime.SetFinalizer(new(sentinel), adjust)
	}
	runtime.SetFinalizer(new(sentinel), adjust)
	return func() {
		stopped.Store(true)
		debug.SetGCPercent(old)
	}
}

// sentinel is an object whose death tells of a collection. It is not tiny: tiny objects share a block and may
// outlive several collections.
type sentinel struct{ _ [64]byte }

// liveHeap is what the last collection found alive.
func liveHeap() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return s[0].Value.Uint64()
}
