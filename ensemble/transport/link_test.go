package transport

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"kvd/kv"
	"kvd/zab"
)

// Both directions of a link deliver everything, in order, whatever the sizes; ids differ per connection; an
// orderly close delivers what was queued before it and tells both sides why.
func TestLinkDeliversInOrderAndClosesOrderly(t *testing.T) {
	n := newNet(t, 1, 2)
	learner, leader := n.start(1, nil), n.start(2, nil)
	mine, theirs := linkUp(t, learner, leader, 1)
	const count = 2000
	size := func(i int) int { return []int{0, 1, 100, 5000, slabBytes / 8, 70 << 10}[i%6] }
	var sends sync.WaitGroup
	for _, dir := range []struct {
		from *node
		link zab.LinkID
	}{{learner, mine}, {leader, theirs}} {
		sends.Go(func() {
			for i := range count {
				if i%64 == 0 { // stay within the queue's bound
					until(t, "queue drained", func() bool {
						dir.from.mu.Lock()
						l := dir.from.links[dir.link]
						dir.from.mu.Unlock()
						l.mu.Lock()
						defer l.mu.Unlock()
						return l.waiting < 32<<20
					})
				}
				dir.from.Send([]zab.Outbound{request(dir.link, fmt.Sprintf("%06d%s", i, strings.Repeat("x", size(i))))})
			}
		})
	}
	sends.Wait()
	leader.CloseLink(theirs, "enough for today")
	leader.Send([]zab.Outbound{request(theirs, "after the close")})
	downHere, _ := learner.rec.waitKind(t, 0, "linkdown")
	downThere, _ := leader.rec.waitKind(t, 0, "linkdown")
	var closed *ClosedError
	if !errors.As(downHere.err, &closed) || !closed.ByPeer || closed.Reason != "enough for today" {
		t.Errorf("the learner's link went down because of %v", downHere.err)
	}
	if !errors.As(downThere.err, &closed) || closed.ByPeer || closed.Reason != "enough for today" {
		t.Errorf("the leader's link went down because of %v", downThere.err)
	}
	next := 0
	for _, e := range learner.rec.all() {
		if e.kind != "msg" {
			continue
		}
		if e.link != mine {
			t.Fatalf("message on link %d, want %d", e.link, mine)
		}
		if want := fmt.Sprintf("%06d", next); !strings.HasPrefix(text(e), want) || len(text(e)) != 6+size(next) {
			t.Fatalf("message %d is %.20q (%d bytes)", next, text(e), len(text(e)))
		}
		next++
	}
	if next != count {
		t.Errorf("%d messages before the close, want %d", next, count)
	}
	again, _ := linkUp(t, learner, leader, 2)
	if again == mine || again == 0 {
		t.Errorf("link id %d after %d", again, mine)
	}
}

// A message for several links is encoded once; others in between do not confuse it.
func TestSharedMessageIsEncodedOnce(t *testing.T) {
	n := newNet(t, 1, 2, 3)
	leader := n.start(3, nil)
	learners := []*node{n.start(1, nil), n.start(2, nil)}
	var links []zab.LinkID
	for _, l := range learners {
		_, theirs := linkUp(t, l, leader, 1)
		links = append(links, theirs)
	}
	before := leader.Stats().FramesEncoded
	const rounds = 100
	for i := range rounds {
		p := &zab.Proposal{Entries: []kv.Entry{{Zxid: kv.MakeZxid(1, uint32(i+1)), Payload: bytes.Repeat([]byte{byte(i)}, 100)}}}
		c := &zab.Ack{Zxid: kv.MakeZxid(1, uint32(i+1))}
		var out []zab.Outbound
		for _, l := range links {
			out = append(out, zab.Outbound{Link: l, Msg: p}, zab.Outbound{Link: l, Msg: c})
		}
		leader.Send(out)
	}
	if got := leader.Stats().FramesEncoded - before; got != 2*rounds {
		t.Errorf("encoded %d frames, want %d", got, 2*rounds)
	}
	for _, l := range learners {
		l.rec.wait(t, 0, "last ack", func(e event) bool {
			a, ok := e.msg.(*zab.Ack)
			return ok && a.Zxid.Counter() == rounds
		})
		i := 0
		for _, e := range l.rec.all() {
			switch m := e.msg.(type) {
			case *zab.Proposal:
				if len(m.Entries) != 1 || m.Entries[0].Zxid.Counter() != uint32(i+1) || !bytes.Equal(m.Entries[0].Payload, bytes.Repeat([]byte{byte(i)}, 100)) {
					t.Fatalf("proposal %d arrived as %+v", i, m)
				}
			case *zab.Ack:
				if i++; m.Zxid.Counter() != uint32(i) {
					t.Fatalf("ack %d arrived as %v", i, m.Zxid)
				}
			}
		}
	}
}

