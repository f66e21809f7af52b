package ensemble

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"kvd/ensemble/replica"
	"kvd/ensemble/transport"
	"kvd/kv"
	"kvd/kv/client"
	"kvd/snapshot"
	"kvd/wal"
	"kvd/zab"
)

// tick is the unit of the cores' time. Only this package knows that it is 50 ms.
const tick = 50 * time.Millisecond

// Versions of the peer protocol and of the transaction format that this build serves.
var (
	protocolVersions = zab.VersionRange{Min: 1, Max: 1}
	formatVersions   = zab.VersionRange{Min: 1, Max: 1}
)

// ErrAbandoned says that a member's disk did not answer when the member ended. It serves and votes no more, and
// acknowledges nothing; goroutines of it may still wait for the disk, with what had been handed to the log before, and
// its directory stays locked until they come back or the process ends.
var ErrAbandoned = errors.New("ensemble: member abandoned, its disk does not answer")

// ErrClosed is returned by the methods of a member that was shut down or closed.
var ErrClosed = errors.New("ensemble: member closed")

// Member is one running member. Its methods may be called from any goroutine.
type Member struct {
	cfg     Config
	log     *slog.Logger
	started time.Time

	inbox   *inbox
	intake  *intake
	tree    *kv.Tree
	port    *clientPort
	applier *applier
	snaps   *snapshotter
	net     *transport.Transport
	wal     *wal.Log
	reader  *historyReader
	disk    *diskWatch
	loop    *loop

	status   atomic.Pointer[replica.Status]
	counters memberCounters
	served   chan struct{} // closed when the member answered clients for the first time

	cancel  context.CancelFunc // of the snapshotter
	up      chan struct{}      // closed when start has succeeded
	aborted chan struct{}      // or has failed
	closing chan struct{}      // closed when the member begins to end
	done    chan struct{}
	once    sync.Once

	endLimit time.Duration // how long one step of the end may take

	mu  sync.Mutex
	err error
}

// Start opens the directories, checks what they hold, and starts a member. It returns when the member takes
// part, which is before it serves: see WaitServing. ctx bounds the start only.
// A *ConfigError or a *DirectoryError means that nothing was touched. An address that cannot be listened on and a
// directory that cannot be used are a *ConfigError as well.
func Start(ctx context.Context, cfg Config) (_ *Member, err error) {
	defer func() {
		if err != nil {
			cfg.Listeners.close()
		}
	}()
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m := &Member{
		cfg: cfg, log: cfg.Logger.With("member", uint64(cfg.ID)), started: time.Now(),
		served: make(chan struct{}), up: make(chan struct{}), aborted: make(chan struct{}),
		closing: make(chan struct{}), done: make(chan struct{}), endLimit: endLimit,
	}
	m.cfg.Logger = m.log
	if err := m.start(); err != nil {
		close(m.aborted)
		return nil, fmt.Errorf("member %d: %w", cfg.ID, err)
	}
	return m, nil
}

