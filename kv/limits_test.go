package kv

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// edited returns a tree whose view was changed by hand.
func edited(v *View, change func(*edit)) *Tree {
	var e edit
	e.begin(v)
	change(&e)
	return NewTree(e.freeze())
}

// TestSequenceWraps: the counter goes past the end of its range as Java's int does; names keep their form
// (zookeeper-protocol 5.2), what was made under it stays readable, and cversion wraps along.
func TestSequenceWraps(t *testing.T) {
	h := newHistory(NewTree(nil))
	h.do(t, &Request{Op: OpCreate, Path: "/s", ACL: OpenACL()})
	tree := edited(h.tree.View(), func(e *edit) {
		var n node
		e.node("/s", &n)
		n.parent = true
		e.putNode("/s", &n)
		e.putFamily("/s", family{pzxid: n.czxid, creates: math.MaxInt32 - 1})
	})
	last := h.last
	h = newHistory(tree)
	h.last = last
	var names []string
	for range 4 {
		sink := &collector{}
		en := h.prepare(&Request{Op: OpCreate2, Path: "/s/n-", Flags: FlagSequential, ACL: OpenACL()})
		if err := tree.Apply([]Entry{en}, sink); err != nil {
			t.Fatal(err)
		}
		names = append(names, sink.results[0].Path)
	}
	want := []string{"/s/n-2147483646", "/s/n-2147483647", "/s/n--2147483648", "/s/n--2147483647"}
	if strings.Join(names, " ") != strings.Join(want, " ") {
		t.Errorf("%q, want %q", names, want)
	}
	creates := int32(math.MinInt32 + 2)
	if st, err := tree.View().Exists("/s"); err != nil || st.NumChildren != 4 || st.Cversion != 2*creates-4 {
		t.Errorf("%+v %v", st, err)
	}
	if !recordsRoundTrip(t, h.tree.View(), tree.View()) {
		t.Error("records")
	}
}

// TestVersionsWrap goes through both doors: no version becomes -1, which would match every request.
func TestVersionsWrap(t *testing.T) {
	h := newHistory(NewTree(nil))
	h.do(t, &Request{Op: OpCreate, Path: "/v", ACL: OpenACL()})
	for _, c := range []struct{ at, want int32 }{{math.MaxInt32, math.MinInt32}, {-2, 0}} {
		tree := edited(h.tree.View(), func(e *edit) {
			var n node
			e.node("/v", &n)
			n.version, n.aversion = c.at, c.at
			e.putNode("/v", &n)
		})
		g := newHistory(tree)
		g.last = h.last
		g.do(t, &Request{Op: OpSetData, Path: "/v", Version: c.at})
		g.do(t, &Request{Op: OpSetACL, Path: "/v", Version: c.at, ACL: OpenACL()})
		if st, _ := tree.View().Exists("/v"); st.Version != c.want || st.Aversion != c.want {
			t.Errorf("after %d: %d %d, want %d", c.at, st.Version, st.Aversion, c.want)
		}
	}
}

