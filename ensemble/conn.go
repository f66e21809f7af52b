package ensemble

import (
	"cmp"
	"errors"
	"io"
	"net"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// Bounds of one connection. A reader that reaches one of the first two stops reading; a client that does not
// read its replies therefore stops itself. Events cannot wait like that, and their number is not the client's to choose:
// a million watches may fire in one transaction. A client that reads gets them all. One that does not is cut when a write
// to it has blocked for its session's time-out, or as soon as the events of all connections exceed the port's bound and
// its own exceed what every connection may have.
const (
	maxConnSlots = 1024    // requests without a written reply
	maxConnBytes = 4 << 20 // bytes of their bodies; a single larger request is admitted alone
	// maxConnEventBytes is what unwritten events of one connection may cost as long as there is room for all: see Event.
	maxConnEventBytes = 8 << 20
	// maxPortEventBytes is what the unwritten events of all connections may cost together.
	maxPortEventBytes = 512 << 20
	eventOverhead     = 64
	maxReadBatch      = 128       // writes handed to the loop at once
	flushBytes        = 64 << 10  // written at once; a longer reply is streamed (stream.go)
	keepOutBytes      = 128 << 10 // a larger output buffer is not kept
	keepEvents        = 128       // nor a longer queue of events
	keepSlots         = 32        // nor more unused slots
)

// conn is one client connection: TCP or in-process.
//
// Its reader (readLoop, reader.go) decodes frames and puts a slot per request into the ring. Whoever finds
// that the head of the ring can be answered runs pump, which alone writes to the socket: the reader itself after
// a batch of frames (the cheap path of reads), or the writer goroutine after the applier has woken it.
//
// # Order (design 4)
//
// Replies leave in request order. A reply speaks of one zxid: a write's own, or that of the view a read was
// answered from. Before it pump writes every queued event up to that zxid, and none newer. Events that no
// reply asks for leave once they are settled: the applier has published their state and handed over all
// results up to them. So there is no event after a reply that shows it, none before the reply that set its
// watch, and none that a following read would contradict. The zxids of replies never fall.
//
// A write waits until everything before it that touches watches has been answered: its own changes then meet the watches
// that the client thinks it has.
//
// A read takes its view when it is decoded if nothing is outstanding before it, else it is marked to use the view
// of the write (or sync) before it: never the state of an own later write. A request that touches watches is carried out
// on the present state instead, and what stands behind it is not answered from an older one: an event must not be followed
// by a reply that does not show its change yet, for the client would take that for the newest state.
//
// Lock order: wmu, then a stripe of the watch table (inside kv), then mu.
type conn struct {
	port   *clientPort
	id     uint64     // unique in the run
	intake intakeConn // under the intake's lock
	nc     net.Conn
	ip     string // "" in process
	remote string
	frames *wire.FrameReader

	session   atomic.Int64 // kv.SessionID; 0 until the handshake is done
	isLocal   atomic.Bool  // the session is this member's alone
	readOnly  atomic.Bool  // set in the handshake: answered in read-only mode and at no other time
	timeoutMs atomic.Int32
	claim     atomic.Uint64 // replica.Claim of the connection
	// heard and writing are ticks of the member's loop: when the last bytes came, and since when a write
	// blocks (0: none does). The janitor compares them with the clock.
	heard, writing atomic.Int64

	received, sent atomic.Int64 // packets
	word           atomic.Bool  // it asked for a four-letter word
	bytesIn        int64        // of request bodies since the last batch; the reader's

	// waiting: the reader waits for the port's throttle, for room or for a result, and hears no ping of its client.
	waiting atomic.Bool

	wake *waker // of the writer

	// Owned by the reader. batch: decoded writes not yet pushed into the intake; readAt: when the present frames
	// came in.
	batch  []*slot
	local  *localSession // of its session, if that is local
	charge charge        // of the present frame, until a slot takes it
	readAt time.Time
	// auth are the identities for the requests to come, admitted whether they are enough for any (auth.go).
	auth     kv.Credentials
	admitted bool

	creds atomic.Pointer[kv.Credentials] // the same for others

	// ---- owned by whoever holds wmu (pump) ----
	wmu  sync.Mutex
	out  []byte
	box  *outBuffer // whose bytes out are; nil while there is nothing to write
	mark int        // of the frame begun in out
	trim bool       // something may have been kept since the last trim
	// run: taken off the ring; run[:at] is answered. More than that is left only for the writer (handOver).
	run          []*slot
	at           int
	patient      bool       // the writer pumps, who may wait for the client
	taken        []kv.Event // off events, on the way to pending
	pending      []kv.Event // from first on not yet written
	first        int
	pendingBytes int64
	lastView     *kv.View // of the last write or sync answered, for the reads behind it
	lastZxid     kv.Zxid  // greatest zxid in a header so far
	floor        *kv.View // no later read is answered from an older one (see present); nil: none
	names        []string // of children, reused, like reads
	reads        []wire.ReadOp
	streaming    stream
	sizes        replySizes

	// ---- under mu ----
	mu        sync.Mutex
	cond      sync.Cond // the reader's only: room in the ring, a slot done, the end
	ring      slotRing
	held      int   // slots in the ring or being answered
	heldBytes int64 // and the bytes of their bodies
	// tail is the newest write or sync without a result, nil if none: what a read must queue behind.
	tail       *slot
	openSync   *slot // the newest sync without a result
	watching   int   // slots that touch watches, among those held
	events     []kv.Event
	eventBytes int64
	pings      int
	pingAt     time.Time // when the last of them came
	stats      connStats
	charged    portCharge
	dirty      bool // listed at the port for a wake-up at the end of the applier's batch, which clears it
	cut        bool // somebody is about to close it, for its events
	closed     bool
	free       []*slot
	done       chan struct{} // closed with closed
}

func newConn(port *clientPort, nc net.Conn) *conn {
	c := &conn{port: port, id: port.nextConn.Add(1), nc: nc, remote: nc.RemoteAddr().String(), wake: newWaker(), done: make(chan struct{})}
	if tcp, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		c.ip = tcp.IP.String()
	}
	c.cond.L = &c.mu
	c.frames = wire.NewFrameReader(nc, port.maxFrame)
	c.heard.Store(port.clock.now())
	c.stats.begin(time.Now())
	c.setCredentials(firstCredentials(c.ip))
	return c
}

