package ensemble

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Short disk space (design 8). Pebble, when it meets a full disk, blocks or spins instead of failing, so the member has to
// end before that. Free space is measured where the log and the snapshots lie, and compared with three marks:
//
//   - low: LowSpaceBytes and one snapshot. It is said in PING replies; when the voters above it are no quorum the leader
//     refuses what adds data (zab.Peer.Full). Deletions and the ends of sessions go on and may make room.
//   - floor: BallastBytes. A file of that size was allocated while there was room; below the floor it is removed, once.
//   - the floor again, with the ballast gone: the member ends with ErrNoSpace, its log closed in order. A Keeper starts it
//     again when there is twice the floor.

// ErrNoSpace ended a member, or kept it from being started, because its disk is as good as full. What it acknowledged is on
// disk. It may be started again when there is room.
var ErrNoSpace = errors.New("ensemble: too little disk space")

// spaceMarks are the three marks, in bytes; a floor of 0: none.
type spaceMarks struct{ low, floor uint64 }

func (c *Config) spaceMarks() spaceMarks {
	return spaceMarks{low: uint64(max(0, c.LowSpaceBytes)), floor: uint64(max(0, c.BallastBytes))}
}

// toReturn is how much has to be free before a member is started that has no ballast to give up: with less it would soon
// end again.
func (m spaceMarks) toReturn() uint64 { return 2 * m.floor }

// spaceState is what was decided on the measurements so far.
type spaceState struct {
	low  bool
	held bool // the ballast is on the disk
}

// spaceStep is what a measurement asks for.
type spaceStep uint8

const (
	spaceNothing spaceStep = iota
	spaceAllocate
	spaceRelease
	spaceEnd
)

// judge takes in a measurement. snapshot is the size of the newest one.
func (m spaceMarks) judge(s *spaceState, free, snapshot uint64) spaceStep {
	low := m.low + snapshot
	if free < low {
		s.low = true
	} else if free >= low+m.floor { // what the ballast will take does not make it low again, and a disk on the brink does not flap
		s.low = false
	}
	switch {
	case m.floor == 0:
	case free < m.floor && s.held:
		return spaceRelease
	case free < m.floor:
		return spaceEnd
	case !s.held && !s.low && free >= low+m.floor:
		return spaceAllocate
	}
	return spaceNothing
}

// diskWatch measures free space off the loop: a dying disk may hang a statfs.
type diskWatch struct {
	fs       vfs.FS
	dirs     []string // of the log, which comes first, and of the snapshots
	ballast  string   // path
	marks    spaceMarks
	log      *slog.Logger
	failed   func(error)
	snapshot atomic.Uint64 // bytes of the newest one

	free atomic.Uint64
	low  atomic.Bool

	state spaceState // owned by run
	stop  chan struct{}
	done  chan struct{}
}

// How often free space is measured: usually, and while it is low.
const (
	spaceEvery    = time.Second
	lowSpaceEvery = 100 * time.Millisecond
)

// ballastName is the file's name, beside the log.
const ballastName = "ballast"

