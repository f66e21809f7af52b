package ensemble

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"kvd/ensemble/replica"
	"kvd/kv"
	"kvd/kv/wire"
)

// newTestConn is a connection that nobody serves, and the intake it pushes into.
func newTestConn(t *testing.T, maxCount int) (*conn, *intake) {
	t.Helper()
	in := newIntake(1, maxCount, 1<<20, newWaker())
	port := &clientPort{cfg: &Config{}, intake: in, maxEventBytes: maxPortEventBytes, clock: &tickClock{}, maxFrame: 1 << 10}
	nc, other := net.Pipe()
	t.Cleanup(func() { _, _ = nc.Close(), other.Close() })
	return newConn(port, nc), in
}

// The end of a connection comes behind everything that it pushed, once, and nothing of it comes later.
func TestEndOfAConnectionFollowsItsRequests(t *testing.T) {
	c, in := newTestConn(t, 10)
	op := func() *slot { return &slot{conn: c, kind: slotWrite, cost: 1} }
	if !in.push([]*slot{op(), op()}) {
		t.Fatal("not taken")
	}
	c.close("")
	c.close("")
	in.end(c)
	if in.push([]*slot{op()}) {
		t.Error("a request was taken after the end of its connection")
	}
	var b intakeBatch
	in.drain(&b)
	if len(b.ops) != 2 || b.ops[0].Conn != c.id || !slices.Equal(b.ends, []uint64{c.id}) {
		t.Errorf("operations %v, ends %v", b.ops, b.ends)
	}
	in.drain(&b)
	if len(b.ops) != 0 || len(b.ends) != 0 {
		t.Errorf("once more: operations %v, ends %v", b.ops, b.ends)
	}
}

// A connection that pushed nothing has no end to tell: most connections of a monitor are such.
func TestConnectionWithoutRequestsTellsNoEnd(t *testing.T) {
	c, in := newTestConn(t, 10)
	c.close("")
	var b intakeBatch
	if in.drain(&b); len(b.ends) != 0 {
		t.Errorf("ends %v", b.ends)
	}
}

// A reader that waits for room leaves when its connection ends, and what it did not get in stays out.
func TestReaderThatWaitsForRoomLeavesAtTheEnd(t *testing.T) {
	c, in := newTestConn(t, 1)
	done := make(chan bool)
	go func() {
		done <- in.push([]*slot{{conn: c, kind: slotWrite, cost: 1}, {conn: c, kind: slotWrite, cost: 1}})
	}()
	eventually(t, "the reader waits", func() bool {
		in.mu.Lock()
		defer in.mu.Unlock()
		return in.waiting == 1
	})
	c.close("")
	if <-done {
		t.Error("everything was taken")
	}
	if n := in.outstanding(); n != 1 {
		t.Errorf("%d requests outstanding", n)
	}
}

// A result for a connection that has gone is counted once.
func TestStaleReplyIsCountedOnce(t *testing.T) {
	c, _ := newTestConn(t, 1)
	c.close("")
	a := &applier{port: c.port, current: []*slot{{conn: c, kind: slotWrite, op: wire.OpDelete}}}
	a.Done(1, &kv.TxnHeader{Kind: kv.OpDelete}, &kv.Result{}, nil)
	if n := c.port.counters.staleReplies.Load(); n != 1 {
		t.Errorf("counted %d times", n)
	}
}

// closeOthers leaves member at alone, and waits until it knows.
func (tr *trio) closeOthers(at int) {
	tr.t.Helper()
	for i, m := range tr.members {
		if i != at {
			_ = m.Close()
		}
	}
	eventually(tr.t, "the gate is shut", func() bool { return !tr.members[at].port.gate.isOpen() })
}

// onlyConn returns the one connection of a member.
func (m *Member) onlyConn(t *testing.T) (c *conn) {
	t.Helper()
	m.port.each(func(x *conn) { c = x })
	if c == nil || m.port.connections() != 1 {
		t.Fatalf("%d connections", m.port.connections())
	}
	return c
}

