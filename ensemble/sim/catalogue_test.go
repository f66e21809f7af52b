package sim

import (
	"testing"

	"kvd/ensemble/replica"
	"kvd/kv"
	"kvd/zab"
	"kvd/zab/quorum"
)

// More of the catalogue of zab-rules e: one fate for a doubtful write, elections that must not stall, disks that hang.

// TestS33FailedSync: a failed sync is final. The member stops, nothing after the failure counts, and it comes back from its
// disk.
func TestS33FailedSync(t *testing.T) {
	s := scene(t, Options{})
	led(t, s, 3)
	s.At(3)
	s.Run(5)
	s.DiskFail(3)
	op := s.W(3, "x")
	check(t, s.Until(10, func() bool { return !s.member(3).Up }), "3 lives on after a failed sync")
	check(t, op.Outcome == Unknown, "x is %v", op.Outcome)
	check(t, s.Established(200, 2) != nil, "nobody took over")
	recovered(t, s)
}

// TestS41LeaderThatCannotHear: the leader can send and hears nothing. It must stop pinging, or its followers stay.
func TestS41LeaderThatCannotHear(t *testing.T) {
	s := scene(t, Options{})
	led(t, s, 3)
	s.Run(5)
	s.Cut(1, 3)
	s.Cut(2, 3)
	check(t, s.Until(scriptSyncTicks+4, func() bool { return s.member(3).role.Role == zab.Looking }), "3 leads on")
	l := s.Established(200, 2)
	check(t, l != nil && l.ID == 2, "leader %v", l)
	epochs := len(s.ghost.epochs)
	s.Run(200)
	check(t, len(s.ghost.epochs) == epochs && s.Leader() == l, "flapping: epochs %v", s.ghost.epochs)
	recovered(t, s)
}

// TestS43HungDiskAtTheLeader: the leader's disk hangs, the others are well: it resigns long before anything times out. If all
// disks hang it keeps leading.
func TestS43HungDiskAtTheLeader(t *testing.T) {
	t.Run("alone", func(t *testing.T) {
		s := scene(t, Options{})
		led(t, s, 3)
		s.At(2)
		s.Run(5)
		s.DiskHang(3)
		began := s.Now()
		s.W(2, "x")
		check(t, s.Until(60, func() bool { return s.Leader() == nil || s.Leader().ID != 3 }), "3 leads on with a hung disk")
		if took := s.Now() - began; took > 1500 {
			t.Fatalf("it took %d ms", took)
		}
		check(t, s.Established(200, 2) != nil, "nobody took over")
		check(t, s.happened["session-expired"] == 0, "a stalled leader expired a session")
		recovered(t, s)
	})
	t.Run("together with the others", func(t *testing.T) {
		s := scene(t, Options{})
		led(t, s, 3)
		s.At(2)
		s.Run(5)
		for id := range quorum.MemberID(3) {
			s.DiskHang(id + 1)
		}
		op := s.W(2, "x")
		s.Run(30)
		check(t, s.Leader() != nil && s.Leader().ID == 3, "3 resigned, which helps nobody")
		for id := range quorum.MemberID(3) {
			s.DiskOK(id + 1)
		}
		check(t, s.OK(op), "x was not answered: %v", op.Outcome)
		recovered(t, s)
	})
}

// TestS46UnreachableBestCandidate: the member with the best vote reaches one of four. The others elect among themselves.
func TestS46UnreachableBestCandidate(t *testing.T) {
	s := scene(t, Options{Members: 5})
	s.Given(Disk{Accepted: 1, Current: 1, Log: []Span{{1, 6}}}, 5)
	for _, id := range []quorum.MemberID{1, 2, 3} {
		s.CutBoth(5, id)
	}
	s.StartAll()
	l := s.Established(400, 1)
	check(t, l != nil && l.ID != 5, "leader %v: %s", l, s.describe())
	epochs := len(s.ghost.epochs)
	s.Run(200)
	check(t, len(s.ghost.epochs) == epochs && s.Leader() == l, "it does not stay: epochs %v", s.ghost.epochs)
	recovered(t, s)
}

