package sim

import (
	"fmt"
	"testing"

	"kvd/ensemble/replica"
	"kvd/kv"
	"kvd/wal"
	"kvd/zab"
	"kvd/zab/quorum"
)

// survivors is an ensemble whose members hold the histories given; an empty one is a wiped disk. What member 1 holds, or
// was said to, was committed through z.
func survivors(t *testing.T, z kv.Zxid, disks ...Disk) *Sim {
	t.Helper()
	s := scene(t, Options{Members: len(disks)})
	s.ghost.reset()
	for i, d := range disks {
		id := quorum.MemberID(i + 1)
		if d.Current != 0 {
			s.Given(d, id)
		}
	}
	for i, d := range disks {
		if d.Current == 0 {
			s.Wipe(quorum.MemberID(i+1), i%2 == 0)
		}
	}
	s.ghost.lossy = true
	s.GivenCommitted(1, z)
	return s
}

func upTo(e kv.Epoch, n uint32) Disk { return Disk{Accepted: e, Current: e, Log: []Span{{e, n}}} }

// Two of three disks are lost at once: nothing forms. After the recovery of the third the ensemble serves with everything
// it held, and the mark is gone before it does.
func TestSoleSurvivor(t *testing.T) {
	s := survivors(t, kv.MakeZxid(1, 6), upTo(1, 6), Disk{}, Disk{})
	s.StartAll()
	s.Run(300)
	check(t, s.Leader() == nil, "%v leads without a quorum", s.Leader())
	s.Crash(1)
	s.SoleSurvivor(1)
	s.Start(1)
	check(t, s.Until(400, s.recovered), "no recovery: %s", s.describe())
	check(t, s.Leader().ID == 1 && s.Leader().role.Epoch > wal.RecoveryEpochs, "leader %v", s.Leader())
	check(t, !s.member(1).disk.sole, "the mark is still there")
	check(t, s.OK(s.W(2, "v")), "v was not answered")
	for _, m := range s.members {
		check(t, m.disk.content.holds(kv.MakeZxid(1, 6), s.ghost.chains[kv.MakeZxid(1, 6)]), "%v lacks (1,6)", m)
	}
	// They are ordinary voters: any two of them elect.
	s.Crash(1)
	check(t, s.Established(400, s.member(1).role.Epoch) != nil, "2 and 3 did not elect: %s", s.describe())
	recovered(t, s)
	everywhere(t, s, "v", true)
}

// The survivor, or all, crash at any moment of the recovery: it goes on by itself.
func TestSoleSurvivorCrashes(t *testing.T) {
	inTime := 0
	for steps := 1; ; steps++ {
		over := false
		for _, all := range []bool{false, true} {
			t.Run(fmt.Sprintf("after=%d/all=%v", steps, all), func(t *testing.T) {
				s := survivors(t, kv.MakeZxid(1, 6), upTo(1, 6), Disk{}, Disk{}, Disk{}, Disk{})
				s.SoleSurvivor(1)
				s.StartAll()
				s.Until(400, func() bool { return s.member(1).role.Role == zab.Leading })
				left := steps
				s.Until(400, func() bool { left--; return left == 0 || s.Leader() != nil })
				if over = s.Leader() != nil; !over {
					inTime++
				}
				for _, m := range s.members {
					if m.ID == 1 || all {
						s.Crash(m.ID)
					}
				}
				s.Run(20)
				for _, m := range s.members {
					if !m.Up {
						s.Start(m.ID)
					}
				}
				check(t, s.Until(800, s.recovered), "no recovery: %s", s.describe())
				check(t, s.member(1).Last() >= kv.MakeZxid(1, 6), "%v", s.member(1))
				recovered(t, s)
			})
		}
		if over || t.Failed() {
			break
		}
	}
	if inTime < 20 {
		t.Errorf("only %d crashes met a recovery in progress", inTime)
	}
}

// Two members were both told to go on. If they hear each other the one that holds less gives up; if they do not, one of
// them is established at most, and the other joins it when it hears of it.
func TestTwoSoleSurvivors(t *testing.T) {
	t.Run("together", func(t *testing.T) {
		s := survivors(t, kv.MakeZxid(1, 5), upTo(1, 5), upTo(1, 6), Disk{}, Disk{}, Disk{})
		s.SoleSurvivor(1)
		s.SoleSurvivor(2)
		s.StartAll()
		check(t, s.Until(400, s.recovered), "no recovery: %s", s.describe())
		check(t, s.Leader().ID == 2, "leader %v", s.Leader())
		check(t, s.member(1).Last() >= kv.MakeZxid(1, 6), "%v", s.member(1))
		recovered(t, s)
	})
	// Every way to share the three wiped members between two survivors that do not hear each other.
	for shared := range 27 {
		t.Run(fmt.Sprintf("apart/%d", shared), func(t *testing.T) {
			s := survivors(t, kv.MakeZxid(1, 5), upTo(1, 5), upTo(1, 6), Disk{}, Disk{}, Disk{})
			s.SoleSurvivor(1)
			s.SoleSurvivor(2)
			s.CutBoth(1, 2)
			for i, n := 0, shared; i < 3; i, n = i+1, n/3 {
				switch n % 3 { // 2: hears both
				case 0:
					s.CutBoth(1, quorum.MemberID(3+i))
				case 1:
					s.CutBoth(2, quorum.MemberID(3+i))
				}
			}
			s.StartAll()
			s.Run(400)
			s.Heal()
			check(t, s.Until(800, s.recovered), "no recovery: %s", s.describe())
			recovered(t, s)
		})
	}
}

