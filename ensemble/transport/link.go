package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"kvd/zab"
	"kvd/zab/quorum"
)

// ErrQueueFull closes a link whose peer does not keep up (zab-rules g1).
var ErrQueueFull = errors.New("send queue full")

// ErrReplaced closes a learner's link when the same learner opens another one.
var ErrReplaced = errors.New("replaced by a newer link of the same peer")

// ClosedError is the cause of a link that was closed on purpose: by CloseLink here, or by the peer's.
type ClosedError struct {
	Reason string
	ByPeer bool
}

// Error names who closed and why.
func (e *ClosedError) Error() string {
	if e.ByPeer {
		return "closed by the peer: " + e.Reason
	}
	return "closed: " + e.Reason
}

// link is one connection between a leader and a learner.
//
// Its life: serveLink announces it, starts the writer and reads; the first cause of its end is kept by fail or
// by a goodbye; the reader then waits for the writer and reports LinkDown. An orderly close (CloseLink) lets
// the writer flush, say goodbye and half-close; the reader drains until the peer closes too or CloseTimeout is
// over, so that the last messages are not lost to a TCP reset.
type link struct {
	t    *Transport
	id   zab.LinkID
	peer quorum.MemberID
	c    net.Conn
	// remote is what the peer said about itself at the handshake.
	remote hello

	dialled bool
	dead    chan struct{} // closed by fail: nothing more will be written
	wake    chan struct{} // capacity 1
	low     chan *frame   // capacity 1: the next chunk of the snapshot stream, written when nothing else waits or once per flush

	mu      sync.Mutex
	queue   []*frame // under mu, as all below
	waiting int      // memory held by queue and the flush under way, bytes
	frames  int      // likewise
	closing bool     // no more is queued; the writer says goodbye and half-closes
	reason  string   // of the goodbye
	cause   error    // first reason for the end
	out     *outStream
	in      *inStream
	streams uint32 // number of the newest stream sent
}

// serveLink runs a link on c in the calling goroutine until it ends.
func (t *Transport) serveLink(c net.Conn, remote hello, dialled bool) {
	id := remote.from
	l := &link{t: t, id: zab.LinkID(t.lastLink.Add(1)), peer: id, remote: remote, c: c, dialled: dialled, dead: make(chan struct{}), wake: make(chan struct{}, 1), low: make(chan *frame, 1)}
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return
	}
	for _, other := range t.links {
		if other.peer != id || other.dialled || dialled {
			continue
		}
		if other.remote.instance == remote.instance && other.remote.nonce > remote.nonce {
			t.mu.Unlock() // a dial of before: it waited at the listener while this member stood still
			t.counters.dialsOvertaken.Add(1)
			return
		}
		other.fail(ErrReplaced)
	}
	t.links[l.id] = l
	t.mu.Unlock()
	t.counters.linksOpened.Add(1)

	t.o.Handler.LinkUp(id, l.id, dialled)
	var writer sync.WaitGroup
	writer.Go(l.write)
	l.fail(l.read())
	writer.Wait()
	t.mu.Lock()
	delete(t.links, l.id)
	t.mu.Unlock()
	l.drainQueue()
	t.o.Handler.LinkDown(id, l.id, l.causeOf())
}

// Connect dials leader's learner port; a newer Connect replaces an older one, whose outcome is then never
// reported. The outcome is LinkUp with dialled set, or ConnectFailed(attempt).
func (t *Transport) Connect(leader quorum.MemberID, attempt uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	if t.stopDialing != nil {
		t.stopDialing()
	}
	ctx, stop := context.WithCancel(t.ctx)
	t.attempt, t.stopDialing = attempt, stop
	t.wg.Go(func() {
		defer stop()
		t.connect(ctx, leader, attempt)
	})
}

func (t *Transport) connect(ctx context.Context, leader quorum.MemberID, attempt uint64) {
	p := t.peers[leader]
	if p == nil {
		t.o.Handler.ConnectFailed(attempt, fmt.Errorf("member %d is not a configured peer", leader))
		return
	}
	c, err := t.dial(ctx, joinHostPort(p.addr.Host, p.addr.LearnerPort))
	var answer hello
	if err == nil {
		defer t.drop(c)
		unwatch := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) }) // a newer Connect ends the handshake
		answer, err = t.greet(c, hello{purpose: purposeLearner, to: leader, nonce: t.nonce.Add(1)})
		if !unwatch() && err == nil {
			err = ctx.Err()
		}
		p.noteRefusal(err, c)
	}
	t.mu.Lock()
	current := t.attempt == attempt && ctx.Err() == nil
	if current {
		t.stopDialing = nil // from here on it is a link, closed by CloseLink only
	}
	t.mu.Unlock()
	switch {
	case !current:
	case err != nil:
		t.o.Handler.ConnectFailed(attempt, fmt.Errorf("connecting to leader %d at %s: %w", leader, joinHostPort(p.addr.Host, p.addr.LearnerPort), err))
	default:
		t.serveLink(c, answer, true)
	}
}

