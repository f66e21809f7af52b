package sim

import (
	"fmt"
	"strings"

	"kvd/ensemble/replica"
	"kvd/kv"
	"kvd/kv/wire"
	"kvd/zab"
)

// Outcome is what a client knows about an operation of its own.
type Outcome uint8

// The outcomes.
const (
	Pending Outcome = iota
	OK              // answered; Code may be an error that the transaction decided
	Unknown         // sent, no answer
	NotSent         // refused before it was sent: never executed
)

// Op is one operation of a client.
type Op struct {
	Client  *Client
	Token   uint64
	Request kv.Request
	Outcome Outcome
	// Code, Path, Version and Zxid are the answer.
	Code    kv.Code
	Path    string
	Version int32
	Zxid    kv.Zxid
	Results []opAnswer // of a multi
	// floor is the newest zxid that had been answered OK to anybody when the operation began.
	floor kv.Zxid
	since int64
	// conn is the connection it was sent on, place its number among the operations of that connection.
	conn, place uint64
	never       bool // the replica said NotSent, though the client may have left before
}

// clientState is where a client stands.
type clientState uint8

const (
	away     clientState = iota // no connection
	opening                     // createSession under way
	resuming                    // revalidation under way
	ready
)

// Client is one client with one session at a time and a connection to one member at a time.
type Client struct {
	sim        *Sim
	ID         int
	state      clientState
	member     *Member
	conn       uint64 // unique in the simulation
	sent       uint64 // operations on it
	session    kv.SessionID
	password   [16]byte
	auth       kv.Credentials
	local      bool // the session is its member's alone
	locals     bool // sessions begin local
	upgrade    *Op  // made the session global
	timeoutMs  int32
	lastZxid   kv.Zxid // greatest ever seen (C2)
	waitFor    kv.Zxid // resuming: the member must have applied this first
	claim      replica.Claim
	awaiting   uint64 // token of the revalidation
	pending    []*Op
	askedEnded bool // when it asked to resume its session, its end was committed
	moved      bool // the session was resumed somewhere: stragglers may be told "moved"
	quiet      bool // makes no operations of its own (scripts drive it)
	stopped    bool
	asked      kv.SessionID // scripts: the first one that it asked for
	ops        []*Op
	reads      int

	// Watches survive the connection, the mailbox does not.
	watches  []watch
	box      *mailbox
	followed int // changes of G that it has been told of, as far as its watches go
}

// sessionMs is the time-out of simulated sessions.
const sessionMs = 3000

func (s *Sim) addClient() *Client {
	c := &Client{sim: s, ID: len(s.clients) + 1, timeoutMs: int32(s.between(300, sessionMs)), locals: s.opt.LocalSessions}
	if c.ID%2 == 0 {
		c.auth = kv.Credentials("").With(guard)
	}
	s.clients = append(s.clients, c)
	s.after(s.between(1, 300), nil, "client", c.act)
	return c
}

// port is a member's client port: who is connected, and who waits for what. It is lost in a crash.
type port struct {
	m *Member
	// intake holds what clients sent, in order, until the loop's next turn: as in production it goes to the replica
	// behind whatever else the loop has been told by then, the loss of a link for instance.
	intake   []func()
	used     map[uint64]bool // connections that put something into it and have not ended
	conns    map[kv.SessionID]*Client
	ops      map[uint64]*Op
	syncs    map[uint64]*syncRead
	ripe     []*syncRead // confirmed, wait for the tree
	resuming map[uint64]*Client
	// intruders are questions with a wrong password: token and connection.
	intruders map[uint64]uint64
	results   []result
}

type syncRead struct {
	c     *Client
	conn  uint64
	floor kv.Zxid
	at    kv.Zxid
	done  func(v *kv.View, ok bool)
}

type result struct {
	token uint64
	zxid  kv.Zxid
	code  kv.Code
	path  string
	vers  int32
	ops   []opAnswer
}

