package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// Two processes with one id (design 8, row "has my id").
//
// A hello of another run than the one that holds the peer's connections is either the peer, restarted, whose old
// connections are stale, or a second process with the same id. The configuration decides: whichever run answers at
// the peer's configured address is the peer. If nobody answers there in time nothing is known, and the newer run is
// let in, because a restarted member must not be kept out; unless this very run was found to be the second one before.

// judgement remembers the last probe of a peer, so that a twin that dials every second costs one probe in judgedFor.
type judgement struct {
	twin, standing uint64 // runs: refused in favour of
	until          time.Time
}

const judgedFor = 5 * time.Second

// twin refuses h if its sender is a second process with the id of a peer that is connected and answers at its own
// address. It is called on the connection's goroutine and takes at most half of HandshakeTimeout: the sender waits.
func (t *Transport) twin(h hello) *RefusedError {
	p := t.peers[h.from]
	if h.purpose == purposeProbe {
		return nil
	}
	standing := t.standingRun(p, h.instance)
	if standing == 0 {
		return nil
	}
	p.judging.Lock()
	defer p.judging.Unlock()
	j := &p.judged
	before := j.twin == h.instance && j.standing == standing
	if !before || time.Now().After(j.until) {
		switch answers := p.probe(); {
		case answers == h.instance:
			*j = judgement{}
			return nil
		case answers != 0: // it need not be the one that is connected: that one may be stale, or a twin as well
			*j = judgement{twin: h.instance, standing: standing, until: time.Now().Add(judgedFor)}
		case !before:
			return nil
		}
	}
	return &RefusedError{Verdict: RefusedTwin, Reason: fmt.Sprintf(
		"two processes run as member %d: another one than the sender answers at member %d's configured address %s and keeps its place",
		p.id, p.id, joinHostPort(p.addr.Host, p.addr.ElectionPort))}
}

// standingRun is the run that holds a connection with p, if it is not the given one; else 0.
func (t *Transport) standingRun(p *peer, run uint64) uint64 {
	if conn := p.current(); conn != nil && conn.remote.instance != run {
		return conn.remote.instance
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.links {
		if l.peer == p.id && l.remote.instance != run {
			return l.remote.instance
		}
	}
	return 0
}

// probe asks who answers at p's configured election port: its run, or 0 if nobody did.
func (p *peer) probe() uint64 {
	ctx, cancel := context.WithTimeout(p.t.ctx, p.t.o.Limits.HandshakeTimeout/2)
	defer cancel()
	c, err := p.t.dial(ctx, joinHostPort(p.addr.Host, p.addr.ElectionPort))
	if err != nil {
		return 0
	}
	defer p.t.drop(c)
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	answer, err := p.t.greet(c, hello{purpose: purposeProbe, to: p.id, nonce: p.t.nonce.Add(1)})
	if err != nil {
		return 0
	}
	return answer.instance
}

// ended reports whether the other side of c, which waits for an answer and has nothing to say, has closed it. It
// leaves a deadline behind.
func ended(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}
