package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"kvd/integration/cluster"
	"kvd/kv"
	"kvd/kv/client"
	"kvd/kv/wire"
)

// Targets of the memory part, stated for a million nodes of 100 bytes on one member.
const (
	maxResident  = 300 << 20
	maxPeak      = maxResident * 16 / 10
	maxFirstRead = 3 * time.Second
	settle       = 30 * time.Second
	nodeBytes    = 100
	childrenEach = 1000
)

// memory fills one member, then measures its resident memory after the fill, after a snapshot and after a
// restart from SIGKILL, and how long that restart takes until the first read is answered.
func (r *run) memory(ctx context.Context, nodes int) error {
	c, err := r.cluster(ctx, "memory", 1)
	if err != nil {
		return err
	}
	defer c.Stop()
	m := c.Members[0]
	start := time.Now()
	if err := fill(ctx, m.Client, nodes); err != nil {
		return fmt.Errorf("fill: %w", err)
	}
	r.rep.info(os.Stderr, fmt.Sprintf("fill of %d nodes of %d B, one member", nodes, nodeBytes), time.Since(start).Round(100*time.Millisecond).String())
	if err := pause(ctx, settle); err != nil {
		return err
	}
	if err := r.resident(m, "after the fill and 30 s"); err != nil {
		return err
	}
	if err := forceSnapshot(ctx, m, nodes); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	if err := r.resident(m, "after a further snapshot"); err != nil {
		return err
	}
	if err := r.peak(m, "before the restart"); err != nil {
		return err
	}
	m.Kill()
	start = time.Now()
	if err := m.Start(); err != nil {
		return err
	}
	if err := firstRead(ctx, m.Client, nodePath(nodes-1)); err != nil {
		return err
	}
	took := time.Since(start)
	r.rep.add(os.Stderr, line{
		name:     "from exec to the first answered read after SIGKILL",
		target:   fmt.Sprintf("<= %v", maxFirstRead),
		measured: took.Round(10 * time.Millisecond).String(),
		met:      took <= maxFirstRead,
	})
	if err := pause(ctx, settle); err != nil {
		return err
	}
	if err := r.resident(m, "after the restart and 30 s"); err != nil {
		return err
	}
	return r.peak(m, "after the restart")
}

func (r *run) resident(m *cluster.Member, when string) error {
	mem, err := cluster.MemoryOf(m.Pid())
	if err != nil {
		return err
	}
	r.rep.add(os.Stderr, line{
		name:     "VmRSS " + when,
		target:   fmt.Sprintf("<= %d MiB", maxResident>>20),
		measured: fmt.Sprintf("%d MiB", mem.Resident>>20),
		met:      mem.Resident <= maxResident,
	})
	return nil
}

func (r *run) peak(m *cluster.Member, when string) error {
	mem, err := cluster.MemoryOf(m.Pid())
	if err != nil {
		return err
	}
	r.rep.add(os.Stderr, line{
		name:     "VmHWM " + when,
		target:   fmt.Sprintf("<= %d MiB", maxPeak>>20),
		measured: fmt.Sprintf("%d MiB", mem.Peak>>20),
		met:      mem.Peak <= maxPeak,
	})
	return nil
}

func parentPath(i int) string { return fmt.Sprintf("/fill/%04d", i/childrenEach) }
func nodePath(i int) string   { return fmt.Sprintf("%s/node-%07d", parentPath(i), i) }

// fill creates the nodes, pipelined on a few connections.
func fill(ctx context.Context, server string, nodes int) error {
	cl, err := dial(ctx, server)
	if err != nil {
		return err
	}
	defer func() { _ = cl.Close() }()
	if _, _, err := cl.Create(ctx, "/fill", nil, kv.FlagPersistent); err != nil {
		return err
	}
	for i := 0; i < nodes; i += childrenEach {
		if _, _, err := cl.Create(ctx, parentPath(i), nil, kv.FlagPersistent); err != nil {
			return err
		}
	}
	data := make([]byte, nodeBytes)
	return each(ctx, server, nodes, func(i int, call *client.Call) {
		call.Op, call.Path, call.Data, call.Flags = wire.OpCreate, nodePath(i), data, kv.FlagPersistent
	})
}

// each runs n calls on 8 connections with 64 outstanding each; prepare fills the i-th one in.
func each(ctx context.Context, server string, n int, prepare func(i int, call *client.Call)) error {
	const conns, depth = 8, 64
	var next atomic.Int64
	errs := make(chan error, conns*depth)
	var clients []*client.Client
	defer func() {
		for _, cl := range clients {
			_ = cl.Close()
		}
	}()
	for range conns {
		cl, err := dial(ctx, server)
		if err != nil {
			return err
		}
		clients = append(clients, cl)
	}
	for _, cl := range clients {
		for range depth {
			call := &client.Call{}
			submit := func() bool {
				i := int(next.Add(1)) - 1
				if i >= n {
					errs <- nil
					return false
				}
				prepare(i, call)
				if err := cl.Do(call); err != nil {
					errs <- err
					return false
				}
				return true
			}
			call.Done = func(call *client.Call) {
				if call.Err != nil {
					errs <- call.Err
					return
				}
				submit()
			}
			submit()
		}
	}
	var first error
	for range conns * depth {
		select {
		case err := <-errs:
			if err != nil && first == nil {
				first = err
				next.Store(int64(n))
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return first
}

func dial(ctx context.Context, server string) (*client.Client, error) {
	dial, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return client.Dial(dial, server, client.WithSessionTimeout(40*time.Second))
}

// forceSnapshot overwrites nodes until a snapshot file appears that is newer than all there were.
func forceSnapshot(ctx context.Context, m *cluster.Member, nodes int) error {
	before, err := newestSnapshot(m)
	if err != nil {
		return err
	}
	data := make([]byte, nodeBytes)
	for round := range 20 {
		if err := each(ctx, m.Client, nodes/4, func(i int, call *client.Call) {
			call.Op, call.Path, call.Data, call.Version = wire.OpSetData, nodePath((i*7+round)%nodes), data, wire.AnyVersion
		}); err != nil {
			return err
		}
		for range 50 {
			now, err := newestSnapshot(m)
			if err != nil {
				return err
			}
			if now.After(before) {
				return pause(ctx, settle)
			}
			if err := pause(ctx, 100*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return errors.New("no snapshot was written after five times the tree's size was logged")
}

func newestSnapshot(m *cluster.Member) (time.Time, error) {
	entries, err := os.ReadDir(filepath.Join(m.DataDir(), "snapshots"))
	if err != nil {
		return time.Time{}, err
	}
	var newest time.Time
	for _, e := range entries {
		if info, err := e.Info(); err == nil && !e.IsDir() && info.ModTime().After(newest) && filepath.Ext(e.Name()) != ".tmp" {
			newest = info.ModTime()
		}
	}
	return newest, nil
}

// firstRead asks again every few milliseconds until the node is read.
func firstRead(ctx context.Context, server, path string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cl, err := client.Dial(ctx, server, client.WithBackoff(time.Millisecond, 5*time.Millisecond))
	if err != nil {
		return err
	}
	defer func() { _ = cl.Close() }()
	data, _, err := cl.Get(ctx, path)
	if err == nil && len(data) != nodeBytes {
		err = fmt.Errorf("%s holds %d bytes, want %d", path, len(data), nodeBytes)
	}
	return err
}
