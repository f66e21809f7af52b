package explore

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Action names one transition out of a state: meaningful to that state only.
type Action uint16

// State is one state of an ensemble. It is never changed: Next returns another one, which shares what is equal.
// It is used by one worker only, with everything that came from the same call of Model.Roots.
type State interface {
	// Actions appends the transitions that are possible here, always in the same order.
	Actions(dst []Action) []Action
	// Next carries out one of them. A nil State: it would leave the bounds. An error is a broken property.
	Next(a Action) (State, error)
	// Fingerprint is equal for states that have the same futures.
	Fingerprint() uint64
	// Describe is one line of a script: what identifies the action here, and behind a # what is good to know.
	Describe(a Action) string
}

// Model is a system to explore.
type Model interface {
	// Roots returns the initial states, for the use of one worker: always the same ones in the same order.
	Roots() ([]State, error)
	// String names the system and its bounds in one line.
	String() string
}

// Options bounds an exploration.
type Options struct {
	States  int // stop when so many distinct states are known; 0: when the frontier is exhausted
	Workers int // at least 1
	// Progress, if not nil, is called about every Every, from another goroutine.
	Progress func(Progress)
	Every    time.Duration
}

// Progress says how far an exploration is.
type Progress struct {
	States      int // distinct states found
	Expanded    int // of them, those whose transitions were all carried out
	Transitions int // carried out, those into known states included
	Outside     int // of them, those that left the bounds
	Replayed    int // carried out again to come back to a state
	Depth       int // transitions from a root to the states that are being expanded
	Bytes       int // held by fingerprints and the tree of paths
	Elapsed     time.Duration
}

// Frontier is the number of states found and not expanded.
func (p Progress) Frontier() int { return p.States - p.Expanded }

// String is one line.
func (p Progress) String() string {
	rate := 0.0
	if s := p.Elapsed.Seconds(); s > 0 {
		rate = float64(p.States) / s
	}
	return fmt.Sprintf("states %d, depth %d, frontier %d, transitions %d (%d out of bounds), %.0f states/s, %.0f s, %d MiB of fingerprints and paths",
		p.States, p.Depth, p.Frontier(), p.Transitions, p.Outside, rate, p.Elapsed.Seconds(), p.Bytes>>20)
}

// Result is the outcome of an exploration.
type Result struct {
	Progress
	// Exhausted: every reachable state within the bounds was found and expanded.
	Exhausted bool
	// Violation is nil, or the first broken property: no state nearer to a root breaks one.
	Violation *Violation
}

// Violation is a broken property and the shortest way to it.
type Violation struct {
	Err error
	// Script has one line per action, from the root on; see Replay.
	Script []string
}

// The tree of paths: state number n was found from parent[n] by action[n]. A root has no parent and its index as action.
// Six bytes a state are all that the frontier costs: a worker comes back to a state by carrying out its path again, and as
// states found from the same parent are neighbours, from one to the next only the last few transitions differ.
type tree struct {
	parent []uint32
	action []Action
}

const noParent = ^uint32(0)

func (t *tree) add(parent uint32, a Action) {
	t.parent = append(t.parent, parent)
	t.action = append(t.action, a)
}

// path returns the numbers from the root to n.
func (t *tree) path(n uint32, dst []uint32) []uint32 {
	dst = dst[:0]
	for ; n != noParent; n = t.parent[n] {
		dst = append(dst, n)
	}
	for i, j := 0, len(dst)-1; i < j; i, j = i+1, j-1 {
		dst[i], dst[j] = dst[j], dst[i]
	}
	return dst
}

// cursor comes back to states.
type cursor struct {
	tree     *tree
	roots    []State
	at       []uint32 // numbers of the states in stack
	stack    []State
	path     []uint32
	replayed int
}

func (c *cursor) seek(n uint32) (State, error) {
	c.path = c.tree.path(n, c.path)
	k := 0
	for k < len(c.at) && k < len(c.path) && c.at[k] == c.path[k] {
		k++
	}
	c.at, c.stack = c.at[:k], c.stack[:k]
	for _, m := range c.path[k:] {
		var s State
		if len(c.stack) == 0 {
			s = c.roots[c.tree.action[m]]
		} else {
			var err error
			s, err = c.stack[len(c.stack)-1].Next(c.tree.action[m])
			c.replayed++
			if err != nil || s == nil {
				return nil, fmt.Errorf("explore: the path to state %d does not come back to it: %w", n, errors.Join(err))
			}
		}
		c.at, c.stack = append(c.at, m), append(c.stack, s)
	}
	return c.stack[len(c.stack)-1], nil
}

// found is a new state, or a violation, of the layer being expanded.
type found struct {
	parent uint32
	action Action
}

// block is a run of neighbouring states that one worker expands.
type block struct {
	lo, hi uint32
	found  []found
	broken *found
	err    error
}

const blockSize = 256

// explorer is one run.
type explorer struct {
	opts    Options
	seen    table
	tree    tree
	began   time.Time
	depth   atomic.Int64
	counts  struct{ states, expanded, transitions, outside, replayed atomic.Int64 }
	workers []*cursor
}

