package ensemble

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"kvd/ensemble/replica"
	"kvd/kv"
)

// Patience of the client port, in ticks of the member's loop.
const (
	// gateTicks bounds how long a connection waits for a leader; a third of its session's time-out if less.
	gateTicks = int64(2 * time.Second / tick)
	// janitorEvery is how often connections are looked at.
	janitorEvery = 100 * time.Millisecond
	// idleTicks is the silence after which a connection frees what it has kept for its next requests.
	idleTicks = int64(time.Second / tick)
	// expireEvery is how often, in turns of the janitor, local sessions are looked at.
	expireEvery = 5
	// drainLimit bounds the last replies at a shutdown.
	drainLimit = 500 * time.Millisecond
	// maxAcceptDelay bounds the pause after a failed accept (no file descriptors).
	maxAcceptDelay = time.Second
	// logEvery bounds the log lines about misbehaving clients: one a second and how many were left out.
	logEvery = time.Second
)

// clientPort serves clients: it accepts connections and owns what they share.
type clientPort struct {
	cfg      *Config
	log      *slog.Logger
	maxFrame int
	tree     *kv.Tree
	intake   *intake
	gate     *gate
	clock    *tickClock
	ids      *sessionIDs
	sessions *sessionTable
	local    *localSessions
	// Limits; nil if they are not configured.
	tokens   *tokenBucket
	throttle *requestThrottle
	large    *largeBudget
	member   *Member // for four-letter words
	started  time.Time
	config   []byte // what /zookeeper/config holds; empty: nothing

	group     sync.WaitGroup // every goroutine of the port
	stopping  atomic.Bool    // no new connections
	full      atomic.Bool    // operations that add data are refused: disk space is short
	readOnly  atomic.Bool    // read-only mode (readonly.go)
	draining  atomic.Bool    // results are written although no leader is established any more: shutdown
	listeners []net.Listener
	stop      chan struct{}

	settledZxid atomic.Uint64
	eventBytes  atomic.Int64 // what the unwritten events of all connections cost
	// maxEventBytes is its bound, maxPortEventBytes but in tests.
	maxEventBytes int64
	nextConn      atomic.Uint64 // id of the newest connection

	reserved atomic.Bool // this member's share of file descriptors is kept (fdlimit.go)

	mu      sync.Mutex
	conns   map[*conn]struct{}
	leaving map[*conn]struct{} // answered a word and wait for their client to hang up; counted nowhere
	perIP   map[string]int
	remotes int   // connections that have an address
	refused int64 // connections refused by limits
	// waiters wait for a zxid to settle.
	waiters []settleWaiter

	dirtyMu sync.Mutex
	dirty   []*conn

	touchMu sync.Mutex
	touched []touchedSession
	agreed  map[kv.SessionID]agreement

	latency   latencyStats
	traceMask atomic.Int64 // gtmk, stmk
	counters  portCounters

	logMu   sync.Mutex
	lastLog time.Time
	unsaid  int
}

type touchedSession struct {
	id        kv.SessionID
	timeoutMs int32
	claim     replica.Claim
}

type settleWaiter struct {
	z  kv.Zxid
	ch chan struct{}
}

func newClientPort(cfg *Config, tree *kv.Tree, in *intake, clock *tickClock) *clientPort {
	p := &clientPort{
		maxEventBytes: maxPortEventBytes,
		cfg:           cfg, log: cfg.Logger, maxFrame: cfg.MaxFrameBytes, tree: tree, intake: in, clock: clock,
		gate: newGate(), ids: newSessionIDs(cfg.ID, time.Now()), sessions: newSessionTable(),
		local:    newLocalSessions(),
		agreed:   make(map[kv.SessionID]agreement),
		tokens:   newTokenBucket(cfg.ConnectionTokens, cfg.ConnectionTokenFillCount, cfg.ConnectionTokenFillTime, time.Now()),
		throttle: newRequestThrottle(cfg.ThrottleLimit, cfg.ThrottledOpWait),
		large:    newLargeBudget(cfg.LargeRequestBytes, cfg.LargeRequestMaxBytes),
		conns:    make(map[*conn]struct{}), leaving: make(map[*conn]struct{}), perIP: make(map[string]int), stop: make(chan struct{}), started: time.Now(),
	}
	p.traceMask.Store(defaultTraceMask)
	if !cfg.standalone() {
		p.config = []byte(cfg.membershipText())
	}
	return p
}

