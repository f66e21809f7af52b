package wal

import (
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"kvd/kv"
)

// pendingEntry is an entry of the group being gathered.
type pendingEntry = kv.Entry

// write is the writer goroutine: it takes everything that has gathered, makes one Pebble batch of it (more
// only if it is too large), syncs, records the ack watermark, and reports. While it waits for the sync the
// next writes gather; that is the group commit.
//
// The tempting alternative is to apply the next batch while the previous one syncs. It does not pay here:
// what arrives during a sync would be cut into more and smaller batches, each with its own hand-over to
// Pebble's flusher, and CPU rather than the disk is what three members on two cores run out of.
//
// Only ApplyNoSyncWait and SyncWait commit anything: Pebble's Apply and Set report a failed WAL write through
// Logger.Fatalf and return nil if that returns.
func (l *Log) write() {
	defer close(l.writerDone)
	defer func() {
		// Pebble panics when it cannot rotate the WAL. The panic leaves its locks held, so the handle is
		// abandoned like after Fatalf; the host lives on.
		if p := recover(); p != nil {
			_ = l.fs.health.fail(fmt.Errorf("pebble panicked: %v", p))
		}
	}()
	for {
		l.mu.Lock()
		if len(l.queue) == 0 {
			closing := l.closing
			l.mu.Unlock()
			if closing || l.Err() != nil {
				return
			}
			select {
			case <-l.wake:
			case <-l.fs.health.dead:
				return
			}
			continue
		}
		taken := l.queue
		l.queue = l.spare[:0]
		l.inflight = taken
		l.mu.Unlock()
		for rest := taken; len(rest) > 0; {
			n, err := l.commit(rest)
			if err != nil {
				_ = l.fs.health.fail(err)
				return
			}
			rest = rest[n:]
		}
		clear(taken)
		l.spare = taken
	}
}

// commit executes a prefix of ws as one batch and returns its length. An error is final.
func (l *Log) commit(ws []queued) (int, error) {
	if l.damaged {
		if err := l.replaceDamaged(); err != nil {
			return 0, err
		}
	}
	b := builder{l: l, batch: l.db.NewBatch(), meta: l.metaDirty, next: l.cur}
	n := 0
	for n < len(ws) {
		w := &ws[n].w
		// Truncate and Snapshot look entries up in the store, so what comes before must be in it.
		if n > 0 && (w.Truncate != nil || w.Snapshot != nil || b.bytes+b.groupBytes >= l.opts.MaxBatchBytes) {
			break
		}
		if err := b.add(w); err != nil {
			return 0, err
		}
		n++
		// The identity file follows its batch. A crash between them is repaired only as long as the store holds
		// nothing else (judge), so nothing else may share that batch.
		if w.Identity != nil {
			break
		}
	}
	if err := b.finish(); err != nil {
		return 0, err
	}
	start := time.Now()
	if l.opts.mutations.markFirst {
		if _, err := l.watermark.write(b.next.mark()); err != nil {
			return 0, err
		}
	}
	if !b.batch.Empty() {
		if l.opts.mutations.ackUnsynced {
			l.cur = b.next
			l.complete(ws[:n], &b, 0)
		}
		if err := l.db.ApplyNoSyncWait(b.batch, pebble.Sync); err != nil {
			return 0, fmt.Errorf("commit batch: %w", err)
		}
		if err := b.batch.SyncWait(); err != nil {
			return 0, fmt.Errorf("sync batch: %w", err)
		}
	}
	took := time.Since(start)
	if err := b.batch.Close(); err != nil {
		return 0, fmt.Errorf("close batch: %w", err)
	}
	l.cur, l.metaDirty = b.next, false
	if err := l.afterSync(&b); err != nil {
		return 0, err
	}
	if !l.opts.mutations.ackUnsynced {
		l.complete(ws[:n], &b, took)
	}
	return n, nil
}

