package client

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrSessionDoubtful is the cause with which a session's context ends when no server has answered for the length of its time-out: the servers may
// have ended the session. The client goes on looking for one that knows better.
var ErrSessionDoubtful = errors.New("no server has answered for the session's time-out: the session may be over")

// sessionContext is a context that ends at the latest when the session may have ended: one negotiated time-out after the client sent the last
// request that was answered. (A time-out begins at the servers when they hear of the client, which is later.) It asks the clock, not only a timer: a process
// that was stopped finds it ended when it goes on, whichever goroutine runs first.
type sessionContext struct {
	c    *Client
	done chan struct{}

	mu    sync.Mutex
	timer *time.Timer // nil until somebody asked for the context
	cause error
}

// sessionOver is the error of a session's context: the cause, and what contexts are expected to say.
type sessionOver struct{ cause error }

func (e sessionOver) Error() string   { return e.cause.Error() }
func (e sessionOver) Unwrap() []error { return []error{e.cause, context.Canceled} }

func (s *sessionContext) init(c *Client) { s.c, s.done = c, make(chan struct{}) }

// SessionContext returns a context that is cancelled when the session is over, or when this client can no longer be sure that it is not: at the latest
// one negotiated time-out after it sent the last request that was answered. What must not be done without the session, such as work under a lock, is to
// be done under it. It does not come back to life: a client whose session turns out to live on has to be given up for such work. Err matches context.Canceled and what ended it: ErrSessionDoubtful, ErrSessionExpired or ErrClosed.
func (c *Client) SessionContext() context.Context {
	s := &c.alive
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer == nil && s.cause == nil {
		s.timer = time.AfterFunc(max(c.sureFor(), 0), s.look)
	}
	return s
}

// sureFor is how much longer the session lives for sure.
func (c *Client) sureFor() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.confirmed) + c.timeout - time.Since(c.start)
}

// look ends the context if it is time, or looks again when it may be.
func (s *sessionContext) look() {
	left := s.c.sureFor()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.cause != nil:
	case left <= 0:
		s.endLocked(ErrSessionDoubtful)
	case s.timer != nil:
		s.timer.Reset(left)
	}
}

// over ends the context with the client.
func (s *sessionContext) over(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(err)
}

func (s *sessionContext) endLocked(cause error) {
	if s.cause == nil {
		s.cause = sessionOver{cause}
		close(s.done)
		if s.timer != nil {
			s.timer.Stop()
		}
	}
}

// Deadline implements context.Context: it is not known.
func (s *sessionContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements context.Context.
func (s *sessionContext) Done() <-chan struct{} { return s.done }

// Err implements context.Context.
func (s *sessionContext) Err() error {
	if s.c.sureFor() <= 0 {
		s.look()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// Value implements context.Context.
func (s *sessionContext) Value(any) any { return nil }
