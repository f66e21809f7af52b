package transport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"kvd/zab/quorum"
)

// peer is another member as seen from the election port: the one connection with it, and what it has to be told.
type peer struct {
	t       *Transport
	id      quorum.MemberID
	addr    Address
	dialler bool          // I have the larger id: my dial carries the votes
	kick    chan struct{} // capacity 1: the dialler shall look again at once

	// reporting serialises ElectionUp and ElectionDown, and with them the change from one connection to the next: the
	// successor is announced only after the predecessor's reader has ended.
	reporting sync.Mutex
	reported  linkState // under reporting

	mu    sync.Mutex
	slots []slot // by kind; under mu, as all below
	conn  *electionConn
	// seenNonce and seenInstance name the last connection that the larger id opened to me.
	seenNonce, seenInstance uint64

	judging sync.Mutex // one probe of this peer at a time
	judged  judgement  // under judging
}

type linkState uint8

const (
	stateUnknown linkState = iota
	stateUp
	stateDown
)

// slot is the newest payload of one kind: a state report, which a newer one replaces (zab-rules b, Notification).
type slot struct {
	kind    byte
	payload []byte
	version uint64 // grows with each SendElection; a connection remembers what it has sent
}

type electionConn struct {
	c        net.Conn
	remote   hello
	nonce    uint64
	wake     chan struct{} // capacity 1
	finished chan struct{} // closed when its reader has ended and been reported
}

func newPeer(t *Transport, id quorum.MemberID, addr Address) *peer {
	return &peer{t: t, id: id, addr: addr, dialler: t.o.ID > id, kick: make(chan struct{}, 1)}
}