func (p *port) start(m *Member) {
	*p = port{m: m, used: map[uint64]bool{}, conns: map[kv.SessionID]*Client{}, ops: map[uint64]*Op{}, syncs: map[uint64]*syncRead{}, resuming: map[uint64]*Client{}, intruders: map[uint64]uint64{}}
}

// token returns the next token: unique over all runs of all members, growing within one.
func (s *Sim) token() uint64 { s.tokens++; return s.tokens }

// drain hands the replica what has gathered.
func (p *port) drain() {
	for len(p.intake) > 0 { // a refusal ends a connection, whose end is one more
		do := p.intake[0]
		p.intake = p.intake[1:]
		do()
	}
}

// put lets a client's request wait for the loop's turn.
func (p *port) put(conn uint64, do func()) {
	p.used[conn] = true
	p.intake = append(p.intake, do)
}

// end follows everything that came on the connection, once, if anything did.
func (p *port) end(conn uint64) {
	if p.used[conn] {
		delete(p.used, conn)
		p.intake = append(p.intake, func() { p.m.rep.Cancel(conn) })
	}
}

// turn wakes the loop of a member for what is in its intake: at once in a directed scenario.
func (m *Member) turn() {
	if m.sim.calm {
		m.run()
		return
	}
	m.sim.after(m.sim.between(0, 3), m, "intake", func() {})
}

// act is what a client does from time to time.
func (c *Client) act() {
	s := c.sim
	if c.stopped {
		return
	}
	s.after(s.between(5, s.opt.think()), nil, "client", c.act)
	if c.member != nil && (!c.member.Up || c.member.port.conns[c.session] != c) {
		c.hangUp()
	}
	for _, op := range c.pending {
		if s.now-op.since > 5000 {
			c.hangUp()
			break
		}
	}
	switch c.state {
	case away:
		if !c.quiet || c.session == 0 {
			c.connect()
		}
	case ready:
		if c.member.paused {
			return
		}
		if !c.local {
			c.member.touched(c)
			c.member.rep.Touch(c.session, c.timeoutMs, c.claim)
		}
		if c.quiet {
			return
		}
		c.chance()
	}
	if m := c.member; m != nil && m.Up && !m.paused {
		m.turn()
	}
}

// chance makes a random operation.
func (c *Client) chance() {
	s := c.sim
	if s.wrng != nil && s.wrng.IntN(4) == 0 {
		c.watchSomething()
	}
	switch r := s.rng.IntN(100); {
	case r < 3:
		s.logf("client %d hangs up", c.ID)
		c.hangUp()
		return
	case r < 4 && c.local: // costs no transaction
		c.hangUp()
		c.session = 0
		return
	case r < 4:
		c.submit(kv.Request{Op: kv.OpCloseSession})
		return
	case r < 5:
		s.intrude()
		return
	case r < 10:
		c.syncRead(nil)
		return
	case r < 20:
		c.read()
		return
	}
	for range 1 + s.rng.IntN(3) {
		if c.state == ready && len(c.pending) < 4 {
			q := c.randomWrite()
			if s.wrng != nil && !c.local && q.Op != kv.OpSetACL && s.wrng.IntN(5) == 0 {
				q = c.bundle(q)
			}
			if c.local && c.ID%3 != 0 && (q.Flags == kv.FlagEphemeral || q.Flags == kv.FlagEphemeralSequential) {
				c.goGlobal()
			}
			c.submit(q)
		}
	}
}

