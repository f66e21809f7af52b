package ensemble

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// openACL is what the raw tests create nodes with.
var openACL = []kv.ACL{{Perms: 31, Scheme: "world", ID: "anyone"}}

// shortSessions makes session time-outs of 100 ms and more possible.
func shortSessions(c *Config) {
	c.TickTime, c.SyncLimit, c.InitLimit = tick, 100, 200
	c.MaxSessionTimeout = 10 * time.Second
}

func createRequest(xid int32, path string, flags int32) []byte {
	return request(xid, wire.OpCreate, record(&wire.CreateRequest{Path: path, ACL: openACL, Flags: flags}))
}

func TestSessionExpiryRemovesEphemerals(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tr := startTrio(t, shortSessions)
	leader := tr.serving(ctx, 0, 1, 2)
	watcher, err := tr.members[leader].Client(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()

	for _, at := range []int{leader, (leader + 1) % 3} {
		path := fmt.Sprintf("/e%d", at)
		r := dialRaw(t, tr.peers[at].ClientAddr)
		if s := r.connect(wire.ConnectRequest{TimeoutMs: 400, Password: make([]byte, 16)}); s.TimeoutMs != 400 {
			t.Fatalf("time-out %d", s.TimeoutMs)
		}
		r.send(createRequest(1, path, kv.FlagEphemeral))
		r.wantReply(1, kv.CodeOK)
		if err := watcher.Sync(ctx, "/"); err != nil {
			t.Fatal(err)
		}
		_, gone, err := watcher.ExistsWatch(ctx, path)
		if err != nil {
			t.Fatal(err)
		}
		// While pings come, on a follower too, the session lives.
		for range 10 {
			time.Sleep(100 * time.Millisecond) // what a client does between two pings
			r.send(request(wire.XidPing, wire.OpPing, nil))
			r.wantReply(wire.XidPing, kv.CodeOK)
		}
		if _, err := watcher.Exists(ctx, path); err != nil {
			t.Fatalf("the session did not outlive its time-out although it was kept alive: %v", err)
		}
		// Silence ends it, and the connection with it.
		select {
		case e := <-gone:
			if int32(e.Type) != wire.EventDeleted {
				t.Fatalf("event %+v", e)
			}
		case <-ctx.Done():
			t.Fatal("the ephemeral stays")
		}
		r.wantClosed()
	}
}

func TestSessionMovesToAnotherMember(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tr := startTrio(t, nil)
	leader := tr.serving(ctx, 0, 1, 2)
	a, b := (leader+1)%3, (leader+2)%3
	first := dialRaw(t, tr.peers[a].ClientAddr)
	s := first.session()
	first.send(createRequest(1, "/mine", kv.FlagEphemeral))
	h, _ := first.wantReply(1, kv.CodeOK)

	// A wrong password at another member harms nobody.
	wrong := make([]byte, 16)
	bad := dialRaw(t, tr.peers[b].ClientAddr)
	if got := bad.connect(wire.ConnectRequest{TimeoutMs: 10_000, Session: s.Session, Password: wrong}); got.Session != 0 {
		t.Fatal("wrong password accepted")
	}
	first.send(request(2, wire.OpExists, record(&wire.PathWatchRequest{Path: "/mine"})))
	first.wantReply(2, kv.CodeOK)

	// The right one moves the session. Until the other member has seen what the client has, it does not answer.
	var second *raw
	for {
		second = dialRaw(t, tr.peers[b].ClientAddr)
		second.send(frame(record(&wire.ConnectRequest{TimeoutMs: 10_000, LastZxidSeen: h.Zxid, Session: s.Session, Password: s.Password[:]})))
		if _, err := second.fr.Next(); err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("the session does not move")
		}
	}
	second.send(request(3, wire.OpExists, record(&wire.PathWatchRequest{Path: "/mine"})))
	second.wantReply(3, kv.CodeOK)
	second.send(createRequest(4, "/more", kv.FlagEphemeral))
	second.wantReply(4, kv.CodeOK)

	// A write on the old connection finds that the session has moved; the connection ends without a word.
	first.send(createRequest(5, "/late", kv.FlagEphemeral))
	first.wantClosed()
	second.send(request(6, wire.OpExists, record(&wire.PathWatchRequest{Path: "/late"})))
	second.wantReply(6, kv.CodeNoNode)

	// Closing it removes both ephemerals, here before the reply.
	second.send(request(7, wire.OpExists, record(&wire.PathWatchRequest{Path: "/mine", Watch: true})))
	second.wantReply(7, kv.CodeOK)
	second.send(request(8, wire.OpCloseSession, nil))
	if e, body := second.reply(); e.Xid != wire.XidEvent {
		t.Fatalf("reply %+v before the event", e)
	} else {
		var ev wire.WatcherEvent
		if err := wire.Decode(body, &ev); err != nil || ev.Type != wire.EventDeleted || ev.Path != "/mine" {
			t.Fatalf("event %+v %v", ev, err)
		}
	}
	second.wantReply(8, kv.CodeOK)
	second.wantClosed()
}

