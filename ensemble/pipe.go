package ensemble

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// pipeBytes bounds what one direction of an in-process connection buffers; a writer then waits, as on a socket.
const pipeBytes = 64 << 10

// newPipe returns the two ends of a buffered in-process connection. An in-process client talks to the same
// connection code as a TCP client through it. Unlike net.Pipe a write does not wait for its reader, so that
// pipelined requests and replies gather as they do on a socket.
func newPipe() (client, server net.Conn) {
	ab, ba := newHalf(), newHalf()
	return &pipeConn{in: ba, out: ab}, &pipeConn{in: ab, out: ba}
}

// half is one direction: a byte queue with an end.
type half struct {
	mu       sync.Mutex
	cond     sync.Cond
	buf      []byte // buf[off:] is unread
	off      int
	closed   bool // no further write succeeds; reads drain, then io.EOF
	deadline [2]pipeDeadline
}

// The two deadlines of a half.
const (
	readSide = iota
	writeSide
)

type pipeDeadline struct {
	at    time.Time
	timer *time.Timer
}

func newHalf() *half {
	h := &half{}
	h.cond.L = &h.mu
	return h
}

func (h *half) expired(side int) bool {
	d := &h.deadline[side]
	return !d.at.IsZero() && !time.Now().Before(d.at)
}

func (h *half) setDeadline(side int, t time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := &h.deadline[side]
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.at = t
	if !t.IsZero() {
		d.timer = time.AfterFunc(time.Until(t), func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.cond.Broadcast()
		})
	}
	h.cond.Broadcast()
}

func (h *half) read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.off == len(h.buf) {
		if h.closed {
			return 0, io.EOF
		}
		if h.expired(readSide) {
			return 0, os.ErrDeadlineExceeded
		}
		h.cond.Wait()
	}
	n := copy(p, h.buf[h.off:])
	h.off += n
	if h.off == len(h.buf) {
		h.buf, h.off = h.buf[:0], 0
	}
	h.cond.Broadcast()
	return n, nil
}

func (h *half) write(p []byte) (n int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(p) > 0 {
		if h.closed {
			return n, io.ErrClosedPipe
		}
		if h.expired(writeSide) {
			return n, os.ErrDeadlineExceeded
		}
		room := pipeBytes - (len(h.buf) - h.off)
		if room == 0 {
			h.cond.Wait()
			continue
		}
		if h.off > 0 {
			h.buf = h.buf[:copy(h.buf, h.buf[h.off:])]
			h.off = 0
		}
		k := min(room, len(p))
		h.buf = append(h.buf, p[:k]...)
		p, n = p[k:], n+k
		h.cond.Broadcast()
	}
	return n, nil
}

// end closes the half; discard also drops what was not read.
func (h *half) end(discard bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	if discard {
		h.buf, h.off = nil, 0
	}
	for i := range h.deadline {
		if t := h.deadline[i].timer; t != nil {
			t.Stop()
		}
	}
	h.cond.Broadcast()
}

type pipeConn struct{ in, out *half }

func (c *pipeConn) Read(p []byte) (int, error)  { return c.in.read(p) }
func (c *pipeConn) Write(p []byte) (int, error) { return c.out.write(p) }

// Close ends both directions: the other side still reads what was written to it.
func (c *pipeConn) Close() error {
	c.out.end(false)
	c.in.end(true)
	return nil
}

func (c *pipeConn) LocalAddr() net.Addr  { return pipeAddr{} }
func (c *pipeConn) RemoteAddr() net.Addr { return pipeAddr{} }

func (c *pipeConn) SetDeadline(t time.Time) error {
	c.in.setDeadline(readSide, t)
	c.out.setDeadline(writeSide, t)
	return nil
}
func (c *pipeConn) SetReadDeadline(t time.Time) error  { c.in.setDeadline(readSide, t); return nil }
func (c *pipeConn) SetWriteDeadline(t time.Time) error { c.out.setDeadline(writeSide, t); return nil }

// pipeAddr is the address of an in-process client.
type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "in-process" }