func (c *Client) randomWrite() kv.Request {
	s := c.sim
	path := fmt.Sprintf("/n%d", s.rng.IntN(12))
	data := []byte(fmt.Sprintf("c%d-%d", c.ID, s.tokens))
	if s.rng.IntN(4) == 0 {
		return c.specialWrite(data)
	}
	switch r := s.rng.IntN(100); {
	case r < 35:
		return kv.Request{Op: kv.OpSetData, Path: path, Data: data, Version: -1}
	case r < 45:
		return kv.Request{Op: kv.OpSetData, Path: path, Data: data, Version: int32(s.rng.IntN(4))}
	case r < 65:
		return kv.Request{Op: kv.OpCreate, Path: path, Data: data, ACL: kv.OpenACL(), Flags: kv.FlagPersistent}
	case r < 75:
		return kv.Request{Op: kv.OpCreate, Path: path, Data: data, ACL: kv.OpenACL(), Flags: kv.FlagEphemeral}
	case r < 85:
		return kv.Request{Op: kv.OpCreate, Path: "/q-", Data: data, ACL: kv.OpenACL(), Flags: kv.FlagEphemeralSequential}
	}
	return kv.Request{Op: kv.OpDelete, Path: path, Version: -1}
}

// guard is the identity that half of the clients have.
var guard = kv.Identity{Scheme: "digest", ID: "guard:4UT1JJh8+p1tTeHXBV7ppFEdkBY="}

// specialWrite is about containers, nodes with a time to live and nodes that only some clients may change.
func (c *Client) specialWrite(data []byte) kv.Request {
	s := c.sim
	box, ttl, safe := fmt.Sprintf("/box%d", s.rng.IntN(3)), fmt.Sprintf("/ttl%d", s.rng.IntN(3)), fmt.Sprintf("/safe%d", s.rng.IntN(2))
	child := fmt.Sprintf("%s/%d", box, s.rng.IntN(2))
	list := kv.OpenACL()
	if s.rng.IntN(2) == 0 {
		list = []kv.ACL{{Perms: kv.PermAll, Scheme: guard.Scheme, ID: guard.ID}, {Perms: kv.PermRead, Scheme: "world", ID: "anyone"}}
	}
	switch s.rng.IntN(12) {
	case 0, 1:
		return kv.Request{Op: kv.OpCreateContainer, Path: box, Data: data, ACL: kv.OpenACL(), Flags: kv.FlagContainer, TTL: -1}
	case 2, 3:
		return kv.Request{Op: kv.OpCreate, Path: child, Data: data, ACL: kv.OpenACL(), Flags: kv.FlagPersistent}
	case 4, 5:
		return kv.Request{Op: kv.OpDelete, Path: child, Version: -1}
	case 6:
		return kv.Request{Op: kv.OpCreateTTL, Path: ttl, Data: data, ACL: kv.OpenACL(), Flags: kv.FlagTTL, TTL: s.between(50, 1500)}
	case 7, 8:
		return kv.Request{Op: kv.OpSetData, Path: ttl, Data: data, Version: -1}
	case 9:
		return kv.Request{Op: kv.OpCreate, Path: safe, Data: data, ACL: list, Flags: kv.FlagPersistent}
	case 10:
		return kv.Request{Op: kv.OpSetACL, Path: safe, ACL: list, Version: -1}
	}
	return kv.Request{Op: kv.OpSetData, Path: safe, Data: data, Version: -1}
}

// goGlobal makes the client's local session global: the createSession goes in front of what needs it.
func (c *Client) goGlobal() {
	c.local = false
	c.upgrade = c.submit(kv.Request{Op: kv.OpCreateSession, Timeout: c.timeoutMs, Password: c.password})
}

// connect chooses a member that takes clients and opens or resumes a session there.
func (c *Client) connect() {
	s := c.sim
	var open []*Member
	for _, m := range s.members {
		if m.Up && !m.paused && m.serving.Open && m.ready() {
			open = append(open, m)
		}
	}
	if len(open) == 0 {
		return
	}
	c.connectTo(open[s.rng.IntN(len(open))])
}

