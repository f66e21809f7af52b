package replica

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"kvd/kv"
	"kvd/zab"
)

// TestWritesThroughEveryMember: results come back to the member that asked, in the order in which it asked.
func TestWritesThroughEveryMember(t *testing.T) {
	l := newLab(t, 3, nil)
	for i, nd := range l.nodes {
		s := kv.SessionID(100 + i)
		nd.open(1, s)
		for k := range 50 {
			if err := nd.r.Submit(create(uint64(2+k), s, fmt.Sprintf("/%d-%d", nd.id, k))); err != nil {
				t.Fatal(err)
			}
		}
	}
	l.run()
	for _, nd := range l.nodes {
		if len(nd.tokens) != 51 || !slices.IsSorted(nd.tokens) || slices.ContainsFunc(nd.results, func(c kv.Code) bool { return c != kv.CodeOK }) {
			t.Errorf("member %d: tokens %v results %v", nd.id, nd.tokens, nd.results)
		}
		if st := nd.r.Status(); st.Queued+st.Outstanding+st.QueuedBytes+st.OutstandingBytes != 0 {
			t.Errorf("member %d: books not settled: %+v", nd.id, st)
		}
		if nd.tree.View().NodeCount() != l.nodes[0].tree.View().NodeCount() {
			t.Errorf("member %d has %d nodes", nd.id, nd.tree.View().NodeCount())
		}
	}
}

// TestBadOperationsKeepTheirPlace: what cannot be decoded or has no session gets an error in order; the link stays.
func TestBadOperationsKeepTheirPlace(t *testing.T) {
	l := newLab(t, 3, nil)
	nd := l.nodes[0]
	nd.open(1, 100)
	ops := []ClientOp{
		create(2, 100, "/a"),
		{Request: 3, Session: 100, Op: int32(kv.OpCreate), Body: []byte("garbage")},
		{Request: 4, Session: 100, Op: 999, Body: nil},
		{Request: 5, Session: 100, Op: int32(kv.OpSetLevels), Body: appendUint32(appendUint32(nil, 9), 9)},
		{Request: 6, Session: 101, Op: OpCreateSession, Body: []byte{1}},
		create(7, 555, "/nobody"),
		create(8, 100, "/b"),
	}
	for _, op := range ops {
		if err := nd.r.Submit(op); err != nil {
			t.Fatal(err)
		}
	}
	l.run()
	want := []kv.Code{
		kv.CodeOK, kv.CodeOK, kv.CodeMarshallingError, kv.CodeMarshallingError, kv.CodeUnimplemented, kv.CodeMarshallingError,
		kv.CodeSessionExpired, kv.CodeOK,
	}
	if !slices.Equal(nd.results, want) {
		t.Errorf("results %v, want %v", nd.results, want)
	}
}

// TestUnknownTakesTheRestOfItsConnection: when a link breaks, what was sent is unknown; what waits behind it on the same
// connection must not overtake it; other connections' operations wait for the next leader.
func TestUnknownTakesTheRestOfItsConnection(t *testing.T) {
	l := newLab(t, 3, func(c *Config) { c.MaxForwardedOps = 1 })
	nd := l.nodes[0]
	nd.open(1, 100)
	nd.open(2, 200)
	l.hold = true // nothing becomes durable: what is sent stays outstanding
	for _, op := range []ClientOp{create(3, 100, "/sent"), create(4, 100, "/behind"), create(5, 200, "/other")} {
		if err := nd.r.Submit(op); err != nil {
			t.Fatal(err)
		}
	}
	l.run()
	if st := nd.r.Status(); st.Outstanding != 1 || st.Queued != 2 {
		t.Fatalf("outstanding %d queued %d", st.Outstanding, st.Queued)
	}
	l.breakLinks(nd)
	l.run()
	want := []Failed{{3, 100, Unknown}, {4, 100, NotSent}}
	if !reflect.DeepEqual(nd.failed, want) {
		t.Fatalf("failed %v, want %v", nd.failed, want)
	}
	l.hold = false
	for _, x := range l.nodes {
		x.r.Persisted(x.seq)
	}
	for range 40 {
		l.tick(false)
	}
	if !slices.Contains(nd.tokens, 5) {
		t.Errorf("the other connection's write was not executed: %v %v", nd.tokens, nd.failed)
	}
	if _, err := nd.tree.View().Exists("/behind"); err == nil {
		t.Error("a write that was reported not sent was executed")
	}
}

