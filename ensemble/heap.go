package ensemble

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// Headroom of the garbage collector: how much is allocated between two collections. With Go's default of
// "as much as is live" a small member collects hundreds of times a second under load, and a large one holds its
// tree twice.
const (
	minHeadroom = 40 << 20 // small heaps: a collection is cheap, but not so cheap
	headroomPer = 6        // large heaps: a sixth of what is live
)

// A process that has become quiet gives back what its busy time left: once in trimEvery, if it allocated at
// least trimAfter since the last time and less than quietBytes in the last trimEvery.
const (
	trimEvery  = 5 * time.Second
	trimAfter  = 32 << 20
	quietBytes = 4 << 20
)

// gcPercentFor returns the GOGC that gives a live heap its headroom.
func gcPercentFor(liveBytes uint64) int {
	live := max(liveBytes, 1<<20)
	headroom := max(live/headroomPer, minHeadroom)
	return int(min(100*headroom/live, 4800))
}

// TuneGC makes the garbage collector of this process follow the size of the live heap, and returns memory to the
// system when the process has become quiet, until stop is called. It is for a process whose purpose is to be a member
// (kvd); an embedded member leaves its host's settings alone. A GOGC given by the user is the caller's to respect: it
// then does not call this.
func TuneGC() (stop func()) {
	g := &gcTuner{percent: gcPercentFor(liveHeap()), done: make(chan struct{})}
	g.before = debug.SetGCPercent(g.percent)
	g.arm()
	g.group.Go(g.trim)
	return func() {
		g.mu.Lock()
		g.stopped = true
		g.mu.Unlock()
		close(g.done)
		g.group.Wait()
		debug.SetGCPercent(g.before)
	}
}

type gcTuner struct {
	before int
	done   chan struct{}
	group  sync.WaitGroup

	mu      sync.Mutex
	percent int
	stopped bool
}

// sentinel is an object whose death tells of a collection. It is not tiny: tiny objects share a block and may
// outlive several collections.
type sentinel struct{ _ [64]byte }

// arm has adjust run after the next collection, on the runtime's own goroutine.
func (g *gcTuner) arm() { runtime.SetFinalizer(new(sentinel), func(*sentinel) { g.adjust() }) }

func (g *gcTuner) adjust() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return
	}
	p := gcPercentFor(liveHeap())
	if d := p - g.percent; d > g.percent/10 || -d > g.percent/10 {
		debug.SetGCPercent(p) // stops the world for a moment: not for every percent
		g.percent = p
	}
	g.arm()
}

// trim is the goroutine that gives memory back after busy times.
func (g *gcTuner) trim() {
	t := time.NewTicker(trimEvery)
	defer t.Stop()
	last := allocatedBytes()
	trimmed := last
	for {
		select {
		case <-t.C:
		case <-g.done:
			return
		}
		now := allocatedBytes()
		if now-last < quietBytes && now-trimmed > trimAfter {
			debug.FreeOSMemory()
			trimmed = now
		}
		last = now
	}
}

// liveHeap is what the last collection found alive.
func liveHeap() uint64 { return readMetric("/gc/heap/live:bytes") }

// allocatedBytes is everything ever allocated on the heap.
func allocatedBytes() uint64 { return readMetric("/gc/heap/allocs:bytes") }

func readMetric(name string) uint64 {
	s := []metrics.Sample{{Name: name}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return s[0].Value.Uint64()
}
