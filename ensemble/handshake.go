package ensemble

import (
	"fmt"
	"time"

	"kvd/ensemble/replica"
	"kvd/kv"
	"kvd/kv/wire"
)

// open deals with the first bytes of a connection: a four-letter word, or the handshake of a session. It
// reports whether requests follow.
func (c *conn) open() bool {
	first, err := c.frames.Peek(4)
	if err != nil {
		c.close("")
		return false
	}
	if word, ok := wire.ParseWord(first); ok {
		c.port.answerWord(c, word)
		c.close("")
		return false
	}
	frame, err := c.frames.Next()
	if err != nil {
		c.close(c.readError(err))
		return false
	}
	at := time.Now()
	c.hear()
	c.port.counters.connectRequests.Add(1)
	var q wire.ConnectRequest
	if err := wire.Decode(frame, &q); err != nil {
		c.close("first frame is no handshake")
		return false
	}
	p := c.port
	mode := p.portMode()
	switch {
	case mode == portShut || p.stopping.Load():
		p.counters.notServing.Add(1)
		c.close("") // not serving: the client tries another member
		return false
	case !p.tokens.take(at):
		p.counters.rejected.Add(1)
		c.close("connections come too fast")
		return false
	case mode == portReadOnly && (!q.ReadOnly || !p.joinReadOnly(c)):
		p.counters.notServing.Add(1)
		c.close("")
		return false
	}
	if c.behind(&q) && (mode == portReadOnly || !c.foreign(q.Session)) {
		return c.refuseBehind(&q)
	}
	s := &slot{conn: c, timeoutMs: p.clampTimeout(q.TimeoutMs), cost: slotOverhead, at: at}
	switch {
	case q.Session != 0 && mode == portReadOnly:
		return c.resumeReadOnly(s, &q)
	case q.Session != 0:
		return c.resumeSession(s, &q)
	case p.cfg.LocalSessions:
		return c.createLocal(s, &q)
	case mode == portReadOnly:
		return c.refuseReadOnly()
	}
	return c.createSession(s, &q)
}

// behind reports whether the client has seen a state that this member has not.
func (c *conn) behind(q *wire.ConnectRequest) bool { return q.LastZxidSeen > int64(c.port.settled()) }

// refuseBehind gives no answer: another member may have that state, and the client must not lose a living session.
func (c *conn) refuseBehind(q *wire.ConnectRequest) bool {
	c.close(fmt.Sprintf("client has seen zxid %v, this member %v", kv.Zxid(q.LastZxidSeen), c.port.settled()))
	return false
}

// foreign reports whether nobody here knows the session that a client wants to resume. If it has seen more than this member
// the leader is asked all the same: it may know the session, and then this member is behind; or the session is of another
// history, as that of a program that ran on while kvd took ZooKeeper's place. That program must hear that its session is
// gone, or it would try for ever.
func (c *conn) foreign(id kv.SessionID) bool {
	if id == 0 || c.port.cfg.LocalSessions {
		return false
	}
	_, known := c.port.tree.View().Session(id)
	return !known
}

// createSession asks for a new session and answers when its transaction is applied here.
func (c *conn) createSession(s *slot, q *wire.ConnectRequest) bool {
	s.kind, s.op = slotCreate, wire.OpCreateSession
	s.session = c.port.ids.new()
	s.password = newPassword()
	s.body = replica.AppendCreateSession(nil, s.timeoutMs, s.password)
	if !c.awaitSlot(s) {
		return false
	}
	if s.code != kv.CodeOK {
		c.close(fmt.Sprintf("session not created: %v", s.code))
		return false
	}
	return c.welcome(s, q)
}

