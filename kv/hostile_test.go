package kv

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Requests that are meant to hurt: none may stop a member, and none may cost much more than its size. Costs are
// compared with each other, or counted, never taken absolutely, but for those that would be minutes.

// hostile makes requests out of the worst of everything.
type hostile struct {
	*rand.Rand
	sessions []SessionID
}

func pick[E any](g *hostile, s ...E) E { return s[g.IntN(len(s))] }

func (g *hostile) path() string {
	const q = "/zookeeper/quota"
	deep := strings.Repeat("/d", MaxPathBytes/2)
	return pick(g, "", "/", "/a", "/a/b", "/a/b/c", "/a/", "a", "//", "/a//b", "/.", "/..", "/a\x00", "\x00", "/\xff\xfe", "/\xed\xa0\x80",
		"/\uFFFD", "/😀", "/é", q, q+"/", q+"/a", q+"/a/b", q+"/a/zookeeper_limits", q+"/a/zookeeper_stats", q+"/zookeeper_limits",
		q+"/zookeeper_stats", q+"/zookeeper", q+"/zookeeper/quota", q+"/zookeeper/quota/zookeeper_limits", q+"/zookeeper/quota/zookeeper_stats",
		q+"/a/zookeeper_limits/zookeeper_limits", q+"/a/zookeeper_limits/zookeeper_stats", "/zookeeper", "/zookeeper/config", "/zookeeper/config/x",
		"/"+strings.Repeat("x", MaxPathBytes-1), "/"+strings.Repeat("x", MaxPathBytes), "/"+strings.Repeat("y", MaxPathBytes-11),
		deep, deep+"/d", "/a/"+strings.Repeat("z", MaxPathBytes-3), q+"/"+strings.Repeat("x", MaxPathBytes-50))
}

func (g *hostile) data() []byte {
	return pick(g, nil, []byte{}, []byte("x"), bytes.Repeat([]byte("x"), 5000), []byte("count=1,bytes=1"), []byte("count=9223372036854775807,bytes=9223372036854775807"),
		[]byte("count=-9223372036854775808,bytes=-9223372036854775808"), []byte("count=0,bytes=0=;countHardLimit=9223372036854775807;byteHardLimit=0"),
		[]byte("count=1=;countHardLimit=-9223372036854775808"), []byte(";;;=;=,"), []byte("count"), []byte("=\xff,\x00=1"), []byte("\xff\xfe"),
		[]byte(strings.Repeat("a=1,", 300)), []byte("count=1"+strings.Repeat("=", 900)), []byte(strings.Repeat(",", 2000)+"count=1"))
}

func (g *hostile) acl() []ACL {
	entry := func() ACL {
		return ACL{pick(g, int32(0), 1, 2, 4, 8, 16, 31, -1, math.MinInt32), pick(g, "world", "auth", "digest", "ip", "x509", "sasl", "super", "", "\xff"),
			pick(g, "anyone", "", "u:h", ":", "::", "a:b:", NullID, "10.0.0.0/8", "1.2.3.4/33", "::/0", "::ffff:1.2.3.4/96", "fe80::1%eth0", "\xff:\xff", "CN=x", "\\")}
	}
	switch g.IntN(6) {
	case 0:
		return nil
	case 1:
		var out []ACL
		for range g.IntN(40) {
			out = append(out, entry())
		}
		return out
	case 2:
		return []ACL{entry()}
	}
	return pick(g, OpenACL(), OpenACL(), []ACL{{31, "auth", ""}}, []ACL{{1, "world", "anyone"}}, []ACL{{16, "world", "anyone"}},
		[]ACL{{31, "digest", fmt.Sprintf("u%d:h", g.IntN(1000))}})
}

func (g *hostile) version() int32 {
	return pick(g, int32(-1), -1, 0, 1, -2, math.MinInt32, math.MaxInt32)
}

func (g *hostile) request(depth int) Request {
	r := Request{Op: pick(g, OpCreate, OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL, OpDelete, OpSetData, OpSetACL, OpCheck, OpDeleteContainer, OpMulti,
		OpMulti, OpCreateSession, OpCloseSession, Op(0), Op(-11), Op(math.MaxInt32)), Path: g.path(), Data: g.data(), ACL: g.acl(),
		Flags: pick(g, int32(0), 0, 1, 2, 3, 4, 5, 6, 7, -1, math.MaxInt32), Version: g.version(),
		TTL: pick(g, int64(1), 0, -1, MaxTTL, MaxTTL+1, math.MaxInt64, math.MinInt64), Local: g.IntN(9) == 0, Timeout: int32(g.Uint32()),
		Session: pick(g, g.sessions...), Auth: pick(g, Credentials(""), AllCredentials, Credentials("").With(Identity{"digest", "u1:h"}), "\xff", "\x05ab")}
	if r.Op == OpMulti {
		for range g.IntN(8) {
			if depth < 2 {
				r.Ops = append(r.Ops, g.request(depth+1))
			}
		}
		if g.IntN(2) == 0 { // one that may succeed as a whole
			for i := range r.Ops {
				r.Ops[i].Op, r.Ops[i].Version = pick(g, OpCreate, OpCreate2, OpCreateContainer, OpDelete, OpSetData, OpCheck), -1
				r.Ops[i].ACL, r.Ops[i].Flags = OpenACL(), int32(g.IntN(4))
			}
		}
	}
	return r
}

