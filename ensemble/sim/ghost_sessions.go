package sim

import (
	"slices"

	"kvd/kv"
	"kvd/zab"
)

// ghostSessions is what the observer remembers of sessions, beyond what the model says.
type ghostSessions struct {
	timeouts map[kv.SessionID]int64 // ms, the shortest ever agreed
	// heard is when the client was last heard of, of what has certainly reached the leader that led then.
	heard map[kv.SessionID]heardOf
	// began is when each leader was established first. A re-epoch keeps its sessions and their deadlines.
	began map[zab.Incarnation]int64
	// spoke is the newest connection of each session that a write of was executed, and in which epoch.
	spoke map[kv.SessionID]spoken
}

type heardOf struct {
	by zab.Incarnation
	at int64
}

type spoken struct {
	conn  uint64
	epoch kv.Epoch
}

func (g *ghostSessions) init() {
	*g = ghostSessions{timeouts: map[kv.SessionID]int64{}, heard: map[kv.SessionID]heardOf{}, began: map[zab.Incarnation]int64{}, spoke: map[kv.SessionID]spoken{}}
}

// touched: a client was heard on a member. If that leads, the leader knows at once; otherwise its next PING replies
// tell it. One that is being made when the client is heard may or may not have it, the one after it does.
func (m *Member) touched(c *Client) {
	m.touches = append(m.touches, touch{c.session, m.sim.now})
	m.reach(m, m.touches[len(m.touches)-1:])
}

type touch struct {
	session kv.SessionID
	at      int64
}

// pingReply is what a PING reply sent now certainly says.
func (m *Member) pingReply() []touch {
	sure := m.sureTouches
	m.sureTouches, m.touches = m.touches, nil
	return sure
}

// reach: touches have come to a member. If it is an established leader it has taken them in.
func (m *Member) reach(leader *Member, touches []touch) {
	if leader.role.Role != zab.Leading || leader.role.Stage != zab.Broadcast {
		return
	}
	g := &m.sim.ghost.sessions
	for _, t := range touches {
		if h := g.heard[t.session]; h.by != leader.inc || h.at < t.at {
			g.heard[t.session] = heardOf{leader.inc, t.at}
		}
	}
}

// proposed is "nobody expires early": a leader decides the end of a session no sooner than its time-out after the leader
// began, after the session did, and after the leader heard of its client.
func (g *ghostSessions) proposed(m *Member, e *kv.Entry) {
	t, err := kv.DecodeTxn(e.Payload)
	if err != nil || t.Header.Err != kv.CodeOK {
		return
	}
	s, id := m.sim, t.Header.Session
	switch {
	case t.Header.Kind == kv.OpCreateSession && len(t.Ops) == 1:
		g.timeouts[id] = int64(t.Ops[0].Timeout)
		g.heard[id] = heardOf{m.inc, s.now}
	case t.Header.Kind == kv.OpCloseSession && t.Header.Request == 0:
		since := g.began[m.inc]
		if h := g.heard[id]; h.by == m.inc {
			since = max(since, h.at)
		}
		if timeout, ok := g.timeouts[id]; ok && s.now < since+timeout-tickMs {
			s.fail("early", "leader %d ends session %v %d ms after it heard of its client or began, its time-out is %d", m.ID, id, s.now-since, timeout)
		}
	}
}

// executed is C2 across connections: once a write of a session's newer connection is executed, none of an older one is, as
// long as the same leader leads. (A new leader learns from its members who spoke last.)
func (g *ghostSessions) executed(s *Sim, op *Op, z kv.Zxid, code kv.Code) {
	if code == kv.CodeSessionMoved || code == kv.CodeSessionExpired || op.Request.Local || op.Request.Op == kv.OpCloseSession {
		return
	}
	id := op.Request.Session
	old := g.spoke[id]
	switch {
	case op.conn >= old.conn:
		g.spoke[id] = spoken{op.conn, z.Epoch()}
	case old.epoch == z.Epoch():
		s.fail("C2", "token %d at %v came on connection %d of session %v, which has written on its connection %d before", op.Token, z, op.conn, id, old.conn)
	}
}

// intrude asks a member to resume somebody else's session, with a password that is not its own (C4).
func (s *Sim) intrude() {
	var alive []*Client
	for _, c := range s.clients {
		if c.state == ready && !c.local {
			alive = append(alive, c)
		}
	}
	if len(alive) == 0 {
		return
	}
	c, m := alive[s.rng.IntN(len(alive))], s.members[s.rng.IntN(len(s.members))]
	if !m.Up || m.paused || !m.serving.Open {
		return
	}
	s.conns++
	conn, token := s.conns, s.token()
	m.port.intruders[token] = conn
	password, session, timeout := c.password, c.session, c.timeoutMs
	password[s.rng.IntN(len(password))] ^= byte(1 + s.rng.IntN(255))
	m.port.put(conn, func() { m.rep.Revalidate(conn, token, session, password, timeout) })
	m.turn()
}

// endedBefore reports whether the end of the client's session was committed when it asked to resume it, and the answer is
// not that of a leader which others have replaced.
func (p *port) endedBefore(c *Client) bool {
	g := &p.m.sim.ghost
	return c.askedEnded && len(g.epochs) > 0 && p.m.role.Epoch == slices.Max(g.epochs)
}
