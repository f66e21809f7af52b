package wal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// health is the one place that says whether the disk may still be believed. The first failed write kills
// it; nothing revives it.
//
// Why not leave this to Pebble: a failed sstable write is retried in the background, a failed MANIFEST
// write calls Logger.Fatalf, a failed WAL write panics or is reported by SyncWait, depending on where it
// happens. The fence below every one of these sees the failed system call first.
type health struct {
	mu     sync.Mutex
	err    error
	dead   chan struct{} // closed with err set
	onFail func(error)   // called once, on the goroutine that saw the failure
}

func newHealth() *health { return &health{dead: make(chan struct{})} }

// fail marks the disk dead. Only the first call has an effect.
func (h *health) fail(cause error) error {
	h.mu.Lock()
	if h.err != nil {
		err := h.err
		h.mu.Unlock()
		return err
	}
	h.err = fmt.Errorf("%w: %w", ErrDead, cause)
	err, onFail := h.err, h.onFail
	close(h.dead)
	h.mu.Unlock()
	if onFail != nil {
		onFail(err)
	}
	return err
}

func (h *health) failure() error {
	select {
	case <-h.dead:
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.err
	default:
		return nil
	}
}

// fence is the file system that Pebble and the small files see. Any failed write, sync, create, rename or
// remove kills health; once it is dead no write reaches the disk any more. So an abandoned Pebble handle,
// whose goroutines may still run, cannot touch a directory that was opened anew.
type fence struct {
	vfs.FS
	health *health
	locks  *lockSet
	noSync bool // UnsafeNoSync: every sync reports success and does nothing
	// park: a failed operation, and every later one that would change the disk, never returns. Pebble sees the
	// file system like this: it answers several failures with a panic on a goroutine of its own (a failed move of
	// the MANIFEST marker, a failed WAL rotation), which would take the host down, or with a retry. Nobody waits
	// for the parked goroutine: waiters were told by fail, and calls that reach into Pebble go through guard.
	park bool
}

// dead returns the failure, or parks.
func (f *fence) dead() error {
	err := f.health.failure()
	if err != nil && f.park {
		select {}
	}
	return err
}

// lockSet remembers the lock files of a log, so that they can be released when their holder is abandoned.
type lockSet struct {
	mu    sync.Mutex
	locks []*fenceLock
}

// fenceLock is a lock file that can be released from outside when its holder is abandoned.
type fenceLock struct {
	io.Closer
	once sync.Once
	err  error
}

func (k *fenceLock) Close() error {
	k.once.Do(func() {
		k.err = k.Closer.Close()
		k.Closer = nil // an abandoned holder must not keep the file system alive
	})
	return k.err
}

func (f *fence) Lock(name string) (io.Closer, error) {
	c, err := f.FS.Lock(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrLocked, name, err)
	}
	k := &fenceLock{Closer: c}
	f.locks.mu.Lock()
	defer f.locks.mu.Unlock()
	f.locks.locks = append(f.locks.locks, k)
	return k, nil
}

// release closes every lock that was taken through the fence, whoever believes to hold it.
func (s *lockSet) release() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	for _, k := range s.locks {
		err = errors.Join(err, k.Close())
	}
	s.locks = nil
	return err
}

// check passes a result through and kills health if it is a failure.
func (f *fence) check(op, name string, err error) error {
	if err == nil {
		return nil
	}
	_ = f.health.fail(fmt.Errorf("%s %s: %w", op, name, err))
	return f.dead()
}

func (f *fence) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.dead(); err != nil {
		return nil, err
	}
	if strings.HasPrefix(f.PathBase(name), "marker.") {
		// Pebble names the MANIFEST in force by a marker file, and syncs the directory once, after it created both.
		// A power cut before that may keep the marker and not the MANIFEST where directory entries are not
		// written in order, and the store would not open. So what is there becomes durable first.
		if err := syncDir(f, f.PathDir(name)); err != nil {
			return nil, err
		}
	}
	file, err := f.FS.Create(name, c)
	if err != nil {
		return nil, f.check("create", name, err)
	}
	return &fenceFile{File: file, fence: f, name: name}, nil
}

func (f *fence) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	if err := f.dead(); err != nil {
		return nil, err
	}
	file, err := f.FS.OpenReadWrite(name, c, o...)
	if err != nil {
		return nil, f.check("open for writing", name, err)
	}
	return &fenceFile{File: file, fence: f, name: name}, nil
}

func (f *fence) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.dead(); err != nil {
		return nil, err
	}
	file, err := f.FS.ReuseForWrite(oldname, newname, c)
	if err != nil {
		return nil, f.check("reuse", newname, err)
	}
	return &fenceFile{File: file, fence: f, name: newname}, nil
}

func (f *fence) OpenDir(name string) (vfs.File, error) {
	file, err := f.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &fenceFile{File: file, fence: f, name: name}, nil
}

func (f *fence) Link(oldname, newname string) error {
	if err := f.dead(); err != nil {
		return err
	}
	return f.check("link", newname, f.FS.Link(oldname, newname))
}

func (f *fence) Rename(oldname, newname string) error {
	if err := f.dead(); err != nil {
		return err
	}
	return f.check("rename", newname, f.FS.Rename(oldname, newname))
}

func (f *fence) Remove(name string) error {
	if err := f.dead(); err != nil {
		return err
	}
	err := f.FS.Remove(name)
	if isNotExist(err) {
		return err
	}
	return f.check("remove", name, err)
}

func (f *fence) RemoveAll(name string) error {
	if err := f.dead(); err != nil {
		return err
	}
	return f.check("remove", name, f.FS.RemoveAll(name))
}

func (f *fence) MkdirAll(dir string, perm os.FileMode) error {
	if err := f.dead(); err != nil {
		return err
	}
	return f.check("create directory", dir, f.FS.MkdirAll(dir, perm))
}

func (f *fence) Unwrap() vfs.FS { return f.FS }

// fenceFile is a file opened for writing, or a directory opened for syncing.
type fenceFile struct {
	vfs.File
	fence *fence
	name  string
}

func (f *fenceFile) Write(p []byte) (int, error) {
	if err := f.fence.dead(); err != nil {
		return 0, err
	}
	n, err := f.File.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return n, f.fence.check("write", f.name, err)
}

func (f *fenceFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.fence.dead(); err != nil {
		return 0, err
	}
	n, err := f.File.WriteAt(p, off)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return n, f.fence.check("write", f.name, err)
}

func (f *fenceFile) Sync() error {
	if err := f.fence.dead(); err != nil || f.fence.noSync {
		return err
	}
	return f.fence.check("sync", f.name, f.File.Sync())
}

func (f *fenceFile) SyncData() error {
	if err := f.fence.dead(); err != nil || f.fence.noSync {
		return err
	}
	return f.fence.check("sync", f.name, f.File.SyncData())
}

func (f *fenceFile) SyncTo(length int64) (bool, error) {
	if err := f.fence.dead(); err != nil || f.fence.noSync {
		return false, err
	}
	full, err := f.File.SyncTo(length)
	return full, f.fence.check("sync", f.name, err)
}

func isNotExist(err error) bool { return err != nil && errors.Is(err, fs.ErrNotExist) }
