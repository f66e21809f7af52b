package snapshot

import (
	"errors"
	"fmt"
	"os"
)

// Receive implements Store. Files under way are called NAME.part, so that another attempt, also after a
// restart, finds what it already has; whether those bytes are right is decided by the whole file's hash in
// Commit.
func (d *Dir) Receive(p Point) (Receiver, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	busy := d.receiving
	d.receiving = true
	d.mu.Unlock()
	if busy {
		return nil, fmt.Errorf("%w: a snapshot is being received", ErrBusy)
	}
	r := &dirReceiver{d: d, p: p, have: make([]int64, len(p.Files)), parts: make([]*os.File, len(p.Files)), unsynced: make([]int64, len(p.Files))}
	if err := r.open(); err != nil {
		_ = r.Close()
		return nil, err
	}
	return r, nil
}

type dirReceiver struct {
	d        *Dir
	p        Point
	have     []int64
	parts    []*os.File // nil: the finished file is already there
	unsynced []int64
	closed   bool
}

// open finds what is there already and deletes what belongs to another point.
func (r *dirReceiver) open() error {
	keep := map[string]bool{}
	for _, f := range r.p.Files {
		keep[f.Name+receiveSuffix] = true
	}
	entries, err := os.ReadDir(r.d.path)
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	for _, e := range entries {
		if name, ok := partOf(e.Name()); ok && !keep[e.Name()] {
			if err := os.Remove(r.d.join(e.Name())); err != nil {
				return fmt.Errorf("snapshot: removing a part of %s: %w", name, err)
			}
		}
	}
	for i, f := range r.p.Files {
		if r.d.verifyFile(f) == nil {
			r.have[i] = f.Bytes
			continue
		}
		part, err := os.OpenFile(r.d.join(f.Name+receiveSuffix), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return fmt.Errorf("snapshot: %w", err)
		}
		r.parts[i] = part
		info, err := part.Stat()
		if err != nil {
			return fmt.Errorf("snapshot: %w", err)
		}
		if r.have[i] = info.Size(); r.have[i] > f.Bytes { // not ours, whatever it is
			r.have[i] = 0
			if err := part.Truncate(0); err != nil {
				return fmt.Errorf("snapshot: %w", err)
			}
		}
	}
	return nil
}

// partOf returns the final name of a file being received.
func partOf(name string) (string, bool) {
	if len(name) <= len(receiveSuffix) || name[len(name)-len(receiveSuffix):] != receiveSuffix {
		return "", false
	}
	final := name[:len(name)-len(receiveSuffix)]
	_, _, _, ok := parseFileName(final)
	return final, ok
}

// Have implements Receiver.
func (r *dirReceiver) Have() []int64 { return append([]int64(nil), r.have...) }

// checkChunk says whether a chunk is the next piece of file number file.
func checkChunk(p Point, have []int64, file int, off int64, data []byte, hash uint64) error {
	switch {
	case file < 0 || file >= len(p.Files):
		return fmt.Errorf("%w: file %d of %d", ErrBadChunk, file, len(p.Files))
	case off != have[file]:
		return fmt.Errorf("%w: %s: offset %d, next is %d", ErrBadChunk, p.Files[file].Name, off, have[file])
	case int64(len(data)) > p.Files[file].Bytes-off:
		return fmt.Errorf("%w: %s: %d bytes at %d, the file has %d", ErrBadChunk, p.Files[file].Name, len(data), off, p.Files[file].Bytes)
	case ChunkHash(data) != hash:
		return fmt.Errorf("%w: %s: wrong hash at offset %d", ErrBadChunk, p.Files[file].Name, off)
	}
	return nil
}

// WriteChunk implements Receiver.
func (r *dirReceiver) WriteChunk(file int, off int64, data []byte, hash uint64) error {
	if r.closed {
		return errReceiverClosed
	}
	if err := checkChunk(r.p, r.have, file, off, data, hash); err != nil {
		return err
	}
	if len(data) == 0 {
		return nil
	}
	if _, err := r.parts[file].WriteAt(data, off); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	r.have[file] += int64(len(data))
	if r.unsynced[file] += int64(len(data)); r.unsynced[file] >= r.d.o.SyncBytes { // so that Commit's sync is short
		r.unsynced[file] = 0
		return r.syncPart(file)
	}
	return nil
}

// syncPart syncs a part; if that fails the part is deleted and the Receiver is of no more use.
func (r *dirReceiver) syncPart(file int) error {
	err := r.d.syncFile(r.parts[file])
	if err != nil {
		_ = os.Remove(r.parts[file].Name())
		_ = r.Close()
	}
	return err
}

var errReceiverClosed = errors.New("snapshot receiver closed")

// Commit implements Receiver: the same steps as write, for each file, the point's own last.
func (r *dirReceiver) Commit() (err error) {
	if r.closed {
		return errReceiverClosed
	}
	defer func() {
		if cerr := r.Close(); err == nil {
			err = cerr
		}
	}()
	for i, f := range r.p.Files {
		if r.have[i] != f.Bytes {
			return missingBytes(f, r.have[i])
		}
	}
	for i, f := range r.p.Files {
		part := r.parts[i]
		if part == nil {
			continue
		}
		if err := r.d.step("received"); err != nil {
			return err
		}
		if err := r.syncPart(i); err != nil {
			return err
		}
		if err := r.d.step("received file synced"); err != nil {
			return err
		}
		if err := f.check(part); err != nil {
			_ = os.Remove(part.Name())
			return err
		}
		if err := r.d.adopt(part.Name(), f); err != nil {
			return err
		}
	}
	return nil
}

// Close implements Receiver.
func (r *dirReceiver) Close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	var errs []error
	for _, part := range r.parts {
		if part != nil {
			errs = append(errs, part.Close())
		}
	}
	r.d.mu.Lock()
	r.d.receiving = false
	r.d.mu.Unlock()
	return errors.Join(errs...)
}
