package kv

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var seedFlag = flag.Uint64("seed", 0, "run only this seed of the random histories")

// collector is a sink that wants everything and keeps copies.
type collector struct {
	wantView func(z Zxid) bool
	zxids    []Zxid
	results  []Result
	views    map[Zxid]*View
}

func (c *collector) Begin(z Zxid, h *TxnHeader) (bool, bool) {
	return true, c.wantView != nil && c.wantView(z)
}

func (c *collector) Done(z Zxid, h *TxnHeader, r *Result, v *View) {
	c.zxids = append(c.zxids, z)
	c.results = append(c.results, Result{r.OpResult, slices.Clone(r.Ops)})
	if v != nil {
		c.views[z] = v
	}
}

// generator makes requests that often collide.
type generator struct {
	*rand.Rand
	sessions []SessionID
	quotas   bool // make some
	prelude  []Request
}

var generatedNames = []string{"a", "b", "c", "é", "long-name-of-a-node"}

// quotaPaths are the paths that may get a quota.
var quotaPaths = []string{"/a", "/a/b", "/b", "/zookeeper", "/c", ""}

func (g *generator) quotaPath() string {
	p := "/zookeeper/quota" + quotaPaths[g.IntN(len(quotaPaths))]
	return p + []string{"", "/zookeeper_limits", "/zookeeper_limits", "/zookeeper_stats"}[g.IntN(4)]
}

var quotaTexts = []string{"count=9,bytes=-1=;byteHardLimit=120;countHardLimit=3", "count=9,bytes=-1=;byteHardLimit=300",
	"bytes=0,count=1=;countHardLimit=2", "count=3,bytes=50", "count=9,bytes=-1=;byteHardLimit=500;countHardLimit=4", "count=1,bytes=1=;countHardLimit=6",
	"", "hello", "count=5,;bytes==", ";count=4", "bytes=7;other=3,zoo=-1", "count=2,count=5,countHardLimit=20", "byteHardLimit=0", "count=x"}

// credentials are those of one of a few connections.
func (g *generator) credentials() Credentials {
	c := Credentials("").With(Identity{"ip", []string{"10.1.2.3", "192.168.0.1", "::1"}[g.IntN(3)]})
	for g.IntN(3) == 0 {
		c = c.With(Identity{"digest", fmt.Sprintf("u%d:h", g.IntN(4))})
	}
	if g.IntN(12) == 0 {
		c = c.With(Identity{Scheme: SchemeSuper})
	}
	return c
}

func (g *generator) path() string {
	if g.IntN(40) == 0 {
		bad := []string{"", "abc", "/a/", "//", "/a//b", "/a/.", "/a/..", "/\x00", "/a\x00b", "/\x7f", "/\xff", "/😀", "/ ",
			"/zookeeper", "/zookeeper/config", "/zookeeper/config/x", "/zookeeper/quota", "/zookeeper/quota/x", "a/b", "/…"}
		return bad[g.IntN(len(bad))]
	}
	names := generatedNames
	if g.IntN(4) > 0 { // a crowded corner: nodes there come, get children, lose them and go
		names = names[:2]
	}
	var b strings.Builder
	for range 1 + g.IntN(3) {
		b.WriteByte('/')
		b.WriteString(names[g.IntN(len(names))])
		if len(names) > 2 && g.IntN(6) == 0 {
			fmt.Fprintf(&b, "%010d", g.IntN(6))
		}
	}
	return b.String()
}

func (g *generator) data() []byte {
	switch g.IntN(8) {
	case 0:
		return nil
	case 1:
		return []byte{}
	}
	return bytes.Repeat([]byte{byte('a' + g.IntN(26))}, g.IntN(200))
}

func (g *generator) acl() []ACL {
	switch g.IntN(12) {
	case 0:
		return nil
	case 1:
		return []ACL{{31, "world", "nobody"}}
	case 2:
		return []ACL{{1, "world", "anyone"}}
	case 3, 4:
		user := fmt.Sprintf("u%d:h", g.IntN(4))
		if g.IntN(3) == 0 {
			return []ACL{{int32(g.IntN(32)), "auth", ""}, {31, "ip", "10.0.0.0/8"}}
		}
		if g.IntN(3) == 0 {
			return []ACL{{int32(g.IntN(32)), "digest", user}, {int32(g.IntN(32)), "ip", "::/16"}}
		}
		return []ACL{{int32(g.IntN(32)), "digest", user}, {31, "world", "anyone"}, {31, "world", "anyone"}}
	}
	return []ACL{{31, "world", "anyone"}}
}