// TestQueuesAreBounded: a full queue refuses, and takes again when there is room.
func TestQueuesAreBounded(t *testing.T) {
	l := newLab(t, 1, func(c *Config) { c.MaxQueuedOps = 4; c.MaxPayloadBytes = 4096; c.QueueTicks = 10 })
	nd := l.nodes[0]
	nd.open(1, 100)
	for k := range 4 {
		if err := nd.r.Submit(create(uint64(2+k), 100, fmt.Sprintf("/%d", k))); err != nil {
			t.Fatal(err)
		}
	}
	if err := nd.r.Submit(create(9, 100, "/full")); !errors.Is(err, ErrBusy) {
		t.Errorf("a full queue says %v", err)
	}
	if err := nd.r.Submit(on(102, set(9, 100, "/0", make([]byte, 3000)))); !errors.Is(err, ErrTooLarge) {
		t.Errorf("an operation that cannot be logged: %v", err)
	}
	l.run()
	if err := nd.r.Submit(on(101, create(9, 100, "/room"))); err != nil {
		t.Error(err)
	}
	l.run()
	if _, err := nd.tree.View().Exists("/room"); err != nil {
		t.Error(err)
	}
	nd.r.Shutdown()
	if err := nd.r.Submit(create(10, 100, "/late")); !errors.Is(err, ErrStopping) {
		t.Errorf("after Shutdown: %v", err)
	}
}

// TestWaitingIsGivenUp: without a leader an operation, a revalidation and a sync are answered when their patience ends.
func TestWaitingIsGivenUp(t *testing.T) {
	l := newLab(t, 3, func(c *Config) { c.QueueTicks = 5; c.SyncTicks = 1000 })
	nd := l.nodes[0]
	nd.open(1, 100)
	l.breakLinks(nd)
	for _, x := range l.nodes[1:] {
		x.down = true
	}
	l.run()
	if nd.serving.Open {
		t.Fatal("still serves")
	}
	if err := nd.r.Submit(create(2, 100, "/x")); err != nil {
		t.Fatal(err)
	}
	nd.r.Revalidate(100, 3, 100, [16]byte{7}, 4000)
	nd.r.SyncRead(4)
	nd.r.SyncRead(5)
	for range 5 {
		l.tick(false)
		if len(nd.failed)+len(nd.answers)+len(nd.synced) != 0 {
			t.Fatal("given up too early")
		}
	}
	l.tick(false)
	if !reflect.DeepEqual(nd.failed, []Failed{{2, 100, NotSent}}) {
		t.Errorf("failed %v", nd.failed)
	}
	if len(nd.answers) != 1 || nd.answers[0].Validity != NoAnswer {
		t.Errorf("revalidated %v", nd.answers)
	}
	if want := []zab.Synced{{ID: 4}, {ID: 5}}; !reflect.DeepEqual(nd.synced, want) {
		t.Errorf("synced %v", nd.synced)
	}
}