// TestLargeMulti: 100,000 operations are decided and applied as one, or refused as a whole; more than a transaction can
// hold are refused before anything is logged. A member that replays the log agrees.
func TestLargeMulti(t *testing.T) {
	const n = 100_000
	h := newHistory(NewTree(nil))
	h.do(t, &Request{Op: OpCreate, Path: "/m", ACL: OpenACL()})
	base := h.tree.View()
	ops := make([]Request, n)
	for i := range ops {
		switch i % 4 {
		case 0:
			ops[i] = Request{Op: OpCreate, Path: fmt.Sprintf("/m/n%d", i), ACL: OpenACL()}
		case 1:
			ops[i] = Request{Op: OpSetData, Path: fmt.Sprintf("/m/n%d", i-1), Version: 0, Data: []byte("x")}
		case 2:
			ops[i] = Request{Op: OpCheck, Path: fmt.Sprintf("/m/n%d", i-2), Version: 1}
		case 3:
			ops[i] = Request{Op: OpDelete, Path: fmt.Sprintf("/m/n%d", i-3), Version: 1}
			if i%8 == 3 {
				ops[i] = Request{Op: OpCreateContainer, Path: fmt.Sprintf("/m/c-%d-", i), Flags: FlagSequential, ACL: OpenACL()}
			}
		}
	}
	refused := append(ops[:n-1:n-1], Request{Op: OpCheck, Path: "/none", Version: -1})
	entries := []Entry{h.prepare(&Request{Op: OpMulti, Ops: refused}), h.prepare(&Request{Op: OpMulti, Ops: ops})}
	sink := &collector{}
	if err := h.tree.Apply(entries, sink); err != nil {
		t.Fatal(err)
	}
	for i, want := range []Code{CodeNoNode, CodeOK} {
		r := sink.results[i]
		if r.Code != CodeOK || len(r.Ops) != n || r.Ops[n-1].Code != want || r.Ops[0].Code != CodeOK {
			t.Fatalf("multi %d: %v, %d outcomes, %v", i, r.Code, len(r.Ops), r.Ops[len(r.Ops)-1])
		}
	}
	st, _ := h.tree.View().Exists("/m")
	if st.NumChildren != n/4 || h.tree.View().ContainerCount() != n/8 {
		t.Errorf("%d children, %d containers", st.NumChildren, h.tree.View().ContainerCount())
	}
	replayed := NewTree(base)
	for _, e := range entries {
		if err := replayed.Apply([]Entry{e}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if replayed.View().Digest() != h.tree.View().Digest() {
		t.Error("a replay differs")
	}
	tooMany := make([]Request, maxTxnOps+1)
	for i := range tooMany {
		tooMany[i] = Request{Op: OpCheck, Path: "/m", Version: -1}
	}
	en := h.prepare(&Request{Op: OpMulti, Ops: tooMany})
	if head, err := DecodeTxnHeader(en.Payload); err != nil || head.Err != CodeMarshallingError || len(en.Payload) > 64 {
		t.Errorf("%v %v, %d bytes", head, err, len(en.Payload))
	}
}

// TestLargeSession closes a session with 100,000 ephemeral nodes of 200-byte names, below a quota: what it takes grows
// with their number and no faster, and its transaction is small.
func TestLargeSession(t *testing.T) {
	if raceEnabled || testing.Short() {
		t.Skip("100,000 nodes")
	}
	name := strings.Repeat("x", 190)
	perNode := func(n int) float64 {
		h := newHistory(NewTree(nil))
		h.do(t, &Request{Op: OpCreateSession, Session: 9})
		for _, p := range []string{"/e", "/zookeeper/quota/e", "/zookeeper/quota/e/zookeeper_limits", "/zookeeper/quota/e/zookeeper_stats"} {
			h.do(t, &Request{Op: OpCreate, Path: p, ACL: OpenACL()})
		}
		inFlight := []Entry{}
		for i := range n {
			inFlight = append(inFlight, h.prepare(&Request{Op: OpCreate, Session: 9, Flags: FlagEphemeral, ACL: OpenACL(),
				Path: fmt.Sprintf("/e/%s%09d", name, i)}))
			if i == n/2 { // the other half is in flight when the session is closed
				if err := h.tree.Apply(inFlight, nil); err != nil {
					t.Fatal(err)
				}
				inFlight = inFlight[:0]
			}
		}
		var before, after testMem
		before.read()
		en := h.prepare(&Request{Op: OpCloseSession, Session: 9})
		if err := h.tree.Apply(append(inFlight, en), nil); err != nil {
			t.Fatal(err)
		}
		after.read()
		v := h.tree.View()
		st, _ := v.Exists("/e")
		if data, _, _ := v.Get("/zookeeper/quota/e/zookeeper_stats"); st.NumChildren != 0 || v.EphemeralCount() != 0 ||
			string(data) != "count=1,bytes=0" || len(en.Payload) > 64 {
			t.Errorf("%d children, %d ephemerals, usage %s, %d bytes", st.NumChildren, v.EphemeralCount(), data, len(en.Payload))
		}
		return float64(after.total-before.total) / float64(n)
	}
	small, large := perNode(5_000), perNode(100_000)
	t.Logf("%.0f and %.0f bytes allocated for each node", small, large)
	if large > 2*small {
		t.Errorf("%.0f bytes a node among 5,000, %.0f among 100,000", small, large)
	}
}

// BenchmarkDescendants counts a million nodes below a node.
func BenchmarkDescendants(b *testing.B) {
	h := newHistory(NewTree(nil))
	h.do(b, &Request{Op: OpCreate, Path: "/d0", ACL: OpenACL()})
	fill(b, h, 1_000_000, func(i int) string { return fmt.Sprintf("/d0/n%07d", uint64(i)*7_368_787%1_000_000) })
	r := h.tree.View().As("")
	b.ReportAllocs()
	for b.Loop() {
		if n, err := r.Descendants("/d0"); err != nil || n != 1_000_000 {
			b.Fatal(n, err)
		}
	}
}

// BenchmarkUsage counts the same million nodes and their data, as the making of a quota's stats node does.
func BenchmarkUsage(b *testing.B) {
	h := newHistory(NewTree(nil))
	h.do(b, &Request{Op: OpCreate, Path: "/d0", ACL: OpenACL()})
	fill(b, h, 1_000_000, func(i int) string { return fmt.Sprintf("/d0/n%07d", uint64(i)*7_368_787%1_000_000) })
	v := h.tree.View()
	for b.Loop() {
		if n, _ := v.usage("/d0"); n != 1_000_001 {
			b.Fatal(n)
		}
	}
}

// BenchmarkReapable looks through 100,000 containers.
func BenchmarkReapable(b *testing.B) {
	h := newHistory(NewTree(nil))
	for i := range 100_000 {
		h.do(b, &Request{Op: OpCreateContainer, Path: fmt.Sprintf("/c%06d", i), ACL: OpenACL()})
	}
	v := h.tree.View()
	b.ReportAllocs()
	for b.Loop() {
		v.Reapable(0, 0, func(string) bool { b.Fatal("a container that never had a child"); return false })
	}
}
