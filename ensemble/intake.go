package ensemble

import (
	"sync"

	"kvd/ensemble/replica"
	"kvd/kv"
)

// intake is where client requests enter the member and where their results find them again.
//
// Readers of connections push batches of slots; each gets the next token, the name under which the replica,
// the leader and the log know the request. The loop takes the operations in token order. A result carries
// the token back and take finds the slot. Everything between push and take is "outstanding" and bounded in
// count and bytes: a reader that would exceed a bound waits, which stops its client through TCP.
//
// The end of a connection travels the same way: end takes its place behind everything that the connection pushed, and
// nothing of it is pushed afterwards. The replica then drops what it has not sent and reports it, so that its slots
// are taken like all others.
type intake struct {
	wake *waker // of the loop

	mu   sync.Mutex
	room sync.Cond // signalled when outstanding shrinks, and at close
	// Outstanding requests and the bytes of their bodies. Invariant: within the limits, except that a single
	// request is always admitted when nothing else is outstanding.
	count, maxCount int
	bytes, maxBytes int64
	waiting         int // readers waiting for room

	// Tokens base..next-1 were given out and may be outstanding; slots[token&mask] is nil once taken.
	base, next uint64
	slots      []*slot
	closed     bool

	// Not yet taken by the loop.
	ops         []replica.ClientOp
	syncs       []uint64
	revalidates []revalidate
	ends        []uint64 // connections, each once
}

// intakeConn is what the intake knows of a connection, under its own lock.
type intakeConn struct {
	pushed, ended bool
}

// revalidate is a resume waiting for the leader's word.
type revalidate struct {
	conn      uint64
	token     uint64
	session   kv.SessionID
	password  [16]byte
	timeoutMs int32
}

// newIntake numbers its requests from first, which must differ between runs of a member: results of an
// earlier run must not find a slot of this one.
func newIntake(first uint64, maxCount int, maxBytes int64, wake *waker) *intake {
	in := &intake{base: first, next: first, maxCount: maxCount, maxBytes: maxBytes, slots: make([]*slot, 256), wake: wake}
	in.room.L = &in.mu
	return in
}

// push hands a connection's requests to the loop, in order, waiting for room. It reports false if the member
// has closed or the connection has ended; the remaining slots are then not taken. Only the connection's reader
// calls it.
func (in *intake) push(batch []*slot) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, s := range batch {
		c := s.conn
		for !in.closed && !c.intake.ended && in.count > 0 && (in.count >= in.maxCount || in.bytes+s.cost > in.maxBytes) {
			in.wake.signal() // what this batch pushed so far must leave for room to appear
			in.waiting++
			c.waiting.Store(true)
			in.room.Wait()
			c.waiting.Store(false)
			in.waiting--
		}
		if in.closed || c.intake.ended {
			in.wake.signal() // what came before is the loop's
			return false
		}
		in.admit(s)
		c.intake.pushed = true
		switch s.kind {
		case slotSync:
			in.syncs = append(in.syncs, s.token)
		case slotResume:
			in.revalidates = append(in.revalidates, revalidate{c.id, s.token, s.session, s.password, s.timeoutMs})
		default:
			in.ops = append(in.ops, replica.ClientOp{Request: s.token, Conn: c.id, Session: s.session, Op: int32(s.op), Body: s.body, Auth: s.auth, Local: s.local})
		}
	}
	in.wake.signal()
	return true
}

// end says that a connection is over. If its reader waits for room it leaves.
func (in *intake) end(c *conn) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if c.intake.ended {
		return
	}
	c.intake.ended = true
	if in.waiting > 0 {
		in.room.Broadcast()
	}
	if c.intake.pushed {
		in.ends = append(in.ends, c.id)
		in.wake.signal()
	}
}

// admit gives a slot its token. in.mu is held.
func (in *intake) admit(s *slot) {
	if in.next-in.base == uint64(len(in.slots)) {
		grown := make([]*slot, 2*len(in.slots))
		for t := in.base; t != in.next; t++ {
			grown[t&uint64(len(grown)-1)] = in.slots[t&uint64(len(in.slots)-1)]
		}
		in.slots = grown
	}
	s.token = in.next
	in.slots[s.token&uint64(len(in.slots)-1)] = s
	in.next++
	in.count++
	in.bytes += s.cost
}

// take ends a request's time outstanding and returns its slot; nil if the token is unknown (of an earlier
// run, or reported failed before).
func (in *intake) take(token uint64) *slot {
	in.mu.Lock()
	defer in.mu.Unlock()
	if token-in.base >= in.next-in.base {
		return nil
	}
	at := &in.slots[token&uint64(len(in.slots)-1)]
	s := *at
	if s == nil {
		return nil
	}
	*at = nil
	for in.base != in.next && in.slots[in.base&uint64(len(in.slots)-1)] == nil {
		in.base++
	}
	in.count--
	in.bytes -= s.cost
	if in.waiting > 0 {
		in.room.Broadcast()
	}
	return s
}

// intakeBatch is what the loop takes at once. Its slices are reused by the next drain. Whatever is of a connection
// among ends came before its end, so the ends go last.
type intakeBatch struct {
	ops         []replica.ClientOp
	syncs       []uint64
	revalidates []revalidate
	ends        []uint64
}

// drain swaps out what has gathered. Only the loop calls it.
func (in *intake) drain(b *intakeBatch) {
	clear(b.ops) // bodies must not outlive the replica's use of them
	b.ops, b.syncs, b.revalidates, b.ends = b.ops[:0], b.syncs[:0], b.revalidates[:0], b.ends[:0]
	in.mu.Lock()
	b.ops, in.ops = in.ops, b.ops
	b.syncs, in.syncs = in.syncs, b.syncs
	b.revalidates, in.revalidates = in.revalidates, b.revalidates
	b.ends, in.ends = in.ends, b.ends
	in.mu.Unlock()
}

// outstanding is the number of requests without a result.
func (in *intake) outstanding() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.count
}

// close refuses further pushes and releases waiting readers.
func (in *intake) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.room.Broadcast()
}

// waker wakes one goroutine, any number of signals before it looks being one.
type waker struct{ c chan struct{} }

func newWaker() *waker { return &waker{c: make(chan struct{}, 1)} } // 1: a signal is remembered, never queued

func (w *waker) signal() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}
