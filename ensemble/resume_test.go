package ensemble

import (
	"context"
	"fmt"
	"testing"
	"time"

	"kvd/ensemble/replica"
	"kvd/kv"
	"kvd/kv/wire"
)

// stall stops a member's loop, as a pause of its process would, until the returned function is called.
func stall(t *testing.T, m *Member) (resume func()) {
	t.Helper()
	stalled, goOn := make(chan struct{}), make(chan struct{})
	m.inbox.push(onLoop(func(*loop) { close(stalled); <-goOn }), false)
	<-stalled
	return func() { close(goOn) }
}

// A member is paused, its client with it. Meanwhile the client's session ends and the log is purged, so that the member gets
// a snapshot: it never applies the transaction that ended the session. The client's connection ends nevertheless; with
// its pings answered it would think for ever that it holds what it held.
func TestSessionThatEndedWithinASnapshot(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tr := startTrio(t, func(c *Config) { eagerSnapshots(c); c.TickTime, c.SyncLimit = 500*time.Millisecond, 4 })
	leader := tr.serving(ctx, 0, 1, 2)
	away, stays := (leader+1)%3, (leader+2)%3
	m := tr.members[away]
	gone := dialRaw(t, tr.peers[away].ClientAddr)
	s := gone.session()
	gone.send(createRequest(1, "/mine", kv.FlagEphemeral))
	gone.wantReply(1, kv.CodeOK)
	writer, err := tr.members[stays].Client(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if err := writer.Sync(ctx, "/"); err != nil {
		t.Fatal(err)
	}

	resume := stall(t, m)
	for len(tr.members[leader].Status().Learners) > 1 { // what is on its way to the paused member arrives yet
		fill(t, ctx, writer, 8)
	}
	other := dialRaw(t, tr.peers[stays].ClientAddr)
	if got := other.connect(wire.ConnectRequest{TimeoutMs: 10_000, Session: s.Session, Password: s.Password[:]}); got.Session != s.Session {
		t.Fatalf("not resumed: %+v", got)
	}
	other.send(request(2, wire.OpCloseSession, nil))
	other.wantReply(2, kv.CodeOK)
	last := tr.members[leader].Status().Durable
	for tr.members[leader].wal.State().LogStart <= last {
		fill(t, ctx, writer, 32)
		if ctx.Err() != nil {
			t.Fatalf("the log is not purged: %+v", tr.members[leader].Status())
		}
	}
	resume()
	eventually(t, "the member got a snapshot and serves", func() bool { return m.wal.State().Base > last && m.Status().Serving })
	gone.send(request(wire.XidPing, wire.OpPing, nil))
	gone.wantClosed()
}

// The leader's word that a session lives reaches the member together with the transaction that ends it.
func TestSessionThatEndsWhileItIsResumed(t *testing.T) {
	m, addr := startSingle(t, nil)
	first := dialRaw(t, addr)
	s := first.session()
	first.send(request(1, wire.OpCloseSession, nil))
	first.wantReply(1, kv.CodeOK)
	first.wantClosed()
	eventually(t, "its connection is gone", func() bool { return m.port.sessions.attached() == 0 })

	// The end is applied; the word is said now, as it was when the session lived.
	stalled, asked := make(chan struct{}), make(chan struct{})
	m.inbox.push(onLoop(func(l *loop) {
		close(stalled)
		<-asked
		l.intake.drain(&l.requests)
		for _, q := range l.requests.revalidates {
			l.revalidated(&replica.Revalidated{Request: q.token, Session: q.session, Validity: replica.Valid, TimeoutMs: q.timeoutMs, Claim: 1<<32 | 1, Fresh: l.applied})
		}
	}), false)
	<-stalled
	r := dialRaw(t, addr)
	r.send(frame(record(&wire.ConnectRequest{TimeoutMs: 10_000, Session: s.Session, Password: s.Password[:]})))
	eventually(t, "the question waits", func() bool {
		m.intake.mu.Lock()
		defer m.intake.mu.Unlock()
		return len(m.intake.revalidates) == 1
	})
	close(asked)
	r.wantClosed()
}

// A member whose clock is behind, and that had to learn its sessions from the others, hands out no id a second time.
func TestIDsOfSessionsThatCameFromOthers(t *testing.T) {
	m, addr := startSingle(t, nil)
	first := dialRaw(t, addr).session()
	done := make(chan struct{})
	m.inbox.push(onLoop(func(l *loop) {
		l.port.ids.mu.Lock()
		l.port.ids.first, l.port.ids.next = int64(first.Session)-5, int64(first.Session)
		l.port.ids.mu.Unlock()
		l.port.setGate(false)
		l.openGate()
		close(done)
	}), false)
	<-done
	if next := dialRaw(t, addr).session(); next.Session <= first.Session {
		t.Errorf("session %v after %v", next.Session, first.Session)
	}
}

// A client comes back to the member whose connection with it has not ended yet: what it had sent there is still on its way
// when the session is resumed. What it then does not find does not come later either.
func TestResumeSettlesWhatTheOldConnectionSent(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tr := startTrio(t, nil)
	leader := tr.serving(ctx, 0, 1, 2)
	at := (leader + 1) % 3
	for round := range 10 {
		path := fmt.Sprint("/late", round)
		old := dialRaw(t, tr.peers[at].ClientAddr)
		s := old.session()
		resume := stall(t, tr.members[leader])
		r := dialRaw(t, tr.peers[at].ClientAddr)
		asked := tr.members[at].port.counters.connectRequests.Load()
		r.send(frame(record(&wire.ConnectRequest{TimeoutMs: 10_000, Session: s.Session, Password: s.Password[:]})))
		eventually(t, "the question is on its way", func() bool {
			return tr.members[at].port.counters.connectRequests.Load() > asked && tr.members[at].intake.outstanding() == 1
		})
		old.send(createRequest(1, path, kv.FlagEphemeral))
		eventually(t, "the write is on its way", func() bool { return tr.members[at].intake.outstanding() == 2 })
		resume()
		var resp wire.ConnectResponse
		if err := wire.Decode(r.next(), &resp); err != nil || resp.Session != s.Session {
			t.Fatalf("not resumed: %+v %v", resp, err)
		}
		exists := func(xid int32) kv.Code {
			h, _ := askExists(r, xid, path)
			return h.Err
		}
		before := exists(1)
		r.send(request(2, wire.OpSync, wire.AppendString(nil, "/")))
		r.wantReply(2, kv.CodeOK)
		r.send(createRequest(3, path+"own", kv.FlagEphemeral))
		r.wantReply(3, kv.CodeOK)
		if after := exists(4); after != before {
			t.Fatalf("round %d: %v right after the resume, %v later", round, before, after)
		}
		r.send(request(5, wire.OpCloseSession, nil))
		r.wantReply(5, kv.CodeOK)
	}
}
