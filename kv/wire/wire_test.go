package wire

import (
	"bytes"
	"io"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"kvd/kv"
)

// What a server does per request, and what the client does, costs no memory.
func TestAllocationBudgets(t *testing.T) {
	data := make([]byte, 128)
	acl := []kv.ACL{{Perms: 31, Scheme: "world", ID: "anyone"}}
	set := (&SetDataRequest{"/bench/node", data, -1}).AppendTo(nil)
	get := (&PathWatchRequest{"/bench/node", false}).AppendTo(nil)
	create := (&CreateRequest{"/bench/node", data, acl, 0}).AppendTo(nil)
	reply := (&DataResponse{Data: data}).AppendTo(nil)
	buf := make([]byte, 0, 1024)
	var req kv.Request
	var stat kv.Stat
	for _, c := range []struct {
		name string
		max  float64
		f    func()
	}{
		{"decode setData", 0, func() { _ = DecodeRequest(OpSetData, set, &req) }},
		{"encode setData", 0, func() {
			b, mark := BeginFrame(buf[:0])
			b = (&RequestHeader{1, OpSetData}).AppendTo(b)
			b = (&SetDataRequest{"/bench/node", data, -1}).AppendTo(b)
			EndFrame(b, mark)
		}},
		{"encode setData reply", 0, func() {
			b, mark := BeginFrame(buf[:0])
			b = (&ReplyHeader{1, 5, 0}).AppendTo(b)
			EndFrame(AppendStat(b, &stat), mark)
		}},
		{"decode getData", 0, func() {
			r := NewReader(get)
			var q PathWatchRequest
			q.DecodeFrom(&r)
		}},
		{"encode getData reply", 0, func() {
			b, mark := BeginFrame(buf[:0])
			b = (&ReplyHeader{1, 5, 0}).AppendTo(b)
			EndFrame((&DataResponse{Data: data, Stat: stat}).AppendTo(b), mark)
		}},
		{"decode getData reply", 0, func() {
			r := NewReader(reply)
			var p DataResponse
			p.DecodeFrom(&r)
		}},
		{"decode create", 1, func() { _ = DecodeRequest(OpCreate, create, &req) }}, // the ACL
		{"split headers", 0, func() { _, _, _ = SplitRequest(set); _, _, _ = SplitReply(reply) }},
		{"class", 0, func() { _ = OpSetData.Class() }},
		{"event", 0, func() { AppendEventFrame(buf[:0], 1, EventCreated, "/a") }},
	} {
		if got := testing.AllocsPerRun(200, c.f); got > c.max {
			t.Errorf("%s: %v allocations, budget %v", c.name, got, c.max)
		}
	}
}

// A stream of small frames that are not kept costs one buffer, one of kept frames about their own bytes.
func TestFrameReaderMemory(t *testing.T) {
	frame := EndFrame(append([]byte{0, 0, 0, 0}, make([]byte, 160)...), 0)
	stream := bytes.Repeat(frame, 20000)
	for _, c := range []struct {
		name string
		keep bool
		max  uint64
	}{{"not kept", false, 300 << 10}, {"kept", true, uint64(len(stream))*5/4 + 300<<10}} {
		fr := NewFrameReader(bytes.NewReader(stream), 1000)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 20000 {
			if _, err := fr.Next(); err != nil {
				t.Fatal(err)
			}
			if c.keep {
				fr.Keep()
			}
		}
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > c.max {
			t.Errorf("%s: %d bytes allocated, at most %d expected", c.name, got, c.max)
		}
	}
}

