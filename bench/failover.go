package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"kvd/integration/cluster"
	"kvd/integration/history"
	"kvd/kv/client"
)

// Targets of the failover part: from the signal to the first acknowledged write at any survivor.
const (
	maxKillGap = 400 * time.Millisecond // SIGKILL, median
	maxStopGap = 2 * time.Second        // SIGSTOP, median
)

// failover kills the leader, then stops it, a number of times each, with one client per survivor that keeps one
// write outstanding and reconnects every 10 ms. At the end every acknowledged write must be on every member.
func (r *run) failover(ctx context.Context, rounds int) error {
	c, err := r.cluster(ctx, "failover", 3)
	if err != nil {
		return err
	}
	defer c.Stop()
	rec := history.NewRecorder()
	if err := prepare(ctx, c); err != nil {
		return err
	}
	var kills, stops []time.Duration
	for i := range rounds {
		gap, err := failoverRound(ctx, c, rec, fmt.Sprintf("kill%d", i), syscall.SIGKILL)
		if err != nil {
			return fmt.Errorf("SIGKILL round %d: %w\n%s", i+1, err, c.Logs(3000))
		}
		kills = append(kills, gap)
	}
	r.gap("SIGKILL of the leader to the first OK, median", maxKillGap, kills)
	for i := range max(rounds/2, 1) {
		gap, err := failoverRound(ctx, c, rec, fmt.Sprintf("stop%d", i), syscall.SIGSTOP)
		if err != nil {
			return fmt.Errorf("SIGSTOP round %d: %w\n%s", i+1, err, c.Logs(3000))
		}
		stops = append(stops, gap)
	}
	r.gap("SIGSTOP of the leader to the first OK, median", maxStopGap, stops)
	return r.verify(ctx, c, rec, "failover")
}

func (r *run) gap(name string, target time.Duration, gaps []time.Duration) {
	slices.Sort(gaps)
	median := gaps[len(gaps)/2]
	r.rep.add(os.Stderr, line{
		name:   name,
		target: fmt.Sprintf("<= %v", target),
		measured: fmt.Sprintf("%v (min %v, max %v, n=%d)", median.Round(time.Millisecond),
			gaps[0].Round(time.Millisecond), gaps[len(gaps)-1].Round(time.Millisecond), len(gaps)),
		met: median <= target,
	})
}

func prepare(ctx context.Context, c *cluster.Cluster) error {
	cl, err := dial(ctx, c.Servers())
	if err != nil {
		return err
	}
	defer func() { _ = cl.Close() }()
	return history.Prepare(ctx, cl)
}

// failoverRound signals the leader and returns the time to the first OK; then it brings the old leader back.
func failoverRound(ctx context.Context, c *cluster.Cluster, rec *history.Recorder, name string, sig syscall.Signal) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	leader, err := c.Leader(ctx)
	if err != nil {
		return 0, err
	}
	// One client per survivor. Each OK reports its time; the first after the signal counts.
	oks := make(chan time.Time, 1<<16)
	loop, stopLoop := context.WithCancel(ctx)
	var writers sync.WaitGroup
	defer writers.Wait()
	defer stopLoop()
	for _, m := range c.Members {
		if m == leader {
			continue
		}
		w := &history.Writer{
			Name:        fmt.Sprintf("%s-m%d", name, m.ID),
			Rec:         rec,
			CallTimeout: 10 * time.Second,
			LastOK: func() {
				select {
				case oks <- time.Now():
				default:
				}
			},
			Dial: func(ctx context.Context) (*client.Client, error) {
				dial, cancel := context.WithTimeout(ctx, 10*time.Second)
				defer cancel()
				return client.Dial(dial, m.Client, client.WithBackoff(10*time.Millisecond, 10*time.Millisecond))
			},
		}
		writers.Go(func() { w.Run(loop) })
	}
	// Both must be writing before the signal.
	for range 50 {
		select {
		case <-oks:
		case <-ctx.Done():
			return 0, errors.New("the clients do not get writes through before the signal")
		}
	}
	sent := time.Now()
	if err := leader.Signal(sig); err != nil {
		return 0, err
	}
	gap, err := longestGapEnd(ctx, sent, oks)
	if err != nil {
		return 0, err
	}
	stopLoop()
	writers.Wait()
	if sig == syscall.SIGSTOP {
		if err := leader.Signal(syscall.SIGCONT); err != nil {
			return 0, err
		}
	} else {
		leader.Kill()
		if err := leader.Start(); err != nil {
			return 0, err
		}
		if err := leader.WaitReady(ctx); err != nil {
			return 0, err
		}
	}
	return gap, waitFollower(ctx, leader)
}

