package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"testing"
	"time"

	"kvd/integration/cluster"
	"kvd/kv"
	"kvd/kv/client"
)

// smallDisk is a file system of a member's own that a test fills.
type smallDisk struct {
	*testing.T
	dir string
}

// diskBytes is its size: Pebble alone may hold some 60 MiB of write-ahead files and tables.
const diskBytes = 192 << 20

// newSmallDisk mounts a tmpfs of limited size at a member's dataDir. Where that is not allowed the test is skipped.
func newSmallDisk(t *testing.T, m *cluster.Member) *smallDisk {
	t.Helper()
	d := &smallDisk{t, filepath.Dir(m.DataDir())}
	myid, err := os.ReadFile(filepath.Join(d.dir, "myid"))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("kvd-test", d.dir, "tmpfs", 0, fmt.Sprintf("size=%d", diskBytes)); err != nil {
		missing(t, "a small file system", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(d.dir, 0); err != nil {
			t.Errorf("unmount %s: %v", d.dir, err)
		}
	})
	if err := os.WriteFile(filepath.Join(d.dir, "myid"), myid, 0o644); err != nil {
		t.Fatal(err)
	}
	return d
}

// leave makes another program's file as large as leaves that much free; 0 leaves nothing at all.
func (d *smallDisk) leave(free int64) {
	d.Helper()
	f, err := os.OpenFile(filepath.Join(d.dir, "another-program"), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		d.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var s syscall.Statfs_t
	info, err := f.Stat()
	if err = errors.Join(err, syscall.Statfs(d.dir, &s)); err != nil {
		d.Fatal(err)
	}
	room := int64(s.Bavail) * s.Bsize
	size := max(0, info.Size()+room-free)
	if err := f.Truncate(size); err != nil {
		d.Fatal(err)
	}
	for at := info.Size(); at < size; {
		n := min(size-at, 1<<20)
		if err := syscall.Fallocate(int(f.Fd()), 0, at, n); err != nil {
			if free == 0 && errors.Is(err, syscall.ENOSPC) {
				return
			}
			d.Fatal(err)
		}
		at += n
	}
}

// clear takes the other program's file away.
func (d *smallDisk) clear() {
	d.Helper()
	if err := os.Remove(filepath.Join(d.dir, "another-program")); err != nil && !errors.Is(err, os.ErrNotExist) {
		d.Fatal(err)
	}
}

// The disks of two of three members fill up: what adds data is refused, clearly, while sessions, reads and deletions go
// on; the one that is nearly full stops in order and comes back by itself; a disk that fills up at once costs one member
// its part for as long as that lasts, and nothing that was acknowledged.
func TestFullDisk(t *testing.T) {
	if testing.Short() || runtime.GOOS != "linux" {
		t.Skip("starts processes on small file systems")
	}
	notNow(t)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c, err := cluster.New(cluster.Options{Members: 3, Dir: t.TempDir(), Kvd: binaries(t).Kvd, ConfigLines: []string{
		patient, "kvd.lowSpaceBytes=33554432", "kvd.ballastBytes=16777216",
	}})
	if err != nil {
		t.Fatal(err)
	}
	first, second, third := c.Members[0], c.Members[1], c.Members[2]
	disks := []*smallDisk{newSmallDisk(t, first), newSmallDisk(t, second)}
	t.Cleanup(func() {
		c.Stop()
		if t.Failed() {
			t.Log(c.Logs(6000))
		}
	})
	if err := c.Start(ctx); err != nil {
		t.Fatal(err)
	}
	k := dial(t, ctx, third.Client)
	for i := range 20 {
		if _, _, err := k.Create(ctx, fmt.Sprintf("/n%02d", i), []byte("v"), kv.FlagPersistent); err != nil {
			t.Fatal(err)
		}
	}
	for i, d := range disks {
		eventually(t, ctx, "a ballast", func() error {
			_, err := os.Stat(filepath.Join(c.Members[i].DataDir(), "ballast"))
			return err
		})
		d.leave(24 << 20)
		logged(t, ctx, c.Members[i], "disk space is low.* path="+regexp.QuoteMeta(d.dir))
	}
	for i, m := range c.Members {
		own := dial(t, ctx, m.Client) // a new session
		eventually(t, ctx, "refused", func() error {
			_, _, err := own.Create(ctx, fmt.Sprintf("/refused-%d", m.ID), nil, kv.FlagPersistent)
			switch {
			case errors.Is(err, kv.ErrSystemError):
				return nil
			case err == nil: // a moment too early
				err = own.Delete(ctx, fmt.Sprintf("/refused-%d", m.ID), -1)
			}
			return fmt.Errorf("not refused: %v", err)
		})
		if _, _, err := own.Get(ctx, "/n10"); err != nil {
			t.Errorf("member %d: read: %v", m.ID, err)
		}
		if err := own.Delete(ctx, fmt.Sprintf("/n%02d", i), -1); err != nil {
			t.Errorf("member %d: delete: %v", m.ID, err)
		}
		if err := own.Close(); err != nil {
			t.Errorf("member %d: end of a session: %v", m.ID, err)
		}
	}
	leader, err := c.Leader(ctx)
	if err != nil {
		t.Fatal(err)
	}
	logged(t, ctx, leader, `refusing operations that add data: disk space is low at voters \[1 2\]`)

	// Nearly full: the ballast goes, and when that is used up the member.
	pid := first.Pid()
	disks[0].leave(8 << 20)
	logged(t, ctx, first, "the ballast is given up")
	disks[0].leave(8 << 20)
	logged(t, ctx, first, "waiting for disk space")
	if _, _, err := k.Get(ctx, "/n10"); err != nil {
		t.Errorf("read: %v", err)
	}
	if err := k.Delete(ctx, "/n03", -1); err != nil {
		t.Errorf("delete: %v", err)
	}
	for _, d := range disks {
		d.clear()
	}
	eventually(t, ctx, "writes are taken again", func() error {
		_, _, err := k.Create(ctx, "/after", nil, kv.FlagPersistent)
		return err
	})
	sameTree(t, ctx, c)
	if first.Pid() != pid {
		t.Error("member 1 is another process")
	}

	// Full at once, under load: whatever write meets it, nobody is told what is not so.
	written := 0
	full := time.After(200 * time.Millisecond)
	for done := false; !done; {
		select {
		case <-full:
			disks[1].leave(0)
			full = nil
		default:
		}
		if full == nil {
			done = waits(second) == nil || ctx.Err() != nil
		}
		if _, _, err := k.Create(ctx, fmt.Sprintf("/w%06d", written), make([]byte, 4096), kv.FlagPersistent); err != nil {
			if errors.Is(err, client.ErrUnknownOutcome) || errors.Is(err, client.ErrUnavailable) {
				continue // member 2 may have led: the node may be there, and the next attempt says so
			}
			if !errors.Is(err, kv.ErrNodeExists) {
				t.Fatalf("write %d: %v", written, err)
			}
		}
		written++
	}
	t.Logf("%d writes, %s", written, logged(t, ctx, second, `(member fails|waiting for disk space).*`)[0])
	disks[1].clear()
	sameTree(t, ctx, c)
	own := dial(t, ctx, second.Client)
	for i := range written {
		if _, err := own.Exists(ctx, fmt.Sprintf("/w%06d", i)); err != nil {
			t.Fatalf("write %d of %d: %v", i, written, err)
		}
	}
}

// waits says nil if a member has ended for want of space and waits.
func waits(m *cluster.Member) error {
	b, err := os.ReadFile(m.LogFile())
	if err == nil && !regexp.MustCompile(`waiting for disk space`).Match(b) {
		err = errors.New("member does not wait")
	}
	return err
}
