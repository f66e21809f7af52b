package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"kvd/zab"
	"kvd/zab/quorum"
)

// ErrClosed is the cause of everything that ends because of Close.
var ErrClosed = errors.New("transport closed")

// Transport is one member's connections to the others. All methods may be called from any goroutine; none but
// Close blocks.
type Transport struct {
	o        Options
	log      *slog.Logger
	instance uint64 // random: names this run in handshakes
	ctx      context.Context
	cancel   context.CancelCauseFunc
	wg       sync.WaitGroup
	peers    map[quorum.MemberID]*peer // the others; read-only after New
	lastLink atomic.Uint64
	nonce    atomic.Uint64
	counters counters

	// receiving is held by the one snapshot receiver that may have the store's receive area open.
	receiving chan struct{}

	mu          sync.Mutex
	started     bool
	closed      bool
	listeners   []net.Listener
	conns       map[net.Conn]struct{}
	links       map[zab.LinkID]*link
	attempt     uint64             // of the newest Connect
	stopDialing context.CancelFunc // of the newest Connect, nil: none
	refusals    map[string]bool    // what was logged already; at most maxRefusals
}

const maxRefusals = 256

// New checks the options. The result does nothing until Start.
func New(o Options) (*Transport, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("peer transport: %w", err)
	}
	t := &Transport{
		o: o, log: o.Logger, instance: rand.Uint64() | 1,
		peers: map[quorum.MemberID]*peer{}, conns: map[net.Conn]struct{}{}, links: map[zab.LinkID]*link{},
		refusals: map[string]bool{}, receiving: make(chan struct{}, 1),
	}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	for id, addr := range o.Peers {
		if id != o.ID {
			t.peers[id] = newPeer(t, id, addr)
		}
	}
	return t, nil
}

// Start listens and begins to dial. An error means that an own address cannot be listened on; nothing runs then.
// A name of the own address that does not resolve yet is no error: it is tried again (ZK-4728).
func (t *Transport) Start() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.started {
		return errors.New("peer transport: started twice or closed")
	}
	own := t.o.Peers[t.o.ID]
	sides := []struct {
		ln      net.Listener
		port    int
		learner bool
	}{{t.o.ElectionListener, own.ElectionPort, false}, {t.o.LearnerListener, own.LearnerPort, true}}
	for i := range sides {
		s := &sides[i]
		if s.ln != nil {
			continue
		}
		var err error
		if s.ln, err = net.Listen("tcp", joinHostPort(own.Host, s.port)); err != nil {
			var dns *net.DNSError
			if !errors.As(err, &dns) {
				for _, done := range sides[:i] {
					if done.ln != nil {
						_ = done.ln.Close()
					}
				}
				return fmt.Errorf("peer transport: %s port: %w", portName(s.learner), err)
			}
			s.ln = nil
		}
	}
	t.started = true
	for _, s := range sides {
		if s.ln != nil {
			t.listeners = append(t.listeners, s.ln)
		}
		t.wg.Go(func() { t.listen(s.ln, joinHostPort(own.Host, s.port), s.learner) })
	}
	for _, p := range t.peers {
		t.wg.Go(p.run)
	}
	return nil
}

func joinHostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// Close cuts all connections and returns when every goroutine has ended. Links get their LinkDown with ErrClosed.
func (t *Transport) Close() error {
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		t.cancel(ErrClosed)
		if !t.started { // handed-in listeners are ours to close either way
			for _, ln := range []net.Listener{t.o.ElectionListener, t.o.LearnerListener} {
				if ln != nil {
					_ = ln.Close()
				}
			}
		}
		for _, ln := range t.listeners {
			_ = ln.Close()
		}
		for _, l := range t.links {
			l.fail(ErrClosed)
		}
		for c := range t.conns {
			_ = c.Close()
		}
	}
	t.mu.Unlock()
	t.wg.Wait()
	return nil
}

// track registers an open connection so that Close can cut it; false: already closed, and so is c.
func (t *Transport) track(c net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		_ = c.Close()
		return false
	}
	t.conns[c] = struct{}{}
	return true
}

// drop closes c and forgets it.
func (t *Transport) drop(c net.Conn) {
	_ = c.Close()
	t.mu.Lock()
	delete(t.conns, c)
	t.mu.Unlock()
}

// sleep waits for d; false: the transport is closing.
func (t *Transport) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-t.ctx.Done():
		return false
	}
}

// listen accepts connections until Close. A listener that cannot be opened because its name does not resolve is
// tried again; a failing accept (out of file descriptors) is retried with back-off, so that the acceptor never
// dies silently.
func (t *Transport) listen(ln net.Listener, address string, learner bool) {
	wait := backoff{lo: t.o.Limits.BackoffMin, hi: t.o.Limits.BackoffMax}
	for said := false; ln == nil; {
		var err error
		if ln, err = (&net.ListenConfig{}).Listen(t.ctx, "tcp", address); err == nil {
			t.mu.Lock()
			if t.closed {
				_ = ln.Close()
			}
			t.listeners = append(t.listeners, ln)
			t.mu.Unlock()
			break
		}
		ln = nil
		if !said && t.ctx.Err() == nil {
			said = true
			t.log.Warn("cannot listen for peers, trying again", "port", portName(learner), "address", address, "err", err)
		}
		if !t.sleep(wait.next()) {
			return
		}
	}
	slots := make(chan struct{}, t.o.Limits.MaxHandshakes)
	for {
		c, err := ln.Accept()
		if t.ctx.Err() != nil {
			if err == nil {
				_ = c.Close()
			}
			return
		}
		if err != nil {
			t.log.Warn("cannot accept peer connections, trying again", "port", portName(learner), "err", err)
			if !t.sleep(wait.next()) {
				return
			}
			continue
		}
		wait.reset()
		select {
		case slots <- struct{}{}:
		default:
			t.counters.handshakesDropped.Add(1)
			_ = c.Close()
			continue
		}
		if !t.track(c) {
			return
		}
		t.wg.Go(func() { t.welcome(c, learner, func() { <-slots }) })
	}
}

