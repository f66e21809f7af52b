package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// errSilent: nothing came from the server for two thirds of the session time-out.
var errSilent = errors.New("the server is silent")

// errRefused: the usual answer of a server that is not serving.
var errRefused = errors.New("closed without an answer: the server is not serving, or has not caught up with this session")

// maxBatchBytes bounds what one write takes from the queue (a larger call goes alone).
const maxBatchBytes = 64 << 10

// conn is one connection with an established session.
//
// The reader goroutine owns it: it starts the writer, waits for it, and closes the stream. The watchdog is a
// timer that wakes a few times per session time-out; it asks for pings and notices silence, so that neither
// reading nor writing sets deadlines.
type conn struct {
	rw     io.ReadWriteCloser
	addr   string
	frames *wire.FrameReader
	wake   chan struct{} // capacity 1: the queue may have something for the writer
	stop   chan struct{} // closed by the reader when it is over

	lastRecv, lastSend atomic.Int64 // nanoseconds since Client.start

	// first is what the writer sends before anything else: identities, and watches that are set again. Its answers come in order.
	first    []byte
	rearming int // reader only: setWatches without an answer yet

	xid     int32       // guarded by Client.mu
	pingDue bool        // guarded by Client.mu
	pings   []int64     // guarded by Client.mu: when those without an answer were sent
	authDue []*authCall // guarded by Client.mu: to be sent
	auths   []*authCall // guarded by Client.mu: sent, without an answer

	failOnce sync.Once
	cause    error // set by the first fail; read by the reader after Next failed
}

// wakeUp makes the writer look at the queue.
func (cn *conn) wakeUp() {
	select {
	case cn.wake <- struct{}{}:
	default:
	}
}

// fail closes the stream, which ends the reader; err is why.
func (cn *conn) fail(err error) {
	cn.failOnce.Do(func() { cn.cause = err })
	cn.rw.Close()
}

// run is the reader goroutine: it connects, serves, and connects again, until the client is closed or its
// session is gone.
func (c *Client) run(ctx context.Context) {
	defer close(c.done)
	var cn *conn
	var err error
	for first := true; ; first = false {
		if cn, err = c.connect(ctx, first); err != nil {
			break
		}
		if first {
			close(c.ready)
		}
		c.opts.logger.Info("session established", "server", cn.addr, "session", c.Session())
		c.tell(SessionEvent{State: StateConnected, Server: cn.addr, Session: c.Session()})
		err = c.serve(ctx, cn)
		c.opts.logger.Info("connection lost", "server", cn.addr, "err", err)
		c.lost(cn, err)
		c.tell(SessionEvent{State: StateDisconnected, Server: cn.addr, Session: c.Session(), Err: err})
	}
	c.end(err)
	if errors.Is(err, ErrSessionExpired) {
		c.tell(SessionEvent{State: StateExpired, Session: c.Session(), Err: err})
	} else {
		c.tell(SessionEvent{State: StateClosed, Session: c.Session()})
	}
}

func (c *Client) tell(ev SessionEvent) {
	if c.opts.onState != nil {
		c.opts.onState(ev)
	}
}

// connect tries the servers in turn until one takes the session. It fails with ErrSessionExpired or ErrClosed.
func (c *Client) connect(ctx context.Context, first bool) (*conn, error) {
	pause := c.opts.backoffMin
	if first {
		pause = 0
	}
	for {
		if !c.sleep(ctx, pause) {
			return nil, ErrClosed
		}
		for range c.addrs {
			c.mu.Lock()
			closing := c.closing
			addr := c.addrs[c.server]
			c.server = (c.server + 1) % len(c.addrs)
			c.mu.Unlock()
			if closing {
				return nil, ErrClosed
			}
			cn, err := c.attempt(ctx, addr)
			if err == nil {
				return cn, nil
			}
			if errors.Is(err, ErrSessionExpired) {
				return nil, err
			}
			if ctx.Err() != nil {
				return nil, ErrClosed
			}
			c.opts.logger.Debug("no session", "server", addr, "err", err)
			c.mu.Lock()
			c.reasons[addr] = err
			c.mu.Unlock()
		}
		pause = min(max(2*pause, c.opts.backoffMin), c.opts.backoffMax)
	}
}

