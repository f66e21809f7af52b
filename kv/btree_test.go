package kv

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"
)

func testRecord(key, value string) string { return string(append(appendString(nil, key), value...)) }

// checkShape verifies the invariants of the tree: order, separators, equal depth, sizes, no oversized node.
func checkShape(t *testing.T, tree btree) {
	t.Helper()
	count := 0
	var walk func(n *bnode, low, high string, depth int) int
	walk = func(n *bnode, low, high string, depth int) int {
		if n.width() == 0 || len(n.recs) > maxRecords || len(n.kids) > maxKids {
			t.Fatalf("node with %d records and %d kids", len(n.recs), len(n.kids))
		}
		if n.kids == nil {
			for i, rec := range n.recs {
				k := recKey(rec)
				if k < low || high != "" && k >= high || i > 0 && k <= recKey(n.recs[i-1]) {
					t.Fatalf("key %q at %d outside [%q, %q) or out of order", k, i, low, high)
				}
			}
			count += len(n.recs)
			return depth
		}
		if len(n.recs) != len(n.kids)-1 {
			t.Fatalf("%d separators for %d kids", len(n.recs), len(n.kids))
		}
		leaf := -1
		for i, kid := range n.kids {
			lo, hi := low, high
			if i > 0 {
				lo = n.recs[i-1]
			}
			if i < len(n.recs) {
				hi = n.recs[i]
			}
			d := walk(kid, lo, hi, depth+1)
			if leaf >= 0 && d != leaf {
				t.Fatalf("leaves at depths %d and %d", leaf, d)
			}
			leaf = d
		}
		return leaf
	}
	if tree.root != nil {
		walk(tree.root, "", "", 0)
	}
	if count != tree.size {
		t.Fatalf("%d records, size says %d", count, tree.size)
	}
}

// TestBtreeAgainstAMap edits a tree at random, growing it to thousands of records and shrinking it to nothing
// again, with a change of owner now and then, and compares it with a map. Versions kept from earlier must not
// change.
func TestBtreeAgainstAMap(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			g := rand.New(rand.NewPCG(seed, 2))
			var tree btree
			own := new(owner)
			want := map[string]string{}
			type kept struct {
				tree btree
				recs []string
			}
			var versions []kept
			all := func(tr btree) (out []string) {
				tr.ascend("", func(rec string) bool { out = append(out, rec); return true })
				return out
			}
			space := 12_000
			for i := range 40_000 {
				k := fmt.Sprintf("%s%06d", strings.Repeat("p", g.IntN(2)*150), g.IntN(space))
				if g.IntN(100) < 70 == (i < 20_000) {
					rec := testRecord(k, fmt.Sprint(i))
					old, had := tree.put(own, rec)
					if was, ok := want[k]; ok != had || old != was {
						t.Fatalf("put %q replaced %q %v, want %q %v", k, old, had, was, ok)
					}
					want[k] = rec
				} else {
					old, had := tree.delete(own, k)
					if was, ok := want[k]; ok != had || old != was {
						t.Fatalf("delete %q gave %q %v, want %q %v", k, old, had, was, ok)
					}
					delete(want, k)
				}
				if i%500 == 0 {
					own = new(owner)
				}
				if i%5000 == 0 {
					versions = append(versions, kept{tree, all(tree)})
					own = new(owner)
				}
			}
			checkShape(t, tree)
			keys := make([]string, 0, len(want))
			for k := range want {
				keys = append(keys, k)
			}
			sort.Strings(keys)
			for i, k := range keys {
				if rec, ok := tree.get(k); !ok || rec != want[k] {
					t.Fatalf("get %q: %q %v", k, rec, ok)
				}
				if i%97 == 0 {
					var got []string
					tree.ascend(k, func(rec string) bool { got = append(got, recKey(rec)); return len(got) < 100 })
					if !slices.Equal(got, keys[i:min(i+100, len(keys))]) {
						t.Fatalf("ascend from %q: %q", k, got)
					}
				}
			}
			for i, v := range versions {
				checkShape(t, v.tree)
				if !slices.Equal(all(v.tree), v.recs) {
					t.Fatalf("version %d changed", i)
				}
			}
			own = new(owner)
			for i, k := range keys {
				if _, ok := tree.delete(own, k); !ok {
					t.Fatalf("delete %q", k)
				}
				if i%1000 == 0 {
					checkShape(t, tree)
				}
			}
			if tree.root != nil || tree.size != 0 {
				t.Fatalf("emptied tree has size %d", tree.size)
			}
		})
	}
}

// TestAscendingInsertsFillLeaves: keys that only grow, as sequential nodes and snapshots bring them, also in front
// of a few greater ones, must not leave half-empty leaves behind.
func TestAscendingInsertsFillLeaves(t *testing.T) {
	var tree btree
	own := new(owner)
	for _, k := range []string{"zookeeper", "zookeeper/config", "zookeeper/quota"} {
		tree.put(own, testRecord(k, ""))
	}
	for i := range 10_000 {
		tree.put(own, testRecord(fmt.Sprintf("n%010d", i), ""))
	}
	checkShape(t, tree)
	leaves := 0
	var walk func(n *bnode)
	walk = func(n *bnode) {
		if n.kids == nil {
			leaves++
		}
		for _, k := range n.kids {
			walk(k)
		}
	}
	walk(tree.root)
	if least := 10_000 / maxRecords; leaves > least*12/10 {
		t.Errorf("%d leaves for 10,000 ascending records, %d would do", leaves, least)
	}
}

// TestDiffCostFollowsChange counts the nodes that Diff enters for one change among 100,000 records.
func TestDiffCostFollowsChange(t *testing.T) {
	h := newHistory(NewTree(nil))
	h.do(t, &Request{Op: OpCreate, Path: "/d", ACL: OpenACL()})
	fill(t, h, 100_000, func(i int) string { return fmt.Sprintf("/d/n%07d", i) })
	old := h.tree.View()
	h.do(t, &Request{Op: OpSetData, Path: "/d/n0050000", Data: []byte("x"), Version: -1})
	h.do(t, &Request{Op: OpDelete, Path: "/d/n0070000", Version: -1})
	h.do(t, &Request{Op: OpCreate, Path: "/d/n0030000x", ACL: OpenACL()})
	now := h.tree.View()
	var got []string
	yield := func(table uint8, key, value []byte) error {
		what := "set"
		if value == nil {
			what = "gone"
		}
		got = append(got, fmt.Sprintf("%d %s %q", table, what, key))
		return nil
	}
	if err := now.Diff(old, yield); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`1 set "/d\x00n0030000x"`, `1 set "/d\x00n0050000"`, `1 gone "/d\x00n0070000"`, `2 set "\x00d"`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	// A walk over all records touches 100,000; the shared parts must be skipped.
	looked, _ := diffTrees(old.nodes, now.nodes, TableNode, func(uint8, []byte, []byte) error { return nil })
	if looked > 20*maxRecords {
		t.Errorf("diff of three changes looked at %d items", looked)
	}
	got = nil
	if err := now.Diff(now, yield); err != nil || got != nil {
		t.Errorf("a view differs from itself: %q %v", got, err)
	}
	if err := old.Diff(now, yield); err != nil || len(got) != 4 || !strings.Contains(got[0], "gone") {
		t.Errorf("the other way round: %q %v", got, err)
	}
}