// A write and a new session that wait for a leader are dropped with their connections, after the patience of the client
// port and long before that of the queue: a leader that comes later must not carry them out. Their places are free.
func TestQueuedRequestsEndWithTheirConnection(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	tr := startTrio(t, nil)
	at := (tr.serving(ctx, 0, 1, 2) + 1) % 3
	m := tr.members[at]
	r := dialRaw(t, tr.peers[at].ClientAddr)
	first := r.session()
	c := m.onlyConn(t)
	tr.closeOthers(at)
	// The gate holds the reader back; these were already read.
	rec := wire.CreateRequest{Path: "/late", ACL: openACL}
	late := m.port.ids.new()
	if !m.intake.push([]*slot{
		{conn: c, kind: slotWrite, op: wire.OpCreate, session: first.Session, body: record(&rec), cost: slotOverhead},
		{conn: c, kind: slotCreate, op: wire.OpCreateSession, session: late, body: newSessionBody(c), cost: slotOverhead},
	}) {
		t.Fatal("not taken")
	}
	if n := m.Status().Outstanding; n != 2 {
		t.Fatalf("%d requests outstanding", n)
	}
	r.wantClosed()
	eventually(t, "their places in the intake are free", func() bool { return m.intake.outstanding() == 0 })
	if n := m.port.counters.staleDropped.Load(); n != 2 {
		t.Errorf("%d requests of connections that had ended are counted, want 2", n)
	}
	eventually(t, "the replica has forgotten the connection", func() bool {
		s := m.status.Load()
		return s.Connections == 0 && s.Queued == 0 && s.QueuedBytes == 0
	})
	for i := range tr.members {
		if i != at {
			tr.restart(i)
		}
	}
	tr.serving(ctx, 0, 1, 2)
	cl, err := m.Client(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.Sync(ctx, "/"); err != nil {
		t.Fatal(err)
	}
	v := m.tree.View()
	if _, err := v.Exists("/late"); kv.CodeOf(err) != kv.CodeNoNode {
		t.Errorf("the write of a connection that had ended was executed: %v", err)
	}
	if _, ok := v.Session(late); ok {
		t.Error("a session was created for a connection that had ended")
	}
}

// Sessions pipeline creates through a follower while its leader goes away. What is executed of each is a prefix of what it
// sent, and when its connections have ended nothing of them is left at the member.
func TestConnectionExecutesAPrefix(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	tr := startTrio(t, nil)
	leader := tr.serving(ctx, 0, 1, 2)
	at := (leader + 1) % 3
	const conns = 24
	stop := make(chan struct{})
	sent := make(chan int, conns)
	var raws []*raw
	for range conns {
		r := dialRaw(t, tr.peers[at].ClientAddr)
		r.session()
		raws = append(raws, r)
	}
	for k, r := range raws {
		go func() { _, _ = io.Copy(io.Discard, r.nc) }()
		go func() {
			n := 0
			defer func() {
				_ = r.nc.Close()
				sent <- n
			}()
			for ; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := r.nc.Write(createRequest(int32(n+1), fmt.Sprintf("/q-%02d-%07d", k, n), 0)); err != nil {
					return // the member has closed it
				}
				if n%4 == 3 {
					time.Sleep(time.Millisecond) // a stream, not a flood: the intake shall have something at any time
				}
			}
		}()
	}
	m := tr.members[at]
	eventually(t, "writes are under way", func() bool { return m.Status().Nodes > 500 })
	_ = tr.members[leader].Close()
	eventually(t, "an election", func() bool { l := m.Status().Leader; return l != 0 && l != MemberID(leader+1) && m.Status().Serving })
	c, err := m.Client(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	write(t, ctx, c, "/next")
	close(stop)
	n := 0
	for range conns {
		n += <-sent
	}
	// A write of its own comes after everything that was still on its way.
	write(t, ctx, c, "/last")
	names, _, err := c.Children(ctx, "/")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	next := map[string]int{}
	for _, name := range names {
		var k, i int
		if _, err := fmt.Sscanf(name, "q-%d-%d", &k, &i); err != nil {
			continue
		}
		conn := name[:5]
		if i != next[conn] {
			t.Errorf("a hole: after %d writes of %s comes %s", next[conn], conn, name)
		}
		next[conn] = i + 1
	}
	if len(next) < conns/2 {
		t.Errorf("writes of %d connections were executed, of %d", len(next), conns)
	}
	t.Logf("sent %d, executed %d", n, len(names)-2)
	eventually(t, "nothing of the ended connections is left", func() bool {
		return m.intake.outstanding() == 0 && m.status.Load().Connections <= 1 // the client's
	})
}

// newSessionBody is a createSession of connection c.
func newSessionBody(c *conn) []byte {
	return replica.AppendCreateSession(nil, c.timeoutMs.Load(), newPassword())
}