// An announced length alone costs nothing.
func TestAnnouncedLengthAllocatesNothing(t *testing.T) {
	r, w := io.Pipe()
	go func() {
		_, _ = w.Write(append(AppendInt32(nil, DefaultMaxFrameBytes), 1, 2, 3))
		w.Close()
	}()
	fr := NewFrameReader(r, DefaultMaxFrameBytes)
	if _, err := fr.Next(); err != io.ErrUnexpectedEOF {
		t.Fatal(err)
	}
	if len(fr.buf) > 2*minChunkBytes {
		t.Errorf("buffer of %d bytes for 7 received", len(fr.buf))
	}
	// A large frame that did arrive does not stay.
	big := EndFrame(append([]byte{0, 0, 0, 0}, make([]byte, DefaultMaxFrameBytes)...), 0)
	fr = NewFrameReader(bytes.NewReader(append(big, 0, 0, 0, 0)), DefaultMaxFrameBytes)
	for range 2 {
		if _, err := fr.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := fr.Next(); err != io.EOF {
		t.Fatal(err)
	}
	if len(fr.buf) > maxChunkBytes {
		t.Errorf("buffer of %d bytes after a large frame", len(fr.buf))
	}
}

func TestPeekAndBuffered(t *testing.T) {
	fr := NewFrameReader(strings.NewReader("ruok\n"), 100)
	b, err := fr.Peek(4)
	if w, ok := ParseWord(b); err != nil || !ok || w != WordRuok {
		t.Fatalf("%q %v %v", w, ok, err)
	}
	if !fr.Buffered() {
		t.Error("an illegal length is not reported as something to read")
	}
	fr = NewFrameReader(bytes.NewReader([]byte{0, 0, 0, 2, 1, 2, 0, 0, 0, 2, 1}), 100)
	if b, err := fr.Peek(4); err != nil || !bytes.Equal(b, []byte{0, 0, 0, 2}) {
		t.Fatal(b, err)
	}
	if b, err := fr.Next(); err != nil || !bytes.Equal(b, []byte{1, 2}) {
		t.Fatal(b, err)
	}
	if fr.Buffered() {
		t.Error("half a frame is reported as whole")
	}
	for _, b := range []string{"", "ruo", "RUOK", "quit", "\x00\x00\x00\x2d"} {
		if w, ok := ParseWord([]byte(b)); ok {
			t.Errorf("%q is taken for the word %q", b, w)
		}
	}
	if _, ok := ParseWord([]byte{0xff, 0xf4, 0xff, 0xfd}); !ok {
		t.Error("telnet's interrupt is not recognised")
	}
}

// strictSrvr reads srvr as go-zookeeper does, the strictest reader known: one expression over the whole head, and the
// time of the build in one layout only.
func strictSrvr(t *testing.T, text string, built time.Time) {
	t.Helper()
	re := regexp.MustCompile(`(?m:\AZookeeper version: ([A-Za-z0-9.\-]+), built on (\d\d/\d\d/\d{4} \d\d:\d\d [A-Za-z0-9:+\-]+).*\n` +
		`^Latency min/avg/max: (\d+)/([0-9.]+)/(\d+).*\n^Received: (\d+).*\n^Sent: (\d+).*\n^Connections: (\d+).*\n^Outstanding: (\d+).*\n` +
		`^Zxid: (0x[A-Za-z0-9]+).*\n^Mode: (\w+).*\n^Node count: (\d+))`)
	m := re.FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("the strict reader does not match\n%s", text)
	}
	at, err := time.Parse("01/02/2006 15:04 MST", m[2])
	if err != nil || !at.Equal(built) {
		t.Errorf("built %v, %v, want %v", at, err, built)
	}
}

