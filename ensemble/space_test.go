package ensemble

import "testing"

// The three marks, step by step: what each measurement asks for, and when a member counts as low.
func TestSpaceMarks(t *testing.T) {
	marks := spaceMarks{low: 100, floor: 20}
	s := spaceState{}
	for i, c := range []struct {
		free, snapshot uint64
		want           spaceStep
		low, held      bool // after it
	}{
		{1000, 0, spaceAllocate, false, true},
		{1000, 0, spaceNothing, false, true},
		{100, 0, spaceNothing, false, true},
		{99, 0, spaceNothing, true, true},
		{119, 0, spaceNothing, true, true}, // on the brink: it stays low
		{120, 0, spaceNothing, false, true},
		{120, 21, spaceNothing, true, true}, // the snapshot has to fit twice
		{20, 0, spaceNothing, true, true},
		{19, 0, spaceRelease, true, false},
		{39, 0, spaceNothing, true, false}, // what the ballast held is free
		{20, 0, spaceNothing, true, false},
		{19, 0, spaceEnd, true, false},
		{119, 0, spaceNothing, true, false}, // no new one while it is low
		{121, 0, spaceAllocate, false, true},
	} {
		step := marks.judge(&s, c.free, c.snapshot)
		switch step {
		case spaceAllocate:
			s.held = true
		case spaceRelease:
			s.held = false
		}
		if step != c.want || s.low != c.low || s.held != c.held {
			t.Errorf("step %d, %d free: %v %+v, want %+v", i, c.free, step, s, c)
		}
	}
	none := spaceMarks{low: 100}
	if s := (spaceState{}); none.judge(&s, 0, 0) != spaceNothing || !s.low {
		t.Errorf("without a floor: %+v", s)
	}
}