// resumeSession resumes a session of this member's own, or asks the leader whether the session lives and the password is
// right. Nothing happens to the session's present connection before that is known.
func (c *conn) resumeSession(s *slot, q *wire.ConnectRequest) bool {
	s.kind, s.session = slotResume, q.Session
	local, known := c.port.local.resume(q.Session, q.Password, s.timeoutMs, c.port.clock.now())
	switch known {
	case knownHere:
		return c.welcomeLocal(local, s, q)
	case wrongHere:
		return c.refuseSession(q)
	}
	if len(q.Password) != wire.PasswordBytes {
		if c.behind(q) {
			return c.refuseBehind(q)
		}
		return c.refuseSession(q)
	}
	copy(s.password[:], q.Password)
	s, ok := c.askLeader(s)
	if !ok {
		return false
	}
	switch s.validity {
	case resumeValid:
		c.port.counters.revalidated.Add(1)
		if local != nil {
			c.port.local.remove(local.id)
		}
	case resumeRefused:
		if !s.gone && c.behind(q) { // known to the leader, with another password
			return c.refuseBehind(q)
		}
		if local != nil && c.port.local.stillLocal(local, s.timeoutMs, c.port.clock.now()) {
			return c.welcomeLocal(local, s, q) // its createSession was lost, for good
		}
		return c.refuseSession(q)
	default:
		c.close("")
		return false
	}
	if !c.port.awaitSettled(c, s.fresh) {
		c.close("")
		return false
	}
	if c.behind(q) {
		return c.refuseBehind(q)
	}
	// The state is as new as the leader's word. If the session has ended since, perhaps before the connection was attached to
	// it, the client must not be told that it lives: it asks again.
	if _, open := c.port.tree.View().Session(s.session); !open {
		c.close("")
		return false
	}
	return c.welcome(s, q)
}

// askLeader asks the leader about the session to be resumed, until nothing that an earlier connection of it sends through
// this member can come behind the question: the client is told a state in which every write whose outcome it does not
// know is decided. It returns the last question, answered.
func (c *conn) askLeader(s *slot) (*slot, bool) {
	for {
		old := c.port.sessions.get(s.session)
		if !c.awaitSlot(s) {
			return nil, false
		}
		if s.validity != resumeValid || old == nil || old == c {
			return s, true
		}
		// The other connection has been ended by now, and what it had sent is in front of what is pushed from here on.
		s = &slot{conn: c, kind: slotResume, session: s.session, password: s.password, timeoutMs: s.timeoutMs, cost: slotOverhead, at: s.at}
	}
}

// awaitSlot pushes a handshake and waits for its result.
func (c *conn) awaitSlot(s *slot) bool {
	if !c.port.intake.push([]*slot{s}) {
		c.close("")
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.closed && !s.done {
		c.cond.Wait()
	}
	return !c.closed
}

// welcome sends the ConnectResponse and starts the writer. The leader may have gone meanwhile: then nobody is answered.
func (c *conn) welcome(s *slot, q *wire.ConnectRequest) bool {
	c.timeoutMs.Store(s.timeoutMs)
	if !c.port.mayAnswer(c) || !c.sendConnectResponse(&wire.ConnectResponse{TimeoutMs: s.timeoutMs, Session: s.session, Password: s.password, HasReadOnly: q.HasReadOnly, ReadOnly: c.readOnly.Load()}) {
		c.close("")
		return false
	}
	c.hear()
	c.mu.Lock()
	c.stats.note(wire.OpCreateSession, 0, c.port.settled(), s.at, time.Now())
	c.mu.Unlock()
	c.port.group.Go(c.writeLoop)
	return true
}

// refuseSession tells the client that its session is gone (or that it is not its own) and ends.
func (c *conn) refuseSession(q *wire.ConnectRequest) bool {
	c.sendConnectResponse(&wire.ConnectResponse{HasReadOnly: q.HasReadOnly})
	c.close("")
	return false
}

func (c *conn) sendConnectResponse(r *wire.ConnectResponse) bool {
	c.received.Add(1)
	c.sent.Add(1)
	c.wmu.Lock()
	defer c.wmu.Unlock()
	out, mark := wire.BeginFrame(c.out)
	c.out = wire.EndFrame(r.AppendTo(out), mark)
	return c.flush()
}
