package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Options configure a Dir. The zero value is ready to use.
type Options struct {
	// CPUShare is the part of one core that writing a file may use, between 0 and 1; the rest of the time the writer
	// sleeps. 0 means 1: no throttling.
	CPUShare float64
	// SyncBytes is how much is written between syncs, so that the last one is short and the log's own syncs do
	// not wait behind a cache full of snapshot. 0 means 32 MiB.
	SyncBytes int64
	Logger    *slog.Logger // nil: discard

	// crash, when set by a test, is called between the steps; an error stops right there and leaves everything
	// as it is.
	crash func(step string) error
	// sync, when set by a test, stands in for (*os.File).Sync.
	sync func(*os.File) error
}

// Dir is a Store of bbolt files in one directory.
type Dir struct {
	path string
	o    Options
	log  *slog.Logger

	mu        sync.Mutex
	writing   bool // a WriteFull or WriteDelta is running; under mu, as all below
	receiving bool // a Receiver is open
}

var _ Store = (*Dir)(nil)

const (
	writePattern  = "write-*.tmp" // files being written
	receiveSuffix = ".part"       // files being received: NAME.part
)

// ErrBusy is returned when a second writer or a second Receiver is asked for.
var ErrBusy = errors.New("snapshot store busy")

// errCrash is what a test's crash hook wraps to say: stop without cleaning up.
var errCrash = errors.New("simulated crash")

