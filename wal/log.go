package wal

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The names of the small files. Part of the format.
const (
	identityName  = "identity"
	lockName      = "lock"
	watermarkName = "ack-watermark"
	damagedName   = "damaged" // why a running log stopped believing its store
)

// Log is one member's log. All methods are safe for concurrent use.
//
// Goroutines: the writer executes the queue; the syncer syncs the ack watermark once a second; the purger
// compacts after a purge. Close waits for all three, unless the log is dead: then the writer may hang in
// Pebble and is abandoned with it.
type Log struct {
	opts         Options
	fs           *fence
	identityPath string

	// storeMu guards the life of db: readers hold it shared, Close and replaceDamaged exclusively.
	storeMu sync.RWMutex
	db      *store // nil while damaged

	// completeMu makes completions and the failure exclusive: after the failure no success is reported.
	// Lock order: completeMu before mu.
	completeMu sync.Mutex

	mu       sync.Mutex
	markFile vfs.File // the open ack watermark, for the syncer
	queue    []queued
	inflight []queued // handed to the writer, not completed
	closing  bool
	closed   bool
	done     durable // as of the last completed write
	index    index
	stats    Stats
	wake     chan struct{} // capacity 1: there is something to do

	// Owned by the writer (and by Open before it starts).
	cur       durable // as of the last write put into a batch
	watermark *watermark
	damaged   bool
	// metaDirty: the meta record differs from the stored one for a reason other than a write of the caller.
	metaDirty bool
	// identityStale: the identity file must be written again when this member becomes trusted.
	identityStale bool
	spare         []queued
	group         []pendingEntry

	stop       chan struct{} // closed by Close: ends syncer and purger
	markDirty  chan struct{} // capacity 1: the watermark was written
	purge      chan struct{} // capacity 1: something was dropped
	writerDone chan struct{}
	helpers    sync.WaitGroup
	epoch      time.Time // base of monotonic times
}

// queued is a write and when it was submitted.
type queued struct {
	w  Write
	at time.Duration
}

// Open opens the log in dir, creating it if there is none. It fails only if the caller can do something
// about it (directory in use, newer format, I/O errors); whatever the directory may hold or miss is reported
// in State.Suspect and Report instead. On success the caller must Close the Log.
func Open(dir string, o Options) (*Log, Report, error) {
	o.ensureDefaults(dir)
	h := newHealth()
	fs := &fence{FS: o.FS, health: h, locks: &lockSet{}, noSync: o.UnsafeNoSync}
	if err := errors.Join(makeDir(fs, dir), makeDir(fs, fs.PathDir(o.LogDir))); err != nil {
		return nil, Report{}, fmt.Errorf("wal: %w", err)
	}
	if _, err := fs.Lock(fs.PathJoin(dir, lockName)); err != nil {
		return nil, Report{}, err
	}
	l := &Log{
		opts: o, fs: fs, identityPath: fs.PathJoin(dir, identityName),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), markDirty: make(chan struct{}, 1),
		purge: make(chan struct{}, 1), writerDone: make(chan struct{}), epoch: time.Now(),
	}
	r, err := l.recover()
	if err != nil {
		return nil, r, fmt.Errorf("wal: open %s: %w", dir, errors.Join(err, l.release()))
	}
	l.done = l.cur
	if l.opts.examined != nil {
		l.opts.examined(h)
	}
	// Pebble works in the background as soon as it is open (it deletes what is obsolete). What failed there before
	// anybody was to be told fails Open: nobody would hear of it later.
	h.mu.Lock()
	err = h.err
	if err == nil {
		h.onFail = l.failed
	}
	h.mu.Unlock()
	if err != nil {
		return nil, r, fmt.Errorf("wal: open %s: %w", dir, errors.Join(err, l.release()))
	}
	go l.write()
	l.helpers.Go(l.syncWatermark)
	l.helpers.Go(l.reclaim)
	return l, r, nil
}

// Submit queues a write. It never blocks; the caller bounds what is outstanding. The log takes ownership of
// the slices in w until the write is completed. After Close or a failure the write is not executed: only its
// Done hears of it, at once, on this goroutine (Completed was told of the failure when it happened).
func (l *Log) Submit(w Write) {
	now := time.Since(l.epoch)
	l.mu.Lock()
	err := l.fs.health.failure()
	if err == nil && l.closing {
		err = ErrClosed
	}
	if err != nil {
		l.mu.Unlock()
		if w.Done != nil {
			w.Done(err)
		}
		return
	}
	l.queue = append(l.queue, queued{w, now})
	l.mu.Unlock()
	signal(l.wake)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// State returns the durable state as of the last completed write. Points must not be modified.
func (l *Log) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.done.state()
}

// OldestWrite returns the age of the oldest submitted and not completed write, 0 if there is none.
func (l *Log) OldestWrite() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.inflight
	if len(q) == 0 {
		q = l.queue
	}
	if len(q) == 0 {
		return 0
	}
	return time.Since(l.epoch) - q[0].at
}

