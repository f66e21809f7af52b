package replica

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"kvd/kv"
)

// Of the operations of one connection those that are executed are a prefix, in order: the tests of this file lose, give
// up or cancel one of them in each way that there is.

// has reports whether path exists in nd's tree.
func (nd *node) has(path string) bool {
	_, err := nd.tree.View().Exists(path)
	return err == nil
}

// submit hands in operations that must be taken.
func (nd *node) submit(ops ...ClientOp) {
	nd.lab.t.Helper()
	for _, op := range ops {
		if err := nd.r.Submit(op); err != nil {
			nd.lab.t.Fatal(err)
		}
	}
}

// loseLinks resets all links of nd; both sides know before anything else happens.
func (l *lab) loseLinks(nd *node) {
	for id, to := range nd.links {
		other := nd.peers[id]
		delete(to.links, other)
		delete(nd.links, id)
		to.r.LinkDown(nd.id, other)
		nd.r.LinkDown(to.id, id)
	}
}

// TestSubmitBehindALostOperationIsRefused: what is still on its way to the replica when the link breaks is submitted in the
// turn in which the loss is noticed, before the shell has read the report of it.
func TestSubmitBehindALostOperationIsRefused(t *testing.T) {
	l := newLab(t, 3, nil)
	nd := l.nodes[0]
	nd.open(1, 100)
	nd.submit(create(2, 100, "/lost"))
	nd.r.Ready() // forwarded; the network loses it
	l.loseLinks(nd)
	if err := nd.r.Submit(create(3, 100, "/behind")); !errors.Is(err, ErrBroken) {
		t.Errorf("submitted behind a lost operation: %v", err)
	}
	nd.submit(on(101, create(4, 100, "/next")))
	for range 60 {
		l.tick(false)
	}
	if nd.has("/lost") || nd.has("/behind") || !nd.has("/next") {
		t.Errorf("lost %v, behind it %v, of the next connection %v; failed %v", nd.has("/lost"), nd.has("/behind"), nd.has("/next"), nd.failed)
	}
	if want := []Failed{{2, 100, Unknown}}; !slices.Equal(nd.failed, want) {
		t.Errorf("failed %v, want %v", nd.failed, want)
	}
}

// TestNewLinkEndsWhatWasSentOnTheOldOne, also if nobody said that the old one had ended.
func TestNewLinkEndsWhatWasSentOnTheOldOne(t *testing.T) {
	l := newLab(t, 3, nil)
	nd := l.nodes[0]
	nd.open(1, 100)
	nd.submit(create(2, 100, "/lost"))
	nd.r.Ready() // forwarded; the network loses it
	nd.r.LinkUp(l.leader().id, 1000, true)
	if err := nd.r.Submit(create(3, 100, "/behind")); !errors.Is(err, ErrBroken) {
		t.Errorf("submitted behind a lost operation: %v", err)
	}
	l.run()
	if want := []Failed{{2, 100, Unknown}}; !slices.Equal(nd.failed, want) {
		t.Errorf("failed %v, want %v", nd.failed, want)
	}
}

// TestOperationGivenUpTakesTheLaterOnes, also those that have not waited too long themselves.
func TestOperationGivenUpTakesTheLaterOnes(t *testing.T) {
	l := newLab(t, 1, func(c *Config) { c.MaxOutstandingEntries = 1; c.QueueTicks = 10; c.SyncTicks = 1000 })
	nd := l.nodes[0]
	nd.open(1, 100)
	l.hold = true
	nd.submit(create(2, 100, "/a"))
	l.run()
	nd.submit(create(3, 100, "/k"))
	l.tick(false)
	nd.submit(create(4, 100, "/k+1"), on(101, create(5, 100, "/other")))
	for len(nd.failed) == 0 {
		l.tick(false)
	}
	l.hold = false // the disk comes back within the next tick
	nd.r.Persisted(nd.seq)
	l.run()
	if !nd.has("/a") || nd.has("/k") || nd.has("/k+1") || !nd.has("/other") {
		t.Errorf("executed %v, failed %v", nd.tokens, nd.failed)
	}
	if want := []Failed{{3, 100, NotSent}, {4, 100, NotSent}}; !slices.Equal(nd.failed, want) {
		t.Errorf("failed %v, want %v", nd.failed, want)
	}
}

// TestSubmitBehindARefusedOperationIsRefused, although there is room for it.
func TestSubmitBehindARefusedOperationIsRefused(t *testing.T) {
	l := newLab(t, 1, func(c *Config) { c.MaxPayloadBytes = 4096 })
	nd := l.nodes[0]
	nd.open(1, 100)
	nd.submit(create(2, 100, "/a"))
	if err := nd.r.Submit(set(3, 100, "/a", make([]byte, 3000))); !errors.Is(err, ErrTooLarge) {
		t.Fatal(err)
	}
	if err := nd.r.Submit(create(4, 100, "/b")); !errors.Is(err, ErrBroken) {
		t.Errorf("submitted behind a refused operation: %v", err)
	}
	l.run()
	if !nd.has("/a") || nd.has("/b") {
		t.Errorf("executed %v: want what came before the refused operation, and nothing else", nd.tokens)
	}
}

