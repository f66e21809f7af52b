package client

import (
	"errors"
	"fmt"
	"strings"

	"kvd/kv"
	"kvd/kv/wire"
)

var (
	// ErrUnavailable: no server took the request in time. It was not sent (or was a read), nothing happened.
	ErrUnavailable = errors.New("no server available")

	// ErrUnknownOutcome: a write was sent and its reply did not come. It may have been applied.
	ErrUnknownOutcome = errors.New("outcome unknown: the write was sent, no reply came")

	// ErrSessionExpired: the session is gone, its ephemeral nodes with it, and this Client is finished. It is
	// kv.ErrSessionExpired, also when the server says so in a reply.
	ErrSessionExpired = kv.ErrSessionExpired

	// ErrClosed: the Client was closed.
	ErrClosed = errors.New("client closed")

	// ErrBusy: more requests or bytes are waiting than Options allow. It matches ErrUnavailable too.
	ErrBusy = fmt.Errorf("%w: too many requests outstanding", ErrUnavailable)

	// ErrTooLarge: the request is larger than servers accept, or a reply larger than the client does.
	ErrTooLarge = errors.New("message larger than the limit")
)

// Error is the error of one call. It unwraps to what the server said or to one of this package's errors.
type Error struct {
	Op   wire.Op
	Path string // as the caller gave it, without the chroot; for a multi that of the operation that failed
	Err  error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("%v: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("%v %q: %v", e.Op, e.Path, e.Err)
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// MultiError says which operation made a multi fail. Nothing of the multi was applied.
type MultiError struct {
	Index int // of the operation in the call
	Err   error
}

// Error implements error.
func (e *MultiError) Error() string { return fmt.Sprintf("operation %d: %v", e.Index, e.Err) }

// Unwrap gives the failed operation's error.
func (e *MultiError) Unwrap() error { return e.Err }

// DialError says why no server gave a session. It matches ErrUnavailable, and the context's error if that
// ended the attempt.
type DialError struct {
	Servers []ServerError // the last failure on each server tried
	Cause   error         // the context's error; nil if every server refused for good
}

// ServerError is the last failure on one server.
type ServerError struct {
	Addr string
	Err  error
}

// Error implements error.
func (e *DialError) Error() string {
	var b strings.Builder
	b.WriteString("no server gave a session")
	for i, s := range e.Servers {
		if i == 0 {
			b.WriteString(": ")
		} else {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s: %v", s.Addr, s.Err)
	}
	return b.String()
}

// Unwrap lists what the error matches.
func (e *DialError) Unwrap() []error {
	errs := []error{ErrUnavailable}
	if e.Cause != nil {
		errs = append(errs, e.Cause)
	}
	return errs
}
