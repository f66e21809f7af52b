package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"kvd/kv/client"
)

// session is a client with the limits of the command line.
type session struct {
	*client.Client
	servers string
	chroot  string // of servers; empty: none
	timeout time.Duration
}

// dial establishes a session; its failure is exit code 6.
func dial(c *cli.Context) (*session, error) {
	s := &session{servers: c.String("server"), timeout: c.Duration("timeout")}
	var err error
	if _, s.chroot, err = client.ParseServers(s.servers); err != nil {
		return nil, &failure{what: "use --server", err: err, usage: true}
	}
	ctx, cancel := s.limit(c.Context)
	defer cancel()
	s.Client, err = client.Dial(ctx, s.servers, client.WithSessionTimeout(c.Duration("session-timeout")))
	if err != nil {
		return nil, &failure{what: "connect to " + s.servers, err: s.explain(c.Context, err)}
	}
	return s, nil
}

// limit bounds one request.
func (s *session) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.timeout)
}

// fail names what was tried on whom.
func (s *session) fail(ctx context.Context, what, path string, err error) error {
	on := s.Server()
	if on == "" {
		on = s.servers
	}
	return &failure{what: what, path: path, server: on, err: s.explain(ctx, err)}
}

// explain puts the signal that ended the context in place of "context canceled".
func (s *session) explain(ctx context.Context, err error) error {
	var sig signalError
	if errors.As(context.Cause(ctx), &sig) {
		return fmt.Errorf("%w: %w", sig, err)
	}
	return err
}
