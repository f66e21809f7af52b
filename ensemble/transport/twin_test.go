package transport

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kvd/zab"
	"kvd/zab/quorum"
)

// startTwin runs a second process with an id that is taken: it knows the others, but listens elsewhere.
func (n *net0) startTwin(id quorum.MemberID) *node {
	n.t.Helper()
	own := newNet(n.t, id)
	peers := maps.Clone(n.peers)
	peers[id] = own.peers[id]
	own.peers = peers
	return own.start(id, patient)
}

// patient gives a probe all the time it may need on a loaded machine: nothing here is about its time-out.
func patient(o *Options) { o.Limits.HandshakeTimeout = patience }

// A second process with the id of a connected member is refused by name, for votes, knocks and links. Each of the
// others says so once, the second process once, and the member in its place loses nothing. When that is restarted,
// the twin still trying, it gets its place back.
func TestTwinIsRefused(t *testing.T) {
	for _, id := range []quorum.MemberID{1, 2, 3} {
		t.Run(fmt.Sprintf("id_%d", id), func(t *testing.T) {
			n := newNet(t, 1, 2, 3)
			nodes := map[quorum.MemberID]*node{}
			for m := range n.peers {
				nodes[m] = n.start(m, patient)
			}
			for m, nd := range nodes {
				for other := range nodes {
					if other != m {
						nd.rec.wait(t, 0, "up", func(e event) bool { return e.kind == "up" && e.peer == other })
					}
				}
			}
			leader := nodes[id%3+1]
			mine, theirs := linkUp(t, nodes[id], leader, 1)
			marks := map[quorum.MemberID]int{}
			for m, nd := range nodes {
				marks[m] = len(nd.rec.all())
			}

			twin := n.startTwin(id)
			twin.Connect(leader.o.ID, 9)
			e, _ := twin.rec.waitKind(t, 0, "failed")
			var refused *RefusedError
			if !errors.As(e.err, &refused) || refused.Verdict != RefusedTwin || !refused.ByPeer || !strings.Contains(refused.Reason, fmt.Sprintf("two processes run as member %d", id)) {
				t.Fatalf("the twin's link: %v", e.err)
			}
			for m, nd := range nodes {
				if m != id {
					until(t, "several refusals", func() bool { return nd.Stats().Refused[RefusedTwin.String()] > 3 })
				}
			}
			for m, nd := range nodes {
				for _, e := range nd.rec.all()[marks[m]:] {
					t.Errorf("member %d was told %v", m, e)
				}
				want := 1
				if m == id {
					want = 0
				}
				if got := strings.Count(nd.log.String(), "duplicate id"); got != want {
					t.Errorf("member %d logged %d lines, want %d:\n%s", m, got, want, nd.log)
				}
			}
			if got := strings.Count(twin.log.String(), "duplicate id"); got != 1 {
				t.Errorf("the twin logged %d lines:\n%s", got, twin.log)
			}
			if got := twin.rec.countKind("up") + twin.rec.countKind("linkup"); got != 0 {
				t.Errorf("the twin got in:\n%s", lines(twin.rec.all()))
			}
			nodes[id].Send([]zab.Outbound{request(mine, "still here")})
			leader.rec.wait(t, 0, "message on the old link", func(e event) bool { return e.link == theirs && text(e) == "still here" })

			for m, nd := range nodes {
				marks[m] = len(nd.rec.all())
			}
			_ = nodes[id].Close()
			n.reopen(id)
			nodes[id] = n.start(id, patient)
			for other := range nodes {
				if other != id {
					nodes[id].rec.wait(t, 0, "up after the restart", func(e event) bool { return e.kind == "up" && e.peer == other })
				}
			}
			linkUp(t, nodes[id], leader, 2)
		})
	}
}

