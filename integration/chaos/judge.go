package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"kvd/integration/cluster"
	"kvd/integration/history"
	"kvd/kv/client"
	"kvd/kv/wire"
)

// Clients beside the --writers: the classic writers are among them.
const (
	plainWriters = 4
	lockers      = 6
	watchers     = 4
	locks        = 3
)

// sessionTimeout is short enough that pauses and abandoned sessions expire some.
const sessionTimeout = 5 * time.Second

// work is the clients and what they record.
type work struct {
	rec      *history.Recorder
	load     *history.Load
	observer *history.Observer
	dial     history.Dial
	done     atomic.Int64
}

// newWork makes the nodes that the clients need.
func newWork(ctx context.Context, s *stage, o options) (*work, error) {
	c, err := client.Dial(ctx, s.Servers())
	if err != nil {
		return nil, err
	}
	err = history.Prepare(ctx, c)
	_ = c.Close()
	if err != nil {
		return nil, err
	}
	lies, err := planted(o.plant)
	if err != nil {
		return nil, err
	}
	w := &work{rec: history.NewRecorder()}
	w.dial = func(ctx context.Context) (*client.Client, error) {
		dial, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		return client.Dial(dial, s.Servers(), append([]client.Option{
			client.WithSessionTimeout(sessionTimeout),
			client.WithBackoff(5*time.Millisecond, 100*time.Millisecond), client.WithConnectTimeout(time.Second),
		}, lies...)...)
	}
	count := func() { w.done.Add(1) }
	w.load = &history.Load{Dial: w.dial, Slots: max(1, o.writers/2), Done: count}
	if o.rate > 0 {
		w.load.Pace = time.Duration(float64(o.writers) / o.rate * float64(time.Second))
	}
	w.observer = &history.Observer{Dial: w.dial, Locks: locks, Pace: 20 * time.Millisecond, Load: w.load}
	return w, nil
}

// during runs the clients for the length of the options while f runs, and returns when all have ended.
func (w *work) during(ctx context.Context, o options, f func(loop context.Context) error) error {
	loop, stop := context.WithTimeout(ctx, o.length)
	defer stop()
	var wg sync.WaitGroup
	for i := range o.writers {
		wg.Go(func() { w.load.Run(loop, o.seed+uint64(i)) })
	}
	for i := range plainWriters {
		p := &history.Writer{
			Name: fmt.Sprintf("w%d", i), Rec: w.rec, CallTimeout: 10 * time.Second, Pace: 250 * time.Millisecond,
			LastOK: func() { w.done.Add(1) }, Dial: w.dial,
		}
		wg.Go(func() { p.Run(loop) })
	}
	for i := range lockers {
		wg.Go(func() { w.observer.RunLocker(loop, o.seed+uint64(i)) })
	}
	for i := range watchers {
		wg.Go(func() { w.observer.RunWatcher(loop, o.seed+uint64(i)) })
	}
	wg.Go(func() { progress(loop, &w.done) })
	err := f(loop)
	stop()
	wg.Wait()
	return err
}

// verdict is what the judge says.
type verdict struct {
	operations int
	counts     history.Counts
	linear     history.Verdict
	problems   int
	detail     string
}

func (v *verdict) add(where string, errs []error) {
	for i, err := range errs {
		v.problems++
		if i < 20 {
			fmt.Fprintf(os.Stderr, "chaos: %s: %v\n", where, err)
		}
	}
}

// perHistory is how long one history may be checked.
const perHistory = time.Minute

// judge checks every member's tree against the recordings, the recordings by themselves, and the members against each
// other.
func (w *work) judge(ctx context.Context, s *stage) (v verdict, err error) {
	read, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	ops := w.load.Log.Ops()
	v.counts = w.rec.Counts()
	v.operations = len(ops) + v.counts.OK + v.counts.Unknown + v.counts.Failed
	for i := range ops {
		switch ops[i].Outcome {
		case history.OK:
			v.counts.OK++
		case history.Unknown:
			v.counts.Unknown++
		default:
			v.counts.Failed++
		}
	}
	holds, events, calls, errs := w.observer.Results()
	v.operations += calls
	v.counts.OK += calls
	v.add("watches and locks", errs)
	v.add("locks", history.Exclusive(holds))
	for _, m := range s.Members {
		name := fmt.Sprintf("member %d", m.ID)
		c, err := client.Dial(read, m.Client)
		if err != nil {
			return v, fmt.Errorf("%s: %w", name, err)
		}
		nodes, err := history.Read(read, c)
		var final map[history.Key]history.Final
		if err == nil {
			final, err = history.ReadGroups(read, c)
		}
		_ = c.Close()
		if err != nil {
			return v, fmt.Errorf("%s: %w", name, err)
		}
		v.add(name, w.rec.Check(nodes))
		v.add(name, history.Ordered(ops, final))
	}
	if err := sameDigests(read, s.Cluster); err != nil {
		v.add("trees", []error{err})
	}
	start := time.Now()
	v.linear = history.Linearizable(ops, perHistory)
	if !v.linear.OK() {
		v.add("porcupine", []error{errors.New(v.linear.String())})
	}
	v.detail = fmt.Sprintf("%d holds of locks, %d events of watches, order of %d operations checked at %d members, digests compared, porcupine took %v",
		len(holds), events, len(ops), len(s.Members), time.Since(start).Round(time.Millisecond))
	return v, nil
}

// sameDigests waits until all members stand at one zxid, and compares their trees' digests there.
func sameDigests(ctx context.Context, c *cluster.Cluster) error {
	for {
		digests := map[string]int{}
		zxids := map[string]bool{}
		for _, m := range c.Members {
			text, err := m.FourLetterWord(ctx, "srvr")
			if err != nil {
				return err
			}
			s, err := wire.ParseSrvr([]byte(text))
			if err != nil {
				return fmt.Errorf("member %d: %w", m.ID, err)
			}
			zxids[fmt.Sprint(s.DigestZxid)] = true
			digests[fmt.Sprint(s.Digest)] = m.ID
		}
		if len(zxids) == 1 {
			if len(digests) != 1 {
				return fmt.Errorf("digests differ at one zxid: %v", digests)
			}
			return nil
		}
		if err := wait(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("the members do not come to rest at one zxid: %v: %w", zxids, err)
		}
	}
}
