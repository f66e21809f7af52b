package sim

import (
	"testing"

	"kvd/ensemble/replica"
	"kvd/kv"
	"kvd/zab/quorum"
)

// Helpers of directed tests in Go, for what is not a script of the catalogue.

// scene starts a scenario: all logs end at (1,5), all epochs are 1.
func scene(t *testing.T, opt Options) *Sim {
	t.Helper()
	s := NewScript(opt)
	t.Cleanup(func() {
		if s.failure != nil {
			t.Errorf("%v", s.failure)
		}
		if t.Failed() {
			trace := s.Trace()
			if n := len(trace); n > 20_000 {
				trace = trace[n-20_000:]
			}
			t.Logf("%s", trace)
		}
	})
	for _, m := range s.members {
		s.Given(Disk{Accepted: 1, Current: 1, Log: []Span{{1, 5}}}, m.ID)
	}
	s.GivenCommitted(1, kv.MakeZxid(1, 5))
	return s
}

// led starts everybody and waits until member want leads and everybody follows.
func led(t *testing.T, s *Sim, want quorum.MemberID) {
	t.Helper()
	s.StartAll()
	if !s.Until(100, s.recovered) || s.Leader().ID != want {
		t.Fatalf("member %d does not lead: %v; %s", want, s.failure, s.describe())
	}
}

func check(t *testing.T, ok bool, format string, args ...any) {
	t.Helper()
	if !ok {
		t.Fatalf(format, args...)
	}
}

// recovered ends the scenario: faults end, everybody comes back and agrees.
func recovered(t *testing.T, s *Sim) {
	t.Helper()
	s.Settle()
	if s.failure != nil {
		t.Fatal(s.failure)
	}
}

func everywhere(t *testing.T, s *Sim, v string, want bool) {
	t.Helper()
	for _, m := range s.members {
		if s.Has(m.ID, v) != want {
			t.Fatalf("member %d: /%s exists=%v, want %v", m.ID, v, !want, want)
		}
	}
}

// longSync makes members patient, so that a pause of the leader is not the end of its reign.
func longSync(_ quorum.MemberID, c *replica.Config) { c.SyncTicks = 1000 }