func (c *Client) connectTo(m *Member) {
	s := c.sim
	if m.tree.View().Zxid() < c.lastZxid {
		return // the member is behind what this client has seen: it refuses (C2)
	}
	s.conns++
	c.member, c.conn, c.sent, c.waitFor = m, s.conns, 0, 0
	s.logf("client %d connects to %d, connection %d, session %v", c.ID, m.ID, c.conn, c.session)
	if c.session == 0 {
		s.lives++
		c.session = kv.SessionID(uint64(m.ID)<<56 | s.lives)
		c.password = [16]byte{byte(c.ID), byte(s.lives), byte(s.lives >> 8)}
		c.watches, c.upgrade = nil, nil
		c.state, c.moved = opening, false
		m.port.conns[c.session] = c
		if c.local = c.locals; c.local {
			c.state = ready
			return
		}
		c.submit(kv.Request{Op: kv.OpCreateSession, Timeout: c.timeoutMs, Password: c.password})
	} else {
		c.state, c.moved = resuming, true
		c.askedEnded = s.ghost.model.closed[c.session]
		c.awaiting = s.token()
		m.port.conns[c.session] = c
		m.port.resuming[c.awaiting] = c
		conn, awaiting, session := c.conn, c.awaiting, c.session
		m.port.put(conn, func() { m.rep.Revalidate(conn, awaiting, session, c.password, c.timeoutMs) })
	}
	m.turn()
}

// hangUp ends the connection: what was sent is unknown.
func (c *Client) hangUp() {
	if m := c.member; m != nil {
		delete(m.port.resuming, c.awaiting)
		if m.port.conns[c.session] == c {
			delete(m.port.conns, c.session)
		}
		m.port.end(c.conn)
	}
	c.unwatch()
	opening := c.state == opening
	c.member, c.state = nil, away
	for _, op := range c.pending {
		c.finish(op, Unknown)
	}
	c.pending = c.pending[:0]
	if opening || c.local {
		c.session = 0 // whether it exists is unknown; it will expire if it does
	}
}

func (c *Client) finish(op *Op, o Outcome) {
	op.Outcome = o
	c.sim.done++
}

// submit sends a write to the client's member.
func (c *Client) submit(q kv.Request) *Op {
	s, m := c.sim, c.member
	q.Session, q.Auth, q.Local = c.session, c.auth, c.local
	c.sent++
	op := &Op{Client: c, Token: s.token(), Request: q, floor: s.ghost.okZxid, since: s.now, conn: c.conn, place: c.sent}
	s.ghost.ops[op.Token] = op
	c.ops = append(c.ops, op)
	var body []byte
	switch q.Op {
	case kv.OpCreateSession:
		body = replica.AppendCreateSession(nil, q.Timeout, q.Password)
	case kv.OpCloseSession:
	default:
		body = wire.AppendRequest(nil, &q)
	}
	m.port.ops[op.Token] = op
	c.pending = append(c.pending, op)
	if s.opt.Trace {
		s.logf("client %d at %d: %d %v %s", c.ID, m.ID, op.Token, q.Op, q.Path)
	}
	m.port.put(op.conn, func() {
		err := m.rep.Submit(replica.ClientOp{Request: op.Token, Conn: op.conn, Session: q.Session, Op: int32(q.Op), Body: body, Auth: q.Auth, Local: q.Local})
		if err != nil {
			m.port.failed(replica.Failed{Request: op.Token, Session: q.Session, Outcome: replica.NotSent})
		}
	})
	return op
}

// read answers from the member's tree at once.
func (c *Client) read() {
	m := c.member
	if !m.ready() {
		return
	}
	c.saw(m, m.tree.View().Zxid(), "read")
	c.reads++
}

// saw is C2: what a client sees never goes back.
func (c *Client) saw(m *Member, z kv.Zxid, what string) {
	c.sim.ghost.serves(m)
	if z < c.lastZxid {
		c.sim.fail("C2", "client %d: %s at member %d shows %v after %v", c.ID, what, m.ID, z, c.lastZxid)
	}
	c.lastZxid = z
	c.follow(z)
}

