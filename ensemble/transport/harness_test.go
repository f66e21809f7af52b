package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kvd/kv"
	"kvd/snapshot"
	"kvd/zab"
	"kvd/zab/quorum"
)

// TestMain fails the package when a goroutine of its tests is still there at the end.
func TestMain(m *testing.M) {
	code := m.Run()
	deadline := time.Now().Add(5 * time.Second)
	for code == 0 {
		buf := make([]byte, 1<<20)
		stacks := string(buf[:runtime.Stack(buf, true)])
		if !strings.Contains(stacks, "kvd/ensemble/transport.(") {
			break
		}
		if time.Now().After(deadline) {
			fmt.Fprintf(os.Stderr, "goroutines left behind:\n%s\n", stacks)
			code = 1
		}
		runtime.Gosched()
	}
	os.Exit(code)
}

// testCodec is enough of zab's codec to tell messages apart: the transport does not look inside.
var testCodec = Codec{
	Append: func(dst []byte, m zab.Message) ([]byte, error) {
		switch m := m.(type) {
		case *zab.Ack:
			return binary.BigEndian.AppendUint64(append(dst, 'a'), uint64(m.Zxid)), nil
		case *zab.Request:
			return append(append(dst, 'r'), m.Payload...), nil
		case *zab.Proposal:
			dst = append(dst, 'p')
			for _, e := range m.Entries {
				dst = binary.BigEndian.AppendUint64(dst, uint64(e.Zxid))
				dst = binary.BigEndian.AppendUint32(dst, uint32(len(e.Payload)))
				dst = append(dst, e.Payload...)
			}
			return dst, nil
		}
		return dst, fmt.Errorf("no encoding for %T", m)
	},
	Decode: func(b []byte) (zab.Message, error) {
		switch {
		case len(b) == 9 && b[0] == 'a':
			return &zab.Ack{Zxid: kv.Zxid(binary.BigEndian.Uint64(b[1:]))}, nil
		case len(b) > 0 && b[0] == 'r':
			return &zab.Request{Payload: b[1:]}, nil
		case len(b) > 0 && b[0] == 'p':
			p := &zab.Proposal{}
			for b = b[1:]; len(b) >= 12; {
				n := int(binary.BigEndian.Uint32(b[8:]))
				if n > len(b)-12 {
					return nil, errors.New("short entry")
				}
				p.Entries = append(p.Entries, kv.Entry{Zxid: kv.Zxid(binary.BigEndian.Uint64(b)), Payload: b[12 : 12+n : 12+n]})
				b = b[12+n:]
			}
			return p, nil
		}
		return nil, fmt.Errorf("no message: %.10q", b)
	},
}

// recorder is a Handler that writes down what it is told, in order.
type recorder struct {
	mu     sync.Mutex
	change chan struct{} // closed and replaced at each event
	events []event
}

type event struct {
	kind    string
	peer    quorum.MemberID
	link    zab.LinkID
	text    string
	msg     zab.Message
	err     error
	dialled bool
}

func (e event) String() string {
	s := fmt.Sprintf("%s peer=%d link=%d %s", e.kind, e.peer, e.link, e.text)
	if e.msg != nil {
		s += fmt.Sprintf(" %T", e.msg)
	}
	if e.err != nil {
		s += " err=" + e.err.Error()
	}
	return s
}

func newRecorder() *recorder { return &recorder{change: make(chan struct{})} }

func (r *recorder) add(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
	close(r.change)
	r.change = make(chan struct{})
}

func (r *recorder) ElectionUp(id quorum.MemberID)   { r.add(event{kind: "up", peer: id}) }
func (r *recorder) ElectionDown(id quorum.MemberID) { r.add(event{kind: "down", peer: id}) }
func (r *recorder) ElectionMessage(id quorum.MemberID, kind byte, p []byte) {
	r.add(event{kind: "vote", peer: id, text: fmt.Sprintf("%d:%s", kind, p)})
}
func (r *recorder) LinkUp(id quorum.MemberID, l zab.LinkID, dialled bool) {
	r.add(event{kind: "linkup", peer: id, link: l, dialled: dialled})
}
func (r *recorder) LinkDown(id quorum.MemberID, l zab.LinkID, err error) {
	r.add(event{kind: "linkdown", peer: id, link: l, err: err})
}
func (r *recorder) LinkMessage(id quorum.MemberID, l zab.LinkID, m zab.Message) {
	r.add(event{kind: "msg", peer: id, link: l, msg: m})
}
func (r *recorder) ConnectFailed(attempt uint64, err error) {
	r.add(event{kind: "failed", text: fmt.Sprint(attempt), err: err})
}
func (r *recorder) SnapshotProgress(l zab.LinkID) { r.add(event{kind: "progress", link: l}) }
func (r *recorder) SnapshotReceived(l zab.LinkID, p snapshot.Point, err error) {
	r.add(event{kind: "received", link: l, text: p.Zxid.String(), err: err})
}
func (r *recorder) SnapshotSent(l zab.LinkID, err error) {
	r.add(event{kind: "sent", link: l, err: err})
}

