package sim

import (
	"bytes"
	"fmt"
	"testing"

	"kvd/zab"
	"kvd/zab/quorum"
)

// said counts an event in the trace.
func said(s *Sim, kind string) int { return bytes.Count(s.Trace(), []byte(kind)) }

// TestDivergedMemberIsSyncedAgain: a member whose tree differs from that of a quorum is the one that is stopped, a follower,
// an observer or the leader itself; nobody else is, and it comes back.
func TestDivergedMemberIsSyncedAgain(t *testing.T) {
	for _, who := range []quorum.MemberID{1, 3, 4} {
		t.Run(fmt.Sprint(who), func(t *testing.T) {
			s := scene(t, Options{Observers: 1})
			led(t, s, 3)
			check(t, s.OK(s.W(3, "v")), "v was not answered")
			lives := map[quorum.MemberID]uint64{}
			for _, m := range s.members {
				lives[m.ID] = m.life
			}
			s.Run(100) // compared, and equal
			s.Spoil(who)
			check(t, s.Until(400, func() bool { return s.member(who).life != lives[who] && s.recovered() }), "%d was not synced again: %s", who, s.describe())
			for _, m := range s.members {
				check(t, m.ID == who || m.life == lives[m.ID], "%d was stopped too", m.ID)
			}
			recovered(t, s)
			everywhere(t, s, "v", true)
		})
	}
}

// TestDivergenceWithoutQuorum: of two members nobody can tell which one is wrong. Both go on, and say so; the third decides.
func TestDivergenceWithoutQuorum(t *testing.T) {
	s := scene(t, Options{})
	led(t, s, 3)
	check(t, s.OK(s.W(3, "v")), "v was not answered")
	s.Run(100)
	s.Crash(1)
	life2, life3 := s.member(2).life, s.member(3).life
	s.Spoil(2)
	s.Run(300)
	check(t, s.member(2).life == life2 && s.member(3).life == life3 && s.member(3).role.Role == zab.Leading, "somebody was stopped: %s", s.describe())
	check(t, said(s, "digests-differ") == 1, "reported %d times", said(s, "digests-differ"))
	check(t, s.OK(s.W(2, "w")), "w was not answered")
	s.Start(1)
	check(t, s.Until(400, func() bool { return s.member(2).life != life2 && s.recovered() }), "2 was not synced again: %s", s.describe())
	check(t, s.member(3).life == life3, "3 was stopped")
	recovered(t, s)
	everywhere(t, s, "w", true)
}

// TestDigestsUnderLoad: the comparison finds marks that all members pass, and a wrong one among them.
func TestDigestsUnderLoad(t *testing.T) {
	s := scene(t, Options{})
	led(t, s, 3)
	life := s.member(2).life
	s.Spoil(2)
	for i := 0; s.member(2).life == life; i++ {
		check(t, i < 4000, "not found under load")
		s.W(3, fmt.Sprintf("w%d", i))
		s.Run(1)
	}
	recovered(t, s)
}
