package snapshot

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
)

// FileFormat is the version of the bbolt layout described in the package comment. Newer ones are refused by name.
const FileFormat = 1

// Buckets and meta keys of a file. Part of the format.
var (
	bucketMeta    = []byte("meta")
	bucketRecords = []byte("records")
	bucketDeleted = []byte("deleted")

	keyFormat   = []byte("format")
	keyKind     = []byte("kind") // 0 full, 1 delta
	keyZxid     = []byte("zxid")
	keyChain    = []byte("chain")
	keyDigest   = []byte("digest")
	keyRecords  = []byte("records") // number of them
	keyDeleted  = []byte("deleted") // number of them
	keyPrevHash = []byte("prev-hash")
	keyComplete = []byte("complete") // 1, written in the last transaction
)

const (
	pageBytes = 4096 // of every file, whatever the machine's
	// txBytes bounds what one bbolt transaction holds in memory.
	txBytes = 1 << 20
)

// fill writes the content of one file.
//
// Records come in key order and go into transactions of bounded size, so memory does not grow with the tree: a
// transaction holds its records in an arena that the next one reuses, and what bbolt has mapped is given back
// after each. bbolt's own syncs are off; the file is synced every SyncBytes and at the end, and nobody looks at
// it before its rename.
func (d *Dir) fill(ctx context.Context, name string, m Meta, src Source, prev *File) (err error) {
	db, err := bolt.Open(name, 0o600, &bolt.Options{
		PageSize: pageBytes, NoFreelistSync: true, FreelistType: bolt.FreelistArrayType, NoSync: true, NoGrowSync: true, NoStatistics: true,
		InitialMmapSize: 64 << 20,
	})
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	w := &fileWriter{d: d, ctx: ctx, db: db, delta: prev != nil, busySince: time.Now()}
	defer func() {
		if w.tx != nil {
			_ = w.tx.Rollback()
		}
		if cerr := db.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("snapshot: %w", cerr)
		}
	}()
	// bbolt reads back through its mapping what it has written: guard turns a disk that fails there into an
	// error. Around each call, not around the source, whose own panics are its own.
	file := filepath.Base(name)
	if err := src.Records(func(r Record) error { return guard(file, func() error { return w.add(r) }) }); err != nil {
		return err
	}
	if err := guard(file, func() error { return w.finish(m, prev) }); err != nil {
		return err
	}
	if err := db.Sync(); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	return nil
}

// fileWriter adds records to one bbolt file.
type fileWriter struct {
	d     *Dir
	ctx   context.Context
	db    *bolt.DB
	delta bool

	tx               *bolt.Tx
	records, deleted *bolt.Bucket
	arena            []byte // keys and values of the open transaction: bbolt keeps references to values until the commit
	last             []byte // key of the last record, with its table byte
	count, deletions uint64
	unsynced         int64
	busySince        time.Time
}

func (w *fileWriter) begin() (err error) {
	if err := context.Cause(w.ctx); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	if w.tx, err = w.db.Begin(true); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	if w.records, err = w.bucket(bucketRecords); err != nil {
		return err
	}
	if w.delta {
		w.deleted, err = w.bucket(bucketDeleted)
	}
	return err
}

func (w *fileWriter) bucket(name []byte) (*bolt.Bucket, error) {
	b, err := w.tx.CreateBucketIfNotExists(name)
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	b.FillPercent = 1 // nothing is ever inserted between
	return b, nil
}

// add is the yield of the source.
func (w *fileWriter) add(r Record) error {
	if w.tx == nil {
		if err := w.begin(); err != nil {
			return err
		}
	}
	if cap(w.arena)-len(w.arena) < 1+len(r.Key)+len(r.Value) {
		if err := w.commit(); err != nil {
			return err
		}
		if err := w.begin(); err != nil {
			return err
		}
		if need := 1 + len(r.Key) + len(r.Value); cap(w.arena) < need {
			w.arena = make([]byte, 0, max(need, txBytes))
		}
	}
	start := len(w.arena)
	w.arena = append(append(append(w.arena, r.Table), r.Key...), r.Value...)
	key := w.arena[start : start+1+len(r.Key) : start+1+len(r.Key)]
	value := w.arena[start+len(key):]
	if w.last != nil && bytes.Compare(key, w.last) <= 0 {
		return orderError(r, w.last)
	}
	w.last = append(w.last[:0], key...)
	bucket := w.records
	if r.Value == nil {
		if !w.delta {
			return deletionError(r)
		}
		bucket = w.deleted
		w.deletions++
	} else {
		w.count++
	}
	if err := bucket.Put(key, value[:len(value):len(value)]); err != nil {
		return fmt.Errorf("snapshot: table %d key of %d bytes: %w", r.Table, len(r.Key), err)
	}
	return nil
}

// commit ends the open transaction, and then lets others have the processor and the disk.
func (w *fileWriter) commit() error {
	if w.tx != nil {
		err := w.tx.Commit()
		w.tx = nil
		if err != nil {
			return fmt.Errorf("snapshot: %w", err)
		}
	}
	w.unsynced += int64(len(w.arena))
	w.arena = w.arena[:0]
	if info, err := os.Stat(w.db.Path()); err == nil {
		releaseMapped(w.db, info.Size())
	}
	work := time.Since(w.busySince)
	if w.unsynced >= w.d.o.SyncBytes {
		w.unsynced = 0
		if err := w.db.Sync(); err != nil {
			return fmt.Errorf("snapshot: %w", err)
		}
	}
	err := rest(w.ctx, pause(work, w.d.o.CPUShare))
	w.busySince = time.Now()
	return err
}

// pause is how long to sleep after working for work in order to use share of a core.
func pause(work time.Duration, share float64) time.Duration {
	return time.Duration(float64(work) * (1 - share) / share)
}

// rest sleeps for d or until ctx ends.
func rest(ctx context.Context, d time.Duration) error {
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	return nil
}

// finish writes the meta bucket, in a transaction of its own: "complete" says that everything else is there.
func (w *fileWriter) finish(m Meta, prev *File) error {
	if w.tx == nil { // no records at all
		if err := w.begin(); err != nil {
			return err
		}
	}
	if err := w.commit(); err != nil {
		return err
	}
	if err := w.begin(); err != nil {
		return err
	}
	meta, err := w.bucket(bucketMeta)
	if err != nil {
		return err
	}
	kind, prevHash := uint64(0), uint64(0)
	if prev != nil {
		kind, prevHash = 1, prev.Hash
	}
	for _, kv := range []struct {
		key   []byte
		value uint64
	}{{keyFormat, FileFormat}, {keyKind, kind}, {keyZxid, uint64(m.Zxid)}, {keyChain, m.Chain}, {keyDigest, m.Digest},
		{keyRecords, w.count}, {keyDeleted, w.deletions}, {keyPrevHash, prevHash}, {keyComplete, 1}} {
		if err := meta.Put(kv.key, binary.BigEndian.AppendUint64(nil, kv.value)); err != nil {
			return fmt.Errorf("snapshot: %w", err)
		}
	}
	return w.commit()
}
