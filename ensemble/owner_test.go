package ensemble

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// logLines collects a member's log.
type logLines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// count is how many lines hold all of the given texts.
func (l *logLines) count(texts ...string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
next:
	for line := range strings.Lines(l.b.String()) {
		for _, t := range texts {
			if !strings.Contains(line, t) {
				continue next
			}
		}
		n++
	}
	return n
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logLines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// snapshotDir is every file of a directory but the locks.
func snapshotDir(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.EqualFold(d.Name(), "lock") {
			return err
		}
		b, err := os.ReadFile(path)
		files[path] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// A directory that belongs to another member is refused by name, whichever of its witnesses says so, and with the
// file alone or the store alone nothing in it changes. Taken over it would let its member vote with another's promises.
func TestDirectoryOfAnotherMemberIsRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// A member 1 of a single-member ensemble with something in its log.
	made := func(t *testing.T) string {
		dir := t.TempDir()
		m, err := Start(ctx, Config{ID: 1, DataDir: dir, Logger: testLogger(t)})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.WaitServing(ctx); err != nil {
			t.Fatal(err)
		}
		c, err := m.Client(ctx)
		if err != nil {
			t.Fatal(err)
		}
		write(t, ctx, c, "/x")
		if err := errors.Join(c.Close(), m.Close()); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	for _, c := range []struct {
		name, witness string
		untouched     bool
		change        func(t *testing.T, dir string)
	}{
		{"whole", "identity file", true, func(*testing.T, string) {}},
		{"file alone", "identity file", true, func(t *testing.T, dir string) {
			if err := os.RemoveAll(filepath.Join(dir, "log")); err != nil {
				t.Fatal(err)
			}
		}},
		{"store alone", "log store", true, func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, identityFile)); err != nil {
				t.Fatal(err)
			}
		}},
		{"damaged file", "log store", true, func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, identityFile), []byte("x"), 0o644); err != nil {
				t.Fatal(err)
			}
		}},
		{"file of 2, store of 1", "log store", false, func(t *testing.T, dir string) {
			other := t.TempDir()
			m, err := Start(ctx, Config{ID: 2, DataDir: other, Logger: testLogger(t)})
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(m.WaitServing(ctx), m.Close()); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(filepath.Join(other, identityFile))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, identityFile), b, 0o644); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := made(t)
			c.change(t, dir)
			before := snapshotDir(t, dir)
			m, err := Start(ctx, Config{ID: 2, DataDir: dir, Logger: testLogger(t)})
			if err == nil {
				_ = m.Close()
			}
			var refused *DirectoryError
			if !errors.As(err, &refused) || refused.Member != 1 || refused.Configured != 2 || refused.Witness != c.witness {
				t.Fatalf("started as member 2: %v", err)
			}
			if !strings.Contains(err.Error(), "belongs to member 1 ") {
				t.Errorf("%q does not say whose it is", err)
			}
			after := snapshotDir(t, dir)
			if c.untouched && fmt.Sprint(before) != fmt.Sprint(after) {
				t.Errorf("the refused directory was changed")
			}
			if c.name == "file of 2, store of 1" || c.name == "file alone" || c.name == "damaged file" {
				return // its own member does not trust it either
			}
			m, err = Start(ctx, Config{ID: 1, DataDir: dir, Logger: testLogger(t)})
			if c.name == "store alone" {
				// The owner is told that the file is missing, and what to do: it is the only voter.
				if !errors.Is(err, ErrNeedsRecovery) || !strings.Contains(err.Error(), "--accept-up-to 1:") {
					t.Fatalf("the owner: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatalf("the owner cannot start any more: %v", err)
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A directory of the right member and the wrong cluster is refused at the handshake, by name and once, on both sides;
// the ensemble serves on without it.
func TestDirectoryOfAnotherClusterIsRefusedAtTheHandshake(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var logs [3]logLines
	tune := func(c *Config) { c.Logger = logs[c.ID-1].logger() }
	tr := startTrio(t, tune)
	tr.serving(ctx, 0, 1, 2)
	foreign := startTrio(t, nil)
	foreign.serving(ctx, 0, 1, 2)
	for _, m := range foreign.members {
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := tr.members[2].Close(); err != nil {
		t.Fatal(err)
	}
	tr.dirs[2] = foreign.dirs[2]
	tr.restart(2)
	for i := range logs {
		eventually(t, fmt.Sprintf("member %d refuses by name", i+1), func() bool {
			if i == 2 {
				return logs[i].count("peer connection refused", "another cluster") >= 2 // one for each peer
			}
			return logs[i].count("peer connection refused", "peer=3", "another cluster") >= 1
		})
	}
	tr.serving(ctx, 0, 1)
	eventually(t, "both have refused several times", func() bool {
		return tr.members[0].net.Stats().Refused["another cluster"] > 5 && tr.members[2].net.Stats().Refused["another cluster"] > 5
	})
	for i, want := range []int{1, 1, 2} {
		if n := logs[i].count("peer connection refused"); n != want {
			t.Errorf("member %d said it %d times, want once for each peer:\n%s", i+1, n, &logs[i])
		}
	}
	if s := tr.members[2].Status(); s.Serving {
		t.Errorf("the foreign member serves: %+v", s)
	}
}
