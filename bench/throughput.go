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
	"kvd/kv"
	"kvd/kv/client"
	"kvd/kv/wire"
)

// The workload that the write targets are stated for.
const (
	connections = 16
	outstanding = 16
	valueBytes  = 128
)

// Targets of the throughput part.
const (
	minWritesPerSecond = 30_000
	maxServerCPU       = 40 * time.Microsecond // a write, summed over three members
)

// throughput measures setData of 128 bytes, 16 connections with 16 calls outstanding each, spread over three
// members, each connection on a node of its own.
func (r *run) throughput(ctx context.Context, length time.Duration) error {
	c, err := r.cluster(ctx, "throughput", 3)
	if err != nil {
		return err
	}
	defer c.Stop()
	var writers []*setWriter
	defer func() {
		for _, w := range writers {
			_ = w.client.Close()
		}
	}()
	for i := range connections {
		dial, cancel := context.WithTimeout(ctx, 20*time.Second)
		cl, err := client.Dial(dial, c.Members[i%len(c.Members)].Client)
		if err == nil {
			_, _, err = cl.Create(dial, fmt.Sprintf("/bench-%d", i), make([]byte, valueBytes), kv.FlagPersistent)
		}
		cancel()
		if err != nil {
			return err
		}
		writers = append(writers, newSetWriter(cl, fmt.Sprintf("/bench-%d", i)))
	}
	for _, w := range writers {
		w.start()
	}
	warm := min(length/3, 3*time.Second)
	if err := pause(ctx, warm); err != nil {
		return err
	}
	before, err := serversCPU(c)
	if err != nil {
		return err
	}
	ownBefore, err := cluster.CPU(os.Getpid())
	if err != nil {
		return err
	}
	count0, start := total(writers), time.Now()
	if err := pause(ctx, length); err != nil {
		return err
	}
	count, took := total(writers)-count0, time.Since(start)
	after, err := serversCPU(c)
	if err != nil {
		return err
	}
	ownAfter, err := cluster.CPU(os.Getpid())
	if err != nil {
		return err
	}
	for _, w := range writers {
		if err := w.stop(); err != nil {
			return err
		}
	}
	if count == 0 {
		return errors.New("no write was answered")
	}
	rate := float64(count) / took.Seconds()
	each := (after - before) / time.Duration(count)
	r.rep.add(os.Stderr, line{
		name:     fmt.Sprintf("setData %d B, %d x %d, three members", valueBytes, connections, outstanding),
		target:   fmt.Sprintf(">= %d writes/s", minWritesPerSecond),
		measured: fmt.Sprintf("%.0f writes/s", rate),
		met:      rate >= minWritesPerSecond,
	})
	r.rep.add(os.Stderr, line{
		name:     "server CPU a write, summed over the three",
		target:   fmt.Sprintf("<= %v", maxServerCPU),
		measured: each.Round(100 * time.Nanosecond).String(),
		met:      each <= maxServerCPU,
	})
	r.rep.info(os.Stderr, "load generator's CPU a write", ((ownAfter - ownBefore) / time.Duration(count)).Round(100*time.Nanosecond).String())
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

func serversCPU(c *cluster.Cluster) (time.Duration, error) {
	var sum time.Duration
	for _, m := range c.Members {
		d, err := cluster.CPU(m.Pid())
		if err != nil {
			return 0, err
		}
		sum += d
	}
	return sum, nil
}

func total(writers []*setWriter) int64 {
	var n int64
	for _, w := range writers {
		n += w.answered.Load()
	}
	return n
}

// setWriter keeps a number of setData calls outstanding on one client: each answer submits the next.
type setWriter struct {
	client   *client.Client
	answered atomic.Int64
	stopping atomic.Bool
	calls    []client.Call
	running  sync.WaitGroup
	mu       sync.Mutex
	err      error // under mu: the first failure
}

func newSetWriter(c *client.Client, path string) *setWriter {
	w := &setWriter{client: c, calls: make([]client.Call, outstanding)}
	for i := range w.calls {
		w.calls[i] = client.Call{Op: wire.OpSetData, Path: path, Data: make([]byte, valueBytes), Version: wire.AnyVersion, Done: w.next}
	}
	return w
}

func (w *setWriter) start() {
	for i := range w.calls {
		w.running.Add(1)
		w.submit(&w.calls[i])
	}
}

// next runs on the client's reader goroutine.
func (w *setWriter) next(call *client.Call) {
	if call.Err != nil {
		w.fail(call.Err)
		return
	}
	w.answered.Add(1)
	if w.stopping.Load() {
		w.running.Done()
		return
	}
	w.submit(call)
}

func (w *setWriter) submit(call *client.Call) {
	if err := w.client.Do(call); err != nil {
		w.fail(err)
	}
}

func (w *setWriter) fail(err error) {
	w.mu.Lock()
	if w.err == nil {
		w.err = err
	}
	w.mu.Unlock()
	w.running.Done()
}

// stop waits for what is outstanding and returns the first failure.
func (w *setWriter) stop() error {
	w.stopping.Store(true)
	w.running.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}
