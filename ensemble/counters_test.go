package ensemble

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// A summary's quantiles are at most a quarter above the true ones and never below; the rest is exact.
func TestSummary(t *testing.T) {
	for v := range int64(1 << 12) {
		i := bucketOf(v)
		if v > bucketTop(i) || i > 0 && v <= bucketTop(i-1) {
			t.Fatalf("%d is in bucket %d, which ends at %d", v, i, bucketTop(i))
		}
	}
	if i := bucketOf(1 << 62); i != summaryBuckets-1 {
		t.Fatalf("bucket %d of %d", i, summaryBuckets)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	s := new(summary)
	var all []int64
	var sum int64
	for range 10_000 {
		v := rng.Int64N(1 << (1 + rng.IntN(24)))
		n := 1 + rng.Int64N(3)
		s.add(v, n)
		for range n {
			all = append(all, v)
			sum += v
		}
	}
	slices.Sort(all)
	got := s.read()
	if got.n != int64(len(all)) || got.sum != sum || got.min != all[0] || got.max != all[len(all)-1] {
		t.Fatalf("%+v, want %d values, sum %d, %d..%d", got, len(all), sum, all[0], all[len(all)-1])
	}
	for _, q := range []struct {
		permille int
		got      int64
	}{{500, got.p50}, {950, got.p95}, {990, got.p99}, {999, got.p999}} {
		want := all[(len(all)*q.permille+999)/1000-1]
		if q.got < want || q.got > want+want/4+1 {
			t.Errorf("quantile %d: %d, want %d or a quarter more", q.permille, q.got, want)
		}
	}
	if v := new(summary).read(); v != (summaryValues{}) {
		t.Errorf("an empty summary reads %+v", v)
	}
	if n := testing.AllocsPerRun(100, func() { s.add(5, 1) }); n != 0 {
		t.Errorf("adding allocates %v", n)
	}
}

func TestSizeGauge(t *testing.T) {
	var g sizeGauge
	read := func() [3]int64 { a, b, c := g.read(); return [3]int64{a, b, c} }
	if got := read(); got != [3]int64{-1, -1, -1} {
		t.Errorf("fresh: %v", got)
	}
	for _, n := range []int64{7, 0, 9, 8} {
		g.note(n)
	}
	if got := read(); got != [3]int64{8, 0, 9} {
		t.Errorf("got %v", got)
	}
	g.reset()
	if got := read(); got != [3]int64{-1, -1, -1} {
		t.Errorf("reset: %v", got)
	}
}