// SessionID is the session that the connection belongs to, 0 before the handshake.
func (c *conn) sessionID() kv.SessionID { return kv.SessionID(c.session.Load()) }

// close ends the connection: reader and writer notice and leave. Safe from any goroutine, any number of times.
// reason is logged once if it says that somebody misbehaved; "" is an ordinary end.
func (c *conn) close(reason string) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	close(c.done)
	c.port.eventBytes.Add(-c.eventBytes)
	c.events, c.eventBytes = nil, 0
	c.cond.Broadcast()
	c.mu.Unlock()
	c.port.intake.end(c) // what was not sent yet must not be
	c.wake.signal()
	_ = c.nc.Close()
	if reason != "" {
		c.port.logClose(c, reason)
	}
}

// isClosed reports whether close was called.
func (c *conn) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// Event implements kv.Watcher. It is called under a lock of the watch table and only queues.
func (c *conn) Event(e kv.Event) {
	cost := int64(len(e.Path)) + eventOverhead
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.events = append(c.events, e)
	c.eventBytes += cost
	cut := c.port.eventBytes.Add(cost) > c.port.maxEventBytes && c.eventBytes > maxConnEventBytes && !c.cut
	c.cut = c.cut || cut
	mark := !c.dirty
	c.dirty = true
	c.mu.Unlock()
	if mark {
		c.port.markDirty(c)
	}
	if cut {
		// Not here: closing logs, and a lock of the watch table is held.
		c.port.group.Go(func() { c.close("watch events piled up unread") })
	}
}

// begin implements the applier's half of "a read behind my write sees exactly that write": it returns
// whether a read waits for the state this write makes, and from now on none can.
func (c *conn) begin(s *slot) (wantView bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.begun = true
	return s.wantView
}

// finishLocked records that s has its result. c.mu is held; once it is released pump may reuse the slot. The caller
// sees to it that the writer is woken.
func (c *conn) finishLocked(s *slot) {
	s.begun, s.done = true, true
	if c.tail == s {
		c.tail = nil
	}
	if c.openSync == s {
		c.openSync = nil
	}
	c.cond.Broadcast()
}

// writeLoop is the writer goroutine: it pumps whenever somebody else made the head of the ring answerable.
func (c *conn) writeLoop() {
	for range c.wake.c {
		c.wmu.Lock()
		ok := c.pump(true)
		c.wmu.Unlock()
		if !ok {
			c.close("")
			return
		}
	}
}

