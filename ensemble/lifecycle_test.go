package ensemble

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"kvd/kv"
	"kvd/kv/wire"
	"kvd/wal"
)

// eventually polls a condition that another goroutine makes true.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(rawLimit); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// memberStacks returns the stacks, by goroutine, of those that run this module's code or its log store's, the test's
// own excluded.
func memberStacks() map[string]string {
	buf := make([]byte, 4<<20)
	all := map[string]string{}
	for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, "kvd/") && !strings.Contains(g, "testing.tRunner") || strings.Contains(g, "pebble") {
			id, _, _ := strings.Cut(g, " [") // "goroutine 17"
			all[id] = g
		}
	}
	return all
}

func openFiles(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc")
	}
	return len(entries)
}

// A member that is started, used and ended again and again leaves no goroutine and no file behind.
func TestStartAndStopLeaveNothing(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// The log store of a test with a failed disk is abandoned, goroutines and all, and may be there already.
	before := memberStacks()
	var files int
	for round := range 8 {
		m, err := Start(ctx, Config{DataDir: dir, Logger: testLogger(t)})
		if err != nil {
			t.Fatal(err)
		}
		if round%3 != 2 { // ending before it serves must work as well
			if err := m.WaitServing(ctx); err != nil {
				t.Fatal(err)
			}
			c, err := m.Client(ctx)
			if err != nil {
				t.Fatal(err)
			}
			write(t, ctx, c, fmt.Sprintf("/round%d", round))
			defer c.Close() // after the member: its connection ends from the other side
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if round%2 == 0 {
			err = m.Shutdown(ctx)
		} else {
			err = m.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := m.WaitServing(ctx); round%3 == 2 && !errors.Is(err, ErrClosed) {
			t.Errorf("WaitServing of a closed member: %v", err)
		}
		if _, err := m.Client(ctx); err == nil {
			t.Error("a closed member gives a client")
		}
		var stacks string
		for deadline := time.Now().Add(rawLimit); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			left := memberStacks()
			maps.DeleteFunc(left, func(id, _ string) bool { return before[id] != "" })
			if stacks = strings.Join(slices.Sorted(maps.Values(left)), "\n\n"); stacks == "" {
				break
			}
		}
		if stacks != "" {
			t.Fatalf("goroutines left:\n%s", stacks)
		}
		switch n := openFiles(t); {
		case round == 0:
			files = n
		case n > files:
			t.Fatalf("open files: %d after the first round, %d after round %d", files, n, round)
		}
	}
}

func TestDirectoryInUseIsRefused(t *testing.T) {
	m, _ := startSingle(t, nil)
	_, err := Start(t.Context(), Config{DataDir: m.cfg.DataDir})
	if !errors.Is(err, wal.ErrLocked) {
		t.Fatalf("error %v", err)
	}
}

// A log write that fails ends the member with the error; the host lives on, and what was acknowledged is there
// after a restart.
func TestFailedLogWriteEndsTheMember(t *testing.T) {
	var fail func() bool = func() bool { return false }
	mem := vfs.NewMem()
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSyncData && strings.HasSuffix(op.Path, ".log") && fail() {
			return errorfs.ErrInjected
		}
		return nil
	}))
	dir := t.TempDir()
	broken := make(chan struct{})
	fail = func() bool {
		select {
		case <-broken:
			return true
		default:
			return false
		}
	}
	m, addr := startSingle(t, func(c *Config) { c.FS, c.DataDir = fs, dir })
	r := dialRaw(t, addr)
	r.session()
	r.send(createRequest(1, "/acked", 0))
	r.wantReply(1, kv.CodeOK)
	close(broken)
	r.send(createRequest(2, "/unknown", 0))
	r.wantClosed() // never "failed"
	select {
	case <-m.Done():
	case <-time.After(rawLimit):
		t.Fatal("the member goes on")
	}
	if err := m.Err(); !errors.Is(err, wal.ErrDead) {
		t.Fatalf("Err() = %v", err)
	}

	fail = func() bool { return false }
	_, addr = startSingle(t, func(c *Config) { c.FS, c.DataDir = mem, dir })
	r = dialRaw(t, addr)
	r.session()
	r.send(request(1, wire.OpExists, record(&wire.PathWatchRequest{Path: "/acked"})))
	r.wantReply(1, kv.CodeOK)
}
