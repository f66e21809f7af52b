package integration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"kvd/integration/cluster"
	"kvd/kv"
	"kvd/kv/client"
	"kvd/kv/wire"
)

// follower returns a member that does not lead.
func follower(t *testing.T, ctx context.Context, c *cluster.Cluster) (f, leader *cluster.Member) {
	t.Helper()
	leader, err := c.Leader(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range c.Members {
		if m != leader {
			return m, leader
		}
	}
	t.Fatal("no follower")
	return nil, nil
}

// syncLines are the leaders' log lines about bringing a member up to date, oldest first: "peer=1 row=4 DIFF ...".
func syncLines(t *testing.T, c *cluster.Cluster, peer int) []string {
	t.Helper()
	re := regexp.MustCompile(fmt.Sprintf(`msg=sync member=\d+ detail="(peer=%d [^"]*)"`, peer))
	var lines []string
	for _, m := range c.Members {
		log, err := os.ReadFile(m.LogFile())
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range re.FindAllStringSubmatch(string(log), -1) {
			lines = append(lines, found[1])
		}
	}
	return lines
}

// rejoin starts a member that was down and returns how it was brought up to date, after everybody has the same
// tree. On a loaded machine that may take a second attempt, which is part of the answer.
func rejoin(t *testing.T, ctx context.Context, c *cluster.Cluster, m *cluster.Member) string {
	t.Helper()
	before := syncLines(t, c, m.ID)
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	if err := m.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	sameTree(t, ctx, c)
	fresh := syncLines(t, c, m.ID)
	for _, line := range before {
		if i := slices.Index(fresh, line); i >= 0 {
			fresh = slices.Delete(fresh, i, i+1)
		}
	}
	if len(fresh) == 0 {
		t.Fatalf("no leader's log says how member %d was brought up to date", m.ID)
	}
	how := strings.Join(fresh, "; ")
	t.Log(how)
	return how
}

// patient keeps a loaded machine from electing a new leader in the middle of a test. A killed process is noticed
// at once all the same, by its connections.
const patient = "kvd.leaderTimeout=10s"

// A follower that missed 100,000 writes gets exactly those.
func TestRejoinByDiff(t *testing.T) {
	c, ctx := startCluster(t, 3, patient)
	k := dial(t, ctx, c.Servers())
	if _, _, err := k.Create(ctx, "/w", nil, kv.FlagPersistent); err != nil {
		t.Fatal(err)
	}
	writeMany(t, k, "/w", 100, 128)
	sameTree(t, ctx, c)
	f, leader := follower(t, ctx, c)
	f.Kill()
	k = dial(t, ctx, leader.Client)
	begin := time.Now()
	writeMany(t, k, "/w", 100_000, 128)
	t.Logf("100,000 writes took %v", time.Since(begin).Round(time.Millisecond))
	line := rejoin(t, ctx, c, f)
	if !strings.Contains(line, " DIFF ") || strings.Contains(line, " SNAP ") {
		t.Errorf("synchronized by %q", line)
	}
	own := dial(t, ctx, f.Client)
	if stat, err := own.Exists(ctx, "/w"); err != nil || stat.Version != 100_100 {
		t.Errorf("version %d, %v", stat.Version, err)
	}
}

// A follower whose gap is no longer in the log gets a snapshot.
func TestRejoinBySnap(t *testing.T) {
	c, ctx := startCluster(t, 3, patient, "snapCount=1000", "kvd.snapshotLogBytes=262144", "kvd.retainEntries=1000", "kvd.retainBytes=65536")
	k := dial(t, ctx, c.Servers())
	if _, _, err := k.Create(ctx, "/w", nil, kv.FlagPersistent); err != nil {
		t.Fatal(err)
	}
	sameTree(t, ctx, c)
	f, leader := follower(t, ctx, c)
	f.Kill()
	k = dial(t, ctx, leader.Client)
	// The log is purged up to the oldest snapshot kept, the third last, so four must have been written since.
	written := strings.Count(logText(t, leader), "snapshot written")
	version := int32(0)
	eventually(t, ctx, "four snapshots", func() error {
		writeMany(t, k, "/w", 2000, 256)
		version += 2000
		if n := strings.Count(logText(t, leader), "snapshot written") - written; n < 4 {
			return fmt.Errorf("%d snapshots after %d writes", n, version)
		}
		return nil
	})
	line := rejoin(t, ctx, c, f)
	if !strings.Contains(line, " SNAP ") {
		t.Errorf("synchronized by %q", line)
	}
	if !strings.Contains(logText(t, f), "snapshot installed") {
		t.Error("the follower's log does not name the snapshot")
	}
	own := dial(t, ctx, f.Client)
	if stat, err := own.Exists(ctx, "/w"); err != nil || stat.Version != version {
		t.Errorf("version %d instead of %d, %v", stat.Version, version, err)
	}
	// And it comes back from its own disk after that.
	f.Kill()
	writeMany(t, k, "/w", 10, 256)
	if line := rejoin(t, ctx, c, f); !strings.Contains(line, " DIFF ") {
		t.Errorf("after the snapshot: synchronized by %q", line)
	}
}

// A leader that dies with writes that only it has logged comes back behind a new leader: its tail is cut off.
//
// The followers are stopped, so that they cannot log what the leader goes on proposing; what exceeds the
// window of their links (8 MiB) is not even sent. The leader is killed when its log has grown by more than that.
// Then the followers go on: what lay in their sockets may survive, the rest must not.
func TestRejoinByTrunc(t *testing.T) {
	c, ctx := startCluster(t, 3, patient)
	k := dial(t, ctx, c.Servers())
	if _, _, err := k.Create(ctx, "/w", []byte("acknowledged"), kv.FlagPersistent); err != nil {
		t.Fatal(err)
	}
	sameTree(t, ctx, c)
	leader, err := c.Leader(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var clients []*client.Client // a member takes in only so much from one connection
	for range 9 {
		clients = append(clients, dial(t, ctx, leader.Client))
	}
	for _, m := range c.Members {
		if m != leader {
			if err := m.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
		}
	}
	logged := dirBytes(t, filepath.Join(leader.DataDir(), "log"))
	const writes = 27
	answers := make(chan error, writes)
	for i := range writes {
		call := &client.Call{Op: wire.OpSetData, Path: "/w", Data: make([]byte, 900_000), Version: wire.AnyVersion, FailFast: true}
		call.Done = func(call *client.Call) { answers <- call.Err }
		if err := clients[i%len(clients)].Do(call); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, ctx, "the leader logs beyond the window", func() error {
		if n := dirBytes(t, filepath.Join(leader.DataDir(), "log")) - logged; n < 16<<20 {
			return fmt.Errorf("%d bytes", n)
		}
		return nil
	})
	leader.Kill()
	for _, m := range c.Members {
		if m != leader {
			if err := m.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range writes {
		select {
		case err := <-answers:
			if !errors.Is(err, client.ErrUnknownOutcome) && !errors.Is(err, client.ErrUnavailable) {
				t.Fatalf("a write that no quorum had was answered: %v", err)
			}
		case <-ctx.Done():
			t.Fatal("a write on a dead connection has not ended")
		}
	}
	// The new reign begins with a write of its own, so that the two histories differ.
	var rest string
	for _, m := range c.Members {
		if m != leader {
			rest += m.Client + ","
		}
	}
	k = dial(t, ctx, rest)
	stat, err := k.Set(ctx, "/w", []byte("new reign"), wire.AnyVersion)
	if err != nil {
		t.Fatal(err)
	}
	if stat.Version > writes/2 {
		t.Fatalf("%d of %d unacknowledged writes survived: nothing diverged", stat.Version-1, writes)
	}
	line := rejoin(t, ctx, c, leader)
	if !strings.Contains(line, " TRUNC ") {
		t.Errorf("synchronized by %q", line)
	}
	own := dial(t, ctx, leader.Client)
	data, got, err := own.Get(ctx, "/w")
	if err != nil || string(data) != "new reign" || got != stat {
		t.Errorf("%.20q %+v, want %+v, %v", data, got, stat, err)
	}
}

func logText(t *testing.T, m *cluster.Member) string {
	t.Helper()
	text, err := os.ReadFile(m.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// dirBytes is the length of all files below a directory. (Their blocks would tell of preallocation.)
func dirBytes(t *testing.T, dir string) int64 {
	t.Helper()
	var n int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // files come and go
		}
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			n += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
