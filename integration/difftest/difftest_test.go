package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"testing"
)

// needZooKeeper skips without ZooKeeper, or fails if KVD_NEED is set.
func needZooKeeper(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes")
	}
	if os.Getenv("KVD_INTEGRATION") == "later" {
		t.Skip("KVD_INTEGRATION=later: another run does this")
	}
	_, err := exec.LookPath("java")
	if err == nil {
		_, err = os.Stat(zookeeperJars[0])
	}
	if err != nil {
		if os.Getenv("KVD_NEED") != "" {
			t.Fatalf("KVD_NEED is set and ZooKeeper is missing: %v", err)
		}
		t.Skipf("ZooKeeper is missing: %v", err)
	}
}

// Twenty seeds in both shapes show no difference, and every rule has a case among them.
func TestDifferential(t *testing.T) {
	needZooKeeper(t)
	hits := map[string]int{}
	o := options{first: 1, last: 20, steps: 500, shapes: []int{1, 3}, print: t.Logf, hits: hits}
	if err := compare(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		// Whether a follower of ZooKeeper holds an answer back is a matter of time.
		if hits[r.name] == 0 && r.name != "sync-on-follower" {
			t.Errorf("rule %s decided nothing", r.name)
		}
	}
	for name := range hits {
		ruleNamed(name)
	}
}

// One error code, one event or one Stat field spoiled on the way makes the tester fail, with a difference at kvd.
func TestSpoiled(t *testing.T) {
	needZooKeeper(t)
	for _, kind := range slices.Sorted(maps.Keys(spoilKinds)) {
		for _, skip := range []int{0, 7} {
			t.Run(kind, func(t *testing.T) {
				p, err := newSpoiler(kind, skip)
				if err != nil {
					t.Fatal(err)
				}
				o := options{first: 1, last: 3, steps: 300, shapes: []int{1}, noShrink: true, print: t.Logf, front: p.front}
				if err := p.verdict(compare(t.Context(), o)); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// docs/divergence.md is what the rules say.
func TestDivergenceDocument(t *testing.T) {
	doc, err := os.ReadFile("../../docs/divergence.md")
	if err != nil {
		t.Fatal(err)
	}
	want, err := withBlock(doc)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(doc, want) {
		t.Error("docs/divergence.md is stale: go run ./integration/difftest --write-divergence")
	}
	for _, r := range rules {
		if r.source == "" || r.zookeeper == "" || r.kvd == "" || r.ask == nil && r.apply == nil && !r.model {
			t.Errorf("rule %s says too little", r.name)
		}
	}
}

// A sequence survives being written down, bytes that are no UTF-8 included.
func TestStepsRoundTrip(t *testing.T) {
	steps := []Step{
		{Kind: "connect", Slot: 2, Connect: &Connect{Timeout: -5, Password: "zero", ReadOnly: -1, LastSeen: ZxidRef{Kind: "ahead", N: 7}}},
		{Kind: "requests", Requests: []Request{
			{Op: opCreate, Xid: 7, Path: ptr("/a\xff\xfe\x00\"\\ü"), Data: []byte{}, ACL: []ACL{{31, nil, ptr("x")}}},
			{Op: opGetData, Xid: 8, Data: nil},
			{Op: opSetWatches, Since: &ZxidRef{Kind: "last", N: 3}, Lists: [][]text{{"/x"}, nil, {"\xff"}}},
		}},
	}
	b, err := json.Marshal(steps)
	if err != nil {
		t.Fatal(err)
	}
	var got []Step
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, steps) {
		t.Errorf("got %+v\nwant %+v\n%s", got, steps, b)
	}
	for i, r := range steps[1].Requests {
		if !bytes.Equal(r.encode(5), got[1].Requests[i].encode(5)) {
			t.Errorf("request %d has other bytes", i)
		}
	}
}

// The order and the equality of zxids must be the same on both sides.
func TestZxidPairs(t *testing.T) {
	z := newZxids()
	for _, c := range []struct {
		a, b int64
		ok   bool
	}{
		{10, 100, true}, {12, 120, true}, {10, 100, true}, {10, 101, false}, {11, 120, false}, {11, 99, false}, {11, 110, true},
		{13, 120, false}, {13, 115, false}, {0, 0, true}, {-1, -1, true}, {0, 5, false}, {-1, 120, false}, {13, 130, true},
	} {
		if err := z.pair(c.a, c.b); (err == nil) != c.ok {
			t.Errorf("%d and %d: %v", c.a, c.b, err)
		}
	}
	z.ghost(14)
	if err := z.pair(14, 130); err != nil {
		t.Error(err)
	}
	if err := z.pair(14, 131); err == nil {
		t.Error("a zxid of ZooKeeper's alone has a counterpart")
	}
	if a, b := z.resolve(&ZxidRef{Kind: "last", N: 1}); a != 11 || b != 110 {
		t.Errorf("the last but one is %d, %d", a, b)
	}
}