// Writers change nodes while readers read them with watches, all pipelined on raw connections of two members. The
// stream of each connection must satisfy: an event comes after the reply that set its watch and before any reply that
// shows its change; no change after a watch was set is missed; header zxids never fall.
func TestWatchEventsAndRepliesKeepTheirOrder(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	tr := startTrio(t, nil)
	tr.serving(ctx, 0, 1, 2)
	const nodes, readers = 4, 4
	rounds := 300
	if testing.Short() {
		rounds = 60
	}
	setup := dialRaw(t, tr.peers[0].ClientAddr)
	setup.session()
	for n := range nodes {
		setup.send(createRequest(int32(n+1), fmt.Sprintf("/w%d", n), 0))
		setup.wantReply(int32(n+1), kv.CodeOK)
	}
	for _, m := range tr.members {
		c, err := m.Client(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Sync(ctx, "/"); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}

	var stop atomic.Bool
	var writers, wg sync.WaitGroup
	for w := range 2 {
		c, err := tr.members[w].Client(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		writers.Go(func() {
			for i := 0; !stop.Load(); i++ {
				if _, err := c.Set(ctx, fmt.Sprintf("/w%d", i%nodes), nil, -1); err != nil {
					t.Errorf("writer: %v", err)
					return
				}
			}
		})
	}
	for id := range readers {
		r := dialRaw(t, tr.peers[id%2].ClientAddr)
		r.session()
		wg.Go(func() { watchOrder(t, r, nodes, rounds, id%2 == 0) })
	}
	wg.Wait()
	stop.Store(true)
	writers.Wait()
}

// watchOrder reads nodes with watches and checks the stream. own: it also writes, so that reads queue behind writes.
func watchOrder(t *testing.T, r *raw, nodes, rounds int, own bool) {
	xid := int32(100)
	version := make([]int32, nodes) // newest seen
	armed := make([]int32, nodes)   // version at which a watch was set, -1: none
	for n := range armed {
		armed[n] = -1
	}
	var lastZxid int64
	for range rounds {
		var b []byte
		var reads []int
		for n := range nodes {
			if own && n%2 == 0 {
				b = append(b, request(xid, wire.OpSetData, record(&wire.SetDataRequest{Path: fmt.Sprintf("/w%d", n), Version: -1}))...)
				reads = append(reads, ^n)
				xid++
			}
			b = append(b, request(xid, wire.OpGetData, record(&wire.PathWatchRequest{Path: fmt.Sprintf("/w%d", n), Watch: true}))...)
			reads = append(reads, n)
			xid++
		}
		if _, err := r.nc.Write(b); err != nil {
			t.Error(err)
			return
		}
		want := xid - int32(len(reads))
		for len(reads) > 0 {
			frame, err := r.fr.Next()
			if err != nil {
				t.Errorf("read: %v", err)
				return
			}
			h, body, err := wire.SplitReply(slices.Clone(frame))
			if err != nil {
				t.Error(err)
				return
			}
			if h.Zxid < lastZxid {
				t.Errorf("zxid falls from %d to %d", lastZxid, h.Zxid)
				return
			}
			lastZxid = h.Zxid
			if h.Xid == wire.XidEvent {
				var e wire.WatcherEvent
				var n int
				if err := wire.Decode(body, &e); err != nil {
					t.Error(err)
					return
				}
				if _, err := fmt.Sscanf(e.Path, "/w%d", &n); err != nil {
					t.Error(err)
					return
				}
				if armed[n] < 0 {
					t.Errorf("event for %s before the reply that set its watch", e.Path)
					return
				}
				armed[n] = -1
				continue
			}
			if h.Xid != want || h.Err != kv.CodeOK {
				t.Errorf("reply %d err %v, want %d", h.Xid, h.Err, want)
				return
			}
			want++
			n := reads[0]
			reads = reads[1:]
			var stat kv.Stat
			if n < 0 {
				n = ^n
				var s wire.StatResponse
				_ = wire.Decode(body, &s)
				stat = s.Stat
			} else {
				var d wire.DataResponse
				_ = wire.Decode(body, &d)
				stat = d.Stat
			}
			if stat.Version < version[n] {
				t.Errorf("/w%d: version falls from %d to %d", n, version[n], stat.Version)
				return
			}
			version[n] = stat.Version
			if armed[n] >= 0 && stat.Version != armed[n] {
				t.Errorf("/w%d: version %d shown while the watch set at %d has not fired", n, stat.Version, armed[n])
				return
			}
			if isRead(body) {
				armed[n] = stat.Version
			}
		}
	}
}

// isRead tells a getData reply (data, then Stat) from a setData reply (Stat alone).
func isRead(body []byte) bool { return len(body) != 68 }
