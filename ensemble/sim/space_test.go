package sim

import (
	"testing"

	"kvd/kv"
	"kvd/zab/quorum"
)

// Short disk space: a low minority changes nothing, whoever it is. When the voters with room are no quorum what adds data is
// refused through every member, deletions and sessions go on, and it ends with the shortage. A change of leader in between
// changes nothing of that.
func TestLowDiskSpace(t *testing.T) {
	s := scene(t, Options{Observers: 1})
	led(t, s, 3)
	tried := func(id quorum.MemberID, q kv.Request) *Op {
		t.Helper()
		c := s.At(id)
		op := c.submit(q)
		s.member(id).run()
		check(t, s.Until(200, func() bool { return op.Outcome != Pending }), "no answer: %s", s.describe())
		return op
	}
	remove := func(id quorum.MemberID, path string) *Op {
		t.Helper()
		return tried(id, kv.Request{Op: kv.OpDelete, Path: path, Version: -1})
	}
	for _, v := range []string{"a", "b", "c", "d", "e"} {
		check(t, s.OK(s.W(1, v)), "%s was not answered", v)
	}
	for _, id := range []quorum.MemberID{1, 3, 4} { // the leader alone, a follower alone; an observer never counts
		s.DiskLow(id)
		s.Run(10)
		check(t, s.OK(s.W(2, string(rune('k'+id)))), "a low minority refuses")
		if id != 4 {
			s.DiskOK(id)
		}
	}
	s.DiskLow(2)
	s.DiskLow(3)
	s.Run(10)
	for round := range 2 {
		for _, id := range []quorum.MemberID{1, 2, 3, 4} {
			if !s.member(id).Up {
				continue
			}
			w := s.W(id, "refused")
			check(t, s.Until(200, func() bool { return w.Outcome != Pending }) && w.Outcome == OK && w.Code == kv.CodeSystemError, "round %d, member %d: %v %v", round, id, w.Outcome, w.Code)
		}
		op := remove(1, []string{"/a", "/b"}[round])
		check(t, op.Outcome == OK && op.Code == kv.CodeOK, "a deletion: %v %v", op.Outcome, op.Code)
		if round == 0 {
			epoch := s.Leader().role.Epoch
			s.Crash(3) // low as it is
			l := s.Established(200, epoch)
			check(t, l != nil, "no leader: %s", s.describe())
			s.Run(10)
		}
	}
	s.Start(3)
	s.DiskOK(3)
	check(t, s.Until(200, s.recovered), "no recovery: %s", s.describe())
	s.Run(10)
	check(t, s.OK(s.W(1, "taken")), "writes are still refused")
	recovered(t, s)
	everywhere(t, s, "refused", false)
	everywhere(t, s, "taken", true)
}

// Random schedules meet shortage, and refusals.
func TestRandomSchedulesMeetLowSpace(t *testing.T) {
	met, refused := 0, 0
	for seed := uint64(1); seed <= 60; seed++ {
		r := Run(Schedule{Seed: seed, Steps: 800})
		if r.Err != nil {
			t.Fatalf("seed %d: %v", seed, r.Err)
		}
		if r.Events["fault:disk-low"] > 0 {
			met++
		}
		refused += r.Events["refused:space"]
	}
	t.Logf("%d of 60 schedules had low disks; %d operations were refused for it", met, refused)
	if met < 3 || refused == 0 {
		t.Error("the schedules do not meet it")
	}
}
