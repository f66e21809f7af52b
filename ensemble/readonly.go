package ensemble

import (
	"time"

	"kvd/kv"
	"kvd/kv/wire"
	"kvd/zab"
)

// portMode says whom a client port answers.
type portMode uint8

const (
	// portShut: nobody. No leader is established, or this member has not caught up with it.
	portShut portMode = iota
	// portServing: everybody; the gate is open.
	portServing
	// portReadOnly: clients that said they accept it, with what this member had applied when it lost its leader
	// (zookeeper-protocol 7.3). Only with Config.ReadOnlyMode.
	portReadOnly
)

// portMode is what the port does now. `isro` answers rw, ro and null.
func (p *clientPort) portMode() portMode {
	switch {
	case p.gate.isOpen():
		return portServing
	case p.readOnly.Load():
		return portReadOnly
	}
	return portShut
}

// Read-only mode shares nothing that changes with replication (S61): its connections read the tree, which stands
// still without a leader, are refused every write before it enters the intake, and are never answered while the gate is
// open. Other connections are never answered while it is shut. So what a client hears depends on what it asked for
// in its handshake, and those that did not ask for read-only see exactly what they would without it.

// readOnlyGrace is the least time without a leader before read-only mode begins, one TickTime if that is longer.
const readOnlyGrace = 2 * time.Second

// readOnlyClock counts for how long a member has been without a leader, in ticks of its loop.
type readOnlyClock struct {
	grace, looking int64
}

// tickReadOnly begins and ends read-only mode. A member that may have forgotten something does not offer it: what it
// holds says nothing about what there is.
func (l *loop) tickReadOnly() {
	if !l.cfg.ReadOnlyMode {
		return
	}
	c := &l.readOnly
	if l.serving.Role != zab.Looking || l.serving.Open || l.closing {
		c.looking = 0
		l.port.leaveReadOnly()
		return
	}
	c.looking++
	if c.looking <= c.grace || l.port.readOnly.Load() {
		return
	}
	if l.replica.Durable().Unknown || l.replica.Status().Forming != "" {
		return
	}
	l.log.Info("read-only", "zxid", l.applied.String())
	l.port.enterReadOnly()
}

// enterReadOnly lets clients in that accept it.
func (p *clientPort) enterReadOnly() {
	p.mu.Lock()
	p.readOnly.Store(true)
	p.mu.Unlock()
	p.local.restart(p.clock.now())
}

// leaveReadOnly ends the connections of read-only clients, and their sessions: they come back to a member that serves
// everything. Afterwards none of them is answered any more.
func (p *clientPort) leaveReadOnly() {
	if !p.readOnly.Load() {
		return
	}
	var gone []*conn
	p.mu.Lock()
	p.readOnly.Store(false)
	for c := range p.conns {
		if c.readOnly.Load() {
			gone = append(gone, c)
		}
	}
	p.mu.Unlock()
	p.local.endReadOnly()
	for _, c := range gone {
		c.close("")
	}
}

// joinReadOnly makes c a read-only connection, if the mode still is.
func (p *clientPort) joinReadOnly(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.readOnly.Load() {
		return false
	}
	c.readOnly.Store(true)
	return true
}

// mayAnswer reports whether anything may be written to a connection now.
func (p *clientPort) mayAnswer(c *conn) bool {
	if c.readOnly.Load() {
		return p.readOnly.Load()
	}
	return p.gate.isOpen() || p.draining.Load()
}

// refuseReadOnly answers the handshake of a client that wants a new session where none can be made: an ordinary header
// in place of a ConnectResponse (zookeeper-protocol 7.3). Whatever the client says then ends the connection.
func (c *conn) refuseReadOnly() bool {
	c.received.Add(1)
	c.sent.Add(1)
	c.wmu.Lock()
	c.writeHeader(0, int64(c.port.settled()), kv.CodeNotReadOnly)
	ok := c.flush()
	c.wmu.Unlock()
	if ok {
		_, _ = c.frames.Peek(1)
	}
	c.close("")
	return false
}

// resumeReadOnly deals with a client that comes back with a session while this member is read-only. A session that this
// member made and that lives here is resumed; one that is certainly over is refused. Of any other nobody here can say
// whether it is alive: its client is sent elsewhere, or it would lose a living session.
func (c *conn) resumeReadOnly(s *slot, q *wire.ConnectRequest) bool {
	p := c.port
	switch l, known := p.local.resume(q.Session, q.Password, s.timeoutMs, p.clock.now()); known {
	case knownHere:
		return c.welcomeLocal(l, s, q)
	case wrongHere:
		return c.refuseSession(q)
	case notHere:
		// Whatever this run handed out was applied here, or was local, before its client heard of it.
		if _, open := p.tree.View().Session(q.Session); !open && p.ids.handedOut(q.Session) {
			return c.refuseSession(q)
		}
	}
	c.close("")
	return false
}