// start serves the listeners.
func (p *clientPort) start(listeners []net.Listener) {
	p.listeners = listeners
	p.reserveFiles()
	for _, l := range listeners {
		p.group.Go(func() { p.accept(l) })
	}
	p.group.Go(p.janitor)
}

// close ends all connections and waits for their goroutines. The intake must be closed first.
func (p *clientPort) close() {
	p.stopAccepting()
	p.mu.Lock()
	select {
	case <-p.stop:
	default:
		close(p.stop)
	}
	conns := make([]*conn, 0, len(p.conns))
	for c := range p.conns {
		conns = append(conns, c)
	}
	for c := range p.leaving {
		conns = append(conns, c)
	}
	p.mu.Unlock()
	for _, c := range conns {
		c.close("")
	}
	p.group.Wait()
	p.releaseFiles()
}

// drain writes what has been answered. A client that does not read is not waited for.
func (p *clientPort) drain() {
	p.draining.Store(true)
	deadline := time.Now().Add(drainLimit)
	p.each(func(c *conn) {
		_ = c.nc.SetWriteDeadline(deadline)
		c.wmu.Lock()
		c.pump(true)
		c.wmu.Unlock()
	})
}

// stopAccepting closes the listeners; connections go on.
func (p *clientPort) stopAccepting() {
	p.stopping.Store(true)
	for _, l := range p.listeners {
		_ = l.Close()
	}
}

func (p *clientPort) accept(l net.Listener) {
	delay := 5 * time.Millisecond
	for {
		nc, err := l.Accept()
		if err != nil {
			if p.stopping.Load() || errors.Is(err, net.ErrClosed) {
				return
			}
			p.sayLimited("client port cannot accept", "listener", l.Addr().String(), "error", err)
			select {
			case <-time.After(delay):
			case <-p.stop:
				return
			}
			delay = min(2*delay, maxAcceptDelay)
			continue
		}
		delay = 5 * time.Millisecond
		if p.admit(nc) {
			p.serve(nc)
		}
	}
}

// serve takes over a connection. It reports false (and closes it) if it is refused.
func (p *clientPort) serve(nc net.Conn) bool {
	c := newConn(p, nc)
	p.mu.Lock()
	limit, reason := 0, ""
	switch { // in process nobody is counted
	case c.ip == "":
	case p.cfg.MaxConns > 0 && p.remotes >= p.cfg.MaxConns:
		limit, reason = p.cfg.MaxConns, "client refused: too many connections"
	case p.cfg.MaxClientConns > 0 && p.perIP[c.ip] >= p.cfg.MaxClientConns:
		limit, reason = p.cfg.MaxClientConns, "client refused: too many connections from its address"
	}
	if limit > 0 || p.stopping.Load() {
		p.refused++
		p.counters.rejected.Add(1)
		p.mu.Unlock()
		_ = nc.Close()
		if limit > 0 {
			p.sayLimited(reason, "client", c.remote, "limit", limit)
		}
		return false
	}
	p.conns[c] = struct{}{}
	if c.ip != "" {
		p.perIP[c.ip]++
		p.remotes++
	}
	p.group.Add(1) // under mu: close has not begun to wait
	p.mu.Unlock()
	go func() {
		defer p.group.Done()
		defer p.drop(c)
		c.readLoop()
	}()
	return true
}

// drop forgets a connection whose reader has ended.
func (p *clientPort) drop(c *conn) {
	c.close("")
	c.settleAll()
	p.remember(c)
	if id := c.sessionID(); id != 0 {
		p.sessions.detach(id, c)
	}
	c.wmu.Lock() // whoever is still answering may set watches; from now on pump finds the connection closed
	p.tree.RemoveWatcher(c)
	c.forget()
	c.wmu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.leaving, c)
	p.forgetLocked(c)
}

// leave takes a connection that has been answered out of the count, before it has ended.
func (p *clientPort) leave(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaving[c] = struct{}{}
	p.forgetLocked(c)
}

// forgetLocked takes a connection out of the count, once. p.mu is held.
func (p *clientPort) forgetLocked(c *conn) {
	if _, ok := p.conns[c]; !ok {
		return
	}
	delete(p.conns, c)
	p.latency.received.Add(c.received.Load())
	p.latency.sent.Add(c.sent.Load())
	if c.ip != "" {
		p.remotes--
		if p.perIP[c.ip]--; p.perIP[c.ip] == 0 {
			delete(p.perIP, c.ip)
		}
	}
}