func (r *recorder) all() []event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

func (r *recorder) count(want func(event) bool) int {
	n := 0
	for _, e := range r.all() {
		if want(e) {
			n++
		}
	}
	return n
}

func (r *recorder) countKind(kind string) int {
	return r.count(func(e event) bool { return e.kind == kind })
}

const patience = 20 * time.Second // until a test gives up on something that should happen at once

// wait returns the first event from index `from` on for which want holds, and the index after it.
func (r *recorder) wait(t testing.TB, from int, what string, want func(event) bool) (event, int) {
	t.Helper()
	timeout := time.After(patience)
	for {
		r.mu.Lock()
		for i := from; i < len(r.events); i++ {
			if want(r.events[i]) {
				e := r.events[i]
				r.mu.Unlock()
				return e, i + 1
			}
		}
		change := r.change
		r.mu.Unlock()
		select {
		case <-change:
		case <-timeout:
			t.Fatalf("no %s; events:\n%s", what, lines(r.all()))
		}
	}
}

func lines(events []event) string {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintln(&b, e)
	}
	return b.String()
}

func (r *recorder) waitKind(t testing.TB, from int, kind string) (event, int) {
	t.Helper()
	return r.wait(t, from, kind, func(e event) bool { return e.kind == kind })
}

// until waits for a condition that no event announces.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// node is one member of a test.
type node struct {
	*Transport
	rec   *recorder
	store snapshot.Store
	log   *logBuffer
}

type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

var testCluster = [16]byte{1, 2, 3}

func testHello() Hello {
	return Hello{Cluster: testCluster, Protocol: zab.VersionRange{Min: 1, Max: 2}}
}

// net0 is a set of members with kernel-chosen ports.
type net0 struct {
	t     testing.TB
	peers map[quorum.MemberID]Address
	ln    map[quorum.MemberID][2]net.Listener // election, learner
}

func newNet(t testing.TB, ids ...quorum.MemberID) *net0 {
	n := &net0{t: t, peers: map[quorum.MemberID]Address{}, ln: map[quorum.MemberID][2]net.Listener{}}
	for _, id := range ids {
		var lns [2]net.Listener
		for i := range lns {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			lns[i] = ln
		}
		n.ln[id] = lns
		n.peers[id] = Address{Host: "127.0.0.1", ElectionPort: port(lns[0]), LearnerPort: port(lns[1])}
	}
	t.Cleanup(func() {
		for _, lns := range n.ln {
			for _, ln := range lns {
				if ln != nil {
					_ = ln.Close()
				}
			}
		}
	})
	return n
}

func port(ln net.Listener) int { return ln.Addr().(*net.TCPAddr).Port }

// start runs member id; change may alter its options.
func (n *net0) start(id quorum.MemberID, change func(*Options)) *node {
	n.t.Helper()
	nd := &node{rec: newRecorder(), log: &logBuffer{}}
	o := Options{
		ID: id, Peers: n.peers, ElectionListener: n.ln[id][0], LearnerListener: n.ln[id][1],
		Hello: testHello, Handler: nd.rec, Codec: testCodec, Logger: slog.New(slog.NewTextHandler(nd.log, nil)),
		Limits: Limits{BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond},
	}
	if change != nil {
		change(&o)
	}
	nd.store = o.Snapshots
	var err error
	if nd.Transport, err = New(o); err != nil {
		n.t.Fatal(err)
	}
	if err := nd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = nd.Close() })
	return nd
}

// restart opens the member's listeners again, on the same ports, after its Close.
func (n *net0) reopen(id quorum.MemberID) {
	n.t.Helper()
	a := n.peers[id]
	var lns [2]net.Listener
	for i, p := range []int{a.ElectionPort, a.LearnerPort} {
		ln, err := net.Listen("tcp", joinHostPort(a.Host, p))
		if err != nil {
			n.t.Fatal(err)
		}
		lns[i] = ln
	}
	n.ln[id] = lns
}

// linkUp connects learner to leader and returns both ends' link ids.
func linkUp(t testing.TB, learner, leader *node, attempt uint64) (mine, theirs zab.LinkID) {
	t.Helper()
	fromLeader, fromLearner := len(leader.rec.all()), len(learner.rec.all())
	learner.Connect(leader.o.ID, attempt)
	up, _ := learner.rec.wait(t, fromLearner, "link at the learner", func(e event) bool { return e.kind == "linkup" && e.dialled })
	other, _ := leader.rec.wait(t, fromLeader, "link at the leader", func(e event) bool { return e.kind == "linkup" && !e.dialled && e.peer == learner.o.ID })
	return up.link, other.link
}

func request(l zab.LinkID, text string) zab.Outbound {
	return zab.Outbound{Link: l, Msg: &zab.Request{Payload: []byte(text)}}
}

func text(e event) string {
	if r, ok := e.msg.(*zab.Request); ok {
		return string(r.Payload)
	}
	return ""
}

// blackHole is a Dial that swallows connections to the given addresses as a dropping firewall does.
func blackHole(swallow func(address string) bool) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if swallow(address) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
}