func (g *generator) version() int32 {
	if g.IntN(3) > 0 {
		return -1
	}
	return int32(g.IntN(4)) - 2
}

func (g *generator) op(ops ...Op) Request {
	r := Request{Op: ops[g.IntN(len(ops))], Path: g.path(), Version: g.version()}
	switch r.Op {
	case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL:
		r.Data, r.ACL = g.data(), g.acl()
		r.Flags = int32(g.IntN(4))
		if r.Op == OpCreateTTL {
			r.Flags = 5 + int32(g.IntN(2))
			r.TTL = []int64{1, 500, 2000, 20_000, 1 << 40, 0, -1, 1<<40 - 1}[g.IntN(8)]
		}
		if g.IntN(50) == 0 {
			r.Flags = int32(g.IntN(10)) - 2
		}
	case OpSetData:
		r.Data = g.data()
	case OpSetACL:
		r.ACL = g.acl()
	}
	if g.quotas && g.IntN(14) == 0 && (r.Op != OpDelete || g.IntN(8) == 0) && r.Op != OpCreateTTL && r.Op != OpSetACL {
		r.Path, r.ACL, r.Flags = g.quotaPath(), OpenACL(), 0
		r.Data = []byte(quotaTexts[g.IntN(len(quotaTexts))])
	}
	return r
}

func (g *generator) request() Request {
	if len(g.prelude) > 0 {
		r := g.prelude[0]
		g.prelude = g.prelude[1:]
		return r
	}
	id := g.sessions[g.IntN(len(g.sessions))]
	var r Request
	switch n := g.IntN(100); {
	case n < 8:
		return Request{Op: OpCreateSession, Session: id, Timeout: int32(g.IntN(1e5)), Password: [16]byte{byte(n), 7}}
	case n < 12:
		return Request{Op: OpCloseSession, Session: id}
	case n < 13:
		return Request{Op: OpSetLevels, Levels: Levels{uint32(g.IntN(5)), uint32(g.IntN(5))}}
	case n < 14:
		return Request{Op: OpSetConfig, Data: g.data(), Version: -1}
	case n < 15:
		r = g.op(OpCheck, OpDeleteContainer)
	case n < 19:
		r = g.op(OpDeleteContainer)
		r.TTL = int64(g.IntN(3)) * 500
		return r
	case n < 35:
		r.Op = OpMulti
		for range g.IntN(5) {
			r.Ops = append(r.Ops, g.op(OpCreate, OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL, OpDelete, OpSetData, OpCheck, OpCheck))
		}
		if g.IntN(40) == 0 {
			r.Ops = append(r.Ops, g.op(OpSetACL, OpMulti))
		}
	default:
		r = g.op(OpCreate, OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL, OpDelete, OpDelete, OpDelete, OpDelete, OpSetData,
			OpSetData, OpSetACL, OpSetACL)
		if r.Op == OpSetACL && g.IntN(2) == 0 { // a list, and right behind it somebody whom it concerns
			g.prelude = append(g.prelude, Request{Op: OpSetData, Session: id, Auth: g.credentials(), Path: r.Path, Version: -1})
		}
	}
	r.Session, r.Auth = id, g.credentials()
	switch g.IntN(20) {
	case 0:
		r.Session = 0
	case 1:
		r.Local = true
	}
	return r
}

// TestRandomHistoriesMatchTheModel prepares and applies random requests, several in flight at a time and applied
// in batches of random sizes, and compares every outcome and the whole state with the naive model. At each batch
// it also rebuilds the view from its records, patches the view of the batch before with Diff, and compares digests.
func TestRandomHistoriesMatchTheModel(t *testing.T) {
	seeds := []uint64{*seedFlag}
	if *seedFlag == 0 {
		seeds = seeds[:0]
		n := uint64(150)
		if testing.Short() {
			n = 20
		}
		for s := range n {
			seeds = append(seeds, s+1)
		}
	}
	var codes [200]int
	for _, seed := range seeds {
		if !runHistory(t, seed, 250, &codes) {
			t.Fatalf("replay: go test ./kv -run '^%s$' -seed=%d", t.Name(), seed)
		}
	}
	t.Logf("%d requests over a quota", codes[-CodeQuotaExceeded])
	if *seedFlag == 0 {
		for _, c := range []Code{CodeOK, CodeNoNode, CodeNoAuth, CodeBadVersion, CodeNoChildrenForEphemerals, CodeNodeExists,
			CodeNotEmpty, CodeSessionExpired, CodeQuotaExceeded, CodeEphemeralOnLocalSession, CodeInvalidACL, CodeBadArguments, CodeUnimplemented, CodeMarshallingError} {
			if codes[-c] == 0 {
				t.Errorf("no history had an outcome %v: the generator does not reach it", c)
			}
		}
	}
}