// Run explores m breadth first. The error is a failure of the exploration itself, not of the system.
func Run(m Model, opts Options) (Result, error) {
	x := &explorer{opts: opts, began: time.Now()}
	for range max(1, opts.Workers) {
		roots, err := m.Roots()
		if err != nil {
			return Result{}, err
		}
		x.workers = append(x.workers, &cursor{tree: &x.tree, roots: roots})
	}
	for i, s := range x.workers[0].roots {
		if x.seen.add(s.Fingerprint()) {
			x.tree.add(noParent, Action(i))
			x.counts.states.Add(1)
		}
	}
	if opts.Progress != nil {
		stop := x.report()
		defer stop()
	}
	lo := 0
	for lo < len(x.tree.parent) {
		hi := len(x.tree.parent)
		if hi >= 1<<32-1 {
			return Result{}, errors.New("explore: more states than numbers")
		}
		broken, err := x.layer(uint32(lo), uint32(hi))
		if err != nil {
			return Result{Progress: x.progress()}, err
		}
		if broken != nil {
			v, err := x.violation(*broken)
			return Result{Progress: x.progress(), Violation: v}, err
		}
		if x.full() {
			break
		}
		lo = hi
		x.depth.Add(1)
	}
	r := Result{Progress: x.progress()}
	r.Exhausted = r.Frontier() == 0
	return r, nil
}

func (x *explorer) full() bool {
	return x.opts.States > 0 && int(x.counts.states.Load()) >= x.opts.States
}

// layer expands the states [lo, hi), all of the same depth, and adds what was found behind them, in the order of the parents.
func (x *explorer) layer(lo, hi uint32) (*found, error) {
	var blocks []*block
	for b := lo; b < hi; b += blockSize {
		blocks = append(blocks, &block{lo: b, hi: min(b+blockSize, hi)})
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for _, c := range x.workers {
		wg.Go(func() {
			for !x.full() {
				i := int(next.Add(1)) - 1
				if i >= len(blocks) {
					return
				}
				x.expand(c, blocks[i])
			}
		})
	}
	wg.Wait()
	for _, b := range blocks {
		if b.err != nil {
			return nil, b.err
		}
		if b.broken != nil {
			return b.broken, nil
		}
	}
	for _, b := range blocks {
		for _, f := range b.found {
			x.tree.add(f.parent, f.action)
		}
	}
	return nil, nil
}

// expand carries out every transition of a block's states.
func (x *explorer) expand(c *cursor, b *block) {
	var actions []Action
	c.replayed = 0
	transitions, outside := 0, 0
	for n := b.lo; n < b.hi && b.broken == nil; n++ {
		s, err := c.seek(n)
		if err != nil {
			b.err = err
			break
		}
		actions = s.Actions(actions[:0])
		for _, a := range actions {
			t, err := s.Next(a)
			transitions++
			if err != nil {
				b.broken = &found{n, a}
				break
			}
			if t == nil {
				outside++
				continue
			}
			if x.seen.add(t.Fingerprint()) {
				b.found = append(b.found, found{n, a})
			}
		}
	}
	x.counts.states.Add(int64(len(b.found)))
	x.counts.expanded.Add(int64(b.hi - b.lo))
	x.counts.transitions.Add(int64(transitions))
	x.counts.outside.Add(int64(outside))
	x.counts.replayed.Add(int64(c.replayed))
}

// violation carries out the path to a broken property once more, for its script.
func (x *explorer) violation(f found) (*Violation, error) {
	c := x.workers[0]
	s, err := c.seek(f.parent)
	if err != nil {
		return nil, err
	}
	script := c.script()
	script = append(script, s.Describe(f.action))
	_, broken := s.Next(f.action)
	if broken == nil {
		return nil, errors.New("explore: a violation did not happen again")
	}
	return &Violation{Err: broken, Script: script}, nil
}

// script describes the way to the state that seek came to last.
func (c *cursor) script() []string {
	var lines []string
	for i := 1; i < len(c.at); i++ {
		lines = append(lines, c.stack[i-1].Describe(c.tree.action[c.at[i]]))
	}
	if len(c.roots) > 1 {
		lines = append([]string{fmt.Sprintf("root %d", c.tree.action[c.at[0]])}, lines...)
	}
	return lines
}

func (x *explorer) progress() Progress {
	return Progress{
		States: int(x.counts.states.Load()), Expanded: int(x.counts.expanded.Load()), Transitions: int(x.counts.transitions.Load()),
		Outside: int(x.counts.outside.Load()), Replayed: int(x.counts.replayed.Load()), Depth: int(x.depth.Load()),
		Bytes: x.seen.bytes() + 6*int(x.counts.states.Load()), Elapsed: time.Since(x.began),
	}
}

// report calls Progress at intervals until the returned function is called.
func (x *explorer) report() (stop func()) {
	t := time.NewTicker(x.opts.Every)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-t.C:
				x.opts.Progress(x.progress())
			case <-done:
				return
			}
		}
	})
	return func() { t.Stop(); close(done); wg.Wait() }
}
