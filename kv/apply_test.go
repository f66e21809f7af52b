package kv

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// testMem reads the allocator's total.
type testMem struct{ total uint64 }

func (m *testMem) read() {
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	m.total = s.TotalAlloc
}

// TestApplyRefusesBrokenHistories: a gap, a repetition, a wrong digest and a transaction that does not fit the tree
// all stop the applier, and nothing of the batch is visible.
func TestApplyRefusesBrokenHistories(t *testing.T) {
	h := newHistory(NewTree(nil))
	h.do(t, &Request{Op: OpCreateSession, Session: 9})
	h.do(t, &Request{Op: OpCreate, Path: "/a", ACL: OpenACL()})
	h.do(t, &Request{Op: OpCreate, Path: "/a/b", ACL: OpenACL()})
	base := h.tree.View()
	next := base.Zxid() + 1
	payload := func(o TxnOp) []byte {
		return AppendTxn(nil, &Txn{Header: TxnHeader{Kind: o.Op, Session: 9}, Ops: []TxnOp{o}})
	}
	good := payload(TxnOp{Op: OpSetData, Path: "/a", Version: 1})
	entry := func(z Zxid, p []byte) Entry { return Entry{z, ChainDigest(base.Chain(), z, p), p} }
	wrongChain := entry(next, good)
	wrongChain.Chain++
	changed := entry(next, good)
	changed.Payload = slices.Clone(good)
	changed.Payload[len(good)-1] ^= 2
	for name, e := range map[string]Entry{
		"gap":                      entry(next+1, good),
		"repetition":               entry(base.Zxid(), good),
		"epoch without its first":  entry(MakeZxid(2, 2), good),
		"older epoch":              entry(MakeZxid(0, 9), good),
		"wrong digest":             wrongChain,
		"changed payload":          changed,
		"empty payload":            entry(next, nil),
		"newer format":             entry(next, append([]byte{TxnFormat + 1}, good[1:]...)),
		"trailing bytes":           entry(next, append(slices.Clone(good), 0)),
		"truncated":                entry(next, good[:len(good)-1]),
		"set of a missing node":    entry(next, payload(TxnOp{Op: OpSetData, Path: "/no"})),
		"create of an existing":    entry(next, payload(TxnOp{Op: OpCreate, Path: "/a"})),
		"create without a parent":  entry(next, payload(TxnOp{Op: OpCreate, Path: "/no/x"})),
		"create of a bad path":     entry(next, payload(TxnOp{Op: OpCreate, Path: "/a/"})),
		"delete of a missing node": entry(next, payload(TxnOp{Op: OpDelete, Path: "/no"})),
		"delete with children":     entry(next, payload(TxnOp{Op: OpDelete, Path: "/a"})),
		"delete of the root":       entry(next, payload(TxnOp{Op: OpDelete, Path: "/"})),
		"setACL of a missing node": entry(next, payload(TxnOp{Op: OpSetACL, Path: "/no"})),
		"session twice":            entry(next, payload(TxnOp{Op: OpCreateSession})),
		"owner without a session":  entry(next, payload(TxnOp{Op: OpCreate, Path: "/e", Owner: 8})),
		"container that exists":    entry(next, payload(TxnOp{Op: OpCreateContainer, Path: "/a"})),
		"container not there":      entry(next, payload(TxnOp{Op: OpDeleteContainer, Path: "/no"})),
		"container with children":  entry(next, payload(TxnOp{Op: OpDeleteContainer, Path: "/a"})),
		"closed twice": entry(next, AppendTxn(nil, &Txn{
			Header: TxnHeader{Kind: OpCloseSession, Session: 8}, Ops: []TxnOp{{Op: OpCloseSession}}})),
	} {
		tree := NewTree(base)
		sink := &collector{}
		err := tree.Apply([]Entry{e}, sink)
		if !errors.Is(err, ErrBrokenPromise) {
			t.Errorf("%s: %v", name, err)
		}
		if tree.View() != base || len(sink.results) != 0 {
			t.Errorf("%s: visible", name)
		}
		if err := tree.Apply([]Entry{entry(next, good), entry(next+1, nil)}, nil); !errors.Is(err, ErrBrokenPromise) {
			t.Errorf("%s: a bad second entry: %v", name, err)
		}
		if tree.View() != base {
			t.Errorf("%s: half a batch is visible", name)
		}
		if err := tree.Apply([]Entry{entry(next, good)}, nil); err != nil {
			t.Errorf("%s: the right entry afterwards: %v", name, err)
		}
	}
}

