package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"kvd/kv"
)

// The key space of the store. Part of the format. The meta record sorts before the entries.
const (
	metaKey        = "\x01meta"
	entryPrefix    = 0x02
	entryPrefixEnd = 0x03
	entryKeyBytes  = 1 + 8
)

// appendEntryKey appends the key of the group that begins with z.
func appendEntryKey(dst []byte, z kv.Zxid) []byte {
	return binary.BigEndian.AppendUint64(append(dst, entryPrefix), uint64(z))
}

func entryKey(z kv.Zxid) []byte { return appendEntryKey(make([]byte, 0, entryKeyBytes), z) }

func entryKeyZxid(k []byte) (kv.Zxid, error) {
	if len(k) != entryKeyBytes || k[0] != entryPrefix {
		return 0, fmt.Errorf("%w: unknown key %x", ErrDamaged, k)
	}
	return kv.Zxid(binary.BigEndian.Uint64(k[1:])), nil
}

// openStore opens the Pebble directory dir, which exists. Pebble runs on a goroutine of its own because a
// failure during Open may end in Logger.Fatalf, which here never returns.
func openStore(fs *fence, dir string, o *Options) (*store, error) {
	pebbleFS := *fs
	pebbleFS.park = true
	w := &watch{health: fs.health, fs: fs.FS, dir: dir, log: o.Logger}
	return guard(fs.health, func() (*store, error) {
		db, err := pebble.Open(dir, pebbleOptions(&pebbleFS, o, w))
		return &store{DB: db, watch: w}, err
	})
}

// store is one open Pebble directory.
type store struct {
	*pebble.DB
	watch *watch
}

// watch hears what Pebble finds out on its own, between the calls: it is Pebble's Logger and EventListener.
type watch struct {
	health *health
	fs     vfs.FS // beneath the fence
	dir    string
	log    *slog.Logger

	mu      sync.Mutex
	phase   watchPhase
	finding error // first damage heard of while examining
}

type watchPhase uint8

const (
	examining watchPhase = iota // Open decides what a finding means
	serving                     // a finding ends the log
	retired                     // the store is given up; nobody listens
)

// settle ends the examination: it returns the damage that was heard of, or begins to serve.
func (w *watch) settle() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.finding == nil {
		w.phase = serving
	}
	return w.finding
}

func (w *watch) retire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.phase = retired
}

// damaged takes a finding. While serving it leaves a note in the directory, so that the next start does not
// believe the store again although its own checks may not touch the place, and ends the log.
func (w *watch) damaged(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch w.phase {
	case examining:
		if w.finding == nil {
			w.finding = err
		}
		return err
	case serving:
		if w.health.failure() == nil {
			if noteErr := writeFileAtomically(w.fs, w.fs.PathJoin(w.dir, damagedName), []byte(shortReason(err))); noteErr != nil {
				err = errors.Join(err, noteErr)
			}
		}
		return w.health.fail(err)
	}
	return err
}

// background takes an error of Pebble's flushes, compactions and statistics. Pebble would try again for ever.
// Here it is final: the cause is a failed write (the fence has seen it already), an unreadable disk or damage.
func (w *watch) background(err error) {
	if errors.Is(err, pebble.ErrCancelledCompaction) {
		return
	}
	if damage, other := classify(err); damage != nil {
		_ = w.damaged(fmt.Errorf("background work: %w", damage))
	} else {
		_ = w.health.fail(fmt.Errorf("pebble: background work: %w", other))
	}
	if w.health.failure() != nil {
		select {} // Pebble would try again at once, for ever, on a processor of its own
	}
}

// shortReason bounds what a nested error text may put into a record.
func shortReason(err error) string {
	s, _, _ := strings.Cut(err.Error(), "\n")
	return s[:min(len(s), 600)]
}

// guard runs f, which reaches into Pebble, on a goroutine of its own. It returns f's result, a panic of f as
// damage, or the failure that killed the disk, whichever comes first. In the last case the goroutine is
// abandoned: it may never return, since a dead Pebble keeps its locks.
func guard[T any](h *health, f func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		defer func() {
			if p := recover(); p != nil {
				r.err = fmt.Errorf("%w: pebble panicked: %v", ErrDamaged, p)
			}
			done <- r
		}()
		r.v, r.err = f()
	}()
	var r result
	select {
	case r = <-done:
		if dead := h.failure(); dead != nil {
			return r.v, dead
		}
	case <-h.dead:
		r.err = h.failure()
	}
	return r.v, r.err
}

// closeStore closes db. A dead one cannot be closed (its goroutines may hang or panic): it is abandoned, and
// the fence keeps it from the disk.
func closeStore(h *health, s *store) error {
	if err := h.failure(); err != nil {
		return err
	}
	_, err := guard(h, func() (struct{}, error) { return struct{}{}, s.DB.Close() })
	return err
}

