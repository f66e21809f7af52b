package sim

import (
	"strings"
	"testing"

	"kvd/ensemble/replica"
	"kvd/kv"
	"kvd/zab"
	"kvd/zab/quorum"
)

// TestMixedVersions takes an ensemble through a rolling upgrade, back, and up again. While an older member is configured the
// active levels stay, whoever leads; when all voters support more, the leader raises them by a transaction; from then on
// an older binary refuses to serve, by name, and the others do not miss it.
func TestMixedVersions(t *testing.T) {
	newer := map[quorum.MemberID]bool{}
	s := scene(t, Options{Clients: 2, Tune: func(id quorum.MemberID, c *replica.Config) {
		c.Protocol, c.Format = zab.VersionRange{Min: 1, Max: 1}, zab.VersionRange{Min: 1, Max: 1}
		if newer[id] {
			c.Protocol.Max, c.Format.Max = 2, 2
		}
	}})
	led(t, s, 3)
	restart := func(id quorum.MemberID, toNewer bool) {
		t.Helper()
		s.member(id).rep.Shutdown()
		s.member(id).run()
		check(t, s.Until(100, func() bool { return !s.member(id).Up }), "%d does not stop", id)
		check(t, s.Until(200, func() bool { return s.Leader() != nil }), "nobody leads without %d", id)
		done := s.done
		check(t, s.Until(200, func() bool { return s.done > done+10 }), "no writes without %d", id)
		newer[id] = toNewer
		if err := s.TryStart(id); err != nil {
			t.Fatalf("%d does not start: %v", id, err)
		}
		check(t, s.Until(300, s.recovered), "%d does not come back: %s", id, s.describe())
		s.Run(50)
	}
	levels := func(want kv.Levels) {
		t.Helper()
		s.Run(5)
		for _, m := range s.members {
			if got := m.tree.View().Levels(); m.Up && got != want {
				t.Fatalf("member %d is at %v, want %v", m.ID, got, want)
			}
		}
	}
	raised := kv.Levels{Protocol: 2, Format: 2}

	restart(1, true)
	restart(3, true) // the leader: another one leads, newer or older
	levels(kv.Levels{})
	restart(3, false)
	restart(1, false)
	levels(kv.Levels{})
	for _, id := range []quorum.MemberID{2, 3} {
		restart(id, true)
		levels(kv.Levels{})
	}
	s.Crash(1) // away is not supporting: it may come back older
	s.Run(100)
	levels(kv.Levels{})
	s.Start(1)
	check(t, s.Until(200, s.recovered), "1 does not come back")
	levels(kv.Levels{})
	restart(1, true)
	check(t, s.Until(200, func() bool { return s.Leader() != nil && s.Leader().tree.View().Levels() == raised }), "levels are not raised")
	check(t, s.Until(100, func() bool {
		for _, m := range s.members {
			if m.tree.View().Levels() != raised {
				return false
			}
		}
		return true
	}), "levels did not reach everybody")

	// Too late to go back.
	s.Crash(1)
	newer[1] = false
	refused := s.happened["refused"]
	if err := s.TryStart(1); err == nil {
		done := s.done
		check(t, s.Until(300, func() bool { return s.happened["refused"] > refused && s.done > done+20 }), "the older member is not refused: %s", s.describe())
		check(t, !s.member(1).serving.Open, "an older member serves")
		check(t, strings.Contains(string(s.Trace()), "level 2 is outside the supported 1-1"), "the refusal does not name the level")
	} else if !strings.Contains(err.Error(), "level 2 is outside the supported 1-1") {
		t.Fatalf("the refusal does not name the level: %v", err)
	}
	s.Crash(1)
	newer[1] = true
	recovered(t, s)
	levels(raised)
}

// TestOlderMemberWithASnapshotOfTheNewLevel: the levels are in the snapshot, so the older binary refuses at start.
func TestOlderMemberWithASnapshotOfTheNewLevel(t *testing.T) {
	most := uint32(2)
	s := scene(t, Options{Tune: func(id quorum.MemberID, c *replica.Config) {
		c.Protocol, c.Format = zab.VersionRange{Min: 1, Max: most}, zab.VersionRange{Min: 1, Max: most}
	}})
	led(t, s, 3)
	check(t, s.Until(200, func() bool { return s.member(1).tree.View().Levels().Format == 2 }), "levels are not raised")
	s.TakeSnapshot(1)
	s.Run(5)
	s.Crash(1)
	most = 1
	err := s.TryStart(1)
	check(t, err != nil && strings.Contains(err.Error(), "level 2 is outside the supported 1-1"), "start says %v", err)
	most = 2
	recovered(t, s)
}
