package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

// attempt runs a sequence from its beginning on the same servers. It returns the difference, nil if there is none.
func attempt(p *pair, seed uint64, steps []Step) (*runner, *difference, error) {
	r := newRunner(p, seed)
	err := r.begin()
	for i := 0; i < len(steps) && err == nil; i++ {
		r.step = i
		s := steps[i]
		err = r.run(&s)
	}
	if e := r.end(); err == nil {
		err = e
	}
	var d *difference
	if errors.As(err, &d) {
		return r, d, nil
	}
	return r, nil, err
}

// shrink leaves out steps, then single requests, as long as the sequence still differs.
func shrink(ctx context.Context, p *pair, seed uint64, steps []Step) ([]Step, *difference) {
	_, best, err := attempt(p, seed, steps)
	if best == nil || err != nil {
		return steps, nil
	}
	steps = steps[:best.step+1]
	try := func(candidate []Step) bool {
		if ctx.Err() != nil {
			return false
		}
		_, d, err := attempt(p, seed, candidate)
		if err != nil || d == nil {
			return false
		}
		steps, best = candidate[:d.step+1], d
		return true
	}
	for size := max(1, len(steps)/2); ; size /= 2 {
		for from := len(steps) - 1 - size; from > -size; {
			lo := max(from, 0)
			candidate := append(append([]Step{}, steps[:lo]...), steps[min(lo+size, len(steps)-1):]...)
			before := len(steps)
			if !try(candidate) || len(steps) == before {
				from -= size
			} else {
				from = min(from, len(steps)-1) - size
			}
		}
		if size <= 1 {
			break
		}
	}
	for i := len(steps) - 1; i >= 0; i-- {
		for k := len(steps[min(i, len(steps)-1)].Requests) - 1; k >= 0 && i < len(steps); k-- {
			if k >= len(steps[i].Requests) || len(steps[i].Requests) < 2 {
				continue
			}
			candidate := append([]Step{}, steps...)
			s := candidate[i]
			s.Requests = append(append([]Request{}, s.Requests[:k]...), s.Requests[k+1:]...)
			candidate[i] = s
			try(candidate)
		}
	}
	return steps, best
}

// failed reports a difference with the shortest sequence that still shows one.
func (o options) failed(ctx context.Context, p *pair, r *runner, steps []Step, err error) error {
	var d *difference
	if !errors.As(err, &d) {
		return fmt.Errorf("step %d, %v: %w\n%s%s", len(steps)-1, steps[len(steps)-1], err, p.sides[0].logs(), p.sides[1].logs())
	}
	_ = r.end()
	var b strings.Builder
	fmt.Fprintf(&b, "%v\n    in: %v\nreplay: go run ./integration/difftest --seed %d --steps %d --members %d --trace\n",
		d, steps[len(steps)-1], r.seed, len(steps), len(p.sides[0].addrs))
	if o.noShrink {
		return reported{d, b.String()}
	}
	short, sd := shrink(ctx, p, r.seed, steps)
	if sd == nil {
		b.WriteString("it did not show again when the sequence was run a second time\n")
		return reported{d, b.String()}
	}
	fmt.Fprintf(&b, "shortest sequence, %d steps:\n", len(short))
	for i, s := range short {
		fmt.Fprintf(&b, "%4d %v\n", i, s)
	}
	fmt.Fprintf(&b, "which gives %v\n", sd)
	if o.keep != "" {
		text, err := json.MarshalIndent(saved{r.seed, short}, "", " ")
		if err == nil {
			err = os.WriteFile(o.keep, text, 0o644)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "replay: go run ./integration/difftest --members %d --replay %s\n", len(p.sides[0].addrs), o.keep)
	}
	return reported{d, b.String()}
}

// reported is a difference with all that is to be said of it.
type reported struct {
	d    *difference
	text string
}

func (r reported) Error() string { return r.text }
func (r reported) Unwrap() error { return r.d }

// saved is a sequence in a file.
type saved struct {
	Seed  uint64
	Steps []Step
}

// replayed runs the sequence of a file.
func (o options) replayed(ctx context.Context, p *pair) error {
	b, err := os.ReadFile(o.replay)
	if err != nil {
		return err
	}
	var s saved
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("%s: %w", o.replay, err)
	}
	for i, st := range s.Steps {
		o.print("%4d %v", i, st)
	}
	_, d, err := attempt(p, s.Seed, s.Steps)
	if d != nil {
		return d
	}
	return err
}
