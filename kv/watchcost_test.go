package kv

import (
	"fmt"
	"runtime"
	"testing"
	"time"
)

// deaf is a watcher that only counts.
type deaf struct{ events int }

func (d *deaf) Event(Event)           { d.events++ }
func (*deaf) MayRead(AccessList) bool { return true }

// watchAll sets a data watch of every watcher at each of n paths.
func watchAll(tree *Tree, watchers []*deaf, n int, path func(w, i int) string) {
	v := tree.View()
	for w, d := range watchers {
		for i := range n {
			tree.WatchAt(v, path(w, i), WatchData, d, true)
		}
	}
}

func newDeaf(n int) []*deaf {
	all := make([]*deaf, n)
	for i := range all {
		all[i] = new(deaf)
	}
	return all
}

// Shapes of a thousand watchers with n paths each.
func ownPath(w, i int) string    { return fmt.Sprintf("/bench/w%04d/n%04d", w, i) }
func sharedPath(_, i int) string { return fmt.Sprintf("/bench/shared/n%04d", i) }

// TestMemoryPerWatch holds the budgets of live heap for a watch, everything included: 80 bytes for one on a path that
// nobody else watches (the path has 18 bytes of its own), 20 for one more watcher of a path. And none of it is left
// when the watches have gone, whichever way they go.
func TestMemoryPerWatch(t *testing.T) {
	if raceEnabled || testing.Short() {
		t.Skip("hundreds of thousands of watches, and the race detector takes memory of its own")
	}
	const watchers = 1000
	for _, c := range []struct {
		name   string
		path   func(w, i int) string
		budget float64
	}{{"own", ownPath, 80}, {"shared", sharedPath, 20}} {
		for _, each := range []int{180, 250, 350} { // not only where tables have just grown, or are about to
			tree := NewTree(nil)
			all := newDeaf(watchers)
			before := heapInUse()
			watchAll(tree, all, each, c.path)
			n := float64(watchers * each)
			perWatch := (float64(heapInUse()) - float64(before)) / n
			t.Logf("%s, %.0f watches: %.1f bytes each", c.name, n, perWatch)
			if perWatch > c.budget {
				t.Errorf("%s, %.0f watches: %.1f bytes each, budget %.0f", c.name, n, perWatch, c.budget)
			}
			if got := tree.WatchCount(); got != watchers*each {
				t.Fatalf("%d watches, want %d", got, watchers*each)
			}
			for i, d := range all {
				if i%10 != 0 {
					tree.RemoveWatcher(d)
				}
			}
			if rest := float64(heapInUse()) - float64(before); rest > c.budget*n/4 {
				t.Errorf("%s: with a tenth of %.0f watches %.0f bytes are in use", c.name, n, rest)
			}
			for i := range each { // what is left fires
				for w := 0; w < watchers; w += 10 {
					path := c.path(w, i)
					tree.publish(tree.View(), []change{{kind: dataChanged, path: path, zxid: 1}})
				}
			}
			if got := tree.WatchCount(); got != 0 {
				t.Fatalf("%d watches after all have fired", got)
			}
			if rest := float64(heapInUse()) - float64(before); rest > n/2 {
				t.Errorf("%s: after %.0f watches %.0f bytes are in use", c.name, n, rest)
			}
			if err := checkWatches(tree); err != nil {
				t.Error(err)
			}
			runtime.KeepAlive(all)
		}
	}
}

// BenchmarkMemoryPerWatch is TestMemoryPerWatch for a million watches; run it with -benchtime 1x.
func BenchmarkMemoryPerWatch(b *testing.B) {
	for _, c := range []struct {
		name string
		path func(w, i int) string
	}{{"own", ownPath}, {"shared", sharedPath}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				tree := NewTree(nil)
				all := newDeaf(1000)
				before := heapInUse()
				start := time.Now()
				watchAll(tree, all, 1000, c.path)
				b.ReportMetric(float64(time.Since(start).Nanoseconds())/1e6, "ns/set")
				b.ReportMetric((float64(heapInUse())-float64(before))/1e6, "B/watch")
				b.Logf("RSS %s", vmRSS())
				start = time.Now()
				for _, d := range all {
					tree.RemoveWatcher(d)
				}
				b.ReportMetric(float64(time.Since(start).Nanoseconds())/1e6, "ns/removed")
				runtime.KeepAlive(all)
			}
		})
	}
}

// BenchmarkStorm fires 100,000 one-shot watches on one path. held is the time under the locks of the tables.
func BenchmarkStorm(b *testing.B) {
	const watchers = 100_000
	for _, mode := range []WatchMode{OneShot, Persistent} {
		b.Run(fmt.Sprintf("mode=%d", mode), func(b *testing.B) {
			tree := NewTree(nil)
			all := newDeaf(watchers)
			var held, whole time.Duration
			c := change{kind: dataChanged, path: "/hot", zxid: 1}
			c.hash = tree.watches.hashOf(c.path)
			for b.Loop() {
				v := tree.View()
				for _, d := range all {
					tree.AddWatchAt(v, c.path, mode, d)
				}
				start := time.Now()
				tree.fireLocked(&c)
				held += time.Since(start)
				tree.deliver()
				whole += time.Since(start)
			}
			b.ReportMetric(held.Seconds()*1e9/float64(b.N)/watchers, "held-ns/watch")
			b.ReportMetric(whole.Seconds()*1e9/float64(b.N)/watchers, "ns/watch")
		})
	}
}

// BenchmarkPublish is what the watch tables cost a batch of 32 setData that nobody watches.
func BenchmarkPublish(b *testing.B) {
	tree := NewTree(nil)
	var changes []change
	for i := range 32 {
		changes = append(changes, change{kind: dataChanged, path: fmt.Sprintf("/d0/n%07d", i*7919), zxid: Zxid(i)})
	}
	v := tree.View()
	b.ReportAllocs()
	for b.Loop() {
		tree.publish(v, changes)
	}
}
