package sim

import (
	"fmt"
	"testing"

	"kvd/ensemble/replica"
	"kvd/kv"
	"kvd/zab"
	"kvd/zab/quorum"
)

// The scenarios of zab-rules e. Each sets the scene, does what the catalogue says, demands its outcome, and then that the
// ensemble recovers and agrees. All of section d is checked throughout.

// scene starts a scenario: all logs end at (1,5), all epochs are 1.
func scene(t *testing.T, opt Options) *Sim {
	t.Helper()
	s := NewScript(opt)
	t.Cleanup(func() {
		if s.failure != nil {
			t.Errorf("%v", s.failure)
		}
		if t.Failed() {
			trace := s.Trace()
			if n := len(trace); n > 20_000 {
				trace = trace[n-20_000:]
			}
			t.Logf("%s", trace)
		}
	})
	for _, m := range s.members {
		s.Given(Disk{Accepted: 1, Current: 1, Log: []Span{{1, 5}}}, m.ID)
	}
	s.GivenCommitted(1, kv.MakeZxid(1, 5))
	return s
}

// led starts everybody and waits until member want leads and everybody follows.
func led(t *testing.T, s *Sim, want quorum.MemberID) {
	t.Helper()
	s.StartAll()
	if !s.Until(100, s.recovered) || s.Leader().ID != want {
		t.Fatalf("member %d does not lead: %v; %s", want, s.failure, s.describe())
	}
}

func check(t *testing.T, ok bool, format string, args ...any) {
	t.Helper()
	if !ok {
		t.Fatalf(format, args...)
	}
}

// recovered ends the scenario: faults end, everybody comes back and agrees.
func recovered(t *testing.T, s *Sim) {
	t.Helper()
	s.Settle()
	if s.failure != nil {
		t.Fatal(s.failure)
	}
}

func everywhere(t *testing.T, s *Sim, v string, want bool) {
	t.Helper()
	for _, m := range s.members {
		if s.Has(m.ID, v) != want {
			t.Fatalf("member %d: /%s exists=%v, want %v", m.ID, v, !want, want)
		}
	}
}

func isCommitNews(from quorum.MemberID) func(*Message) bool {
	return func(m *Message) bool {
		if m.From != from {
			return false
		}
		switch m.Kind {
		case "COMMIT", "PING", "PROPOSAL", "UPTODATE":
			return true
		}
		return false
	}
}

func TestS01CommittedByACrashedLeader(t *testing.T) {
	s := scene(t, Options{})
	led(t, s, 3)
	s.At(3)
	s.Run(5)
	op := s.W(3, "a")
	before := s.member(3).Last()
	check(t, s.Until(20, func() bool { return s.member(1).handed.lastZxid() > before && s.member(2).handed.lastZxid() > before }), "proposal did not arrive")
	s.Hold(isCommitNews(3))
	check(t, s.OK(op), "a was not answered: %v", op.Outcome)
	s.Crash(3)
	check(t, s.Established(200, 2) != nil, "nobody leads after the crash")
	s.Run(20)
	check(t, s.Has(1, "a") && s.Has(2, "a"), "a is lost")
	recovered(t, s)
	everywhere(t, s, "a", true)
}

func TestS04EpochBeforeZxid(t *testing.T) {
	for _, stale := range []quorum.MemberID{4, 5} { // also with the greatest id
		t.Run(fmt.Sprint(stale), func(t *testing.T) {
			s := scene(t, Options{Members: 5})
			s.Given(Disk{Accepted: 2, Current: 2, Log: []Span{{1, 5}}}, 1, 2, 3)
			s.Given(Disk{Accepted: 1, Current: 1, Log: []Span{{1, 6}}}, stale)
			for _, id := range []quorum.MemberID{1, 2, stale} {
				s.Start(id)
			}
			l := s.Established(200, 2)
			check(t, l != nil && l.ID == 2, "leader is %v", l)
			check(t, s.Until(100, func() bool { return s.member(stale).serving.Open }), "%d did not join", stale)
			check(t, s.member(stale).Last() == kv.MakeZxid(1, 5), "%v keeps what was skipped", s.member(stale))
			recovered(t, s)
		})
	}
}

func TestS05IsolatedLeader(t *testing.T) {
	s := scene(t, Options{})
	led(t, s, 3)
	c := s.At(3)
	s.Run(5)
	s.Isolate(3)
	began := s.Now()
	var ops []*Op
	for i := range 3 {
		ops = append(ops, c.submit(kv.Request{Op: kv.OpCreate, Path: fmt.Sprintf("/lost%d", i), ACL: kv.OpenACL()}))
	}
	s.member(3).run()
	check(t, s.Until(scriptSyncTicks+4, func() bool { return s.member(3).role.Role == zab.Looking }), "3 still leads after %d ticks", (s.Now()-began)/tickMs)
	check(t, s.Established(300, 2) != nil, "1 and 2 did not elect")
	check(t, s.OK(s.W(2, "kept")), "the new leader does not write")
	for _, op := range ops {
		check(t, op.Outcome != OK, "an isolated leader answered OK")
	}
	s.Heal()
	check(t, s.Until(200, s.recovered), "3 did not rejoin: %s", s.describe())
	for i := range 3 {
		everywhere(t, s, fmt.Sprintf("lost%d", i), false)
	}
	s.Crash(3)
	recovered(t, s)
	everywhere(t, s, "kept", true)
	everywhere(t, s, "lost0", false)
}