// CloseLink closes a link after what was queued on it has been flushed, telling the peer the reason. LinkDown
// follows.
func (t *Transport) CloseLink(id zab.LinkID, reason string) {
	t.mu.Lock()
	l := t.links[id]
	t.mu.Unlock()
	if l == nil {
		return
	}
	l.mu.Lock()
	if !l.closing && l.cause == nil {
		l.closing, l.reason, l.cause = true, reason, &ClosedError{Reason: reason}
	}
	l.mu.Unlock()
	poke(l.wake)
}

// fail ends the link at once. The first cause stays. It may be called any number of times, under Transport.mu too.
func (l *link) fail(err error) {
	l.mu.Lock()
	if l.cause == nil {
		l.cause = err
	}
	select {
	case <-l.dead:
	default:
		close(l.dead)
	}
	l.mu.Unlock()
	_ = l.c.Close()
}

func (l *link) causeOf() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// sharedFrames is how many recent messages of one Send call are kept for reuse: a round of messages to all learners
// interleaves at most a few kinds.
const sharedFrames = 8

// Send queues messages on their links, in order per link, and returns at once. A message given for several
// links (the same pointer) is encoded once. Messages for links that are gone are dropped. A full queue, or a
// message that cannot be encoded, closes its link.
func (t *Transport) Send(out []zab.Outbound) {
	var msgs [sharedFrames]zab.Message
	var frames [sharedFrames]*frame
	next := 0
	for i := range out {
		t.mu.Lock()
		l := t.links[out[i].Link]
		t.mu.Unlock()
		if l == nil {
			continue
		}
		var f *frame
		for j := range msgs {
			if msgs[j] == out[i].Msg {
				f = frames[j]
				break
			}
		}
		if f == nil {
			var err error
			if f, err = t.encode(out[i].Msg); err != nil {
				l.fail(err)
				continue
			}
			if frames[next] != nil {
				frames[next].release()
			}
			msgs[next], frames[next] = out[i].Msg, f
			next = (next + 1) % sharedFrames
		}
		l.push(f)
	}
	for _, f := range frames {
		if f != nil {
			f.release()
		}
	}
}

func (t *Transport) encode(m zab.Message) (*frame, error) {
	f := newFrame(kindMessage)
	buf, err := t.o.Codec.Append(f.buf, m)
	if err == nil && len(buf)-4 > t.o.Limits.MaxFrameBytes {
		err = fmt.Errorf("%d bytes, limit %d", len(buf)-4, t.o.Limits.MaxFrameBytes)
	}
	if err != nil {
		f.release()
		return nil, fmt.Errorf("encoding %T: %w", m, err)
	}
	f.buf = buf
	f.seal()
	t.counters.framesEncoded.Add(1)
	return f, nil
}

// push queues a reference to f. It never blocks.
func (l *link) push(f *frame) {
	l.mu.Lock()
	if l.closing || l.cause != nil {
		l.mu.Unlock()
		return
	}
	if l.frames >= l.t.o.Limits.MaxQueueFrames || l.frames > 0 && l.waiting+f.held() > l.t.o.Limits.MaxQueueBytes {
		frames, bytes := l.frames, l.waiting
		l.mu.Unlock()
		l.t.counters.linksOverflowed.Add(1)
		l.fail(fmt.Errorf("%w: %d messages, %d bytes", ErrQueueFull, frames, bytes))
		return
	}
	f.retain()
	l.queue = append(l.queue, f)
	l.frames++
	l.waiting += f.held()
	l.mu.Unlock()
	poke(l.wake)
}

