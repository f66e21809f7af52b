package client

import (
	"context"
	"fmt"
	"sync"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// State is a session's state as the client sees it.
type State uint8

// The states. Connected and Disconnected alternate; Expired and Closed are final.
const (
	StateDisconnected State = iota // the session may live on; the client is looking for a server
	StateConnected
	StateExpired
	StateClosed
)

// String names the state.
func (s State) String() string {
	return [...]string{"disconnected", "connected", "expired", "closed"}[s]
}

// SessionEvent is a change of state.
type SessionEvent struct {
	State   State
	Server  string // address of the connection made or lost
	Session kv.SessionID
	Err     error // why the connection was lost
}

// Client is one session. Its methods may be called from any goroutine.
type Client struct {
	addrs  []string
	chroot string
	opts   options
	start  time.Time     // origin of the connection's idle times
	ready  chan struct{} // closed when the first session is established
	done   chan struct{} // closed when both goroutines have ended
	cancel context.CancelFunc

	// calls holds *syncCall. It belongs to the client, not to the package, because a channel made outside a
	// testing/synctest bubble must not be used inside.
	calls sync.Pool

	watches  watches // reader only
	watchers watchers
	alive    sessionContext

	mu sync.Mutex
	// All below is guarded by mu.

	conn     *conn // nil while disconnected
	queue    queue // calls not sent
	inflight queue // calls sent on conn, in the order of their replies
	bytes    int   // of the calls in both
	// corked: the reader is working through replies that arrived together. It wakes the writer at the end, so
	// that what their callers submit next goes out together too.
	corked  bool
	closing bool
	ended   error // not nil when the client is finished
	reasons map[string]error

	session  kv.SessionID
	password [wire.PasswordBytes]byte
	timeout  time.Duration
	lastZxid int64 // greatest in a reply's header
	// confirmed is when the newest request was sent that the server has answered, in nanoseconds since start: the session lives at least a time-out
	// longer.
	confirmed int64
	auths     []credential // of the session, in the order in which they were given
	server    int          // index of the address to try next
}

// Dial connects to one of the servers and establishes a session. servers is "h:p,h:p,.../chroot"; they are
// tried in random order until one answers or ctx ends, which gives a *DialError. ctx bounds the dialling only.
// A nil error comes with a Client that the caller closes.
func Dial(ctx context.Context, servers string, opts ...Option) (*Client, error) {
	addrs, chroot, err := ParseServers(servers)
	if err != nil {
		return nil, err
	}
	o := newOptions(opts, len(addrs))
	o.rand.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
	c := &Client{
		addrs: addrs, chroot: chroot, opts: o,
		start: time.Now(), ready: make(chan struct{}), done: make(chan struct{}),
		reasons: make(map[string]error),
		timeout: o.sessionTimeout,
	}
	c.watchers.turn = make(chan struct{}, 1)
	c.alive.init(c)
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel = cancel
	go c.run(life)
	select {
	case <-c.ready:
		return c, nil
	case <-ctx.Done():
		cancel()
		<-c.done
		return nil, c.dialError(ctx.Err())
	}
}

func (c *Client) dialError(cause error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := &DialError{Cause: cause}
	for _, addr := range c.addrs {
		if err := c.reasons[addr]; err != nil {
			e.Servers = append(e.Servers, ServerError{addr, err})
		}
	}
	if len(e.Servers) == 0 {
		for _, addr := range c.addrs {
			e.Servers = append(e.Servers, ServerError{addr, cause})
		}
	}
	return e
}

// Close ends the session: its ephemeral nodes are removed, unless there is no connection or the server does
// not answer within a third of the session time-out and 2 s. Then the session expires by itself. Calls
// submitted before are sent first; what is not answered by then ends with ErrClosed, or ErrUnknownOutcome if it
// was sent. Close returns when the client's goroutines have ended. It always returns nil.
func (c *Client) Close() error {
	var answered chan struct{}
	c.mu.Lock()
	if !c.closing && c.ended == nil {
		c.closing = true
		if c.conn != nil {
			answered = make(chan struct{})
			call := &Call{Op: wire.OpCloseSession, Done: func(*Call) { close(answered) }}
			call.state, call.pos = callQueued, c.queue.pushBack(slot{call: call})
			c.conn.wakeUp()
		}
	}
	timeout := min(c.timeout/3, 2*time.Second)
	c.mu.Unlock()
	if answered != nil {
		t := time.NewTimer(timeout)
		defer t.Stop()
		select {
		case <-answered:
		case <-c.done:
		case <-t.C:
		}
	}
	c.cancel()
	<-c.done
	return nil
}

// Cut drops the connection and stops, without ending the session: it lives on at the servers until it
// expires, as if this process had died.
func (c *Client) Cut() {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	c.cancel()
	<-c.done
}

// Done is closed when the client is finished: closed, or its session expired.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err is nil until the client is finished, then ErrSessionExpired or ErrClosed.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// Session returns the session's id.
func (c *Client) Session() kv.SessionID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session
}

