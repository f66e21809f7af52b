package ensemble

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// A client that sends without reading is stopped by bounds, costs bounded memory, is cut after its session's
// time-out, and slows nobody else.
func TestClientThatDoesNotReadIsBoundedAndCut(t *testing.T) {
	m, addr := startSingle(t, shortSessions)
	setup := dialRaw(t, addr)
	setup.session()
	setup.send(request(1, wire.OpCreate, record(&wire.CreateRequest{Path: "/fat", Data: make([]byte, 200<<10), ACL: openACL})))
	setup.wantReply(1, kv.CodeOK)

	slow := dialRaw(t, addr)
	slow.connect(wire.ConnectRequest{TimeoutMs: 700, Password: make([]byte, 16)})
	read := request(1, wire.OpGetData, record(&wire.PathWatchRequest{Path: "/fat"}))
	sent := make(chan int)
	go func() {
		n := 0
		_ = slow.nc.SetWriteDeadline(time.Now().Add(rawLimit))
		for {
			if _, err := slow.nc.Write(read); err != nil {
				sent <- n
				return
			}
			n++
		}
	}()
	// Meanwhile others are served.
	for i := range 50 {
		setup.send(createRequest(int32(10+i), fmt.Sprintf("/o%d", i), 0))
		setup.wantReply(int32(10+i), kv.CodeOK)
	}
	n := <-sent // the write fails when the server has cut the connection
	eventually(t, "the connection is forgotten", func() bool { return m.Status().Connections == 1 })
	// The server took in at most its bounds of slots and what fits into socket buffers.
	if limit := maxConnSlots + 64<<20/len(read); n > limit {
		t.Errorf("%d requests were taken, more than %d", n, limit)
	}
}

// More writes than the member's own bound wait at the clients' sockets; all of them are answered in the end.
func TestIntakeBoundHoldsClientsBack(t *testing.T) {
	m, addr := startSingle(t, func(c *Config) { c.MaxOutstandingRequests = 8 })
	const conns, each = 4, 200
	done := make(chan error, conns)
	for i := range conns {
		r := dialRaw(t, addr)
		r.session()
		go func() {
			var b []byte
			for j := range each {
				b = append(b, createRequest(int32(j), fmt.Sprintf("/c%d-%d", i, j), 0)...)
			}
			if _, err := r.nc.Write(b); err != nil {
				done <- err
				return
			}
			for j := range each {
				f, err := r.fr.Next()
				if err != nil {
					done <- err
					return
				}
				if h, _, _ := wire.SplitReply(f); h.Xid != int32(j) || h.Err != kv.CodeOK {
					done <- fmt.Errorf("reply %+v, want %d", h, j)
					return
				}
			}
			done <- nil
		}()
	}
	for left := conns; left > 0; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			left--
		default:
			if n := m.intake.outstanding(); n > 8 {
				t.Fatalf("%d outstanding, bound 8", n)
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// pipedConn is a connection without a handshake whose client end takes nothing before it is read.
func pipedConn(t *testing.T, m *Member) (*conn, net.Conn) {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { _ = near.Close() })
	if !m.port.serve(far) {
		t.Fatal("refused")
	}
	_ = near.SetDeadline(time.Now().Add(rawLimit))
	var c *conn
	eventually(t, "the connection is known", func() bool {
		m.port.each(func(o *conn) { c = o })
		return c != nil
	})
	return c, near
}

// Watch events that a client lets pile up are bounded: when all connections together have too many, one with more than
// its share is cut. The applier does not wait.
func TestEventsOfAClientThatDoesNotReadAreBounded(t *testing.T) {
	m, _ := startSingle(t, nil)
	m.port.maxEventBytes = 2 * maxConnEventBytes
	c, near := pipedConn(t, m)
	path := "/" + strings.Repeat("x", 1000)
	for i := range m.port.maxEventBytes/1000 + 1 {
		c.Event(kv.Event{Type: kv.EventNodeCreated, Path: path, Zxid: kv.Zxid(i + 1)})
	}
	if _, err := near.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("read: %v", err)
	}
	eventually(t, "the account is settled", func() bool { return m.port.eventBytes.Load() == 0 })
}

// Any number of watches may fire at once: that alone is no reason to cut a client that reads.
func TestAStormOfEventsReachAClientThatReads(t *testing.T) {
	m, addr := startSingle(t, nil)
	r := dialRaw(t, addr)
	r.session()
	c := m.onlyConn(t)
	const n = 300_000
	z := m.port.settled()
	for range n {
		c.Event(kv.Event{Type: kv.EventNodeDataChanged, Path: "/storm/of/events", Zxid: z})
	}
	c.wake.signal()
	for i := range n {
		f, err := r.fr.Next()
		if err != nil {
			t.Fatalf("event %d: %v", i, err)
		}
		if h, _, _ := wire.SplitReply(f); h.Xid != wire.XidEvent || h.Zxid != int64(z) {
			t.Fatalf("event %d: %+v", i, h)
		}
	}
	r.send(request(1, wire.OpExists, record(&wire.PathWatchRequest{Path: "/"})))
	r.wantReply(1, kv.CodeOK)
	if left := m.port.eventBytes.Load(); left != 0 {
		t.Errorf("%d bytes of events are still on the account", left)
	}
}

