package sim

import (
	"slices"
	"strings"
)

// Shrink cuts a failing schedule down: fewer faults, and no event after the failure. What it returns fails with the same
// property, and every single fault in it is needed; tries bounds the schedules that are run. r is the result of c.
func Shrink(c Schedule, r Result, tries int) (Schedule, Result) {
	want := property(r.Err)
	c.Scripted, c.Faults, c.Members, c.Trace = true, r.Faults, r.Members, false
	best := r
	run := func(c Schedule) bool {
		if tries--; tries < 0 {
			return false
		}
		if got := Run(c); got.Err != nil && property(got.Err) == want {
			best = got
			return true
		}
		return false
	}
	if !run(c) {
		return c, r // it needs what a list of faults does not say
	}
	if s := c; best.Steps < c.Steps { // nothing later matters
		s.Steps = best.Steps
		if run(s) {
			c = s
		}
	}
	for size := (len(c.Faults) + 1) / 2; size > 0; {
		removed := false
		for from := 0; from < len(c.Faults); {
			s := c
			s.Faults = slices.Concat(c.Faults[:from], c.Faults[min(from+size, len(c.Faults)):])
			if run(s) {
				c, removed = s, true
			} else {
				from += size
			}
		}
		if !removed || size > 1 {
			size /= 2
		}
	}
	return c, best
}

// property is the name of the property that broke.
func property(err error) string {
	p, _, _ := strings.Cut(err.Error(), " ")
	return p
}