// TestEpochsMayBeSkipped: the first entry of any later epoch follows.
func TestEpochsMayBeSkipped(t *testing.T) {
	tree := NewTree(nil)
	p := NewPreparer(tree.View, PreparerOptions{})
	chain := ChainSeed()
	for _, z := range []Zxid{MakeZxid(3, 1), MakeZxid(3, 2), MakeZxid(7, 1)} {
		b := p.Prepare(nil, z, TxnHeader{}, &Request{Op: OpCreate, Path: fmt.Sprintf("/n%d", z), ACL: OpenACL()})
		chain = ChainDigest(chain, z, b)
		if err := tree.Apply([]Entry{{z, chain, b}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if v := tree.View(); v.Zxid() != MakeZxid(7, 1) || v.Chain() != chain {
		t.Errorf("view at %v, chain %x", v.Zxid(), v.Chain())
	}
}

// TestCapturedViews: a view asked for in the middle of a batch shows exactly that transaction.
func TestCapturedViews(t *testing.T) {
	h := newHistory(NewTree(nil))
	h.do(t, &Request{Op: OpCreate, Path: "/a", ACL: OpenACL()})
	var batch []Entry
	for i := range 20 {
		batch = append(batch, h.prepare(&Request{Op: OpSetData, Path: "/a", Data: fmt.Append(nil, i), Version: -1}))
	}
	sink := &collector{views: map[Zxid]*View{}, wantView: func(z Zxid) bool { return z%3 == 0 }}
	if err := h.tree.Apply(batch, sink); err != nil {
		t.Fatal(err)
	}
	if len(sink.views) < 6 {
		t.Fatalf("%d views", len(sink.views))
	}
	for z, v := range sink.views {
		data, st, _ := v.Get("/a")
		if want := fmt.Sprint(uint64(z - batch[0].Zxid)); v.Zxid() != z || st.Mzxid != z || string(data) != want {
			t.Errorf("view at %v shows %q of %v, want %q of %v", v.Zxid(), data, st.Mzxid, want, z)
		}
	}
}

// TestVersionWrap: a version never becomes -1, and the counters wrap like Java's.
func TestVersionWrap(t *testing.T) {
	for v, want := range map[int32]int32{0: 1, -2: 0, -1: 0, math.MaxInt32: math.MinInt32} {
		if got := nextVersion(v); v != -1 && got != want {
			t.Errorf("after %d comes %d, want %d", v, got, want)
		}
	}
	if got := visibleCversion(5, 3); got != 7 {
		t.Errorf("cversion %d, want 7", got)
	}
}

// TestNodesShareLists: lists are stored once, counted, and vanish with their last node.
func TestNodesShareLists(t *testing.T) {
	h := newHistory(NewTree(nil))
	acl := []ACL{{PermRead, "digest", "u:h"}, {PermAll, "ip", "::1"}}
	for _, p := range []string{"/a", "/b"} {
		h.do(t, &Request{Op: OpCreate, Path: p, ACL: acl})
	}
	h.do(t, &Request{Op: OpCreate, Path: "/c", ACL: []ACL{{PermRead, "world", "anyone"}}})
	lists := func() int { return h.tree.View().acls.size }
	if got, _, err := h.tree.View().ACL("/b"); err != nil || !reflect.DeepEqual(got, acl) || lists() != 1 {
		t.Fatalf("%v %v, %d lists", got, err, lists())
	}
	h.do(t, &Request{Op: OpDelete, Path: "/a", Version: -1})
	h.do(t, &Request{Op: OpSetACL, Path: "/b", ACL: acl, Version: -1})
	if lists() != 1 {
		t.Errorf("%d lists, one node has one", lists())
	}
	h.do(t, &Request{Op: OpSetACL, Path: "/b", ACL: OpenACL(), Version: -1})
	if v := h.tree.View(); v.acls.size+v.aclNumbers.size+v.aclUses.size != 0 {
		t.Errorf("%d %d %d entries left", v.acls.size, v.aclNumbers.size, v.aclUses.size)
	}
}

// TestCodesAndSentinels: the table is unique both ways and covers what Err and CodeOf say.
func TestCodesAndSentinels(t *testing.T) {
	codes, errs, names := map[Code]bool{}, map[error]bool{}, map[string]bool{}
	for _, c := range codeTable {
		if codes[c.code] || errs[c.err] || names[c.name] {
			t.Errorf("%v appears twice", c)
		}
		codes[c.code], errs[c.err], names[c.name] = true, true, true
		wrapped := fmt.Errorf("set %q: %w", "/a", c.code.Err())
		if c.code.Err() != c.err || CodeOf(wrapped) != c.code || c.code.String() != c.name {
			t.Errorf("%v: Err %v, CodeOf %v, String %v", c, c.code.Err(), CodeOf(wrapped), c.code)
		}
	}
	if CodeOK.Err() != nil || CodeOf(nil) != CodeOK || CodeOf(errors.New("x")) != CodeSystemError || Code(-999).Err() == nil {
		t.Error("the codes outside the table")
	}
}

// TestPreparerInsists: a zxid that does not grow, and an undo of nothing, are mistakes of the caller.
func TestPreparerInsists(t *testing.T) {
	mustPanic := func(what string, f func()) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("%s: no panic", what)
			}
		}()
		f()
	}
	h := newHistory(NewTree(nil))
	h.do(t, &Request{Op: OpCreateSession, Session: 9, Timeout: 5})
	p := h.prep
	r := &Request{Op: OpDelete, Path: "/x"}
	mustPanic("applied zxid", func() { NewPreparer(h.tree.View, PreparerOptions{}).Prepare(nil, h.last.Zxid, TxnHeader{}, r) })
	mustPanic("same zxid", func() { p.Prepare(nil, h.last.Zxid, TxnHeader{}, r) })
	mustPanic("undo of nothing", func() { NewPreparer(h.tree.View, PreparerOptions{}).Undo() })
	p.Prepare(nil, h.last.Zxid+1, TxnHeader{}, r)
	p.Undo()
	mustPanic("undo twice", p.Undo)
	mustPanic("error without a code", func() { p.PrepareError(nil, h.last.Zxid+1, TxnHeader{}, CodeOK) })

	b := p.PrepareError([]byte("x"), h.last.Zxid+1, TxnHeader{Kind: OpMulti, Session: 9}, CodeMarshallingError)
	if txn, err := DecodeTxn(b[1:]); err != nil || txn.Header.Err != CodeMarshallingError || txn.Total != 0 {
		t.Errorf("%+v %v", txn, err)
	}
	if s, ok := p.Session(9); !ok || s.Timeout != 5 {
		t.Errorf("session %+v %v", s, ok)
	}
	p.Prepare(nil, h.last.Zxid+2, TxnHeader{}, &Request{Op: OpCloseSession, Session: 9})
	p.Prepare(nil, h.last.Zxid+3, TxnHeader{}, &Request{Op: OpCreateSession, Session: 8, Timeout: 7})
	if _, ok := p.Session(9); ok {
		t.Error("a session that is being closed is open")
	}
	if s, ok := p.Session(8); !ok || s.Timeout != 7 {
		t.Errorf("a session being made: %+v %v", s, ok)
	}
}

