package ensemble

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// rawLimit bounds every read of a raw connection: beyond it the test has failed.
const rawLimit = 20 * time.Second

// raw is a client connection byte by byte, for what no proper client would send.
type raw struct {
	t  testing.TB
	nc net.Conn
	fr *wire.FrameReader
}

func dialRaw(t testing.TB, addr string) *raw {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(rawLimit))
	return &raw{t, nc, wire.NewFrameReader(nc, 64<<20)}
}

func (r *raw) send(b []byte) {
	r.t.Helper()
	if _, err := r.nc.Write(b); err != nil {
		r.t.Fatalf("write: %v", err)
	}
}

// frame puts a length before a body.
func frame(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
}

// request is a framed request.
func request(xid int32, op wire.Op, rec []byte) []byte {
	return frame(append((&wire.RequestHeader{Xid: xid, Op: op}).AppendTo(nil), rec...))
}

func record(rec wire.Record) []byte { return rec.AppendTo(nil) }

// next reads a frame.
func (r *raw) next() []byte {
	r.t.Helper()
	b, err := r.fr.Next()
	if err != nil {
		r.t.Fatalf("read: %v", err)
	}
	return bytes.Clone(b)
}

// reply reads a reply or event.
func (r *raw) reply() (wire.ReplyHeader, []byte) {
	r.t.Helper()
	h, body, err := wire.SplitReply(r.next())
	if err != nil {
		r.t.Fatal(err)
	}
	return h, body
}

// wantReply reads a reply and checks its header.
func (r *raw) wantReply(xid int32, code kv.Code) (wire.ReplyHeader, []byte) {
	r.t.Helper()
	h, body := r.reply()
	if h.Xid != xid || h.Err != code {
		r.t.Fatalf("reply xid %d err %v, want xid %d err %v", h.Xid, h.Err, xid, code)
	}
	return h, body
}

// wantClosed checks that the server closes without another byte.
func (r *raw) wantClosed() {
	r.t.Helper()
	b, err := r.fr.Next()
	var ne net.Error
	if err == nil || errors.As(err, &ne) && ne.Timeout() {
		r.t.Fatalf("connection is not closed: %x %v", b, err)
	}
}

// connect does the handshake.
func (r *raw) connect(q wire.ConnectRequest) wire.ConnectResponse {
	r.t.Helper()
	r.send(frame(record(&q)))
	var resp wire.ConnectResponse
	if err := wire.Decode(r.next(), &resp); err != nil {
		r.t.Fatal(err)
	}
	return resp
}

// session opens a new session of 10 s.
func (r *raw) session() wire.ConnectResponse {
	r.t.Helper()
	resp := r.connect(wire.ConnectRequest{TimeoutMs: 10_000, Password: make([]byte, 16), HasReadOnly: true})
	if resp.Session == 0 {
		r.t.Fatal("no session")
	}
	return resp
}