func TestProtocolVersion(t *testing.T) {
	for in, want := range map[string]string{"1.2.3": "3.9.5-kvd.1.2.3", "v1.0.0-rc1+dirty,x": "3.9.5-kvd.v1.0.0-rc1-dirty-x", "": "3.9.5-kvd."} {
		if got := ProtocolVersion(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	s := ServerStats{Serving: true, Version: ProtocolVersion("(devel)"), Mode: ModeStandalone} // no time of a build: 1970
	strictSrvr(t, string(AppendSrvr(nil, &s)), time.Unix(0, 0))
}

// The lines of real ZooKeeper 3.8.0.
func TestConsLines(t *testing.T) {
	c := ConnStats{
		ClientStats: ClientStats{"127.0.0.1:54394", 1, 0, 7, 7}, Session: 0x10000b790b90000, LastOp: OpGetChildren,
		Established: time.UnixMilli(1796085142659), TimeoutMs: 10000, LastXid: 6, LastZxid: 7, LastReply: 12292363 * time.Millisecond,
		LatencyLast: 2 * time.Millisecond, LatencyAvg: 4 * time.Millisecond, LatencyMax: 16 * time.Millisecond,
	}
	fresh := c
	fresh.Received, fresh.Sent, fresh.LastOp, fresh.LastXid, fresh.LastZxid = 0, 0, 0, -1, NoZxid
	fresh.LastReply, fresh.LatencyLast, fresh.LatencyAvg, fresh.LatencyMax = 0, 0, 0, 0
	for _, l := range []struct {
		c    ConnStats
		want string
	}{
		{c, " /127.0.0.1:54394[1](queued=0,recved=7,sent=7,sid=0x10000b790b90000,lop=GETC,est=1796085142659,to=10000,lcxid=0x6,lzxid=0x7,lresp=12292363,llat=2,minlat=0,avglat=4,maxlat=16)\n"},
		{fresh, " /127.0.0.1:54394[1](queued=0,recved=0,sent=0,sid=0x10000b790b90000,lop=NA,est=1796085142659,to=10000,lzxid=0xffffffffffffffff,lresp=0,llat=0,minlat=0,avglat=0,maxlat=0)\n"},
		{ConnStats{ClientStats: ClientStats{"127.0.0.1:50400", 0, 0, 1, 0}}, " /127.0.0.1:50400[0](queued=0,recved=1,sent=0)\n"},
	} {
		if got := string(AppendCons(nil, &l.c)); got != l.want {
			t.Errorf("got\n%swant\n%s", got, l.want)
		}
	}
}

func TestSrvrText(t *testing.T) {
	s := ServerStats{
		Serving: true, Version: ProtocolVersion("0.1.0"), Built: time.Date(2026, 11, 30, 17, 54, 0, 0, time.UTC),
		Clients:    []ClientStats{{"127.0.0.1:59978", 1, 0, 3, 3}},
		LatencyAvg: 1234567 * time.Nanosecond, LatencyMax: 12 * time.Millisecond,
		Received: 2, Sent: 3, Connections: 1, Outstanding: 4, Zxid: 0x100000002, Mode: ModeLeader, NodeCount: 5,
		ProposalLast: 48, ProposalMin: 48, ProposalMax: 190,
		KvdVersion: "0.1.0", Member: 2, Pid: 4711, Role: ModeLeader, Leader: 2, Epoch: 1, Health: "ok", Digest: 255, DigestZxid: 0x100000002,
		Members: []MemberAddr{{1, "h1:2181", false}, {2, "[::1]:2181", false}, {4, "h4:2181", true}},
	}
	const want = `Zookeeper version: 3.9.5-kvd.0.1.0, built on 11/30/2026 17:54 GMT
Clients:
 /127.0.0.1:59978[1](queued=0,recved=3,sent=3)

Latency min/avg/max: 0/1.2346/12
Received: 2
Sent: 3
Connections: 1
Outstanding: 4
Zxid: 0x100000002
Mode: leader
Node count: 5
Proposal sizes last/min/max: 48/48/190
Kvd version: 0.1.0
Member: 2
Pid: 4711
Role: leader
Leader: 2
Epoch: 1
Health: ok
Digest: 0x00000000000000ff at 0x100000002
Members: 1=h1:2181 2=[::1]:2181 4=h4:2181:observer
`
	if got := string(AppendStatWord(nil, &s)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	text := AppendSrvr(nil, &s)
	strictSrvr(t, string(text), s.Built)
	got, err := ParseSrvr(text)
	if err != nil {
		t.Fatal(err)
	}
	want2 := s
	want2.Built, want2.Clients, want2.LatencyAvg, want2.LatencyMax = time.Time{}, nil, 0, 0
	want2.ProposalLast, want2.ProposalMin, want2.ProposalMax = 0, 0, 0
	if !reflect.DeepEqual(got, want2) {
		t.Errorf("parsed %+v\nwant   %+v", got, want2)
	}

	s.Serving, s.Role, s.Leader, s.Health = false, ModeLooking, 0, "no quorum:\nonly 1 of 3"
	got, err = ParseSrvr(AppendSrvr(nil, &s))
	if err != nil || got.Serving || got.Pid != 4711 || got.Role != ModeLooking || got.Zxid != s.Zxid || got.Health != "no quorum: only 1 of 3" {
		t.Errorf("not serving: %+v, %v", got, err)
	}
}

// The answers of real servers.
func TestParseSrvrOfZooKeeper(t *testing.T) {
	got, err := ParseSrvr([]byte("Zookeeper version: 3.8.0-5a02a05eddb59aee6ac762f7ea82e92a68eb9c0f, built on 2022-02-25 08:49 UTC\nLatency min/avg/max: 0/0.0/0\nReceived: 2\nSent: 1\nConnections: 1\nOutstanding: 0\nZxid: 0x5000000ab\nMode: follower\nNode count: 5\n"))
	if err != nil || !got.Serving || got.Role != ModeFollower || got.Zxid != 0x5000000ab || got.Epoch != 5 || got.Pid != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = ParseSrvr([]byte(AnswerNotServing))
	if err != nil || got.Serving {
		t.Errorf("%+v, %v", got, err)
	}
	for _, text := range []string{"", "srvr is not executed because it is not in the whitelist.\n", "HTTP/1.1 400 Bad Request\r\n"} {
		if got, err := ParseSrvr([]byte(text)); err == nil {
			t.Errorf("%q parses: %+v", text, got)
		}
	}
}

func BenchmarkDecodeSetData(b *testing.B) {
	body := (&SetDataRequest{"/bench/node", make([]byte, 128), -1}).AppendTo(nil)
	var req kv.Request
	b.ReportAllocs()
	for b.Loop() {
		_ = DecodeRequest(OpSetData, body, &req)
	}
}

// burst hands out its pieces, never two in one read.
type burst struct{ pieces [][]byte }

func (b *burst) Read(p []byte) (int, error) {
	if len(b.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.pieces[0])
	if b.pieces[0] = b.pieces[0][n:]; len(b.pieces[0]) == 0 {
		b.pieces = b.pieces[1:]
	}
	return n, nil
}

// A server keeps the frames it reads. When it waits again it holds a small chunk, whatever came before, and a small frame
// that stays keeps no more than a chunk alive.
func TestWaitingFrameReaderIsSmall(t *testing.T) {
	framed := func(n int) []byte { return append(AppendInt32(nil, int32(n)), make([]byte, n)...) }
	var small []byte
	for range 3000 {
		small = append(small, framed(100)...)
	}
	large := append(append(framed(100), framed(1<<20)...), framed(100)...)
	for name, in := range map[string][]byte{"many small ones": small, "a large one among small ones": large} {
		fr := NewFrameReader(&burst{[][]byte{in, framed(10)}}, 2<<20)
		for read := 0; read < len(in); {
			body, err := fr.Next()
			if err != nil {
				t.Fatal(err)
			}
			fr.Keep()
			read += 4 + len(body)
			if len(body) == 100 && len(fr.buf) > maxChunkBytes {
				t.Errorf("%s: a frame of 100 bytes keeps %d alive", name, len(fr.buf))
			}
		}
		if _, err := fr.Next(); err != nil { // it waited for this
			t.Fatal(err)
		}
		if len(fr.buf) > minChunkBytes {
			t.Errorf("%s: a waiting reader holds %d bytes", name, len(fr.buf))
		}
	}
}
