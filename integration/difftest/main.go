package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"kvd/integration/cluster"
)

func main() {
	seeds := flag.String("seeds", "1-20", "`range` of seeds")
	steps := flag.Int("steps", 500, "steps of each sequence")
	members := flag.String("members", "both", "1, 3 or both")
	seed := flag.Uint64("seed", 0, "run this seed alone")
	trace := flag.Bool("trace", false, "print every step")
	replay := flag.String("replay", "", "run the sequence in this `file`")
	against := flag.String("against", "kvd", "kvd, or zookeeper: ZooKeeper against itself")
	keep := flag.String("keep", "", "write the shortest differing sequence to this `file`")
	going := flag.Bool("keep-going", false, "go on with the next seed after a difference, without shrinking it")
	spoil := flag.String("spoil", "", "error, event or stat: spoil one of them on the way from kvd; the run must notice it")
	skip := flag.Int("spoil-skip", 0, "let so many through before")
	write := flag.Bool("write-divergence", false, "write the generated part of docs/divergence.md and exit")
	flag.Parse()
	if *write {
		if err := writeDivergence("docs/divergence.md"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o := options{steps: *steps, trace: *trace, same: *against == "zookeeper", keep: *keep, replay: *replay, going: *going, noShrink: *going}
	var err error
	if o.first, o.last, err = parseRange(*seeds); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if *seed != 0 {
		o.first, o.last = *seed, *seed
	}
	switch *members {
	case "1":
		o.shapes = []int{1}
	case "3":
		o.shapes = []int{3}
	default:
		o.shapes = []int{1, 3}
	}
	o.print = func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	var p *spoiler
	if *spoil != "" {
		if p, err = newSpoiler(*spoil, *skip); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		o.front, o.noShrink = p.front, true
	}
	err = compare(ctx, o)
	if p != nil {
		if err = p.verdict(err); err == nil {
			fmt.Printf("the spoiled %s was noticed\n", *spoil)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func parseRange(s string) (first, last uint64, err error) {
	a, b, ok := strings.Cut(s, "-")
	if !ok {
		b = a
	}
	first, err1 := strconv.ParseUint(a, 10, 64)
	last, err2 := strconv.ParseUint(b, 10, 64)
	if err := errors.Join(err1, err2); err != nil || first > last {
		return 0, 0, fmt.Errorf("bad range of seeds %q", s)
	}
	return first, last, nil
}

// options are what a run of the tester is told.
type options struct {
	first, last uint64 // seeds
	steps       int
	shapes      []int // members
	trace, same bool
	keep        string
	replay      string
	noShrink    bool
	going       bool   // to the next seed after a difference, without shrinking
	kvd         string // binary; "" builds it
	print       func(format string, args ...any)
	front       func(s *side) (func(), error) // put between the tester and kvd
	hits        map[string]int
}

// compare runs every seed in every shape.
func compare(ctx context.Context, o options) error {
	dir, err := workDir()
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if o.kvd == "" && !o.same {
		b, err := cluster.Build(dir)
		if err != nil {
			return err
		}
		o.kvd = b.Kvd
	}
	if o.hits == nil {
		o.hits = map[string]int{}
	}
	for _, n := range o.shapes {
		if err := o.shape(ctx, filepath.Join(dir, fmt.Sprint(n)), n); err != nil {
			return fmt.Errorf("%d members: %w", n, err)
		}
	}
	for _, r := range rules {
		o.print("rule %-28s decided %d times", r.name, o.hits[r.name])
	}
	return nil
}

// shape runs every seed against servers of one shape.
func (o options) shape(ctx context.Context, dir string, members int) error {
	p := &pair{same: o.same, hits: o.hits}
	starting, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var err error
	if p.sides[0], err = startZooKeeper(starting, filepath.Join(dir, "a"), members, 5+members); err != nil {
		return err
	}
	defer p.sides[0].stop()
	if o.same {
		p.sides[1], err = startZooKeeper(starting, filepath.Join(dir, "b"), members, 4+members)
	} else {
		p.sides[1], err = startKvd(starting, o.kvd, filepath.Join(dir, "b"), members)
	}
	if err != nil {
		return err
	}
	defer p.sides[1].stop()
	if o.front != nil {
		end, err := o.front(p.sides[1])
		if err != nil {
			return err
		}
		defer end()
	}
	if o.replay != "" {
		return o.replayed(ctx, p)
	}
	begun, steps, failed := time.Now(), 0, 0
	for seed := o.first; seed <= o.last; seed++ {
		done, err := o.sequence(ctx, p, seed)
		steps += done
		if err != nil && o.going && ctx.Err() == nil {
			o.print("seed %d: %v", seed, err)
			failed++
			continue
		}
		if err != nil {
			return fmt.Errorf("seed %d: %w", seed, err)
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d seeds show a difference", failed, o.last-o.first+1)
	}
	o.print("%d members: seeds %d-%d, %d steps, no difference, %.0f s", members, o.first, o.last, steps, time.Since(begun).Seconds())
	return nil
}

// sequence runs one seed.
func (o options) sequence(ctx context.Context, p *pair, seed uint64) (int, error) {
	r := newRunner(p, seed)
	if err := r.begin(); err != nil {
		return 0, err
	}
	g := newGenerator(r, seed)
	var steps []Step
	for i := range o.steps {
		if ctx.Err() != nil {
			return i, context.Cause(ctx)
		}
		s := g.next()
		steps = append(steps, s)
		if o.trace {
			o.print("%4d %v", i, s)
		}
		r.step = i
		if err := r.run(&s); err != nil {
			return i, o.failed(ctx, p, r, steps, err)
		}
	}
	return o.steps, r.end()
}