// tryPump is the reader's way to answer what it has just queued. If the writer is at it, the writer does it; likewise
// if it takes long, because a reader that waits does not see the pings of its client.
func (c *conn) tryPump() bool {
	if !c.wmu.TryLock() {
		c.wake.signal()
		return true
	}
	defer c.wmu.Unlock()
	return c.pump(false)
}

// pump writes everything that may be written now, in order. It reports false when the connection is over. patient says
// that it may wait for the client; otherwise a long reply is left to the writer. wmu is held.
func (c *conn) pump(patient bool) bool {
	c.patient = patient
	ok := c.pumpAll()
	c.returnOut()
	return ok
}

func (c *conn) pumpAll() bool {
	for {
		if !c.port.mayAnswer(c) {
			return !c.isClosed() // reopening wakes the writer
		}
		// settled before mu: every event and every result up to it is then visible below.
		settled := c.port.settled()
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return false
		}
		c.takeEvents()
		if c.ring.len() == 0 && len(c.run) == 0 {
			c.floor = nil // what is decoded from now on is not older
		}
		c.run = c.ring.takeReady(c.run)
		c.settleRunLocked()
		pings := c.pings
		if pings > 0 {
			c.stats.note(wire.OpPing, wire.XidPing, max(settled, c.lastZxid), c.pingAt, time.Now())
		}
		c.pings = 0
		c.mu.Unlock()
		c.mergeEvents()

		if len(c.run) == 0 && pings == 0 && (c.first == len(c.pending) || c.pending[c.first].Zxid > max(settled, c.lastZxid)) {
			return true
		}
		c.borrowOut()
		last, left := false, false
		for c.at < len(c.run) && !last && !left {
			s := c.run[c.at]
			switch c.answer(s) {
			case broken:
				return false
			case handOver:
				left = true
				continue
			case answered:
			}
			c.at++
			c.sent.Add(1)
			last = s.last
			if len(c.out) >= flushBytes && !c.flushPiece() {
				return false
			}
		}
		if !last && !left {
			// If something is left in the ring, its head waits for a result newer than settled.
			if !c.writeEvents(max(settled, c.lastZxid)) {
				return false
			}
			c.lastZxid = max(c.lastZxid, settled) // for pings: nothing older will be answered any more
			c.lastView = nil                      // reads that need it were taken together with their write
		}
		for range pings {
			c.writeHeader(wire.XidPing, int64(c.lastZxid), kv.CodeOK)
			c.sent.Add(1)
		}
		if !c.flush() || last {
			return false
		}
		c.recycle()
		if left {
			c.wake.signal()
			return true
		}
	}
}

// takeEvents takes what is queued; mergeEvents must follow when c.mu has been released. c.mu is held, by which the applier
// is held up if it has an event for this connection: nothing here may take long.
func (c *conn) takeEvents() {
	if len(c.events) == 0 {
		return
	}
	c.taken, c.events = c.events, c.taken[:0]
	c.pendingBytes += c.eventBytes
	c.eventBytes = 0
}

// mergeEvents adds what was taken to pending, which is in zxid order. wmu is held. A client that takes in little may
// have a million pending events, so an event that was raised late, by setting a watch on an older view, costs no more
// than a walk along them.
func (c *conn) mergeEvents() {
	if len(c.taken) == 0 {
		return
	}
	if c.first > len(c.pending)/2 { // what is written leaves its place
		rest := copy(c.pending, c.pending[c.first:])
		clear(c.pending[rest:])
		c.pending, c.first = c.pending[:rest], 0
	}
	var late []kv.Event
	for _, e := range c.taken {
		if e.Late {
			late = append(late, e)
			continue
		}
		i := len(c.pending)
		c.pending = append(c.pending, e)
		for ; i > c.first && c.pending[i-1].Zxid > e.Zxid; i-- {
			c.pending[i] = c.pending[i-1]
		}
		c.pending[i] = e
	}
	clear(c.taken)
	if c.taken = c.taken[:0]; cap(c.taken) > keepEvents {
		c.taken = nil
	}
	if late = c.dropDoubles(late); len(late) > 0 {
		c.insertLate(late)
	}
}