// startSingle starts one member with a client port.
func startSingle(t testing.TB, tune func(*Config)) (*Member, string) {
	t.Helper()
	cfg := Config{DataDir: t.TempDir(), Listeners: Listeners{Client: []net.Listener{listen(t)}}, Logger: testLogger(t)}
	if tune != nil {
		tune(&cfg)
	}
	m, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	if err := m.WaitServing(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m, m.ClientAddrs()[0].String()
}

func TestHandshake(t *testing.T) {
	m, addr := startSingle(t, nil)

	t.Run("time-out is clamped", func(t *testing.T) {
		for ask, want := range map[int32]int32{1: 4000, -5: 4000, 0: 4000, 10_000: 10_000, 1_000_000: 40_000} {
			if got := dialRaw(t, addr).connect(wire.ConnectRequest{TimeoutMs: ask, Password: make([]byte, 16)}); got.TimeoutMs != want {
				t.Errorf("asked %d, got %d, want %d", ask, got.TimeoutMs, want)
			}
		}
	})
	t.Run("read-only flag is echoed only if sent", func(t *testing.T) {
		for _, flag := range []bool{false, true} {
			r := dialRaw(t, addr)
			r.send(frame(record(&wire.ConnectRequest{TimeoutMs: 10_000, Password: make([]byte, 16), HasReadOnly: flag})))
			want := 36
			if flag {
				want = 37
			}
			if got := len(r.next()); got != want {
				t.Errorf("flag %v: response of %d bytes, want %d", flag, got, want)
			}
		}
	})
	t.Run("null password is fine for a new session", func(t *testing.T) {
		if got := dialRaw(t, addr).connect(wire.ConnectRequest{TimeoutMs: 10_000}); got.Session == 0 {
			t.Error("refused")
		}
	})
	t.Run("a client that has seen more gets no answer", func(t *testing.T) {
		r := dialRaw(t, addr)
		r.send(frame(record(&wire.ConnectRequest{TimeoutMs: 10_000, LastZxidSeen: int64(m.Status().Applied) + 1000, Password: make([]byte, 16)})))
		r.wantClosed()
	})
	t.Run("unknown session", func(t *testing.T) {
		r := dialRaw(t, addr)
		got := r.connect(wire.ConnectRequest{TimeoutMs: 10_000, Session: 0x1234, Password: make([]byte, 16), HasReadOnly: true})
		if got.Session != 0 || got.TimeoutMs != 0 || got.Password != [16]byte{} {
			t.Errorf("response %+v", got)
		}
		r.wantClosed()
	})
	t.Run("resume", func(t *testing.T) {
		first := dialRaw(t, addr)
		s := first.session()
		wrong := s.Password
		wrong[3] ^= 1
		bad := dialRaw(t, addr)
		if got := bad.connect(wire.ConnectRequest{TimeoutMs: 10_000, Session: s.Session, Password: wrong[:]}); got.Session != 0 {
			t.Error("wrong password accepted")
		}
		bad.wantClosed()
		short := dialRaw(t, addr)
		if got := short.connect(wire.ConnectRequest{TimeoutMs: 10_000, Session: s.Session, Password: s.Password[:15]}); got.Session != 0 {
			t.Error("short password accepted")
		}
		// The living session is unharmed.
		first.send(request(wire.XidPing, wire.OpPing, nil))
		first.wantReply(wire.XidPing, kv.CodeOK)

		second := dialRaw(t, addr)
		got := second.connect(wire.ConnectRequest{TimeoutMs: 5_000, Session: s.Session, Password: s.Password[:]})
		if got.Session != s.Session || got.TimeoutMs != 5_000 || got.Password != s.Password {
			t.Fatalf("resumed as %+v", got)
		}
		first.wantClosed()
		second.send(request(1, wire.OpExists, record(&wire.PathWatchRequest{Path: "/"})))
		second.wantReply(1, kv.CodeOK)
	})
	t.Run("requests right behind the handshake", func(t *testing.T) {
		r := dialRaw(t, addr)
		b := frame(record(&wire.ConnectRequest{TimeoutMs: 10_000, Password: make([]byte, 16)}))
		b = append(b, request(7, wire.OpExists, record(&wire.PathWatchRequest{Path: "/none"}))...)
		b = append(b, request(8, wire.OpCloseSession, nil)...)
		r.send(b)
		r.next()
		r.wantReply(7, kv.CodeNoNode)
		r.wantReply(8, kv.CodeOK)
		r.wantClosed()
	})
}

// Each row of design 8 that concerns the client port, and zookeeper-protocol 1.1 and 15.
func TestBadInputOfClients(t *testing.T) {
	m, addr := startSingle(t, nil)
	bystander := dialRaw(t, addr)
	bystander.session()

	closes := map[string][]byte{
		"empty first frame":              frame(nil),
		"garbage first frame":            frame([]byte("no handshake at all")),
		"negative length":                {0xff, 0xff, 0xff, 0xfb},
		"length beyond limit":            {0x00, 0x10, 0x00, 0x00},
		"unknown word":                   []byte("abcd"),
		"telnet interrupt":               {0xff, 0xf4, 0xff, 0xfd},
		"truncated and left":             {0, 0, 0, 44, 1, 2, 3},
		"password longer than the frame": frame(append(record(&wire.ConnectRequest{})[:24], 0x7f, 0xff, 0xff, 0xff)),
	}
	for name, b := range closes {
		t.Run("handshake: "+name, func(t *testing.T) {
			r := dialRaw(t, addr)
			r.send(b)
			if strings.HasPrefix(name, "truncated") {
				_ = r.nc.(*net.TCPConn).CloseWrite()
			}
			r.wantClosed()
		})
	}

	path := func(p string) []byte { return wire.AppendString(nil, p) }
	null := wire.AppendInt32(nil, -1)
	for _, c := range []struct {
		name  string
		bytes []byte // after a handshake
		code  kv.Code
		zxid  int64 // 0: any
		close bool
		none  bool // no reply at all
	}{
		{name: "short header", bytes: frame([]byte{0, 0, 0, 1, 0}), none: true, close: true},
		{name: "empty frame", bytes: frame(nil), none: true, close: true},
		{name: "negative length", bytes: []byte{0x80, 0, 0, 0}, none: true, close: true},
		{name: "oversized", bytes: []byte{0, 0x10, 0, 0}, none: true, close: true},
		{name: "a word is an oversized length now", bytes: []byte("ruok"), none: true, close: true},
		{name: "unknown op", bytes: request(5, 999, nil), code: kv.CodeUnimplemented, zxid: -1, close: true},
		{name: "op 0", bytes: request(5, 0, nil), code: kv.CodeUnimplemented, zxid: -1, close: true},
		{name: "op -1", bytes: request(5, -1, nil), code: kv.CodeUnimplemented, zxid: -1, close: true},
		{name: "createSession from a client", bytes: request(5, wire.OpCreateSession, nil), code: kv.CodeUnimplemented, zxid: -1, close: true},
		{name: "check outside a multi", bytes: request(5, wire.OpCheck, record(&wire.PathVersionRequest{Path: "/"})), code: kv.CodeUnimplemented, zxid: -1, close: true},
		{name: "deleteContainer", bytes: request(5, wire.OpDeleteContainer, path("/")), code: kv.CodeUnimplemented, zxid: -1, close: true},
		{name: "read without its record", bytes: request(5, wire.OpGetData, nil), code: kv.CodeMarshallingError},
		{name: "read with an impossible length", bytes: request(5, wire.OpExists, []byte{0x7f, 0xff, 0xff, 0xff, '/'}), code: kv.CodeMarshallingError},
		{name: "read with length -2", bytes: request(5, wire.OpExists, []byte{0xff, 0xff, 0xff, 0xfe}), code: kv.CodeMarshallingError},
		{name: "write without its record", bytes: request(5, wire.OpSetData, nil), code: kv.CodeMarshallingError},
		{name: "create with a null path", bytes: request(5, wire.OpCreate, null), code: kv.CodeMarshallingError},
		{name: "create with an endless ACL", bytes: request(5, wire.OpCreate, append(append(path("/x"), null...), 0x7f, 0xff, 0xff, 0xff)), code: kv.CodeMarshallingError},
		{name: "multi with an operation that is none", bytes: request(5, wire.OpMulti, wire.AppendMultiOp(nil, wire.OpExists, &wire.PathWatchRequest{Path: "/"})), code: kv.CodeMarshallingError},
		{name: "multi with a null path", bytes: request(5, wire.OpMulti, append((&wire.MultiHeader{Op: wire.OpDelete, Err: -1}).AppendTo(nil), null...)), code: kv.CodeMarshallingError},
		{name: "empty multi", bytes: request(5, wire.OpMulti, wire.AppendMultiEnd(nil)), code: kv.CodeOK},
		{name: "sync with an impossible path", bytes: request(5, wire.OpSync, []byte{0, 0, 0, 9, '/'}), code: kv.CodeMarshallingError},
		{name: "sync with a null path", bytes: request(5, wire.OpSync, null), code: kv.CodeOK},
		{name: "bytes after the record", bytes: request(5, wire.OpExists, append(record(&wire.PathWatchRequest{Path: "/"}), 1, 2, 3)), code: kv.CodeOK},
		{name: "path with NUL", bytes: request(5, wire.OpExists, record(&wire.PathWatchRequest{Path: "/a\x00b"})), code: kv.CodeBadArguments},
		{name: "a second handshake", bytes: frame(record(&wire.ConnectRequest{Password: make([]byte, 16)})), code: kv.CodeUnimplemented, zxid: -1, close: true},
	} {
		t.Run("request: "+c.name, func(t *testing.T) {
			r := dialRaw(t, addr)
			s := r.session()
			r.send(c.bytes)
			if !c.none {
				h, _ := r.reply()
				if h.Err != c.code || (c.zxid != 0 && h.Zxid != c.zxid) {
					t.Fatalf("err %v zxid %d, want %v %d", h.Err, h.Zxid, c.code, c.zxid)
				}
			}
			if c.close {
				r.wantClosed()
				r = dialRaw(t, addr) // the session lives on
				if got := r.connect(wire.ConnectRequest{TimeoutMs: 10_000, Session: s.Session, Password: s.Password[:]}); got.Session != s.Session {
					t.Fatal("the session is gone")
				}
			}
			r.send(request(6, wire.OpExists, record(&wire.PathWatchRequest{Path: "/"})))
			r.wantReply(6, kv.CodeOK)
			r.send(request(7, wire.OpCloseSession, nil))
			r.wantReply(7, kv.CodeOK)
		})
	}

	t.Run("largest frame", func(t *testing.T) {
		r := dialRaw(t, addr)
		r.session()
		data := make([]byte, 0xfffff-8-len(path("/big"))-4-4-31)
		body := record(&wire.CreateRequest{Path: "/big", Data: data, ACL: []kv.ACL{{Perms: 31, Scheme: "world", ID: "anyone"}}})
		for len(body) < 0xfffff-8 {
			body = append(body, 0)
		}
		r.send(request(1, wire.OpCreate, body))
		r.wantReply(1, kv.CodeOK)
	})
	bystander.send(request(1, wire.OpExists, record(&wire.PathWatchRequest{Path: "/"})))
	bystander.wantReply(1, kv.CodeOK)
	if err := m.Err(); err != nil {
		t.Fatal(err)
	}
}

func TestFourLetterWords(t *testing.T) {
	m, addr := startSingle(t, func(c *Config) { c.FourLetterWords = []string{"srvr", "stat", "isro", "ruok"} })
	ask := func(t *testing.T, pieces ...string) string {
		t.Helper()
		r := dialRaw(t, addr)
		for _, p := range pieces {
			r.send([]byte(p))
		}
		b, err := io.ReadAll(r.nc)
		if err != nil {
			t.Fatal(err)
		}
		_ = r.nc.Close()
		return string(b)
	}
	if got := ask(t, "ruok"); got != "imok" {
		t.Errorf("ruok: %q", got)
	}
	if got := ask(t, "r", "uo", "k\n"); got != "imok" {
		t.Errorf("ruok in pieces: %q", got)
	}
	if got := ask(t, "isro"); got != "rw" {
		t.Errorf("isro: %q", got)
	}
	if got := ask(t, "mntr"); got != "mntr is not executed because it is not in the whitelist.\n" {
		t.Errorf("mntr: %q", got)
	}
	client := dialRaw(t, addr)
	client.session()
	for _, w := range []string{"srvr", "stat"} {
		text := ask(t, w)
		s, err := wire.ParseSrvr([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v\n%s", w, err, text)
		}
		if s.Mode != wire.ModeStandalone || s.Zxid != m.Status().Applied || s.Connections < 2 || s.Member != 1 || s.Health != "ok" || s.Digest != m.Status().Digest {
			t.Errorf("%s: %+v", w, s)
		}
		if w == "stat" && !strings.Contains(text, client.nc.LocalAddr().String()) {
			t.Errorf("stat does not list the client:\n%s", text)
		}
	}
	// The client has shut down its side already.
	r := dialRaw(t, addr)
	r.send([]byte("ruok"))
	_ = r.nc.(*net.TCPConn).CloseWrite()
	if b, err := io.ReadAll(r.nc); err != nil || string(b) != "imok" {
		t.Errorf("half-closed: %q %v", b, err)
	}
}

func TestConnectionLimitPerAddress(t *testing.T) {
	_, addr := startSingle(t, func(c *Config) { c.MaxClientConns = 2 })
	a, b := dialRaw(t, addr), dialRaw(t, addr)
	a.session()
	b.session()
	dialRaw(t, addr).wantClosed()
	_ = a.nc.Close()
	for deadline := time.Now().Add(rawLimit); ; { // the server notices the end in its own time
		r := dialRaw(t, addr)
		r.send(frame(record(&wire.ConnectRequest{TimeoutMs: 10_000, Password: make([]byte, 16)})))
		if _, err := r.fr.Next(); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the slot was not freed")
		}
	}
}

// A pipelined W1 R1 W2 R2: R1 sees W1 and not W2, however batches fall.
func TestPipelinedReadsSeeExactlyTheWritesBeforeThem(t *testing.T) {
	_, addr := startSingle(t, nil)
	r := dialRaw(t, addr)
	r.session()
	r.send(request(1, wire.OpCreate, record(&wire.CreateRequest{Path: "/v", ACL: []kv.ACL{{Perms: 31, Scheme: "world", ID: "anyone"}}})))
	r.wantReply(1, kv.CodeOK)
	const rounds, perRound = 200, 20
	xid := int32(10)
	version := int32(0)
	for round := range rounds {
		var b []byte
		for i := range perRound {
			b = append(b, request(xid, wire.OpSetData, record(&wire.SetDataRequest{Path: "/v", Data: fmt.Append(nil, xid), Version: -1}))...)
			for range 1 + (round+i)%3 {
				xid++
				b = append(b, request(xid, wire.OpGetData, record(&wire.PathWatchRequest{Path: "/v"}))...)
			}
			xid++
		}
		// Cut the stream somewhere, so that the server sees all kinds of batches.
		cut := (round * 97) % len(b)
		r.send(b[:cut])
		r.send(b[cut:])
		var last string
		var lastZxid int64
		for i := range perRound {
			h, _ := r.reply()
			if h.Err != kv.CodeOK || h.Zxid < lastZxid {
				t.Fatalf("write %d: err %v zxid %d after %d", h.Xid, h.Err, h.Zxid, lastZxid)
			}
			version++
			last, lastZxid = fmt.Sprint(h.Xid), h.Zxid
			for range 1 + (round+i)%3 {
				h, body := r.reply()
				var d wire.DataResponse
				if err := wire.Decode(body, &d); err != nil || h.Err != kv.CodeOK {
					t.Fatal(h.Err, err)
				}
				if string(d.Data) != last || d.Stat.Version != version {
					t.Fatalf("round %d: read %d sees %q version %d, want %q version %d", round, h.Xid, d.Data, d.Stat.Version, last, version)
				}
				if h.Zxid < lastZxid {
					t.Fatalf("header zxid fell from %d to %d", lastZxid, h.Zxid)
				}
				lastZxid = h.Zxid
			}
		}
	}
}