func runHistory(t *testing.T, seed uint64, steps int, codes *[200]int) bool {
	t.Helper()
	g := &generator{rand.New(rand.NewPCG(seed, 1)), []SessionID{0x100000000000001, 0x200000000000002, 3, -0x1000000000000000}, seed%3 != 0, nil}
	opt := PreparerOptions{ExtendedTypes: g.IntN(4) > 0, EnforceQuota: g.IntN(2) > 0, SkipACL: g.IntN(8) == 0}
	if g.quotas {
		for _, p := range []string{"/a", "/b", "/zookeeper", "/a/b"} {
			g.prelude = append(g.prelude, Request{Op: OpCreate, Path: "/zookeeper/quota" + p, ACL: OpenACL()})
		}
		for _, name := range []string{"zookeeper_limits", "zookeeper_stats"} {
			g.prelude = append(g.prelude, Request{Op: OpCreate, Path: "/zookeeper/quota/a/" + name, ACL: OpenACL(),
				Data: []byte("count=9,bytes=-1=;byteHardLimit=500;countHardLimit=2")})
		}
		for _, p := range []string{"/a", "/a/a", "/a/b", "/a/long"} {
			g.prelude = append(g.prelude, Request{Op: OpCreate, Path: p, ACL: OpenACL()})
		}
	}
	tree := NewTree(nil)
	prep := NewPreparer(tree.View, opt)
	m := newModel(opt)
	z, chain := MakeZxid(1, 0), tree.View().Chain()
	now := int64(1_700_000_000_000)
	var queue []Entry
	var want []Result
	models := map[Zxid]*model{}
	prev := tree.View()
	for step := 0; step < steps; {
		for range 1 + g.IntN(6) { // prepare some more
			z++
			now += int64(g.IntN(1000)) - 100 // a leader's clock may step back
			r := g.request()
			h := TxnHeader{Origin: uint8(g.IntN(4)), Request: g.Uint64(), Time: now}
			if g.IntN(10) == 0 { // a proposal that was not taken
				prep.Prepare(nil, z, h, &r)
				prep.Undo()
				r = g.request()
			}
			payload := prep.Prepare(nil, z, h, &r)
			checkTxn(t, payload, h, &r)
			chain = ChainDigest(chain, z, payload)
			queue = append(queue, Entry{z, chain, payload})
			res := m.do(z, now, &r)
			want = append(want, res)
			codes[-res.Code]++
			for _, o := range res.Ops {
				codes[-o.Code]++
			}
			models[z] = m.clone()
			step++
			if g.IntN(60) == 0 { // a new reign
				z = MakeZxid(z.Epoch()+1, 0)
			}
		}
		if n := g.IntN(len(queue) + 1); n > 0 {
			sink := &collector{views: map[Zxid]*View{}, wantView: func(Zxid) bool { return g.IntN(5) == 0 }}
			if err := tree.Apply(queue[:n], sink); err != nil {
				t.Errorf("apply: %v", err)
				return false
			}
			for i, got := range sink.results {
				if sink.zxids[i] != queue[i].Zxid || !sameResult(got, want[i]) {
					t.Errorf("zxid %v: got %+v, want %+v", queue[i].Zxid, got, want[i])
					return false
				}
			}
			sink.views[queue[n-1].Zxid] = tree.View()
			for at := range sink.views {
				if !matchesModel(t, sink.views[at], models[at]) {
					return false
				}
			}
			if !recordsRoundTrip(t, prev, tree.View()) {
				return false
			}
			if g.IntN(4) == 0 {
				prev = tree.View()
			}
			queue, want = queue[n:], want[n:]
		}
		if len(queue) > 0 && g.IntN(50) == 0 { // a new leader: what was in flight is lost
			prep.Reset()
			m = models[tree.View().Zxid()]
			if m == nil {
				m = newModel(opt)
			}
			m = m.clone()
			z, chain = MakeZxid(z.Epoch()+1, 0), tree.View().Chain()
			queue, want = nil, nil
		}
	}
	return true
}