// rawLearner shakes hands as member id and leaves the connection to the test.
func rawLearner(t *testing.T, n *net0, id, leader *node, smallBuffers bool) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", joinHostPort("127.0.0.1", n.peers[leader.o.ID].LearnerPort))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if smallBuffers {
		_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
	}
	h := hello{Hello: testHello(), purpose: purposeLearner, from: id.o.ID, to: leader.o.ID, instance: 1}
	if _, err := c.Write(h.encode()); err != nil {
		t.Fatal(err)
	}
	if _, err := readAnswer(c); err != nil {
		t.Fatal(err)
	}
	return c
}

// S44, S56: a learner that does not read fills its own queue and loses its link with the reason; the other
// learner gets everything.
func TestFullQueueClosesOnlyThatLink(t *testing.T) {
	for _, c := range []struct {
		name   string
		limits func(*Limits)
		size   int
	}{
		{"bytes", func(l *Limits) { l.MaxQueueBytes = 256 << 10 }, 64 << 10},
		{"count", func(l *Limits) { l.MaxQueueFrames = 50 }, 64 << 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNet(t, 1, 2, 3)
			leader := n.start(3, func(o *Options) { c.limits(&o.Limits); o.Limits.WriteTimeout = time.Hour })
			good := n.start(1, nil)
			_, goodLink := linkUp(t, good, leader, 1)
			from := len(leader.rec.all())
			rawLearner(t, n, &node{Transport: &Transport{o: Options{ID: 2}}}, leader, true)
			up, _ := leader.rec.waitKind(t, from, "linkup")
			payload := strings.Repeat("y", c.size)
			sent := 0
			for leader.rec.count(func(e event) bool { return e.kind == "linkdown" && e.link == up.link }) == 0 {
				if sent > 10_000 {
					t.Fatal("600 MB were taken by somebody who does not read")
				}
				leader.Send([]zab.Outbound{request(up.link, payload), request(goodLink, fmt.Sprint(sent))})
				sent++
				good.rec.wait(t, sent, "the good learner's message", func(e event) bool { return text(e) == fmt.Sprint(sent-1) })
			}
			down, _ := leader.rec.waitKind(t, 0, "linkdown")
			if !errors.Is(down.err, ErrQueueFull) || down.link != up.link {
				t.Errorf("link %d down because of %v", down.link, down.err)
			}
			if leader.Stats().LinksOverflowed != 1 {
				t.Error("not counted")
			}
		})
	}
}

// A peer that stops reading is dropped after WriteTimeout, although the queue has room.
func TestPeerThatDoesNotReadIsDropped(t *testing.T) {
	n := newNet(t, 1, 2)
	leader := n.start(2, func(o *Options) { o.Limits.WriteTimeout = 50 * time.Millisecond })
	rawLearner(t, n, &node{Transport: &Transport{o: Options{ID: 1}}}, leader, true)
	up, _ := leader.rec.waitKind(t, 0, "linkup")
	for range 12 { // far above what kernel buffers take, below the queue's bound
		leader.Send([]zab.Outbound{request(up.link, strings.Repeat("z", 1<<20))})
	}
	down, _ := leader.rec.waitKind(t, 0, "linkdown")
	var timeout net.Error
	if !errors.As(down.err, &timeout) || !timeout.Timeout() || !strings.Contains(down.err.Error(), "has not read") {
		t.Errorf("down because of %v", down.err)
	}
}

