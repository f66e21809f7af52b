package sim

import (
	"fmt"
	"testing"

	"kvd/ensemble/replica"
	"kvd/zab/quorum"
)

// TestApplierQueueIsBounded: a follower whose applier stands still holds a bounded number of committed entries in memory
// for it (L6), follows on, and catches up when the applier goes on.
func TestApplierQueueIsBounded(t *testing.T) {
	const bound, writes = 8, 100
	s := scene(t, Options{Tune: func(_ quorum.MemberID, c *replica.Config) {
		c.MaxOutstandingEntries, c.WindowEntries, c.TailBytes = bound, bound, 1024
	}})
	led(t, s, 3)
	s.At(3)
	s.Run(10)
	s.HoldApply(1)
	for i := range writes {
		if !s.OK(s.W(3, fmt.Sprint(i))) {
			t.Fatal("write")
		}
	}
	m := s.member(1)
	n := 0
	for _, it := range m.applyQ {
		n += len(it.entries)
	}
	if n > bound {
		t.Errorf("%d entries wait for the applier, bound %d", n, bound)
	}
	s.ReleaseApply(1)
	if !s.Until(100, func() bool { return m.tree.View().Zxid() == s.member(3).tree.View().Zxid() }) {
		t.Errorf("its tree is at %v, the leader's at %v", m.tree.View().Zxid(), s.member(3).tree.View().Zxid())
	}
}