// duel is S07: two prospective leaders compute the same epoch from quorums that overlap in one member.
func duel(t *testing.T, s *Sim) {
	for _, id := range []quorum.MemberID{1, 2, 3} {
		s.Start(id)
	}
	hold := s.Hold(Is("LEADERINFO", 2, 1))
	check(t, s.Elect(2, 1, 2), "2 was not elected")
	check(t, s.Until(10, func() bool { return s.member(2).disk.accepted.Epoch == 2 }), "2 did not promise itself epoch 2")
	s.CutBoth(1, 2)
	s.CutBoth(2, 3)
	s.DropLinks(1, 2)
	s.member(1).rep.Shutdown() // an operator restarts 1: it looks again at once
	s.member(1).run()
	s.Until(40, func() bool { return !s.member(1).Up })
	s.Start(1)
	check(t, s.Elect(3, 1, 3), "3 was not elected")
	s.Until(20, func() bool { return s.member(1).disk.accepted.Epoch == 2 })
	// 3's ACK(NEWLEADER) is on its way; before it counts, 1 leaves for 2.
	s.Crash(1)
	s.Heal()
	s.Start(1)
	s.Release(hold)
	s.Elect(2, 1, 2)
	s.Run(30)
}

func TestS07DuellingLeaders(t *testing.T) {
	s := scene(t, Options{})
	duel(t, s)
	check(t, len(s.ghost.est) <= 1, "epochs established: %v", s.ghost.est)
	recovered(t, s)
}

func TestS09LostAckEpoch(t *testing.T) {
	s := scene(t, Options{})
	lost := false
	s.Drop(func(m *Message) bool {
		if m.Kind == "ACKEPOCH" && !lost {
			lost = true
			return true
		}
		return false
	})
	s.Start(1)
	s.Start(3)
	check(t, s.Until(40, func() bool { return lost }), "no ACKEPOCH was sent")
	check(t, s.Until(scriptInitTicks/2, func() bool { return s.Leader() != nil }), "a lost ACKEPOCH costs the init limit: %s", s.describe())
	recovered(t, s)
}

func TestS19RejoinWithoutRestart(t *testing.T) {
	s := scene(t, Options{})
	led(t, s, 3)
	c := s.At(3)
	s.Run(5)
	s.Isolate(3)
	c.submit(kv.Request{Op: kv.OpCreate, Path: "/x", ACL: kv.OpenACL()})
	s.member(3).run()
	check(t, s.Until(5, func() bool { return s.member(3).Last() > s.member(1).Last() }), "x is not on 3's disk")
	tail := s.member(3).Last()
	check(t, s.Established(300, 2) != nil, "1 and 2 did not elect")
	check(t, s.OK(s.W(2, "y")), "y was not answered")
	check(t, s.Until(100, func() bool { return s.member(3).role.Role == zab.Looking }), "3 still leads")
	life := s.member(3).life
	s.Heal()
	check(t, s.Until(200, s.recovered), "3 did not rejoin")
	check(t, s.member(3).life == life, "3 was restarted")
	check(t, !s.member(3).disk.content.holds(tail, s.ghost.chains[tail]), "3 keeps its tail")
	s.Crash(3)
	s.Start(3)
	check(t, s.Until(200, s.recovered), "3 did not come back")
	check(t, s.Until(20, s.level) && s.member(3).tree.View().Digest() == s.member(2).tree.View().Digest(), "another tree after the restart")
	recovered(t, s)
	everywhere(t, s, "x", false)
	everywhere(t, s, "y", true)
}

// TestS24TruncationBelowTheBase: a member whose snapshot contains what must go gets a snapshot, not a TRUNC. No member makes
// such a snapshot itself (only committed entries are applied); here it is put on the disk.
func TestS24TruncationBelowTheBase(t *testing.T) {
	s := scene(t, Options{Members: 5})
	s.Given(Disk{Accepted: 2, Current: 2, Log: []Span{{1, 8}}, Base: kv.MakeZxid(1, 8)}, 1)
	s.Given(Disk{Accepted: 3, Current: 3, Log: []Span{{1, 5}}}, 2, 4, 5)
	s.ghost.of(s.member(1)).dirty = true
	for _, id := range []quorum.MemberID{2, 4, 5} {
		s.Start(id)
	}
	l := s.Established(200, 3)
	check(t, l != nil, "2, 4, 5 did not elect")
	check(t, s.OK(s.W(l.ID, "v")), "v was not answered")
	s.Start(1)
	check(t, s.Until(300, func() bool { return s.member(1).serving.Open }), "1 did not join: %s", s.describe())
	check(t, s.arrived["SNAP"] > 0, "no snapshot was sent")
	check(t, !s.member(1).disk.content.holds(kv.MakeZxid(1, 8), s.ghost.chains[kv.MakeZxid(1, 8)]), "1 keeps the dirty snapshot")
	s.ghost.of(s.member(1)).dirty = false
	s.Crash(1)
	recovered(t, s)
	everywhere(t, s, "v", true)
}

