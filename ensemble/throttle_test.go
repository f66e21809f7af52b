package ensemble

import (
	"fmt"
	"testing"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

func TestTokenBucket(t *testing.T) {
	var off *tokenBucket
	if off = newTokenBucket(0, 1, time.Millisecond, time.Time{}); off != nil || !off.take(time.Time{}) {
		t.Fatal("a bucket without tokens refuses")
	}
	now := time.Unix(1000, 0)
	b := newTokenBucket(3, 2, 10*time.Millisecond, now)
	take := func(want bool) {
		t.Helper()
		if b.take(now) != want {
			t.Fatalf("at %v: took %v", now, !want)
		}
	}
	for range 3 {
		take(true)
	}
	take(false)
	now = now.Add(9 * time.Millisecond)
	take(false)
	now = now.Add(time.Millisecond)
	take(true)
	take(true)
	take(false)
	now = now.Add(1000 * time.Hour) // never more than its capacity
	for range 3 {
		take(true)
	}
	take(false)
	now = now.Add(-time.Hour) // a clock that goes back gives nothing and breaks nothing
	take(false)
	now = now.Add(time.Hour + 10*time.Millisecond)
	take(true)
}

// Connections beyond the rate are closed without a word, before anything of the handshake is done.
func TestConnectionsThatComeTooFastAreClosed(t *testing.T) {
	m, addr := startSingle(t, func(c *Config) { c.ConnectionTokens, c.ConnectionTokenFillTime = 2, time.Hour })
	dialRaw(t, addr).session()
	dialRaw(t, addr).session()
	applied := m.Status().Applied
	r := dialRaw(t, addr)
	r.send(frame(record(ptr(connectRequest()))))
	r.wantClosed()
	if n := m.port.counters.rejected.Load(); n != 1 || m.Status().Applied != applied {
		t.Errorf("%d rejected, zxid %v after %v", n, m.Status().Applied, applied)
	}
	word := dialRaw(t, addr) // four-letter words cost none
	word.send([]byte("ruok"))
	var b [4]byte
	if _, err := word.nc.Read(b[:]); err != nil || string(b[:]) != "imok" {
		t.Errorf("%q %v", b, err)
	}
}

// maxCnxns bounds all connections, whatever they want, those in process aside.
func TestConnectionLimit(t *testing.T) {
	m, addr := startSingle(t, func(c *Config) { c.MaxConns = 2 })
	a := dialRaw(t, addr)
	a.session()
	dialRaw(t, addr).session()
	eventually(t, "both are counted", func() bool { return m.port.connections() == 2 })
	dialRaw(t, addr).wantClosed()
	word := dialRaw(t, addr)
	word.send([]byte("ruok"))
	word.wantClosed()
	if n := m.port.counters.rejected.Load(); n != 2 {
		t.Errorf("%d rejected", n)
	}
	c, err := m.Client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = a.nc.Close()
	eventually(t, "a place is free", func() bool {
		r := dialRaw(t, addr)
		r.send(frame(record(ptr(connectRequest()))))
		_, err := r.fr.Next()
		return err == nil
	})
}

// A connection without a session is closed after its time, and its silence is counted.
func TestSessionlessConnectionIsClosed(t *testing.T) {
	m, addr := startSingle(t, func(c *Config) { c.SessionlessTimeout = 200 * time.Millisecond })
	r, s := dialRaw(t, addr), dialRaw(t, addr)
	s.session()
	r.wantClosed()
	if n := m.port.counters.sessionlessExpired.Load(); n != 1 {
		t.Errorf("%d counted", n)
	}
	s.send(request(wire.XidPing, wire.OpPing, nil))
	s.wantReply(wire.XidPing, kv.CodeOK)
}

// Requests beyond the limit wait for those in flight, and are answered in order when there is room.
func TestThrottledRequestsWait(t *testing.T) {
	m, addr := startSingle(t, func(c *Config) { c.ThrottleLimit = 3 })
	const clients, each = 4, 200
	var rs []*raw
	for range clients {
		r := dialRaw(t, addr)
		r.session()
		var b []byte
		for i := range each {
			xid := int32(i + 1)
			if i%2 == 0 {
				b = append(b, createRequest(xid, fmt.Sprintf("/c%d-", len(rs)), kv.FlagSequential)...)
			} else {
				b = append(b, request(xid, wire.OpExists, record(&wire.PathWatchRequest{Path: "/"}))...)
			}
		}
		r.send(b)
		rs = append(rs, r)
	}
	for _, r := range rs {
		for i := range each {
			r.wantReply(int32(i+1), kv.CodeOK)
		}
	}
	if n := m.port.counters.throttleWaits.Load(); n == 0 {
		t.Error("nobody waited")
	}
	if n := m.port.counters.throttledOps.Load(); n != 0 {
		t.Errorf("%d answered -127, and nobody asked for that", n)
	}
	eventually(t, "all places are free", func() bool { return m.port.throttle.used() == 0 })
}

// used is the number of places taken.
func (t *requestThrottle) used() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.inFlight
}

