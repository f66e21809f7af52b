package transport

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"kvd/kv"
	"kvd/snapshot"
	"kvd/zab"
	"kvd/zab/quorum"
)

// records is a source of n records with 1 KiB each.
func records(n, seed int) snapshot.Source {
	return snapshot.SourceFunc(func(yield func(snapshot.Record) error) error {
		value := make([]byte, 1024)
		for i := range n {
			binary.BigEndian.PutUint64(value, uint64(i*seed))
			if err := yield(snapshot.Record{Table: 1, Key: fmt.Appendf(nil, "/%08d", i), Value: value}); err != nil {
				return err
			}
		}
		return nil
	})
}

// chain writes a full file of n records and a small delta.
func chain(t testing.TB, s snapshot.Store, n int) snapshot.Point {
	t.Helper()
	p, err := s.WriteFull(context.Background(), snapshot.Meta{Zxid: kv.MakeZxid(1, 10)}, records(n, 1))
	if err == nil {
		p, err = s.WriteDelta(context.Background(), snapshot.Meta{Zxid: kv.MakeZxid(1, 20)}, records(3, 7), p)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func sameContent(t testing.TB, p snapshot.Point, a, b snapshot.Store) {
	t.Helper()
	var sums [2]uint64
	for i, s := range []snapshot.Store{a, b} {
		err := s.Load(p, func(r snapshot.Record) error {
			sums[i] = sums[i]*31 + snapshot.ChunkHash(append(append([]byte{r.Table}, r.Key...), r.Value...))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if sums[0] != sums[1] {
		t.Error("the contents differ")
	}
}

func smallChunks(l *Limits) { l.ChunkBytes, l.StreamWindowBytes = 4<<10, 16<<10 }

// S55: a snapshot goes over, in the store's own kind of file, with progress on both sides and the reports in
// order: received before whatever the leader sends upon "sent". A second stream of the same point sends nothing
// but the question.
func TestSnapshotStream(t *testing.T) {
	for _, kind := range []string{"memory", "dir"} {
		t.Run(kind, func(t *testing.T) {
			open := func() snapshot.Store {
				if kind == "memory" {
					return snapshot.NewMemory()
				}
				d, err := snapshot.OpenDir(t.TempDir(), snapshot.Options{})
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
			n := newNet(t, 1, 2)
			from, to := open(), open()
			leader := n.start(2, func(o *Options) { smallChunks(&o.Limits) })
			learner := n.start(1, func(o *Options) { o.Snapshots = to })
			p := chain(t, from, 300)
			_, link := linkUp(t, learner, leader, 1)
			for round := range 2 {
				leaderFrom, learnerFrom := len(leader.rec.all()), len(learner.rec.all())
				bytesBefore := leader.Stats().BytesSent
				leader.StreamSnapshot(link, p, from)
				e, _ := leader.rec.waitKind(t, leaderFrom, "sent")
				if e.err != nil || e.link != link {
					t.Fatalf("sent: %+v", e)
				}
				leader.Send([]zab.Outbound{request(link, "after")})
				_, at := learner.rec.wait(t, learnerFrom, "message after the snapshot", func(e event) bool { return text(e) == "after" })
				got := learner.rec.all()[learnerFrom:at]
				if len(got) < 2 || got[len(got)-2].kind != "received" || got[len(got)-2].err != nil || got[len(got)-2].text != p.Zxid.String() {
					t.Fatalf("round %d: the message came after %+v", round, got)
				}
				sent := leader.Stats().BytesSent - bytesBefore
				if round == 0 {
					if got := learner.rec.countKind("progress"); int64(got) < p.TotalBytes()/(4<<10) {
						t.Errorf("the learner saw %d steps", got)
					}
					if leader.rec.countKind("progress") == 0 {
						t.Error("the leader saw no progress")
					}
				} else if sent > 2000 {
					t.Errorf("%d bytes sent for what is there already", sent)
				}
			}
			sameContent(t, p, from, to)
		})
	}
}

// A receiver that has everything says so and "done" in one breath: whichever the sender sees first, it is a success.
func TestHaveAndDoneTogether(t *testing.T) {
	for range 100 {
		out := &outStream{have: make(chan []int64, 1), done: make(chan string, 1)}
		out.have <- []int64{1}
		out.done <- ""
		if _, _, err := out.awaitHave(nil); err != nil {
			t.Fatal(err)
		}
	}
}

// The link is cut again and again in the middle of a stream; each new one goes on where the last one stopped.
func TestSnapshotResumesAfterCuts(t *testing.T) {
	n := newNet(t, 1, 2)
	from, to := snapshot.NewMemory(), snapshot.NewMemory()
	leader := n.start(2, func(o *Options) { smallChunks(&o.Limits) })
	learner := n.start(1, func(o *Options) { o.Snapshots = to })
	p := chain(t, from, 400)
	for attempt := uint64(1); ; attempt++ {
		if attempt > 60 {
			t.Fatal("the stream never ends")
		}
		mine, theirs := linkUp(t, learner, leader, attempt)
		start, leaderStart := len(learner.rec.all()), len(leader.rec.all())
		leader.StreamSnapshot(theirs, p, from)
		steps := 0
		e, _ := learner.rec.wait(t, start, "tenth step or end", func(e event) bool {
			if e.kind == "progress" {
				steps++
			}
			return steps >= 10 || e.kind == "received"
		})
		if e.kind == "received" && e.err == nil {
			leader.rec.wait(t, leaderStart, "sent", func(e event) bool { return e.kind == "sent" && e.err == nil })
			if attempt < 5 {
				t.Errorf("done after %d attempts: nothing was cut", attempt)
			}
			break
		}
		learner.mu.Lock()
		l := learner.links[mine]
		learner.mu.Unlock()
		l.fail(errors.New("cut by the test"))
		down, _ := leader.rec.wait(t, leaderStart, "sent with an error", func(e event) bool { return e.kind == "sent" })
		if down.err == nil {
			break // it was done before the cut
		}
		learner.rec.wait(t, start, "received with an error", func(e event) bool { return e.kind == "received" })
	}
	sameContent(t, p, from, to)
	if sent := int64(leader.Stats().BytesSent); sent > p.TotalBytes()*2 {
		t.Errorf("%d bytes sent for a snapshot of %d", sent, p.TotalBytes())
	}
}

// gateStore lets a test hold chunks back at the receiver's disk.
type gateStore struct {
	snapshot.Store
	gate chan struct{} // receives once per chunk written
}

func (g *gateStore) Receive(p snapshot.Point) (snapshot.Receiver, error) {
	r, err := g.Store.Receive(p)
	return &gateReceiver{r, g.gate}, err
}

type gateReceiver struct {
	snapshot.Receiver
	gate chan struct{}
}

func (g *gateReceiver) WriteChunk(file int, off int64, data []byte, hash uint64) error {
	<-g.gate
	return g.Receiver.WriteChunk(file, off, data, hash)
}

// S44: a receiver whose disk stands still gets no more than a window of chunks, and everything else passes
// meanwhile, both ways.
func TestSlowReceiverDisturbsNobody(t *testing.T) {
	n := newNet(t, 1, 2)
	from := snapshot.NewMemory()
	to := &gateStore{Store: snapshot.NewMemory(), gate: make(chan struct{})}
	leader := n.start(2, func(o *Options) { smallChunks(&o.Limits) })
	learner := n.start(1, func(o *Options) { o.Snapshots = to })
	p := chain(t, from, 300)
	mine, theirs := linkUp(t, learner, leader, 1)
	before := leader.Stats().BytesSent
	leader.StreamSnapshot(theirs, p, from)
	to.gate <- struct{}{}
	for i := range 50 { // pings and replies
		want := fmt.Sprint("ping ", i)
		leader.Send([]zab.Outbound{request(theirs, want)})
		learner.rec.wait(t, 0, want, func(e event) bool { return text(e) == want })
		learner.Send([]zab.Outbound{request(mine, want)})
		leader.rec.wait(t, 0, want, func(e event) bool { return text(e) == want })
	}
	if sent := leader.Stats().BytesSent - before; sent > 16<<10+4<<10+10_000 {
		t.Errorf("%d bytes are under way, the window is 16 KiB", sent)
	}
	close(to.gate)
	e, _ := leader.rec.waitKind(t, 0, "sent")
	if e.err != nil {
		t.Fatal(e.err)
	}
	sameContent(t, p, from, to)
}

// Whatever goes wrong on one side ends the stream on both, with the reason, and leaves the link usable.
func TestSnapshotFailures(t *testing.T) {
	for _, c := range []struct {
		name           string
		sabotage       func(t *testing.T, from *snapshot.Memory, p *snapshot.Point)
		noStore        bool
		sent, received string
	}{
		{"receiver takes none", nil, true, "takes no snapshots", "takes no snapshots"},
		{"sender lost a file", func(t *testing.T, from *snapshot.Memory, p *snapshot.Point) { from.Remove(p.Files[1].Name) }, false, "no such file", ""},
		{"file is shorter than recorded", func(t *testing.T, _ *snapshot.Memory, p *snapshot.Point) { p.Files[1].Bytes++ }, false, "reading", "the sender stopped"},
		{"file is damaged at the sender", func(t *testing.T, from *snapshot.Memory, p *snapshot.Point) { from.Flip(p.Files[0].Name, 5000) }, false, "could not take", "hash to"},
		{"no point at all", func(t *testing.T, _ *snapshot.Memory, p *snapshot.Point) { *p = snapshot.Point{} }, false, "without files", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNet(t, 1, 2)
			from, to := snapshot.NewMemory(), snapshot.NewMemory()
			leader := n.start(2, func(o *Options) { smallChunks(&o.Limits) })
			learner := n.start(1, func(o *Options) {
				if !c.noStore {
					o.Snapshots = to
				}
			})
			p := chain(t, from, 50)
			if c.sabotage != nil {
				c.sabotage(t, from, &p)
			}
			_, link := linkUp(t, learner, leader, 1)
			leader.StreamSnapshot(link, p, from)
			if e, _ := leader.rec.waitKind(t, 0, "sent"); e.err == nil || !strings.Contains(e.err.Error(), c.sent) {
				t.Errorf("sent: %v", e.err)
			}
			if c.received != "" {
				if e, _ := learner.rec.waitKind(t, 0, "received"); e.err == nil || !strings.Contains(e.err.Error(), c.received) {
					t.Errorf("received: %v", e.err)
				}
			}
			leader.Send([]zab.Outbound{request(link, "still here")})
			learner.rec.wait(t, 0, "message after the failure", func(e event) bool { return text(e) == "still here" })
			if learner.rec.countKind("linkdown") > 0 {
				t.Error("the link went down")
			}
		})
	}
}

// A stream on a link that is gone is answered.
func TestStreamOnUnknownLink(t *testing.T) {
	n := newNet(t, 1)
	nd := n.start(1, nil)
	from := snapshot.NewMemory()
	nd.StreamSnapshot(77, chain(t, from, 1), from)
	if e, _ := nd.rec.waitKind(t, 0, "sent"); e.err == nil || e.link != 77 {
		t.Errorf("%+v", e)
	}
}

// Hostile frames of a stream close the link; frames of a stream that has ended do not.
func TestHostileStreamFrames(t *testing.T) {
	frameOf := func(kind byte, stream uint32, body ...byte) []byte {
		f := newFrame(kind)
		f.buf = append(binary.BigEndian.AppendUint32(f.buf, stream), body...)
		f.seal()
		return f.buf
	}
	point := func(t *testing.T) []byte { return chain(t, snapshot.NewMemory(), 5).AppendTo(nil) }
	chunk := func(file uint16, off uint64, data string) []byte {
		b := binary.BigEndian.AppendUint16(nil, file)
		b = binary.BigEndian.AppendUint64(b, off)
		b = binary.BigEndian.AppendUint64(b, snapshot.ChunkHash([]byte(data)))
		return append(b, data...)
	}
	for _, c := range []struct {
		name  string
		after []byte // sent after a good begin
		ends  bool
	}{
		{"chunk of another stream", frameOf(kindSnapChunk, 99, chunk(0, 0, "x")...), false},
		{"ack of no stream", frameOf(kindSnapAck, 1, 1), false},
		{"short chunk", frameOf(kindSnapChunk, 1, 0, 0), true},
		{"chunk of a file beyond the point", frameOf(kindSnapChunk, 1, chunk(7, 0, "x")...), true},
		{"negative offset", frameOf(kindSnapChunk, 1, chunk(0, 1<<63, "x")...), true},
		{"second begin", nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNet(t, 1, 2)
			gate := make(chan struct{})
			leader := n.start(2, func(o *Options) { o.Snapshots = &gateStore{snapshot.NewMemory(), gate} })
			defer close(gate)
			conn := rawLearner(t, n, &node{Transport: &Transport{o: Options{ID: 1}}}, leader, false)
			begin := frameOf(kindSnapBegin, 1, point(t)...)
			after := c.after
			if after == nil {
				after = begin
			}
			ack := newFrame(kindMessage)
			ack.buf, _ = testCodec.Append(ack.buf, &zab.Request{Payload: []byte("end")})
			ack.seal()
			if _, err := conn.Write(bytes.Join([][]byte{begin, after, ack.buf}, nil)); err != nil {
				t.Fatal(err)
			}
			e, _ := leader.rec.wait(t, 0, "message or end", func(e event) bool { return e.kind == "linkdown" || text(e) == "end" })
			if (e.kind == "linkdown") != c.ends || c.ends && !errors.Is(e.err, errFrame) {
				t.Errorf("%+v", e)
			}
		})
	}
}

// A sender that ignores the window fills its backlog and is cut off: what a receiver holds stays bounded.
func TestReceiverBoundsItsBacklog(t *testing.T) {
	in := &inStream{files: 1, chunks: make(chan inChunk, maxBacklogChunks)}
	big := append(make([]byte, 18), make([]byte, 1<<20)...)
	n := 0
	for ; in.take(big) == nil; n++ {
		if n > 100 {
			t.Fatal("100 MiB were taken")
		}
	}
	if n != maxBacklogBytes>>20 {
		t.Errorf("%d MiB were taken", n)
	}
	in = &inStream{files: 1, chunks: make(chan inChunk, maxBacklogChunks)}
	for n = 0; in.take(make([]byte, 18)) == nil; n++ {
	}
	if n != maxBacklogChunks {
		t.Errorf("%d empty chunks were taken", n)
	}
}

// FuzzFrames feeds a byte stream, whole and in pieces, to the frame reader: no panic, no allocation beyond the
// limit, and what comes out is what a straightforward reader finds.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 16}, uint8(1))
	f.Add([]byte{0, 0, 0, 3, 1, 'a', 'b', 0, 0, 0, 2, 2, 'c'}, uint8(3))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0}, uint8(0))
	f.Add([]byte{0, 0, 0, 0, 0}, uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, piece uint8) {
		const limit = 1000
		fr := newFrameReader(&pieces{b: b, n: int(piece) + 1}, limit)
		rest := b
		for {
			kind, body, err := fr.next()
			var n uint32
			if len(rest) >= 4 {
				n = binary.BigEndian.Uint32(rest)
			}
			whole := len(rest) >= headBytes && n >= 1 && n <= limit && len(rest) >= 4+int(n)
			if (err == nil) != whole {
				t.Fatalf("%d bytes left, length %d: %v", len(rest), n, err)
			}
			if err != nil {
				return
			}
			if kind != rest[4] || !bytes.Equal(body, rest[5:4+n]) || cap(body) != len(body) {
				t.Fatalf("kind %d body %q (cap %d) of %q", kind, body, cap(body), rest)
			}
			rest = rest[4+n:]
		}
	})
}