// dropDoubles removes each late event (kv.Event) that has another of its type and path beside it, to be written behind the
// same reply. One that is to be written before that reply is about an earlier change, which the reply shows.
func (c *conn) dropDoubles(late []kv.Event) []kv.Event {
	if len(late) == 0 {
		return nil
	}
	type what struct {
		t    kv.EventType
		path string
	}
	newest := make(map[what]kv.Zxid, len(late)) // of the others
	from := late[0].Zxid
	for i := range late {
		newest[what{late[i].Type, late[i].Path}] = 0
		from = min(from, late[i].Zxid)
	}
	for i := c.pendingAfter(from - 1); i < len(c.pending); i++ {
		e := &c.pending[i]
		if len(late) == 1 && (e.Type != late[0].Type || e.Path != late[0].Path) {
			continue // the usual case, without hashing
		}
		if w := (what{e.Type, e.Path}); len(late) == 1 {
			newest[w] = e.Zxid
			break
		} else if _, ok := newest[w]; ok {
			newest[w] = e.Zxid
		}
	}
	kept := late[:0]
	for _, e := range late {
		w := what{e.Type, e.Path}
		if newest[w] >= e.Zxid {
			c.releaseEvent(&e)
			continue
		}
		newest[w] = e.Zxid
		e.Late = false // from now on an event like all others
		kept = append(kept, e)
	}
	return kept
}

// pendingAfter is the index of the first pending event of a greater zxid.
func (c *conn) pendingAfter(z kv.Zxid) int {
	return c.first + sort.Search(len(c.pending)-c.first, func(i int) bool { return c.pending[c.first+i].Zxid > z })
}

// insertLate puts events into their places, behind others of the same zxid.
func (c *conn) insertLate(late []kv.Event) {
	slices.SortStableFunc(late, func(a, b kv.Event) int { return cmp.Compare(a.Zxid, b.Zxid) })
	from := len(c.pending) // of what has not been moved yet, the end
	c.pending = append(c.pending, late...)
	to := len(c.pending)
	for i := len(late) - 1; i >= 0; i-- {
		z := late[i].Zxid
		at := c.first + sort.Search(from-c.first, func(j int) bool { return c.pending[c.first+j].Zxid > z })
		n := from - at
		copy(c.pending[to-n:to], c.pending[at:from])
		from, to = at, to-n-1
		c.pending[to] = late[i]
	}
}

// releaseEvent takes an event off the account.
func (c *conn) releaseEvent(e *kv.Event) {
	cost := int64(len(e.Path)) + eventOverhead
	c.pendingBytes -= cost
	c.port.eventBytes.Add(-cost)
}

// writeEvents writes the pending events up to z. It reports false when the connection is over.
func (c *conn) writeEvents(z kv.Zxid) bool {
	from := c.first
	bytes := int64(0)
	for c.first < len(c.pending) && c.pending[c.first].Zxid <= z {
		e := &c.pending[c.first]
		before := len(c.out)
		c.out = wire.AppendEventFrame(c.out, int64(e.Zxid), int32(e.Type), e.Path)
		bytes += int64(len(c.out) - before)
		c.releaseEvent(e)
		*e = kv.Event{}
		c.first++
		if len(c.out) >= flushBytes {
			if !c.flushPiece() {
				return false
			}
		}
	}
	n := c.first - from
	if n == 0 {
		return true
	}
	c.sent.Add(int64(n))
	c.port.counters.watchBytes.Add(bytes)
	if c.first == len(c.pending) {
		c.pending, c.first = c.pending[:0], 0
		if cap(c.pending) > keepEvents {
			c.pending = nil
		}
	}
	return true
}

// forget drops what has been queued for a connection that is over. wmu is held, and pump will do nothing any more.
func (c *conn) forget() {
	c.port.eventBytes.Add(-c.pendingBytes)
	c.pending, c.first, c.pendingBytes = nil, 0, 0
}

// writeHeader writes a reply without a record.
func (c *conn) writeHeader(xid int32, zxid int64, code kv.Code) {
	out, mark := wire.BeginFrame(c.out)
	c.out = wire.EndFrame((&wire.ReplyHeader{Xid: xid, Zxid: zxid, Err: code}).AppendTo(out), mark)
}

// flush writes the output buffer to the socket. A client that does not read blocks it; the janitor cuts the
// connection when that lasts too long.
func (c *conn) flush() bool {
	if len(c.out) == 0 {
		return true
	}
	ok := c.writeOut(c.out, c.port.clock.now())
	if cap(c.out) > keepOutBytes {
		c.out = nil
	}
	c.out = c.out[:0]
	return ok
}