// SendElection puts payload into the slot of (to, kind): it is sent as soon as there is a connection, and once
// more on every later connection until a newer payload replaces it. The payload must not be changed any more.
// Unknown peers and oversized payloads are ignored and counted.
func (t *Transport) SendElection(to quorum.MemberID, kind byte, payload []byte) {
	p := t.peers[to]
	if p == nil || kind == 0 || kind > KindIdentity || len(payload) > t.o.Limits.MaxElectionBytes {
		t.counters.badFrames.Add(1)
		return
	}
	p.mu.Lock()
	found := false
	for i := range p.slots {
		if s := &p.slots[i]; s.kind == kind {
			s.payload, found = payload, true
			s.version++
		}
	}
	if !found {
		p.slots = append(p.slots, slot{kind: kind, payload: payload, version: 1})
	}
	conn := p.conn
	p.mu.Unlock()
	if conn != nil {
		poke(conn.wake)
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// failuresToSay is how many dials in a row have to fail before that is worth a line: a member that is just being
// started needs one or two.
const failuresToSay = 5

// sayUnreachable logs why the peer cannot be reached, once until it could: a name that does not resolve, a firewall
// and a process that is not there look the same from everywhere else. A refusal has a line of its own.
func (p *peer) sayUnreachable(err error) {
	var refused *RefusedError
	if !errors.As(err, &refused) {
		p.t.log.Warn("peer cannot be reached", "peer", uint64(p.id), "address", joinHostPort(p.addr.Host, p.addr.ElectionPort), "error", err)
	}
}

// run dials or knocks until Close: owner of the back-off of this peer.
func (p *peer) run() {
	wait := backoff{lo: p.t.o.Limits.BackoffMin, hi: p.t.o.Limits.BackoffMax}
	failed := 0 // dials in a row that reached nobody
	for {
		if current := p.current(); current != nil {
			failed = 0
			select {
			case <-current.finished:
				wait.reset()
			case <-p.t.ctx.Done():
				return
			}
		} else {
			var err error
			if p.dialler {
				err = p.dial()
			} else {
				err = p.knock()
			}
			if p.t.ctx.Err() != nil {
				return
			}
			if err != nil {
				if failed++; failed == failuresToSay {
					p.sayUnreachable(err)
				}
				p.reportUnreachable()
			} else if p.dialler {
				wait.reset() // there was a connection and it ended
			}
		}
		// The pause also keeps a peer that accepts and closes from spinning us.
		timer := time.NewTimer(wait.next())
		select {
		case <-timer.C:
		case <-p.kick:
			wait.reset()
		case <-p.t.ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

func (p *peer) current() *electionConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conn
}

// dial opens the connection and serves it until it ends. An error means that there was none.
func (p *peer) dial() error {
	c, err := p.t.dial(p.t.ctx, joinHostPort(p.addr.Host, p.addr.ElectionPort))
	if err != nil {
		return err
	}
	defer p.t.drop(c)
	h := hello{purpose: purposeElection, to: p.id, nonce: p.t.nonce.Add(1)}
	answer, err := p.t.greet(c, h)
	if err != nil {
		p.noteRefusal(err, c)
		return err
	}
	answer.nonce = h.nonce
	p.serve(p.register(c, answer), nil)
	return nil
}

// knock asks the larger id to dial. What it says it has seen is taken before it dials, together with "there is
// no connection": one that arrives meanwhile must not be taken for a lost one.
func (p *peer) knock() error {
	p.mu.Lock()
	if p.conn != nil {
		p.mu.Unlock()
		return nil
	}
	h := hello{purpose: purposeKnock, to: p.id, nonce: p.t.nonce.Add(1), seenNonce: p.seenNonce, seenInstance: p.seenInstance}
	p.mu.Unlock()
	c, err := p.t.dial(p.t.ctx, joinHostPort(p.addr.Host, p.addr.ElectionPort))
	if err != nil {
		return err
	}
	defer p.t.drop(c)
	_, err = p.t.greet(c, h)
	p.noteRefusal(err, c)
	return err
}

func (p *peer) noteRefusal(err error, c net.Conn) {
	var refused *RefusedError
	if errors.As(err, &refused) {
		p.t.refused(refused, p.id, c.RemoteAddr())
	} else if err != nil {
		p.t.counters.handshakesFailed.Add(1)
	}
}

// knocked is called when the smaller id says that it has no connection. Mine, if there is one, is stale unless
// it is still on its way: opened by me after the last one that the knocker has seen, to the same run of the
// knocker.
func (p *peer) knocked(instance, seenInstance, seenNonce uint64) {
	p.mu.Lock()
	if conn := p.conn; conn != nil {
		seen := seenInstance == p.t.instance && conn.nonce <= seenNonce
		if conn.remote.instance != instance || seen {
			_ = conn.c.Close()
		}
	}
	p.mu.Unlock()
	poke(p.kick)
}

// register makes c the peer's connection; an older one is closed and its end awaited, so that reports come in
// turns. It returns nil for a dial that a later one of the same run has overtaken: a member that was stopped
// for a while finds many of those at its listener.
func (p *peer) register(c net.Conn, h hello) *electionConn {
	conn := &electionConn{c: c, remote: h, nonce: h.nonce, wake: make(chan struct{}, 1), finished: make(chan struct{})}
	p.mu.Lock()
	if !p.dialler && h.instance == p.seenInstance && h.nonce < p.seenNonce {
		p.mu.Unlock()
		return nil
	}
	old := p.conn
	p.conn = conn
	if !p.dialler {
		p.seenNonce, p.seenInstance = h.nonce, h.instance
	}
	p.mu.Unlock()
	if old != nil {
		_ = old.c.Close()
		<-old.finished // its reader only enqueues
	}
	return conn
}

// serve reads until the connection ends. failed: it ended before it began.
func (p *peer) serve(conn *electionConn, failed error) {
	defer close(conn.finished)
	if failed == nil {
		p.reporting.Lock()
		p.reported = stateUp
		p.t.o.Handler.ElectionUp(p.id)
		p.reporting.Unlock()
		ended := make(chan struct{})
		var writer sync.WaitGroup
		writer.Go(func() { p.write(conn, ended) })
		p.read(conn)
		_ = conn.c.Close()
		close(ended)
		writer.Wait()
	}
	p.mu.Lock()
	if p.conn == conn {
		p.conn = nil
	}
	p.mu.Unlock()
	p.reportDown()
}

// reportUnreachable reports that a dial failed, unless the peer's own dial has made a connection meanwhile.
func (p *peer) reportUnreachable() {
	p.reporting.Lock()
	defer p.reporting.Unlock()
	if p.current() == nil {
		p.reportDownLocked()
	}
}

// reportDown reports the end of a connection.
func (p *peer) reportDown() {
	p.reporting.Lock()
	defer p.reporting.Unlock()
	p.reportDownLocked()
}

func (p *peer) reportDownLocked() {
	if p.reported == stateDown {
		return
	}
	p.reported = stateDown
	p.t.o.Handler.ElectionDown(p.id)
}

func (p *peer) read(conn *electionConn) {
	fr := newFrameReader(conn.c, p.t.o.Limits.MaxElectionBytes+1)
	for {
		kind, body, err := fr.next()
		if err == nil && (kind == 0 || kind > KindIdentity) {
			err = fmt.Errorf("%w: kind %d on an election connection", errFrame, kind)
		}
		if err != nil {
			if errors.Is(err, errFrame) {
				p.t.counters.badFrames.Add(1)
				p.t.log.Warn("election connection closed", "peer", uint64(p.id), "err", err)
			}
			return
		}
		p.t.o.Handler.ElectionMessage(p.id, kind, body)
	}
}

// write sends each slot's newest payload once per connection.
func (p *peer) write(conn *electionConn, ended <-chan struct{}) {
	sent := map[byte]uint64{}
	var buf []byte
	for {
		buf = buf[:0]
		p.mu.Lock()
		for _, s := range p.slots {
			if sent[s.kind] != s.version {
				sent[s.kind] = s.version
				buf = binary.BigEndian.AppendUint32(buf, uint32(1+len(s.payload)))
				buf = append(append(buf, s.kind), s.payload...)
			}
		}
		p.mu.Unlock()
		if len(buf) > 0 {
			_ = conn.c.SetWriteDeadline(time.Now().Add(p.t.o.Limits.WriteTimeout))
			if _, err := conn.c.Write(buf); err != nil {
				_ = conn.c.Close()
				return
			}
		}
		select {
		case <-conn.wake:
		case <-ended:
			return
		}
	}
}

// recheck closes the connection if mine no longer goes with what the peer said at the handshake.
func (p *peer) recheck(mine Hello) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if conn := p.conn; conn != nil && compatible(mine, conn.remote.Hello) != nil {
		_ = conn.c.Close()
	}
}