// TestOverlayStaysSmall: what a long-lived session has made is forgotten once it is applied, even if the session
// never stops making more.
func TestOverlayStaysSmall(t *testing.T) {
	h := newHistory(NewTree(nil))
	h.do(t, &Request{Op: OpCreateSession, Session: 9})
	inflight := []Entry{}
	for i := range 500 {
		path := fmt.Sprintf("/e%d", i)
		inflight = append(inflight,
			h.prepare(&Request{Op: OpCreate, Session: 9, Path: path, Flags: FlagEphemeral, ACL: OpenACL()}),
			h.prepare(&Request{Op: OpDelete, Session: 9, Path: path, Version: -1}))
		if len(inflight) > 10 { // always something in flight
			if err := h.tree.Apply(inflight[:6], nil); err != nil {
				t.Fatal(err)
			}
			inflight = inflight[6:]
		}
		if p := h.prep; len(p.nodes) > 20 || len(p.sessions[9].created) > 10 || p.InFlight() > 60 {
			t.Fatalf("after %d: %d nodes, %d created, %d marks", i, len(p.nodes), len(p.sessions[9].created), p.InFlight())
		}
	}
	if c := cap(h.prep.marks); c > 8192 {
		t.Errorf("%d marks of memory", c)
	}
}

// TestAllocationBudget: what the hot path allocates per transaction, in batches of 32.
func TestAllocationBudget(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	h := newHistory(NewTree(nil))
	paths := make([]string, 32)
	for i := range paths {
		paths[i] = fmt.Sprintf("/n%02d", i)
		h.do(t, &Request{Op: OpCreate, Path: paths[i], ACL: OpenACL()})
	}
	r := Request{Op: OpSetData, Data: make([]byte, 128), Version: -1}
	var batch []Entry
	sink := sinkFunc(func(Zxid) {})
	perBatch := testing.AllocsPerRun(50, func() {
		batch = batch[:0]
		for i := range paths {
			r.Path = paths[i]
			batch = append(batch, h.prepare(&r))
		}
		if err := h.tree.Apply(batch, sink); err != nil {
			t.Fatal(err)
		}
	})
	// Each: payload and record. Once a batch: the view, its owner, two nodes of the tree and their slices.
	if budget := float64(2*len(paths) + 10); perBatch > budget {
		t.Errorf("%v allocations for 32 setData, budget %v", perBatch, budget)
	}
	v := h.tree.View()
	names := make([]string, 0, 64)
	if n := testing.AllocsPerRun(100, func() {
		if _, _, err := v.Get("/n07"); err != nil {
			t.Fatal(err)
		}
		if _, err := v.Exists("/missing"); err == nil {
			t.Fatal("found")
		}
		names, _, _ = v.Children("/", names[:0])
	}); n > 0 {
		t.Errorf("%v allocations for three reads, want none", n)
	}
	payload := batch[0].Payload
	if n := testing.AllocsPerRun(100, func() { _, _ = DecodeTxnHeader(payload) }); n > 0 {
		t.Errorf("%v allocations to decode a header, want none", n)
	}
}

