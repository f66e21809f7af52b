package sim

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"kvd/kv"
	"kvd/zab/quorum"
)

// Fault is one thing that is done to an ensemble, or undone. A schedule is a seed and a list of them: the seed decides what
// time everything takes and what clients do, the list what goes wrong. So a list can be cut down without another one
// becoming true in its place.
type Fault struct {
	// At is the number of events before it.
	At int
	// Verb is one of those of faultVerbs, A and B the members it is about, N and M what else it needs.
	Verb string
	A, B quorum.MemberID
	N, M int64
}

// String is the fault as it stands in a file.
func (f Fault) String() string {
	return fmt.Sprintf("at %d %s %d %d %d %d", f.At, f.Verb, f.A, f.B, f.N, f.M)
}

// faultVerbs carry faults out. What makes no sense in the state that the ensemble is in does nothing.
var faultVerbs = map[string]func(s *Sim, f *Fault){
	"crash":  func(s *Sim, f *Fault) { s.Crash(f.A) },
	"start":  func(s *Sim, f *Fault) { s.startIfDown(f.A) },
	"pause":  func(s *Sim, f *Fault) { s.Pause(f.A) },
	"resume": func(s *Sim, f *Fault) { s.Resume(f.A) },
	"shutdown": func(s *Sim, f *Fault) {
		if m := s.member(f.A); m.Up && !m.paused {
			s.logf("shutdown %d", m.ID)
			m.rep.Shutdown()
			m.run()
		}
	},
	"crash-at": func(s *Sim, f *Fault) {
		after := f.M
		s.CrashAt(f.A, func(p Point, _ *Message) bool {
			if p != Point(f.N) {
				return false
			}
			after--
			return after < 0
		})
	},
	"cut":        func(s *Sim, f *Fault) { s.Cut(f.A, f.B) },
	"cut-both":   func(s *Sim, f *Fault) { s.CutBoth(f.A, f.B) },
	"isolate":    func(s *Sim, f *Fault) { s.Isolate(f.A) },
	"heal":       func(s *Sim, _ *Fault) { s.Heal() },
	"drop-links": func(s *Sim, f *Fault) { s.DropLinks(f.A, f.B) },
	"disk-hang":  func(s *Sim, f *Fault) { s.DiskHang(f.A) },
	"disk-fail":  func(s *Sim, f *Fault) { s.DiskFail(f.A) },
	"disk-full":  func(s *Sim, f *Fault) { s.DiskFull(f.A) },
	"disk-low":   func(s *Sim, f *Fault) { s.DiskLow(f.A) },
	"disk-ok":    func(s *Sim, f *Fault) { s.DiskOK(f.A) },
	"clock":      func(s *Sim, f *Fault) { s.Clock(f.A, f.N) },
	"snapshot": func(s *Sim, f *Fault) {
		if m := s.member(f.A); m.Up && !m.paused {
			s.TakeSnapshot(f.A) // and drop the log up to it: whoever is behind needs a SNAP
		}
	},
	"slow-applier":  func(s *Sim, f *Fault) { s.HoldApply(f.A) },
	"applier-ok":    func(s *Sim, f *Fault) { s.releaseIfHeld(f.A) },
	"slow-streams":  func(s *Sim, f *Fault) { s.SlowStreams(int(f.N)) },
	"wipe":          func(s *Sim, f *Fault) { s.lose(f.A, func() { s.Wipe(f.A, f.N != 0) }) },
	"damage":        func(s *Sim, f *Fault) { s.lose(f.A, func() { s.Damage(f.A, s.fromTheEnd(f.A, int(f.N))) }) },
	"wrong-tree":    func(s *Sim, f *Fault) { s.spoilOne(f.A) },
	"wrong-cluster": func(s *Sim, f *Fault) { s.Inject(f.B, f.A, byte(f.N), []byte{byte(f.M), 1, 2, 3}) },
}

func (s *Sim) startIfDown(id quorum.MemberID) {
	if !s.member(id).Up {
		s.Start(id)
	}
}

func (s *Sim) releaseIfHeld(id quorum.MemberID) {
	if s.member(id).applyHeld {
		s.ReleaseApply(id)
	}
}

// lose makes a member forget something.
func (s *Sim) lose(id quorum.MemberID, how func()) {
	if !s.bearable(id) {
		return
	}
	s.Crash(id)
	how()
}

// bearable reports whether the others are a quorum without the member, and nobody else has forgotten something or is about to.
func (s *Sim) bearable(id quorum.MemberID) bool {
	for _, o := range s.members {
		if o.disk.unknown || o.spoiled != 0 {
			return false
		}
	}
	return s.config.HasQuorum(func(o quorum.MemberID) bool { return o != id })
}

// fromTheEnd is the zxid of the n-th entry from the end of a member's log, 0 if there are not so many.
func (s *Sim) fromTheEnd(id quorum.MemberID, n int) kv.Zxid {
	d := &s.member(id).disk.content
	if n <= 0 || n > len(d.entries) {
		return 0
	}
	return d.entries[len(d.entries)-n].Zxid
}

// spoilOne makes the tree of a running member differ, as far as the others can tell.
func (s *Sim) spoilOne(id quorum.MemberID) {
	if m := s.member(id); m.Up && s.bearable(id) {
		s.Spoil(id)
	}
}