// pebbleOptions suit a log: keys arrive in order and are read in order, values are large, old data goes by
// range. Flushed tables do not overlap, so compactions are moves; nothing is compressed, because the log is
// purged before the space would pay for the CPU.
func pebbleOptions(fs *fence, o *Options, w *watch) *pebble.Options {
	p := &pebble.Options{
		FS:                          fs,
		FormatMajorVersion:          pebble.FormatNewest,
		CacheSize:                   o.CacheBytes,
		MemTableSize:                o.MemTableBytes,
		MemTableStopWritesThreshold: 2, // also bounds the recycled WALs, to three
		L0CompactionThreshold:       4,
		L0StopWritesThreshold:       64,
		LBaseMaxBytes:               1 << 30,
		MaxOpenFiles:                256,
		MaxManifestFileSize:         8 << 20,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 1 },
		Logger:                      w,
		ReadOnly:                    o.readOnly,
	}
	for i := range p.TargetFileSizes {
		p.TargetFileSizes[i] = 16 << 20
	}
	for i := range p.Levels {
		p.Levels[i].BlockSize = 64 << 10
		p.Levels[i].Compression = func() *sstable.CompressionProfile { return sstable.NoCompression }
	}
	p.Experimental.ReadSamplingMultiplier = -1 // no compactions triggered by reads
	p.EventListener = &pebble.EventListener{
		BackgroundError: w.background,
		DataCorruption: func(i pebble.DataCorruptionInfo) {
			_ = w.damaged(fmt.Errorf("%w: %s: %s", ErrDamaged, i.Path, shortReason(i.Details)))
		},
	}
	return p
}

// Infof implements pebble.Logger.
func (*watch) Infof(string, ...any) {}

// Errorf implements pebble.Logger.
func (w *watch) Errorf(format string, args ...any) {
	w.log.Warn("pebble", "message", shortReason(fmt.Errorf(format, args...)))
}

// Fatalf neither exits nor returns. Pebble calls it while it holds its locks and continues as if nothing had
// happened when it returns: a batch whose WAL write failed would look committed, and after a failed MANIFEST
// write it would go on to delete WALs. So the goroutine is parked for good, with its locks; everybody who waits
// for the store was told by fail, and the handle is abandoned.
func (w *watch) Fatalf(format string, args ...any) {
	_ = w.health.fail(fmt.Errorf("pebble: "+strings.TrimPrefix(format, "pebble: "), args...))
	select {}
}

// classify sorts an error of opening or reading the store: nil becomes nil; damage is something that a
// fresh store and a sync from the others repairs; anything else is returned to the caller of Open, who can
// do something about it (permissions, file descriptors, a full or broken disk, a newer program's data).
func classify(err error) (damage, other error) {
	var errno syscall.Errno
	switch {
	case err == nil:
		return nil, nil
	case errors.Is(err, ErrNewerFormat), errors.Is(err, ErrLocked), errors.Is(err, ErrDead):
		return nil, err
	case strings.Contains(err.Error(), "unknown format major version"):
		return nil, fmt.Errorf("%w: %w", ErrNewerFormat, err)
	case errors.Is(err, ErrDamaged), pebble.IsCorruptionError(err), isNotExist(err):
		return err, nil
	case errors.As(err, &errno):
		return nil, err
	default:
		return err, nil
	}
}

// storeExists reports whether dir was completely created (createStore renames it into place).
func storeExists(fs vfs.FS, dir string) (bool, error) {
	names, err := fs.List(dir)
	if isNotExist(err) {
		return false, nil
	}
	return err == nil && len(names) > 0, err
}

// createStore makes an empty store with its ack watermark at dir. It is built under another name and
// renamed, so that a directory named dir is always complete: what is missing in it was lost.
func createStore(fs *fence, dir string, o *Options) error {
	tmp := dir + ".tmp"
	if err := fs.RemoveAll(tmp); err != nil && !isNotExist(err) {
		return err
	}
	if err := fs.MkdirAll(tmp, 0o755); err != nil {
		return err
	}
	db, err := openStore(fs, tmp, o)
	if err != nil {
		return err
	}
	if err := closeStore(fs.health, db); err != nil {
		return err
	}
	if err := createWatermark(fs, fs.PathJoin(tmp, watermarkName)); err != nil {
		return err
	}
	if err := syncDir(fs, tmp); err != nil {
		return err
	}
	if err := fs.Rename(tmp, dir); err != nil {
		return err
	}
	return syncDir(fs, fs.PathDir(dir))
}

// MoveAside renames dir, which nobody has open, to the first free name dir.damaged-N, durably, and returns that name.
func MoveAside(fs vfs.FS, dir string) (string, error) {
	for n := 1; ; n++ {
		to := fmt.Sprintf("%s.damaged-%d", dir, n)
		_, err := fs.Stat(to)
		if err == nil {
			continue
		}
		if !isNotExist(err) {
			return "", err
		}
		if err := fs.Rename(dir, to); err != nil {
			return "", err
		}
		return to, syncDir(fs, fs.PathDir(dir))
	}
}