func sameResult(a, b Result) bool {
	return a.OpResult == b.OpResult && slices.Equal(a.Ops, b.Ops)
}

// checkTxn checks that a prepared payload decodes, says what was asked, and encodes to itself.
func checkTxn(t *testing.T, payload []byte, h TxnHeader, r *Request) {
	t.Helper()
	txn, err := DecodeTxn(payload)
	if err != nil {
		t.Fatalf("decode: %v", err)
	}
	if again := AppendTxn(nil, txn); !bytes.Equal(again, payload) {
		t.Fatalf("encodes to %x, was %x", again, payload)
	}
	got := txn.Header
	if got.Origin != h.Origin || got.Request != h.Request || got.Time != h.Time || got.Kind != r.Op || got.Session != r.Session {
		t.Fatalf("header %+v for %+v", got, h)
	}
}

func matchesModel(t *testing.T, v *View, m *model) bool {
	t.Helper()
	if v.NodeCount() != len(m.nodes) || v.SessionCount() != len(m.sessions) || v.Levels() != m.levels {
		t.Errorf("%v: %d nodes, %d sessions, %v; want %d, %d, %v", v.Zxid(), v.NodeCount(), v.SessionCount(), v.Levels(),
			len(m.nodes), len(m.sessions), m.levels)
		return false
	}
	bytesTotal := int64(0)
	for path, n := range m.nodes {
		bytesTotal += int64(len(path) + len(n.data))
		data, stat, err := v.Get(path)
		if err != nil || stat != m.stat(path) || !bytes.Equal(data, n.data) || (data == nil) != (n.data == nil) {
			t.Errorf("%v: get %q: %q %+v %v; want %q %+v", v.Zxid(), path, data, stat, err, n.data, m.stat(path))
			return false
		}
		names, _, _ := v.Children(path, []string{"kept"})
		if !slices.Equal(names[1:], m.children(path)) || names[0] != "kept" {
			t.Errorf("%v: children of %q: %q, want %q", v.Zxid(), path, names, m.children(path))
			return false
		}
		if acl, _, err := v.ACL(path); err != nil || !reflect.DeepEqual(acl, n.acl) {
			t.Errorf("%v: ACL of %q: %v %v, want %v", v.Zxid(), path, acl, err, n.acl)
			return false
		}
	}
	if !readsMatchModel(t, v, m) {
		return false
	}
	if v.DataBytes() != bytesTotal {
		t.Errorf("%v: %d bytes, want %d", v.Zxid(), v.DataBytes(), bytesTotal)
		return false
	}
	count := 0
	for id, s := range m.sessions {
		if got, ok := v.Session(id); !ok || got != s {
			t.Errorf("%v: session %v: %+v %v, want %+v", v.Zxid(), id, got, ok, s)
			return false
		}
		v.Ephemerals(id, func(path string) bool {
			count++
			if n := m.nodes[path]; n == nil || n.stat.EphemeralOwner != id {
				t.Errorf("%v: %q is listed as an ephemeral of %v", v.Zxid(), path, id)
			}
			return true
		})
	}
	for _, n := range m.nodes {
		if n.stat.EphemeralOwner != 0 {
			count--
		}
	}
	if count != 0 || t.Failed() {
		t.Errorf("%v: %d ephemerals too many", v.Zxid(), count)
		return false
	}
	return true
}

