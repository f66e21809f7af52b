package sim

// drawLow lets disks run low and have room again, in the schedules that have that. It has a source of numbers of its own:
// what else a seed does stays as it is.
func (s *Sim) drawLow() {
	if s.lrng.IntN(40) != 0 {
		return
	}
	m := s.members[s.lrng.IntN(len(s.members))]
	switch {
	case !m.disk.low:
		s.do(Fault{At: s.Steps, Verb: "disk-low", A: m.ID})
	case m.disk.mode == diskOK:
		s.do(Fault{At: s.Steps, Verb: "disk-ok", A: m.ID})
	}
}
