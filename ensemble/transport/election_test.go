package transport

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"kvd/zab/quorum"
)

func (p *peer) connected() bool { return p.current() != nil }

// Three members start together and all dial or knock at once: one connection per pair remains, opened by the
// larger id, and each side's reports come in turns.
func TestOneElectionConnectionPerPair(t *testing.T) {
	n := newNet(t, 1, 2, 3)
	nodes := map[quorum.MemberID]*node{}
	for id := range n.peers {
		nodes[id] = n.start(id, nil)
	}
	for id, nd := range nodes {
		for other := range nodes {
			if other != id {
				nd.SendElection(other, KindNotification, fmt.Appendf(nil, "%d to %d", id, other))
			}
		}
	}
	for id, nd := range nodes {
		for other := range nodes {
			if other != id {
				nd.rec.wait(t, 0, "vote", func(e event) bool {
					return e.kind == "vote" && e.peer == other && e.text == fmt.Sprintf("1:%d to %d", other, id)
				})
			}
		}
	}
	for id, nd := range nodes {
		nd.mu.Lock()
		open := len(nd.conns)
		nd.mu.Unlock()
		until(t, "no connection but one per pair", func() bool {
			nd.mu.Lock()
			defer nd.mu.Unlock()
			open = len(nd.conns)
			return open == 2
		})
		for other, p := range nd.peers {
			conn := p.current()
			if conn == nil {
				t.Fatalf("%d has no connection with %d", id, other)
			}
			dialledByMe := conn.c.RemoteAddr().(*net.TCPAddr).Port == n.peers[other].ElectionPort
			if dialledByMe != (id > other) {
				t.Errorf("%d's connection with %d: dialled by me = %v", id, other, dialledByMe)
			}
		}
		up := map[quorum.MemberID]bool{}
		for _, e := range nd.rec.all() {
			switch e.kind {
			case "up":
				if up[e.peer] {
					t.Errorf("member %d: two ElectionUp of %d without a Down", id, e.peer)
				}
				up[e.peer] = true
			case "down":
				up[e.peer] = false
			case "vote":
				if !up[e.peer] {
					t.Errorf("member %d: vote of %d while down", id, e.peer)
				}
			}
		}
	}
}

// Only the newest payload of a kind is sent, and it is sent again on a new connection: after the peer restarts
// it hears the present state of both kinds without anyone sending anew.
func TestSlotNewestWinsAndIsResentOnReconnect(t *testing.T) {
	for _, ids := range [][2]quorum.MemberID{{1, 2}, {2, 1}} { // the restarting one is the smaller, then the larger
		t.Run(fmt.Sprintf("restart_%d", ids[1]), func(t *testing.T) {
			n := newNet(t, 1, 2)
			a, b := n.start(ids[0], nil), n.start(ids[1], nil)
			a.SendElection(b.o.ID, KindIdentity, []byte("who"))
			for i := range 50 {
				a.SendElection(b.o.ID, KindNotification, fmt.Appendf(nil, "vote %02d", i))
			}
			last := func(e event) bool { return e.kind == "vote" && e.text == "1:vote 49" }
			b.rec.wait(t, 0, "newest vote", last)
			b.rec.wait(t, 0, "identity", func(e event) bool { return e.text == "2:who" })
			seen := ""
			for _, e := range b.rec.all() {
				if e.kind == "vote" && e.text[0] == '1' {
					if e.text <= seen {
						t.Errorf("%q after %q", e.text, seen)
					}
					seen = e.text
				}
			}
			from := len(a.rec.all())
			_ = b.Close()
			a.rec.wait(t, from, "ElectionDown when the peer is gone", func(e event) bool { return e.kind == "down" })
			n.reopen(b.o.ID)
			b = n.start(ids[1], nil)
			b.rec.wait(t, 0, "newest vote after the restart", last)
			b.rec.wait(t, 0, "identity after the restart", func(e event) bool { return e.text == "2:who" })
			if got := b.rec.count(func(e event) bool { return e.kind == "vote" }); got != 2 {
				t.Errorf("%d payloads after the restart, want the newest of each kind", got)
			}
		})
	}
}

// A dial that is refused is reported as down at once, to the larger and to the smaller id.
func TestRefusedDialIsReportedDown(t *testing.T) {
	n := newNet(t, 1, 2, 3)
	_, _ = n.ln[1][0].Close(), n.ln[3][0].Close()
	nd := n.start(2, nil)
	for _, id := range []quorum.MemberID{1, 3} {
		nd.rec.wait(t, 0, "down", func(e event) bool { return e.kind == "down" && e.peer == id })
	}
	until(t, "several dials", func() bool { return nd.Stats().Dials > 6 })
	if got := nd.rec.countKind("down"); got != 2 {
		t.Errorf("%d reports, want one per peer however often it is dialled", got)
	}
}