// TestS47LostNotifications: one direction of the election is deaf for a while.
func TestS47LostNotifications(t *testing.T) {
	s := scene(t, Options{})
	drop := s.Drop(Is("NOTIFICATION", 1, 3))
	s.StartAll()
	s.Run(40)
	s.Release(drop)
	check(t, s.Until(200, s.recovered), "no convergence: %s", s.describe())
	recovered(t, s)
}

// TestS51DisturbingLaggard: a member that flaps does not cost the others their leader (L3).
func TestS51DisturbingLaggard(t *testing.T) {
	s := scene(t, Options{})
	led(t, s, 3)
	for range 40 {
		s.DropLinks(1, 3)
		s.Run(2)
	}
	check(t, s.Leader() != nil && s.Leader().ID == 3 && len(s.ghost.epochs) == 1, "the leader changed: epochs %v", s.ghost.epochs)
	recovered(t, s)
}

// TestS54ObserversNeverCount: with one voter of three left, any number of observers makes no quorum.
func TestS54ObserversNeverCount(t *testing.T) {
	s := scene(t, Options{Observers: 3})
	led(t, s, 3)
	s.Crash(1)
	s.Crash(2)
	s.Run(200)
	check(t, s.Leader() == nil, "a voter and observers lead")
	recovered(t, s)
}

// TestS58CloseSessionReachesALateMember: a session's end is committed while a member is away; its ephemerals are gone there
// too when it returns, by DIFF.
func TestS58CloseSessionReachesALateMember(t *testing.T) {
	s := scene(t, Options{})
	led(t, s, 3)
	c := s.At(2)
	ephemeral(t, s, c, "e")
	s.Run(5)
	check(t, s.Has(1, "e"), "the ephemeral is not everywhere")
	s.Crash(1)
	op := c.submit(kv.Request{Op: kv.OpCloseSession})
	s.member(2).run()
	check(t, s.OK(op), "close: %v", op.Outcome)
	s.Start(1)
	check(t, s.Until(200, s.recovered), "1 did not come back")
	s.Run(5)
	everywhere(t, s, "e", false)
	recovered(t, s)
}

// TestFastFailover: with three members and refused connections a crashed leader is replaced in well under a second.
func TestFastFailover(t *testing.T) {
	s := scene(t, Options{Tune: func(_ quorum.MemberID, c *replica.Config) { c.FinalizeTicks = 4 }})
	led(t, s, 3)
	s.Run(20)
	s.Crash(3)
	began := s.Now()
	check(t, s.Established(40, 2) != nil && s.Until(5, func() bool { return s.Leader().serving.Open }), "nobody took over")
	if took := s.Now() - began; took > 200 {
		t.Fatalf("it took %d ms", took)
	}
	recovered(t, s)
}

// TestFormingFromBlank: blank members form one ensemble, whatever the order in which they start and however often one of
// them crashes on the way.
func TestFormingFromBlank(t *testing.T) {
	for crashes := range 6 {
		s := NewScript(Options{Fresh: true, Seed: uint64(crashes)})
		for _, id := range []quorum.MemberID{2, 3} {
			s.Start(id)
		}
		s.Run(50)
		check(t, s.Leader() == nil, "formed without hearing from all voters")
		s.Start(1)
		for range crashes {
			s.Run(1)
			id := quorum.MemberID(1 + s.rng.IntN(3))
			s.Crash(id)
			s.Run(2)
			s.Start(id)
		}
		check(t, s.Until(300, s.recovered), "%d crashes: not formed: %s", crashes, s.describe())
		for _, m := range s.members {
			check(t, m.cluster == s.member(1).cluster && m.cluster != [16]byte{}, "member %d belongs to %x", m.ID, m.cluster)
		}
		check(t, s.OK(s.W(1, "x")), "no write")
		recovered(t, s)
	}
}