// syncRead reads what is at least as new as everything that was answered before it began (C3).
func (c *Client) syncRead(done func(v *kv.View, ok bool)) {
	m, s := c.member, c.sim
	t := s.token()
	m.port.syncs[t] = &syncRead{c: c, conn: c.conn, floor: s.ghost.okZxid, done: done}
	m.rep.SyncRead(t)
}

// ready reports whether a member may answer reads.
func (m *Member) ready() bool { return m.serving.Open && m.tree.View().Zxid() >= m.serving.Since }

func (p *port) closeAll() {
	for _, c := range p.m.sim.clients {
		if c.member == p.m {
			c.hangUp()
		}
	}
	p.failSyncs()
}

func (p *port) failSyncs() {
	for _, y := range p.ripe {
		if y.done != nil {
			y.done(nil, false)
		}
	}
	p.ripe = nil
}

// servingChanged closes the connections when there is nobody to serve them.
func (p *port) servingChanged() {
	if !p.m.serving.Open {
		for _, c := range p.m.sim.clients {
			if c.member == p.m && len(c.pending) > 0 && p.m.sim.rng.IntN(2) == 0 {
				c.hangUp()
			}
		}
	}
}

// failed: the replica gave up on an operation.
func (p *port) failed(f replica.Failed) {
	op := p.ops[f.Request]
	delete(p.ops, f.Request)
	if op != nil && f.Outcome == replica.NotSent {
		op.never = true
	}
	if op == nil || op.Outcome != Pending {
		return
	}
	c := op.Client
	if f.Outcome == replica.NotSent {
		for i, o := range c.pending {
			if o == op {
				c.pending = append(c.pending[:i], c.pending[i+1:]...)
				break
			}
		}
		c.finish(op, NotSent)
	}
	c.hangUp()
}

func (p *port) revalidated(v replica.Revalidated) {
	if conn, ok := p.intruders[v.Request]; ok {
		delete(p.intruders, v.Request)
		p.end(conn)
		if v.Validity == replica.Valid {
			p.m.sim.fail("C4", "member %d lets session %v be resumed with a wrong password", p.m.ID, v.Session)
		}
		return
	}
	c := p.resuming[v.Request]
	delete(p.resuming, v.Request)
	if c == nil || c.state != resuming || c.awaiting != v.Request || c.member != p.m {
		return
	}
	p.m.sim.logf("client %d: session %v is %d", c.ID, v.Session, v.Validity)
	switch v.Validity {
	case replica.Valid:
		if p.endedBefore(c) {
			p.m.sim.fail("C4", "client %d: member %d says that session %v lives, its end was committed before the question", c.ID, p.m.ID, v.Session)
		}
		c.waitFor, c.claim = v.Fresh, v.Claim
		p.applied()
	case replica.Gone:
		p.m.sim.ghost.gone(c)
		c.hangUp()
		c.session = 0
	default:
		if v.Validity == replica.WrongPassword {
			p.m.sim.fail("C4", "client %d: its session %v does not know its password", c.ID, v.Session)
		}
		c.hangUp()
	}
}

// applied lets those go on that waited for the tree.
func (p *port) applied() {
	z := p.m.tree.View().Zxid()
	for _, r := range p.results {
		p.answer(r)
	}
	p.results = p.results[:0]
	p.deliver()
	for _, c := range p.m.sim.clients {
		if c.member == p.m && c.state == resuming && c.waitFor != 0 && z >= max(c.waitFor, c.lastZxid) && p.m.ready() {
			c.state, c.waitFor = ready, 0
			c.rearm()
		}
	}
	keep := p.ripe[:0]
	for _, y := range p.ripe {
		if z < y.at {
			keep = append(keep, y)
			continue
		}
		p.answerSync(y)
	}
	p.ripe = keep
}

func (p *port) synced(y zab.Synced) {
	q := p.syncs[y.ID]
	delete(p.syncs, y.ID)
	if q == nil {
		return
	}
	if !y.OK {
		if q.done != nil {
			q.done(nil, false)
		}
		return
	}
	q.at = y.Zxid
	if p.m.tree.View().Zxid() >= q.at {
		p.answerSync(q)
		return
	}
	p.ripe = append(p.ripe, q)
}

