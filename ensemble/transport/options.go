package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"kvd/snapshot"
	"kvd/zab"
	"kvd/zab/quorum"
)

// Address is where a member listens for its peers. Host is a name or an address; names are resolved on every dial.
type Address struct {
	Host         string
	LearnerPort  int
	ElectionPort int
}

// Hello is what this member says about itself at each handshake.
type Hello struct {
	Cluster  [16]byte // meaningless while Blank
	Blank    bool     // has no cluster id yet
	Protocol zab.VersionRange
}

// Election payload kinds. Part of the peer protocol. Each has its own slot per peer.
const (
	KindNotification byte = 1
	KindIdentity     byte = 2
)

// Handler is told what arrives. Its methods are called on transport goroutines, in order per connection,
// also while Close waits; they must only enqueue: not block, not call the Transport. Payloads belong to the handler.
type Handler interface {
	// ElectionUp and ElectionDown report the state of the one election connection with a peer, in turns. Down
	// is also reported when a dial fails before there ever was a connection.
	ElectionUp(id quorum.MemberID)
	ElectionDown(id quorum.MemberID)
	ElectionMessage(id quorum.MemberID, kind byte, payload []byte)

	// LinkUp opens a link; dialled: this member is the learner. Between LinkUp and LinkDown come its messages.
	LinkUp(peer quorum.MemberID, link zab.LinkID, dialled bool)
	LinkDown(peer quorum.MemberID, link zab.LinkID, err error)
	LinkMessage(peer quorum.MemberID, link zab.LinkID, m zab.Message)
	// ConnectFailed ends an attempt that no newer one has replaced.
	ConnectFailed(attempt uint64, err error)

	// SnapshotProgress says that a stream on this link, in either direction, moved, or that another MiB of a large
	// message has arrived: the peer is alive although no whole message has come for a while.
	SnapshotProgress(link zab.LinkID)
	// SnapshotReceived ends a stream at the receiver: err nil means that point is durable in Options.Snapshots.
	// It precedes every message that the sender queued after SnapshotSent. With an error it may come after
	// LinkDown.
	SnapshotReceived(link zab.LinkID, point snapshot.Point, err error)
	// SnapshotSent ends StreamSnapshot: err nil means that the receiver has made the point durable.
	SnapshotSent(link zab.LinkID, err error)
}

// Codec encodes the messages of links.
type Codec struct {
	Append func(dst []byte, m zab.Message) ([]byte, error)
	Decode func(b []byte) (zab.Message, error) // the message may alias b
}

// Limits bound what peers can make this member hold or wait for. Zero fields get the defaults named.
type Limits struct {
	DialTimeout      time.Duration // name resolution and connect; 1 s
	HandshakeTimeout time.Duration // from connect to accepted; 1 s
	WriteTimeout     time.Duration // one flush without the peer taking it; 10 s
	CloseTimeout     time.Duration // flushing and reading the rest after CloseLink; 1 s
	BackoffMin       time.Duration // between election dials; 50 ms
	BackoffMax       time.Duration // 1 s

	MaxFrameBytes     int // a frame of a link; 64 MiB
	MaxElectionBytes  int // an election payload; 64 KiB
	MaxQueueFrames    int // waiting on a link; 16384
	MaxQueueBytes     int // waiting on a link, 64 MiB; one frame may exceed it
	MaxHandshakes     int // in progress at a listener; 64
	ChunkBytes        int // of a snapshot stream; 256 KiB
	StreamWindowBytes int // of a snapshot stream, sent and not confirmed; 2 MiB
}

// Options configure a Transport.
type Options struct {
	ID    quorum.MemberID
	Peers map[quorum.MemberID]Address // every member; the own entry says where to listen

	// Listeners handed in are used instead of listening on the own address and are closed by Close.
	LearnerListener, ElectionListener net.Listener

	Hello     func() Hello // called at each handshake, from several goroutines
	Handler   Handler
	Codec     Codec          // zero: zab's
	Snapshots snapshot.Store // where received snapshots go; nil: streams are refused
	Logger    *slog.Logger   // nil: discard
	Limits    Limits

	// Dial replaces the dialer, for tests that cut or swallow connections. It must obey ctx.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

func orDefault[T int | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

// EnsureDefaults fills zero fields.
func (o *Options) EnsureDefaults() {
	l := &o.Limits
	orDefault(&l.DialTimeout, time.Second)
	orDefault(&l.HandshakeTimeout, time.Second)
	orDefault(&l.WriteTimeout, 10*time.Second)
	orDefault(&l.CloseTimeout, time.Second)
	orDefault(&l.BackoffMin, 50*time.Millisecond)
	orDefault(&l.BackoffMax, time.Second)
	orDefault(&l.MaxFrameBytes, 64<<20)
	orDefault(&l.MaxElectionBytes, 64<<10)
	orDefault(&l.MaxQueueFrames, 16384)
	orDefault(&l.MaxQueueBytes, 64<<20)
	orDefault(&l.MaxHandshakes, 64)
	orDefault(&l.ChunkBytes, 256<<10)
	orDefault(&l.StreamWindowBytes, 2<<20)
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if o.Codec.Append == nil && o.Codec.Decode == nil {
		o.Codec = Codec{Append: zab.AppendMessage, Decode: zab.DecodeMessage}
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{KeepAlive: -1}).DialContext // keep-alive is set in tune
	}
}

// Validate reports every problem at once. EnsureDefaults comes first.
func (o *Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.ID == 0 || o.ID > 255 {
		bad("member id %d is outside 1..255", o.ID)
	}
	if _, ok := o.Peers[o.ID]; !ok {
		bad("the own id %d is not among the members", o.ID)
	}
	if o.Hello == nil || o.Handler == nil || o.Codec.Append == nil || o.Codec.Decode == nil {
		bad("Hello, Handler and both halves of a Codec are required")
	}
	l := o.Limits
	if l.BackoffMin < 0 || l.BackoffMax < l.BackoffMin {
		bad("back-off from %v to %v", l.BackoffMin, l.BackoffMax)
	}
	for name, v := range map[string]int{"MaxFrameBytes": l.MaxFrameBytes, "MaxElectionBytes": l.MaxElectionBytes,
		"MaxQueueFrames": l.MaxQueueFrames, "MaxQueueBytes": l.MaxQueueBytes, "MaxHandshakes": l.MaxHandshakes, "ChunkBytes": l.ChunkBytes} {
		if v < 1 {
			bad("%s is %d", name, v)
		}
	}
	if l.MaxFrameBytes > 1<<30 {
		bad("MaxFrameBytes %d exceeds 1 GiB", l.MaxFrameBytes)
	}
	if l.ChunkBytes+chunkHeadBytes > l.MaxFrameBytes {
		bad("ChunkBytes %d does not fit into MaxFrameBytes %d", l.ChunkBytes, l.MaxFrameBytes)
	}
	if l.StreamWindowBytes < l.ChunkBytes || l.StreamWindowBytes > maxBacklogBytes || l.StreamWindowBytes/max(l.ChunkBytes, 1) >= maxBacklogChunks {
		bad("StreamWindowBytes %d is not between ChunkBytes %d and %d bytes or %d chunks", l.StreamWindowBytes, l.ChunkBytes, maxBacklogBytes, maxBacklogChunks)
	}
	return errors.Join(errs...)
}