func newDiskWatch(cfg *Config, failed func(error)) *diskWatch {
	d := &diskWatch{
		fs: cfg.FS, dirs: []string{cfg.LogDir, cfg.DataDir}, ballast: cfg.ballastPath(), marks: cfg.spaceMarks(), log: cfg.Logger, failed: failed,
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	d.free.Store(math.MaxUint64) // unknown: nothing is refused for it
	d.state.held = ballastHeld(d.fs, d.ballast, d.marks.floor)
	free, _, ok := freeSpace(d.fs, d.dirs)
	if ok {
		d.free.Store(free)
		d.low.Store(free < d.marks.low)
	}
	return d
}

func (c *Config) ballastPath() string { return c.FS.PathJoin(c.FS.PathDir(c.LogDir), ballastName) }

func ballastHeld(f vfs.FS, path string, bytes uint64) bool {
	info, err := f.Stat(path)
	return err == nil && bytes > 0 && uint64(info.Size()) >= bytes
}

// freeSpace is the least that is free where the directories, or what they will be made in, lie.
func freeSpace(f vfs.FS, dirs []string) (free uint64, where string, ok bool) {
	free = math.MaxUint64
	for _, dir := range dirs {
		for !exists(f, dir) && f.PathDir(dir) != dir {
			dir = f.PathDir(dir)
		}
		if u, err := f.GetDiskUsage(dir); err == nil && u.AvailBytes < free {
			free, where, ok = u.AvailBytes, dir, true
		}
	}
	return free, where, ok
}

// run is the goroutine.
func (d *diskWatch) run() {
	defer close(d.done)
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-d.stop:
			return
		}
		for d.measure() { // again at once after the ballast has gone
		}
		if d.low.Load() {
			t.Reset(lowSpaceEvery)
		} else {
			t.Reset(spaceEvery)
		}
	}
}

// measure does what one measurement asks for. It reports whether that changed what is free.
func (d *diskWatch) measure() bool {
	free, where, ok := freeSpace(d.fs, d.dirs)
	if !ok {
		return false
	}
	d.free.Store(free)
	step := d.marks.judge(&d.state, free, d.snapshot.Load())
	if d.low.Swap(d.state.low) != d.state.low {
		if d.state.low {
			d.log.Warn("disk space is low", "path", where, "free", free, "low_mark", d.marks.low+d.snapshot.Load())
		} else {
			d.log.Info("disk space is no longer low", "path", where, "free", free)
		}
	}
	switch step {
	case spaceAllocate:
		if err := allocate(d.fs, d.ballast, int64(d.marks.floor)); err != nil {
			d.log.Warn("no ballast", "path", d.ballast, "error", err)
			_ = d.fs.Remove(d.ballast)
		}
		d.state.held = true // also without it: it is not tried again before the space has been short
	case spaceRelease:
		d.log.Warn("disk space is nearly spent: the ballast is given up", "path", where, "free", free, "ballast", d.marks.floor)
		d.state.held = false
		if err := d.fs.Remove(d.ballast); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.log.Error("ballast", "error", err)
		}
		return true
	case spaceEnd:
		d.failed(fmt.Errorf("%w: %d bytes are free at %s, and less than %d may not be enough to close the log", ErrNoSpace, free, where, d.marks.floor))
	}
	return false
}

// allocate makes a file that takes that many bytes of the disk.
func allocate(f vfs.FS, path string, bytes int64) (err error) {
	file, err := f.Create(path, "kvd-ballast")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	// Where the file system cannot reserve, the blocks are written: a file with a hole would be no ballast.
	if err := file.Preallocate(0, bytes); err != nil {
		zeros := make([]byte, 1<<20)
		for at := int64(0); at < bytes; at += int64(len(zeros)) {
			if _, err := file.WriteAt(zeros[:min(int64(len(zeros)), bytes-at)], at); err != nil {
				return err
			}
		}
	}
	if _, err := file.WriteAt([]byte{0}, bytes-1); err != nil {
		return err
	}
	return file.Sync()
}

// missingSpace says why a member cannot be started now, nil if it can. A member with ballast has that to give up.
func (c *Config) missingSpace() error {
	marks := c.spaceMarks()
	free, where, ok := freeSpace(c.FS, []string{c.LogDir, c.DataDir})
	need := marks.toReturn()
	if ballastHeld(c.FS, c.ballastPath(), marks.floor) {
		need = marks.floor
	}
	if !ok || free >= need {
		return nil
	}
	return fmt.Errorf("%w: %d bytes are free at %s, %d are needed: the log is not opened", ErrNoSpace, free, where, need)
}

// outOfSpace reports whether a member ended, or could not be started, for want of space.
func outOfSpace(err error) bool { return errors.Is(err, ErrNoSpace) || errors.Is(err, syscall.ENOSPC) }