// sleep waits a random part of d; false if ctx ended.
func (c *Client) sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(time.Duration(c.opts.rand.Int64N(int64(d) + 1)))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// attempt opens one connection and establishes or resumes the session on it.
func (c *Client) attempt(ctx context.Context, addr string) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.connectTimeout)
	defer cancel()
	rw, err := c.opts.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	unwatch := context.AfterFunc(ctx, func() { rw.Close() })
	cn := &conn{rw: rw, addr: addr, frames: wire.NewFrameReader(rw, 1024), wake: make(chan struct{}, 1), stop: make(chan struct{})}
	began := int64(time.Since(c.start))
	resp, err := c.handshake(cn)
	if !unwatch() {
		err = fmt.Errorf("no answer to the handshake: %w", context.Cause(ctx))
	}
	if err != nil {
		rw.Close()
		return nil, err
	}
	cn.frames.SetLimit(c.opts.maxReply)
	now := int64(time.Since(c.start))
	cn.lastRecv.Store(now)
	cn.lastSend.Store(now)

	c.mu.Lock()
	c.session, c.password = resp.Session, resp.Password
	c.timeout = time.Duration(resp.TimeoutMs) * time.Millisecond
	c.confirmed = max(c.confirmed, began)
	for _, a := range c.auths {
		cn.first = a.append(cn.first)
		cn.auths = append(cn.auths, nil)
	}
	cn.first, cn.rearming = c.rearm(cn.first, c.lastZxid)
	c.conn = cn
	clear(c.reasons)
	if c.queue.len() > 0 || len(cn.first) > 0 {
		cn.wakeUp()
	}
	c.mu.Unlock()
	c.watchers.each((*Watcher).gap) // nobody tells them what happened in between
	return cn, nil
}

func (c *Client) handshake(cn *conn) (resp wire.ConnectResponse, err error) {
	c.mu.Lock()
	req := wire.ConnectRequest{
		LastZxidSeen: c.lastZxid,
		TimeoutMs:    int32(min(c.opts.sessionTimeout.Milliseconds(), 1<<31-1)),
		Session:      c.session,
		Password:     c.password[:],
		HasReadOnly:  true,
	}
	buf, mark := wire.BeginFrame(make([]byte, 0, 64))
	buf = wire.EndFrame(req.AppendTo(buf), mark)
	c.mu.Unlock()
	_, err = cn.rw.Write(buf)
	var frame []byte
	if err == nil {
		frame, err = cn.frames.Next()
	}
	if err != nil {
		// How the close reaches us depends on who was faster.
		for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, syscall.ECONNRESET, syscall.EPIPE} {
			if errors.Is(err, end) {
				err = errRefused
			}
		}
		return resp, err
	}
	if err = wire.Decode(frame, &resp); err != nil {
		return resp, fmt.Errorf("answer to the handshake: %w", err)
	}
	if resp.TimeoutMs <= 0 || resp.Session == 0 {
		if req.Session == 0 {
			return resp, errors.New("the server refused a new session")
		}
		return resp, ErrSessionExpired
	}
	return resp, nil
}

// serve runs the connection until it breaks and returns why.
func (c *Client) serve(ctx context.Context, cn *conn) error {
	unwatch := context.AfterFunc(ctx, func() { cn.fail(ErrClosed) })
	defer unwatch()
	var writer sync.WaitGroup
	writer.Go(func() { c.write(cn) })

	interval := max(c.SessionTimeout()/6, time.Millisecond)
	var dog *time.Timer
	started := make(chan struct{})
	dog = time.AfterFunc(interval, func() {
		<-started
		if c.watch(cn) {
			dog.Reset(interval)
		}
	})
	close(started)

	err := c.read(cn)
	cn.fail(err)
	close(cn.stop)
	dog.Stop()
	writer.Wait()
	return cn.cause
}

// watch is one look of the watchdog; false ends it.
func (c *Client) watch(cn *conn) bool {
	select {
	case <-cn.stop:
		return false
	default:
	}
	timeout := c.SessionTimeout()
	now := time.Since(c.start)
	if now-time.Duration(cn.lastRecv.Load()) > timeout*2/3 {
		cn.fail(errSilent)
		return false
	}
	if now-time.Duration(cn.lastSend.Load()) >= timeout/6 {
		c.mu.Lock()
		cn.pingDue = true
		c.mu.Unlock()
		cn.wakeUp()
	}
	return true
}

