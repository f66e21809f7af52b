// Command run carries out random schedules of the simulator and counts what came of them. On a broken property it prints
// the seed and the line that replays it, and exits non-zero. With -mutants it prints what the checks are worth.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"kvd/ensemble/sim"
)

// slow is a schedule's recovery, and the seed to look at if it was slow.
type slow struct {
	ticks int
	seed  uint64
}

var (
	schedules = flag.Int("schedules", 1000, "random schedules to run")
	duration  = flag.Duration("for", 0, "run random schedules for this long instead of a number of them")
	first     = flag.Uint64("seed", 1, "first seed")
	steps     = flag.Int("steps", 500, "events of each schedule before the faults end")
	members   = flag.Int("members", 0, "voters; 0: 1 to 7, mostly 3 or 5, by seed")
	workers   = flag.Int("workers", runtime.GOMAXPROCS(0), "schedules at a time")
	trace     = flag.Bool("trace", false, "print everything that happens (use with -schedules 1 or -script)")
	keepGoing = flag.Bool("keep-going", false, "count all failures instead of stopping at ten")
	shrink    = flag.Int("shrink", 2000, "runs that may be spent on cutting a failing schedule down; 0: none")
	script    = flag.String("script", "", "run the schedule in this `FILE`, as a failure prints it")
	mutants   = flag.Bool("mutants", false, "print how many seeds each deliberate mistake needs to be caught, and do nothing else")
)

func main() {
	flag.Parse()
	switch {
	case *mutants:
		os.Exit(hunt(*first, *steps))
	case *script != "":
		os.Exit(replay(*script))
	}
	t := &totals{began: time.Now(), byProperty: map[string]int{}, messages: map[string]int{}, happened: map[string]int{}}
	next := *first
	more := func() (seed uint64, ok bool) {
		t.mu.Lock()
		defer t.mu.Unlock()
		switch {
		case t.failed >= 10 && !*keepGoing:
			return 0, false
		case *duration > 0 && time.Since(t.began) >= *duration, *duration == 0 && next >= *first+uint64(*schedules):
			return 0, false
		}
		next++
		return next - 1, true
	}
	var wg sync.WaitGroup
	for range max(1, *workers) {
		wg.Go(func() {
			for seed, ok := more(); ok; seed, ok = more() {
				c := sim.Schedule{Seed: seed, Steps: *steps, Members: *members, Trace: *trace}
				r := sim.Run(c)
				t.add(&r)
				if r.Err != nil {
					t.report(c, r)
				}
			}
		})
	}
	stop := t.progress(time.Minute)
	wg.Wait()
	stop()
	t.print()
	if t.failed > 0 {
		os.Exit(1)
	}
}

// totals is what came of all schedules.
type totals struct {
	mu    sync.Mutex
	began time.Time

	done, failed                          int
	events, committed, epochs, ops, snaps int
	byProperty, messages, happened        map[string]int
	recovery                              []slow
}

func (t *totals) add(r *sim.Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done++
	t.events += r.Steps
	t.committed += r.Committed
	t.epochs += r.Epochs
	t.ops += r.Ops
	t.snaps += r.Snaps
	for k, n := range r.Messages {
		t.messages[k] += n
	}
	for k, n := range r.Events {
		t.happened[k] += n
	}
	if t.recovery = append(t.recovery, slow{r.Recovery, r.Seed}); len(t.recovery) > 1<<20 {
		t.recovery = t.recovery[1<<19:] // of an hour's run the newest are enough
	}
	if *trace {
		fmt.Printf("%s", r.Trace)
	}
}

// report prints a failure, the line that replays it, and the shortest list of faults that still leads to it.
func (t *totals) report(c sim.Schedule, r sim.Result) {
	property, _, _ := strings.Cut(r.Err.Error(), " ")
	t.mu.Lock()
	t.failed++
	t.byProperty[property]++
	fmt.Printf("seed %d: %v\n  replay: go run ./ensemble/sim/run -schedules 1 -steps %d -members %d -seed %d -trace\n", r.Seed, r.Err, c.Steps, c.Members, r.Seed)
	t.mu.Unlock()
	if *shrink == 0 {
		return
	}
	short, got := sim.Shrink(c, r, *shrink)
	var b strings.Builder
	_, _ = short.WriteTo(&b) // a Builder takes everything
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Printf("  shortest found (-script FILE): %v\n    %s\n", got.Err, strings.ReplaceAll(strings.TrimSpace(b.String()), "\n", "\n    "))
}

// progress prints a line now and then, to stderr, until stop is called.
func (t *totals) progress(every time.Duration) (stop func()) {
	ticker, done := time.NewTicker(every), make(chan struct{})
	go func() {
		for {
			select {
			case <-ticker.C:
				t.mu.Lock()
				fmt.Fprintf(os.Stderr, "%v: %d schedules, %d events, %d failed\n", time.Since(t.began).Round(time.Second), t.done, t.events, t.failed)
				t.mu.Unlock()
			case <-done:
				return
			}
		}
	}()
	return func() {
		ticker.Stop()
		close(done)
	}
}

func (t *totals) print() {
	fmt.Printf("%d schedules, %d events, %d epochs established, %d transactions committed, %d client operations, %d snapshots installed, %d failed, %.1f s\n",
		t.done, t.events, t.epochs, t.committed, t.ops, t.snaps, t.failed, time.Since(t.began).Seconds())
	slices.SortFunc(t.recovery, func(a, b slow) int { return a.ticks - b.ticks })
	if n := len(t.recovery); n > 0 {
		fmt.Printf("recovery in ticks: median %d, 99%% %d, worst %v\n", t.recovery[n/2].ticks, t.recovery[n*99/100].ticks, t.recovery[max(0, n-5):])
	}
	faults := map[string]int{}
	for k, n := range t.happened {
		if verb, ok := strings.CutPrefix(k, "fault:"); ok {
			faults[verb] = n
			delete(t.happened, k)
		}
	}
	fmt.Println("faults:", faults)
	fmt.Println("messages:", t.messages)
	fmt.Println("events:", t.happened)
	if t.failed > 0 {
		fmt.Println("failures by property:", t.byProperty)
	}
}

// replay runs the schedule in a file and returns the exit code.
func replay(name string) int {
	f, err := os.Open(name)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	defer f.Close()
	c, err := sim.ParseSchedule(f)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 2
	}
	c.Trace = *trace
	r := sim.Run(c)
	fmt.Printf("%s", r.Trace)
	if r.Err != nil {
		fmt.Println(r.Err)
		return 1
	}
	fmt.Printf("%d events, %d committed, nothing broken\n", r.Steps, r.Committed)
	return 0
}

// hunt prints the table of mutants and returns the exit code.
func hunt(first uint64, steps int) (code int) {
	fmt.Println("| mistake | seeds | caught by |")
	fmt.Println("|---|---|---|")
	for _, m := range sim.Mutants() {
		n, found := m.Hunt(first, steps)
		property := "nobody"
		if found == nil {
			code = 1
		} else {
			property, _, _ = strings.Cut(found.Err.Error(), " ")
		}
		fmt.Printf("| %s | %d | %s |\n", m.Name, n, property)
	}
	return code
}
