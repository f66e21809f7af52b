package kv

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// history builds contiguous entries through the two doors, as a leader does.
type history struct {
	tree *Tree
	prep *Preparer
	last Entry
}

func newHistory(tree *Tree) *history {
	v := tree.View()
	return &history{tree, NewPreparer(tree.View, PreparerOptions{ExtendedTypes: true, EnforceQuota: true}), Entry{Zxid: v.Zxid(), Chain: v.Chain()}}
}

func (h *history) prepare(r *Request) Entry {
	z := h.last.Zxid + 1
	if h.last.Zxid == 0 {
		z = MakeZxid(1, 1)
	}
	p := h.prep.Prepare(nil, z, TxnHeader{Origin: 1, Request: uint64(z), Time: 1_700_000_000_000 + int64(z.Counter())}, r)
	h.last = Entry{z, ChainDigest(h.last.Chain, z, p), p}
	return h.last
}

func (h *history) do(tb testing.TB, r *Request) {
	tb.Helper()
	if err := h.tree.Apply([]Entry{h.prepare(r)}, nil); err != nil {
		tb.Fatal(err)
	}
}

func heapInUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// fill creates n nodes with 100 bytes of data in batches of 64.
func fill(tb testing.TB, h *history, n int, path func(i int) string) {
	open := OpenACL()
	data := []byte(strings.Repeat("v", 100))
	var batch []Entry
	for i := range n {
		batch = append(batch, h.prepare(&Request{Op: OpCreate, Path: path(i), Data: data, ACL: open}))
		if len(batch) == 64 || i == n-1 {
			if err := h.tree.Apply(batch, nil); err != nil {
				tb.Fatal(err)
			}
			clear(batch)
			batch = batch[:0]
		}
	}
}

func vmRSS() string {
	b, _ := os.ReadFile("/proc/self/status")
	for _, l := range strings.Split(string(b), "\n") {
		if strings.HasPrefix(l, "VmRSS") {
			return strings.Join(strings.Fields(l)[1:], " ")
		}
	}
	return "unknown"
}

// BenchmarkBytesPerNode reports the heap that a node of 100 bytes takes, everything included. Run it with
// -benchtime 1x; a million nodes each.
func BenchmarkBytesPerNode(b *testing.B) {
	const n = 1_000_000
	shuffled := func(i int) int { return int(uint64(i) * 7_368_787 % n) } // a permutation: the factor is prime to n
	for _, shape := range []struct {
		name string
		dirs int
		path func(i int) string
	}{
		{"flat-ascending", 1, func(i int) string { return "/d0/n" + fmt.Sprintf("%07d", i) }},
		{"flat-random", 1, func(i int) string { return "/d0/n" + fmt.Sprintf("%07d", shuffled(i)) }},
		{"1000-dirs-random", 1000, func(i int) string {
			j := shuffled(i)
			return "/d" + strconv.Itoa(j/1000) + "/n" + fmt.Sprintf("%07d", j)
		}},
	} {
		b.Run(shape.name, func(b *testing.B) {
			for b.Loop() {
				before := heapInUse()
				h := newHistory(NewTree(nil))
				for d := range shape.dirs {
					h.do(b, &Request{Op: OpCreate, Path: "/d" + strconv.Itoa(d), ACL: OpenACL()})
				}
				fill(b, h, n, shape.path)
				h.prep.Reset()
				v := h.tree.View()
				b.ReportMetric(float64(heapInUse()-before)/n, "B/node")
				b.Logf("RSS %s, heap %d MiB", vmRSS(), heapInUse()>>20)
				bl := NewBuilder()
				before = heapInUse()
				if err := v.Records(bl.Add); err != nil {
					b.Fatal(err)
				}
				w, err := bl.Finish(v.Zxid(), v.Chain(), v.Digest())
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(heapInUse()-before)/n, "B/node-loaded")
				runtime.KeepAlive(w)
				runtime.KeepAlive(h)
			}
		})
	}
}

func benchSet(b *testing.B, nodes, batch int) {
	h := newHistory(NewTree(nil))
	h.do(b, &Request{Op: OpCreate, Path: "/d0", ACL: OpenACL()})
	paths := make([]string, nodes)
	for i := range paths {
		paths[i] = "/d0/n" + fmt.Sprintf("%07d", i)
	}
	fill(b, h, nodes, func(i int) string { return paths[i] })
	data := []byte(strings.Repeat("w", 128))
	r := Request{Op: OpSetData, Data: data, Version: -1}
	var entries []Entry
	i := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		r.Path = paths[i*7_368_787%uint64(nodes)]
		i++
		entries = append(entries, h.prepare(&r))
		if len(entries) == batch {
			if err := h.tree.Apply(entries, nil); err != nil {
				b.Fatal(err)
			}
			entries = entries[:0]
		}
	}
}

// BenchmarkSetData is Prepare, ChainDigest and Apply of a 128-byte setData.
func BenchmarkSetData(b *testing.B) {
	for _, nodes := range []int{100, 100_000} {
		for _, batch := range []int{1, 32} {
			b.Run(fmt.Sprintf("nodes=%d/batch=%d", nodes, batch), func(b *testing.B) { benchSet(b, nodes, batch) })
		}
	}
}

func BenchmarkGet(b *testing.B) {
	for _, nodes := range []int{100, 100_000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			h := newHistory(NewTree(nil))
			h.do(b, &Request{Op: OpCreate, Path: "/d0", ACL: OpenACL()})
			paths := make([]string, nodes)
			for i := range paths {
				paths[i] = "/d0/n" + fmt.Sprintf("%07d", i)
			}
			fill(b, h, nodes, func(i int) string { return paths[i] })
			i := uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := h.tree.View().Get(paths[i*7_368_787%uint64(nodes)]); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
}

// BenchmarkWideNode adds to, and lists, a node with 100,000 children.
func BenchmarkWideNode(b *testing.B) {
	h := newHistory(NewTree(nil))
	h.do(b, &Request{Op: OpCreate, Path: "/d0", Data: make([]byte, 1<<20), ACL: OpenACL()})
	fill(b, h, 100_000, func(i int) string { return "/d0/n" + fmt.Sprintf("%07d", i) })
	b.Run("add", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			h.do(b, &Request{Op: OpCreate, Path: "/d0/n-", Flags: FlagSequential, ACL: OpenACL()})
		}
	})
	b.Run("list", func(b *testing.B) {
		b.ReportAllocs()
		var names []string
		for b.Loop() {
			names, _, _ = h.tree.View().Children("/d0", names[:0])
		}
		b.ReportMetric(float64(len(names)), "children")
	})
}

// BenchmarkLoad makes a view of a million records, as a start from a snapshot does, and changes nothing else.
func BenchmarkLoad(b *testing.B) {
	const n = 1_000_000
	h := newHistory(NewTree(nil))
	h.do(b, &Request{Op: OpCreate, Path: "/d0", ACL: OpenACL()})
	fill(b, h, n, func(i int) string { return "/d0/n" + fmt.Sprintf("%07d", i) })
	v := h.tree.View()
	for b.Loop() {
		bl := NewBuilder()
		if err := v.Records(bl.Add); err != nil {
			b.Fatal(err)
		}
		if _, err := bl.Finish(v.Zxid(), v.Chain(), v.Digest()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/record")
}