// sampleView has a record of every kind.
func sampleView(tb testing.TB) *View {
	h := newHistory(NewTree(nil))
	for _, r := range []Request{
		{Op: OpCreateSession, Session: 0x100000000000001, Timeout: 6000, Password: [16]byte{0xaa, 15: 0xbb}},
		{Op: OpCreate, Path: "/app", Data: []byte("x"), ACL: OpenACL()},
		{Op: OpCreate, Path: "/app/null", ACL: []ACL{{PermRead, "digest", "u:h"}}},
		{Op: OpCreate, Path: "/app/e-", Session: 0x100000000000001, Flags: FlagEphemeralSequential, Data: []byte("mine"), ACL: OpenACL()},
		{Op: OpCreate, Path: "/app/gone", ACL: OpenACL()},
		{Op: OpDelete, Path: "/app/gone", Version: -1},
		{Op: OpSetData, Path: "/app", Data: []byte("hello"), Version: 0},
		{Op: OpSetACL, Path: "/app", ACL: []ACL{{PermRead, "world", "anyone"}}, Version: -1},
		{Op: OpSetLevels, Levels: Levels{1, 1}},
		{Op: OpSetConfig, Data: []byte("version=0"), Version: -1},
		{Op: OpCreateContainer, Path: "/app/container", ACL: OpenACL()},
		{Op: OpCreateTTL, Path: "/app/ttl", Flags: FlagTTL, TTL: 0x1234, ACL: OpenACL()},
		{Op: OpCreateTTL, Path: "/app/longest", Flags: FlagTTL, TTL: MaxTTL, ACL: OpenACL()},
		{Op: OpCreate, Path: "/zookeeper/quota/app", ACL: OpenACL()},
		{Op: OpCreate, Path: "/zookeeper/quota/app/zookeeper_limits", Data: []byte("count=9,bytes=-1"), ACL: OpenACL()},
		{Op: OpCreate, Path: "/zookeeper/quota/app/zookeeper_stats", ACL: OpenACL()},
	} {
		h.do(tb, &r)
	}
	return h.tree.View()
}

