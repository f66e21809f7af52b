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

func main() {
	schedules := flag.Int("schedules", 1000, "random schedules to run")
	first := flag.Uint64("seed", 1, "first seed")
	steps := flag.Int("steps", 500, "events of each schedule before the faults end")
	members := flag.Int("members", 0, "voters; 0: 3 or 5, by seed")
	workers := flag.Int("workers", runtime.GOMAXPROCS(0), "schedules at a time")
	trace := flag.Bool("trace", false, "print everything that happens (use with -schedules 1)")
	keepGoing := flag.Bool("keep-going", false, "count all failures instead of stopping at ten")
	mutants := flag.Bool("mutants", false, "print how many seeds each deliberate mistake needs to be caught, and do nothing else")
	flag.Parse()
	if *mutants {
		os.Exit(hunt(*first, *steps))
	}

	began := time.Now()
	var (
		mu                                    sync.Mutex
		wg                                    sync.WaitGroup
		next                                  = *first
		done, failed                          int
		events, committed, epochs, ops, snaps int
		byProperty                            = map[string]int{}
		messages                              = map[string]int{}
		happened                              = map[string]int{}
		recovery                              []slow
	)
	for range max(1, *workers) {
		wg.Go(func() {
			for {
				mu.Lock()
				if next >= *first+uint64(*schedules) || (failed >= 10 && !*keepGoing) {
					mu.Unlock()
					return
				}
				seed := next
				next++
				mu.Unlock()
				r := sim.Run(sim.Schedule{Seed: seed, Steps: *steps, Members: *members, Trace: *trace})
				mu.Lock()
				done++
				events += r.Steps
				committed += r.Committed
				epochs += r.Epochs
				ops += r.Ops
				snaps += r.Snaps
				for k, n := range r.Messages {
					messages[k] += n
				}
				recovery = append(recovery, slow{r.Recovery, seed})
				for k, n := range r.Events {
					happened[k] += n
				}
				if *trace {
					fmt.Printf("%s", r.Trace)
				}
				if r.Err != nil {
					failed++
					property, _, _ := strings.Cut(r.Err.Error(), " ")
					byProperty[property]++
					fmt.Printf("seed %d: %v\n  replay: go run ./ensemble/sim/run -schedules 1 -steps %d -members %d -seed %d -trace\n", seed, r.Err, *steps, *members, seed)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	fmt.Printf("%d schedules, %d events, %d epochs established, %d transactions committed, %d client operations, %d snapshots installed, %d failed, %.1f s\n",
		done, events, epochs, committed, ops, snaps, failed, time.Since(began).Seconds())
	slices.SortFunc(recovery, func(a, b slow) int { return a.ticks - b.ticks })
	if n := len(recovery); n > 0 {
		fmt.Printf("recovery in ticks: median %d, 99%% %d, worst %v\n", recovery[n/2].ticks, recovery[n*99/100].ticks, recovery[max(0, n-5):])
	}
	fmt.Println("messages:", messages)
	fmt.Println("events:", happened)
	if failed > 0 {
		fmt.Println("failures by property:", byProperty)
		os.Exit(1)
	}
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