// A healthy voter that holds more is heard of: the survivor gives up, durably, and is as if it had never been marked. The
// one that holds more can then be told to go on.
func TestSoleSurvivorGivesUp(t *testing.T) {
	s := survivors(t, kv.MakeZxid(1, 5), upTo(1, 5), Disk{}, Disk{}, Disk{Accepted: 2, Current: 2, Log: []Span{{1, 5}, {2, 3}}}, Disk{})
	s.SoleSurvivor(1)
	s.StartAll()
	s.Run(300)
	check(t, s.Leader() == nil && !s.member(1).disk.sole, "leader %v, mark %v", s.Leader(), s.member(1).disk.sole)
	check(t, s.member(1).disk.current == 1 && s.member(1).Last() == kv.MakeZxid(1, 5), "%v", s.member(1))
	s.Crash(4)
	s.SoleSurvivor(4)
	s.Start(4)
	check(t, s.Until(400, s.recovered), "no recovery: %s", s.describe())
	check(t, s.Leader().ID == 4 && s.member(1).Last() >= kv.MakeZxid(2, 3), "%s", s.describe())
	recovered(t, s)
}

// A member of the old majority comes back when the ensemble has gone on without what only the majority held: whatever its
// epochs were, it joins, and its share of what was given up goes.
func TestOldMajorityComesBack(t *testing.T) {
	for _, old := range []kv.Epoch{3, 900} {
		s := survivors(t, kv.MakeZxid(1, 5), upTo(1, 5), Disk{}, Disk{}, Disk{}, Disk{Accepted: old, Current: old, Log: []Span{{1, 5}, {old, 7}}})
		s.SoleSurvivor(1)
		for id := quorum.MemberID(1); id <= 4; id++ {
			s.Start(id)
		}
		check(t, s.Until(400, func() bool { return s.Leader() != nil }), "no recovery: %s", s.describe())
		check(t, s.OK(s.W(1, "v")), "v was not answered")
		s.Start(5)
		check(t, s.Until(400, s.recovered), "5 did not join: %s", s.describe())
		s.Crash(1) // it votes for what the others hold
		check(t, s.Established(400, s.member(1).role.Epoch) != nil, "no leader: %s", s.describe())
		recovered(t, s)
		everywhere(t, s, "v", true)
		check(t, !s.member(5).disk.content.holds(kv.MakeZxid(old, 1), s.ghost.chains[kv.MakeZxid(old, 1)]), "%v", s.member(5))
	}
}

// A second survivor that hears nothing of the first one's ensemble meets a member of it: the recency check of phase 1 ends
// its attempt, and its mark. Without that check an acknowledged write is lost.
func TestSecondSurvivorMeetsTheRecencyCheck(t *testing.T) {
	for _, skipped := range []bool{false, true} {
		s := NewScript(Options{Members: 5, ZabMutations: zab.Mutations{RecencyCheckSkipped: skipped}})
		for id := quorum.MemberID(1); id <= 2; id++ {
			s.Given(upTo(1, 5), id)
		}
		for id := quorum.MemberID(3); id <= 5; id++ {
			s.Wipe(id, false)
		}
		s.GivenCommitted(1, kv.MakeZxid(1, 5))
		s.SoleSurvivor(1)
		s.SoleSurvivor(2)
		for _, id := range []quorum.MemberID{1, 3, 4} {
			s.Start(id)
		}
		check(t, s.Until(400, func() bool { return s.Leader() != nil }) && s.OK(s.W(3, "v")), "1 does not lead: %s", s.describe())
		for _, id := range []quorum.MemberID{1, 3, 4} {
			s.Crash(id)
		}
		s.Start(4) // what it applied is forgotten: that would keep it from truncating
		// 4 says nothing to 2 but what it says on the link to a leader.
		s.Drop(func(m *Message) bool {
			return m.From == 4 && m.To == 2 && m.kind == replica.KindNotification && m.Zab == nil && m.files == nil && m.link == nil
		})
		s.Start(2)
		s.Start(5)
		s.Run(300)
		if skipped {
			check(t, s.failure != nil, "nothing noticed that the check was skipped: %s", s.describe())
			t.Log(s.failure)
			continue
		}
		check(t, s.failure == nil && s.Leader() == nil && !s.member(2).disk.sole && s.member(2).disk.current == 1, "%v; %s", s.failure, s.describe())
		s.Start(1)
		s.Start(3)
		recovered(t, s)
		everywhere(t, s, "v", true)
	}
}
