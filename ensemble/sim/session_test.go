package sim

import (
	"testing"

	"kvd/kv"
	"kvd/zab/quorum"
)

// ephemeral lets c create /name, owned by its session.
func ephemeral(t *testing.T, s *Sim, c *Client, name string) {
	t.Helper()
	op := c.submit(kv.Request{Op: kv.OpCreate, Path: "/" + name, ACL: kv.OpenACL(), Flags: kv.FlagEphemeral})
	c.member.run()
	check(t, s.OK(op), "no ephemeral: %v %v", op.Outcome, op.Code)
}

// TestSessionExpires: a client that falls silent loses its session and its ephemerals, by one committed decision, within
// its time-out and a little more, and not before.
func TestSessionExpires(t *testing.T) {
	s := scene(t, Options{})
	led(t, s, 3)
	c := s.At(1)
	ephemeral(t, s, c, "e")
	s.Run(200)
	check(t, s.Has(2, "e"), "a client that is heard from lost its session")
	c.stopped = true // silent from here on
	silent := s.Now()
	check(t, s.Until(200, func() bool { return !s.Has(2, "e") }), "an ephemeral outlives its client")
	if took := s.Now() - silent; took < sessionMs-200 || took > sessionMs+500 {
		t.Fatalf("expired after %d ms, the time-out is %d", took, sessionMs)
	}
	recovered(t, s)
	everywhere(t, s, "e", false)
}

// TestPausedLeaderExpiresNobody is design rule 10: a leader that slept does not know who was heard meanwhile. It must not
// expire anybody before a quorum has answered a PING that was sent after it woke.
func TestPausedLeaderExpiresNobody(t *testing.T) {
	s := scene(t, Options{Members: 3, Tune: longSync})
	led(t, s, 3)
	c := s.At(1)
	ephemeral(t, s, c, "e")
	for range 20 {
		s.Pause(3)
		s.Run(2 * sessionMs / tickMs) // members 1 and 2 stay: their patience is longer
		s.Resume(3)
		s.Run(1)
	}
	s.Run(40)
	check(t, s.Leader() != nil && s.Leader().ID == 3, "3 lost its leadership: %s", s.describe())
	check(t, s.Has(1, "e") && s.happened["session-expired"] == 0, "a session expired because the leader slept")
	// And when nobody can confirm, nothing expires however long it takes.
	c.stopped = true
	s.Pause(3)
	s.Run(sessionMs / tickMs)
	for _, id := range []quorum.MemberID{1, 2} {
		s.Cut(id, 3)
	}
	s.Resume(3)
	s.Run(2 * sessionMs / tickMs)
	check(t, s.happened["session-expired"] == 0, "expired without a confirmed PING round")
	s.Heal()
	check(t, s.Until(4*sessionMs/tickMs, func() bool { return s.happened["session-expired"] > 0 }), "never expires after the heal")
	recovered(t, s)
}

// TestSessionMovesBetweenMembers is S59: a client that reconnects elsewhere keeps its session, sees what it has seen, and
// a straggler of its old connection does not act any more.
func TestSessionMovesBetweenMembers(t *testing.T) {
	s := scene(t, Options{})
	led(t, s, 3)
	c := s.At(1)
	ephemeral(t, s, c, "e")
	hold := s.Hold(Is("REQUEST", 1, 3))
	straggler := c.submit(kv.Request{Op: kv.OpCreate, Path: "/late", ACL: kv.OpenACL()})
	s.member(1).run()
	s.Run(2)
	id := c.session
	c.hangUp()
	c.connectTo(s.member(2))
	check(t, s.Until(50, func() bool { return c.state == ready }) && c.session == id, "the session did not move")
	early := c.submit(kv.Request{Op: kv.OpCreate, Path: "/early", ACL: kv.OpenACL()})
	s.member(2).run()
	check(t, s.OK(early), "no write at the new member")
	s.Release(hold)
	s.Run(20)
	check(t, straggler.Outcome == Unknown && !s.Has(3, "late"), "a straggler overtook what came after it")
	check(t, s.Has(3, "e"), "the ephemeral is gone")
	recovered(t, s)
}

// TestNobodyIsToldOfAnUncommittedEnd: the end of a session is proposed and not committed, and the leader has not even applied
// its beginning. Whoever wants to resume it hears nothing until one or the other is decided.
func TestNobodyIsToldOfAnUncommittedEnd(t *testing.T) {
	s := scene(t, Options{})
	led(t, s, 3)
	s.Run(5)
	s.HoldApply(3)
	c := s.At(1)
	s.Run(2)
	hold := s.Hold(Is("ACK", 0, 3))
	c.submit(kv.Request{Op: kv.OpCloseSession})
	s.member(1).run()
	s.Run(2)
	id := c.session
	c.hangUp()
	c.connectTo(s.member(2))
	s.Run(4)
	check(t, c.session == id && c.state == resuming, "told something in state %d", c.state) // else C4 has failed too
	s.Release(hold)
	s.Run(4)
	check(t, c.state == resuming, "told before the leader applied it")
	s.ReleaseApply(3)
	check(t, s.Until(20, func() bool { return c.session != id }), "never told: state %d", c.state)
	recovered(t, s)
}

// TestShutdownHandsOver: a leader that is told to stop lets its outstanding writes commit, and the others elect without
// waiting for a time-out.
func TestShutdownHandsOver(t *testing.T) {
	s := scene(t, Options{})
	led(t, s, 3)
	s.At(1)
	s.At(3)
	s.Run(5)
	own, forwarded := s.W(3, "own"), s.W(1, "forwarded")
	s.Until(2, func() bool { return s.member(3).rep.Status().OutstandingCount >= 2 })
	s.member(3).rep.Shutdown()
	s.member(3).run()
	began := s.Now()
	check(t, s.Until(60, func() bool { return !s.member(3).Up }), "3 does not stop: %s", s.describe())
	check(t, own.Outcome == OK, "a write that was outstanding at a leader's shutdown is %v", own.Outcome)
	check(t, s.Until(60, func() bool { l := s.Leader(); return l != nil && l.ID != 3 }), "nobody took over")
	if took := s.Now() - began; took > scriptSyncTicks*tickMs {
		t.Fatalf("the hand-over took %d ms", took)
	}
	check(t, s.Until(60, func() bool { return forwarded.Outcome != Pending }), "the forwarded write is never answered")
	recovered(t, s)
	everywhere(t, s, "own", true)
}

// TestWritesWaitForALeader: what was not sent when the leader died waits in the queue and is executed by the next one.
func TestWritesWaitForALeader(t *testing.T) {
	s := scene(t, Options{})
	led(t, s, 3)
	c := s.At(1)
	s.Run(5)
	s.Crash(3)
	check(t, s.Until(40, func() bool { return !s.member(1).serving.Open }), "1 does not notice")
	if c.state == ready { // its connection survived
		op := c.submit(kv.Request{Op: kv.OpCreate, Path: "/waited", ACL: kv.OpenACL()})
		s.member(1).run()
		check(t, op.Outcome == Pending, "not queued")
		check(t, s.OK(op), "never executed: %v", op.Outcome)
	}
	recovered(t, s)
}
