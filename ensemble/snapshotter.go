package ensemble

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"kvd/kv"
	"kvd/snapshot"
	"kvd/wal"
	"kvd/zab"
)

// snapshotter writes this member's own snapshot points: when the trigger says so and it is its turn, from a view
// captured at one zxid, while writes go on. The loop owns its fields; one goroutine at a time writes files.
//
// A point is in charge once the log's batch that names it is durable; only then are older files deleted. So a
// crash at any moment leaves the previous point and the log above it.
type snapshotter struct {
	cfg     *Config
	log     *slog.Logger
	store   snapshot.Store
	wal     *wal.Log
	tree    *kv.Tree
	inbox   *inbox
	trigger snapshot.Trigger
	ctx     context.Context // ends with the member
	group   sync.WaitGroup

	// points are the kept ones, oldest first. lastView is the content of the newest, for the next delta; nil: the
	// next one must be full.
	points   []snapshot.Point
	lastView *kv.View
	// Logged since the newest point.
	bytes   int64
	entries uint64
	probed  int64    // bytes at the last look at how much has changed
	active  bool     // a goroutine is at work: writing, deleting or looking
	retryAt int64    // tick before which no point is begun
	term    uint64   // counts installs: an own point begun before one is worthless
	replace bool     // a point was damaged: one is due, whatever the trigger says
	bad     []string // damaged files, since the last point that does not need any

	// retainMu makes "which files are needed" and their deletion one step against snapshots that are arriving.
	retainMu sync.Mutex
	incoming []snapshot.Point // being received, or received and not yet known to the loop; under retainMu
}

// newest returns the point that a learner would get.
func (s *snapshotter) newest() (snapshot.Point, bool) {
	if len(s.points) == 0 {
		return snapshot.Point{}, false
	}
	return s.points[len(s.points)-1], true
}

// logged counts what went to the log.
func (s *snapshotter) logged(entries []kv.Entry) {
	for i := range entries {
		s.bytes += int64(len(entries[i].Payload)) + entryLogBytes
	}
	s.entries += uint64(len(entries))
}

// entryLogBytes is about what an entry costs in the log beside its payload.
const entryLogBytes = 16

// tick tells the replica what this member would like.
func (s *snapshotter) tick(l *loop) {
	last, _ := s.newest()
	if s.lastView != nil && !s.active && s.bytes-s.probed >= probeLogBytes {
		s.probe()
	}
	want := !s.active && l.clock.now() >= s.retryAt && s.trigger.Due(s.bytes, s.entries, last) && s.tree.View().Zxid() > last.Zxid
	l.replica.SetSnapshot(want, s.active)
	if s.replace {
		s.start(l)
	}
	if len(l.awaitingSnapshot) > 0 {
		for _, w := range l.awaitingSnapshot {
			l.replica.SnapshotProgress(w.Link)
		}
		s.start(l)
	}
}

// A view kept for the next delta holds the old versions of all that has changed since. probe finds out, now and
// then, how much that is: with a few hot nodes it is nothing, however much is logged; with changes all over the tree the
// old view is soon as large as the tree, and the delta as large as a full file. It is then given up.
const (
	probeLogBytes = 8 << 20
	// probeRecordBytes is what one changed record keeps alive beside itself: its share of the tree's copied nodes.
	probeRecordBytes = 512
	// maxOldViewBytes is always allowed; beyond it an eighth of the tree's data.
	maxOldViewBytes = 8 << 20
)

func (s *snapshotter) probe() {
	s.active = true
	s.probed = s.bytes
	old, now, term := s.lastView, s.tree.View(), s.term
	s.group.Go(func() {
		limit := max(maxOldViewBytes, now.DataBytes()/8)
		var held int64
		err := now.Diff(old, func(_ uint8, key, value []byte) error {
			if held += int64(len(key)+len(value)) + probeRecordBytes; held > limit {
				return errTooMuchChanged
			}
			return nil
		})
		s.inbox.push(probeDone{term: term, giveUp: err != nil}, false)
	})
}

var errTooMuchChanged = errors.New("too much has changed")

type probeDone struct {
	term   uint64
	giveUp bool
}

func (e probeDone) deliver(l *loop) {
	l.snaps.active = false
	if e.giveUp && e.term == l.snaps.term {
		l.snaps.lastView = nil
	}
}

// snapshotRetryTicks is the pause after a failure. The log still holds everything meanwhile.
const snapshotRetryTicks = int64(30 * time.Second / tick)

// start writes a point now.
func (s *snapshotter) start(l *loop) {
	v := s.tree.View()
	last, have := s.newest()
	if s.active || l.clock.now() < s.retryAt || v.Zxid() == 0 || (have && v.Zxid() <= last.Zxid) {
		return
	}
	s.active = true
	l.replica.SetSnapshot(false, true)
	job := snapshotJob{view: v, term: s.term, bytes: s.bytes, entries: s.entries}
	if have && s.lastView != nil && !snapshot.NeedFull(last) {
		job.prev, job.old = last, s.lastView
	}
	s.group.Go(func() { s.inbox.push(s.write(job), false) })
}

