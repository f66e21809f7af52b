package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// releaseEvery is how many bytes of records are yielded between two calls of releaseMapped.
const releaseEvery = 4 << 20

// Load implements Store. The files are merged on the fly: each has its cursor, and of several records with one
// key the one of the newest file counts.
func (d *Dir) Load(p Point, yield func(Record) error) error {
	if err := d.Verify(p); err != nil {
		return err
	}
	var runs []*run
	var files []*openFile
	defer func() {
		for _, f := range files {
			f.close()
		}
	}()
	for i, f := range p.Files {
		var prev *File
		if i > 0 {
			prev = &p.Files[i-1]
		}
		of, err := d.open(f, prev, p.Meta, i == len(p.Files)-1)
		if err != nil {
			return err
		}
		files = append(files, of)
		runs = append(runs, of.run(bucketRecords, i, of.count))
		if f.Delta {
			deletions := of.run(bucketDeleted, i, of.deletions)
			deletions.deleted = true
			runs = append(runs, deletions)
		}
	}
	// A fault cannot be told apart by file here; the newest is named, which is the one that a fall-back gives up.
	return guardYield(p.Files[len(p.Files)-1].Name, yield, func(yield func(Record) error) error {
		released := 0
		return merge(runs, func(r Record) error {
			if released += len(r.Key) + len(r.Value); released >= releaseEvery {
				released = 0
				for _, f := range files {
					releaseMapped(f.db, f.f.Bytes)
				}
			}
			return yield(r)
		})
	})
}

// openFile is a verified file that bbolt has mapped, with what its meta bucket says.
type openFile struct {
	f                File
	db               *bolt.DB
	tx               *bolt.Tx
	count, deletions uint64
}

func (o *openFile) close() {
	if o.tx != nil {
		_ = o.tx.Rollback()
	}
	_ = o.db.Close()
}

// guard runs fn, which touches mapped memory. A fault or a panic of bbolt (a file that hashes right but was not
// written by us, or a disk that fails under the mapping) becomes a *DamageError instead of the end of the
// process.
func guard(name string, fn func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if r := recover(); r != nil {
			err = &DamageError{File: name, Offset: -1, Err: fmt.Errorf("unreadable: %v", r)}
		}
	}()
	return fn()
}

// open maps a verified file and checks that its meta bucket agrees with the point.
func (d *Dir) open(f File, prev *File, m Meta, last bool) (*openFile, error) {
	damaged := func(format string, args ...any) error {
		return &DamageError{File: f.Name, Offset: -1, Err: fmt.Errorf(format, args...)}
	}
	of := &openFile{f: f}
	err := guard(f.Name, func() (err error) {
		if of.db, err = bolt.Open(d.join(f.Name), 0, &bolt.Options{ReadOnly: true, NoStatistics: true, OpenFile: openReadOnly, Timeout: lockTimeout}); err != nil {
			if errors.Is(err, berrors.ErrTimeout) { // somebody works on the file with another tool
				return fmt.Errorf("snapshot file %s is locked by another process: %w", f.Name, err)
			}
			return damaged("%w", err)
		}
		if of.tx, err = of.db.Begin(false); err != nil {
			return damaged("%w", err)
		}
		meta := of.tx.Bucket(bucketMeta)
		if meta == nil {
			return damaged("no meta bucket: not complete")
		}
		want := map[string]uint64{string(keyComplete): 1, string(keyKind): 0, string(keyPrevHash): 0}
		if prev != nil {
			want[string(keyKind)], want[string(keyPrevHash)] = 1, prev.Hash
		}
		z, _, _, _ := parseFileName(f.Name)
		want[string(keyZxid)] = uint64(z)
		if last {
			want[string(keyChain)], want[string(keyDigest)] = m.Chain, m.Digest
		}
		if got, ok := metaNumber(meta, keyFormat); !ok || got != FileFormat {
			return damaged("format %d, this build reads %d", got, FileFormat)
		}
		for key, value := range want {
			if got, ok := metaNumber(meta, []byte(key)); !ok || got != value {
				return damaged("%s is %d, want %d", key, got, value)
			}
		}
		of.count, _ = metaNumber(meta, keyRecords)
		of.deletions, _ = metaNumber(meta, keyDeleted)
		return nil
	})
	if err != nil && of.db != nil {
		of.close()
	}
	if err != nil {
		return nil, err
	}
	return of, nil
}

// lockTimeout bounds the wait for bbolt's file lock, which nobody but another process could hold exclusively.
const lockTimeout = 5 * time.Second

// openReadOnly ignores bbolt's flags: it never gets a writable handle on a finished file.
func openReadOnly(name string, _ int, _ os.FileMode) (*os.File, error) { return os.Open(name) }

func metaNumber(b *bolt.Bucket, key []byte) (uint64, bool) {
	v := b.Get(key)
	if len(v) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(v), true
}

// run returns one bucket of the file as a sequence for merge, and checks what bbolt itself does not: number and
// shape.
func (o *openFile) run(bucket []byte, rank int, want uint64) *run {
	var cursor *bolt.Cursor
	var seen uint64
	damaged := func(format string, args ...any) error {
		return &DamageError{File: o.f.Name, Offset: -1, Err: fmt.Errorf(format, args...)}
	}
	r := &run{file: o.f.Name, rank: rank}
	r.next = func() error {
		if cursor == nil {
			b := o.tx.Bucket(bucket)
			if b == nil {
				return damaged("bucket %s is missing", bucket)
			}
			cursor = b.Cursor()
			r.key, r.value = cursor.First()
		} else {
			r.key, r.value = cursor.Next()
		}
		switch {
		case r.key == nil && seen != want:
			return damaged("bucket %s has %d keys, %d were written", bucket, seen, want)
		case r.key != nil && (len(r.key) == 0 || r.value == nil):
			return damaged("bucket %s has an impossible key", bucket)
		}
		seen++
		return nil
	}
	return r
}

// guardYield is guard for a function that calls the caller's yield in between: the caller's errors come back as
// they are and its panics stay panics.
func guardYield(name string, yield func(Record) error, fn func(func(Record) error) error) error {
	yielding := false
	var theirs any
	err := guard(name, func() error {
		defer func() {
			if yielding {
				theirs = recover()
			}
		}()
		return fn(func(r Record) error {
			yielding = true
			err := yield(r)
			yielding = false
			return err
		})
	})
	if yielding {
		panic(theirs)
	}
	return err
}
