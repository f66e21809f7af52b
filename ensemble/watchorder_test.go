package ensemble

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// Readers with persistent and recursive watches, and one-shot ones on the same paths, while others write. Every change
// is one event, however many watches tell of it: at every reply that shows a version of a node, exactly as many events
// about it have come as it has changed, and header zxids never fall.
func TestPersistentWatchesMissNothingAndTellOnce(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	tr := startTrio(t, nil)
	tr.serving(ctx, 0, 1, 2)
	const nodes = 4
	rounds := 200
	if testing.Short() {
		rounds = 40
	}
	setup := talk(t, tr.peers[0].ClientAddr)
	setup.run(t, false, []step{{op: wire.OpCreate, rec: rCreate("/p", "", 0), want: "OK /p"}})
	for n := range nodes {
		p := fmt.Sprintf("/p/w%d", n)
		setup.run(t, false, []step{{op: wire.OpCreate, rec: rCreate(p, "", 0), want: "OK " + p}})
	}
	var stop atomic.Bool
	var writers, wg sync.WaitGroup
	for w := range 2 {
		c, err := tr.members[w].Client(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.Sync(ctx, "/"); err != nil {
			t.Fatal(err)
		}
		writers.Go(func() {
			for i := 0; !stop.Load(); i++ {
				if _, err := c.Set(ctx, fmt.Sprintf("/p/w%d", i%nodes), nil, -1); err != nil {
					t.Errorf("writer: %v", err)
					return
				}
			}
		})
	}
	for id := range 4 {
		r := talk(t, tr.peers[id%2].ClientAddr)
		wg.Go(func() {
			if err := persistentOrder(r, nodes, rounds, id < 2, id%2 == 0); err != nil {
				t.Errorf("reader %d: %v", id, err)
			}
		})
	}
	wg.Wait()
	stop.Store(true)
	writers.Wait()
}

// persistentOrder reads nodes and checks the stream. recursive: one watch above them instead of one each. own: it
// writes, too.
func persistentOrder(k *talker, nodes, rounds int, recursive, own bool) error {
	type state struct{ events, version, baseEvents, baseVersion int32 }
	of := make([]state, nodes)
	based := false
	var lastZxid int64
	// exchange sends requests at once and checks what comes until all of them are answered.
	exchange := func(ops []wire.Op, recs []wire.Record, about []int) error {
		var b []byte
		first := k.xid + 1
		for i := range ops {
			k.xid++
			b = append(b, request(k.xid, ops[i], record(recs[i]))...)
		}
		if _, err := k.nc.Write(b); err != nil {
			return err
		}
		for i := 0; i < len(ops); {
			f, err := k.fr.Next()
			if err != nil {
				return err
			}
			h, body, err := wire.SplitReply(f)
			if err != nil {
				return err
			}
			if h.Zxid < lastZxid {
				return fmt.Errorf("zxid falls from %d to %d", lastZxid, h.Zxid)
			}
			lastZxid = h.Zxid
			if h.Xid == wire.XidEvent {
				var e wire.WatcherEvent
				var n int
				if err := wire.Decode(body, &e); err != nil {
					return err
				}
				if _, err := fmt.Sscanf(strings.TrimPrefix(e.Path, "/p/"), "w%d", &n); err != nil || e.Type != wire.EventDataChanged {
					return fmt.Errorf("event %+v", e)
				}
				of[n].events++
				continue
			}
			if h.Xid != first+int32(i) || h.Err != kv.CodeOK {
				return fmt.Errorf("reply %+v, want xid %d", h, first+int32(i))
			}
			n, op := about[i], ops[i]
			i++
			if n < 0 {
				continue
			}
			var stat kv.Stat
			switch op {
			case wire.OpGetData:
				var d wire.DataResponse
				err = wire.Decode(body, &d)
				stat = d.Stat
			default:
				var s wire.StatResponse
				err = wire.Decode(body, &s)
				stat = s.Stat
			}
			if err != nil {
				return err
			}
			s := &of[n]
			if based && stat.Version-s.baseVersion != s.events-s.baseEvents {
				return fmt.Errorf("w%d: %d changes shown, %d events", n, stat.Version-s.baseVersion, s.events-s.baseEvents)
			}
			s.version = stat.Version
		}
		return nil
	}
	paths := make([]string, nodes)
	for n := range paths {
		paths[n] = fmt.Sprintf("/p/w%d", n)
	}
	watch := func() ([]wire.Op, []wire.Record, []int) {
		if recursive {
			return []wire.Op{wire.OpAddWatch}, []wire.Record{rKind("/p", 1)}, []int{-1}
		}
		var ops []wire.Op
		var recs []wire.Record
		var about []int
		for _, p := range paths {
			ops, recs, about = append(ops, wire.OpAddWatch), append(recs, rKind(p, 0)), append(about, -1)
		}
		return ops, recs, about
	}
	ops, recs, about := watch()
	// What happened while it was set has been told when a sync is answered.
	ops, recs, about = append(ops, wire.OpSync), append(recs, &wire.SyncRecord{Path: "/"}), append(about, -1)
	for n, p := range paths {
		ops, recs, about = append(ops, wire.OpGetData), append(recs, rRead(p)), append(about, n)
	}
	if err := exchange(ops, recs, about); err != nil {
		return err
	}
	for n := range of {
		of[n].baseEvents, of[n].baseVersion = of[n].events, of[n].version
	}
	based = true
	for round := range rounds {
		ops, recs, about = nil, nil, nil
		for n, p := range paths {
			if own && (n+round)%3 == 0 {
				ops, recs, about = append(ops, wire.OpSetData), append(recs, rSet(p, "")), append(about, n)
			}
			rec := rRead(p)
			rec.Watch = (n+round)%2 == 0 // one-shot, beside the persistent one
			ops, recs, about = append(ops, wire.OpGetData), append(recs, rec), append(about, n)
			if (n+round)%7 == 0 { // once more: nothing changes
				o, r, a := watch()
				ops, recs, about = append(ops, o...), append(recs, r...), append(about, a...)
			}
		}
		if err := exchange(ops, recs, about); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	return nil
}

// A setWatches of the largest frame: hundreds of thousands of paths, every one of them with an event, which all come
// before the reply; the same when all of them are set and then fire at once. Others are served meanwhile.
func TestLargestSetWatches(t *testing.T) {
	m, addr := startSingle(t, nil)
	other, k := talk(t, addr), talk(t, addr)
	other.run(t, false, []step{{op: wire.OpCreate, rec: rCreate("/x", "", 0), want: "OK /x"}})
	var q wire.SetWatchesRequest
	room := 0xfffff - wire.RequestHeaderBytes - 8 - 12
	for i := 0; room >= 16; i++ {
		p := fmt.Sprintf("/m%d", i)
		q.Data = append(q.Data, p)
		room -= 4 + len(p)
	}
	n := len(q.Data)
	other.xid++
	other.send(request(other.xid, wire.OpSetWatches, record(&q)))
	for i := range 50 { // while the events of the other connection, which nobody reads, fill its socket
		k.run(t, false, []step{{op: wire.OpSetData, rec: rSet("/x", ""), want: fmt.Sprintf("OK v%d,0,0 len=0 kids=0", i+1)}})
	}
	for i := range n {
		h, body := other.reply()
		var e wire.WatcherEvent
		if err := wire.Decode(body, &e); err != nil || h.Xid != wire.XidEvent || h.Zxid != -1 || e.Type != wire.EventDeleted || e.Path != q.Data[i] {
			t.Fatalf("event %d: %+v %+v %v", i, h, e, err)
		}
	}
	other.wantReply(other.xid, kv.CodeOK)
	if c := m.tree.WatchCount(); c != 0 {
		t.Fatalf("%d watches are set", c)
	}
	// All on missing nodes: set, no event.
	q.Exist, q.Data = q.Data, nil
	other.xid++
	other.send(request(other.xid, wire.OpSetWatches, record(&q)))
	other.wantReply(other.xid, kv.CodeOK)
	if c := m.tree.WatchCount(); c != n {
		t.Fatalf("%d watches are set, want %d", c, n)
	}
	_ = other.nc.Close()
	eventually(t, "the watches are gone", func() bool { return m.tree.WatchCount() == 0 })
}

// A client that does not read while a storm of events goes on is cut after its session's time-out; nobody waits for it.
func TestWatcherThatDoesNotReadIsCut(t *testing.T) {
	m, addr := startSingle(t, shortSessions)
	k := talk(t, addr)
	long := "/" + strings.Repeat("n", 1000)
	k.run(t, false, []step{{op: wire.OpCreate, rec: rCreate(long, "", 0), want: "OK " + long}})
	r := dialRaw(t, addr)
	r.connect(wire.ConnectRequest{TimeoutMs: 700, Password: make([]byte, 16)})
	r.send(request(1, wire.OpAddWatch, record(rKind(long, 0))))
	r.wantReply(1, kv.CodeOK)
	stop := time.Now().Add(rawLimit)
	for m.port.connections() > 1 {
		if time.Now().After(stop) {
			t.Fatal("the connection is still there")
		}
		var b []byte
		for range 500 {
			b = wire.AppendMultiOp(b, wire.OpSetData, rSet(long, ""))
		}
		k.xid++
		k.send(request(k.xid, wire.OpMulti, wire.AppendMultiEnd(b)))
		k.wantReply(k.xid, kv.CodeOK)
		_, _ = r.nc.Write(request(wire.XidPing, wire.OpPing, nil)) // it lives
	}
	eventually(t, "its events are off the account", func() bool { return m.port.eventBytes.Load() == 0 })
}

// A write on the old connection of a moved session ends that connection without an answer; reads still get one. The end
// of the session is the exception: whoever asks, it ends, and the new connection with it (zookeeper-protocol 1.7).
func TestOldConnectionOfAMovedSession(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	tr := startTrio(t, nil)
	tr.serving(ctx, 0, 1, 2)
	for _, end := range []bool{false, true} {
		old := dialRaw(t, tr.peers[0].ClientAddr)
		s := old.session()
		old.send(createRequest(1, "/mine", kv.FlagEphemeral))
		old.wantReply(1, kv.CodeOK)
		moved := dialRaw(t, tr.peers[1].ClientAddr)
		if got := moved.connect(wire.ConnectRequest{TimeoutMs: 10_000, Session: s.Session, Password: s.Password[:], LastZxidSeen: 0}); got.Session != s.Session {
			t.Fatalf("not resumed: %+v", got)
		}
		old.send(request(2, wire.OpGetData, record(rRead("/mine"))))
		old.wantReply(2, kv.CodeOK)
		if end {
			old.send(request(3, wire.OpCloseSession, nil))
			old.wantReply(3, kv.CodeOK)
			old.wantClosed()
			moved.wantClosed()
			continue
		}
		old.send(request(3, wire.OpSetData, record(rSet("/mine", "x"))))
		old.wantClosed()
		moved.send(request(4, wire.OpGetData, record(rRead("/mine"))))
		if _, body := moved.wantReply(4, kv.CodeOK); len(body) < 4 {
			t.Fatal("no body")
		}
		moved.send(request(5, wire.OpCloseSession, nil))
		moved.wantReply(5, kv.CodeOK)
	}
}

// Requests of one connection that touch watches, and its writes behind them, all in one segment: the writes meet the
// watches as they are at their place.
func TestWritesMeetTheWatchesBeforeThem(t *testing.T) {
	_, addr := startSingle(t, nil)
	k := talk(t, addr)
	k.run(t, false, []step{{op: wire.OpCreate, rec: rCreate("/p", "", 0), want: "OK /p"}})
	type part struct {
		op   wire.Op
		rec  wire.Record
		want string
	}
	for round := range 50 {
		var b []byte
		parts := []part{
			{wire.OpAddWatch, rKind("/p", 1), "OK 0"},
			{wire.OpCreate, rCreate("/p/x", "", 0), "NodeCreated /p/x; OK /p/x"},
			{wire.OpSetData, rSet("/p/x", "1"), "NodeDataChanged /p/x; OK v1,0,0 len=1 kids=0"},
			{wire.OpRemoveWatches, rKind("/p", 3), "OK"},
			{wire.OpSetData, rSet("/p/x", "22"), "OK v2,0,0 len=2 kids=0"},
			{wire.OpGetChildren, rWatch("/p"), "OK [x]"},
			{wire.OpExists, rWatch("/p/x"), "OK v2,0,0 len=2 kids=0"},
			{wire.OpDelete, rDelete("/p/x"), "NodeDeleted /p/x; NodeChildrenChanged /p; OK"},
			{wire.OpCheckWatches, rKind("/p", 3), "-121"},
		}
		first := k.xid
		for i, p := range parts {
			b = append(b, request(first+int32(i)+1, p.op, record(p.rec))...)
		}
		cut := round * len(b) / 50
		k.send(b[:cut])
		k.send(b[cut:])
		for _, p := range parts {
			k.xid++
			if got := k.hear(p.op); got != p.want {
				t.Fatalf("round %d, %v: got %s, want %s", round, p.op, got, p.want)
			}
		}
	}
}