// do carries one fault out and keeps it.
func (s *Sim) do(f Fault) {
	f.At = s.Steps
	s.faults = append(s.faults, f)
	s.happened["fault:"+f.Verb]++
	faultVerbs[f.Verb](s, &f)
}

// draw chooses what goes wrong next, or is undone.
func (s *Sim) draw() {
	r := s.frng
	pick := func() *Member { return s.members[r.IntN(len(s.members))] }
	m, o := pick(), pick()
	if l := s.Leader(); l != nil && r.IntN(3) == 0 {
		m = l
	}
	one := func(verb string) { s.do(Fault{Verb: verb, A: m.ID}) }
	pair := func(verb string) {
		if m != o {
			s.do(Fault{Verb: verb, A: m.ID, B: o.ID})
		}
	}
	switch r.IntN(28) {
	case 0, 1, 2:
		one("crash")
	case 3, 4, 5, 6:
		for _, x := range s.members {
			if !x.Up && r.IntN(2) == 0 {
				s.do(Fault{Verb: "start", A: x.ID})
			}
		}
	case 7:
		one("pause")
	case 8, 9:
		for _, x := range s.members {
			if x.paused {
				s.do(Fault{Verb: "resume", A: x.ID})
			}
		}
	case 10:
		pair("cut")
	case 11:
		pair("cut-both")
	case 12:
		one("isolate")
	case 13, 14:
		one("heal")
	case 15:
		pair("drop-links")
	case 16:
		one([]string{"disk-hang", "disk-fail", "disk-full"}[r.IntN(3)])
	case 17, 18:
		for _, x := range s.members {
			if x.disk.mode != diskOK {
				s.do(Fault{Verb: "disk-ok", A: x.ID})
			}
		}
	case 19, 20:
		s.do(Fault{Verb: "crash-at", A: m.ID, N: r.Int64N(4), M: r.Int64N(6)})
	case 21, 22:
		one("snapshot")
	case 23:
		if r.IntN(4) > 0 {
			one("shutdown")
			return
		}
		for _, x := range s.members { // the power goes
			s.do(Fault{Verb: "crash", A: x.ID})
		}
	case 24:
		s.drawLoss(m)
	case 25:
		if ms := r.Int64N(200_000) - 100_000; s.clocks {
			s.do(Fault{Verb: "clock", A: m.ID, N: ms})
		}
	case 26:
		if held := r.IntN(2) == 0; held {
			one("slow-applier")
			return
		}
		for _, x := range s.members {
			if x.applyHeld {
				s.do(Fault{Verb: "applier-ok", A: x.ID})
			}
		}
	case 27:
		if r.IntN(2) == 0 {
			s.do(Fault{Verb: "slow-streams", N: r.Int64N(4) * r.Int64N(4)})
		} else if m != o {
			s.do(Fault{Verb: "wrong-cluster", A: m.ID, B: o.ID, N: r.Int64N(3), M: r.Int64N(256)})
		}
	}
}

// rowOf names the row of the synchronization table (zab-rules c) that an event "sync" speaks of.
func rowOf(text string) string {
	_, row, _ := strings.Cut(text, "row=")
	n, kind, _ := strings.Cut(row, " ")
	kind, _, _ = strings.Cut(kind, " ")
	return n + " " + kind
}

// drawLoss has a member forget something, in schedules that have such faults.
func (s *Sim) drawLoss(m *Member) {
	if !s.wipes {
		return
	}
	switch r := s.frng; r.IntN(5) {
	case 0, 1:
		s.do(Fault{Verb: "wipe", A: m.ID, N: r.Int64N(2)})
	case 2:
		s.do(Fault{Verb: "damage", A: m.ID, N: 1 + r.Int64N(5)})
	case 3, 4:
		s.do(Fault{Verb: "wrong-tree", A: m.ID})
	}
}

// WriteTo writes a schedule as a file that ParseSchedule reads.
func (c *Schedule) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "schedule seed=%d steps=%d members=%d", c.Seed, c.Steps, c.Members)
	if !c.Plain {
		b.WriteString(" watches")
	}
	b.WriteByte('\n')
	for i := range c.Faults {
		fmt.Fprintf(&b, "%v\n", c.Faults[i])
	}
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}

// ParseSchedule reads a schedule that WriteTo wrote. Empty lines and those that begin with # are skipped.
func ParseSchedule(r io.Reader) (c Schedule, err error) {
	in := bufio.NewScanner(r)
	for n := 1; in.Scan(); n++ {
		line := strings.TrimSpace(in.Text())
		var f Fault
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
			continue
		case strings.HasPrefix(line, "schedule "):
			line, watches := strings.CutSuffix(line, " watches")
			c.Plain = !watches
			_, err = fmt.Sscanf(line, "schedule seed=%d steps=%d members=%d", &c.Seed, &c.Steps, &c.Members)
		default:
			if _, err = fmt.Sscanf(line, "at %d %s %d %d %d %d", &f.At, &f.Verb, &f.A, &f.B, &f.N, &f.M); err == nil && faultVerbs[f.Verb] == nil {
				err = fmt.Errorf("%q is no fault", f.Verb)
			}
			c.Faults = append(c.Faults, f)
		}
		if err != nil {
			return c, fmt.Errorf("line %d: %q: %w", n, line, err)
		}
	}
	c.Scripted = true
	return c, in.Err()
}
