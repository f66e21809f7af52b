package kv

import (
	"hash/maphash"
	"sync/atomic"
)

// Tree holds the current View and the watches on it. One goroutine, the applier, calls Apply and Reset;
// everything else may be called from any goroutine and never waits for a transaction to be carried out, only for
// the moment in which its events are queued.
type Tree struct {
	view    atomic.Pointer[View]
	digests digestLog
	watches watches
	fired   [EventNodeChildrenChanged]firedCount // by event type, less 1; the applier writes
	events  outbox                               // owned by the applier, like all below

	work    applier
	wanted  []wanted // outcomes to hand out after the batch is visible
	results []OpResult
	ops     []OpResult // of the transaction being carried out
	current wanted     // the transaction being carried out, and its outcome
	outcome Result
}

// wanted is a transaction whose outcome the sink asked for.
type wanted struct {
	zxid        Zxid
	header      TxnHeader
	result      OpResult
	first, last int // its part of Tree.results
	view        *View
}

// Sink follows what is applied. Both methods are called by Apply on the applier's goroutine and must not block.
type Sink interface {
	// Begin is called before a transaction is carried out. want asks for Done; wantView asks for the view right
	// after this transaction. h is valid during the call.
	Begin(z Zxid, h *TxnHeader) (want, wantView bool)
	// Done is called after the batch has become visible and its events have been queued, in zxid order, for the
	// transactions that were wanted. v is nil unless wanted. h and r are valid during the call; r.Path aliases the
	// entry's payload.
	Done(z Zxid, h *TxnHeader, r *Result, v *View)
}

// NewTree returns a tree that shows v. A nil v means a fresh view.
func NewTree(v *View) *Tree {
	if v == nil {
		v = NewView()
	}
	t := new(Tree)
	t.watches.seed = maphash.MakeSeed()
	t.watches.parties.init()
	t.watches.front.Store(v)
	t.view.Store(v)
	return t
}

// View returns the current view. It never blocks.
func (t *Tree) View() *View { return t.view.Load() }

// Apply carries out a batch of committed entries that directly follow the current view, and makes it visible as
// a whole: events are queued first, then readers see the new view, then the sink gets the outcomes. The entries'
// payloads must not be written to as long as the sink may keep parts of them; the tree keeps none. sink may be
// nil. An error matches ErrBrokenPromise; nothing of the batch is visible then, and the member must stop.
func (t *Tree) Apply(entries []Entry, sink Sink) error {
	if len(entries) == 0 {
		return nil
	}
	a := &t.work
	a.begin(t.view.Load())
	defer t.endBatch()
	for i := range entries {
		if err := t.applyEntry(&entries[i], sink); err != nil {
			return err
		}
	}
	t.publish(a.freeze(), a.changes)
	if sink == nil {
		return nil
	}
	for i := range t.wanted {
		w := &t.wanted[i]
		t.outcome = Result{w.result, t.results[w.first:w.last:w.last]}
		sink.Done(w.zxid, &w.header, &t.outcome, w.view)
	}
	return nil
}

func (t *Tree) applyEntry(en *Entry, sink Sink) error {
	a := &t.work
	if !en.Zxid.Follows(a.zxid) {
		return broken(en.Zxid, "does not follow %v", a.zxid)
	}
	if want := ChainDigest(a.chain, en.Zxid, en.Payload); want != en.Chain {
		return broken(en.Zxid, "history digest %#x, expected %#x", en.Chain, want)
	}
	r := reader{buf: en.Payload}
	w := &t.current
	*w = wanted{zxid: en.Zxid, first: len(t.results)}
	if err := r.txnHeader(&w.header); err != nil {
		return broken(en.Zxid, "%w", err)
	}
	want, wantView := false, false
	if sink != nil {
		want, wantView = sink.Begin(en.Zxid, &w.header)
	}
	if !want {
		if err := a.apply(en, &w.header, &r, nil); err != nil {
			return err
		}
		t.noteDigest()
		return nil
	}
	t.outcome = Result{Ops: t.ops[:0]}
	if err := a.apply(en, &w.header, &r, &t.outcome); err != nil {
		return err
	}
	t.noteDigest()
	w.result = t.outcome.OpResult
	t.results = append(t.results, t.outcome.Ops...)
	clear(t.outcome.Ops)
	t.ops = t.outcome.Ops[:0]
	w.last = len(t.results)
	if wantView {
		w.view = a.freeze()
	}
	t.wanted = append(t.wanted, *w)
	return nil
}

// noteDigest remembers the digest after some transactions.
func (t *Tree) noteDigest() {
	if a := &t.work; a.zxid%DigestInterval == 0 {
		t.digests.add(DigestAt{a.zxid, a.digest})
	}
}

// Bounds of what is kept between batches: an unusually large one must not hold its memory for ever.
const keptPerBatch = 4096

// endBatch drops what belongs to the batch.
func (t *Tree) endBatch() {
	t.wanted = recycle(t.wanted)
	t.results = recycle(t.results)
	if cap(t.ops) > 0 {
		t.ops[:1][0] = OpResult{} // left there by a transaction that was no multi
	}
	t.ops = recycle(t.ops)
	t.work.changes = recycle(t.work.changes)
	if cap(t.work.scratch) > 1<<16 {
		t.work.scratch = nil
	}
	t.current, t.outcome = wanted{}, Result{}
	t.work.state = state{}
	t.work.removedAccess, t.work.parentAccess = "", ""
	t.work.op = TxnOp{}
}

func recycle[E any](s []E) []E {
	if cap(s) > keptPerBatch {
		return nil
	}
	clear(s)
	return s[:0]
}