// start builds the parts from the bottom up. Goroutines start only when all of them are there.
func (m *Member) start() (err error) {
	cfg := &m.cfg
	var undo []func()
	defer func() {
		if err != nil {
			for i := len(undo) - 1; i >= 0; i-- {
				undo[i]()
			}
		}
	}()

	if err := cfg.missingSpace(); err != nil {
		return err
	}
	if err := cfg.claim(); err != nil {
		return err
	}
	undo = append(undo, cfg.Listeners.close)
	if err := refuseForeignDirectory(cfg); err != nil {
		return err
	}

	wake := newWaker()
	m.inbox = newInbox(wake)
	m.intake = newIntake(firstToken(), cfg.MaxOutstandingRequests, cfg.MaxOutstandingBytes, wake)

	opening := time.Now()
	st, err := openStorage(cfg, func(c wal.Completion) {
		if c.Err != nil {
			m.fail(fmt.Errorf("log: %w", c.Err))
			return
		}
		m.inbox.diskDone(c.Seq)
	})
	if err != nil {
		return err
	}
	m.counters.open.addDuration(time.Since(opening))
	m.counters.begin(time.Now())
	m.wal = st.log
	undo = append(undo, func() { _ = m.wal.Close() })
	m.tree = kv.NewTree(st.view)
	state := m.wal.State()
	m.log.Info("start", "verdict", st.report.String(), "snapshot", st.view.Zxid().String(), "votes", state.Trusted && state.Suspect == "")

	if state.Sole {
		m.log.Warn("sole survivor: this member may lead without a quorum of voters, to bring the others up to date", "holds", state.Last.String())
	}

	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	undo = append(undo, cancel)
	clock := &tickClock{}
	m.port = newClientPort(cfg, m.tree, m.intake, clock)
	m.port.member = m
	m.port.settledZxid.Store(uint64(st.view.Zxid()))
	m.port.ids.skip(st.view)
	m.snaps = &snapshotter{
		cfg: cfg, log: m.log, store: st.store, wal: m.wal, tree: m.tree, inbox: m.inbox, ctx: ctx,
		trigger: snapshot.Trigger{MinLogBytes: cfg.SnapshotLogBytes, MinEntries: uint64(cfg.SnapCount)},
		points:  st.points, bytes: m.wal.BytesAfter(state.Base), entries: entriesAfter(&state, &st.report),
	}
	m.snaps.trigger.EnsureDefaults()
	if n := len(st.points); n > 0 && st.points[n-1].Zxid == st.view.Zxid() {
		m.snaps.lastView = st.view
	}
	m.applier = &applier{
		member: cfg.ID, tree: m.tree, port: m.port, intake: m.intake, log: m.wal, restore: m.snaps.restore,
		applied: m.inbox.appliedTo, failed: m.fail, wake: newWaker(), done: make(chan struct{}),
	}
	m.reader = &historyReader{wal: m.wal, inbox: m.inbox, wake: newWaker(), done: make(chan struct{})}
	m.disk = newDiskWatch(cfg, m.fail)

	members, err := cfg.membership()
	if err != nil {
		return err
	}
	rep, err := replica.New(cfg.replicaConfig(members), replica.Start{
		Durable: durableState(&state),
		Identity: replica.Identity{
			ClusterID: state.ClusterID, Suspect: state.Suspect != "", Bootstrap: cfg.Bootstrap,
			Run: randomUint64(), Mint: newClusterID(),
		},
		Applied: st.view.Zxid(), View: m.tree.View, Digests: m.tree, History: m.wal,
	})
	if err != nil {
		return err
	}
	hello := &helloBox{cluster: state.ClusterID, blank: state.ClusterID == [16]byte{}}
	if !cfg.alone() {
		m.net, err = transport.New(transport.Options{
			ID: cfg.ID, Peers: cfg.addresses(),
			LearnerListener: cfg.Listeners.Learner, ElectionListener: cfg.Listeners.Election,
			Codec: transport.Codec{Append: zab.AppendMessage, Decode: zab.DecodeMessage}, Hello: hello.get, Handler: m.inbox,
			Snapshots: arrivals{st.store, m.snaps}, Logger: m.log,
			Limits: cfg.transportLimits(),
		})
		if err != nil {
			return fmt.Errorf("peer ports: %w", err)
		}
	}
	m.loop = &loop{
		cfg: cfg, log: m.log, replica: rep, inbox: m.inbox, intake: m.intake, wake: wake, port: m.port, applier: m.applier,
		wal: m.wal, net: m.net, snaps: m.snaps, check: newSelfChecker(m, ctx), reader: m.reader, disk: m.disk, clock: clock, hello: hello, counters: &m.counters,
		stop: make(chan struct{}), done: make(chan struct{}), stopped: make(chan struct{}),
		fail: m.fail, condemn: m.condemn, publish: m.publish, applied: st.view.Zxid(), readOnly: readOnlyClock{grace: int64(ticks(max(readOnlyGrace, cfg.TickTime)))},
		received: make(map[uint64]snapshot.Point), chosen: make(map[zab.LinkID]snapshot.Point), streaming: make(map[zab.LinkID]snapshot.Point),
	}
	m.publish(rep.Status())
	if m.net != nil {
		if err := m.net.Start(); err != nil {
			return fmt.Errorf("peer ports: %w", err)
		}
	}
	go m.applier.run()
	go m.reader.run()
	go m.disk.run()
	m.port.start(cfg.Listeners.Client)
	go m.loop.run()
	m.snaps.group.Go(m.loop.check.run)
	close(m.up)
	return nil
}