// S48: two of five members swallow connects. The others' votes still pass at once: before a single swallowed
// dial has timed out.
func TestBlackHoledPeersDelayNobody(t *testing.T) {
	n := newNet(t, 1, 2, 3, 4, 5)
	hole := blackHole(func(address string) bool {
		return address == joinHostPort("127.0.0.1", n.peers[4].ElectionPort) || address == joinHostPort("127.0.0.1", n.peers[5].ElectionPort)
	})
	nodes := map[quorum.MemberID]*node{}
	for _, id := range []quorum.MemberID{1, 2, 3} {
		nodes[id] = n.start(id, func(o *Options) { o.Dial, o.Limits.DialTimeout = hole, time.Hour })
	}
	for id, nd := range nodes {
		for _, other := range []quorum.MemberID{5, 4, 3, 2, 1} {
			if other != id {
				nd.SendElection(other, KindNotification, []byte("x"))
			}
		}
	}
	for id, nd := range nodes {
		for other := range nodes {
			if other != id {
				nd.rec.wait(t, 0, "vote", func(e event) bool { return e.kind == "vote" && e.peer == other })
			}
		}
	}
	for _, nd := range nodes {
		_ = nd.Close() // must not wait for the swallowed dials
	}
}

// S49: a name that does not resolve, then does: every dial resolves anew, the own name included.
func TestNamesResolvedOnEveryDial(t *testing.T) {
	n := newNet(t, 1, 2)
	real1 := n.peers[1]
	n.peers[1] = Address{Host: "kvd-member.invalid", ElectionPort: real1.ElectionPort, LearnerPort: real1.LearnerPort}
	known := make(chan struct{})
	nd := n.start(2, func(o *Options) {
		direct := blackHole(func(string) bool { return false })
		o.Dial = func(ctx contextType, network, address string) (net.Conn, error) {
			select {
			case <-known:
				return direct(ctx, network, joinHostPort("127.0.0.1", real1.ElectionPort))
			default:
				return nil, &net.DNSError{Err: "no such host", Name: address, IsNotFound: true}
			}
		}
	})
	nd.rec.wait(t, 0, "down", func(e event) bool { return e.kind == "down" && e.peer == 1 })
	n.peers = map[quorum.MemberID]Address{1: real1, 2: n.peers[2]}
	n.start(1, nil)
	close(known)
	nd.rec.wait(t, 0, "up", func(e event) bool { return e.kind == "up" && e.peer == 1 })
}

// A knock of the smaller id says "I have no connection": the larger drops one that is stale, but not one that
// is on its way.
func TestKnockReplacesStaleConnectionOnly(t *testing.T) {
	const run, otherRun, me = 7, 8, 99
	for _, c := range []struct {
		name                              string
		instance, seenInstance, seenNonce uint64
		drop                              bool
	}{
		{"knocker has not seen it yet", run, 0, 0, false},
		{"knocker has seen an older one", run, me, 4, false},
		{"knocker has seen this one and lost it", run, me, 5, true},
		{"knocker was restarted", otherRun, 0, 0, true},
		{"nonce of an earlier run of mine", run, me + 1, 5, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, server := net.Pipe()
			defer server.Close()
			p := newPeer(&Transport{o: Options{ID: 2}, instance: me}, 1, Address{})
			p.conn = &electionConn{c: client, remote: hello{instance: run}, nonce: 5}
			p.knocked(c.instance, c.seenInstance, c.seenNonce)
			dropped := client.SetDeadline(time.Time{}) != nil // net.Pipe refuses deadlines when closed
			if dropped != c.drop {
				t.Errorf("dropped = %v, want %v", dropped, c.drop)
			}
			if len(p.kick) != 1 {
				t.Error("the dialler was not woken")
			}
		})
	}
}

