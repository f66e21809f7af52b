package transport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"kvd/zab"
	"kvd/zab/quorum"
)

type contextType = context.Context

type identity struct {
	mu sync.Mutex
	h  Hello
}

func newIdentity(h Hello) *identity { return &identity{h: h} }

func (i *identity) get() Hello  { i.mu.Lock(); defer i.mu.Unlock(); return i.h }
func (i *identity) set(h Hello) { i.mu.Lock(); defer i.mu.Unlock(); i.h = h }

// Every refusal: named to the caller, logged once however often it happens, counted each time, and nothing is
// reported to the handler (design 8, row "a peer that is not a member ...").
func TestHandshakeRefusals(t *testing.T) {
	base := func() hello {
		return hello{Hello: testHello(), purpose: purposeLearner, from: 3, to: 2, instance: 1, nonce: 1}
	}
	cluster := func(h *hello) { h.Cluster[5] ^= 1 }
	cases := []struct {
		name     string
		election bool
		change   func(*hello)
		want     Verdict
		says     string
	}{
		{"stranger", false, func(h *hello) { h.from = 9 }, RefusedUnknown, "member 9 is not configured"},
		{"zero id", false, func(h *hello) { h.from = 0 }, RefusedUnknown, "member 0"},
		{"own id", false, func(h *hello) { h.from = 2 }, RefusedSelf, "which is me"},
		{"own id, election", true, func(h *hello) { h.from, h.purpose = 2, purposeElection }, RefusedSelf, "which is me"},
		{"wrong target", false, func(h *hello) { h.to = 1 }, RefusedTarget, "this is 2"},
		{"another cluster", false, cluster, RefusedCluster, "is not 0102030000"},
		{"another cluster, election", true, func(h *hello) { cluster(h); h.purpose = purposeElection }, RefusedCluster, "member 3: cluster"},
		{"too old", false, func(h *hello) { h.Protocol = zab.VersionRange{Min: 0, Max: 0} }, RefusedVersion, "0..0 and 1..2"},
		{"too new", false, func(h *hello) { h.Protocol = zab.VersionRange{Min: 3, Max: 9} }, RefusedVersion, "3..9 and 1..2"},
		{"empty range", false, func(h *hello) { h.Protocol = zab.VersionRange{Min: 2, Max: 1} }, RefusedVersion, "2..1"},
		{"learner on the election port", true, func(*hello) {}, RefusedPurpose, "election port"},
		{"vote on the learner port", false, func(h *hello) { h.purpose = purposeElection }, RefusedPurpose, "learner port"},
		{"larger id knocks", true, func(h *hello) { h.purpose = purposeKnock }, RefusedPurpose, "election port"},
		{"smaller id dials", true, func(h *hello) { h.from, h.purpose = 1, purposeElection }, RefusedPurpose, "election port"},
		{"unknown purpose", false, func(h *hello) { h.purpose = 77 }, RefusedPurpose, "purpose 77"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			n := newNet(t, 1, 2, 3)
			_, _ = n.ln[1][0].Close(), n.ln[3][0].Close()
			nd := n.start(2, nil)
			port := n.peers[2].LearnerPort
			if c.election {
				port = n.peers[2].ElectionPort
			}
			for range 3 {
				conn, err := net.Dial("tcp", joinHostPort("127.0.0.1", port))
				if err != nil {
					t.Fatal(err)
				}
				h := base()
				c.change(&h)
				if _, err := conn.Write(h.encode()); err != nil {
					t.Fatal(err)
				}
				_, err = readAnswer(conn)
				var refused *RefusedError
				if !errors.As(err, &refused) || refused.Verdict != c.want || !refused.ByPeer || !strings.Contains(refused.Reason, c.says) {
					t.Fatalf("got %v, want %v saying %q", err, c.want, c.says)
				}
				if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
					t.Error("the connection stays open after a refusal")
				}
				_ = conn.Close()
			}
			if got := nd.Stats().Refused[c.want.String()]; got != 3 {
				t.Errorf("counted %d refusals, want 3", got)
			}
			if got := strings.Count(nd.log.String(), "peer connection refused"); got != 1 {
				t.Errorf("logged %d times:\n%s", got, nd.log)
			}
			for _, e := range nd.rec.all() {
				if e.kind != "down" {
					t.Errorf("the handler was told %+v", e)
				}
			}
		})
	}
}

