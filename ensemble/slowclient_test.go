package ensemble

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// slowReader opens a session of 700 ms on a connection without buffers, asks for n nodes of 60 KB, and then for one
// more thing than the ring takes: its reader waits for room from now on, and what the client sends is not heard.
func slowReader(t *testing.T, m *Member, addr string, n int) *raw {
	t.Helper()
	setup := dialRaw(t, addr)
	setup.session()
	setup.send(request(1, wire.OpCreate, record(&wire.CreateRequest{Path: "/fat", Data: make([]byte, 60<<10), ACL: openACL})))
	setup.wantReply(1, kv.CodeOK)
	_ = setup.nc.Close()
	eventually(t, "the connection is forgotten", func() bool { return m.port.connections() == 0 })
	_, near := pipedConn(t, m)
	r := &raw{t, near, wire.NewFrameReader(near, 1<<20)}
	if r.connect(wire.ConnectRequest{TimeoutMs: 700, Password: make([]byte, 16)}).Session == 0 {
		t.Fatal("no session")
	}
	var b []byte
	for i := range n {
		b = append(b, request(int32(i), wire.OpGetData, record(rRead("/fat")))...)
	}
	b = append(b, createRequest(int32(n), "/mine", kv.FlagEphemeral)...)
	go func() { // the pipe takes nothing that is not read
		_, _ = near.Write(b)
		for range 100 { // and it says that it lives
			if _, err := near.Write(request(wire.XidPing, wire.OpPing, nil)); err != nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	return r
}

// A client whose link is slow takes in what it has asked for as fast as it can. Its pings wait behind its requests, and
// these behind their replies; it keeps its session all the same, because it takes what it gets.
func TestSlowLinkKeepsItsSession(t *testing.T) {
	for _, n := range []int{100, maxConnSlots + 100} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			m, addr := startSingle(t, shortSessions)
			r := slowReader(t, m, addr, n)
			for i := 0; i <= n; {
				b, err := r.fr.Next()
				if err != nil {
					t.Fatalf("before reply %d: %v", i, err)
				}
				h, _, _ := wire.SplitReply(b)
				if h.Xid == wire.XidPing {
					continue
				}
				if h.Xid != int32(i) || h.Err != kv.CodeOK {
					t.Fatalf("reply %+v, want %d", h, i)
				}
				if i++; i < 100 {
					time.Sleep(30 * time.Millisecond)
				}
			}
		})
	}
}

// stalledConn is a session whose replies are held up behind a long one, which it does not read yet: what it asks for is
// taken in, from the state as it is then, and carried out later. Before that it gets what setup says.
func stalledConn(t *testing.T, m *Member, setup ...[]byte) (c *conn, k *talker, ask func(op wire.Op, rec wire.Record)) {
	t.Helper()
	c, near := pipedConn(t, m)
	k = &talker{raw: &raw{t, near, wire.NewFrameReader(near, 4<<20)}}
	k.session()
	for _, b := range setup {
		k.send(b)
		k.next()
	}
	held := 0
	ask = func(op wire.Op, rec wire.Record) {
		t.Helper()
		k.xid++
		k.send(request(k.xid, op, record(rec)))
		held++
		eventually(t, "the request is taken in", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.held == held
		})
	}
	ask(wire.OpGetData, rRead("/long"))
	return c, k, ask
}

// frames is what comes until the last reply: events, and the data of /n that replies show.
func (k *talker) frames() string {
	k.t.Helper()
	var all []string
	for {
		h, body, err := wire.SplitReply(k.next())
		switch {
		case err != nil:
			k.t.Fatal(err)
		case h.Xid == wire.XidEvent:
			var e wire.WatcherEvent
			if err := wire.Decode(body, &e); err != nil {
				k.t.Fatal(err)
			}
			all = append(all, fmt.Sprintf("%v %s", kv.EventType(e.Type), e.Path))
		case h.Xid > 1:
			var r wire.DataResponse
			if err := wire.Decode(body, &r); err == nil {
				all = append(all, string(r.Data))
			}
		}
		if h.Xid == k.xid {
			return strings.Join(all, ", ")
		}
	}
}

// Requests that touch watches, and reads behind them, wait while their node changes. Whatever they show, the client is
// told of what comes after it: a watch is not taken away by a change that an earlier reply of its connection shows, and no
// event is followed by the state before it.
func TestWatchesOfRequestsThatWaited(t *testing.T) {
	m, addr := startSingle(t, nil)
	w := talk(t, addr)
	w.do(wire.OpCreate, &wire.CreateRequest{Path: "/long", Data: make([]byte, 900<<10), ACL: openACL})
	w.do(wire.OpCreate, rCreate("/n", "", 0))
	w.do(wire.OpCreate, rCreate("/other", "", 0))
	watch := request(1, wire.OpGetData, record(rWatch("/n")))
	type ask struct {
		op  wire.Op
		rec wire.Record
	}
	read, watchingRead := ask{wire.OpGetData, rRead("/n")}, ask{wire.OpGetData, rWatch("/n")}
	for _, test := range []struct {
		name  string
		setup [][]byte
		asks  []ask // each is taken in before the next write of "1", "2", ...
		want  string
		then  string // what the next write brings
	}{
		{"two watches", nil, []ask{watchingRead, watchingRead, read}, "3, 3, 3", "NodeDataChanged /n, 4"},
		{"a watch before", [][]byte{watch}, []ask{watchingRead, watchingRead, read}, "NodeDataChanged /n, 3, 3, 3", "NodeDataChanged /n, 4"},
		{"a read behind a watch", nil, []ask{watchingRead, read}, "2, 2", "NodeDataChanged /n, 3"},
		{"a sync between", nil, []ask{watchingRead, {wire.OpSync, &wire.SyncRecord{Path: "/"}}, read}, "3, 3", "NodeDataChanged /n, 4"},
		{"persistent", nil, []ask{{wire.OpAddWatch, rKind("/n", watchModePersistent)}, read}, "2", "NodeDataChanged /n, 3"},
		{"recursive", nil, []ask{{wire.OpAddWatch, rKind("/", watchModeRecursive)}, read}, "2", "NodeDataChanged /n, NodeDataChanged /other, 3"},
		{"setWatches", nil, []ask{{wire.OpSetWatches, &wire.SetWatchesRequest{Relative: 1 << 62, Data: []string{"/n"}}}, read}, "2", "NodeDataChanged /n, 3"},
		{"removed", [][]byte{watch}, []ask{{wire.OpRemoveWatches, rKind("/n", 3)}, read}, "NodeDataChanged /n, 2", "3"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_ = w.nc.Close()
			eventually(t, "earlier connections are forgotten", func() bool { return m.port.connections() == 0 })
			_, k, ask := stalledConn(t, m, test.setup...)
			defer k.nc.Close()
			w = talk(t, addr)
			n := 0
			write := func() {
				n++
				w.do(wire.OpSetData, rSet("/n", fmt.Sprint(n)))
				w.do(wire.OpSetData, rSet("/other", ""))
			}
			for _, a := range test.asks {
				ask(a.op, a.rec)
				write()
			}
			if got := k.frames(); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
			write()
			k.xid++
			k.send(request(k.xid, read.op, record(read.rec)))
			if got := k.frames(); got != test.then {
				t.Errorf("then %s, want %s", got, test.then)
			}
		})
	}
}
