package ensemble_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"kvd/ensemble"
	"kvd/ensemble/ensembletest"
	"kvd/kv"
	"kvd/kv/client"
)

// smallDisk says how much of a disk is free: its room less the ballast that lies on it.
type smallDisk struct {
	vfs.FS
	room    atomic.Int64
	ballast string
}

func (d *smallDisk) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	u, err := d.FS.GetDiskUsage(path)
	free := d.room.Load()
	if info, serr := os.Stat(d.ballast); serr == nil {
		free -= info.Size()
	}
	u.AvailBytes = uint64(max(0, free))
	return u, err
}

func (d *smallDisk) hasBallast() bool {
	_, err := os.Stat(d.ballast)
	return err == nil
}

// The marks of these tests: low below 8 MiB, a ballast of 1 MiB.
const (
	plenty   = 100 << 20
	lowSpace = 5 << 20
)

// smallDisks gives each member a disk of its own.
func smallDisks(n int) ([]*smallDisk, func(*ensemble.Config)) {
	disks := make([]*smallDisk, n)
	for i := range disks {
		disks[i] = &smallDisk{FS: vfs.Default}
		disks[i].room.Store(plenty)
	}
	return disks, func(c *ensemble.Config) {
		d := disks[c.ID-1]
		if d.ballast == "" { // the first configuration is made before anything runs
			d.ballast = filepath.Join(c.DataDir, "ballast")
		}
		c.FS, c.LowSpaceBytes, c.BallastBytes = d, 8<<20, 1<<20
	}
}

