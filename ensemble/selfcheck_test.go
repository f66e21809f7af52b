package ensemble_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"kvd/ensemble"
	"kvd/ensemble/ensembletest"
	"kvd/kv/client"
	"kvd/zab"
)

// watchful has a member write snapshots of little data and look at everything all the time.
func watchful(c *ensemble.Config) {
	c.SelfCheckInterval = 20 * time.Millisecond
	c.SnapCount, c.SnapshotLogBytes = 200, 1
}

const damageFound = "snapshot damaged, it will be written again"

// TestDamagedSnapshotIsReplaced: a bit that flips in a snapshot of a running member is found, and a sound one is written
// before anybody needs it: on the leader as on followers, and also if nothing has changed since.
func TestDamagedSnapshotIsReplaced(t *testing.T) {
	logs := &logText{}
	e := ensembletest.Start(t, 3, watchful, func(c *ensemble.Config) { c.Logger = logs.logger() })
	c := e.Client(t, 0)
	if _, _, err := c.Create(context.Background(), "/a", nil, 0); err != nil {
		t.Fatal(err)
	}
	overwrite(t, c, "/a", 500, 100)
	for i := range e.Members {
		dir := filepath.Join(e.Config(t, i).DataDir, "snapshots")
		soon(t, "a snapshot", func() bool { return len(files(t, dir, "*.full")) > 0 })
		before := logs.count(damageFound)
		all := files(t, dir, "*.full")
		flip(t, all[len(all)-1])
		soon(t, "the damage is found", func() bool { return logs.count(damageFound) > before })
		written := logs.count("snapshot written")
		soon(t, "a new one", func() bool { return logs.count("snapshot written") > written || i == 2 })
	}
	overwrite(t, c, "/a", 300, 100)
	for i := range e.Members {
		before := logs.count(`msg="snapshot damaged"`)
		e.CloseMember(t, i)
		e.RestartMember(t, i)
		e.WaitServing(t, i)
		if logs.count(`msg="snapshot damaged"`) != before {
			t.Errorf("member %d met a damaged snapshot when it started:\n%s", i+1, logs)
		}
	}
}

// TestDamagedLogIsReplaced: a bit flips in the log of a running member. It notices, is started again by its Keeper, is synced
// from the others, and votes again; the others serve all the time, and nothing is lost. The leader first.
func TestDamagedLogIsReplaced(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 70 MB twice")
	}
	for _, who := range []string{"leader", "follower"} {
		t.Run(who, func(t *testing.T) {
			logs := &logText{}
			quick := func(c *ensemble.Config) {
				c.SelfCheckInterval = 20 * time.Millisecond
				c.RetainEntries, c.RetainBytes = 1<<20, 1<<30
			}
			e := ensembletest.Start(t, 3, func(c *ensemble.Config) { c.Logger = logs.logger() })
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			c, err := client.Dial(ctx, e.Servers())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, _, err := c.Create(ctx, "/a", nil, 0); err != nil {
				t.Fatal(err)
			}
			// More than stays in memory, so that tables are written.
			for i := range 350 {
				if _, err := c.Set(ctx, "/a", make([]byte, 200_000), int32(i)); err != nil {
					t.Fatal(err)
				}
			}
			at := 0
			if who == "leader" {
				at = 2 // of equal logs the greatest id wins
			}
			e.CloseMember(t, at)
			k, cfg := keep(t, e, at, quick)
			if who == "leader" && k.Status().Role != zab.Leading {
				other := e.Leader(t)
				e.CloseMember(t, other)
				soon(t, "it leads", func() bool { return k.Status().Role == zab.Leading && k.Status().Serving })
				e.RestartMember(t, other)
				e.WaitServing(t, other)
			}
			if leads := k.Status().Role == zab.Leading; leads != (who == "leader") {
				t.Fatalf("member %d is %v", at+1, k.Status().Role)
			}
			tables := files(t, cfg.DataDir, "log", "*.sst")
			if len(tables) == 0 {
				t.Fatal("no tables")
			}
			first := k.Member()
			flip(t, tables[0])
			soon(t, "the member is replaced", func() bool { return k.Member() != first })
			if err := k.WaitServing(ctx); err != nil {
				t.Fatal(err)
			}
			soon(t, "it votes again", func() bool { s := k.Status(); return s.Suspect == "" && s.Serving })
			if k.Restarts() != 1 {
				t.Errorf("%d restarts", k.Restarts())
			}
			if _, err := c.Set(ctx, "/a", []byte("b"), -1); err != nil {
				t.Fatal(err)
			}
			soon(t, "equal trees", func() bool {
				s := k.Status()
				for i, m := range e.Members {
					if i != at {
						if o := m.Status(); o.Applied != s.Applied || o.Digest != s.Digest {
							return false
						}
					}
				}
				return true
			})
		})
	}
}
