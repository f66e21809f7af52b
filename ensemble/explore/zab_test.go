package explore

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// TestZabExhaustively explores all of a small scope: one write while one member leaves and joins again, and an election
// of another leader with one follower.
func TestZabExhaustively(t *testing.T) {
	for _, tc := range []struct {
		z       Zab
		atLeast int
	}{
		{Zab{Writes: 1, Follows: 1, Looks: 1}, 2_000},
		{Zab{Leads: 1, Follows: 1, Looks: 1}, 500},
		{Zab{Blank: true, Leads: 1, Follows: 1}, 50},
	} {
		r, err := Run(tc.z, Options{Workers: 2})
		if err != nil {
			t.Fatal(err)
		}
		if r.Violation != nil {
			t.Fatalf("%s: %v\n%s", tc.z, r.Violation.Err, strings.Join(r.Violation.Script, "\n"))
		}
		t.Logf("%s: %s", tc.z, r.Progress)
		if !r.Exhausted || r.States < tc.atLeast {
			t.Errorf("%s: exhausted %t with %d states, want at least %d", tc.z, r.Exhausted, r.States, tc.atLeast)
		}
		again, err := Run(tc.z, Options{Workers: 1})
		if err != nil {
			t.Fatal(err)
		}
		if again.States != r.States || again.Transitions != r.Transitions || again.Depth != r.Depth {
			t.Errorf("%s: one worker finds %d states by %d transitions, two find %d by %d", tc.z, again.States, again.Transitions, r.States, r.Transitions)
		}
	}
}

// TestZabMutants: each mistake is found, in a scope in which the real code is shown to be right (TestZabExhaustively, or here), and the
// path that is printed leads to it again.
func TestZabMutants(t *testing.T) {
	for _, tc := range []struct {
		name     string
		z        Zab
		mutate   func(*Zab)
		property string
	}{
		{"AckBeforeSync", Zab{Writes: 1, Outcomes: true}, func(z *Zab) { z.Mutations.AckBeforeSync = true }, "P8"},
		{"AckNewLeaderBeforeBatch", Zab{Blank: true, Leads: 1, Follows: 1}, func(z *Zab) { z.Mutations.AckNewLeaderBeforeBatch = true }, "P11"},
		{"TruncateAgainstCommitted", Zab{Writes: 1, Follows: 1, Looks: 1}, func(z *Zab) { z.Mutations.TruncateAgainstCommitted = true }, "P8"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sound, err := Run(tc.z, Options{Workers: 2})
			if err != nil || sound.Violation != nil || !sound.Exhausted {
				t.Fatalf("without the mistake: %v %+v", err, sound)
			}
			tc.mutate(&tc.z)
			checkFound(t, tc.z, tc.property)
		})
	}
}

// checkFound explores m, wants the property broken, and the printed path to break it again.
func checkFound(t *testing.T, m Model, property string) {
	t.Helper()
	r, err := Run(m, Options{Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	if r.Violation == nil {
		t.Fatalf("not noticed in %d states", r.States)
	}
	t.Logf("%v\n%s", r.Violation.Err, strings.Join(r.Violation.Script, "\n"))
	if !strings.HasPrefix(r.Violation.Err.Error(), property) {
		t.Errorf("noticed by %v, want %s", r.Violation.Err, property)
	}
	_, ended, err := Replay(m, r.Violation.Script)
	if !ended || !strings.HasSuffix(err.Error(), r.Violation.Err.Error()) {
		t.Errorf("replaying the path: ended %t, %v", ended, err)
	}
}

// TestEqualFingerprintsHaveEqualFutures: of every state that is reached by two paths, the successors have the same fingerprints,
// whichever path was taken. This is what makes forgetting sound.
func TestEqualFingerprintsHaveEqualFutures(t *testing.T) {
	for _, m := range []Model{Zab{Writes: 1, Leads: 1, Follows: 2, Looks: 2, Crashes: 1, Breaks: 1, Pings: 1}} {
		checkFutures(t, m, 3_000)
	}
}

func checkFutures(t *testing.T, m Model, states int) {
	t.Helper()
	futures := func(s State) []uint64 {
		var fps []uint64
		for _, a := range s.Actions(nil) {
			next, err := s.Next(a)
			if err != nil {
				t.Fatal(err)
			}
			if next == nil {
				fps = append(fps, 0)
				continue
			}
			fps = append(fps, next.Fingerprint())
		}
		slices.Sort(fps)
		return fps
	}
	roots, err := m.Roots()
	if err != nil {
		t.Fatal(err)
	}
	known := map[uint64][]uint64{}
	queue, twice := roots, 0
	for len(queue) > 0 && len(known) < states {
		s := queue[0]
		queue = queue[1:]
		for _, a := range s.Actions(nil) {
			next, err := s.Next(a)
			if err != nil {
				t.Fatal(err)
			}
			if next == nil {
				continue
			}
			f := futures(next)
			if before, ok := known[next.Fingerprint()]; !ok {
				known[next.Fingerprint()] = f
				queue = append(queue, next)
			} else if twice++; !slices.Equal(before, f) {
				t.Fatalf("%s: two paths to %016x have different futures; the last action of one is %s", m, next.Fingerprint(), s.Describe(a))
			}
		}
	}
	t.Logf("%s: %d states, %d reached again", m, len(known), twice)
	if twice < len(known)/2 {
		t.Errorf("only %d of %d states were reached again", twice, len(known))
	}
}

// TestStepsDoNotChangeTheirState: a state and what it shares with its successors stays as it was, whatever is done from it, and
// a clone of a member has its form.
func TestStepsDoNotChangeTheirState(t *testing.T) {
	roots, err := Zab{Writes: 1, Leads: 1, Follows: 2, Looks: 1, Crashes: 1}.Roots()
	if err != nil {
		t.Fatal(err)
	}
	s := roots[0].(*world)
	for i := range 60 {
		form := func() []byte {
			var b []byte
			for k := range s.env.members.Voters {
				b = s.m[k].form(b)
				if m := s.m[k]; m.p != nil {
					c := *m
					c.p = m.p.Clone(m.disk)
					if !bytes.Equal(c.form(nil), m.form(nil)) {
						t.Fatalf("step %d: the clone of member %d has another form", i, m.id)
					}
				}
			}
			return b
		}
		before, fp := form(), s.Fingerprint()
		actions := s.Actions(nil)
		if len(actions) == 0 {
			break
		}
		var next *world
		for k, a := range actions {
			n, err := s.Next(a)
			if err != nil {
				t.Fatal(err)
			}
			if n != nil && (next == nil || k == i%len(actions)) {
				next = n.(*world)
			}
		}
		if !bytes.Equal(before, form()) || fp != s.Fingerprint() {
			t.Fatalf("step %d changed the state that it began at", i)
		}
		s = next
	}
}
