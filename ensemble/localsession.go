package ensemble

import (
	"crypto/subtle"
	"fmt"
	"sync"

	"kvd/ensemble/replica"
	"kvd/kv"
	"kvd/kv/wire"
)

// localSessions are the sessions that only this member knows (zookeeper-protocol 7.2): made, kept and expired here,
// without a transaction. They have no ephemeral nodes. Their time is ticks of the member's own loop, so a paused
// member expires nobody, and it stands still while no client can be answered.
//
// A local session becomes global by a createSession with its own id and password, which its connection sends in
// front of the first request that needs one. Until the outcome is known it is upgrading: the leader's word then counts,
// and what is here only says who it was if the leader has never heard of it.
type localSessions struct {
	mu  sync.Mutex
	all map[kv.SessionID]*localSession
}

// localSession is one of them. Its fields change under localSessions.mu.
type localSession struct {
	id        kv.SessionID
	password  [wire.PasswordBytes]byte
	timeoutMs int32
	deadline  int64 // tick
	upgrading bool
	readOnly  bool // made while this member was read-only; it ends with that
}

func newLocalSessions() *localSessions {
	return &localSessions{all: make(map[kv.SessionID]*localSession)}
}

// timeoutTicks is a session's time-out in ticks of the loop, rounded up.
func timeoutTicks(ms int32) int64 {
	tickMs := tick.Milliseconds()
	return (int64(ms) + tickMs - 1) / tickMs
}

func (t *localSessions) add(s *localSession, now int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.deadline = now + timeoutTicks(s.timeoutMs) + 1
	t.all[s.id] = s
}

// remove forgets a session: it was closed, or it is global now.
func (t *localSessions) remove(id kv.SessionID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.all, id)
}

// touch gives a session its full time-out again.
func (t *localSessions) touch(id kv.SessionID, now int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.all[id]; s != nil {
		s.deadline = now + timeoutTicks(s.timeoutMs) + 1
	}
}

// resumption is what this member can say by itself about a session that a client wants to resume.
type resumption uint8

const (
	notHere   resumption = iota // ask the leader
	knownHere                   // it is local and the password is right; it is touched with the new time-out
	wrongHere                   // it is local, and the password is not its own; nothing was changed
	doubtful                    // it is being made global: ask the leader, and settle what it says
)

// resume looks for a session.
func (t *localSessions) resume(id kv.SessionID, password []byte, timeoutMs int32, now int64) (*localSession, resumption) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.all[id]
	switch {
	case s == nil:
		return nil, notHere
	case len(password) != wire.PasswordBytes || subtle.ConstantTimeCompare(s.password[:], password) != 1:
		return nil, wrongHere
	case s.upgrading:
		return s, doubtful
	}
	s.timeoutMs = timeoutMs
	s.deadline = now + timeoutTicks(timeoutMs) + 1
	return s, knownHere
}

// upgrade marks a session as being made global.
func (t *localSessions) upgrade(s *localSession) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.upgrading = true
}

// stillLocal settles a session in doubt whose createSession will certainly never be executed. It reports false if the
// session has gone meanwhile.
func (t *localSessions) stillLocal(s *localSession, timeoutMs int32, now int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all[s.id] != s {
		return false
	}
	s.upgrading, s.timeoutMs = false, timeoutMs
	s.deadline = now + timeoutTicks(timeoutMs) + 1
	return true
}

// restart gives every session its full time-out, after a time in which nobody could be answered.
func (t *localSessions) restart(now int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.all {
		s.deadline = now + timeoutTicks(s.timeoutMs) + 1
	}
}

// expire removes the sessions that are due and returns them, but for those whose end the leader decides by now. In
// read-only mode only sessions of that mode are judged: the clients of the others may not be let in.
func (t *localSessions) expire(now int64, mode portMode) (due []kv.SessionID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, s := range t.all {
		if s.deadline > now || mode == portReadOnly && !s.readOnly {
			continue
		}
		delete(t.all, id)
		if !s.upgrading {
			due = append(due, id)
		}
	}
	return due
}

// endReadOnly removes the sessions that were made in read-only mode.
func (t *localSessions) endReadOnly() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, s := range t.all {
		if s.readOnly {
			delete(t.all, id)
		}
	}
}

// count is the number of local sessions, for mntr.
func (t *localSessions) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.all)
}

