package ensemble

import (
	"errors"
	"fmt"
	"sync"

	"kvd/ensemble/replica"
	"kvd/kv"
	"kvd/kv/wire"
	"kvd/snapshot"
	"kvd/wal"
)

// readChunkBytes is how much of a range that is not in memory is read from the log at once.
const readChunkBytes = 4 << 20

// logReader is the part of the log store that the applier needs.
type logReader interface {
	Read(after, through kv.Zxid, maxBytes int, dst []kv.Entry) ([]kv.Entry, error)
}

// applier is the goroutine that alone writes the tree. It takes everything that has gathered, applies it as one
// batch, and then hands results and wake-ups to the connections, in zxid order.
//
// What may be queued is bounded by the protocol: committed entries are part of what zab lets be outstanding, or
// are ranges to be read from the log in chunks.
type applier struct {
	member MemberID
	tree   *kv.Tree
	port   *clientPort
	intake *intake
	log    logReader
	// restore loads an installed snapshot.
	restore func(applyItem) (*kv.View, error)
	// applied tells the loop what is published, and the newest token among it.
	applied func(z kv.Zxid, request uint64)
	// failed ends the member: the state cannot be trusted.
	failed func(error)

	wake *waker
	done chan struct{}

	mu    sync.Mutex
	queue []applyItem
	stop  bool

	// Owned by the goroutine.
	items   []applyItem
	batch   []kv.Entry
	current []*slot // of the batch, in the order of Done; nil for an end of session that nobody here asked for
	at      int     // next one in current
	newest  uint64
	syncs   []confirmedSync // waiting for their zxid
	// skipping: what was to be applied is no longer in the log, because a snapshot that holds it has been installed
	// meanwhile. Everything up to its restore, which follows, is part of it.
	skipping bool
}

// applyItem is one thing to do, in order. Exactly one of the groups is set.
type applyItem struct {
	// A range of committed entries; read from the log if entries is nil.
	after, through kv.Zxid
	entries        []kv.Entry
	// An installed snapshot.
	restore bool
	zxid    kv.Zxid
	point   snapshot.Point
	// A confirmed sync.
	sync  bool
	token uint64
}

// confirmedSync waits until the state it asked for is published.
type confirmedSync struct {
	token uint64
	zxid  kv.Zxid
}

// enqueue adds items for the goroutine. Only the loop calls it.
func (a *applier) enqueue(items ...applyItem) {
	a.mu.Lock()
	a.queue = append(a.queue, items...)
	a.mu.Unlock()
	a.wake.signal()
}

// close stops the goroutine after what it is doing and waits for it.
func (a *applier) close() {
	a.mu.Lock()
	a.stop = true
	a.mu.Unlock()
	a.wake.signal()
	<-a.done
}

func (a *applier) run() {
	defer close(a.done)
	for range a.wake.c {
		a.mu.Lock()
		a.items, a.queue = a.queue, a.items[:0]
		stop := a.stop
		a.mu.Unlock()
		if stop {
			return
		}
		err := a.work(a.items)
		clear(a.items)
		if errors.Is(err, errStopped) {
			return
		}
		if err != nil {
			a.failed(fmt.Errorf("applier: %w", err))
			return
		}
	}
}

// work carries out items in order, joining consecutive ranges into one batch.
func (a *applier) work(items []applyItem) error {
	for i := range items {
		it := &items[i]
		switch {
		case it.sync:
			a.syncs = append(a.syncs, confirmedSync{it.token, it.zxid})
		case it.restore:
			if err := a.flush(); err != nil {
				return err
			}
			v, err := a.restore(*it)
			if err != nil {
				return fmt.Errorf("loading the installed snapshot of %v: %w", it.zxid, err)
			}
			a.tree.Reset(v)
			a.port.closeEnded(v)
			a.skipping = false
			a.publish()
		case a.skipping:
		case it.entries != nil:
			a.batch = append(a.batch, it.entries...)
		default:
			if err := a.applyFromLog(it.after, it.through); err != nil {
				return err
			}
		}
	}
	if err := a.flush(); err != nil {
		return err
	}
	a.finishSyncs()
	return nil
}

// applyFromLog applies a range that is no longer in memory, in chunks.
func (a *applier) applyFromLog(after, through kv.Zxid) error {
	for after < through {
		n := len(a.batch)
		batch, err := a.log.Read(after, through, readChunkBytes, a.batch)
		if errors.Is(err, wal.ErrCompacted) || errors.Is(err, wal.ErrNotFound) {
			// Only an installed snapshot takes away what has not been applied: purging stops at the own snapshot. Were it
			// otherwise, the next batch would not follow the tree, which ends the member.
			a.skipping = true
			return a.flush()
		}
		if err != nil {
			return fmt.Errorf("reading (%v, %v] from the log: %w", after, through, err)
		}
		if len(batch) == n {
			return fmt.Errorf("the log ends at %v, before %v", after, through)
		}
		a.batch = batch
		after = batch[len(batch)-1].Zxid
		if err := a.flush(); err != nil {
			return err
		}
		a.mu.Lock()
		stop := a.stop
		a.mu.Unlock()
		if stop {
			return errStopped
		}
	}
	return nil
}

// errStopped ends the applier's work when the member closes; it is no failure.
var errStopped = errors.New("member is closing")

// flush applies the batch and publishes it.
func (a *applier) flush() error {
	if len(a.batch) == 0 {
		return nil
	}
	err := a.tree.Apply(a.batch, a)
	clear(a.batch)
	if cap(a.batch) > maxKeptBatch {
		a.batch = nil
	}
	a.batch = a.batch[:0]
	clear(a.current)
	a.current, a.at = a.current[:0], 0
	if err != nil {
		return err
	}
	a.publish()
	return nil
}

