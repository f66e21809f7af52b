package kv

import (
	"fmt"
	"runtime"
	"testing"
)

// TestMemoryPerNode holds the budget of 190 bytes of heap for a node of 100 bytes, everything included, after inserts
// in random order. (BenchmarkBytesPerNode does the same with a million nodes and prints what it finds.)
func TestMemoryPerNode(t *testing.T) {
	if raceEnabled || testing.Short() {
		t.Skip("100,000 nodes, and the race detector takes memory of its own")
	}
	const n = 100_000
	before := heapInUse()
	h := newHistory(NewTree(nil))
	h.do(t, &Request{Op: OpCreate, Path: "/d0", ACL: OpenACL()})
	fill(t, h, n, func(i int) string { return fmt.Sprintf("/d0/n%07d", uint64(i)*7_368_787%n) })
	h.prep.Reset()
	perNode := float64(heapInUse()-before) / n
	t.Logf("%.1f bytes a node", perNode)
	if perNode > 190 {
		t.Errorf("%.1f bytes a node, budget 190", perNode)
	}
	if got := h.tree.View().NodeCount(); got != n+5 {
		t.Errorf("%d nodes", got)
	}
	runtime.KeepAlive(h)
}

// TestCreateDoesNotRewriteItsParent: adding to a node with a megabyte of data and thousands of children allocates
// neither the data nor the list of children again.
func TestCreateDoesNotRewriteItsParent(t *testing.T) {
	h := newHistory(NewTree(nil))
	h.do(t, &Request{Op: OpCreate, Path: "/d0", Data: make([]byte, 1<<20), ACL: OpenACL()})
	fill(t, h, 20_000, func(i int) string { return fmt.Sprintf("/d0/n%07d", i) })
	var before, after testMem
	before.read()
	const n = 100
	for range n {
		h.do(t, &Request{Op: OpCreate, Path: "/d0/s-", Flags: FlagSequential, ACL: OpenACL()})
	}
	after.read()
	if perCreate := (after.total - before.total) / n; perCreate > 16<<10 {
		t.Errorf("%d bytes allocated for a create", perCreate)
	}
}