func TestS27EmptyDisk(t *testing.T) {
	for _, keepFile := range []bool{true, false} {
		t.Run(fmt.Sprintf("identity file kept=%v", keepFile), func(t *testing.T) {
			s := scene(t, Options{})
			s.Given(Disk{Accepted: 1, Current: 1, Log: []Span{{1, 6}}}, 1, 3)
			s.ghost.reset()
			s.GivenCommitted(1, kv.MakeZxid(1, 6))
			s.Wipe(1, keepFile)
			s.Start(1)
			s.Start(2)
			s.Run(300)
			check(t, s.Leader() == nil, "a member that forgot everything helped to elect %v", s.Leader())
			s.Start(3)
			check(t, s.Until(300, s.recovered), "no recovery with 3: %s", s.describe())
			check(t, s.member(1).Last() >= kv.MakeZxid(1, 6), "%v", s.member(1))
			recovered(t, s)
		})
	}
}

func TestS36StaleSync(t *testing.T) {
	for _, observer := range []bool{false, true} {
		t.Run(fmt.Sprintf("observer=%v", observer), func(t *testing.T) {
			s := scene(t, Options{Observers: 1})
			led(t, s, 3)
			at := quorum.MemberID(3)
			if observer {
				at = 4
			}
			c := s.At(at)
			s.Run(5)
			for _, id := range []quorum.MemberID{1, 2} {
				s.CutBoth(3, id)
				s.CutBoth(4, id)
			}
			for _, id := range []quorum.MemberID{1, 2} { // they elect at once, while 3 still believes that it leads
				s.DropLinks(3, id)
			}
			check(t, s.Established(300, 2) != nil && s.Leader().ID == 2, "1 and 2 did not elect: %s", s.describe())
			check(t, s.OK(s.W(2, "x")), "x was not answered")
			if c.state == ready {
				found, answered := s.SyncRead(c, "x", 60)
				check(t, !answered || found, "a stale read after sync")
			}
			recovered(t, s)
		})
	}
}

func TestS36StaleSyncWhileTheOldLeaderStillLeads(t *testing.T) {
	s := scene(t, Options{Tune: func(id quorum.MemberID, c *replica.Config) {
		if id == 3 {
			c.SyncTicks = 1000 // it would not notice for a minute
		}
	}})
	led(t, s, 3)
	c := s.At(3)
	s.Run(5)
	s.Isolate(3)
	s.DropLinks(3, 1)
	s.DropLinks(3, 2)
	check(t, s.Established(300, 2) != nil, "1 and 2 did not elect")
	check(t, s.OK(s.W(2, "x")), "x was not answered")
	check(t, s.member(3).role.Role == zab.Leading, "3 noticed")
	found, answered := s.SyncRead(c, "x", 40)
	check(t, !answered || found, "a stale read after sync")
	recovered(t, s)
}

func TestS39CounterRollover(t *testing.T) {
	s := scene(t, Options{Clients: 4, ThinkMs: 10, Tune: func(_ quorum.MemberID, c *replica.Config) { c.RolloverCounter = 16 }})
	led(t, s, 3)
	lost := false
	done := s.done
	check(t, s.Until(4000, func() bool {
		for _, m := range s.members {
			lost = lost || m.role.Role == zab.Looking
		}
		return s.done > done+200
	}), "writes stopped: %s", s.describe())
	check(t, !lost, "a rollover needed an election")
	check(t, s.Leader().ID == 3 && len(s.ghost.epochs) >= 5, "epochs %v", s.ghost.epochs)
	recovered(t, s)
}

func TestS62LockedOutMember(t *testing.T) {
	s := scene(t, Options{Members: 5})
	s.Given(Disk{Accepted: 3, Current: 1, Log: []Span{{1, 5}}}, 1)
	for _, id := range []quorum.MemberID{2, 3, 4} {
		s.Start(id)
	}
	l := s.Established(200, 1)
	check(t, l != nil && l.role.Epoch == 2, "leader %v", l)
	check(t, s.OK(s.W(l.ID, "v")), "v was not answered")
	s.Start(1)
	check(t, s.Until(100, func() bool { return s.member(1).serving.Open }), "1 is locked out: %s", s.describe())
	check(t, s.Leader() == l && len(s.ghost.epochs) == 2, "leader %v, epochs %v", s.Leader(), s.ghost.epochs)
	recovered(t, s)
	everywhere(t, s, "v", true)
}

// longSync makes members patient, so that a pause of the leader is not the end of its reign.
func longSync(_ quorum.MemberID, c *replica.Config) { c.SyncTicks = 1000 }