// Stats counts what the log did since Open.
type Stats struct {
	Batches  int64 // synced batches
	Writes   int64
	Entries  int64
	Bytes    int64         // stored bytes of the entries
	SyncTime time.Duration // time spent waiting for syncs, and the least and greatest of one
	SyncMin  time.Duration
	SyncMax  time.Duration
	// The least and greatest number of entries in a batch that had any.
	EntriesMin, EntriesMax int64
	EntryBatches           int64 // synced batches with entries
	Queued                 int   // writes submitted and not completed
}

// note counts a synced batch.
func (s *Stats) note(took time.Duration, entries int64) {
	if s.Batches == 0 || took < s.SyncMin {
		s.SyncMin = took
	}
	s.SyncMax = max(s.SyncMax, took)
	s.SyncTime += took
	s.Batches++
	if entries == 0 {
		return
	}
	if s.EntryBatches == 0 || entries < s.EntriesMin {
		s.EntriesMin = entries
	}
	s.EntriesMax = max(s.EntriesMax, entries)
	s.Entries += entries
	s.EntryBatches++
}

// Stats returns the counters.
func (l *Log) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Queued = len(l.queue) + len(l.inflight)
	return s
}

// Err returns why the log is dead, or nil. It matches ErrDead.
func (l *Log) Err() error { return l.fs.health.failure() }

// Dead is closed when the log dies.
func (l *Log) Dead() <-chan struct{} { return l.fs.health.dead }

// failed runs once, on the goroutine that saw the first failed write, which may hold Pebble's locks: it must
// not touch the store. Every waiting write fails; no later success is reported.
func (l *Log) failed(err error) {
	l.completeMu.Lock()
	defer l.completeMu.Unlock()
	l.mu.Lock()
	waiting := slices.Concat(l.inflight, l.queue)
	l.inflight, l.queue = nil, nil
	l.mu.Unlock()
	var seq uint64
	for i := range waiting {
		if waiting[i].w.Done != nil {
			waiting[i].w.Done(err)
		}
		seq = max(seq, waiting[i].w.Seq)
	}
	l.opts.Logger.Error("log is dead", "error", err)
	l.opts.Completed(Completion{Seq: seq, Err: err})
	// What is parked in Pebble refers to this Log for good; let it not keep the caller's world alive as well.
	l.opts.Completed = func(Completion) {}
}

// Close executes what was submitted, syncs the ack watermark and releases the directory. A dead log is
// abandoned: its directory is released and its memory is not. Close returns the failure in that case.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closing {
		l.mu.Unlock()
		return ErrClosed
	}
	l.closing = true
	l.mu.Unlock()
	signal(l.wake)
	select {
	case <-l.writerDone:
	case <-l.fs.health.dead:
	}
	close(l.stop)
	if err := l.Err(); err != nil {
		l.mu.Lock()
		l.closed = true
		l.mu.Unlock()
		// Nobody waits for goroutines that may hang in Pebble.
		return errors.Join(err, l.fs.locks.release())
	}
	l.helpers.Wait()
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	// Under guard: if the disk dies now, an abandoned reader or flush may hold storeMu for good.
	_, err := guard(l.fs.health, func() (struct{}, error) {
		l.storeMu.Lock()
		defer l.storeMu.Unlock()
		var err error
		if l.watermark != nil {
			err = errors.Join(l.watermark.file.SyncData(), l.watermark.file.Close())
		}
		if l.db != nil {
			err = errors.Join(err, closeStore(l.fs.health, l.db))
			l.db = nil
		}
		return struct{}{}, err
	})
	return errors.Join(err, l.fs.locks.release())
}

// release closes what Open or Inspect opened before it gave up.
func (l *Log) release() error {
	var err error
	if l.watermark != nil {
		err = l.watermark.file.Close()
	}
	if l.db != nil {
		err = errors.Join(err, closeStore(l.fs.health, l.db))
		l.db = nil
	}
	return errors.Join(err, l.fs.locks.release())
}

// Inspect says what a stopped member's directory holds, and whether it is sound, without changing anything in
// it but lock files. The state is what Open would show. Errors as for Open.
func Inspect(dir string, o Options) (State, Report, error) {
	o.ensureDefaults(dir)
	o.readOnly = true
	fs := &fence{FS: o.FS, health: newHealth(), locks: &lockSet{}}
	if _, err := fs.Stat(dir); err != nil {
		return State{}, Report{}, fmt.Errorf("wal: %w", err)
	}
	if _, err := fs.Lock(fs.PathJoin(dir, lockName)); err != nil {
		return State{}, Report{}, err
	}
	l := &Log{opts: o, fs: fs, identityPath: fs.PathJoin(dir, identityName)}
	r, err := l.recover()
	if err = errors.Join(err, l.release()); err != nil {
		return State{}, r, fmt.Errorf("wal: inspect %s: %w", dir, err)
	}
	return l.cur.state(), r, nil
}

// setStore makes db and wm (each may be nil) the ones in use.
func (l *Log) setStore(db *store, wm *watermark) {
	l.storeMu.Lock()
	l.db = db
	l.storeMu.Unlock()
	l.watermark = wm
	l.mu.Lock()
	defer l.mu.Unlock()
	l.markFile = nil
	if wm != nil {
		l.markFile = wm.file
	}
}