// TestStragglerOfAnEndedConnectionIsDropped: a client writes through a member without a leader, gives up, and writes the
// same session's next at another member. A change of leader later the first member finds a leader that does not know
// whose the session was.
func TestStragglerOfAnEndedConnectionIsDropped(t *testing.T) {
	l := newLab(t, 3, nil)
	a, b, ld := l.nodes[0], l.nodes[1], l.nodes[2]
	a.open(1, 100)
	a.down = true
	l.breakLinks(a)
	l.run()
	a.submit(create(2, 100, "/older"))
	a.r.Cancel(100)
	b.r.Revalidate(7, 77, 100, [16]byte{7}, 4000)
	l.run()
	if len(b.answers) != 1 || b.answers[0].Validity != Valid {
		t.Fatalf("%v", b.answers)
	}
	b.submit(on(7, create(3, 100, "/newer")))
	l.run()
	if !slices.Equal(b.results, []kv.Code{kv.CodeOK}) {
		t.Fatalf("%v", b.results)
	}
	a.down, ld.down = false, true
	l.loseLinks(ld)
	a.r.ElectionDown(3)
	b.r.ElectionDown(3)
	a.r.ElectionUp(2)
	b.r.ElectionUp(1)
	for range 100 {
		l.tick(false)
	}
	if !a.serving.Open || !b.serving.Open {
		t.Fatalf("no leader: %+v %+v", a.serving, b.serving)
	}
	if b.has("/older") {
		t.Error("the write of a connection that had ended was executed after the same session's newer, acknowledged write")
	}
	if want := []Failed{{2, 100, NotSent}}; !slices.Equal(a.failed, want) {
		t.Errorf("failed %v, want %v", a.failed, want)
	}
}

// TestCancelDropsWhatWaits, reports it, and drops nothing of the session's next connection.
func TestCancelDropsWhatWaits(t *testing.T) {
	l := newLab(t, 1, nil)
	nd := l.nodes[0]
	nd.open(1, 100)
	nd.open(2, 200)
	nd.submit(create(3, 100, "/a"), create(4, 200, "/b"), create(5, 100, "/c"))
	nd.r.Cancel(100)
	nd.submit(on(101, create(6, 100, "/d")))
	l.run()
	if want := []uint64{1, 2, 4, 6}; !slices.Equal(nd.tokens, want) {
		t.Errorf("executed %v, want %v", nd.tokens, want)
	}
	if want := []Failed{{3, 100, NotSent}, {5, 100, NotSent}}; !slices.Equal(nd.failed, want) {
		t.Errorf("failed %v, want %v", nd.failed, want)
	}
	if st := nd.r.Status(); st.QueuedBytes != 0 || st.Queued != 0 {
		t.Errorf("%d operations, %d bytes are left in the books", st.Queued, st.QueuedBytes)
	}
}

// TestCancelDropsHandshakes: a connection that ended before its createSession was sent creates no session, and one that
// ended before its resume was asked does not take the session from where its client is now.
func TestCancelDropsHandshakes(t *testing.T) {
	l := newLab(t, 3, nil)
	a, b := l.nodes[0], l.nodes[1]
	b.open(1, 100)
	a.down = true // until the reset is known
	l.breakLinks(a)
	l.run()
	a.submit(ClientOp{Request: 2, Conn: 5, Session: 300, Op: OpCreateSession, Body: AppendCreateSession(nil, 4000, [16]byte{7})})
	a.r.Revalidate(6, 3, 100, [16]byte{7}, 4000)
	a.r.Cancel(5)
	a.r.Cancel(6)
	a.down = false
	for range 60 {
		l.tick(false)
	}
	if !a.serving.Open {
		t.Fatalf("%+v", a.serving)
	}
	if _, ok := b.tree.View().Session(300); ok {
		t.Error("a session was created for a connection that had ended")
	}
	if want := []Failed{{2, 300, NotSent}}; !slices.Equal(a.failed, want) {
		t.Errorf("failed %v, want %v", a.failed, want)
	}
	if len(a.answers) != 1 || a.answers[0].Validity != NoAnswer || a.answers[0].Request != 3 {
		t.Errorf("answers %v", a.answers)
	}
	b.submit(create(4, 100, "/x"))
	l.run()
	if want := []kv.Code{kv.CodeOK, kv.CodeOK}; !slices.Equal(b.results, want) {
		t.Errorf("results %v: the session was taken away", b.results)
	}
}

// TestBooksOfConnectionsAreBounded: one entry for a live connection, none for an ended one, whatever became of its
// operations, also when one in flight is lost after the end.
func TestBooksOfConnectionsAreBounded(t *testing.T) {
	l := newLab(t, 3, func(c *Config) { c.MaxForwardedOps = 8 })
	nd := l.nodes[0]
	nd.open(1, 100)
	token, live := uint64(1), map[uint64]bool{100: true}
	for round := range 40 {
		for k := range 10 {
			conn := uint64(1000 + 10*round + k)
			live[conn] = true
			for n := range 3 {
				token++
				if err := nd.r.Submit(on(conn, create(token, 100, fmt.Sprintf("/%d-%d", conn, n)))); err != nil && !errors.Is(err, ErrBroken) {
					t.Fatal(err)
				}
			}
			if k%3 == 0 { // before the loss
				nd.r.Cancel(conn)
				delete(live, conn)
			}
		}
		nd.r.Ready() // some are in flight
		nd.failed = nil
		for conn := range live {
			if conn%3 == 0 {
				nd.r.Cancel(conn)
				delete(live, conn)
			}
		}
		l.loseLinks(nd)
		if n := nd.r.Status().Connections; n != len(live) {
			t.Fatalf("round %d: books of %d connections, %d live", round, n, len(live))
		}
		for range 60 {
			l.tick(false)
		}
		for conn := range live {
			nd.r.Cancel(conn)
			delete(live, conn)
		}
		l.run()
	}
	st := nd.r.Status()
	if st.Connections != 0 || st.Queued != 0 || st.QueuedBytes != 0 || st.Outstanding != 0 || st.OutstandingBytes != 0 {
		t.Errorf("left in the books: %+v", st)
	}
}