// attach makes c the session's connection and ends the one it had here before.
func (p *clientPort) attach(id kv.SessionID, timeoutMs int32, c *conn) {
	c.timeoutMs.Store(timeoutMs)
	c.session.Store(int64(id))
	old := p.sessions.attach(id, c)
	if c.isClosed() { // drop may have looked before the session was known
		p.sessions.detach(id, c)
	}
	if old != nil {
		old.close("")
	}
}

// closeEnded ends the connections of sessions that a state which did not come about transaction by transaction does not
// have: nobody sees the ends of these. A session that is only younger than the state is resumed by its client.
func (p *clientPort) closeEnded(v *kv.View) {
	p.each(func(c *conn) {
		if id := c.sessionID(); id != 0 && !c.isLocal.Load() {
			if _, open := v.Session(id); !open {
				c.close("")
			}
		}
	})
}

// each calls fn with every connection.
func (p *clientPort) each(fn func(*conn)) {
	p.mu.Lock()
	conns := make([]*conn, 0, len(p.conns))
	for c := range p.conns {
		conns = append(conns, c)
	}
	p.mu.Unlock()
	for _, c := range conns {
		fn(c)
	}
}

// connections is the number of connections.
func (p *clientPort) connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// setGate opens or shuts the gate and reports whether that is a change. Opening wakes all writers for what gathered
// meanwhile.
func (p *clientPort) setGate(open bool) bool {
	if p.gate.isOpen() == open {
		return false
	}
	if open {
		p.local.restart(p.clock.now())
		p.leaveReadOnly()
	}
	p.gate.set(open, p.clock.now())
	if open {
		p.each(func(c *conn) { c.wake.signal() })
	}
	return true
}

// settled is the zxid up to which the applier has published, queued the events and handed over the results.
func (p *clientPort) settled() kv.Zxid { return kv.Zxid(p.settledZxid.Load()) }

// settle moves the settled zxid and wakes the writers that got something. Only the applier calls it.
func (p *clientPort) settle(z kv.Zxid) {
	p.settledZxid.Store(uint64(z))
	p.dirtyMu.Lock()
	dirty := p.dirty
	p.dirty = nil
	p.dirtyMu.Unlock()
	for i, c := range dirty {
		// Cleared before the wake-up: what the next batch queues must list the connection again.
		c.mu.Lock()
		c.dirty = false
		c.mu.Unlock()
		c.wake.signal()
		dirty[i] = nil
	}
	p.dirtyMu.Lock()
	if p.dirty == nil {
		p.dirty = dirty[:0]
	}
	p.dirtyMu.Unlock()
	p.mu.Lock()
	p.waiters = slices.DeleteFunc(p.waiters, func(w settleWaiter) bool {
		if w.z <= z {
			close(w.ch)
			return true
		}
		return false
	})
	p.mu.Unlock()
}

// markDirty lists a connection for a wake-up at the end of the applier's batch.
func (p *clientPort) markDirty(c *conn) {
	p.dirtyMu.Lock()
	p.dirty = append(p.dirty, c)
	p.dirtyMu.Unlock()
}

