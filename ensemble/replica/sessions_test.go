package replica

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"kvd/kv"
)

// TestWheelAgainstScan compares the wheel with a scan over all deadlines, over random adds, touches, time-out changes,
// removals and holds.
func TestWheelAgainstScan(t *testing.T) {
	for seed := range uint64(5) {
		rng := rand.New(rand.NewPCG(seed, 1))
		s := newSessions(50)
		deadlines := map[kv.SessionID]int64{}
		timeouts := map[kv.SessionID]int32{}
		full := func(id kv.SessionID) int64 { return s.now + 1 + int64((timeouts[id]+49)/50) }
		for range 2000 {
			id := kv.SessionID(1 + rng.IntN(50))
			switch rng.IntN(8) {
			case 0:
				timeout := int32(1 + rng.IntN(100_000)) // up to twice around the wheel
				if _, ok := deadlines[id]; !ok {
					timeouts[id] = timeout
				}
				s.add(id, [16]byte{}, timeout, 1)
				deadlines[id] = full(id)
			case 1:
				s.remove(id)
				delete(deadlines, id)
			case 2:
				timeout := int32(0)
				if rng.IntN(2) == 0 {
					timeout = int32(1 + rng.IntN(60_000))
				}
				_, ok := deadlines[id]
				if s.touch(id, timeout, 0) != ok {
					t.Fatalf("touch of %v: session there %v", id, ok)
				}
				if ok {
					if timeout != 0 {
						timeouts[id] = timeout
					}
					deadlines[id] = full(id)
				}
			case 3:
				s.held = rng.IntN(4) == 0
			default:
				for range 1 + rng.IntN(40) {
					got := s.tick(nil)
					var want []kv.SessionID
					for id, d := range deadlines {
						if d <= s.now {
							deadlines[id] = s.now + 1 // due again until it is removed
							if !s.held {
								want = append(want, id)
							}
						}
					}
					slices.Sort(want)
					if !slices.Equal(got, want) {
						t.Fatalf("seed %d tick %d: due %v, want %v", seed, s.now, got, want)
					}
				}
			}
		}
		n := 0
		for i := range s.wheel {
			n += len(s.wheel[i])
		}
		if n > 2000 {
			t.Errorf("the wheel holds %d entries for %d sessions", n, len(deadlines))
		}
	}
}

// TestExpiryStorm: ten thousand sessions that get their time-outs at one moment (S57) cost one pass.
func TestExpiryStorm(t *testing.T) {
	s := newSessions(50)
	for id := range kv.SessionID(10_000) {
		s.add(id+1, [16]byte{}, 4000, 0)
	}
	due := 0
	for range 4000 / 50 {
		due += len(s.tick(nil))
	}
	if due != 0 {
		t.Fatalf("%d sessions are due before their time-out", due)
	}
	due += len(s.tick(nil))
	if due != 10_000 {
		t.Fatalf("%d sessions are due", due)
	}
}

// Sessions that expire in one tick are one event, which names a few of them: clients must not be able to fill the log.
func TestExpiredSessionsAreOneEventATick(t *testing.T) {
	l := newLab(t, 1, nil)
	leader := l.leader()
	const n = 500
	for id := range kv.SessionID(n) {
		leader.r.lead.sessions.add(id+1, [16]byte{}, 4000, 1)
	}
	for range 4000/50 + 1 {
		l.tick(false)
	}
	var texts []string
	for _, e := range leader.events {
		if e.Kind == "session-expired" {
			texts = append(texts, e.Text)
		}
	}
	want := fmt.Sprintf("count=%d sessions=", n)
	if len(texts) != 1 || !strings.HasPrefix(texts[0], want) || strings.Count(texts[0], "0x") != namedExpired || !strings.HasSuffix(texts[0], ",...") {
		t.Errorf("got %q, want one event with %q", texts, want)
	}
	if got := expiredText([]kv.SessionID{1, 2}); got != "count=2 sessions=0x1,0x2" {
		t.Errorf("got %q", got)
	}
}

func BenchmarkSessionsTouch(b *testing.B) {
	s := newSessions(50)
	for id := range kv.SessionID(1000) {
		s.add(id+1, [16]byte{}, 4000, 1)
	}
	b.ReportAllocs()
	id := kv.SessionID(0)
	for b.Loop() {
		id = id%1000 + 1
		s.touch(id, 4000, 1)
	}
}
