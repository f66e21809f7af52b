package client

import (
	"context"
	"errors"
	"fmt"

	"kvd/kv"
	"kvd/kv/wire"
)

// credential is an identity that the session's connections claim.
type credential struct {
	scheme string
	auth   []byte
}

// append appends the request.
func (a *credential) append(dst []byte) []byte {
	dst, mark := wire.BeginFrame(dst)
	dst = (&wire.RequestHeader{Xid: wire.XidAuth, Op: wire.OpAuth}).AppendTo(dst)
	return wire.EndFrame((&wire.AuthRequest{Scheme: a.scheme, Auth: a.auth}).AppendTo(dst), mark)
}

// authCall is an AddAuth that waits for its answer. The answers come in the order of the requests, but not in that of other calls.
type authCall struct {
	credential
	done chan error // capacity 1
}

// AddAuth claims an identity for this session, such as scheme "digest" with "user:password": on this connection, and on each that follows
// it, before anything else is sent there. A server that refuses it closes the connection (kv.ErrAuthFailed), and the identity is not claimed again.
func (c *Client) AddAuth(ctx context.Context, scheme string, auth []byte) error {
	for {
		err := c.addAuth(ctx, scheme, auth)
		if !errors.Is(err, errAuthLost) || ctx.Err() != nil {
			return err
		}
	}
}

// errAuthLost: the connection broke before the answer came. An identity may be claimed twice.
var errAuthLost = fmt.Errorf("%w: the connection broke before the answer", ErrUnavailable)

func (c *Client) addAuth(ctx context.Context, scheme string, auth []byte) error {
	a := &authCall{credential: credential{scheme, append([]byte(nil), auth...)}, done: make(chan error, 1)}
	c.mu.Lock()
	switch {
	case c.ended != nil:
		err := c.ended
		c.mu.Unlock()
		return &Error{Op: wire.OpAuth, Err: err}
	case c.conn != nil:
		c.conn.authDue = append(c.conn.authDue, a)
		c.conn.wakeUp()
		c.mu.Unlock()
	default:
		// It goes to the next connection with what is known already; whether it is taken shows there.
		c.auths = append(c.auths, a.credential)
		c.mu.Unlock()
		if err := c.roundTrip(ctx); err != nil {
			c.dropAuth(a.credential)
			return err
		}
		return nil
	}
	select {
	case err := <-a.done:
		return err
	case <-ctx.Done():
		return &Error{Op: wire.OpAuth, Err: notSent{ctx.Err()}}
	}
}

// roundTrip waits for an answer of a server, whatever it says.
func (c *Client) roundTrip(ctx context.Context) error {
	_, err := c.Exists(ctx, "/")
	for _, unanswered := range []error{ErrUnavailable, ErrSessionExpired, ErrClosed, kv.ErrAuthFailed} {
		if errors.Is(err, unanswered) {
			return err
		}
	}
	return nil
}

func (c *Client) dropAuth(a credential) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.auths {
		if c.auths[i].scheme == a.scheme && string(c.auths[i].auth) == string(a.auth) {
			c.auths = append(c.auths[:i:i], c.auths[i+1:]...)
			return
		}
	}
}

// authAnswered takes the answer to the oldest one. A refusal ends the connection.
func (c *Client) authAnswered(cn *conn, code kv.Code) error {
	c.mu.Lock()
	if len(cn.auths) == 0 {
		c.mu.Unlock()
		return nil // a server may say so unasked
	}
	a := cn.auths[0]
	cn.auths = cn.auths[1:]
	if a != nil && code == kv.CodeOK {
		c.auths = append(c.auths, a.credential)
	}
	c.mu.Unlock()
	var err error
	if code != kv.CodeOK {
		err = &Error{Op: wire.OpAuth, Err: code.Err()}
	}
	if a != nil {
		a.done <- err
	}
	return nil
}