// readsMatchModel compares the reads of a client, and what the leader removes.
func readsMatchModel(t *testing.T, v *View, m *model) bool {
	t.Helper()
	containers, ttls, quotas := 0, 0, 0
	for path, n := range m.nodes {
		if n.container {
			containers++
		}
		if n.ttl > 0 {
			ttls++
		}
		if strings.HasPrefix(path, "/zookeeper/quota/") && strings.HasSuffix(path, "/zookeeper_limits") && path != "/zookeeper/quota/zookeeper_limits" {
			quotas++
		}
		for _, c := range []Credentials{"", Credentials("").With(Identity{"ip", "10.1.2.3"}).With(Identity{"digest", "u1:h"}), AllCredentials} {
			r := v.As(c)
			may := modelAllows(n.acl, c, 1)
			below := int32(0)
			for p := range m.nodes {
				if p != path && (path == "/" || strings.HasPrefix(p, path+"/")) {
					below++
				}
			}
			data, stat, err := r.Get(path)
			stat2, err2 := r.Exists(path)
			names, _, err3 := r.Children(path, nil)
			count, err4 := r.Descendants(path)
			if may && (errors.Join(err, err2, err3, err4) != nil || !bytes.Equal(data, n.data) || stat != m.stat(path) || stat2 != stat ||
				!slices.Equal(names, m.children(path)) || count != below) ||
				!may && (err != ErrNoAuth || err2 != ErrNoAuth || err3 != ErrNoAuth || err4 != ErrNoAuth) {
				t.Errorf("%v: %q for %q: %v %v %v %v, %d below, want %d", v.Zxid(), path, c, err, err2, err3, err4, count, below)
				return false
			}
			acl, _, err := r.ACL(path)
			want := slices.Clone(n.acl)
			for i := range want {
				if want[i].Scheme == "digest" && !modelAllows(n.acl, c, 16) {
					want[i].ID, _, _ = strings.Cut(want[i].ID, ":")
					want[i].ID += ":x"
				}
			}
			if may = modelAllows(n.acl, c, 17); may && (err != nil || !slices.Equal(acl, want)) || !may && err != ErrNoAuth {
				t.Errorf("%v: ACL of %q for %q: %v %v", v.Zxid(), path, c, acl, err)
				return false
			}
		}
	}
	if v.ContainerCount() != containers || v.TTLCount() != ttls || v.QuotaCount() != quotas {
		t.Errorf("%v: %d containers, %d TTL nodes, %d quotas; want %d, %d, %d", v.Zxid(), v.ContainerCount(), v.TTLCount(),
			v.QuotaCount(), containers, ttls, quotas)
		return false
	}
	for _, neverUsed := range []int64{0, 700} {
		now := int64(1_700_000_000_000) + 20_000
		var got, want []string
		v.Reapable(now, neverUsed, func(path string) bool { got = append(got, path); return true })
		for path := range m.nodes {
			if m.reapable(path, now, neverUsed) {
				want = append(want, path)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%v: reapable %q, want %q", v.Zxid(), got, want)
			return false
		}
	}
	return true
}

// recordsRoundTrip checks that v can be built from its records, and from old's plus the difference.
func recordsRoundTrip(t *testing.T, old, v *View) bool {
	t.Helper()
	full, delta := NewBuilder(), NewBuilder()
	sum := uint64(0)
	last := ""
	err := v.Records(func(table uint8, key, value []byte) error {
		if at := string(append([]byte{table}, key...)); at <= last {
			return fmt.Errorf("record %q after %q", at, last)
		} else {
			last = at
		}
		sum += recordDigest(table, string(append(appendString(nil, string(key)), value...)))
		return full.Add(table, key, value)
	})
	err = errors.Join(err, old.Records(delta.Add), v.Diff(old, func(table uint8, key, value []byte) error {
		if value == nil {
			return delta.Delete(table, key)
		}
		return delta.Add(table, key, value)
	}))
	if err != nil || sum != v.Digest() {
		t.Errorf("%v: records: %v; digest %x, is %x", v.Zxid(), err, v.Digest(), sum)
		return false
	}
	for _, b := range []*Builder{full, delta} {
		w, err := b.Finish(v.Zxid(), v.Chain(), v.Digest())
		if err != nil {
			t.Errorf("%v: finish: %v", v.Zxid(), err)
			return false
		}
		if !sameContent(t, w, v) {
			return false
		}
	}
	return true
}

// sameContent compares all tables, derived ones included.
func sameContent(t *testing.T, a, b *View) bool {
	t.Helper()
	dump := func(v *View) (out []string) {
		for _, tree := range []btree{v.nodes, v.families, v.sessions, v.acls, v.meta, v.ephemerals, v.aclNumbers, v.aclUses, v.containers, v.ttls,
			v.quotas} {
			n := 0
			tree.ascend("", func(rec string) bool { out = append(out, rec); n++; return true })
			if n != tree.size {
				t.Errorf("tree of size %d has %d records", tree.size, n)
			}
		}
		return out
	}
	same := slices.Equal(dump(a), dump(b)) && a.zxid == b.zxid && a.chain == b.chain && a.digest == b.digest &&
		a.levels == b.levels && a.nextACL == b.nextACL && a.dataBytes == b.dataBytes
	if !same {
		t.Errorf("views at %v differ:\n%q\n%q", a.zxid, dump(a), dump(b))
	}
	return same
}