// The failure of an attempt is reported with its number; an attempt that a newer one replaced is not heard of again.
func TestConnectAttempts(t *testing.T) {
	n := newNet(t, 1, 2, 3)
	hole := blackHole(func(a string) bool { return a == joinHostPort("127.0.0.1", n.peers[3].LearnerPort) })
	learner := n.start(1, func(o *Options) {
		o.Limits.DialTimeout = time.Hour
		o.Dial = hole
	})
	_, _ = n.ln[2][0].Close(), n.ln[2][1].Close()
	learner.Connect(2, 1)
	e, _ := learner.rec.wait(t, 0, "refused dial", func(e event) bool { return e.kind == "failed" })
	if e.text != "1" || !strings.Contains(e.err.Error(), "connecting to leader 2") {
		t.Errorf("%+v", e)
	}
	learner.Connect(3, 2) // swallowed: would take an hour
	learner.Connect(9, 3) // replaced it
	learner.rec.wait(t, 0, "unknown leader", func(e event) bool { return e.kind == "failed" && e.text == "3" })
	n.reopen(2)
	leader := n.start(2, nil)
	learner.Connect(3, 4)
	linkUp(t, learner, leader, 5)
	for _, e := range learner.rec.all() {
		if e.kind == "failed" && (e.text == "2" || e.text == "4" || e.text == "5") {
			t.Errorf("a replaced attempt was reported: %+v", e)
		}
	}
}

// While a large message is under way the handler hears that its sender is alive: nothing else can arrive meanwhile.
func TestLargeMessageShowsProgress(t *testing.T) {
	n := newNet(t, 1, 2)
	leader := n.start(2, nil)
	c := rawLearner(t, n, &node{Transport: &Transport{o: Options{ID: 1}}}, leader, false)
	f := newFrame(kindMessage)
	f.buf, _ = testCodec.Append(f.buf, &zab.Request{Payload: make([]byte, 8<<20)})
	f.seal()
	if _, err := c.Write(f.buf[:5<<20]); err != nil {
		t.Fatal(err)
	}
	steps := 0
	leader.rec.wait(t, 0, "fourth step", func(e event) bool {
		if e.kind == "progress" {
			steps++
		}
		return steps == 4
	})
	if leader.rec.countKind("msg") > 0 {
		t.Error("half a message was delivered")
	}
	if _, err := c.Write(f.buf[5<<20:]); err != nil {
		t.Fatal(err)
	}
	if e, _ := leader.rec.waitKind(t, 0, "msg"); len(text(e)) != 8<<20 {
		t.Errorf("%d bytes arrived", len(text(e)))
	}
}

// A learner that connects anew (its old process died with the host) replaces its old link.
func TestNewerLinkOfSameLearnerReplaces(t *testing.T) {
	n := newNet(t, 1, 2)
	leader := n.start(2, nil)
	raw := &node{Transport: &Transport{o: Options{ID: 1}}}
	first := rawLearner(t, n, raw, leader, false)
	up, at := leader.rec.waitKind(t, 0, "linkup")
	rawLearner(t, n, raw, leader, false)
	down, _ := leader.rec.waitKind(t, at, "linkdown")
	if down.link != up.link || !errors.Is(down.err, ErrReplaced) {
		t.Errorf("%+v", down)
	}
	_ = first.SetReadDeadline(time.Now().Add(patience))
	if _, err := first.Read(make([]byte, 1)); err == nil || errors.Is(err, errTimeout) {
		t.Errorf("the old connection is still open: %v", err)
	}
	if s := leader.Stats(); s.LinksOpened != 2 {
		t.Errorf("%+v", s)
	}
}

var errTimeout = errors.New("timeout")