// firstToken numbers the requests of a run: a random multiple of 2^32, so that transactions of an earlier run find
// no request of this one.
func firstToken() uint64 { return randomUint64() >> 32 << 32 }

// newIncarnation draws the name of one attempt to lead.
func newIncarnation() zab.Incarnation { return zab.Incarnation(randomUint64()) }

// newClusterID draws the id that this member would mint.
func newClusterID() (id [16]byte) {
	binary.BigEndian.PutUint64(id[:8], randomUint64())
	binary.BigEndian.PutUint64(id[8:], randomUint64())
	return id
}

// randomUint64 draws a number between 2^32 and 2^63.
func randomUint64() uint64 {
	var b [8]byte
	_, _ = crand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:])>>1 | 1<<32
}

// newRand seeds the jitter of elections.
func newRand() *rand.Rand {
	var seed [32]byte
	_, _ = crand.Read(seed[:]) // never fails
	return rand.New(rand.NewChaCha8(seed))
}

// entriesAfter is about how many entries the log holds above its base.
func entriesAfter(s *wal.State, r *wal.Report) uint64 {
	if s.Last.Epoch() == s.Base.Epoch() {
		return uint64(s.Last.Counter() - s.Base.Counter())
	}
	return uint64(r.Entries)
}

// publish renews the status that Status shows, and notes the first time that clients are answered.
func (m *Member) publish(s replica.Status) {
	m.status.Store(&s)
	if m.port.gate.isOpen() {
		select {
		case <-m.served:
		default:
			close(m.served)
		}
	}
}

// Run keeps a member running, as Keep does, until ctx ends or it fails for good, and shuts it down within a grace of
// 10 seconds. It returns nil if it ended because ctx did.
func Run(ctx context.Context, cfg Config) error {
	k, err := Keep(ctx, cfg)
	if err != nil {
		return err
	}
	select {
	case <-k.Done():
		return k.Err()
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return k.Shutdown(drain)
}

// WaitServing blocks until the member has answered clients, ctx ends, or the member ends (its error, or ErrClosed).
func (m *Member) WaitServing(ctx context.Context) error {
	select {
	case <-m.served:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-m.closing:
		<-m.done
		if err := m.Err(); err != nil {
			return err
		}
		return ErrClosed
	}
}

// ClientAddrs are the addresses of the client port, with the ports that the kernel gave.
func (m *Member) ClientAddrs() []net.Addr {
	var addrs []net.Addr
	for _, l := range m.cfg.Listeners.Client {
		addrs = append(addrs, l.Addr())
	}
	return addrs
}

// Client returns a new client of this member that needs no socket. ctx bounds the wait for its session; the caller
// closes the client.
func (m *Member) Client(ctx context.Context, opts ...client.Option) (*client.Client, error) {
	select {
	case <-m.closing:
		return nil, ErrClosed
	default:
	}
	dial := client.WithDialer(func(ctx context.Context, _ string) (io.ReadWriteCloser, error) { return m.dial(ctx) })
	return client.Dial(ctx, inProcessAddr, append(opts[:len(opts):len(opts)], dial)...)
}

// inProcessAddr stands for the address in messages of an in-process client.
const inProcessAddr = "in-process:1"

// dial opens an in-process connection to the client port.
func (m *Member) dial(ctx context.Context) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	near, far := newPipe()
	if !m.port.serve(far) {
		_ = near.Close()
		return nil, ErrClosed
	}
	return near, nil
}

// ID is the member's configured id.
func (m *Member) ID() MemberID { return m.cfg.ID }