// snapshotJob is one point being written. Its counters are what had been logged when it began.
type snapshotJob struct {
	view    *kv.View
	old     *kv.View // nil: full
	prev    snapshot.Point
	term    uint64
	bytes   int64
	entries uint64
}

// write runs on the goroutine of the job.
func (s *snapshotter) write(job snapshotJob) snapshotWritten {
	began := time.Now()
	v := job.view
	meta := snapshot.Meta{Zxid: v.Zxid(), Chain: v.Chain(), Digest: v.Digest()}
	var point snapshot.Point
	var err error
	if job.old == nil {
		point, err = s.store.WriteFull(s.ctx, meta, snapshot.SourceFunc(func(yield func(snapshot.Record) error) error {
			return v.Records(records(yield))
		}))
	} else {
		point, err = s.store.WriteDelta(s.ctx, meta, snapshot.SourceFunc(func(yield func(snapshot.Record) error) error {
			return v.Diff(job.old, records(yield))
		}), job.prev)
	}
	return snapshotWritten{job: job, point: point, err: err, took: time.Since(began)}
}

// records turns what a view emits into what a store takes.
func records(yield func(snapshot.Record) error) func(table uint8, key, value []byte) error {
	return func(table uint8, key, value []byte) error {
		return yield(snapshot.Record{Table: table, Key: key, Value: value})
	}
}

// snapshotWritten: the files of a point are durable, or writing them failed.
type snapshotWritten struct {
	job   snapshotJob
	point snapshot.Point
	err   error
	took  time.Duration
}

func (e snapshotWritten) deliver(l *loop) {
	s := l.snaps
	if e.err == nil {
		l.counters.snapshot.addDuration(e.took)
	}
	switch {
	case e.err != nil:
		s.active = false
		s.lastView = nil // the store may have refused the delta for the point before it
		s.retryAt = l.clock.now() + snapshotRetryTicks
		if s.ctx.Err() == nil {
			s.log.Warn("snapshot not written, will be tried again", "zxid", e.job.view.Zxid().String(), "error", e.err)
		}
		return
	case e.job.term != s.term:
		s.active = false // a leader's snapshot replaced the history this one belongs to
		return
	}
	points := append(append([]snapshot.Point(nil), s.points...), e.point)
	if n := len(points) - s.cfg.SnapshotRetain; n > 0 && !s.cfg.DisablePurge {
		points = points[n:]
	}
	logStart := l.wal.State().LogStart
	if !s.cfg.DisablePurge {
		limit := points[0].Zxid
		if needed, ok := l.replica.OldestNeeded(); ok {
			limit = min(limit, needed)
		}
		logStart = l.wal.LogStartFor(limit, int64(s.cfg.RetainEntries), s.cfg.RetainBytes)
	}
	encoded := make([][]byte, len(points))
	for i, p := range points {
		encoded[i] = p.AppendTo(nil)
	}
	l.wal.Submit(wal.Write{
		Snapshot: &wal.SnapshotPoint{Zxid: e.point.Zxid, Chain: e.point.Chain, Points: encoded, LogStart: logStart},
		Done: func(err error) {
			if err == nil {
				l.inbox.push(snapshotDurable{e, points}, false)
			}
		},
	})
}

// snapshotDurable: the log names the point.
type snapshotDurable struct {
	written snapshotWritten
	points  []snapshot.Point
}

func (e snapshotDurable) deliver(l *loop) {
	s := l.snaps
	w := &e.written
	if w.job.term != s.term {
		s.active = false
		return
	}
	s.points, s.lastView = e.points, w.job.view
	if f := w.point.Files[len(w.point.Files)-1]; w.job.old == nil {
		s.bad = slices.DeleteFunc(s.bad, func(name string) bool { return name == f.Name }) // it has been replaced
	}
	if s.dropBad(); len(s.points) > 0 && s.points[len(s.points)-1].Equal(w.point) {
		s.replace, s.bad = false, nil
	} else {
		s.lastView = nil // it stands on a damaged file
	}
	s.bytes -= w.job.bytes
	s.probed = 0
	s.entries -= w.job.entries
	st := l.wal.State()
	l.replica.SnapshotTaken(w.point.Zxid, w.point.Chain, st.LogStart, st.LogStartChain)
	kind, written := "full", w.point.FullBytes()
	if n := len(w.point.Files); n > 1 {
		kind, written = "delta", w.point.Files[n-1].Bytes
	}
	s.log.Info("snapshot written", "zxid", w.point.Zxid.String(), "kind", kind, "bytes", written,
		"log_start", st.LogStart.String(), "took", w.took.Round(time.Millisecond).String())
	for _, req := range l.awaitingSnapshot {
		l.chosen[req.Link] = w.point
		l.replica.SnapshotChosen(req.Link, w.point.Zxid, w.point.Chain, true)
	}
	l.awaitingSnapshot = nil
	s.retain(l)
}

