package ensemble

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// family creates a node with n children whose names are 100 bytes long, in multis of a thousand.
func (r *raw) family(path string, n int, flags int32) (names []string) {
	r.t.Helper()
	r.send(createRequest(1, path, 0))
	r.wantReply(1, kv.CodeOK)
	for len(names) < n {
		var b []byte
		for range min(1000, n-len(names)) {
			name := fmt.Sprintf("%0100d", len(names))
			b = wire.AppendMultiOp(b, wire.OpCreate, &wire.CreateRequest{Path: path + "/" + name, ACL: openACL, Flags: flags})
			names = append(names, name)
		}
		r.send(request(2, wire.OpMulti, wire.AppendMultiEnd(b)))
		r.wantReply(2, kv.CodeOK)
	}
	return names
}

// liveBytes is the size of the heap after a collection.
func liveBytes() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what finalizers and pools held
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Ten clients ask for a list of five megabytes and are slow to take it. Nobody else notices, pings are answered as soon
// as the client comes to read, and the list is nowhere in memory.
func TestLongRepliesAreStreamed(t *testing.T) {
	_, addr := startSingle(t, nil)
	setup := dialRaw(t, addr)
	setup.session()
	const n = 50_000
	names := setup.family("/long", n, 0)
	list := func(r *raw, xid int32) {
		t.Helper()
		h, body := r.wantReply(xid, kv.CodeOK)
		var got wire.NamesStatResponse
		if err := wire.Decode(body, &got); err != nil || len(got.Names) != n || int(got.Stat.NumChildren) != n || h.Zxid <= 0 {
			t.Fatalf("%d names, stat %+v, %v", len(got.Names), got.Stat, err)
		}
		for i := range got.Names {
			if got.Names[i] != names[i] {
				t.Fatalf("name %d is %q", i, got.Names[i])
			}
		}
	}
	before := liveBytes()
	var clients []*raw
	for range 10 {
		r := dialRaw(t, addr)
		r.session()
		r.send(request(7, wire.OpGetChildren2, record(rWatch("/long"))))
		r.send(request(wire.XidPing, wire.OpPing, nil))
		r.send(request(8, wire.OpExists, record(rRead("/long"))))
		clients = append(clients, r)
	}
	// The writer of each is at it (or done: socket buffers are large); meanwhile others are served.
	for i := range 100 {
		setup.send(request(int32(i), wire.OpSetData, record(rSet("/long", fmt.Sprint(i)))))
		setup.wantReply(int32(i), kv.CodeOK)
	}
	if after := liveBytes(); after > before+10<<20 {
		t.Errorf("heap grew from %d to %d bytes while ten lists of five megabytes are on their way", before, after)
	}
	for _, r := range clients {
		got := map[int32]bool{}
		list7 := false
		for !list7 || len(got) < 2 {
			f := r.next()
			h, body, err := wire.SplitReply(f)
			if err != nil || h.Err != kv.CodeOK {
				t.Fatal(h, err)
			}
			if h.Xid != 7 {
				got[h.Xid] = true
				if h.Xid == 8 && !list7 {
					t.Fatal("a reply overtook another")
				}
				continue
			}
			list7 = true
			var names wire.NamesStatResponse
			if err := wire.Decode(body, &names); err != nil || len(names.Names) != n {
				t.Fatalf("%d names, %v", len(names.Names), err)
			}
		}
	}
	// The watch that came with the list works.
	setup.send(request(9, wire.OpDelete, record(rDelete("/long/"+names[0]))))
	setup.wantReply(9, kv.CodeOK)
	for _, r := range clients {
		h, body := r.reply()
		var e wire.WatcherEvent
		if err := wire.Decode(body, &e); err != nil || h.Xid != wire.XidEvent || e.Type != wire.EventChildrenChanged || e.Path != "/long" {
			t.Fatalf("%+v %+v %v", h, e, err)
		}
	}
	setup.send(createRequest(10, "/long/"+names[0], 0))
	setup.wantReply(10, kv.CodeOK)
	// The same for a client in pieces of all sizes, behind a write of its own.
	r := dialRaw(t, addr)
	r.session()
	r.send(append(createRequest(1, "/short", 0), request(2, wire.OpGetChildren2, record(rRead("/long")))...))
	r.wantReply(1, kv.CodeOK)
	list(r, 2)
}

