package client

import (
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	"kvd/kv/wire"
)

// Dialer opens a byte stream to a server. A net.Conn will do; only reading, writing and closing are used,
// each by its own goroutine. Close must make a blocked Read and Write return.
type Dialer func(ctx context.Context, addr string) (io.ReadWriteCloser, error)

// Option changes what Dial does by default.
type Option func(*options)

type options struct {
	sessionTimeout time.Duration
	connectTimeout time.Duration
	backoffMin     time.Duration
	backoffMax     time.Duration
	dial           Dialer
	logger         *slog.Logger
	onState        func(SessionEvent)
	maxCalls       int
	maxBytes       int
	maxRequest     int
	maxReply       int
	rand           *rand.Rand
}

// WithSessionTimeout asks for a session time-out (default 10 s). The server clamps it; Client.SessionTimeout
// says what was granted.
func WithSessionTimeout(d time.Duration) Option { return func(o *options) { o.sessionTimeout = d } }

// WithConnectTimeout bounds one attempt on one server, the handshake included. Default: the session time-out
// divided by the number of servers, but 1 s to 3 s.
func WithConnectTimeout(d time.Duration) Option { return func(o *options) { o.connectTimeout = d } }

// WithBackoff sets the pauses between rounds of connection attempts: the first is random in [0, low], then
// they double up to high. Default 20 ms and 1 s.
func WithBackoff(low, high time.Duration) Option {
	return func(o *options) { o.backoffMin, o.backoffMax = low, high }
}

// WithDialer replaces TCP.
func WithDialer(d Dialer) Option { return func(o *options) { o.dial = d } }

// WithLogger logs connections made and lost. Default: nothing is logged.
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.logger = l } }

// WithStateFunc calls f on every change of the session's state, in order, on the client's reader goroutine. f
// must not block and must not call Close.
func WithStateFunc(f func(SessionEvent)) Option { return func(o *options) { o.onState = f } }

// WithLimits bounds the calls outstanding, waiting ones included, by number and by bytes. A call beyond
// that fails with ErrBusy. Default 65,536 and 64 MiB.
func WithLimits(calls, bytes int) Option {
	return func(o *options) { o.maxCalls, o.maxBytes = calls, bytes }
}

// WithMaxFrame sets the largest request that is sent (default 1,048,575 bytes, ZooKeeper's limit: a server
// closes the connection without a reply on a larger one) and the largest reply that is read (64 MiB).
func WithMaxFrame(request, reply int) Option {
	return func(o *options) { o.maxRequest, o.maxReply = request, reply }
}

// WithRand makes the order of servers and the jitter repeatable. r is used under the client's control only.
func WithRand(r *rand.Rand) Option { return func(o *options) { o.rand = r } }

func newOptions(opts []Option, servers int) options {
	o := options{
		sessionTimeout: 10 * time.Second,
		backoffMin:     20 * time.Millisecond,
		backoffMax:     time.Second,
		maxCalls:       1 << 16,
		maxBytes:       64 << 20,
		maxRequest:     wire.DefaultMaxFrameBytes,
		maxReply:       64 << 20,
	}
	for _, f := range opts {
		f(&o)
	}
	if o.connectTimeout <= 0 {
		o.connectTimeout = min(max(o.sessionTimeout/time.Duration(servers), time.Second), 3*time.Second)
	}
	if o.dial == nil {
		o.dial = dialTCP
	}
	if o.logger == nil {
		o.logger = slog.New(slog.DiscardHandler)
	}
	if o.rand == nil {
		o.rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	return o
}

// dialTCP keeps Go's defaults: no delay, and keep-alives so that a vanished host is noticed while idle.
func dialTCP(ctx context.Context, addr string) (io.ReadWriteCloser, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}