// A member that was stopped wakes up with many dials at its listeners, of which the newest is alive: whatever
// the order in which they are looked at, an older one does not replace a newer one, and a new run of the peer
// always does.
func TestOvertakenDialsReplaceNothing(t *testing.T) {
	n := newNet(t, 1, 2)
	_, _ = n.ln[2][0].Close(), n.ln[2][1].Close()
	nd := n.start(1, nil)
	dial := func(p purpose, instance, nonce uint64) net.Conn {
		port := n.peers[1].ElectionPort
		if p == purposeLearner {
			port = n.peers[1].LearnerPort
		}
		c, err := net.Dial("tcp", joinHostPort("127.0.0.1", port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		h := hello{Hello: testHello(), purpose: p, from: 2, to: 1, instance: instance, nonce: nonce}
		if _, err := c.Write(h.encode()); err != nil {
			t.Fatal(err)
		}
		return c
	}
	for _, c := range []struct {
		p        purpose
		up, down string
	}{{purposeElection, "up", "down"}, {purposeLearner, "linkup", "linkdown"}} {
		from := len(nd.rec.all())
		live := dial(c.p, 7, 10)
		_, at := nd.rec.waitKind(t, from, c.up)
		before := nd.Stats().DialsOvertaken
		for nonce := range uint64(5) {
			dial(c.p, 7, nonce)
		}
		until(t, "the old dials are dropped", func() bool { return nd.Stats().DialsOvertaken == before+5 })
		for _, e := range nd.rec.all()[at:] {
			if e.kind == c.up || e.kind == c.down {
				t.Errorf("purpose %d: an old dial made a difference: %v", c.p, e)
			}
		}
		_ = live.SetReadDeadline(time.Now().Add(patience))
		if _, err := readAnswer(live); err != nil {
			t.Errorf("purpose %d: the live connection: %v", c.p, err)
		}
		dial(c.p, 8, 1) // restarted
		nd.rec.waitKind(t, at, c.down)
		nd.rec.waitKind(t, at, c.up)
	}
}

// A member that adopts a cluster id drops the connections that its new identity would refuse, and no others.
func TestIdentityChangedDropsOtherClusters(t *testing.T) {
	n := newNet(t, 1, 2, 3)
	id := newIdentity(Hello{Blank: true, Protocol: testHello().Protocol})
	a := n.start(1, func(o *Options) { o.Hello = id.get })
	other := testHello()
	other.Cluster[0] = 77
	n.start(2, nil)
	stranger := n.start(3, func(o *Options) { o.Hello = func() Hello { return other } })
	a.rec.wait(t, 0, "up 2", func(e event) bool { return e.kind == "up" && e.peer == 2 })
	a.rec.wait(t, 0, "up 3", func(e event) bool { return e.kind == "up" && e.peer == 3 })
	link, _ := linkUp(t, a, stranger, 1)
	from := len(a.rec.all())
	id.set(testHello())
	a.IdentityChanged()
	a.rec.wait(t, from, "down 3", func(e event) bool { return e.kind == "down" && e.peer == 3 })
	a.rec.wait(t, from, "link down", func(e event) bool { return e.kind == "linkdown" && e.link == link })
	a.SendElection(2, KindIdentity, []byte("adopted"))
	if !a.peers[2].connected() || a.rec.count(func(e event) bool { return e.kind == "down" && e.peer == 2 }) > 1 {
		t.Error("the connection with a member of the same cluster was dropped")
	}
	until(t, "refusals counted", func() bool { return a.Stats().Refused[RefusedCluster.String()] > 0 })
}

// S49, ZK-4728: the own name does not resolve. The member starts, keeps trying to listen, still dials the
// others, and can be closed.
func TestOwnNameThatDoesNotResolve(t *testing.T) {
	n := newNet(t, 1, 2)
	own := n.peers[2]
	n.peers[2] = Address{Host: "kvd-member.invalid", ElectionPort: own.ElectionPort, LearnerPort: own.LearnerPort}
	_, _ = n.ln[2][0].Close(), n.ln[2][1].Close()
	n.ln[2] = [2]net.Listener{}
	other := n.start(1, nil)
	nd := n.start(2, nil)
	other.rec.wait(t, 0, "up", func(e event) bool { return e.kind == "up" && e.peer == 2 })
	until(t, "a warning per port", func() bool { return strings.Count(nd.log.String(), "cannot listen for peers") == 2 })
	_ = nd.Close()
}

// Waits double from lo to hi, each between half and all of its step, and start again after a reset.
func TestBackoff(t *testing.T) {
	b := backoff{lo: 50 * time.Millisecond, hi: time.Second}
	for range 3 {
		for _, step := range []time.Duration{50, 100, 200, 400, 800, 1000, 1000} {
			step *= time.Millisecond
			if d := b.next(); d < step/2 || d > step {
				t.Errorf("waits %v at step %v", d, step)
			}
		}
		b.reset()
	}
}
