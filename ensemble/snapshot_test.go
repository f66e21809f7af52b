package ensemble

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"kvd/kv/client"
)

// eagerSnapshots makes a point due after every MiB, keeps little log, and leaves the rest as it is.
func eagerSnapshots(c *Config) {
	c.SnapCount, c.SnapshotLogBytes = 10, 1<<20
	c.RetainEntries, c.RetainBytes = 1, 1
}

// fill writes n values of 16 KiB over a few nodes.
func fill(t testing.TB, ctx context.Context, c *client.Client, n int) {
	t.Helper()
	data := make([]byte, 16<<10)
	for i := range n {
		path := fmt.Sprintf("/fill%d", i%7)
		data[0] = byte(i)
		if _, err := c.Set(ctx, path, data, -1); err == nil {
			continue
		}
		if _, _, err := c.Create(ctx, path, data, 0); err != nil {
			t.Fatal(err)
		}
	}
}

func snapshotFiles(t testing.TB, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "snapshots", "*.*"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(files) // by zxid
	return files
}

func TestOwnSnapshotsPurgeTheLogAndSurviveRestarts(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir := t.TempDir()
	start := func() (*Member, string) {
		return startSingle(t, func(c *Config) { eagerSnapshots(c); c.DataDir = dir })
	}
	m, _ := start()
	c, err := m.Client(ctx)
	if err != nil {
		t.Fatal(err)
	}
	// Until the log has been purged behind a kept snapshot.
	for m.wal.State().LogStart == 0 || len(m.wal.State().Points) < 3 {
		fill(t, ctx, c, 32)
		if ctx.Err() != nil {
			t.Fatalf("no purge: %+v", m.wal.State())
		}
	}
	st := m.wal.State()
	if st.LogStart > st.Base {
		t.Fatalf("log start %v beyond base %v", st.LogStart, st.Base)
	}
	_ = c.Close()
	restart := func(what string) {
		t.Helper()
		before := m.Status()
		if err := m.Shutdown(ctx); err != nil {
			t.Fatal(err)
		}
		if what != "" {
			files := snapshotFiles(t, dir)
			newest := files[len(files)-1]
			switch what {
			case "truncated":
				err = os.Truncate(newest, 1000)
			case "missing":
				err = os.Remove(newest)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		m, _ = start()
		after := m.Status()
		if after.Applied < before.Applied || (after.Applied == before.Applied && after.Digest != before.Digest) {
			t.Fatalf("%s: %v digest %x before, %v digest %x after", what, before.Applied, before.Digest, after.Applied, after.Digest)
		}
		if after.Suspect != "" {
			t.Fatalf("%s: suspect: %s", what, after.Suspect)
		}
		c, err := m.Client(ctx)
		if err != nil {
			t.Fatal(err)
		}
		fill(t, ctx, c, 7)
		_ = c.Close()
	}
	restart("")
	restart("truncated")
	restart("missing")
	restart("")
}

func TestMemberThatWasAwayTooLongGetsASnapshot(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tr := startTrio(t, eagerSnapshots)
	leader := tr.serving(ctx, 0, 1, 2)
	away, stays := (leader+1)%3, (leader+2)%3
	c, err := tr.members[stays].Client(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fill(t, ctx, c, 10)
	if err := tr.agree(ctx); err != nil {
		t.Fatal(err)
	}
	last := tr.members[away].Status().Durable
	if err := tr.members[away].Close(); err != nil {
		t.Fatal(err)
	}
	for tr.members[leader].wal.State().LogStart <= last {
		fill(t, ctx, c, 32)
		if ctx.Err() != nil {
			t.Fatal("the log is not purged")
		}
	}
	tr.restart(away)
	tr.serving(ctx, 0, 1, 2)
	if err := tr.agree(ctx); err != nil {
		t.Fatal(err)
	}
	if base := tr.members[away].wal.State().Base; base <= last {
		t.Fatalf("base %v: no snapshot was installed", base)
	}
	fill(t, ctx, c, 10)
	if err := tr.agree(ctx); err != nil {
		t.Fatal(err)
	}
}

// A member whose snapshots are all gone, with a log that does not reach back, must not vote or serve on what is
// left (S26); an established leader repairs it.
func TestMemberWithoutSnapshotsIsRepairedByTheOthers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tr := startTrio(t, eagerSnapshots)
	leader := tr.serving(ctx, 0, 1, 2)
	hurt, stays := (leader+1)%3, (leader+2)%3
	c, err := tr.members[stays].Client(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for tr.members[hurt].wal.State().LogStart == 0 || tr.members[leader].wal.State().LogStart == 0 {
		fill(t, ctx, c, 32)
		if ctx.Err() != nil {
			t.Fatal("the log is not purged")
		}
	}
	if err := tr.members[hurt].Close(); err != nil {
		t.Fatal(err)
	}
	for _, f := range snapshotFiles(t, tr.dirs[hurt]) {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	tr.restart(hurt)
	if s := tr.members[hurt].Status(); s.Suspect == "" && !s.Serving {
		t.Fatalf("not suspect: %+v", s)
	}
	tr.serving(ctx, 0, 1, 2)
	if err := tr.agree(ctx); err != nil {
		t.Fatal(err)
	}
	if s := tr.members[hurt].Status(); s.Suspect != "" {
		t.Fatalf("still suspect: %s", s.Suspect)
	}
}