// welcome runs the listening side of a handshake and then the connection. done is called when the handshake is over.
func (t *Transport) welcome(c net.Conn, learner bool, done func()) {
	defer t.drop(c)
	tune(c)
	_ = c.SetDeadline(time.Now().Add(t.o.Limits.HandshakeTimeout))
	h, err := readHello(c)
	mine := hello{Hello: t.o.Hello(), from: t.o.ID, instance: t.instance}
	if err == nil {
		if r := t.judge(h, mine.Hello, learner); r != nil {
			err = r
		} else if r := t.twin(h); r != nil {
			err = r
			if ended(c) { // a run of before that is gone by now: nobody to refuse
				err = io.ErrUnexpectedEOF
			}
			_ = c.SetDeadline(time.Now().Add(t.o.Limits.HandshakeTimeout))
		}
	}
	if err != nil {
		var refused *RefusedError
		if errors.As(err, &refused) {
			t.refused(refused, h.from, c.RemoteAddr())
			_, _ = c.Write(encodeAnswer(mine, refused.Verdict, refused.Reason))
		} else {
			t.counters.handshakesFailed.Add(1)
		}
		done()
		return
	}
	switch h.purpose {
	case purposeProbe:
		_, _ = c.Write(encodeAnswer(mine, Accepted, ""))
		done()
	case purposeKnock:
		_, _ = c.Write(encodeAnswer(mine, Accepted, ""))
		done()
		t.peers[h.from].knocked(h.instance, h.seenInstance, h.seenNonce)
	case purposeElection:
		// Registered before the answer leaves: once the dialler knows that it is connected, so do we (knocked).
		p := t.peers[h.from]
		conn := p.register(c, h)
		if conn == nil {
			t.counters.dialsOvertaken.Add(1)
			done()
			return
		}
		_, err := c.Write(encodeAnswer(mine, Accepted, ""))
		done()
		_ = c.SetDeadline(time.Time{})
		p.serve(conn, err)
	case purposeLearner:
		_, err := c.Write(encodeAnswer(mine, Accepted, ""))
		done()
		_ = c.SetDeadline(time.Time{})
		if err == nil {
			t.serveLink(c, h, false)
		}
	}
}

// refused counts a refusal and logs it once per cause and peer.
func (t *Transport) refused(r *RefusedError, peer quorum.MemberID, remote net.Addr) {
	if int(r.Verdict) < verdictCount {
		t.counters.refused[r.Verdict].Add(1)
	}
	host, _, err := net.SplitHostPort(remote.String())
	if err != nil {
		host = remote.String()
	}
	key := fmt.Sprint(r.Verdict, r.ByPeer, peer, host)
	switch {
	case r.Verdict == RefusedTwin && r.ByPeer:
		key = "twin" // every peer says the same about this member
	case r.Verdict == RefusedTwin, r.Verdict == RefusedCluster:
		key = fmt.Sprint(r.Verdict, peer) // one finding, whoever of the two dialled
	}
	t.mu.Lock()
	known := t.refusals[key] || len(t.refusals) >= maxRefusals
	if !known {
		t.refusals[key] = true
	}
	t.mu.Unlock()
	if !known {
		t.log.Warn("peer connection refused", "peer", uint64(peer), "remote", host, "cause", r.Verdict.String(), "reason", r.Reason, "by_peer", r.ByPeer)
	}
}

// dial connects to address, tracked and tuned. The name is resolved here, every time.
func (t *Transport) dial(ctx context.Context, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, t.o.Limits.DialTimeout)
	defer cancel()
	t.counters.dials.Add(1)
	c, err := t.o.Dial(ctx, "tcp", address)
	if err != nil {
		t.counters.dialsFailed.Add(1)
		return nil, err
	}
	if !t.track(c) {
		return nil, ErrClosed
	}
	tune(c)
	return c, nil
}

// IdentityChanged closes every connection with a peer that the present Hello would refuse: called after this
// member has adopted or minted a cluster id. Connections with blank peers and those of the same cluster stay.
func (t *Transport) IdentityChanged() {
	mine := t.o.Hello()
	for _, p := range t.peers {
		p.recheck(mine)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.links {
		if r := compatible(mine, l.remote.Hello); r != nil {
			l.fail(r)
		}
	}
}

// backoff yields growing, jittered waits. Not safe for concurrent use.
type backoff struct {
	lo, hi, cur time.Duration
}

func (b *backoff) reset() { b.cur = 0 }

// next returns between half and all of the present wait and doubles it up to hi.
func (b *backoff) next() time.Duration {
	b.cur = min(max(b.cur*2, b.lo), b.hi)
	return b.cur/2 + time.Duration(rand.Int64N(int64(b.cur/2)+1))
}