// OpenDir opens the directory, creating it if needed, and removes what an interrupted write left behind. Partly
// received files stay: the next Receive of the same point goes on with them.
func OpenDir(path string, o Options) (*Dir, error) {
	if o.CPUShare < 0 || o.CPUShare > 1 {
		return nil, fmt.Errorf("snapshot: CPUShare %v is outside 0..1", o.CPUShare)
	}
	if o.CPUShare == 0 {
		o.CPUShare = 1
	}
	if o.SyncBytes <= 0 {
		o.SyncBytes = 32 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	if err := syncDir(filepath.Dir(path)); err != nil { // a point may be referenced only if its directory survives too
		return nil, err
	}
	d := &Dir{path: path, o: o, log: o.Logger}
	left, err := filepath.Glob(filepath.Join(path, writePattern))
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	for _, name := range left {
		d.log.Info("removing an unfinished snapshot", "file", filepath.Base(name))
		if err := os.Remove(name); err != nil {
			return nil, fmt.Errorf("snapshot: %w", err)
		}
	}
	return d, nil
}

// Path is the directory.
func (d *Dir) Path() string { return d.path }

func (d *Dir) join(name string) string { return filepath.Join(d.path, name) }

func (d *Dir) step(name string) error {
	if d.o.crash == nil {
		return nil
	}
	return d.o.crash(name)
}

// WriteFull implements Store.
func (d *Dir) WriteFull(ctx context.Context, m Meta, src Source) (Point, error) {
	f, err := d.write(ctx, m, src, nil)
	if err != nil {
		return Point{}, err
	}
	return Point{Meta: m, Files: []File{f}}, nil
}

// WriteDelta implements Store.
func (d *Dir) WriteDelta(ctx context.Context, m Meta, changes Source, prev Point) (Point, error) {
	if err := checkDelta(m, prev); err != nil {
		return Point{}, err
	}
	last := prev.Files[len(prev.Files)-1]
	f, err := d.write(ctx, m, changes, &last)
	if err != nil {
		return Point{}, err
	}
	return Point{Meta: m, Files: append(append([]File(nil), prev.Files...), f)}, nil
}

// checkDelta refuses a delta that cannot stand on prev.
func checkDelta(m Meta, prev Point) error {
	if err := prev.Validate(); err != nil {
		return err
	}
	if m.Zxid <= prev.Zxid {
		return fmt.Errorf("snapshot: delta at %s on a point at %s", m.Zxid, prev.Zxid)
	}
	if len(prev.Files) >= MaxFiles {
		return fmt.Errorf("snapshot: a point of %d files takes no further delta", len(prev.Files))
	}
	return nil
}

// write makes one finished file: temporary file, sync, rename, sync of the directory.
func (d *Dir) write(ctx context.Context, m Meta, src Source, prev *File) (f File, err error) {
	d.mu.Lock()
	busy := d.writing
	d.writing = true
	d.mu.Unlock()
	if busy {
		return File{}, fmt.Errorf("%w: a snapshot is being written", ErrBusy)
	}
	defer func() {
		d.mu.Lock()
		d.writing = false
		d.mu.Unlock()
	}()
	tmp, err := os.CreateTemp(d.path, writePattern)
	if err != nil {
		return File{}, fmt.Errorf("snapshot: %w", err)
	}
	name := tmp.Name()
	defer func() {
		if err != nil && !errors.Is(err, errCrash) {
			_ = os.Remove(name)
		}
	}()
	if err = tmp.Close(); err != nil {
		return File{}, fmt.Errorf("snapshot: %w", err)
	}
	if err = d.step("created"); err != nil {
		return File{}, err
	}
	if err = d.fill(ctx, name, m, src, prev); err != nil {
		return File{}, err
	}
	if err = d.step("written"); err != nil {
		return File{}, err
	}
	if f, err = d.seal(name, m, prev != nil); err != nil {
		return File{}, err
	}
	return f, nil
}

// seal syncs a complete temporary file, hashes it and gives it its name.
func (d *Dir) seal(tmp string, m Meta, delta bool) (File, error) {
	file, err := os.Open(tmp)
	if err != nil {
		return File{}, fmt.Errorf("snapshot: %w", err)
	}
	defer file.Close()
	if err := d.syncFile(file); err != nil {
		return File{}, err
	}
	if err := d.step("synced"); err != nil {
		return File{}, err
	}
	bytes, hash, err := hashFile(file)
	if err != nil {
		return File{}, fmt.Errorf("snapshot: %w", err)
	}
	f := File{Name: fileName(m.Zxid, hash, delta), Bytes: bytes, Hash: hash, Delta: delta}
	return f, d.adopt(tmp, f)
}

// adopt renames a complete, synced file to its name and makes the name durable.
func (d *Dir) adopt(tmp string, f File) error {
	if err := os.Rename(tmp, d.join(f.Name)); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	if err := d.step("renamed"); err != nil {
		return err
	}
	if err := syncDir(d.path); err != nil {
		return err
	}
	return d.step("directory synced")
}

// syncFile makes a file's bytes durable. A failure is final for that file: the kernel may have dropped the
// pages and would report a later sync as good, so the caller must delete the file and never try again with it.
func (d *Dir) syncFile(f *os.File) error {
	sync := d.o.sync
	if sync == nil {
		sync = (*os.File).Sync
	}
	if err := sync(f); err != nil {
		return fmt.Errorf("snapshot: syncing: %w", err)
	}
	return nil
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("snapshot: syncing the directory: %w", err)
	}
	return nil
}

// OpenFile implements Store.
func (d *Dir) OpenFile(name string) (FileReader, error) {
	if _, _, _, ok := parseFileName(name); !ok {
		return nil, fmt.Errorf("snapshot: %.80q is not the name of a snapshot file", name)
	}
	f, err := os.Open(d.join(name))
	if err != nil {
		return nil, &DamageError{File: name, Offset: -1, Err: err}
	}
	return f, nil
}

// Retain implements Store.
func (d *Dir) Retain(points []Point) error {
	keep, newest := referenced(points)
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	var errs []error
	removed := 0
	for _, e := range entries {
		name := e.Name()
		if z, _, _, ok := parseFileName(strings.TrimSuffix(name, receiveSuffix)); !ok || keep[name] {
			continue
		} else if strings.HasSuffix(name, receiveSuffix) {
			if z > newest || d.isReceiving() {
				continue
			}
		}
		if err := os.Remove(d.join(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
			continue
		}
		removed++
	}
	if removed > 0 {
		errs = append(errs, syncDir(d.path))
	}
	return errors.Join(errs...)
}

func (d *Dir) isReceiving() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.receiving
}
