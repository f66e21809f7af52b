package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"kvd/integration/cluster"
	"kvd/integration/loopdisk"
	"kvd/kv"
	"kvd/kv/wire"
)

// TestHungDiskAtTheLeader: the disk of the leader alone stops answering. Another member leads, takes writes, and keeps the sessions,
// those of the stalled member's clients among them; the stalled one ends none, not when its disk answers again either.
func TestHungDiskAtTheLeader(t *testing.T) {
	if testing.Short() || runtime.GOOS != "linux" {
		t.Skip("starts processes on loop devices")
	}
	notNow(t)
	need(t, "mkfs.ext4", nil)
	need(t, "fsfreeze", nil)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c, err := cluster.New(cluster.Options{Members: 3, Dir: t.TempDir(), Kvd: binaries(t).Kvd, ConfigLines: []string{"maxClientCnxns=0", "4lw.commands.whitelist=*"}})
	if err != nil {
		t.Fatal(err)
	}
	disks := map[int]*loopdisk.Disk{}
	for _, m := range c.Members {
		d, err := loopdisk.New(filepath.Dir(filepath.Dir(m.DataDir())))
		if err != nil {
			if os.Getuid() != 0 {
				missing(t, "a file system on a loop device", err)
			}
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		disks[m.ID] = d
	}
	t.Cleanup(func() {
		for _, d := range disks { // a process that hangs in a write does not even die
			_ = d.Thaw()
		}
		c.Stop()
		if t.Failed() {
			t.Log(c.Logs(6000))
		}
	})
	if err := c.Start(ctx); err != nil {
		t.Fatal(err)
	}
	setup := dial(t, ctx, c.Servers())
	for _, path := range []string{"/s", stormFlag} {
		if _, _, err := setup.Create(ctx, path, nil, kv.FlagPersistent, kv.OpenACL()...); err != nil {
			t.Fatal(err)
		}
	}
	const sessions, timeout = 300, 10 * time.Second
	live, end := context.WithCancel(ctx)
	w := newCrowd(live, c, sessions)
	defer w.wg.Wait()
	defer end()
	for _, m := range w.all {
		m.timeoutMs = int32(timeout.Milliseconds())
	}
	w.gather()
	everybody := func() error {
		switch {
		case w.why.Load() != nil:
			t.Fatal(w.why.Load())
		case w.gone.Load() > 0:
			t.Fatalf("%d sessions have ended", w.gone.Load())
		case w.born.Load() < sessions || w.connected() < sessions:
			return fmt.Errorf("%d are there, %d are connected", w.born.Load(), w.connected())
		}
		return nil
	}
	eventually(t, ctx, "everybody is connected", everybody)

	stalled, err := c.Leader(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var others []*cluster.Member
	for _, m := range c.Members {
		if m != stalled {
			others = append(others, m)
		}
	}
	if err := disks[stalled.ID].Freeze(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	// A disk that nobody writes to is not seen to hang.
	go func() {
		for live.Err() == nil {
			_, _ = setup.Set(live, "/s", nil, wire.AnyVersion)
		}
	}()
	eventually(t, ctx, "another member leads", func() error {
		for _, m := range others {
			if mode, err := m.Mode(ctx); err == nil && mode == string(wire.ModeLeader) {
				return nil
			}
		}
		return errors.New("none does")
	})
	led := time.Since(began)
	writer := dial(t, ctx, others[0].Client+","+others[1].Client)
	if _, _, err := writer.Create(ctx, "/behind-it", nil, kv.FlagPersistent, kv.OpenACL()...); err != nil {
		t.Fatal(err)
	}
	t.Logf("member %d leads no more: another one %v after its disk hung, a write %v after", stalled.ID, led.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	eventually(t, ctx, "everybody is connected", everybody)
	select { // the disk hangs for longer than a session may be silent
	case <-time.After(time.Until(began.Add(timeout * 3 / 2))):
	case <-ctx.Done():
	}
	eventually(t, ctx, "everybody is connected", everybody)
	if err := disks[stalled.ID].Thaw(); err != nil {
		t.Fatal(err)
	}
	sameTree(t, ctx, c)
	eventually(t, ctx, "everybody is connected", everybody)
	for _, m := range c.Members {
		if stat, err := dial(t, ctx, m.Client).Exists(ctx, "/s"); err != nil || stat.NumChildren != sessions {
			t.Errorf("member %d: %d nodes of sessions, %v", m.ID, stat.NumChildren, err)
		}
	}
}
