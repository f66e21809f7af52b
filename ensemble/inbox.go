package ensemble

import (
	"sync"

	"kvd/kv"
	"kvd/snapshot"
	"kvd/zab"
)

// maxInboxEvents bounds what peers may have waiting for the loop. A transport goroutine that would exceed it
// waits, which stops its peer through TCP; events that cannot wait are admitted (they are few).
const maxInboxEvents = 4096

// event is something that happened outside of the loop. deliver runs on the loop.
type event interface{ deliver(*loop) }

// inbox gathers events for the loop. One wake-up takes all of them.
type inbox struct {
	wake *waker

	mu      sync.Mutex
	room    sync.Cond
	events  []event
	waiting int
	closed  bool
	// The newest of their kind, not queued: each is cumulative.
	persisted uint64
	applied   kv.Zxid
	request   uint64
	isApplied bool
}

func newInbox(w *waker) *inbox {
	in := &inbox{wake: w}
	in.room.L = &in.mu
	return in
}

// push adds an event, waiting for room if wait is set. It reports false after close.
func (in *inbox) push(e event, wait bool) bool {
	in.mu.Lock()
	for wait && len(in.events) >= maxInboxEvents && !in.closed {
		in.waiting++
		in.room.Wait()
		in.waiting--
	}
	if in.closed {
		in.mu.Unlock()
		return false
	}
	in.events = append(in.events, e)
	in.mu.Unlock()
	in.wake.signal()
	return true
}

// diskDone reports a completed log write. Called on the log's writer goroutine.
func (in *inbox) diskDone(seq uint64) {
	in.mu.Lock()
	in.persisted = max(in.persisted, seq)
	in.mu.Unlock()
	in.wake.signal()
}

// appliedTo reports what the applier has published.
func (in *inbox) appliedTo(z kv.Zxid, request uint64) {
	in.mu.Lock()
	in.applied, in.request, in.isApplied = z, request, true
	in.mu.Unlock()
	in.wake.signal()
}

// inboxBatch is what the loop takes at once; its slice is reused.
type inboxBatch struct {
	events    []event
	persisted uint64
	applied   kv.Zxid
	request   uint64
	isApplied bool
}

func (in *inbox) drain(b *inboxBatch) {
	clear(b.events)
	in.mu.Lock()
	b.events, in.events = in.events, b.events[:0]
	b.persisted, in.persisted = in.persisted, 0
	b.applied, b.request, b.isApplied = in.applied, in.request, in.isApplied
	in.isApplied = false
	if in.waiting > 0 {
		in.room.Broadcast()
	}
	in.mu.Unlock()
}

// close refuses further events and releases waiting transport goroutines.
func (in *inbox) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.room.Broadcast()
}

// The inbox is the transport's handler: every method only enqueues.

type electionUp struct{ peer MemberID }
type electionDown struct{ peer MemberID }
type electionMessage struct {
	peer    MemberID
	kind    byte
	payload []byte
}
type linkUp struct {
	peer    MemberID
	link    zab.LinkID
	dialled bool
}
type linkDown struct {
	peer MemberID
	link zab.LinkID
	err  error
}
type linkMessage struct {
	peer MemberID
	link zab.LinkID
	msg  zab.Message
}
type connectFailed struct {
	attempt uint64
	err     error
}
type snapshotProgress struct{ link zab.LinkID }
type snapshotReceived struct {
	link  zab.LinkID
	point snapshot.Point
	err   error
}
type snapshotSent struct {
	link zab.LinkID
	err  error
}

// ElectionUp implements transport.Handler, as do the methods below.
func (in *inbox) ElectionUp(id MemberID) { in.push(electionUp{id}, false) }

// ElectionDown: see ElectionUp.
func (in *inbox) ElectionDown(id MemberID) { in.push(electionDown{id}, false) }

// ElectionMessage: see ElectionUp.
func (in *inbox) ElectionMessage(id MemberID, kind byte, payload []byte) {
	in.push(electionMessage{id, kind, payload}, true)
}

// LinkUp: see ElectionUp.
func (in *inbox) LinkUp(peer MemberID, link zab.LinkID, dialled bool) {
	in.push(linkUp{peer, link, dialled}, false)
}

// LinkDown: see ElectionUp.
func (in *inbox) LinkDown(peer MemberID, link zab.LinkID, err error) {
	in.push(linkDown{peer, link, err}, false)
}

// LinkMessage: see ElectionUp.
func (in *inbox) LinkMessage(peer MemberID, link zab.LinkID, m zab.Message) {
	in.push(linkMessage{peer, link, m}, true)
}

// ConnectFailed: see ElectionUp.
func (in *inbox) ConnectFailed(attempt uint64, err error) {
	in.push(connectFailed{attempt, err}, false)
}

// SnapshotProgress: see ElectionUp.
func (in *inbox) SnapshotProgress(link zab.LinkID) { in.push(snapshotProgress{link}, false) }

// SnapshotReceived: see ElectionUp.
func (in *inbox) SnapshotReceived(link zab.LinkID, p snapshot.Point, err error) {
	in.push(snapshotReceived{link, p, err}, false)
}

// SnapshotSent: see ElectionUp.
func (in *inbox) SnapshotSent(link zab.LinkID, err error) { in.push(snapshotSent{link, err}, false) }