// Whoever answers a dial is checked too: another member behind the address, another cluster, a foreign protocol.
func TestDiallerRefusesWrongAnswer(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer []byte
		want   Verdict
	}{
		{"another member", encodeAnswer(hello{Hello: testHello(), from: 3}, Accepted, ""), RefusedTarget},
		{"another cluster", encodeAnswer(hello{Hello: Hello{Protocol: testHello().Protocol}, from: 1}, Accepted, ""), RefusedCluster},
		{"not a peer", []byte("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n"), RefusedGarbage},
		{"refusal", encodeAnswer(hello{Hello: testHello(), from: 1}, RefusedUnknown, "member 2 is not configured here\x1b[2J"), RefusedUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNet(t, 1, 2)
			nd := n.start(2, nil)
			for i := range uint64(2) {
				go func() {
					conn, err := n.ln[1][1].Accept()
					if err != nil {
						return
					}
					defer conn.Close()
					_, _ = io.ReadFull(conn, make([]byte, helloBytes))
					_, _ = conn.Write(c.answer)
				}()
				nd.Connect(1, 40+i)
				e, _ := nd.rec.wait(t, 0, "ConnectFailed", func(e event) bool { return e.kind == "failed" && e.text == []string{"40", "41"}[i] })
				var refused *RefusedError
				if !errors.As(e.err, &refused) || refused.Verdict != c.want {
					t.Fatalf("got %v, want %v", e.err, c.want)
				}
				if strings.Contains(e.err.Error(), "\x1b") {
					t.Errorf("control characters of the peer in %q", e.err)
				}
			}
			if got := strings.Count(nd.log.String(), "peer connection refused"); got != 1 {
				t.Errorf("logged %d times:\n%s", got, nd.log)
			}
		})
	}
}

// A blank member with a configured id is let in whatever the other's cluster is, and the other way round
// (design rule 8).
func TestBlankPeerIsAccepted(t *testing.T) {
	blank := Hello{Blank: true, Cluster: [16]byte{9}, Protocol: testHello().Protocol}
	for _, who := range []quorum.MemberID{1, 2} {
		n := newNet(t, 1, 2)
		nodes := [2]*node{}
		for i := range nodes {
			id := quorum.MemberID(i + 1)
			nodes[i] = n.start(id, func(o *Options) {
				if id == who {
					o.Hello = func() Hello { return blank }
				}
			})
		}
		linkUp(t, nodes[0], nodes[1], 1)
		nodes[0].rec.waitKind(t, 0, "up")
		_, _ = nodes[0].Close(), nodes[1].Close()
	}
}

// Somebody who connects and says nothing, or half a hello, is dropped after HandshakeTimeout, and while too
// many do so new ones are dropped at once; members still get through afterwards.
func TestSilentConnectionsAreDropped(t *testing.T) {
	n := newNet(t, 1, 2)
	nd := n.start(2, func(o *Options) { o.Limits.HandshakeTimeout, o.Limits.MaxHandshakes = 100*time.Millisecond, 2 })
	h := hello{Hello: testHello(), purpose: purposeLearner, from: 1, to: 2}
	for _, say := range [][]byte{nil, h.encode()[:helloBytes-1], nil, h.encode()[:3]} {
		conn, err := net.Dial("tcp", joinHostPort("127.0.0.1", n.peers[2].LearnerPort))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = conn.Write(say)
		defer func() {
			_ = conn.SetReadDeadline(time.Now().Add(patience))
			if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a silent connection was not dropped: %v", err)
			}
		}()
	}
	until(t, "handshakes ended", func() bool { s := nd.Stats(); return s.HandshakesFailed+s.HandshakesDropped >= 4 })
	other := n.start(1, nil)
	linkUp(t, other, nd, 1)
}

func TestHelloRoundTrip(t *testing.T) {
	want := hello{Hello: testHello(), version: handshakeVersion, purpose: purposeKnock, from: 1, to: 255, instance: 1 << 63, nonce: 5, seenNonce: 6, seenInstance: 7}
	got, err := readHello(bytes.NewReader(want.encode()))
	if err != nil || got != want {
		t.Fatalf("got %+v, %v, want %+v", got, err, want)
	}
	b := want.encode()
	for n := range b {
		if _, err := readHello(bytes.NewReader(b[:n])); err == nil {
			t.Fatalf("a hello of %d bytes was accepted", n)
		}
	}
}

// FuzzHandshake feeds both decoders: they never panic, and what is accepted encodes to the same bytes.
func FuzzHandshake(f *testing.F) {
	h := hello{Hello: testHello(), purpose: purposeElection, from: 3, to: 2}
	f.Add(h.encode())
	f.Add(encodeAnswer(h, Accepted, ""))
	f.Add(encodeAnswer(h, RefusedCluster, "because"))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := readHello(bytes.NewReader(b)); err == nil {
			h.Hello = decodeIdentity(h.encode())
			if again, err := readHello(bytes.NewReader(h.encode())); err != nil || again != h {
				t.Errorf("%+v became %+v, %v", h, again, err)
			}
		}
		r := bytes.NewReader(b)
		if _, err := readAnswer(r); err == nil && len(b)-r.Len() > answerBytes+maxReasonBytes {
			t.Errorf("read %d bytes", len(b)-r.Len())
		}
	})
}