// retain deletes the files that nothing needs any more, on a goroutine; the snapshotter stays active until then.
func (s *snapshotter) retain(l *loop) {
	keep := append([]snapshot.Point(nil), s.points...)
	for _, p := range l.chosen {
		keep = append(keep, p)
	}
	for _, p := range l.streaming {
		keep = append(keep, p)
	}
	for _, p := range l.received {
		keep = append(keep, p)
	}
	s.active = true
	s.group.Go(func() {
		s.retainMu.Lock()
		err := s.store.Retain(append(keep, s.incoming...))
		s.retainMu.Unlock()
		if err != nil {
			s.log.Warn("old snapshots not deleted", "error", err)
		}
		s.inbox.push(retained{}, false)
	})
}

type retained struct{}

func (retained) deliver(l *loop) { l.snaps.active = false }

// installing makes a received point the only one: the log's batch that is being submitted drops all history
// before it.
func (s *snapshotter) installing(p snapshot.Point) {
	s.term++
	s.points = []snapshot.Point{p}
	s.lastView, s.replace, s.bad = nil, false, nil
	s.bytes, s.entries, s.probed = 0, 0, 0
}

// snapshotRestored: the applier shows an installed snapshot.
type snapshotRestored struct {
	view  *kv.View
	point snapshot.Point
	took  time.Duration
}

func (e snapshotRestored) deliver(l *loop) {
	s := l.snaps
	if p, ok := s.newest(); ok && p.Equal(e.point) {
		s.lastView = e.view
	}
	s.log.Info("snapshot installed", "zxid", e.point.Zxid.String(), "bytes", e.point.TotalBytes(), "loaded_in", e.took.Round(time.Millisecond).String())
	if !s.active {
		s.retain(l)
	}
}

// restore loads an installed snapshot for the applier.
func (s *snapshotter) restore(it applyItem) (*kv.View, error) {
	began := time.Now()
	v, err := loadView(s.store, it.point)
	if err != nil {
		return nil, err
	}
	s.inbox.push(snapshotRestored{v, it.point, time.Since(began)}, false)
	return v, nil
}

// loadView reads a point into a view.
func loadView(store snapshot.Store, p snapshot.Point) (*kv.View, error) {
	b := kv.NewBuilder()
	if err := store.Load(p, func(r snapshot.Record) error { return b.Add(r.Table, r.Key, r.Value) }); err != nil {
		return nil, err
	}
	return b.Finish(p.Zxid, p.Chain, p.Digest)
}

// loadNewest loads the newest sound point and returns it with the older ones. skipped names what was damaged.
func loadNewest(store snapshot.Store, encoded [][]byte) (v *kv.View, points []snapshot.Point, skipped []error) {
	for _, b := range encoded {
		p, err := snapshot.DecodePoint(b)
		if err != nil {
			skipped = append(skipped, err)
			continue
		}
		points = append(points, p)
	}
	for len(points) > 0 {
		p := points[len(points)-1]
		v, err := loadView(store, p)
		if err == nil {
			return v, points, skipped
		}
		skipped = append(skipped, fmt.Errorf("snapshot of %v: %w", p.Zxid, err))
		points = points[:len(points)-1]
	}
	return nil, nil, skipped
}

// arrivals is the store as the transport sees it: what is being received counts as needed until the loop has
// heard of it.
type arrivals struct {
	snapshot.Store
	s *snapshotter
}

// Receive implements snapshot.Store.
func (a arrivals) Receive(p snapshot.Point) (snapshot.Receiver, error) {
	a.s.retainMu.Lock()
	defer a.s.retainMu.Unlock()
	a.s.incoming = []snapshot.Point{p} // one at a time, says the store
	return a.Store.Receive(p)
}

// historyReader reads entries that a learner needs and that are no longer in memory. One goroutine, requests in
// order; each link has at most one.
type historyReader struct {
	wal   *wal.Log
	inbox *inbox
	wake  *waker
	done  chan struct{}

	mu    sync.Mutex
	queue []zab.ReadLog
	stop  bool
}

func (h *historyReader) enqueue(r zab.ReadLog) {
	h.mu.Lock()
	h.queue = append(h.queue, r)
	h.mu.Unlock()
	h.wake.signal()
}

func (h *historyReader) run() {
	defer close(h.done)
	for range h.wake.c {
		for {
			h.mu.Lock()
			if h.stop {
				h.mu.Unlock()
				return
			}
			if len(h.queue) == 0 {
				h.mu.Unlock()
				break
			}
			r := h.queue[0]
			h.queue = append(h.queue[:0], h.queue[1:]...)
			h.mu.Unlock()
			entries, err := h.wal.Read(r.After, r.Through, r.MaxBytes, nil)
			h.inbox.push(historyRead{r.Link, r.After, entries, err}, false)
		}
	}
}

func (h *historyReader) close() {
	h.mu.Lock()
	h.stop = true
	h.mu.Unlock()
	h.wake.signal()
	<-h.done
}