// During an election a follower keeps its connections: an idle one is not answered and lives, a session goes on
// with the new leader, and one whose forwarded write has an unknown outcome is closed.
func TestConnectionsOutliveAnElection(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tr := startTrio(t, nil)
	leader := tr.serving(ctx, 0, 1, 2)
	at := (leader + 1) % 3
	idle := dialRaw(t, tr.peers[at].ClientAddr)
	idle.session()
	idle.send(createRequest(1, "/e", kv.FlagEphemeral))
	idle.wantReply(1, kv.CodeOK)
	if err := tr.members[leader].Close(); err != nil {
		t.Fatal(err)
	}
	// A write that still went to the old leader would have an unknown outcome.
	eventually(t, "the loss is noticed", func() bool { return tr.members[at].Status().Leader != MemberID(leader+1) })
	// Right into the election: it waits and is answered by the next term.
	idle.send(request(2, wire.OpGetData, record(&wire.PathWatchRequest{Path: "/e"})))
	idle.send(createRequest(3, "/after", 0))
	idle.wantReply(2, kv.CodeOK)
	h, _ := idle.wantReply(3, kv.CodeOK)
	if e := kv.Zxid(h.Zxid).Epoch(); e < 2 {
		t.Fatalf("answered in epoch %d", e)
	}
	if s := tr.members[at].Status(); s.Leader == MemberID(leader+1) {
		t.Fatalf("no election happened: %+v", s)
	}
}

// Without a quorum the survivor's connections are closed after a bounded wait, and new ones get no answer.
func TestWithoutAQuorumConnectionsAreClosedInTime(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tr := startTrio(t, nil)
	leader := tr.serving(ctx, 0, 1, 2)
	at := (leader + 1) % 3
	r := dialRaw(t, tr.peers[at].ClientAddr)
	if s := r.connect(wire.ConnectRequest{TimeoutMs: 4000, Password: make([]byte, 16)}); s.Session == 0 {
		t.Fatal("no session")
	}
	for i, m := range tr.members {
		if i != at {
			_ = m.Close()
		}
	}
	r.wantClosed() // a third of 4 s
	late := dialRaw(t, tr.peers[at].ClientAddr)
	late.send(frame(record(&wire.ConnectRequest{TimeoutMs: 4000, Password: make([]byte, 16)})))
	late.wantClosed()
	word := dialRaw(t, tr.peers[at].ClientAddr)
	word.send([]byte("srvr"))
	text, err := io.ReadAll(word.nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := wire.ParseSrvr(text)
	if err != nil || s.Serving || s.Member != uint64(at+1) || s.Health == "ok" {
		t.Fatalf("srvr: %+v %v\n%s", s, err, text)
	}
	// With a second member back the ensemble serves again.
	tr.restart(leader)
	tr.serving(ctx, at, leader)
}

// A read after a sync shows everything that was acknowledged anywhere before the sync was sent.
func TestReadAfterSyncIsFresh(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tr := startTrio(t, nil)
	leader := tr.serving(ctx, 0, 1, 2)
	writer, err := tr.members[leader].Client(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	write(t, ctx, writer, "/fresh")
	for i := range 3 {
		reader, err := tr.members[i].Client(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		for n := range 20 {
			want := fmt.Sprintf("%d-%d", i, n)
			if _, err := writer.Set(ctx, "/fresh", []byte(want), -1); err != nil {
				t.Fatal(err)
			}
			if err := reader.Sync(ctx, "/"); err != nil {
				t.Fatal(err)
			}
			got, _, err := reader.Get(ctx, "/fresh")
			if err != nil || string(got) != want {
				t.Fatalf("member %d reads %q after a sync, want %q (%v)", i+1, got, want, err)
			}
		}
	}
}

// With a raised limit a request of the largest size goes all the way: proposed, sent, logged and applied everywhere.
func TestLargestRequestWithARaisedLimit(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	const limit = 20 << 20
	tr := startTrio(t, func(c *Config) { c.MaxFrameBytes = limit })
	leader := tr.serving(ctx, 0, 1, 2)
	r := dialRaw(t, tr.peers[leader].ClientAddr)
	r.session()
	body := record(&wire.CreateRequest{Path: "/big", Data: make([]byte, limit-100), ACL: openACL})
	body = append(body, make([]byte, limit-wire.RequestHeaderBytes-len(body))...)
	r.send(request(1, wire.OpCreate, body))
	r.wantReply(1, kv.CodeOK)
	if err := tr.agree(ctx); err != nil {
		t.Fatal(err)
	}
}