// afterSync writes what has to be on disk between the sync and the acks.
func (l *Log) afterSync(b *builder) error {
	if !l.cur.Identity.IsZero() && (b.identity || b.trusted && l.identityStale) {
		if err := writeFileAtomically(l.fs, l.identityPath, encodeIdentity(l.cur.Identity)); err != nil {
			return err
		}
		l.identityStale = false
	}
	if l.watermark == nil { // it was damaged; that this member is suspect is durable now
		path := l.fs.PathJoin(l.opts.LogDir, watermarkName)
		if err := writeFileAtomically(l.fs, path, make([]byte, watermarkBytes)); err != nil {
			return err
		}
		wm, err := openWatermark(l.fs, path, false)
		if err != nil {
			return err
		}
		l.setStore(l.db, wm)
	}
	wrote, err := l.watermark.write(l.cur.mark())
	if err != nil {
		return err
	}
	if wrote {
		signal(l.markDirty)
	}
	return nil
}

// complete publishes the new durable state and reports it, unless the disk died meanwhile.
func (l *Log) complete(ws []queued, b *builder, took time.Duration) {
	l.completeMu.Lock()
	defer l.completeMu.Unlock()
	if l.Err() != nil {
		return // failed() has told, or is about to tell, everybody
	}
	l.mu.Lock()
	l.done = l.cur
	l.inflight = l.inflight[len(ws):]
	l.stats.note(took, int64(b.entries))
	l.stats.Writes += int64(len(ws))
	l.stats.Bytes += int64(b.bytes)
	b.index(&l.index)
	l.mu.Unlock()
	var seq uint64
	for i := range ws {
		if ws[i].w.Done != nil {
			ws[i].w.Done(nil)
		}
		seq = max(seq, ws[i].w.Seq)
	}
	if seq != 0 {
		l.opts.Completed(Completion{Seq: seq})
	}
	if b.dropped {
		signal(l.purge)
	}
}

// builder turns writes into one Pebble batch. next is the state once the batch is durable.
type builder struct {
	l     *Log
	batch *pebble.Batch
	next  durable

	meta      bool // the meta record changes
	identity  bool
	trusted   bool
	dropped   bool // logStart moved
	truncated *kv.Zxid
	installed bool

	bytes, entries int
	groups         []builtGroup
	prev           kv.Zxid // entry before the group being gathered
	prevChain      uint64
	groupBytes     int
}

type builtGroup struct {
	prev           kv.Zxid
	entries, bytes int
}

func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBroken, fmt.Sprintf(format, args...))
}

// add appends the effects of w to the batch. An error means a broken promise; nothing is executed.
func (b *builder) add(w *Write) error {
	if w.Identity != nil {
		if !b.next.Identity.IsZero() && b.next.Identity != *w.Identity && b.next.Suspect == "" {
			return broken("identity of member %d cannot change", b.next.Identity.Member)
		}
		b.next.Identity, b.identity, b.meta = *w.Identity, true, true
	}
	if p := w.Accepted; p != nil {
		if p.Epoch < b.next.Accepted {
			return broken("accepted epoch %d after %d", p.Epoch, b.next.Accepted)
		}
		b.next.Accepted, b.next.PromisedTo, b.meta = p.Epoch, p.To, true
	}
	if w.Install != nil {
		if err := b.install(w.Install); err != nil {
			return err
		}
	}
	if w.Truncate != nil {
		if err := b.truncate(*w.Truncate); err != nil {
			return err
		}
	}
	for i := range w.Append {
		if err := b.append(&w.Append[i]); err != nil {
			return err
		}
	}
	if w.Current != 0 {
		if w.Current < b.next.Current || w.Current > b.next.Accepted {
			return broken("current epoch %d after %d, accepted %d", w.Current, b.next.Current, b.next.Accepted)
		}
		b.next.Current, b.meta = w.Current, true
	}
	if w.Trusted {
		b.trust()
	}
	if w.Sole != nil {
		b.next.Sole, b.meta = *w.Sole, true
	}
	if w.Snapshot != nil {
		return b.snapshot(w.Snapshot)
	}
	return nil
}

// trust ends suspicion: the history is the leader's now. The generation rises so that a watermark from before
// the loss is ignored from here on.
func (b *builder) trust() {
	if b.next.Suspect != "" {
		b.raiseGeneration()
	}
	b.next.Trusted, b.next.Suspect, b.trusted, b.meta = true, "", true, true
}

