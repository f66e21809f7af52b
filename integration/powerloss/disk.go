package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"kvd/snapshot"
)

// disk is one machine's disk: a crashable in-memory file system for log and identity, and a real directory for
// snapshots, because bbolt maps its files. Each life of the machine has a fresh copy of both.
type disk struct {
	dir  string
	life int

	fs        *poweredFS
	snapshots *poweredStore

	// what the cut left, taken over by replace
	nextFS   *vfs.MemFS
	nextDir  string
	nextFail error
}

func newDisk(dir string) (*disk, error) {
	d := &disk{dir: dir}
	return d, d.use(vfs.NewCrashableMem(), d.lifeDir(0))
}

func (d *disk) lifeDir(n int) string { return filepath.Join(d.dir, fmt.Sprintf("life-%d", n)) }

func (d *disk) use(mem *vfs.MemFS, snapshots string) error {
	if err := os.MkdirAll(snapshots, 0o755); err != nil {
		return err
	}
	store, err := snapshot.OpenDir(snapshots, snapshot.Options{})
	if err != nil {
		return err
	}
	d.fs = newPoweredFS(mem)
	d.snapshots = &poweredStore{Store: store, durable: map[string]bool{}}
	for _, name := range list(snapshots) {
		d.snapshots.durable[name] = true // what is there after a restart does not go away again
	}
	return nil
}

// cut switches the disk off and takes what is left of it.
func (d *disk) cut(percent int, rng *rand.Rand) {
	d.fs.power.mu.Lock()
	d.fs.power.off = true
	d.nextFS = d.fs.power.fs.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
	d.fs.power.mu.Unlock()
	durable := d.snapshots.cut()
	d.nextDir = d.lifeDir(d.life + 1)
	d.nextFail = survivors(d.lifeDir(d.life), d.nextDir, durable, percent, rng)
}

// replace begins the next life.
func (d *disk) replace() error {
	if d.nextFail != nil {
		return d.nextFail
	}
	old := d.lifeDir(d.life)
	d.life++
	d.fs.power.forget()
	return errors.Join(d.use(d.nextFS, d.nextDir), os.RemoveAll(old))
}

// survivors makes the snapshot directory after the cut: durable files whole (they never change, a link will do),
// others gone, cut or whole.
func survivors(from, to string, durable map[string]bool, percent int, rng *rand.Rand) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, name := range list(from) {
		var err error
		switch {
		case durable[name]:
			err = os.Link(filepath.Join(from, name), filepath.Join(to, name))
		case rng.IntN(100) < percent:
			n := int64(1 << 40)
			if info, serr := os.Stat(filepath.Join(from, name)); serr == nil && percent < 100 && info.Size() > 0 {
				n = rng.Int64N(info.Size())
			}
			err = copyFile(filepath.Join(from, name), filepath.Join(to, name), n)
		}
		// The member runs on for a moment and may delete or rename what it no longer needs.
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func list(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	return names
}

// power is the switch. Operations that change the disk hold it shared, the cut exclusively: an operation either
// happened before the cut and is in what is left, or it failed.
type power struct {
	mu    sync.RWMutex
	off   bool
	fs    vfs.FS
	files map[*poweredFile]struct{} // open ones
}

var errPowerCut = errors.New("power is cut")

func (p *power) do(f func() error) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.off {
		return errPowerCut
	}
	return f()
}

// forget lets go of the old disk's content. A log that lost its disk is abandoned with its goroutines, and
// those would hold the files of every life until the end of the run.
func (p *power) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fs = vfs.NewMem()
	for f := range p.files {
		f.file = vfs.NewMemFile(nil)
	}
	p.files = nil
}

// poweredFS fails every change once the power is off.
type poweredFS struct{ power *power }

func newPoweredFS(fs *vfs.MemFS) *poweredFS {
	p := &power{fs: fs, files: map[*poweredFile]struct{}{}}
	return &poweredFS{power: p}
}

func (f *poweredFS) file(open func() (vfs.File, error)) (vfs.File, error) {
	f.power.mu.Lock()
	defer f.power.mu.Unlock()
	if f.power.off {
		return nil, errPowerCut
	}
	file, err := open()
	if err != nil {
		return nil, err
	}
	p := &poweredFile{file: file, power: f.power}
	f.power.files[p] = struct{}{}
	return p, nil
}

func (f *poweredFS) Open(name string, _ ...vfs.OpenOption) (vfs.File, error) {
	return f.file(func() (vfs.File, error) { return f.power.fs.Open(name) })
}

func (f *poweredFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.file(func() (vfs.File, error) { return f.power.fs.Create(name, c) })
}

func (f *poweredFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, _ ...vfs.OpenOption) (vfs.File, error) {
	return f.file(func() (vfs.File, error) { return f.power.fs.OpenReadWrite(name, c) })
}

func (f *poweredFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.file(func() (vfs.File, error) { return f.power.fs.ReuseForWrite(from, to, c) })
}

func (f *poweredFS) OpenDir(name string) (vfs.File, error) {
	return f.file(func() (vfs.File, error) { return f.power.fs.OpenDir(name) })
}

func (f *poweredFS) Link(from, to string) error {
	return f.power.do(func() error { return f.power.fs.Link(from, to) })
}

