package replica

import (
	"testing"

	"kvd/zab"
)

// TestRefusedMemberKeepsItsDistance: a member that a standing leader refuses comes back at growing distances, not as fast
// as messages travel; once it is welcome it is back within the longest pause.
func TestRefusedMemberKeepsItsDistance(t *testing.T) {
	l := newLab(t, 3, nil)
	nd := l.nodes[0]
	nd.refused = true
	l.breakLinks(nd)
	const ticks = 400 // 20 s
	for range ticks {
		l.tick(false)
	}
	if least, most := ticks/(maxFollowPause+20), ticks/maxFollowPause+8; nd.dials < least || nd.dials > most {
		t.Errorf("%d attempts in %d ticks, want %d to %d", nd.dials, ticks, least, most)
	}
	nd.refused = false
	back := 0
	for ; !nd.serving.Open && back < 10*maxFollowPause; back++ {
		l.tick(false)
	}
	if back > maxFollowPause+20 {
		t.Errorf("back after %d ticks", back)
	}
	if nd.r.following != (following{}) {
		t.Errorf("a success leaves %+v", nd.r.following)
	}
	// The next failure is the first one again.
	l.breakLinks(nd)
	for back = 0; !nd.serving.Open || nd.r.role.Role == zab.Looking; back++ {
		if back > 20 {
			t.Fatal("a broken link costs more than an election")
		}
		l.tick(false)
	}
}