func (p *port) answerSync(q *syncRead) {
	if q.c.member != p.m || q.c.conn != q.conn || !p.m.serving.Open {
		if q.done != nil {
			q.done(nil, false)
		}
		return
	}
	v := p.m.tree.View()
	if v.Zxid() < q.floor {
		p.m.sim.fail("C3", "client %d: a read after sync at member %d shows %v, %v had been answered before", q.c.ID, p.m.ID, v.Zxid(), q.floor)
	}
	q.c.saw(p.m, v.Zxid(), "sync read")
	if q.done != nil {
		q.done(v, true)
	}
}

// answer gives a result to the client that waits for it on this member.
func (p *port) answer(r result) {
	s := p.m.sim
	op := p.ops[r.token]
	delete(p.ops, r.token)
	if op == nil || op.Outcome != Pending || op.Client.member != p.m {
		return
	}
	c := op.Client
	if !p.m.serving.Open {
		c.hangUp() // committed, but nobody is answered without an established leader (P15)
		return
	}
	if len(c.pending) == 0 || c.pending[0] != op {
		s.fail("C2", "client %d: token %d is answered out of order", c.ID, r.token)
		return
	}
	c.pending = c.pending[1:]
	op.Code, op.Path, op.Version, op.Zxid, op.Results = r.code, r.path, r.vers, r.zxid, r.ops
	c.finish(op, OK)
	if r.zxid <= op.floor {
		s.fail("C1", "token %d is answered with %v; %v had been answered before it began", r.token, r.zxid, op.floor)
	}
	s.ghost.okZxid = max(s.ghost.okZxid, r.zxid)
	s.ghost.answered(op)
	c.saw(p.m, r.zxid, "write")
	switch {
	case op.Request.Op == kv.OpCreateSession && r.code == kv.CodeOK:
		c.state, c.claim = ready, replica.BirthClaim(r.zxid)
	case op.Request.Op == kv.OpCloseSession && r.code == kv.CodeOK, r.code == kv.CodeSessionExpired:
		c.hangUp()
		c.session = 0
	case r.code == kv.CodeSessionMoved:
		c.hangUp()
	}
}

// Begin implements kv.Sink.
func (p *port) Begin(_ kv.Zxid, h *kv.TxnHeader) (want, wantView bool) {
	return h.Origin == uint8(p.m.ID) && h.Request != 0, false
}

// Done implements kv.Sink.
func (p *port) Done(z kv.Zxid, h *kv.TxnHeader, r *kv.Result, _ *kv.View) {
	res := result{h.Request, z, r.Code, strings.Clone(r.Path), r.Stat.Version, nil}
	for _, o := range r.Ops {
		res.ops = append(res.ops, opAnswer{o.Code, strings.Clone(o.Path), o.Stat.Version})
	}
	p.results = append(p.results, res)
}

// applyBatch applies entries to the tree, and returns the newest own token among them.
func (p *port) applyBatch(batch []kv.Entry) (token uint64) {
	m, s := p.m, p.m.sim
	for i := range batch {
		s.ghost.appliedEntry(m, &batch[i])
	}
	if s.failure != nil {
		return 0
	}
	n := len(p.results)
	if err := m.tree.Apply(batch, p); err != nil {
		s.fail("stop", "member %d cannot apply (%v..%v): %v", m.ID, batch[0].Zxid, batch[len(batch)-1].Zxid, err)
		return 0
	}
	s.ghost.appliedView(m, m.tree.View())
	if len(p.results) > n {
		token = p.results[len(p.results)-1].token
	}
	return token
}

// think is the longest time in ms between two acts of a client.
func (o *Options) think() int64 {
	if o.ThinkMs == 0 {
		return 60
	}
	return int64(o.ThinkMs)
}
