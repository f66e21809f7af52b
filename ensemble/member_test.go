package ensemble

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"time"

	"kvd/kv/client"
	"kvd/wal"
)

// testLogger writes a member's log to the test's.
func testLogger(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.String("t", a.Value.Time().Format("05.000"))
		}
		return a
	}}))
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

// form writes an ensemble's identity into a directory, so that a test need not wait for forming.
func form(t *testing.T, dir string, id MemberID) {
	t.Helper()
	l, _, err := wal.Open(dir, wal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	l.Submit(wal.Write{Identity: &wal.Identity{ClusterID: [16]byte{1}, Member: uint64(id)}, Trusted: true, Done: func(err error) { done <- err }})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestSingleMemberServes(t *testing.T) {
	dir := t.TempDir()
	form(t, dir, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	m, err := Start(ctx, Config{DataDir: dir, Logger: testLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.WaitServing(ctx); err != nil {
		t.Fatal(err)
	}
	c, err := m.Client(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	write(t, ctx, c, "/a")
	if err := m.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, ctx context.Context, c *client.Client, path string) {
	t.Helper()
	if _, _, err := c.Create(ctx, path, []byte("x"), 0); err != nil {
		t.Fatal(fmt.Errorf("create %s: %w", path, err))
	}
}