// maxKeptBatch bounds the slice of entries kept between batches.
const maxKeptBatch = 4096

// publish makes what was applied known: to the waiting connections, then to the loop.
func (a *applier) publish() {
	z := a.tree.View().Zxid()
	a.port.settle(z)
	a.applied(z, a.newest)
}

// finishSyncs answers the syncs whose state is published.
func (a *applier) finishSyncs() {
	if len(a.syncs) == 0 {
		return
	}
	v := a.tree.View()
	kept := a.syncs[:0]
	for _, cs := range a.syncs {
		if cs.zxid > v.Zxid() {
			kept = append(kept, cs)
			continue
		}
		s := a.intake.take(cs.token)
		if s == nil {
			continue
		}
		c := s.conn
		c.mu.Lock()
		s.view, s.zxid = v, v.Zxid()
		s.reply = appendSyncReply(s.reply[:0], s.body)
		c.finishLocked(s)
		c.mu.Unlock()
		c.wake.signal()
	}
	a.syncs = kept
}

// appendSyncReply echoes the path of a sync, null included.
func appendSyncReply(dst, body []byte) []byte {
	var q wire.SyncRecord
	if err := wire.Decode(body, &q); err != nil {
		return dst // was decoded once before
	}
	return q.AppendTo(dst)
}

// Begin implements kv.Sink: it finds the connection that waits for the transaction. A transaction of an earlier run
// of this member finds none.
func (a *applier) Begin(_ kv.Zxid, h *kv.TxnHeader) (want, wantView bool) {
	var s *slot
	if h.Origin == uint8(a.member) && h.Request != 0 {
		if s = a.intake.take(h.Request); s != nil {
			a.newest = h.Request
			wantView = s.kind == slotWrite && s.conn.begin(s)
		}
	}
	if s == nil && h.Kind != kv.OpCloseSession {
		return false, false
	}
	a.current = append(a.current, s)
	return true, wantView
}

// Done implements kv.Sink: it hands the outcome to the connection.
func (a *applier) Done(z kv.Zxid, h *kv.TxnHeader, r *kv.Result, v *kv.View) {
	s := a.current[a.at]
	a.at++
	if h.Kind == kv.OpCloseSession && r.Code == kv.CodeOK {
		// Whoever closed it, the session's connection ends; after the reply if it asked for this itself.
		if c := a.port.sessions.get(h.Session); c != nil && (s == nil || s.conn != c) {
			c.close("")
		}
	}
	if s == nil {
		return
	}
	c := s.conn
	switch {
	case r.Code == kv.CodeSessionMoved:
		c.close("session moved to another member") // not an error the protocol can carry
		return
	case s.kind == slotCreate:
		a.created(s, z, r)
		return
	case s.kind == slotUpgrade:
		a.port.upgraded(s, z, r.Code)
		return
	}
	c.mu.Lock()
	s.zxid, s.code, s.view = z, r.Code, v
	if s.code == kv.CodeOK {
		s.reply = appendResult(s.reply[:0], s.op, r)
	}
	c.finishLocked(s)
	mark, gone := !c.dirty, c.closed
	c.dirty = true
	c.mu.Unlock()
	if gone {
		a.port.counters.staleReplies.Add(1)
	}
	if mark {
		a.port.markDirty(c)
	}
}

// created ends the handshake of a new session. The connection is attached here, before any later transaction
// could end the session.
func (a *applier) created(s *slot, z kv.Zxid, r *kv.Result) {
	c := s.conn
	if r.Code == kv.CodeOK {
		c.claim.Store(uint64(replica.BirthClaim(z)))
		a.port.attach(s.session, s.timeoutMs, c)
	}
	c.mu.Lock()
	s.zxid, s.code = z, r.Code
	c.finishLocked(s)
	c.mu.Unlock()
}

// appendResult encodes the record of a successful reply.
func appendResult(dst []byte, op wire.Op, r *kv.Result) []byte {
	switch op {
	case wire.OpCreate:
		return wire.AppendString(dst, r.Path)
	case wire.OpCreate2, wire.OpCreateContainer, wire.OpCreateTTL:
		return wire.AppendStat(wire.AppendString(dst, r.Path), &r.Stat)
	case wire.OpSetData, wire.OpSetACL:
		return wire.AppendStat(dst, &r.Stat)
	case wire.OpMulti:
		return appendMultiResult(dst, r.Ops)
	}
	return dst
}

// appendMultiResult encodes the results of a multi: all of them, or the failure of all (zookeeper-protocol 3.6).
func appendMultiResult(dst []byte, ops []kv.OpResult) []byte {
	failed := false
	for i := range ops {
		failed = failed || ops[i].Code != kv.CodeOK
	}
	for i := range ops {
		o := &ops[i]
		if failed {
			dst = wire.AppendMultiError(dst, o.Code)
		} else {
			dst = wire.AppendMultiResult(dst, wire.Op(o.Op), o.Path, &o.Stat)
		}
	}
	return wire.AppendMultiEnd(dst)
}

// fail ends the connections of requests that will get no result. Only the loop calls it.
func (a *applier) fail(failed []replica.Failed) {
	for _, f := range failed {
		s := a.intake.take(f.Request)
		if s == nil {
			continue
		}
		reason := ""
		if f.Outcome == replica.NotSent {
			reason = "no leader took the request in time"
			if s.conn.isClosed() {
				a.port.counters.staleDropped.Add(1) // its connection was gone before it was sent
			}
		}
		s.conn.close(reason)
	}
}