// TestRecordFormat pins keys, values and digest of the records.
func TestRecordFormat(t *testing.T) {
	var out strings.Builder
	for _, v := range []*View{NewView(), sampleView(t)} {
		_ = v.Records(func(table uint8, key, value []byte) error {
			fmt.Fprintf(&out, "%d %q %s\n", table, key, hex.EncodeToString(value))
			return nil
		})
		fmt.Fprintf(&out, "at %v chain %016x digest %016x\n\n", v.Zxid(), v.Chain(), v.Digest())
	}
	golden(t, "records.golden", out.String())
}

// TestBuilderRefuses leaves out, changes and adds records: each must be refused.
func TestBuilderRefuses(t *testing.T) {
	v := sampleView(t)
	type record struct {
		table      uint8
		key, value []byte
	}
	var all []record
	_ = v.Records(func(table uint8, key, value []byte) error {
		all = append(all, record{table, slices.Clone(key), slices.Clone(value)})
		return nil
	})
	// build returns the first error; the digest is made to fit, so that the structure itself is checked.
	build := func(records []record) error {
		b := NewBuilder()
		for _, r := range records {
			if err := b.Add(r.table, r.key, r.value); err != nil {
				return err
			}
		}
		w, err := b.Finish(v.Zxid(), v.Chain(), b.e.digest)
		if err == nil {
			sameContent(t, w, v)
		}
		return err
	}
	if err := build(all); err != nil {
		t.Fatal(err)
	}
	for i, r := range all {
		if err := build(slices.Delete(slices.Clone(all), i, i+1)); !errors.Is(err, ErrBadRecord) {
			t.Errorf("without %d %q: %v", r.table, r.key, err)
		}
	}
	for _, r := range []record{
		{9, []byte("x"), nil},
		{TableNode, []byte("/a"), []byte{0, 0, 0}},                                    // a path, not a key
		{TableNode, []byte("\x00a\x00b"), []byte{0, 0, 0}},                            // two separators
		{TableNode, nil, []byte{0, 0, 0}},                                             // no key
		{TableNode, []byte("\x00new"), []byte{0, 1, 0}},                               // not counted by its parent
		{TableNode, []byte("/no\x00new"), []byte{0, 1, 0}},                            // no parent
		{TableNode, []byte("\x00app"), []byte{}},                                      // no value
		{TableNode, []byte("\x00app"), []byte{0x80, 1, 0}},                            // unknown flag
		{TableNode, []byte("\x00app"), []byte{0x20, 1, 0, 65}},                        // null and yet data
		{TableNode, []byte("\x00app"), []byte{0, 0x81, 0}},                            // number longer than need be
		{TableNode, []byte("\x00app"), []byte{0x04, 1, 0, 0xff, 0, 0, 0, 0, 0, 0, 0}}, // no time to live
		{TableNode, []byte("\x00app"), []byte{0x04, 1, 0, 0xff, 0, 1, 0, 0, 0, 0, 5}}, // a feature nobody knows
		{TableChildren, []byte("\x00app"), []byte{1, 2}},
		{TableChildren, []byte("\x00app"), []byte{1, 2, 1}}, // negative count
		{TableSession, []byte("short"), make([]byte, 17)},
		{TableSession, []byte("12345678"), make([]byte, 16)},
		{TableACL, []byte{0, 0, 0, 1}, []byte{0}}, // a reserved number
		{TableACL, []byte{0, 0, 0, 3}, []byte{9}},
		{TableACL, []byte{0, 0, 0, 200}, []byte{0}}, // not given out yet
		{TableMeta, []byte("other"), []byte{1}},
		{TableMeta, []byte("format"), []byte{RecordFormat + 1}},
		{TableMeta, []byte("levels"), []byte{1}},
	} {
		if err := build(append(slices.Clone(all), r)); !errors.Is(err, ErrBadRecord) {
			t.Errorf("with %d %q %x: %v", r.table, r.key, r.value, err)
		}
	}
	b := NewBuilder()
	if err := v.Records(b.Add); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Finish(v.Zxid(), v.Chain(), v.Digest()+1); !errors.Is(err, ErrBadRecord) {
		t.Errorf("wrong digest: %v", err)
	}
	b = NewBuilder()
	if err := b.Delete(TableNode, []byte("\x00no")); !errors.Is(err, ErrBadRecord) {
		t.Errorf("delete of a missing record: %v", err)
	}
}