// each calls yield with every session's id and time-out in milliseconds, without the lock held.
func (t *localSessions) each(yield func(id kv.SessionID, timeoutMs int32)) {
	t.mu.Lock()
	list := make([]localSession, 0, len(t.all))
	for _, s := range t.all {
		list = append(list, *s)
	}
	t.mu.Unlock()
	for i := range list {
		yield(list[i].id, list[i].timeoutMs)
	}
}

// createLocal answers a handshake with a new local session.
func (c *conn) createLocal(s *slot, q *wire.ConnectRequest) bool {
	l := &localSession{id: c.port.ids.new(), password: newPassword(), timeoutMs: s.timeoutMs, readOnly: c.readOnly.Load()}
	c.port.local.add(l, c.port.clock.now())
	return c.welcomeLocal(l, s, q)
}

// welcomeLocal attaches the connection to its local session and answers.
func (c *conn) welcomeLocal(l *localSession, s *slot, q *wire.ConnectRequest) bool {
	s.session, s.password = l.id, l.password
	c.local = l
	c.isLocal.Store(true)
	c.port.attach(l.id, s.timeoutMs, c)
	return c.welcome(s, q)
}

// ownLocal returns the connection's session if it is local. Only the reader calls it.
func (c *conn) ownLocal() *localSession {
	if c.local != nil && !c.isLocal.Load() {
		c.local = nil // made global by what an earlier connection of the session had sent
	}
	return c.local
}

// goGlobal puts the createSession that makes the connection's session global in front of what is batched next.
// Only the reader calls it.
func (c *conn) goGlobal(l *localSession) {
	c.port.local.upgrade(l)
	c.local = nil
	c.isLocal.Store(false)
	timeoutMs := c.timeoutMs.Load()
	c.batch = append(c.batch, &slot{
		conn: c, kind: slotUpgrade, op: wire.OpCreateSession, session: l.id, password: l.password, timeoutMs: timeoutMs,
		body: replica.AppendCreateSession(nil, timeoutMs, l.password), cost: slotOverhead,
	})
}

// upgraded ends an upgrade: its transaction is applied here, before any that follows it on the connection. The session
// may have another connection by now, which took it for local.
func (p *clientPort) upgraded(s *slot, z kv.Zxid, code kv.Code) {
	if code != kv.CodeOK {
		s.conn.close(fmt.Sprintf("session not made global: %v", code))
		return
	}
	p.local.remove(s.session)
	if c := p.sessions.get(s.session); c != nil {
		c.claim.CompareAndSwap(0, uint64(replica.BirthClaim(z)))
		c.isLocal.Store(false)
	}
}

// expireLocal ends the local sessions whose clients were silent for too long: their connections are closed without a
// packet, as those of other expired sessions are.
func (p *clientPort) expireLocal() {
	mode := p.portMode()
	if mode == portShut {
		return // nobody could be answered; all get their full time-outs when that ends
	}
	for _, id := range p.local.expire(p.clock.now(), mode) {
		p.counters.sessionsExpired.Add(1)
		if c := p.sessions.get(id); c != nil {
			c.close("")
		}
	}
}

// closeLocal takes in the closeSession of a local session: it costs no transaction, and its reply follows those of the
// requests before it.
func (c *conn) closeLocal(xid int32) bool {
	c.port.local.remove(c.sessionID())
	q := slot{kind: slotRefused, xid: xid, op: wire.OpCloseSession, code: kv.CodeOK, last: true}
	return c.enqueue(q) && c.awaitEnd()
}

// needsGlobal reports whether a write makes an ephemeral node by create or create2, alone or in a multi: the only ones
// for which a session is upgraded (zookeeper-protocol 7.2). What cannot be decoded does not; it is refused anyway.
func needsGlobal(op wire.Op, body []byte) bool {
	switch op {
	case wire.OpCreate, wire.OpCreate2, wire.OpMulti:
	default:
		return false
	}
	var q kv.Request
	if wire.DecodeRequest(op, body, &q) != nil {
		return false
	}
	for i := range q.Ops {
		if ephemeralCreate(&q.Ops[i]) {
			return true
		}
	}
	return ephemeralCreate(&q)
}

// addsData reports whether a request would add data. What cannot be read is refused elsewhere.
func addsData(op wire.Op, body []byte) bool {
	var q kv.Request
	return wire.DecodeRequest(op, body, &q) == nil && q.AddsData()
}

func ephemeralCreate(q *kv.Request) bool {
	return (q.Op == kv.OpCreate || q.Op == kv.OpCreate2) && (q.Flags == kv.FlagEphemeral || q.Flags == kv.FlagEphemeralSequential)
}