// TestRevalidate: the leader answers from the replicated sessions and what is in flight.
func TestRevalidate(t *testing.T) {
	l := newLab(t, 3, nil)
	a, b, leader := l.nodes[0], l.nodes[1], l.leader()
	a.open(1, 100)
	ask := func(nd *node, id kv.SessionID, pw byte, ms int32) Revalidated {
		t.Helper()
		nd.answers = nil
		nd.r.Revalidate(9, 77, id, [16]byte{pw}, ms)
		l.run()
		if len(nd.answers) != 1 || nd.answers[0].Request != 77 || nd.answers[0].Session != id {
			t.Fatalf("answers %v", nd.answers)
		}
		return nd.answers[0]
	}
	for _, nd := range []*node{b, leader} {
		if v := ask(nd, 100, 7, 5000); v.Validity != Valid || v.TimeoutMs != 5000 || v.Fresh != leader.r.Status().Last {
			t.Errorf("member %d: %+v", nd.id, v)
		}
		if v := ask(nd, 100, 8, 5000); v.Validity != WrongPassword {
			t.Errorf("member %d: %+v", nd.id, v)
		}
		if v := ask(nd, 999, 7, 5000); v.Validity != Gone {
			t.Errorf("member %d: %+v", nd.id, v)
		}
		if v := ask(nd, 100, 7, 1); v.TimeoutMs != 100 {
			t.Errorf("member %d: time-out %d is not clamped", nd.id, v.TimeoutMs)
		}
	}
	// Its end is in flight: no answer before it is applied.
	l.hold = true
	if err := a.r.Submit(ClientOp{Request: 2, Session: 100, Op: OpCloseSession}); err != nil {
		t.Fatal(err)
	}
	l.run()
	if _, there := leader.tree.View().Session(100); !there {
		t.Fatal("closed already")
	}
	b.answers = nil
	b.r.Revalidate(8, 78, 100, [16]byte{7}, 4000)
	l.run()
	if len(b.answers) != 0 {
		t.Fatalf("told %v of an end that is not committed", b.answers)
	}
	l.hold = false
	for _, x := range l.nodes {
		x.r.Persisted(x.seq)
	}
	l.run()
	if len(b.answers) != 1 || b.answers[0].Validity != Gone {
		t.Errorf("closed: %v", b.answers)
	}
}

// TestSyncsOfATurnShareOneRound: many syncs cost one question, and each is answered.
func TestSyncsOfATurnShareOneRound(t *testing.T) {
	l := newLab(t, 3, nil)
	for _, nd := range l.nodes {
		nd.synced = nil
		for q := range uint64(100) {
			nd.r.SyncRead(q + 1)
		}
		if n := len(nd.r.clients.syncs); n != 1 {
			t.Errorf("member %d asks %d times", nd.id, n)
		}
		l.run()
		if len(nd.synced) != 100 {
			t.Fatalf("member %d: %d answers", nd.id, len(nd.synced))
		}
		for i, y := range nd.synced {
			if !y.OK || y.ID != uint64(i+1) || y.Zxid != l.leader().r.Status().Committed {
				t.Fatalf("member %d: %+v", nd.id, y)
			}
		}
	}
}

// TestMalformedPayloadClosesTheLink: one peer's nonsense costs its link, not the leader.
func TestMalformedPayloadClosesTheLink(t *testing.T) {
	l := newLab(t, 3, nil)
	leader := l.leader()
	for _, bad := range [][]byte{nil, {0xc1}, appendForwardHeader(nil, 5), appendTouches(nil, nil), appendValidity(nil, &Revalidated{Validity: Valid})} {
		var from *node
		var link zab.LinkID
		for id, nd := range leader.links {
			from, link = nd, id
			break
		}
		leader.events = nil
		leader.r.PeerMessage(from.id, link, &zab.Request{Payload: bad})
		l.run()
		if leader.links[link] != nil {
			t.Errorf("%x: the link stays", bad)
		}
		if !slices.ContainsFunc(leader.events, func(e zab.Event) bool { return e.Kind == "payload-refused" }) {
			t.Errorf("%x: nothing is said", bad)
		}
		for range 20 {
			l.tick(false)
		}
		if !leader.serving.Open || len(leader.links) != 2 {
			t.Fatalf("%x: leader %+v with %d links", bad, leader.serving, len(leader.links))
		}
	}
}

// TestFloodClosesTheLink: a learner that does not keep its window cannot fill the leader's memory.
func TestFloodClosesTheLink(t *testing.T) {
	l := newLab(t, 3, func(c *Config) { c.MaxForwardedOps = 10; c.MaxOutstandingEntries = 1 })
	leader := l.leader()
	l.hold = true // the leader's pipeline does not move
	var from *node
	var link zab.LinkID
	for id, nd := range leader.links {
		from, link = nd, id
		break
	}
	leader.events = nil
	for i := range uint64(100) {
		op := create(i+1, 100, "/x")
		leader.r.PeerMessage(from.id, link, &zab.Request{Payload: appendForwardOp(appendForwardHeader(nil, 1), &op)})
		l.run()
	}
	if leader.links[link] != nil || leader.r.lead.remote.len() > 31 {
		t.Errorf("the link stays, %d operations wait", leader.r.lead.remote.len())
	}
}