// write is the writer goroutine.
func (c *Client) write(cn *conn) {
	var buf []byte
	for {
		select {
		case <-cn.wake:
		case <-cn.stop:
			return
		}
		// Others that are about to submit get to run first: what they add saves a write each.
		runtime.Gosched()
		for {
			buf = c.batch(cn, buf[:0])
			if len(buf) == 0 {
				break
			}
			cn.lastSend.Store(int64(time.Since(c.start)))
			if _, err := cn.rw.Write(buf); err != nil {
				cn.fail(err)
				return
			}
			if cap(buf) > 4*maxBatchBytes {
				buf = nil
			}
		}
	}
}

// batch moves calls from the queue to those in flight and encodes them.
func (c *Client) batch(cn *conn, buf []byte) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := int64(time.Since(c.start))
	if len(cn.first) > 0 {
		buf = append(buf, cn.first...)
		cn.first = nil
	}
	for _, a := range cn.authDue {
		buf = a.append(buf)
		cn.auths = append(cn.auths, a)
	}
	cn.authDue = nil
	if cn.pingDue {
		cn.pingDue = false
		cn.pings = append(cn.pings, now)
		var mark int
		buf, mark = wire.BeginFrame(buf)
		buf = wire.EndFrame((&wire.RequestHeader{Xid: wire.XidPing, Op: wire.OpPing}).AppendTo(buf), mark)
	}
	for c.queue.len() > 0 && len(buf) < maxBatchBytes {
		call := c.queue.popFront().call
		if call == nil {
			continue
		}
		cn.xid++
		if cn.xid <= 0 {
			cn.xid = 1
		}
		buf = c.appendCall(buf, cn.xid, call)
		call.state, call.pos = callInflight, c.inflight.pushBack(slot{call, cn.xid, now})
	}
	return buf
}

// read handles what the server sends until the connection breaks.
func (c *Client) read(cn *conn) error {
	working := false
	for {
		if !cn.frames.Buffered() && working {
			working = false
			c.uncork(cn)
		}
		frame, err := cn.frames.Next()
		if err != nil {
			return err
		}
		if !working {
			working = true
			cn.lastRecv.Store(int64(time.Since(c.start)))
		}
		h, body, err := wire.SplitReply(frame)
		if err != nil {
			return err
		}
		switch h.Xid {
		case wire.XidEvent:
			err = c.event(cn, h, body)
		case wire.XidPing:
			c.mu.Lock()
			if len(cn.pings) > 0 {
				c.confirmed = max(c.confirmed, cn.pings[0])
				cn.pings = cn.pings[1:]
			}
			c.mu.Unlock()
		case wire.XidSetWatches:
			cn.rearming--
		case wire.XidAuth:
			err = c.authAnswered(cn, h.Err)
		default:
			err = c.reply(cn, h, body)
		}
		if err != nil {
			return err
		}
	}
}

func (c *Client) uncork(cn *conn) {
	c.mu.Lock()
	c.corked = false
	if c.queue.len() > 0 {
		cn.wakeUp()
	}
	c.mu.Unlock()
}

func (c *Client) event(cn *conn, h wire.ReplyHeader, body []byte) error {
	var ev wire.WatcherEvent
	if err := wire.Decode(body, &ev); err != nil {
		return fmt.Errorf("watch event: %w", err)
	}
	e := Event{Type: EventType(ev.Type), Path: c.localPath(ev.Path), Zxid: kv.Zxid(max(h.Zxid, 0)), CaughtUp: cn.rearming > 0}
	c.watches.fire(ev.Path, e)
	c.watchers.fire(ev.Path, e)
	return nil
}