type pieces struct {
	b []byte
	n int
}

func (p *pieces) Read(to []byte) (int, error) {
	n := copy(to[:min(p.n, len(to))], p.b)
	p.b = p.b[n:]
	if n == 0 {
		return 0, errEnd
	}
	return n, nil
}

var errEnd = errors.New("end of the pieces")

// FuzzStreamFrames feeds bodies to a link's decoders for snapshot streams.
func FuzzStreamFrames(f *testing.F) {
	f.Add(uint8(kindSnapHave), []byte{0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9})
	f.Add(uint8(kindSnapAck), []byte{0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9})
	f.Add(uint8(kindSnapDone), []byte{0, 0, 0, 1, 'x'})
	f.Add(uint8(kindSnapChunk), append([]byte{0, 0, 0, 2}, make([]byte, 30)...))
	f.Add(uint8(kindGoodbye), []byte("bye\x1b"))
	f.Fuzz(func(t *testing.T, kind uint8, body []byte) {
		if kind == kindSnapBegin { // starts a goroutine; DecodePoint has a fuzz test of its own
			return
		}
		l := &link{t: &Transport{o: Options{Handler: newRecorder(), Codec: testCodec}},
			out: &outStream{id: 1, have: make(chan []int64, 1), done: make(chan string, 1), ackWake: make(chan struct{}, 1)},
			in:  &inStream{id: 2, files: 2, chunks: make(chan inChunk, 4), aborted: make(chan string, 1)}}
		_ = l.deliver(kind, body)
		select {
		case have := <-l.out.have:
			if len(have) > snapshot.MaxFiles {
				t.Errorf("%d files", len(have))
			}
		case c := <-l.in.chunks:
			if c.file >= 2 || c.off < 0 {
				t.Errorf("%+v", c)
			}
		default:
		}
	})
}