// The old connections of a member whose host died without a word look alive. Its new run, answering at its address,
// replaces them at once.
func TestRestartedMemberReplacesItsStaleConnections(t *testing.T) {
	n := newNet(t, 1, 2)
	nd := n.start(1, nil)
	stale := func(p purpose, port int) net.Conn {
		c, err := net.Dial("tcp", joinHostPort("127.0.0.1", port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		h := hello{Hello: testHello(), purpose: p, from: 2, to: 1, instance: 7, nonce: 1}
		if _, err := c.Write(h.encode()); err != nil {
			t.Fatal(err)
		}
		return c
	}
	stale(purposeElection, n.peers[1].ElectionPort)
	stale(purposeLearner, n.peers[1].LearnerPort)
	nd.rec.waitKind(t, 0, "up")
	up, _ := nd.rec.waitKind(t, 0, "linkup")
	from := len(nd.rec.all())
	restarted := n.start(2, nil)
	nd.rec.waitKind(t, from, "up")
	linkUp(t, restarted, nd, 1)
	down, _ := nd.rec.waitKind(t, from, "linkdown")
	if down.link != up.link || !errors.Is(down.err, ErrReplaced) {
		t.Errorf("%v", down)
	}
	if got := nd.Stats().Refused[RefusedTwin.String()]; got != 0 || strings.Contains(nd.log.String(), "duplicate id") {
		t.Errorf("the restarted member was refused %d times:\n%s", got, nd.log)
	}
}

// A dial of a run that is gone by the time it is looked at is no second process, and not told as one.
func TestDialOfADeadRunIsNoTwin(t *testing.T) {
	n := newNet(t, 1, 2)
	nd, peer := n.start(1, patient), n.start(2, patient)
	nd.rec.waitKind(t, 0, "up")
	before := nd.Stats().HandshakesFailed
	for range 5 {
		c, err := net.Dial("tcp", joinHostPort("127.0.0.1", n.peers[1].LearnerPort))
		if err != nil {
			t.Fatal(err)
		}
		h := hello{Hello: testHello(), purpose: purposeLearner, from: 2, to: 1, instance: 7, nonce: 1}
		if _, err := c.Write(h.encode()); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	until(t, "the dials are dropped", func() bool { return nd.Stats().HandshakesFailed == before+5 })
	if strings.Contains(nd.log.String(), "duplicate id") {
		t.Errorf("logged:\n%s", nd.log)
	}
	_ = peer.Close()
}

// While nobody answers at the peer's address nothing can be told: the newer run gets in, but not one that was found
// to be a twin of the run that is still connected.
func TestUnreachableAddressDecidesNothing(t *testing.T) {
	n := newNet(t, 1, 2)
	var cut atomic.Bool
	nd := n.start(1, func(o *Options) { o.Dial = blackHole(func(string) bool { return cut.Load() }) })
	peer := n.start(2, nil)
	nd.rec.waitKind(t, 0, "up")
	p := nd.peers[2]
	h := hello{from: 2, to: 1, purpose: purposeElection, instance: 7}
	if r := nd.twin(h); r == nil {
		t.Fatal("a twin was let in")
	}
	p.judging.Lock()
	cut.Store(true)
	p.judged.until = time.Now()
	p.judging.Unlock()
	if r := nd.twin(h); r == nil {
		t.Error("a known twin was let in when its probe failed")
	}
	h.instance = 8
	if r := nd.twin(h); r != nil {
		t.Errorf("a new run was kept out: %v", r)
	}
	_ = peer.Close()
}

// Why a peer cannot be reached is said once, after a few tries, and again only when it had been reached meanwhile.
func TestUnreachablePeerIsNamedOnce(t *testing.T) {
	n := newNet(t, 1, 2)
	var dials atomic.Int64
	nd := n.start(1, func(o *Options) {
		o.Dial = func(context.Context, string, string) (net.Conn, error) {
			dials.Add(1)
			return nil, &net.DNSError{Err: "no such host", Name: "h2", IsNotFound: true}
		}
	})
	until(t, "twenty dials", func() bool { return dials.Load() >= 4*failuresToSay })
	text := nd.log.String()
	if c := strings.Count(text, "peer cannot be reached"); c != 1 || !strings.Contains(text, "no such host") || !strings.Contains(text, "peer=2") {
		t.Errorf("%d lines:\n%s", c, text)
	}
}
