package ensemble_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"kvd/ensemble"
	"kvd/ensemble/ensembletest"
	"kvd/kv/client"
)

// keep runs the member of an index, which is closed, with a Keeper.
func keep(t *testing.T, e *ensembletest.Ensemble, i int, options ...func(*ensemble.Config)) (*ensemble.Keeper, ensemble.Config) {
	t.Helper()
	cfg := e.Config(t, i)
	for _, o := range options {
		o(&cfg)
	}
	k, err := ensemble.Keep(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := k.WaitServing(ctx); err != nil {
		t.Fatalf("does not serve: %v", err)
	}
	return k, cfg
}

// logText is a log that a test reads.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) count(s string) int { return strings.Count(l.String(), s) }

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logText) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// soon waits for what takes time by nature.
func soon(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("did not happen: %s", what)
		}
	}
}

// overwrite sets the data of a node n times.
func overwrite(t *testing.T, c *client.Client, path string, n, size int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	data := bytes.Repeat([]byte("x"), size)
	for i := range n {
		if _, err := c.Set(ctx, path, append(data, byte(i)), -1); err != nil {
			t.Fatalf("set %s: %v", path, err)
		}
	}
}

// flip damages one bit in the middle of a file.
func flip(t *testing.T, name string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	at := info.Size() / 2
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x04
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}

func files(t *testing.T, pattern ...string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(pattern...))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestKeeperEnds: what was asked for, and an end that no new start cures, ends the Keeper, and its sockets are free.
func TestKeeperEnds(t *testing.T) {
	e := ensembletest.Start(t, 3)
	e.CloseMember(t, 0)
	k, cfg := keep(t, e, 0)
	if err := k.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	<-k.Done()
	l, err := net.Listen("tcp", cfg.Members[0].ClientAddr)
	if err != nil {
		t.Fatalf("the client port is still taken: %v", err)
	}
	_ = l.Close()

	k, _ = keep(t, e, 0)
	m := k.Member()
	if err := m.Close(); err != nil { // a member that ended without a failure is not wanted any more
		t.Fatal(err)
	}
	<-k.Done()
	if err := k.Err(); err != nil || k.Member() != m || k.Restarts() != 0 {
		t.Fatalf("%v, %d restarts", err, k.Restarts())
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
}