// Hostile bytes after a good handshake close that link, are counted, and reach nobody (design 8, row 1).
func TestHostileFramesCloseTheLink(t *testing.T) {
	for name, bytes := range map[string][]byte{
		"length zero":          {0, 0, 0, 0, 16},
		"length beyond limit":  {0xff, 0xff, 0xff, 0xff, 16, 1, 2, 3},
		"unknown kind":         {0, 0, 0, 2, 99, 1},
		"kind of a vote":       {0, 0, 0, 2, KindNotification, 1},
		"not a message":        {0, 0, 0, 3, kindMessage, '?', '?'},
		"empty message":        {0, 0, 0, 1, kindMessage},
		"short stream frame":   {0, 0, 0, 3, kindSnapAck, 0, 0},
		"point that is none":   {0, 0, 0, 7, kindSnapBegin, 0, 0, 0, 1, 0x95, 1},
		"http":                 []byte("GET / HTTP/1.1\r\n\r\n"),
		"truncated then close": {0, 0, 1, 0, kindMessage, 'r'},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNet(t, 1, 2)
			leader := n.start(2, nil)
			c := rawLearner(t, n, &node{Transport: &Transport{o: Options{ID: 1}}}, leader, false)
			if _, err := c.Write(bytes); err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(name, "truncated") {
				_ = c.Close()
			}
			down, _ := leader.rec.waitKind(t, 0, "linkdown")
			if strings.HasPrefix(name, "truncated") {
				if !errors.Is(down.err, io.ErrUnexpectedEOF) {
					t.Errorf("down because of %v", down.err)
				}
			} else if !errors.Is(down.err, errFrame) || leader.Stats().BadFrames != 1 {
				t.Errorf("down because of %v, counted %d", down.err, leader.Stats().BadFrames)
			}
			if leader.rec.countKind("msg") > 0 {
				t.Error("something was delivered")
			}
		})
	}
}

// Close reports every open link and leaves nothing behind; it may come before Start and twice.
func TestCloseEndsEverything(t *testing.T) {
	n := newNet(t, 1, 2, 3)
	a, b := n.start(1, nil), n.start(2, nil)
	linkUp(t, a, b, 1)
	a.Connect(3, 2) // nobody has accepted there: the handshake hangs
	_ = a.Close()
	_ = a.Close()
	down, _ := a.rec.waitKind(t, 0, "linkdown")
	if !errors.Is(down.err, ErrClosed) {
		t.Errorf("down because of %v", down.err)
	}
	if a.rec.count(func(e event) bool { return e.kind == "failed" && e.text == "2" }) > 0 {
		t.Error("an attempt was reported during Close")
	}
	events := len(a.rec.all())
	a.Send([]zab.Outbound{request(1, "x")})
	a.SendElection(2, KindNotification, []byte("x"))
	a.Connect(2, 9)
	a.CloseLink(1, "x")
	if len(a.rec.all()) != events {
		t.Error("events after Close")
	}
	if err := a.Start(); err == nil {
		t.Error("started after Close")
	}
	unstarted, err := New(Options{ID: 1, Peers: n.peers, Hello: testHello, Handler: newRecorder(), Codec: testCodec})
	if err != nil {
		t.Fatal(err)
	}
	_ = unstarted.Close()
}

// An own port that is taken is an error of Start and leaves nothing open.
func TestStartFailsOnTakenPort(t *testing.T) {
	n := newNet(t, 1)
	_ = n.ln[1][0].Close()
	tr, err := New(Options{ID: 1, Peers: n.peers, Hello: testHello, Handler: newRecorder(), Codec: testCodec})
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.Start(); err == nil || !strings.Contains(err.Error(), "learner port") {
		t.Fatalf("Start: %v", err)
	}
	n.reopen0(1)
	_ = tr.Close()
}

func (n *net0) reopen0(id int) {
	ln, err := net.Listen("tcp", joinHostPort("127.0.0.1", n.peers[1].ElectionPort))
	if err != nil {
		n.t.Errorf("the first port is still open after a failed Start: %v", err)
		return
	}
	_ = ln.Close()
}

func TestOptionsReportAllProblems(t *testing.T) {
	_, err := New(Options{ID: 300, Limits: Limits{BackoffMin: 2, BackoffMax: 1, MaxFrameBytes: -1}})
	for _, want := range []string{"300 is outside", "not among the members", "Handler and both halves", "back-off", "MaxFrameBytes"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in: %v", want, err)
		}
	}
}
