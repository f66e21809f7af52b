package ensemble

import (
	"context"
	"net"
	"testing"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// readOnlyRequest asks for a session of 10 s at a member that may be read-only.
func readOnlyRequest() wire.ConnectRequest {
	q := connectRequest()
	q.ReadOnly = true
	return q
}

// cutOff starts three members, writes /a, and ends all but one, which is returned when it is read-only. before is a
// session that it gave away earlier.
func cutOff(t *testing.T, ctx context.Context, tune func(*Config)) (tr *trio, at int, before wire.ConnectResponse) {
	t.Helper()
	tr = startTrio(t, func(c *Config) {
		c.ReadOnlyMode, c.TickTime, c.FourLetterWords = true, 500*time.Millisecond, []string{"*"}
		if tune != nil {
			tune(c)
		}
	})
	leader := tr.serving(ctx, 0, 1, 2)
	at = (leader + 1) % 3
	c, err := tr.members[at].Client(ctx)
	if err != nil {
		t.Fatal(err)
	}
	write(t, ctx, c, "/a")
	_ = c.Close()
	before = dialRaw(t, tr.peers[at].ClientAddr).session()
	for i, m := range tr.members {
		if i != at {
			_ = m.Close()
			tr.members[i] = nil
		}
	}
	eventually(t, "read-only", func() bool { return tr.members[at].port.portMode() == portReadOnly })
	return tr, at, before
}

// A member without a leader answers reads of clients that accept it, refuses what changes anything, and nobody else gets
// an answer. When the leader is back these connections end, and so do their sessions.
func TestReadOnlyMember(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	tr, at, _ := cutOff(t, ctx, func(c *Config) { c.LocalSessions, c.LocalSessionsUpgrading = true, true })
	m, addr := tr.members[at], tr.peers[at].ClientAddr
	state := m.Status()

	for name, q := range map[string]wire.ConnectRequest{
		"a client that does not allow it":   connectRequest(),
		"one without the flag":              {TimeoutMs: 10_000, Password: make([]byte, 16)},
		"one that has seen more":            {TimeoutMs: 10_000, Password: make([]byte, 16), HasReadOnly: true, ReadOnly: true, LastZxidSeen: int64(state.Applied) + 1},
		"a session of another member":       {TimeoutMs: 10_000, Session: 0x0200000000000001, Password: make([]byte, 16), HasReadOnly: true, ReadOnly: true},
		"a session of an earlier run":       {TimeoutMs: 10_000, Session: kv.SessionID(uint64(at+1) << 56), Password: make([]byte, 16), HasReadOnly: true, ReadOnly: true},
		"a session that may yet come to be": {TimeoutMs: 10_000, Session: kv.SessionID(uint64(at+1)<<56 | 1<<55), Password: make([]byte, 16), HasReadOnly: true, ReadOnly: true},
	} {
		r := dialRaw(t, addr)
		r.send(frame(record(&q)))
		if b, err := r.fr.Next(); err == nil {
			t.Errorf("%s is answered %x", name, b)
		}
	}

	r := dialRaw(t, addr)
	s := r.connect(readOnlyRequest())
	if s.Session == 0 || !s.HasReadOnly || !s.ReadOnly {
		t.Fatalf("welcomed as %+v", s)
	}
	h, body := askExists(r, 1, "/a")
	var st wire.StatResponse
	if err := wire.Decode(body, &st); err != nil || h.Err != kv.CodeOK || kv.Zxid(h.Zxid) != state.Applied {
		t.Fatalf("read: %+v %+v %v, applied %v", h, st, err, state.Applied)
	}
	path := wire.AppendString(nil, "/a")
	for xid, q := range [][]byte{
		request(10, wire.OpSetData, record(&wire.SetDataRequest{Path: "/a", Version: -1})),
		createRequest(11, "/b", kv.FlagPersistent),
		createRequest(12, "/c", kv.FlagEphemeral),
		request(13, wire.OpDelete, record(&wire.PathVersionRequest{Path: "/a", Version: -1})),
		request(14, wire.OpMulti, wire.AppendMultiEnd(nil)),
		request(15, wire.OpSync, path),
		request(16, wire.OpSetACL, record(&wire.SetACLRequest{Path: "/a", ACL: openACL, Version: -1})),
	} {
		r.send(q)
		if h, body := r.wantReply(int32(10+xid), kv.CodeNotReadOnly); len(body) != 0 || kv.Zxid(h.Zxid) != state.Applied {
			t.Errorf("request %d: %+v with %d bytes", 10+xid, h, len(body))
		}
	}
	r.send(request(wire.XidPing, wire.OpPing, nil))
	r.wantReply(wire.XidPing, kv.CodeOK)

	// It is resumed while the mode lasts, and closed by its client.
	second := dialRaw(t, addr)
	again := resumeRequest(s)
	again.ReadOnly = true
	if got := second.connect(again); got.Session != s.Session || !got.ReadOnly {
		t.Fatalf("resumed as %+v", got)
	}
	r.wantClosed()
	closing := dialRaw(t, addr)
	gone := closing.connect(readOnlyRequest())
	closing.send(request(2, wire.OpCloseSession, nil))
	closing.wantReply(2, kv.CodeOK)
	closing.wantClosed()
	refused := dialRaw(t, addr)
	over := resumeRequest(gone)
	over.ReadOnly = true
	if got := refused.connect(over); got.Session != 0 || got.TimeoutMs != 0 {
		t.Errorf("a closed session is resumed as %+v", got)
	}
	if !m.port.local.has(s.Session) || m.port.local.has(gone.Session) || m.Status().Applied != state.Applied || m.Status().Digest != state.Digest {
		t.Errorf("sessions there: %v, %v; state %+v, was %+v", m.port.local.has(s.Session), m.port.local.has(gone.Session), m.Status(), state)
	}

	tr.restart((at + 1) % 3)
	tr.serving(ctx, at, (at+1)%3)
	second.wantClosed()
	if m.port.local.has(s.Session) {
		t.Error("a read-only session outlives the mode")
	}
	normal := dialRaw(t, addr)
	if got := normal.connect(readOnlyRequest()); got.Session == 0 || got.ReadOnly {
		t.Errorf("welcomed as %+v by a member with a leader", got)
	}
	back := dialRaw(t, addr)
	if got := back.connect(resumeRequest(s)); got.Session != 0 {
		t.Errorf("a read-only session is resumed as %+v", got)
	}
}

// Without local sessions no session can begin: the answer is an ordinary header, and a global session is sent elsewhere.
func TestReadOnlyMemberWithoutLocalSessions(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	tr, at, before := cutOff(t, ctx, nil)
	addr := tr.peers[at].ClientAddr
	r := dialRaw(t, addr)
	r.send(frame(record(ptr(readOnlyRequest()))))
	h, body := r.reply()
	if h.Xid != 0 || h.Err != kv.CodeNotReadOnly || len(body) != 0 || kv.Zxid(h.Zxid) != tr.members[at].Status().Applied {
		t.Errorf("answer %+v with %d bytes", h, len(body))
	}
	r.send(request(1, wire.OpExists, record(&wire.PathWatchRequest{Path: "/a"})))
	r.wantClosed()
	c := dialRaw(t, addr)
	q := resumeRequest(before)
	q.ReadOnly = true
	c.send(frame(record(&q)))
	c.wantClosed()
}

func ptr[T any](v T) *T { return &v }

// A member that lost its leader for less than the grace, or is not allowed to, is silent.
func TestWithoutReadOnlyModeNobodyIsAnswered(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	tr := startTrio(t, nil)
	leader := tr.serving(ctx, 0, 1, 2)
	at := (leader + 1) % 3
	for i, m := range tr.members {
		if i != at {
			_ = m.Close()
			tr.members[i] = nil
		}
	}
	eventually(t, "the gate is shut", func() bool { return !tr.members[at].port.gate.isOpen() })
	began := tr.members[at].port.clock.now()
	limit := int64(ticks(readOnlyGrace)) + 10
	for tr.members[at].port.clock.now()-began < limit {
		nc, err := net.Dial("tcp", tr.peers[at].ClientAddr)
		if err != nil {
			t.Fatal(err)
		}
		_ = nc.SetDeadline(time.Now().Add(rawLimit))
		_, _ = nc.Write(frame(record(ptr(readOnlyRequest()))))
		if n, err := nc.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Fatal("an answer without a leader")
		}
		_ = nc.Close()
		time.Sleep(20 * time.Millisecond) // clients try again now and then
	}
}

// has reports whether a session is local here.
func (t *localSessions) has(id kv.SessionID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all[id] != nil
}