// longestGapEnd returns the time from the signal to the end of the longest pause between OKs that began within a tenth of
// a second of it. Not simply to the first OK: a write that the old leader had committed may be reported a moment after the
// signal.
func longestGapEnd(ctx context.Context, sent time.Time, oks <-chan time.Time) (time.Duration, error) {
	const window = 100 * time.Millisecond
	last, longest, end := sent, time.Duration(-1), sent
	for last.Sub(sent) < window {
		select {
		case t := <-oks:
			if t.Before(sent) {
				continue
			}
			if pause := t.Sub(last); pause > longest {
				longest, end = pause, t
			}
			last = t
		case <-ctx.Done():
			return 0, errors.New("no write was acknowledged after the signal")
		}
	}
	return end.Sub(sent), nil
}

// waitFollower waits until a member serves as a follower.
func waitFollower(ctx context.Context, m *cluster.Member) error {
	for {
		if mode, err := m.Mode(ctx); err == nil && mode == "follower" {
			return nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("member %d does not follow: %w", m.ID, err)
		}
	}
}

// verify reads every member and checks the recording against it.
func (r *run) verify(ctx context.Context, c *cluster.Cluster, rec *history.Recorder, part string) error {
	problems := 0
	for _, m := range c.Members {
		cl, err := dial(ctx, m.Client)
		if err != nil {
			return err
		}
		nodes, err := history.Read(ctx, cl)
		_ = cl.Close()
		if err != nil {
			return err
		}
		for _, err := range rec.Check(nodes) {
			problems++
			fmt.Fprintf(os.Stderr, "  member %d: %v\n", m.ID, err)
		}
	}
	n := rec.Counts()
	r.rep.add(os.Stderr, line{
		name:     part + ": acknowledged writes missing or wrong, on any member",
		target:   "0",
		measured: fmt.Sprintf("%d (of %d ok, %d unknown, %d failed)", problems, n.OK, n.Unknown, n.Failed),
		met:      problems == 0,
	})
	return nil
}

// rolling restarts the members in turn under load and reports the longest time without an acknowledged write.
func (r *run) rolling(ctx context.Context) error {
	c, err := r.cluster(ctx, "rolling", 3)
	if err != nil {
		return err
	}
	defer c.Stop()
	if err := prepare(ctx, c); err != nil {
		return err
	}
	rec := history.NewRecorder()
	var gaps gapMeter
	loop, stop := context.WithCancel(ctx)
	var writers sync.WaitGroup
	for i := range 4 {
		w := &history.Writer{
			Name: fmt.Sprintf("roll%d", i), Rec: rec, CallTimeout: 10 * time.Second, LastOK: gaps.ok,
			Dial: func(ctx context.Context) (*client.Client, error) { return dial(ctx, c.Servers()) },
		}
		writers.Go(func() { w.Run(loop) })
	}
	err = func() error {
		defer writers.Wait()
		defer stop()
		for _, m := range c.Members {
			step, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			if err := errors.Join(pause(step, time.Second), m.Signal(syscall.SIGTERM)); err != nil {
				return err
			}
			if err := m.Wait(step); err != nil {
				return fmt.Errorf("member %d on SIGTERM: %w", m.ID, err)
			}
			if err := errors.Join(m.Start(), m.WaitReady(step)); err != nil {
				return err
			}
		}
		return pause(ctx, time.Second)
	}()
	if err != nil {
		return err
	}
	r.rep.info(os.Stderr, "longest gap without an OK, rolling restart of three under load", gaps.longest().Round(time.Millisecond).String())
	return r.verify(ctx, c, rec, "rolling restart")
}

// gapMeter measures the longest time between two acknowledged writes of anybody.
type gapMeter struct {
	mu   sync.Mutex
	last time.Time
	max  time.Duration
}

func (g *gapMeter) ok() {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.last.IsZero() {
		g.max = max(g.max, now.Sub(g.last))
	}
	g.last = now
}

func (g *gapMeter) longest() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.max
}