// A request that waits too long is answered -127 in its place; reads behind it see the writes before it and no later
// ones; pings and the end of the session go on. Ends of connections give their places back.
func TestRequestThatWaitsTooLongIsRefused(t *testing.T) {
	m, addr := startSingle(t, func(c *Config) { c.ThrottleLimit, c.ThrottledOpWait = 2, 50*time.Millisecond })
	busy := m.port.throttle
	r := dialRaw(t, addr)
	r.session()
	r.send(createRequest(1, "/v", kv.FlagPersistent))
	r.wantReply(1, kv.CodeOK)
	eventually(t, "all places are free", func() bool { return busy.used() == 0 })
	for range 2 { // somebody else's requests are in flight and stay there
		if ok, _ := busy.tryAcquire(); !ok {
			t.Fatal("no place")
		}
	}
	b := createRequest(2, "/w", kv.FlagPersistent)
	b = append(b, request(3, wire.OpExists, record(&wire.PathWatchRequest{Path: "/v"}))...)
	b = append(b, request(wire.XidPing, wire.OpPing, nil)...)
	r.send(b)
	r.wantReply(2, kv.CodeThrottled)
	r.wantReply(3, kv.CodeThrottled)
	r.wantReply(wire.XidPing, kv.CodeOK)
	busy.release(1)
	r.send(request(4, wire.OpExists, record(&wire.PathWatchRequest{Path: "/w"})))
	r.wantReply(4, kv.CodeNoNode)
	if n := m.port.counters.throttledOps.Load(); n != 2 {
		t.Errorf("%d counted", n)
	}
	busy.release(1)
	eventually(t, "all places are free", func() bool { return busy.used() == 0 })
	// A waiting reader leaves with its connection, and takes nothing along.
	for range 2 {
		_, _ = busy.tryAcquire()
	}
	waiting := dialRaw(t, addr)
	waiting.session()
	waiting.send(createRequest(1, "/x", kv.FlagPersistent))
	_ = waiting.nc.Close()
	busy.release(2)
	eventually(t, "all places are free", func() bool { return busy.used() == 0 && m.port.connections() == 1 })
	r.send(request(5, wire.OpCloseSession, nil))
	r.wantReply(5, kv.CodeOK)
}

// Large requests share a budget: who would exceed it is cut before its bytes are read, and the budget comes back.
func TestLargeRequestsShareABudget(t *testing.T) {
	m, addr := startSingle(t, func(c *Config) { c.LargeRequestBytes, c.LargeRequestMaxBytes = 10_000, 300_000 })
	large := func(xid int32, n int) []byte {
		return request(xid, wire.OpSetData, record(&wire.SetDataRequest{Path: "/big", Data: make([]byte, n), Version: -1}))
	}
	a := dialRaw(t, addr)
	a.session()
	a.send(createRequest(1, "/big", kv.FlagPersistent))
	a.wantReply(1, kv.CodeOK)
	for xid := range int32(20) { // one after the other they are no more than one
		a.send(large(10+xid, 200_000))
		a.wantReply(10+xid, kv.CodeOK)
	}
	used := func() int64 { return m.port.large.used.Load() }
	eventually(t, "the budget is free", func() bool { return used() == 0 })

	half := large(1, 250_000)
	b := dialRaw(t, addr)
	b.session()
	b.send(half[:len(half)/2]) // announced, and on its way
	eventually(t, "it is charged", func() bool { return used() > 0 })
	c := dialRaw(t, addr)
	c.session()
	c.send(large(1, 100_000)[:8])
	c.wantClosed()
	a.send(request(50, wire.OpExists, record(&wire.PathWatchRequest{Path: "/big"}))) // small ones go on
	a.wantReply(50, kv.CodeOK)
	a.send(large(51, 20_000))
	a.wantReply(51, kv.CodeOK)
	_ = b.nc.Close()
	eventually(t, "the budget is free", func() bool { return used() == 0 })
	if n := m.port.counters.largeRejected.Load(); n != 1 {
		t.Errorf("%d rejected", n)
	}
	a.send(large(52, 250_000))
	a.wantReply(52, kv.CodeOK)
}
