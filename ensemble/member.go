package ensemble

import (
	"context"
	"errors"
	"net"
	"time"
)

// tick is the unit of the cores' time. Only this package knows that it is 50 ms.
const tick = 50 * time.Millisecond

// ErrClosed is returned by the methods of a member that was shut down or closed.
var ErrClosed = errors.New("ensemble: member closed")

// Member is one running member. Its methods may be called from any goroutine.
type Member struct {
	cfg  Config
	done chan struct{}
	err  error
}

// Start opens the directories, checks what they hold, and starts a member. It returns when the member takes
// part, which is before it serves: see WaitServing. ctx bounds the start only.
// A *ConfigError means that nothing was touched.
func Start(ctx context.Context, cfg Config) (*Member, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return nil, errors.New("ensemble: not wired up")
}

// Run starts a member, waits until ctx ends or the member fails, and shuts it down within grace of
// 10 seconds. It returns nil if it ended because ctx did.
func Run(ctx context.Context, cfg Config) error {
	m, err := Start(ctx, cfg)
	if err != nil {
		return err
	}
	select {
	case <-m.Done():
		return m.Err()
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return m.Shutdown(drain)
}

// WaitServing blocks until the member answers clients, ctx ends, or the member ends (its error, or ErrClosed).
func (m *Member) WaitServing(ctx context.Context) error { return nil }

// ClientAddrs are the addresses of the client port, with the ports that the kernel gave.
func (m *Member) ClientAddrs() []net.Addr { return nil }

// ID is the member's configured id.
func (m *Member) ID() MemberID { return m.cfg.ID }

// Status reports the member's state.
func (m *Member) Status() Status { return Status{} }

// Done is closed when the member has ended, every goroutine of it included.
func (m *Member) Done() <-chan struct{} { return m.done }

// Err is why the member ended: nil before Done and after Shutdown or Close, else the failure.
func (m *Member) Err() error { return m.err }

// Shutdown hands leadership over, lets outstanding writes finish, closes the clients' connections and stops.
// It returns nil when all that happened, ctx's error if it had to cut (the member is then closed all the
// same), or the error with which the member had failed.
func (m *Member) Shutdown(ctx context.Context) error { return nil }

// Close cuts everything and waits for the member's goroutines. What was acknowledged stays durable.
func (m *Member) Close() error { return nil }