// awaitSettled waits until z is settled. It reports false if the connection ended first.
func (p *clientPort) awaitSettled(c *conn, z kv.Zxid) bool {
	w := settleWaiter{z, make(chan struct{})}
	p.mu.Lock()
	if p.settled() >= z {
		p.mu.Unlock()
		return true
	}
	p.waiters = append(p.waiters, w)
	p.mu.Unlock()
	select {
	case <-w.ch:
		return true
	case <-c.done:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiters = slices.DeleteFunc(p.waiters, func(o settleWaiter) bool { return o.ch == w.ch })
	return false
}

// touch lists a session that was heard from.
func (p *clientPort) touch(c *conn) {
	id := c.sessionID()
	if id == 0 {
		return
	}
	if c.isLocal.Load() {
		p.local.touch(id, p.clock.now())
		return
	}
	p.touchMu.Lock()
	p.touched = append(p.touched, touchedSession{id, c.timeoutMs.Load(), replica.Claim(c.claim.Load())})
	p.touchMu.Unlock()
}

// touchAll touches every session that has a connection here, or was resumed here and lost it a moment ago: a leader that has just opened its term learns time-outs and owners from it, and gives everybody
// a full time-out anyway.
func (p *clientPort) touchAll() {
	p.each(p.touch)
	p.touchMu.Lock()
	defer p.touchMu.Unlock()
	for _, a := range p.agreed {
		p.touched = append(p.touched, a.touchedSession)
	}
}

// agreement is what was agreed with a client whose connection has ended, for as long as its session may be alive.
type agreement struct {
	touchedSession
	until int64 // tick
}

// remember keeps what was agreed on a connection that ends, if its session was resumed: a leader that comes knows only
// what is replicated, the time-out of the session's creation.
func (p *clientPort) remember(c *conn) {
	id := c.sessionID()
	if id == 0 || c.isLocal.Load() {
		return
	}
	timeoutMs, claim := c.timeoutMs.Load(), replica.Claim(c.claim.Load())
	if _, open := p.tree.View().Session(id); !open || claim.Birth() {
		return
	}
	p.touchMu.Lock()
	defer p.touchMu.Unlock()
	t := touchedSession{id, timeoutMs, claim}
	if old, ok := p.agreed[id]; !ok || old.claim <= t.claim {
		p.agreed[id] = agreement{t, p.clock.now() + timeoutTicks(timeoutMs)}
	}
}

// forgetAgreements drops what is over.
func (p *clientPort) forgetAgreements() {
	now := p.clock.now()
	p.touchMu.Lock()
	defer p.touchMu.Unlock()
	for id, a := range p.agreed {
		if a.until < now {
			delete(p.agreed, id)
		}
	}
}

// takeTouches swaps the list for an empty one. Only the loop calls it.
func (p *clientPort) takeTouches(into []touchedSession) []touchedSession {
	p.touchMu.Lock()
	defer p.touchMu.Unlock()
	into, p.touched = p.touched, into[:0]
	return into
}

// clampTimeout fits what a client asked for between the bounds.
func (p *clientPort) clampTimeout(ms int32) int32 {
	return int32(min(max(int64(ms), p.cfg.MinSessionTimeout.Milliseconds()), p.cfg.MaxSessionTimeout.Milliseconds()))
}

// janitor ends connections that ran out of patience: without a handshake, silent for their session's time-out, not
// reading their replies, or waiting too long for a leader. Time is ticks of the member's own loop.
func (p *clientPort) janitor() {
	t := time.NewTicker(janitorEvery)
	defer t.Stop()
	turn := 0
	for {
		select {
		case <-t.C:
			p.each(p.inspect)
			if turn++; turn%expireEvery == 0 {
				p.expireLocal()
				p.forgetAgreements()
			}
		case <-p.stop:
			return
		}
	}
}

func (p *clientPort) inspect(c *conn) {
	now := p.clock.now()
	if now-c.heard.Load() > idleTicks {
		c.trimIdle()
	}
	if c.sessionID() == 0 {
		switch {
		case now-c.heard.Load() > int64(ticks(p.cfg.SessionlessTimeout)):
			p.counters.sessionlessExpired.Add(1)
			c.close("no handshake in time")
		case p.portMode() == portShut && now-max(p.gate.shutSince.Load(), c.heard.Load()) > gateTicks:
			c.close("") // its session waits for a leader
		}
		return
	}
	timeout := max(int64(c.timeoutMs.Load())*int64(time.Millisecond)/int64(tick), 1)
	if !p.mayAnswer(c) {
		if now-p.gate.shutSince.Load() > min(gateTicks, timeout/3) {
			c.close("")
		}
		return // its reader may be waiting, so silence says nothing
	}
	if since := c.writing.Load(); since != 0 && now-since > timeout {
		c.close(fmt.Sprintf("replies not read for the session's time-out of %dms", c.timeoutMs.Load()))
		return
	}
	if c.waiting.Load() {
		// Its reader waits, so its client's pings are not heard. Not if it is the client who keeps it waiting: while nothing
		// can be written to it, it has given no sign of life.
		if c.writing.Load() == 0 {
			p.touch(c)
		}
		return
	}
	if now-c.heard.Load() > timeout && !c.blocked() {
		c.close("")
	}
}

// blocked reports whether the reader waits for room rather than for its client.
func (c *conn) blocked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held > 0
}

// logClose says why a connection was cut.
func (p *clientPort) logClose(c *conn, reason string) {
	p.sayLimited("client connection closed", "client", c.remote, "session", c.sessionID().String(), "reason", reason)
}

// sayLimited logs at most one line a second about clients: a misbehaving one must not fill the log.
func (p *clientPort) sayLimited(msg string, args ...any) {
	p.logMu.Lock()
	defer p.logMu.Unlock()
	if now := time.Now(); now.Sub(p.lastLog) >= logEvery {
		p.lastLog = now
		if p.unsaid > 0 {
			args = append(args, "not_logged", p.unsaid)
			p.unsaid = 0
		}
		p.log.Info(msg, args...)
		return
	}
	p.unsaid++
}

// isReset reports whether the other side broke the connection.
func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