// write is the writer goroutine: everything that has gathered goes out in one writev, with at most one snapshot
// chunk behind it.
func (l *link) write() {
	var batch []*frame
	var iov net.Buffers
	for {
		l.mu.Lock()
		batch, l.queue = l.queue, batch[:0]
		closing, reason := l.closing, l.reason
		l.mu.Unlock()

		held := 0
		for _, f := range batch {
			held += f.held()
		}
		queued := len(batch)
		if queued == 0 && closing {
			l.goodbye(reason)
			return
		}
		select {
		case f := <-l.low:
			batch = append(batch, f)
		default:
			if queued > 0 {
				break
			}
			select {
			case f := <-l.low:
				batch = append(batch, f)
			case <-l.wake:
				continue
			case <-l.dead:
				return
			}
		}
		buffers := iov[:0]
		total := 0
		for _, f := range batch {
			buffers = append(buffers, f.buf)
			total += len(f.buf)
		}
		iov = buffers // WriteTo consumes its receiver, not the backing array
		err := l.flush(buffers, total)
		for i, f := range batch {
			f.release()
			batch[i] = nil
			buffers[i] = nil
		}
		l.mu.Lock()
		l.frames -= queued
		l.waiting -= held
		l.mu.Unlock()
		if err != nil {
			l.fail(err)
			return
		}
		l.t.counters.flushes.Add(1)
		l.t.counters.framesSent.Add(uint64(len(batch)))
		l.t.counters.bytesSent.Add(uint64(total))
	}
}

// flush writes buffers. The deadline grows with the amount, for a peer that reads slowly but does read.
func (l *link) flush(buffers net.Buffers, total int) error {
	const slowest = 1 << 20 // bytes per second
	limit := l.t.o.Limits.WriteTimeout + time.Duration(total)*time.Second/slowest
	_ = l.c.SetWriteDeadline(time.Now().Add(limit))
	var err error
	if len(buffers) == 1 {
		_, err = l.c.Write(buffers[0])
	} else {
		_, err = buffers.WriteTo(l.c)
	}
	if err != nil {
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			return fmt.Errorf("the peer has not read for %v: %w", limit, err)
		}
		return err
	}
	return nil
}

// goodbye ends an orderly close: the reason, then a half-close, then the reader has CloseTimeout to see the
// peer's end.
func (l *link) goodbye(reason string) {
	f := newFrame(kindGoodbye)
	f.buf = append(f.buf, reason[:min(len(reason), maxReasonBytes)]...)
	f.seal()
	deadline := time.Now().Add(l.t.o.Limits.CloseTimeout)
	_ = l.c.SetDeadline(deadline)
	_, err := l.c.Write(f.buf)
	f.release()
	half, ok := l.c.(interface{ CloseWrite() error })
	if err != nil || !ok || half.CloseWrite() != nil {
		_ = l.c.Close()
	}
}

// drainQueue releases what will not be written any more. Only after the writer has ended.
func (l *link) drainQueue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, f := range l.queue {
		f.release()
		l.queue[i] = nil
	}
	l.queue = l.queue[:0]
	select {
	case f := <-l.low:
		f.release()
	default:
	}
}

// read delivers frames until the connection ends and returns why.
func (l *link) read() error {
	fr := newFrameReader(l.c, l.t.o.Limits.MaxFrameBytes)
	fr.progress = func() { l.t.o.Handler.SnapshotProgress(l.id) }
	for {
		kind, body, err := fr.next()
		if err == nil {
			err = l.deliver(kind, body)
		}
		if err == nil {
			continue
		}
		var bye *ClosedError
		switch {
		case errors.Is(err, errFrame):
			l.t.counters.badFrames.Add(1)
		case errors.As(err, &bye), errors.Is(err, net.ErrClosed):
		case errors.Is(err, io.EOF):
			err = errors.New("the peer closed the connection")
		}
		return err
	}
}

func (l *link) deliver(kind byte, body []byte) error {
	switch kind {
	case kindMessage:
		m, err := l.t.o.Codec.Decode(body)
		if err != nil {
			return fmt.Errorf("%w: %w", errFrame, err)
		}
		l.t.o.Handler.LinkMessage(l.peer, l.id, m)
		return nil
	case kindGoodbye:
		return &ClosedError{Reason: printable(body[:min(len(body), maxReasonBytes)]), ByPeer: true}
	case kindSnapBegin, kindSnapHave, kindSnapChunk, kindSnapAck, kindSnapDone, kindSnapAbort:
		return l.deliverStream(kind, body)
	}
	return fmt.Errorf("%w: kind %d on a link", errFrame, kind)
}
