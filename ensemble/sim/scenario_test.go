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