func (b *builder) raiseGeneration() {
	if wm := b.l.watermark; wm != nil {
		b.next.Generation = max(b.next.Generation, wm.last.generation)
	}
	b.next.Generation++
	b.meta = true
	if b.l.opts.mutations.generationKept {
		b.next.Generation = b.l.cur.Generation
	}
}

func (b *builder) install(s *Install) error {
	if s.Zxid == 0 || s.Zxid.Epoch() > b.next.Accepted {
		return broken("snapshot at %v with accepted epoch %d", s.Zxid, b.next.Accepted)
	}
	if err := b.flushGroup(); err != nil {
		return err
	}
	if err := b.batch.DeleteRange([]byte{entryPrefix}, []byte{entryPrefixEnd}, nil); err != nil {
		return err
	}
	b.next.Base, b.next.BaseChain = s.Zxid, s.Chain
	b.next.LogStart, b.next.LogStartChain = s.Zxid, s.Chain
	b.next.last, b.next.lastChain = s.Zxid, s.Chain
	b.next.Points = [][]byte{s.Point}
	b.raiseGeneration()
	b.dropped, b.installed, b.groups = true, true, nil
	return nil
}

// truncate drops every entry after z. It is the first part of its batch that touches entries.
func (b *builder) truncate(z kv.Zxid) error {
	if err := b.flushGroup(); err != nil {
		return err
	}
	if z < b.next.Base || z > b.next.last {
		return broken("truncation after %v, base %v, last %v", z, b.next.Base, b.next.last)
	}
	b.raiseGeneration()
	if z == b.next.last {
		return nil
	}
	// At the log start nothing stays. That includes the group that straddles it, whose key lies at or before z.
	chain, from := b.next.LogStartChain, []byte{entryPrefix}
	if z != b.next.LogStart {
		keep, err := b.l.entriesThrough(z)
		if err != nil {
			return err
		}
		if e := keep.entries[len(keep.entries)-1]; e.Zxid != z {
			return broken("truncation after %v, which is not in the log (nearest is %v)", z, e.Zxid)
		}
		chain, from = keep.entries[len(keep.entries)-1].Chain, entryKey(z+1)
		if keep.cut {
			b.put(keep.prev, keep.prevChain, keep.entries)
		}
	}
	if err := b.batch.DeleteRange(from, entryKey(b.next.last+1), nil); err != nil {
		return err
	}
	b.next.last, b.next.lastChain = z, chain
	b.truncated = &z
	if b.l.opts.mutations.twoBatches {
		return b.split()
	}
	return nil
}

// append checks an entry and gathers it into the current group.
func (b *builder) append(e *kv.Entry) error {
	if !e.Zxid.Follows(b.next.last) {
		return broken("entry %v does not follow %v", e.Zxid, b.next.last)
	}
	if e.Zxid.Epoch() > b.next.Accepted {
		return broken("entry %v with accepted epoch %d", e.Zxid, b.next.Accepted)
	}
	if chain := kv.ChainDigest(b.next.lastChain, e.Zxid, e.Payload); chain != e.Chain {
		return broken("entry %v has chain %016x, computed %016x", e.Zxid, e.Chain, chain)
	}
	if len(b.l.group) == 0 {
		b.prev, b.prevChain = b.next.last, b.next.lastChain
	}
	b.l.group = append(b.l.group, *e)
	b.groupBytes += entryBytes(uint32(e.Zxid.Epoch()-b.next.last.Epoch()), len(e.Payload))
	b.next.last, b.next.lastChain = e.Zxid, e.Chain
	if b.groupBytes >= b.l.opts.GroupBytes {
		return b.flushGroup()
	}
	return nil
}

// flushGroup stores the gathered entries under one key.
func (b *builder) flushGroup() error {
	if len(b.l.group) == 0 {
		return nil
	}
	n := b.put(b.prev, b.prevChain, b.l.group)
	b.groups = append(b.groups, builtGroup{b.prev, len(b.l.group), n})
	b.entries += len(b.l.group)
	b.bytes += n
	b.groupBytes = 0
	clear(b.l.group) // drop the references to payloads
	b.l.group = b.l.group[:0]
	return nil
}