// Status reports the member's state.
func (m *Member) Status() Status {
	r := m.status.Load()
	v := m.tree.View()
	s := Status{
		ID: m.cfg.ID, Role: r.Role, Stage: r.Stage, Leader: r.Serving.Leader, Epoch: r.Serving.Epoch,
		Serving: m.port.gate.isOpen(), Applied: v.Zxid(), Committed: r.Committed, Durable: m.wal.State().Last,
		Sessions: v.SessionCount(), Connections: m.port.connections(), Refused: m.port.refusals(), Outstanding: m.intake.outstanding(),
		Nodes: v.NodeCount(), Digest: v.Digest(), Uptime: time.Since(m.started),
	}
	st := m.wal.State()
	switch {
	case st.Suspect != "":
		s.Suspect = st.Suspect
	case r.Forming != "":
		s.Suspect = r.Forming
	}
	for i := range r.Learners {
		l := &r.Learners[i]
		ls := LearnerStatus{ID: l.ID, Synced: l.Synced, Match: l.Match}
		if l.Match.Epoch() == r.Last.Epoch() && r.Last >= l.Match {
			ls.Lag = uint64(r.Last - l.Match)
		}
		s.Learners = append(s.Learners, ls)
	}
	return s
}

// Done is closed when the member has ended, every goroutine of it included, or was abandoned (ErrAbandoned).
func (m *Member) Done() <-chan struct{} { return m.done }

// Err is why the member ended: nil before Done and after Shutdown or Close, else the failure.
func (m *Member) Err() error {
	select {
	case <-m.done:
	default:
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// fail ends the member because of err. It may be called on any of the member's goroutines and does not wait.
func (m *Member) fail(err error) {
	m.mu.Lock()
	if m.err == nil {
		select {
		case <-m.closing: // an error while closing is a consequence
		default:
			m.err = err
			m.log.Error("member fails", "error", err)
		}
	}
	m.mu.Unlock()
	go func() {
		select {
		case <-m.up: // a failure may come while the member is still being built
			m.end()
		case <-m.aborted:
		}
	}()
}

// condemn ends a member whose tree is not what a quorum has. The next start on the directory believes none of it. It may be
// called on any of the member's goroutines and does not wait.
func (m *Member) condemn(d zab.Divergence) {
	m.port.setGate(false)
	err := fmt.Errorf("%w: a quorum has another one at %v; they were last known to agree at %v", ErrDiverged, d.At, d.After)
	m.mu.Lock()
	first := m.err == nil
	if first {
		m.err = err
	}
	m.mu.Unlock()
	if !first {
		return
	}
	m.log.Error("member fails", "error", err)
	go func() {
		_ = m.wal.Condemn(err.Error()) // it returns why the log ended, which is this
		m.fail(err)
	}()
}

// Shutdown hands leadership over, lets outstanding writes finish, closes the clients' connections and stops.
// It returns nil when all that happened, ctx's error if it had to cut (the member is then closed all the
// same), or the error with which the member had failed; with ErrAbandoned if its disk hangs.
func (m *Member) Shutdown(ctx context.Context) error {
	m.port.stopAccepting()
	m.inbox.push(shutdownAsked{}, false)
	var cut error
	select {
	case <-m.loop.stopped:
		m.port.drain()
	case <-m.closing:
	case <-ctx.Done():
		cut = ctx.Err()
	}
	m.end()
	return errors.Join(m.Err(), cut)
}

// Close cuts everything and waits for the member's goroutines. What was acknowledged stays durable. A disk that hangs
// does not hold it up for more than some seconds: it then returns ErrAbandoned.
func (m *Member) Close() error {
	m.end()
	return m.Err()
}

// helloBox is what the transport says about this member at handshakes.
type helloBox struct {
	mu      sync.Mutex
	cluster [16]byte
	blank   bool
}

func (h *helloBox) get() transport.Hello {
	h.mu.Lock()
	defer h.mu.Unlock()
	return transport.Hello{Cluster: h.cluster, Blank: h.blank, Protocol: protocolVersions}
}

// adopt records the identity that became durable.
func (h *helloBox) adopt(cluster [16]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cluster, h.blank = cluster, false
}