// A large frame's buffer grows with what has arrived, not with what was announced.
func TestAnnouncedLengthIsNotAllocated(t *testing.T) {
	allocs := testing.AllocsPerRun(5, func() {
		head := []byte{0, 0xff, 0xff, 0xff, 1} // 16 MiB announced, nothing follows
		fr := newFrameReader(bytes.NewReader(head), 64<<20)
		if _, _, err := fr.next(); err == nil {
			t.Fatal("a frame out of nothing")
		}
	})
	if allocs > 10 {
		t.Errorf("%v allocations", allocs)
	}
	big := make([]byte, 4+1+5<<20)
	binary.BigEndian.PutUint32(big, uint32(len(big)-4))
	fr := newFrameReader(bytes.NewReader(big), 64<<20)
	if _, body, err := fr.next(); err != nil || len(body) != 5<<20 {
		t.Errorf("%d bytes, %v", len(body), err)
	}
}

// discard is a Handler that counts messages.
type discard struct {
	recorder
	mu      sync.Mutex
	entries int
	target  int
	done    chan struct{}
}

func (d *discard) LinkMessage(_ quorum.MemberID, _ zab.LinkID, m zab.Message) {
	if p, ok := m.(*zab.Proposal); ok {
		d.mu.Lock()
		d.entries += len(p.Entries)
		if d.entries >= d.target && d.done != nil {
			close(d.done)
			d.done = nil
		}
		d.mu.Unlock()
	}
}