// put encodes a group into the batch and returns the value's length.
func (b *builder) put(prev kv.Zxid, prevChain uint64, entries []kv.Entry) int {
	n := groupHeaderBytes
	if len(entries) == len(b.l.group) && &entries[0] == &b.l.group[0] {
		n += b.groupBytes
	} else {
		n = groupBytes(prev, entries)
	}
	op := b.batch.SetDeferred(entryKeyBytes, n)
	appendEntryKey(op.Key[:0], entries[0].Zxid)
	encodeGroup(op.Value, prev, prevChain, entries)
	_ = op.Finish() // fails only for indexed batches
	return n
}

// snapshot records an own snapshot point and drops what lies at or before its log start.
func (b *builder) snapshot(s *SnapshotPoint) error {
	if err := b.flushGroup(); err != nil {
		return err
	}
	if s.Zxid < b.next.Base || s.Zxid > b.next.last {
		return broken("snapshot point %v, base %v, last %v", s.Zxid, b.next.Base, b.next.last)
	}
	if s.LogStart > s.Zxid {
		return broken("log start %v after the snapshot point %v", s.LogStart, s.Zxid)
	}
	chain, err := b.chainAt(s.Zxid)
	if err != nil {
		return err
	}
	if chain != s.Chain {
		return broken("snapshot point %v has chain %016x, the log %016x", s.Zxid, s.Chain, chain)
	}
	if s.LogStart > b.next.LogStart {
		if err := b.dropThrough(s.LogStart); err != nil {
			return err
		}
	}
	b.next.Base, b.next.BaseChain, b.next.Points, b.meta = s.Zxid, s.Chain, s.Points, true
	return nil
}

// chainAt returns the chain value at z, which is the log start or an entry.
func (b *builder) chainAt(z kv.Zxid) (uint64, error) {
	switch z {
	case b.next.last:
		return b.next.lastChain, nil
	case b.next.LogStart:
		return b.next.LogStartChain, nil
	}
	found, err := b.l.entriesThrough(z)
	if err != nil {
		return 0, err
	}
	e := found.entries[len(found.entries)-1]
	if e.Zxid != z {
		return 0, broken("%v is not in the log (nearest is %v)", z, e.Zxid)
	}
	return e.Chain, nil
}

// dropThrough moves logStart to z and deletes the groups that end at or before it. A group that reaches
// beyond stays whole; readers skip its old entries.
func (b *builder) dropThrough(z kv.Zxid) error {
	chain, end := b.next.lastChain, entryKey(z+1)
	if z != b.next.last {
		found, err := b.l.entriesThrough(z)
		if err != nil {
			return err
		}
		e := found.entries[len(found.entries)-1]
		if e.Zxid != z {
			return broken("log start %v is not in the log (nearest is %v)", z, e.Zxid)
		}
		chain = e.Chain
		if found.cut {
			end = entryKey(found.entries[0].Zxid)
		}
	}
	if b.l.opts.mutations.dropOneMore {
		end = entryKey(z + 2)
	}
	if err := b.batch.DeleteRange([]byte{entryPrefix}, end, nil); err != nil {
		return err
	}
	b.next.LogStart, b.next.LogStartChain = z, chain
	b.dropped = true
	return nil
}

// split is a mutation: what has gathered becomes durable by itself.
func (b *builder) split() error {
	if err := b.finish(); err != nil {
		return err
	}
	if err := b.l.db.Apply(b.batch, pebble.Sync); err != nil {
		return err
	}
	b.batch = b.l.db.NewBatch()
	return nil
}

// finish flushes the last group and, if it changed, the meta record.
func (b *builder) finish() error {
	if err := b.flushGroup(); err != nil {
		return err
	}
	if !b.meta {
		return nil
	}
	if wm := b.l.watermark; wm != nil {
		b.next.Version = max(b.next.Version, wm.last.meta)
	}
	b.next.Version++
	rec, err := encodeMeta(&b.next.meta)
	if err != nil {
		return err
	}
	return b.batch.Set([]byte(metaKey), rec, nil)
}

// index carries the batch over into the in-memory index.
func (b *builder) index(x *index) {
	if b.truncated != nil {
		x.truncate(*b.truncated)
	}
	if b.installed {
		*x = index{}
	}
	for _, g := range b.groups {
		x.add(g.prev, g.entries, g.bytes)
	}
	if b.dropped && !b.installed {
		x.drop(b.next.LogStart)
	}
}