// TestHostileRequests: whatever clients ask for, it is decided, can be read back, applied, and saved, and the view made
// of the records is the same in everything, also in what is derived.
func TestHostileRequests(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() || raceEnabled {
		seeds = 6
	}
	for seed := range seeds {
		g := &hostile{rand.New(rand.NewPCG(seed, 5)), []SessionID{0, 1, 1, -1, math.MinInt64, math.MaxInt64, 0xff << 54, -0x100000000000000}}
		h := newHistory(NewTree(nil))
		h.prep.opt.EnforceQuota, h.prep.opt.X509, h.prep.opt.SASL = seed%2 == 0, seed%3 == 0, seed%5 == 0
		for _, s := range g.sessions {
			h.do(t, &Request{Op: OpCreateSession, Session: s})
		}
		prev := h.tree.View()
		var queue []Entry
		for range 300 {
			r := g.request(0)
			en := h.prepare(&r)
			if _, err := DecodeTxn(en.Payload); err != nil {
				t.Fatalf("seed %d: %+v gives %q: %v", seed, r, en.Payload, err)
			}
			queue = append(queue, en)
			if n := g.IntN(12); n < len(queue) {
				if err := h.tree.Apply(queue[:n], &collector{}); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				queue = queue[n:]
			}
			h.prep.StillReapable(g.path(), math.MaxInt64, 1)
		}
		if err := h.tree.Apply(queue, nil); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		v := h.tree.View()
		for range 100 {
			p := g.path()
			for _, r := range []Reader{v.As(""), v.As(AllCredentials), v.As("\xff")} {
				_, _ = r.Exists(p)
				_, _, _ = r.ACL(p)
				_, _, _ = r.Children(p, nil)
				_, _ = r.Descendants(p)
			}
			v.EphemeralsWithPrefix(1, p, nil)
		}
		if !recordsRoundTrip(t, prev, v) {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestQuotaTextIsShort: a long text is no quota. With a megabyte of figures, each write below the path took a minute on
// every member.
func TestQuotaTextIsShort(t *testing.T) {
	var b strings.Builder
	for i := 0; b.Len() < 1_000_000; i++ {
		fmt.Fprintf(&b, "%06d=1,", 999_999-i)
	}
	h := newHistory(NewTree(nil))
	const q = "/zookeeper/quota/q"
	for _, p := range []string{"/q", q, q + "/zookeeper_limits", q + "/zookeeper_stats"} {
		h.do(t, &Request{Op: OpCreate, Path: p, ACL: OpenACL()})
	}
	start := time.Now()
	for _, name := range []string{"/zookeeper_limits", "/zookeeper_stats"} {
		h.do(t, &Request{Op: OpSetData, Path: q + name, Data: []byte(b.String()), Version: -1})
	}
	for range 100 {
		h.do(t, &Request{Op: OpSetData, Path: "/q", Version: -1})
	}
	if d := time.Since(start); d > time.Minute {
		t.Errorf("%v", d)
	}
	if data, _, _ := h.tree.View().Get(q + "/zookeeper_stats"); string(data) != b.String() {
		t.Error("a text that is not read was written")
	}
	for n, want := range map[int]bool{maxQuotaText: true, maxQuotaText + 1: false} {
		text := "count=1,bytes=2,x="
		if _, ok := parseQuota(text + strings.Repeat("0", n-len(text))); ok != want {
			t.Errorf("%d bytes: %v", n, ok)
		}
	}
}

// TestAuthExpands: entries of scheme auth cannot make a list of gigabytes out of a request of a megabyte.
func TestAuthExpands(t *testing.T) {
	c := Credentials("")
	for i := range 400 {
		c = c.With(Identity{"digest", fmt.Sprintf("u%03d:aaaaaaaaaaaaaaaaaaaaaaaaaaaa", i)})
	}
	h := newHistory(NewTree(nil))
	for _, n := range []int{1, 20, 60, 50_000} {
		var list []ACL
		for i := range n {
			list = append(list, ACL{int32(i + 1), "auth", ""})
		}
		en := h.prepare(&Request{Op: OpCreate, Path: fmt.Sprintf("/n%d", n), ACL: list, Auth: c})
		txn, err := DecodeTxn(en.Payload)
		if err != nil || len(en.Payload) > maxAuthBytes || (txn.Header.Err == CodeInvalidACL) != (n > 40) {
			t.Errorf("%d entries: %d bytes, %v %v", n, len(en.Payload), txn.Header, err)
		}
		if err := h.tree.Apply([]Entry{en}, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLongListsAndCredentials: the two ways to pass a list agree.
func TestLongListsAndCredentials(t *testing.T) {
	g := &hostile{rand.New(rand.NewPCG(1, 1)), nil}
	passed := 0
	for range 300 {
		var list []ACL
		for range 100 + g.IntN(300) {
			list = append(list, ACL{pick(g, int32(0), 1, 2, 3), pick(g, "digest", "x509", "ip", "sasl", "world"), fmt.Sprintf("u%d", g.IntN(3000))})
		}
		if g.IntN(2) == 0 {
			list = append(list, pick(g, ACL{1, "ip", "10.0.0.0/8"}, ACL{1, "world", "anyone"}, ACL{1, "digest", "u3:h"}, ACL{1, "sasl", "x"}, ACL{1, "super", ""}))
		}
		var c Credentials
		for range 30 + g.IntN(20) {
			c = c.With(Identity{pick(g, "digest", "x509", "sasl"), fmt.Sprintf("u%d:%020d", 10_000+g.IntN(3000), 0)})
		}
		if g.IntN(2) == 0 {
			c = c.With(pick(g, Identity{"ip", "10.1.2.3"}, Identity{"digest", "u3:h"}, Identity{"sasl", "super"}, Identity{"x509", "u7"}, Identity{"super", ""}))
		}
		l := EncodeACL(list)
		if len(c) < longCredentials {
			t.Fatal("short")
		}
		want := c.Super()
		for _, a := range list {
			want = want || a.Perms&1 != 0 && c.match(a.Scheme, a.ID)
		}
		if got := l.Allows(c, 1); got != want {
			t.Fatalf("%v, want %v: %q %q", got, want, l, c)
		}
		if want {
			passed++
		}
	}
	if passed < 20 || passed > 280 {
		t.Errorf("%d of 300 pass", passed)
	}
}

// TestListNumbersAreUsedAgain: after 2^32 lists, which a busy ensemble has seen in a year or so, no node has another list
// than it was given. (Number 1 is the open list.)
func TestListNumbersAreUsedAgain(t *testing.T) {
	list := func(i int) []ACL { return []ACL{{1, "digest", fmt.Sprintf("u%d:h", i)}} }
	h := newHistory(NewTree(nil))
	for i := range 3 {
		h.do(t, &Request{Op: OpCreate, Path: fmt.Sprintf("/n%d", i), ACL: list(i)})
	}
	h.do(t, &Request{Op: OpDelete, Path: "/n1", Version: -1})
	last := h.last
	tree := edited(h.tree.View(), func(e *edit) {
		e.nextACL = math.MaxUint32 - 1
		e.put(TableMeta, appendMetaRecord(nil, metaNextACL, uint64(e.nextACL)))
	})
	h = newHistory(tree)
	h.last = last
	for i := 3; i < 10; i++ {
		prev := tree.View()
		h.do(t, &Request{Op: OpCreate, Path: fmt.Sprintf("/n%d", i), ACL: list(i)})
		if !recordsRoundTrip(t, prev, tree.View()) {
			t.Fatal(i)
		}
	}
	for i := range 10 {
		if l, ok := tree.View().Access(fmt.Sprintf("/n%d", i)); ok != (i != 1) || ok && l != EncodeACL(list(i)) {
			t.Errorf("/n%d: %q", i, l)
		}
	}
}

// TestUsageIsCountedOnce: stats nodes made again and again do not have every node visited each time, also where the
// leader counts what is in flight; and the sums are right.
func TestUsageIsCountedOnce(t *testing.T) {
	h := newHistory(NewTree(nil))
	fill(t, h, 20_000, func(i int) string { return fmt.Sprintf("/n%07d", i) })
	const stats = "/zookeeper/quota/zookeeper_stats"
	m := Request{Op: OpMulti}
	for i := range 3000 {
		m.Ops = append(m.Ops, Request{Op: OpCreate, Path: stats, ACL: OpenACL()}, Request{Op: OpSetData, Path: fmt.Sprintf("/n%07d", i*6), Data: []byte("x"), Version: -1},
			Request{Op: OpDelete, Path: stats, Version: -1})
	}
	en := h.prepare(&m)
	if txn, _ := DecodeTxn(en.Payload); txn.Header.Err != CodeQuotaExceeded || txn.Failed < 300 {
		t.Errorf("%+v, operation %d", txn.Header, txn.Failed)
	}
	small := m
	small.Ops = m.Ops[:600]
	free := newHistory(h.tree)
	free.prep.opt.EnforceQuota = false
	free.last = h.last
	queue := []Entry{en, free.prepare(&small), free.prepare(&m)}
	if err := h.tree.Apply(queue, nil); err != nil {
		t.Fatal(err)
	}
	free.do(t, &Request{Op: OpCreate, Path: stats, ACL: OpenACL()})
	data, _, _ := h.tree.View().Get(stats)
	if want := fmt.Sprintf("count=%d,bytes=%d", 20_005, 100*17_000+3000); string(data) != want {
		t.Errorf("%s, want %s", data, want)
	}
	visits := 0
	v := h.tree.View()
	next := newHistory(h.tree)
	next.last = free.last
	next.do(t, &Request{Op: OpSetData, Path: "/n0000007", Version: -1})
	var count func(n *bnode)
	count = func(n *bnode) {
		if n.weight.Load() == nil {
			visits++
		}
		for _, kid := range n.kids {
			count(kid)
		}
	}
	v.usage("")
	count(v.nodes.root)
	if visits != 0 {
		t.Errorf("%d nodes are not weighed", visits)
	}
	count(h.tree.View().nodes.root)
	if visits > 4 {
		t.Errorf("one write leaves %d nodes to be weighed anew", visits)
	}
}

// TestUsageMatchesACount compares the sums with plain counting, through random edits of a tree of some height.
func TestUsageMatchesACount(t *testing.T) {
	g := rand.New(rand.NewPCG(3, 3))
	v := NewView()
	paths := []string{"", "/a", "/a/b", "/a!", "/c"}
	name := func() string { return fmt.Sprintf("%s/n%d", paths[1+g.IntN(4)], g.IntN(6000)) }
	for round := range 60 {
		var e edit
		e.begin(v)
		for _, p := range paths[1:] {
			if _, ok := e.lookup(p); !ok {
				e.putNode(p, &node{acl: aclOpen})
			}
		}
		for range g.IntN(1500) {
			p := name()
			var n node
			switch {
			case e.node(p, &n) && g.IntN(10) < 4+round/20*2:
				e.drop(TableNode, string(appendKey(nil, p)))
			default:
				e.putNode(p, &node{acl: aclOpen, data: strings.Repeat("x", g.IntN(50))})
			}
			if g.IntN(100) == 0 {
				e.usage(paths[g.IntN(len(paths))])
			}
		}
		v = e.freeze()
		for _, p := range paths {
			var count, bytes int64
			v.nodes.ascend("", func(rec string) bool {
				if within(pathOfKey(recKey(rec)), max(p, "/")) {
					count++
					bytes += dataBytes(rec)
				}
				return true
			})
			if c, b := v.usage(p); c != count || b != bytes {
				t.Fatalf("round %d, %q: %d %d, want %d %d", round, p, c, b, count, bytes)
			}
		}
	}
}

// TestPreparerShrinks: an unusually large transaction does not hold its memory for ever.
func TestPreparerShrinks(t *testing.T) {
	m := Request{Op: OpMulti}
	for i := range 60_000 {
		m.Ops = append(m.Ops, Request{Op: OpCreate, Path: fmt.Sprintf("/n%d", i), ACL: OpenACL()})
	}
	tree := NewTree(nil)
	prep := NewPreparer(func() *View { return tree.View() }, PreparerOptions{EnforceQuota: true})
	before := heapInUse()
	z, chain := MakeZxid(1, 1), tree.View().Chain()
	prep.Prepare(nil, z, TxnHeader{}, &m)
	prep.Undo()
	payload := prep.Prepare(nil, z, TxnHeader{}, &m)
	if err := tree.Apply([]Entry{{z, ChainDigest(chain, z, payload), payload}}, nil); err != nil {
		t.Fatal(err)
	}
	prep.Prepare(nil, z+1, TxnHeader{}, &Request{Op: OpSetData, Path: "/n1", Version: -1})
	tree = NewTree(nil)
	if kept := int64(heapInUse()) - int64(before); kept > 4<<20 && !raceEnabled {
		t.Errorf("%d bytes are kept", kept)
	}
	runtime.KeepAlive(prep)
	runtime.KeepAlive(m)
}