// Every kind of reply that can be long, at, below and above the limit: -5 without a body, and no watch; the connection
// stays. What is long and fits is whole.
func TestReplyLimit(t *testing.T) {
	const limit = 200_000
	m, addr := startSingle(t, func(c *Config) { c.MaxReplyBytes = limit })
	k := talk(t, addr)
	const n = 1900 // 104 bytes each: 197,600 and what surrounds them
	k.family("/f", n, kv.FlagEphemeral)
	refused := func(name string, op wire.Op, rec wire.Record) {
		t.Helper()
		if got := k.do(op, rec); got != "-5" {
			t.Errorf("%s: %.100s", name, got)
		}
	}
	fits := func(name string, op wire.Op, rec wire.Record, size int) {
		t.Helper()
		k.xid++
		k.send(request(k.xid, op, record(rec)))
		if _, body := k.wantReply(k.xid, kv.CodeOK); len(body) != size {
			t.Errorf("%s: %d bytes, want %d", name, len(body), size)
		}
	}
	fits("getChildren", wire.OpGetChildren, rRead("/f"), 4+n*104)
	fits("getChildren2", wire.OpGetChildren2, rRead("/f"), 4+n*104+68)
	// Up to exactly the limit.
	spare := limit - wire.ReplyHeaderBytes - (4 + n*104)
	last := strings.Repeat("z", spare-4)
	k.run(t, false, []step{{op: wire.OpCreate, rec: rCreate("/f/"+last, "", 0), want: "OK /f/" + last}})
	fits("getChildren at the limit", wire.OpGetChildren, rRead("/f"), limit-wire.ReplyHeaderBytes)
	refused("getChildren2 above it", wire.OpGetChildren2, rWatch("/f"))
	k.run(t, false, []step{{op: wire.OpCreate, rec: rCreate("/f/0", "", 0), want: "OK /f/0"}})
	refused("getChildren", wire.OpGetChildren, rWatch("/f"))
	if got := k.do(wire.OpCheckWatches, rKind("/f", 3)); got != "-121" {
		t.Errorf("a refused read has set a watch: %s", got)
	}
	refused("getEphemerals", wire.OpGetEphemerals, &wire.SyncRecord{Null: true})
	fits("getEphemerals of a prefix", wire.OpGetEphemerals, &wire.SyncRecord{Path: "/f/" + strings.Repeat("0", 97)}, 4+1000*107)
	k.run(t, false, []step{{op: wire.OpCreate, rec: rCreate("/d", strings.Repeat("d", limit-wire.ReplyHeaderBytes-72), 0), want: "OK /d"}})
	fits("getData at the limit", wire.OpGetData, rRead("/d"), limit-wire.ReplyHeaderBytes)
	reads := func(ops ...wire.ReadOp) *rawRecord {
		return &rawRecord{wire.AppendMultiRead(nil, ops)}
	}
	k.xid++
	k.send(request(k.xid, wire.OpMultiRead, reads(wire.ReadOp{Op: wire.OpGetData, PathWatchRequest: *rRead("/f")}, wire.ReadOp{Op: wire.OpGetData, PathWatchRequest: *rRead("/d")}).b))
	k.wantReply(k.xid, kv.CodeMarshallingError)
	k.run(t, false, []step{{op: wire.OpSetData, rec: &wire.SetDataRequest{Path: "/d", Data: make([]byte, limit-wire.ReplyHeaderBytes-71), Version: -1}, want: "OK v1,0,0 len=199913 kids=0"}})
	refused("getData above it", wire.OpGetData, rWatch("/d"))
	if got := k.do(wire.OpCheckWatches, rKind("/d", 3)); got != "-121" {
		t.Errorf("a refused read has set a watch: %s", got)
	}
	// exists of the same node is short, and its watch is set.
	if got := k.do(wire.OpExists, rWatch("/d")); !strings.HasPrefix(got, "OK") {
		t.Error(got)
	}
	// A multi whose reply would be too long is not carried out at all, one that is just short enough is.
	multi := func(n int) []byte {
		var b []byte
		for range n {
			b = wire.AppendMultiOp(b, wire.OpSetData, rSet("/f", ""))
		}
		return wire.AppendMultiEnd(b)
	}
	most := (limit - wire.ReplyHeaderBytes - 9) / 77
	k.run(t, false, []step{{op: wire.OpMulti, rec: multi(most + 1), want: "-5"}})
	k.run(t, false, []step{{op: wire.OpExists, rec: rRead("/f"), want: fmt.Sprintf("OK v0,%d,0 len=0 kids=%d", n+2, n+2)}})
	k.xid++
	k.send(request(k.xid, wire.OpMulti, multi(most)))
	if _, body := k.wantReply(k.xid, kv.CodeOK); len(body) != most*77+9 {
		t.Errorf("multi: %d bytes", len(body))
	}
	refused("sync with a long path", wire.OpSync, &wire.SyncRecord{Path: strings.Repeat("s", limit)})
	if n := m.port.connections(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// rawRecord is a record that is bytes.
type rawRecord struct{ b []byte }

func (r *rawRecord) AppendTo(dst []byte) []byte { return append(dst, r.b...) }
func (*rawRecord) DecodeFrom(*wire.Reader)      {}

// A multiRead of many megabytes is answered from one view, in pieces.
func TestLongMultiRead(t *testing.T) {
	_, addr := startSingle(t, nil)
	k := talk(t, addr)
	value := bytes.Repeat([]byte("v"), 300<<10)
	k.run(t, false, []step{
		{op: wire.OpCreate, rec: rCreate("/v", string(value), 0), want: "OK /v"},
		{op: wire.OpCreate, rec: rCreate("/v/c", "", 0), want: "OK /v/c"},
	})
	var ops []wire.ReadOp
	for range 10 {
		ops = append(ops, wire.ReadOp{Op: wire.OpGetData, PathWatchRequest: *rRead("/v")},
			wire.ReadOp{Op: wire.OpGetChildren, PathWatchRequest: *rRead("/v")}, wire.ReadOp{Op: wire.OpGetData, PathWatchRequest: *rRead("/none")})
	}
	k.send(request(1, wire.OpMultiRead, wire.AppendMultiRead(nil, ops)))
	_, body := k.wantReply(1, kv.CodeOK)
	got, err := wire.DecodeMultiResults(body, nil)
	if err != nil || len(got) != len(ops) {
		t.Fatalf("%d results, %v", len(got), err)
	}
	for i := 0; i < len(got); i += 3 {
		if !bytes.Equal(got[i].Data, value) || len(got[i+1].Names) != 1 || got[i+2].Err != kv.CodeNoNode {
			t.Fatalf("results %d: %d bytes, %v, %v", i, len(got[i].Data), got[i+1].Names, got[i+2].Err)
		}
	}
	// A megabyte of requests that ask for terabytes is refused quickly.
	for len(ops) < 50_000 {
		ops = append(ops, ops[0])
	}
	k.send(request(2, wire.OpMultiRead, wire.AppendMultiRead(nil, ops)))
	k.wantReply(2, kv.CodeMarshallingError)
}

// A client that does not take a long reply is cut after its session's time-out; what the reply was made from is then
// free.
func TestSlowReaderOfALongReplyIsCut(t *testing.T) {
	m, addr := startSingle(t, shortSessions)
	setup := talk(t, addr)
	setup.family("/long", 60_000, 0)
	r := dialRaw(t, addr)
	r.connect(wire.ConnectRequest{TimeoutMs: 700, Password: make([]byte, 16)})
	for i := range 4 { // more than sockets hold
		r.send(request(int32(i), wire.OpGetChildren, record(rRead("/long"))))
	}
	stop := time.Now().Add(rawLimit)
	for m.port.connections() > 1 { // it lives, but it does not read
		if time.Now().After(stop) {
			t.Fatal("the connection is still there")
		}
		if _, err := r.nc.Write(request(wire.XidPing, wire.OpPing, nil)); err != nil {
			break
		}
		setup.do(wire.OpPing, nil)
	}
	eventually(t, "the connection is forgotten", func() bool { return m.Status().Connections == 1 })
}

// An auth packet holds for what is behind it and not for what is before it, however requests fall into batches, and its
// reply keeps its place.
func TestAuthTakesEffectAtItsPlace(t *testing.T) {
	_, addr := startSingle(t, nil)
	owner := talk(t, addr)
	owner.run(t, false, []step{
		{op: wire.OpAuth, rec: &wire.AuthRequest{Scheme: "digest", Auth: []byte("u:p")}, want: "OK zxid=0"},
		{op: wire.OpCreate, rec: &wire.CreateRequest{Path: "/own", ACL: []kv.ACL{{Perms: 31, Scheme: "auth"}}}, want: "OK /own"},
	})
	for round := range 20 {
		r := dialRaw(t, addr)
		r.session()
		var b []byte
		path := fmt.Sprintf("/own/n%d", round)
		b = append(b, request(1, wire.OpGetData, record(rRead("/own")))...)
		b = append(b, request(2, wire.OpCreate, record(rCreate(path, "", 0)))...)
		b = append(b, request(3, wire.OpGetData, record(rRead("/own")))...)
		b = append(b, request(4, wire.OpAuth, record(&wire.AuthRequest{Scheme: "digest", Auth: []byte("u:p")}))...)
		b = append(b, request(5, wire.OpGetData, record(rRead("/own")))...)
		b = append(b, request(6, wire.OpCreate, record(rCreate(path, "", 0)))...)
		b = append(b, request(7, wire.OpWhoAmI, nil)...)
		cut := round * len(b) / 20
		r.send(b[:cut])
		r.send(b[cut:])
		for i, code := range []kv.Code{kv.CodeNoAuth, kv.CodeNoAuth, kv.CodeNoAuth, kv.CodeOK, kv.CodeOK, kv.CodeOK, kv.CodeOK} {
			r.wantReply(int32(i+1), code)
		}
	}
}

func TestEnforcedSchemes(t *testing.T) {
	m, addr := startSingle(t, func(c *Config) { c.EnforceAuthSchemes = []string{"digest", "sasl"} })
	for _, op := range []wire.Op{wire.OpGetData, wire.OpCreate, wire.OpPing, wire.OpSetWatches, wire.OpCloseSession, wire.OpWhoAmI, 999} {
		k := talk(t, addr)
		k.send(request(5, op, record(rRead("/"))))
		h, body := k.wantReply(5, kv.CodeSaslAuthRequired)
		if h.Zxid != 0 || len(body) > 0 {
			t.Errorf("%v: zxid %d, %d bytes", op, h.Zxid, len(body))
		}
		k.wantClosed()
	}
	k := talk(t, addr)
	k.run(t, false, []step{
		{op: wire.OpAuth, rec: &wire.AuthRequest{Scheme: "ip"}, want: "OK zxid=0"},
		{op: wire.OpAuth, rec: &wire.AuthRequest{Scheme: "digest", Auth: []byte("u:p")}, want: "OK zxid=0"},
		{op: wire.OpGetData, rec: rRead("/"), want: `OK "" v0,-1,0 len=0 kids=1`},
	})
	// Who is inside the program need not say who it is.
	c, err := m.Client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, _, err := c.Get(t.Context(), "/"); err != nil {
		t.Fatal(err)
	}
}

func TestDigestCanBeSwitchedOff(t *testing.T) {
	_, addr := startSingle(t, func(c *Config) { c.DisableDigest, c.SuperDigest = true, superDigest() })
	talk(t, addr).run(t, false, []step{{op: wire.OpAuth, rec: &wire.AuthRequest{Scheme: "digest", Auth: []byte("super:pw")}, want: "-115 zxid=0"}})
	talk(t, addr).run(t, false, []step{{op: wire.OpCreate, rec: &wire.CreateRequest{Path: "/d", ACL: []kv.ACL{{Perms: 31, Scheme: "digest", ID: "u:x"}}}, want: "-114"}})
}

func TestIdentitiesOfAConnectionAreBounded(t *testing.T) {
	_, addr := startSingle(t, nil)
	talk(t, addr).run(t, false, []step{
		{op: wire.OpAuth, rec: &wire.AuthRequest{Scheme: "digest", Auth: make([]byte, 1<<20-1000)}, want: "-115 zxid=0"},
	})
	k := talk(t, addr)
	for i := range 10_000 {
		if got := k.do(wire.OpAuth, &wire.AuthRequest{Scheme: "digest", Auth: fmt.Appendf(nil, "user%d:p", i)}); got != "OK zxid=0" {
			if got != "-115 zxid=0" || i < 100 {
				t.Errorf("identity %d: %s", i, got)
			}
			return
		}
	}
	t.Error("ten thousand identities on one connection")
}

func TestSkipACL(t *testing.T) {
	_, addr := startSingle(t, func(c *Config) { c.SkipACL = true })
	k := talk(t, addr)
	list := []kv.ACL{{Perms: 1, Scheme: "digest", ID: "u:hash"}}
	k.run(t, false, []step{
		{op: wire.OpCreate, rec: &wire.CreateRequest{Path: "/s", ACL: list}, want: "OK /s"},
		{op: wire.OpGetData, rec: rRead("/s"), want: "OK null v0,0,0 len=0 kids=0"},
		{op: wire.OpGetACL, rec: rPath("/s"), want: "OK [{1 digest u:hash}] v0,0,0 len=0 kids=0"},
		{op: wire.OpAddWatch, rec: rKind("/s", 0), want: "OK 0"},
		{op: wire.OpSetData, rec: rSet("/s", "x"), want: "NodeDataChanged /s; OK v1,0,0 len=1 kids=0"},
		{op: wire.OpWhoAmI, want: "OK [{ip 127.0.0.1}]"},
		{op: wire.OpDelete, rec: rDelete("/s"), want: "NodeDeleted /s; OK"},
	})
}

// An event goes to who may read the node. A one-shot watch that is filtered is used up.
func TestEventsAreFilteredByAccess(t *testing.T) {
	_, addr := startSingle(t, nil)
	owner, other := talk(t, addr), talk(t, addr)
	owner.run(t, false, []step{
		{op: wire.OpAuth, rec: &wire.AuthRequest{Scheme: "digest", Auth: []byte("u:p")}, want: "OK zxid=0"},
		{op: wire.OpCreate, rec: rCreate("/seen", "", 0), want: "OK /seen"},
		{op: wire.OpCreate, rec: &wire.CreateRequest{Path: "/hidden", ACL: []kv.ACL{{Perms: 31, Scheme: "auth"}}}, want: "OK /hidden"},
	})
	other.run(t, false, []step{
		{op: wire.OpAddWatch, rec: rKind("/hidden", 0), want: "OK 0"},
		{op: wire.OpAddWatch, rec: rKind("/", 1), want: "OK 0"},
		{op: wire.OpExists, rec: rWatch("/hidden/x"), want: "-101"},
	})
	owner.run(t, false, []step{
		{op: wire.OpSetData, rec: rSet("/hidden", "1"), want: "OK v1,0,0 len=1 kids=0"},
		{op: wire.OpCreate, rec: &wire.CreateRequest{Path: "/hidden/x", ACL: []kv.ACL{{Perms: 31, Scheme: "auth"}}}, want: "OK /hidden/x"},
		{op: wire.OpSetData, rec: rSet("/seen", "1"), want: "OK v1,0,0 len=1 kids=0"},
	})
	other.run(t, false, []step{
		{op: wire.OpSync, rec: &wire.SyncRecord{Path: "/"}, want: "NodeDataChanged /seen; OK /"},
		{op: wire.OpCheckWatches, rec: rKind("/hidden/x", 2), want: "-121"},
		{op: wire.OpAuth, rec: &wire.AuthRequest{Scheme: "digest", Auth: []byte("u:p")}, want: "OK zxid=0"},
	})
	owner.run(t, false, []step{{op: wire.OpSetData, rec: rSet("/hidden", "2"), want: "OK v2,1,0 len=1 kids=1"}})
	other.run(t, false, []step{{op: wire.OpSync, rec: &wire.SyncRecord{Path: "/"}, want: "NodeDataChanged /hidden; OK /"}})
}

// What a connection has needed for a thousand requests at once it does not keep.
func TestIdleConnectionsAreSmall(t *testing.T) {
	_, addr := startSingle(t, nil)
	const conns, each = 100, 1000
	var batch []byte
	for range each {
		batch = append(batch, request(1, wire.OpExists, record(rRead("/a/node/that/is/not/there")))...)
	}
	dialRaw(t, addr).session() // what a first connection sets up
	before := liveBytes()
	answers := make([]byte, each*(4+wire.ReplyHeaderBytes))
	for range conns {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		_ = nc.SetDeadline(time.Now().Add(rawLimit))
		hello := frame(record(&wire.ConnectRequest{TimeoutMs: 40_000, Password: make([]byte, 16)}))
		if _, err := nc.Write(append(hello, batch...)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(nc, answers[:40]); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(nc, answers); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the connections are small", func() bool { return int64(liveBytes())-int64(before) < conns*16<<10 })
}