func (c *Client) reply(cn *conn, h wire.ReplyHeader, body []byte) error {
	c.mu.Lock()
	c.corked = true
	if c.inflight.len() == 0 {
		c.mu.Unlock()
		return fmt.Errorf("reply with xid %d to no request", h.Xid)
	}
	s := *c.inflight.at(c.inflight.first)
	if s.xid != h.Xid {
		c.mu.Unlock()
		return fmt.Errorf("reply with xid %d, expected %d", h.Xid, s.xid)
	}
	c.inflight.popFront()
	call := s.call
	if call != nil {
		call.state = callIdle
		c.bytes -= call.size
	}
	c.lastZxid = max(c.lastZxid, h.Zxid)
	c.confirmed = max(c.confirmed, s.sent)
	c.mu.Unlock()
	if call == nil {
		return nil
	}
	call.Zxid = kv.Zxid(max(h.Zxid, 0))
	err := c.decodeReply(call, h.Err, body)
	if err != nil {
		err = fmt.Errorf("reply to %v: %w", call.Op, err)
		call.Err = lostError(call, cn.addr, err)
	} else if call.Watch && (call.Err == nil || call.Op == wire.OpExists && h.Err == kv.CodeNoNode) {
		call.Watched = c.watches.add(call.Op, c.serverPath(call.Path), h.Err == kv.CodeNoNode)
	} else if call.watcher != nil && call.Err == nil {
		c.watchers.add(call.watcher)
	}
	call.Done(call)
	return err
}

// lostError is the error of a call that was sent on a connection that broke.
func lostError(call *Call, addr string, err error) error {
	what := ErrUnavailable
	if isWrite(call.Op) {
		what = ErrUnknownOutcome
	}
	return &Error{Op: call.Op, Path: call.Path, Err: fmt.Errorf("%w: connection to %s: %w", what, addr, err)}
}

// lost sorts out what a broken connection leaves: reads wait for the next one, before what was not sent;
// writes that were sent end with ErrUnknownOutcome. Watches wait for the next connection.
func (c *Client) lost(cn *conn, err error) {
	var failed []*Call // newest first
	c.mu.Lock()
	auths := append(cn.auths, cn.authDue...)
	cn.auths, cn.authDue = nil, nil
	c.conn, c.corked = nil, false
	c.reasons[cn.addr] = err
	// A reply that is too large would be too large again.
	tooLarge := errors.Is(err, wire.ErrFrameLength) && c.inflight.len() > 0
	for pos := c.queue.first; pos < c.queue.first+int64(c.queue.len()); pos++ {
		if s := c.queue.at(pos); s.call != nil && s.call.FailFast {
			failed = append(failed, s.call)
			s.call = nil
		}
	}
	for i, j := 0, len(failed)-1; i < j; i, j = i+1, j-1 {
		failed[i], failed[j] = failed[j], failed[i]
	}
	for c.inflight.len() > 0 {
		call := c.inflight.popBack().call
		switch {
		case call == nil:
		case isWrite(call.Op) || call.FailFast || tooLarge && c.inflight.len() == 0:
			failed = append(failed, call)
		default:
			call.state, call.pos = callQueued, c.queue.pushFront(slot{call: call})
		}
	}
	sent := make([]bool, len(failed))
	for i, call := range failed {
		sent[i] = call.state == callInflight
		call.state = callIdle
		c.bytes -= call.size
	}
	c.mu.Unlock()

	for _, a := range auths {
		if a != nil {
			a.done <- &Error{Op: wire.OpAuth, Err: errAuthLost}
		}
	}
	for i := len(failed) - 1; i >= 0; i-- {
		call := failed[i]
		switch {
		case call.Op == wire.OpCloseSession:
			// The server closes the stream behind its answer; if it did so without, there is no better end.
		case tooLarge && i == len(failed)-1 && !isWrite(call.Op):
			call.Err = &Error{Op: call.Op, Path: call.Path, Err: fmt.Errorf("%w: %w", ErrTooLarge, err)}
		case !sent[i]:
			call.Err = &Error{Op: call.Op, Path: call.Path, Err: ErrUnavailable}
		default:
			call.Err = lostError(call, cn.addr, err)
		}
		call.Done(call)
	}
}

// end finishes the client: every call that still waits ends with err.
func (c *Client) end(err error) {
	var waiting []*Call
	c.mu.Lock()
	c.ended = err
	for c.queue.len() > 0 {
		if call := c.queue.popFront().call; call != nil {
			call.state = callIdle
			waiting = append(waiting, call)
		}
	}
	c.bytes = 0
	c.mu.Unlock()
	c.alive.over(err)
	c.watches.lose(c.localPath, err)
	c.watchers.each(func(w *Watcher) { w.end(err) })
	for _, call := range waiting {
		call.Err = &Error{Op: call.Op, Path: call.Path, Err: err}
		call.Done(call)
	}
}
