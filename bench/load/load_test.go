package load_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"kvd/bench/load"
	"kvd/ensemble/ensembletest"
)

// fake is a store that answers at once, with one goroutine for all slots.
type fake struct {
	mu     sync.Mutex
	kinds  map[load.Kind]int
	names  map[string]bool
	twice  bool
	fails  bool
	slow   time.Duration
	answer chan func()
}

func newFake() *fake {
	f := &fake{kinds: map[load.Kind]int{}, names: map[string]bool{}, answer: make(chan func(), 1<<12)}
	go func() {
		for do := range f.answer {
			do()
		}
	}()
	return f
}

func (f *fake) Open(_ context.Context, c load.Config) (slots [][]load.Slot, err error) {
	for range c.Connections {
		var of []load.Slot
		for range c.Depth {
			of = append(of, fakeSlot{f})
		}
		slots = append(slots, of)
	}
	return slots, nil
}

func (f *fake) Close() error { return nil }

type fakeSlot struct{ f *fake }

func (s fakeSlot) Do(op load.Op, done func(error)) {
	f := s.f
	f.mu.Lock()
	f.kinds[op.Kind]++
	if op.Name != "" && op.Kind != load.KindDelete {
		f.twice = f.twice || f.names[op.Name]
		f.names[op.Name] = true
	}
	n := f.kinds[op.Kind]
	f.mu.Unlock()
	f.answer <- func() {
		if f.slow > 0 && n == 50 {
			time.Sleep(f.slow) // the store stalls once
		}
		if f.fails && n%2 == 0 {
			done(errors.New("refused"))
			return
		}
		done(nil)
	}
}

// marks counts the calls of a Marker.
type marks struct{ begins, ends int }

func (m *marks) Begin() { m.begins++ }
func (m *marks) End()   { m.ends++ }

func run(t *testing.T, s load.Store, c load.Config) load.Result {
	t.Helper()
	m := &marks{}
	r, err := load.Run(t.Context(), s, c, m, nil)
	if err != nil {
		t.Fatal(err)
	}
	if m.begins != 1 || m.ends != 1 {
		t.Errorf("%d begins, %d ends", m.begins, m.ends)
	}
	return r
}

// What slots ask for is what their workload says, and names are not used twice.
func TestPatterns(t *testing.T) {
	for _, w := range load.Workloads {
		f := newFake()
		r := run(t, f, load.Config{Workload: w, Connections: 2, Depth: 3, For: 50 * time.Millisecond})
		f.mu.Lock()
		k := f.kinds
		if r.Operations == 0 || r.Errors != 0 || f.twice {
			t.Errorf("%s: %+v, a name twice: %v", w, r, f.twice)
		}
		total := 0
		for _, n := range k {
			total += n
		}
		near := func(kind load.Kind, percent int) bool {
			return k[kind]*100 >= total*(percent-5) && k[kind]*100 <= total*(percent+5)
		}
		ok := map[load.Workload]bool{
			load.Set: near(load.KindSet, 100), load.Create: near(load.KindCreate, 100), load.Get: near(load.KindGet, 100),
			load.Delete: near(load.KindDelete, 50) && near(load.KindCreate, 50), load.Ephemeral: near(load.KindEphemeral, 50) && near(load.KindDelete, 50),
			load.Mixed90: near(load.KindGet, 90) && near(load.KindSet, 10), load.Mixed50: near(load.KindGet, 50) && near(load.KindSet, 50),
			load.Multi10: near(load.KindMulti, 100), load.Sessions: near(load.KindSession, 100), load.Lock: near(load.KindLock, 100), load.Fanout: near(load.KindFanout, 100),
		}[w]
		if !ok {
			t.Errorf("%s asks for %v", w, k)
		}
		f.mu.Unlock()
	}
}

// Errors are counted and are no operations.
func TestErrorsAreCounted(t *testing.T) {
	f := newFake()
	f.fails = true
	r := run(t, f, load.Config{Workload: load.Set, Connections: 2, Depth: 2, For: 50 * time.Millisecond})
	if r.Errors == 0 || r.Operations == 0 || r.FirstError != "refused" {
		t.Errorf("%+v", r)
	}
}

// In an open loop a store that stalls is charged for all that should have begun meanwhile; in a closed loop only for what was outstanding.
func TestCoordinatedOmission(t *testing.T) {
	const stall = 500 * time.Millisecond
	p99 := map[bool]float64{}
	for _, open := range []bool{false, true} {
		f := newFake()
		f.slow = stall
		c := load.Config{Workload: load.Set, Connections: 1, Depth: 1, For: time.Second}
		if open {
			c.Rate = 1000
		}
		r := run(t, f, c)
		p99[open] = r.P99
		if open && r.MissedStarts == 0 {
			t.Errorf("no request began late: %+v", r)
		}
		if r.Max < float64(stall.Microseconds()) {
			t.Errorf("open %v: the stall of %v is not in the maximum %v µs", open, stall, r.Max)
		}
	}
	if p99[true] < 3*p99[false] {
		t.Errorf("99th percentile %v µs in the open loop, %v µs in the closed one", p99[true], p99[false])
	}
}

// Every workload does its work on real members, as a driver process would.
func TestDriveRealMembers(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	e := ensembletest.Start(t, 3)
	for _, w := range load.Workloads {
		t.Run(string(w), func(t *testing.T) {
			c := load.Config{Workload: w, Connections: 4, Depth: 2, Size: 64, For: 300 * time.Millisecond, Servers: strings.Split(e.Servers(), ",")}
			if w == load.Set {
				c.LeaderOnly = true
			}
			var out bytes.Buffer
			if err := load.Drive(t.Context(), load.ZooKeeper(), c.Args(), &out); err != nil {
				t.Fatal(err)
			}
			said := strings.Split(strings.TrimSpace(out.String()), "\n")
			if len(said) < 3 || said[0] != load.LineBegin || said[len(said)-2] != load.LineEnd {
				t.Fatalf("%q", said)
			}
			var r load.Result
			if err := json.Unmarshal([]byte(said[len(said)-1]), &r); err != nil {
				t.Fatal(err)
			}
			if r.Operations == 0 || r.Errors != 0 || r.P50 <= 0 || r.P50 > r.P99 || r.P99 > r.Max || r.GeneratorCPU <= 0 {
				t.Errorf("%+v", r)
			}
		})
	}
}