func (f *poweredFS) Rename(from, to string) error {
	return f.power.do(func() error { return f.power.fs.Rename(from, to) })
}

func (f *poweredFS) Remove(name string) error {
	return f.power.do(func() error { return f.power.fs.Remove(name) })
}

func (f *poweredFS) RemoveAll(name string) error {
	return f.power.do(func() error { return f.power.fs.RemoveAll(name) })
}

func (f *poweredFS) MkdirAll(dir string, perm os.FileMode) error {
	return f.power.do(func() error { return f.power.fs.MkdirAll(dir, perm) })
}

func (f *poweredFS) Unwrap() vfs.FS { return nil }

// now is for the operations that only look.
func (f *poweredFS) now() vfs.FS {
	f.power.mu.RLock()
	defer f.power.mu.RUnlock()
	return f.power.fs
}

func (f *poweredFS) Lock(name string) (io.Closer, error)          { return f.now().Lock(name) }
func (f *poweredFS) List(dir string) ([]string, error)            { return f.now().List(dir) }
func (f *poweredFS) Stat(name string) (vfs.FileInfo, error)       { return f.now().Stat(name) }
func (f *poweredFS) PathBase(path string) string                  { return f.now().PathBase(path) }
func (f *poweredFS) PathJoin(elem ...string) string               { return f.now().PathJoin(elem...) }
func (f *poweredFS) PathDir(path string) string                   { return f.now().PathDir(path) }
func (f *poweredFS) GetDiskUsage(p string) (vfs.DiskUsage, error) { return f.now().GetDiskUsage(p) }

type poweredFile struct {
	file  vfs.File // under power.mu
	power *power
}

func (f *poweredFile) Write(p []byte) (n int, err error) {
	err = f.power.do(func() (err error) { n, err = f.file.Write(p); return err })
	return n, err
}

func (f *poweredFile) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.power.do(func() (err error) { n, err = f.file.WriteAt(p, off); return err })
	return n, err
}

func (f *poweredFile) Read(p []byte) (n int, err error) {
	err = f.power.do(func() (err error) { n, err = f.file.Read(p); return err })
	return n, err
}

func (f *poweredFile) ReadAt(p []byte, off int64) (n int, err error) {
	err = f.power.do(func() (err error) { n, err = f.file.ReadAt(p, off); return err })
	return n, err
}

func (f *poweredFile) Stat() (i vfs.FileInfo, err error) {
	err = f.power.do(func() (err error) { i, err = f.file.Stat(); return err })
	return i, err
}

func (f *poweredFile) Sync() error     { return f.power.do(func() error { return f.file.Sync() }) }
func (f *poweredFile) SyncData() error { return f.power.do(func() error { return f.file.SyncData() }) }

func (f *poweredFile) SyncTo(n int64) (full bool, err error) {
	err = f.power.do(func() (err error) { full, err = f.file.SyncTo(n); return err })
	return full, err
}

func (f *poweredFile) Close() error {
	f.power.mu.Lock()
	defer f.power.mu.Unlock()
	delete(f.power.files, f)
	return f.file.Close()
}

func (f *poweredFile) Preallocate(int64, int64) error { return nil }
func (f *poweredFile) Prefetch(int64, int64) error    { return nil }
func (f *poweredFile) Fd() uintptr                    { return vfs.InvalidFd }

// poweredStore remembers which snapshot files are durable: those of a point that a write has returned, or a
// receiver has committed. The log refers to no other.
type poweredStore struct {
	snapshot.Store

	mu      sync.Mutex
	off     bool
	durable map[string]bool
}

// cut returns the durable files and lets no further one become durable.
func (s *poweredStore) cut() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.off = true
	return s.durable
}

func (s *poweredStore) finished(p snapshot.Point, err error) (snapshot.Point, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.off {
		err = errPowerCut
	}
	if err != nil {
		return snapshot.Point{}, err
	}
	for _, f := range p.Files {
		s.durable[f.Name] = true
	}
	return p, nil
}

func (s *poweredStore) WriteFull(ctx context.Context, m snapshot.Meta, src snapshot.Source) (snapshot.Point, error) {
	return s.finished(s.Store.WriteFull(ctx, m, src))
}

func (s *poweredStore) WriteDelta(ctx context.Context, m snapshot.Meta, changes snapshot.Source, prev snapshot.Point) (snapshot.Point, error) {
	return s.finished(s.Store.WriteDelta(ctx, m, changes, prev))
}

// Retain does nothing once the power is off: the files are still there after the restart.
func (s *poweredStore) Retain(points []snapshot.Point) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.off {
		return errPowerCut
	}
	return s.Store.Retain(points)
}

func (s *poweredStore) Receive(p snapshot.Point) (snapshot.Receiver, error) {
	r, err := s.Store.Receive(p)
	if err != nil {
		return nil, err
	}
	return &poweredReceiver{Receiver: r, store: s, point: p}, nil
}

type poweredReceiver struct {
	snapshot.Receiver
	store *poweredStore
	point snapshot.Point
}

func (r *poweredReceiver) Commit() error {
	if err := r.Receiver.Commit(); err != nil {
		return err
	}
	_, err := r.store.finished(r.point, nil)
	return err
}