// inTime is a context for what takes no time.
func inTime(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// addsRefused reports that every operation that adds data is refused, and that everything else goes on.
func addsRefused(t *testing.T, c *client.Client, path string) error {
	t.Helper()
	ctx := inTime(t)
	_, _, created := c.Create(ctx, path+"-new", nil, kv.FlagPersistent)
	_, set := c.Set(ctx, path, []byte("2"), -1)
	if created == nil {
		if err := c.Delete(ctx, path+"-new", -1); err != nil {
			t.Fatal(err)
		}
	}
	for what, err := range map[string]error{"create": created, "set": set} {
		if !errors.Is(err, kv.ErrSystemError) {
			return fmt.Errorf("%s: %v", what, err)
		}
	}
	if _, _, err := c.Get(ctx, path); err != nil {
		t.Fatalf("read: %v", err)
	}
	return nil
}

// A low minority changes nothing. When the voters with room are no quorum, what adds data is refused through every member,
// with a line that names the members and one that names the disk; deletions and sessions go on; and it ends by itself.
func TestLowDiskSpace(t *testing.T) {
	var log logText
	disks, tune := smallDisks(3)
	e := ensembletest.Start(t, 3, tune, func(c *ensemble.Config) { c.Logger = log.logger() })
	ctx := inTime(t)
	c := e.Client(t, 0)
	for i := range 6 {
		if _, _, err := c.Create(ctx, fmt.Sprintf("/n%d", i), []byte("1"), kv.FlagPersistent); err != nil {
			t.Fatal(err)
		}
	}
	disks[0].room.Store(lowSpace)
	soon(t, "member 1 is low", func() bool { return log.count("disk space is low") == 1 })
	for range 20 { // for several PING rounds
		if _, err := c.Set(ctx, "/n0", []byte("1"), -1); err != nil {
			t.Fatalf("a low minority: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	disks[2].room.Store(lowSpace)
	for i := range 3 {
		k := e.Client(t, i)
		soon(t, "refused", func() bool { return addsRefused(t, k, "/n0") == nil })
		if err := k.Delete(ctx, fmt.Sprintf("/n%d", i+1), -1); err != nil {
			t.Errorf("member %d: delete: %v", i+1, err)
		}
		s := e.Client(t, i)
		if err := s.Close(); err != nil {
			t.Errorf("member %d: a session's end: %v", i+1, err)
		}
	}
	soon(t, "both lines", func() bool {
		return strings.Contains(log.String(), "disk space is low at voters [1 3], and the others are no quorum") && strings.Contains(log.String(), "path="+e.Config(t, 2).DataDir)
	})
	// What was written before is there, what was refused is not; and the ballast is still in reserve.
	if _, err := c.Exists(ctx, "/n0-new"); !errors.Is(err, kv.ErrNoNode) {
		t.Errorf("refused and there: %v", err)
	}
	if !disks[0].hasBallast() {
		t.Error("the ballast went too early")
	}
	disks[0].room.Store(plenty)
	soon(t, "writes are taken again", func() bool { _, err := c.Set(ctx, "/n0", []byte("3"), -1); return err == nil })
}

// What is nearly full gives up its ballast; when that is spent the member ends in order, the others go on without it, and
// it is back when there is room, on its addresses, with everything.
func TestFullDiskEndsAndReturns(t *testing.T) {
	disks, tune := smallDisks(3)
	e := ensembletest.Start(t, 3, tune)
	e.CloseMember(t, 0)
	var log logText
	k, _ := keep(t, e, 0, func(c *ensemble.Config) { c.Logger = log.logger() })
	ctx := inTime(t)
	c := e.Client(t, 1)
	if _, _, err := c.Create(ctx, "/n", nil, kv.FlagPersistent); err != nil {
		t.Fatal(err)
	}
	soon(t, "a ballast", disks[0].hasBallast)
	first := k.Member()
	disks[0].room.Store(3 << 19) // 0.5 MiB beside the ballast
	soon(t, "the ballast is given up", func() bool { return !disks[0].hasBallast() })
	overwrite(t, c, "/n", 10, 100)
	select {
	case <-first.Done():
		t.Fatalf("ended with a MiB and a half free: %v", first.Err())
	default:
	}
	disks[0].room.Store(1 << 19)
	<-first.Done()
	if err := first.Err(); !errors.Is(err, ensemble.ErrNoSpace) {
		t.Fatalf("ended with %v", err)
	}
	soon(t, "it says that it waits", func() bool { return strings.Contains(log.String(), "waiting for disk space") })
	overwrite(t, c, "/n", 10, 100)
	if _, err := ensemble.Start(ctx, e.Config(t, 0)); !errors.Is(err, ensemble.ErrNoSpace) {
		t.Fatalf("started on a full disk: %v", err)
	}
	// Whoever calls meanwhile is turned away at once, and does not wait.
	for _, addr := range []string{e.Peers[0].ClientAddr, fmt.Sprintf("127.0.0.1:%d", e.Peers[0].LearnerPort)} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v", addr, err)
		}
		_ = conn.Close()
	}
	disks[0].room.Store(plenty)
	if err := k.WaitServing(ctx); err != nil {
		t.Fatal(err)
	}
	own, err := client.Dial(ctx, e.Peers[0].ClientAddr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = own.Close() }()
	if err := own.Sync(ctx, "/n"); err != nil {
		t.Fatal(err)
	}
	if stat, err := own.Exists(ctx, "/n"); err != nil || stat.Version != 20 {
		t.Errorf("version %d, %v", stat.Version, err)
	}
	soon(t, "a ballast again", disks[0].hasBallast)
}

// A Keeper waits for the space of a first start, and can be told to stop.
func TestKeepWaitsForSpace(t *testing.T) {
	disks, tune := smallDisks(1)
	disks[0].room.Store(1 << 20)
	var log logText
	cfg := ensemble.Config{ID: 1, DataDir: filepath.Join(t.TempDir(), "member"), Logger: log.logger(), ClientListen: []string{"127.0.0.1:0"}}
	tune(&cfg)
	ctx, cancel := context.WithCancel(inTime(t))
	ended := make(chan error, 1)
	go func() {
		_, err := ensemble.Keep(ctx, cfg)
		ended <- err
	}()
	soon(t, "it says that it waits", func() bool { return strings.Contains(log.String(), "the log is not opened") })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if _, err := os.Stat(cfg.DataDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory was made: %v", err)
	}
	go func() {
		soon(t, "it waits again", func() bool { return log.count("the log is not opened") == 2 })
		disks[0].room.Store(plenty)
	}()
	k, err := ensemble.Keep(inTime(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = k.Close() }()
	if err := k.WaitServing(inTime(t)); err != nil {
		t.Fatal(err)
	}
}