// TestSnapshotTurns: one member at a time, everybody in the end.
func TestSnapshotTurns(t *testing.T) {
	l := newLab(t, 3, nil)
	for _, nd := range l.nodes {
		nd.r.SetSnapshot(true, false)
	}
	for i := range 400 {
		active := 0
		for _, nd := range l.nodes {
			if nd.turns == 1 { // begins, and takes a few ticks
				nd.turns++
				nd.r.SetSnapshot(false, true)
			}
			if nd.r.turns.active {
				active++
				if i%7 == 0 {
					nd.r.SetSnapshot(false, false)
				}
			}
		}
		if active > 1 {
			t.Fatalf("%d members write at a time", active)
		}
		l.tick(false)
	}
	for _, nd := range l.nodes {
		if nd.turns != 2 {
			t.Errorf("member %d had %d turns", nd.id, nd.turns/2)
		}
	}
}

// BenchmarkLeaderWrite is one setData of 128 bytes through a lone leader, in batches of 64: decoding, preparing, proposing,
// applying and the replica's own books. BenchmarkKVWrite is what of it belongs to kv.
func BenchmarkLeaderWrite(b *testing.B) {
	l := newLab(b, 1, nil)
	nd := l.nodes[0]
	nd.open(1, 100)
	if err := nd.r.Submit(create(2, 100, "/node")); err != nil {
		b.Fatal(err)
	}
	l.run()
	body := set(0, 100, "/node", make([]byte, 128)).Body
	token := uint64(2)
	b.ReportAllocs()
	for b.Loop() {
		token++
		if err := nd.r.Submit(ClientOp{Request: token, Session: 100, Op: int32(kv.OpSetData), Body: body}); err != nil {
			b.Fatal(err)
		}
		if token%64 == 0 {
			l.run()
			nd.tokens, nd.results, nd.log.entries = nd.tokens[:0], nd.results[:0], nd.log.entries[:0]
		}
	}
}

// BenchmarkKVWrite prepares and applies the same write without a replica.
func BenchmarkKVWrite(b *testing.B) {
	tree := kv.NewTree(nil)
	prep := kv.NewPreparer(tree.View, kv.PreparerOptions{})
	z, chain := kv.Zxid(0), kv.ChainSeed()
	var batch []kv.Entry
	add := func(q *kv.Request) {
		z = max(kv.MakeZxid(1, 0), z) + 1
		p := prep.Prepare(make([]byte, 0, 256), z, kv.TxnHeader{Origin: 1, Request: uint64(z)}, q)
		chain = kv.ChainDigest(chain, z, p)
		batch = append(batch, kv.Entry{Zxid: z, Chain: chain, Payload: p})
	}
	flush := func() {
		if err := tree.Apply(batch, nil); err != nil {
			b.Fatal(err)
		}
		batch = batch[:0]
	}
	add(&kv.Request{Op: kv.OpCreateSession, Session: 100, Timeout: 4000})
	add(&kv.Request{Op: kv.OpCreate, Session: 100, Path: "/node", ACL: kv.OpenACL()})
	flush()
	q := kv.Request{Op: kv.OpSetData, Session: 100, Path: "/node", Data: make([]byte, 128), Version: -1}
	b.ReportAllocs()
	for b.Loop() {
		add(&q)
		if len(batch) == 64 {
			flush()
		}
	}
}

// BenchmarkForwardedWrite is the same through a follower: queue, forward codec, leader, and the result's way back, summed
// over two replicas of a three-member ensemble and its messages in memory.
func BenchmarkForwardedWrite(b *testing.B) {
	l := newLab(b, 3, nil)
	nd := l.nodes[0]
	nd.open(1, 100)
	if err := nd.r.Submit(create(2, 100, "/node")); err != nil {
		b.Fatal(err)
	}
	l.run()
	body := set(0, 100, "/node", make([]byte, 128)).Body
	token := uint64(2)
	b.ReportAllocs()
	for b.Loop() {
		token++
		if err := nd.r.Submit(ClientOp{Request: token, Session: 100, Op: int32(kv.OpSetData), Body: body}); err != nil {
			b.Fatal(err)
		}
		if token%64 == 0 {
			l.run()
			for _, x := range l.nodes {
				x.tokens, x.results, x.log.entries = x.tokens[:0], x.results[:0], x.log.entries[:0]
			}
		}
	}
}