// SessionTimeout returns the time-out that the server granted.
func (c *Client) SessionTimeout() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.timeout
}

// LastZxid returns the newest transaction that the session is known to have seen.
func (c *Client) LastZxid() kv.Zxid {
	c.mu.Lock()
	defer c.mu.Unlock()
	return kv.Zxid(c.lastZxid)
}

// Server returns the address of the present connection, empty while there is none.
func (c *Client) Server() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return ""
	}
	return c.conn.addr
}

// Do submits a call and returns; call.Done tells its end. An error means that the call was not taken and Done
// will not be called: it cannot be sent, or the client is finished, or ErrBusy.
func (c *Client) Do(call *Call) error {
	if err := c.check(call); err != nil {
		return &Error{Op: call.Op, Path: call.Path, Err: err}
	}
	call.resetResult()
	c.mu.Lock()
	var err error
	switch {
	case c.ended != nil:
		err = c.ended
	case c.closing:
		err = ErrClosed
	case c.queue.len()+c.inflight.len() >= c.opts.maxCalls || c.bytes+call.size > c.opts.maxBytes:
		err = ErrBusy
	case call.FailFast && c.conn == nil:
		err = ErrUnavailable
	}
	if err != nil {
		c.mu.Unlock()
		return &Error{Op: call.Op, Path: call.Path, Err: err}
	}
	call.state, call.pos = callQueued, c.queue.pushBack(slot{call: call})
	c.bytes += call.size
	if !c.corked && c.conn != nil {
		c.conn.wakeUp()
	}
	c.mu.Unlock()
	return nil
}

// syncCall is a Call that a goroutine waits for.
type syncCall struct {
	Call
	done chan struct{}
}

// newCall takes a call from the pool; release gives it back.
func (c *Client) newCall(op wire.Op, path string) *syncCall {
	s, _ := c.calls.Get().(*syncCall)
	if s == nil {
		s = &syncCall{done: make(chan struct{}, 1)}
		s.Done = func(*Call) { s.done <- struct{}{} }
	}
	s.Op, s.Path = op, path
	return s
}

// release puts a finished or abandoned call back. What it pointed to belongs to others.
func (c *Client) release(s *syncCall) {
	s.Call = Call{Done: s.Done}
	c.calls.Put(s)
}

// wait submits the call and waits for its end or ctx's.
func (c *Client) wait(ctx context.Context, s *syncCall) error {
	if err := ctx.Err(); err != nil {
		return &Error{Op: s.Op, Path: s.Path, Err: notSent{err}}
	}
	if err := c.Do(&s.Call); err != nil {
		return err
	}
	select {
	case <-s.done:
		return s.Err
	case <-ctx.Done():
	}
	taken, sent, reason := c.abandon(&s.Call)
	switch {
	case !taken: // its reply is being delivered
		<-s.done
		return s.Err
	case sent && isWrite(s.Op):
		return &Error{Op: s.Op, Path: s.Path, Err: fmt.Errorf("%w: %w", ErrUnknownOutcome, ctx.Err())}
	case reason != nil:
		return &Error{Op: s.Op, Path: s.Path, Err: fmt.Errorf("%w: %w", notSent{ctx.Err()}, reason)}
	}
	return &Error{Op: s.Op, Path: s.Path, Err: notSent{ctx.Err()}}
}

// notSent is ErrUnavailable because a context ended.
type notSent struct{ cause error }

func (e notSent) Error() string   { return ErrUnavailable.Error() + ": " + e.cause.Error() }
func (e notSent) Unwrap() []error { return []error{ErrUnavailable, e.cause} }

// abandon takes a call out of the client's hands. sent: it is or was on its way. reason: why there is no
// connection. If taken is false the call is being completed.
func (c *Client) abandon(call *Call) (taken, sent bool, reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch call.state {
	case callIdle:
		return false, false, nil
	case callQueued:
		c.queue.at(call.pos).call = nil
		for c.queue.len() > 0 && c.queue.at(c.queue.first).call == nil {
			c.queue.popFront()
		}
		for c.queue.len() > 0 && c.queue.at(c.queue.first+int64(c.queue.len())-1).call == nil {
			c.queue.popBack()
		}
		if c.conn == nil {
			for _, addr := range c.addrs {
				if err := c.reasons[addr]; err != nil {
					reason = fmt.Errorf("%s: %w", addr, err)
				}
			}
		}
	case callInflight:
		c.inflight.at(call.pos).call = nil
		sent = true
	}
	call.state = callIdle
	c.bytes -= call.size
	return true, sent, reason
}
