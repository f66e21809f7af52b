package ensemble

import (
	"fmt"
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