// BenchmarkProposals sends batches of 16 proposals of 180 bytes to two followers, as at 30,000 a second; the
// time is per proposal for encoding once, two links, both receivers' decoding included.
func BenchmarkProposals(b *testing.B) {
	n := newNet(b, 1, 2, 3)
	codec := func(o *Options) { o.Codec = Codec{} }
	leader := n.start(3, codec)
	var links []zab.LinkID
	var sinks []*discard
	for _, id := range []quorum.MemberID{1, 2} {
		sink := &discard{recorder: *newRecorder()}
		sinks = append(sinks, sink)
		from := len(leader.rec.all())
		nd := n.start(id, func(o *Options) { codec(o); o.Handler = sink })
		nd.Connect(3, 1)
		up, _ := leader.rec.waitKind(b, from, "linkup")
		for up.peer != id {
			up, from = leader.rec.waitKind(b, from, "linkup")
		}
		links = append(links, up.link)
	}
	const batch = 16
	p := &zab.Proposal{}
	for i := range batch {
		p.Entries = append(p.Entries, kv.Entry{Zxid: kv.MakeZxid(1, uint32(i+1)), Chain: uint64(i), Payload: make([]byte, 180)})
	}
	out := make([]zab.Outbound, 2)
	total := 0
	b.ReportAllocs()
	for b.Loop() {
		total++
		m := *p
		out[0], out[1] = zab.Outbound{Link: links[0], Msg: &m}, zab.Outbound{Link: links[1], Msg: &m}
		leader.Send(out)
		if total%256 == 0 { // stay within the queue's bound
			for _, s := range sinks {
				s.waitFor(total * batch)
			}
		}
	}
	for _, s := range sinks {
		s.waitFor(total * batch)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(total*batch), "ns/proposal")
	b.ReportMetric(float64(leader.Stats().FramesSent)/float64(max(leader.Stats().Flushes, 1)), "frames/flush")
}

func (d *discard) waitFor(entries int) {
	d.mu.Lock()
	done := make(chan struct{})
	if d.entries >= entries {
		close(done)
	} else {
		d.target, d.done = entries, done
	}
	d.mu.Unlock()
	<-done
}