// flushPiece writes a part of what there is to write. That the client takes it in is a sign of life: on a slow link its
// pings wait behind its requests, and these behind their replies.
func (c *conn) flushPiece() bool {
	if !c.flush() {
		return false
	}
	c.hear()
	return true
}

// writeOut writes b to the socket. since is the tick from which the janitor counts.
func (c *conn) writeOut(b []byte, since int64) bool {
	c.writing.Store(max(since, 0) + 1)
	_, err := c.nc.Write(b)
	c.writing.Store(0)
	return err == nil
}

// recycle returns the answered slots.
func (c *conn) recycle() {
	done := c.run[:c.at]
	if len(done) == 0 {
		return
	}
	var lat answeredBatch
	now := time.Now()
	c.mu.Lock()
	for _, s := range done {
		lat.add(c.port, now.Sub(s.at), s.kind)
		c.stats.noteSlot(s, c.lastZxid, now)
		c.held--
		c.heldBytes -= s.cost
		if s.watching {
			c.watching--
		}
		s.reset()
		if len(c.free) < keepSlots {
			c.free = append(c.free, s)
		} else {
			s.conn = nil
			spareSlots.Put(s)
		}
	}
	c.cond.Broadcast()
	c.mu.Unlock()
	c.port.noteAnswered(&lat)
	c.port.noteSizes(&c.sizes)
	rest := copy(c.run, c.run[c.at:])
	clear(c.run[rest:])
	c.run, c.at = c.run[:rest], 0
}

// outBuffer is a connection's output while it has some: buffers are as many as there are connections being answered, not
// as there are connections.
type outBuffer struct{ b []byte }

var (
	outBuffers = sync.Pool{New: func() any { return &outBuffer{make([]byte, 0, 4<<10)} }}
	spareSlots = sync.Pool{New: func() any { return new(slot) }}
)

// borrowOut gets a buffer for c.out. wmu is held.
func (c *conn) borrowOut() {
	if c.box == nil {
		c.box = outBuffers.Get().(*outBuffer)
		c.out = c.box.b[:0]
		c.trim = true
	}
}

// returnOut gives it back; everything has been written, or the connection is over. wmu is held.
func (c *conn) returnOut() {
	if c.box == nil {
		return
	}
	if c.out != nil { // flush drops one that has become large
		c.box.b = c.out[:0]
		outBuffers.Put(c.box)
	}
	c.out, c.box = nil, nil
}

// trimIdle frees what the connection has kept for its next requests. The janitor calls it when it has been silent for
// a while: most connections of a large member are idle most of the time.
func (c *conn) trimIdle() {
	if !c.wmu.TryLock() {
		return
	}
	defer c.wmu.Unlock()
	if !c.trim {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring.len() > 0 || len(c.run) > 0 || len(c.events) > 0 || c.first < len(c.pending) {
		return
	}
	c.trim = false
	c.ring, c.run, c.free = slotRing{}, nil, nil
	c.events, c.taken, c.pending, c.first = nil, nil, nil, 0
	c.names, c.reads = nil, nil
}

// closedByPeer reports whether a read error is an ordinary end.
func closedByPeer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, io.ErrClosedPipe) || isReset(err)
}

// slotRing is a growing FIFO of slots.
type slotRing struct {
	buf  []*slot // power of two
	head uint
	n    uint
}

func (r *slotRing) len() int { return int(r.n) }

func (r *slotRing) push(s *slot) {
	if int(r.n) == len(r.buf) {
		grown := make([]*slot, max(16, 2*len(r.buf)))
		for i := range r.n {
			grown[i] = r.buf[(r.head+i)&uint(len(r.buf)-1)]
		}
		r.buf, r.head = grown, 0
	}
	r.buf[(r.head+r.n)&uint(len(r.buf)-1)] = s
	r.n++
}

// takeReady moves the longest answerable prefix to dst.
func (r *slotRing) takeReady(dst []*slot) []*slot {
	for r.n > 0 {
		at := r.head & uint(len(r.buf)-1)
		s := r.buf[at]
		if !s.ready() {
			break
		}
		r.buf[at] = nil
		r.head++
		r.n--
		dst = append(dst, s)
	}
	return dst
}
