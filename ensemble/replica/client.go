package replica

import (
	"slices"

	"kvd/kv"
	"kvd/zab"
)

// connection is the order of one client connection: once an operation is lost or given up, no later one is sent.
// Operations refer to it for as long as they wait or are outstanding, whether or not Cancel has forgotten it.
type connection struct {
	broken bool // an operation was refused or reported Failed
	gone   bool // the shell said Cancel
}

// queuedOp waits for a leader.
type queuedOp struct {
	ClientOp
	from  *connection
	since int64 // tick of Submit
}

func (op *ClientOp) size() int { return len(op.Body) + len(op.Auth) + opOverhead }

// outstandingOp was proposed or forwarded and has no result yet.
type outstandingOp struct {
	request uint64
	from    *connection
	session kv.SessionID
	zxid    kv.Zxid // 0 when forwarded: only the leader knows it
	bytes   int
}

// question is a revalidation on its way. It may be asked again: nothing comes of asking twice.
type question struct {
	revalidation
	conn     uint64
	since    int64
	answered bool // out of order; it leaves when it comes to the front
}

// syncGroup is all syncs that were asked for in one turn: one confirmed point answers them all.
type syncGroup struct {
	id       uint64 // of zab.Sync; 0 while not asked
	since    int64
	requests []uint64
	gap      bool // the leader's own question after a pause, see tickLeader
	// gone are resumes of sessions that this member as lead, the leader it then was, does not know, see confirmGone.
	gone []askedValidity
	lead *leader
}

// clients is the side of the replica that faces this member's own clients.
type clients struct {
	queue            ring[queuedOp]
	queuedBytes      int
	outstanding      ring[outstandingOp]
	outstandingBytes int
	// conns are the connections that submitted something and were not cancelled.
	conns map[uint64]*connection
	// cancelled are connections whose queued operations and questions are to be dropped before anything else happens
	// to the queue.
	cancelled []uint64
	// blocked: zab or the window had no room; try again after the next input that may have made some.
	blocked bool

	// questions are in the order in which they came; the first asked of them have been put to the present leader, whose
	// answers come in that order, or nearly.
	questions ring[question]
	asked     int
	syncs     []syncGroup
	nextSync  uint64

	touches []touch
	touched map[kv.SessionID]int // index into touches
}

// Submit takes one write of a client. Unless it returns an error, exactly one of these follows: the transaction
// is applied with this origin and token, or Ready.Failed names it. After an error, and after the first Failed, every
// later Submit of the same connection is refused until the shell says Cancel.
func (r *Replica) Submit(op ClientOp) error {
	c := &r.clients
	from := c.conns[op.Conn]
	if from == nil {
		if c.conns == nil {
			c.conns = make(map[uint64]*connection)
		}
		from = &connection{}
		c.conns[op.Conn] = from
	}
	if err := r.admit(&op, from); err != nil {
		from.broken = true // the next one may find room
		return err
	}
	c.queue.push(queuedOp{op, from, r.now})
	c.queuedBytes += op.size()
	return nil
}

// admit says why an operation cannot be queued.
func (r *Replica) admit(op *ClientOp, from *connection) error {
	c, size := &r.clients, op.size()
	full := func() bool { return c.queue.len() >= r.cfg.MaxQueuedOps || c.queuedBytes+size > r.cfg.MaxQueuedBytes }
	switch {
	case r.stopping:
		return ErrStopping
	case from.broken:
		return ErrBroken
	case size > r.cfg.maxOpBytes():
		return ErrTooLarge
	case !full():
		return nil
	}
	r.dropCancelled()
	if full() {
		return ErrBusy
	}
	return nil
}

// Cancel says that a connection has ended. It comes once, after the connection's last Submit and Revalidate. What was
// not sent is dropped and reported NotSent, a question is answered NoAnswer; an operation in flight stays in flight.
func (r *Replica) Cancel(conn uint64) {
	c := &r.clients
	if from := c.conns[conn]; from != nil {
		from.gone = true
		delete(c.conns, conn)
	}
	if c.queue.len() > 0 || c.questions.len() > 0 {
		c.cancelled = append(c.cancelled, conn)
	}
}

// dropCancelled carries out all cancellations in one pass: ten thousand connections may end at once.
func (r *Replica) dropCancelled() {
	c := &r.clients
	if len(c.cancelled) == 0 {
		return
	}
	r.sweep()
	slices.Sort(c.cancelled)
	for i := range c.questions.len() {
		q := c.questions.at(i)
		if _, gone := slices.BinarySearch(c.cancelled, q.conn); gone && !q.answered {
			q.answered = true
			r.answer(Revalidated{Request: q.request, Session: q.session, Validity: NoAnswer})
		}
	}
	c.popAnswered()
	c.cancelled = c.cancelled[:0]
}

// sweep drops from the queue what is of a connection that is broken or gone.
func (r *Replica) sweep() {
	c := &r.clients
	if r.cfg.Mutations.SendBehindFailure {
		return
	}
	c.queue.filter(func(op *queuedOp) bool {
		if !op.from.broken && !op.from.gone {
			return true
		}
		r.giveUp(op)
		return false
	})
}

// giveUp reports an operation that has left the queue for nowhere.
func (r *Replica) giveUp(op *queuedOp) {
	r.clients.queuedBytes -= op.size()
	r.fail(op.Request, op.from, op.Session, NotSent)
}

// Revalidate asks the leader whether a session that a client wants to resume here is alive; answered in
// Ready.Revalidated with the same token. conn is the connection, as in ClientOp.
func (r *Replica) Revalidate(conn, request uint64, id kv.SessionID, password [16]byte, timeoutMs int32) {
	q := question{revalidation: revalidation{request: request, session: id, password: password, timeoutMs: timeoutMs}, conn: conn, since: r.now}
	if r.stopping || r.clients.questions.len() >= r.cfg.MaxQueuedOps {
		r.answer(Revalidated{Request: request, Session: id, Validity: NoAnswer})
		return
	}
	r.clients.questions.push(q)
}

// SyncRead asks for a confirmed read point, answered in Ready.Synced with ID = request: a read at an applied zxid
// not below Synced.Zxid is linearizable (S36). OK is false if no leader confirmed one in time.
func (r *Replica) SyncRead(request uint64) {
	c := &r.clients
	if n := len(c.syncs); n > 0 && c.syncs[n-1].id == 0 && c.syncs[n-1].since == r.now && !c.syncs[n-1].gap && c.syncs[n-1].lead == nil {
		c.syncs[n-1].requests = append(c.syncs[n-1].requests, request)
		return
	}
	if r.stopping || len(c.syncs) >= r.cfg.MaxQueuedOps {
		r.answerSync(request, 0, false)
		return
	}
	c.syncs = append(c.syncs, syncGroup{since: r.now, requests: []uint64{request}})
}

// Touch says that a client of this member was heard from: on the connection of that claim, with that time-out agreed.
// When a term opens here the shell says it once for every connection that has a session, whether or not it was heard
// from: so a new leader learns time-outs and owners that only the old one knew.
func (r *Replica) Touch(id kv.SessionID, timeoutMs int32, claim Claim) {
	if r.lead != nil {
		if r.lead.sessions != nil {
			r.lead.sessions.heard(touch{id, timeoutMs, claim}, r.cfg.ID)
		}
		return
	}
	c := &r.clients
	if c.touched == nil {
		c.touched = make(map[kv.SessionID]int)
	}
	if i, ok := c.touched[id]; ok {
		if claim >= c.touches[i].claim {
			c.touches[i] = touch{id, timeoutMs, claim}
		}
		return
	}
	if len(c.touches) >= maxTouches {
		return // more live clients than a process has descriptors for: the next PING makes room
	}
	c.touched[id] = len(c.touches)
	c.touches = append(c.touches, touch{id, timeoutMs, claim})
}

// maxTouches bounds the sessions that one PING reply reports: 6 MiB.
const maxTouches = 1 << 18

// takeTouches encodes what was touched since the last PING, for the reply to this one.
func (r *Replica) takeTouches() []byte {
	c := &r.clients
	if len(c.touches) == 0 {
		return nil
	}
	b := appendTouches(make([]byte, 0, 16+23*len(c.touches)), c.touches)
	c.touches = c.touches[:0]
	clear(c.touched)
	return b
}

// settle closes the books on all outstanding operations up to the one with this token. A token that is not
// outstanding (applied from the log of an earlier run, or reported Unknown before) changes nothing.
func (c *clients) settle(request uint64) {
	n := c.outstanding.len()
	if request == 0 || n == 0 || request < c.outstanding.at(0).request || request > c.outstanding.at(n-1).request {
		return
	}
	lo, hi := 0, n // first index with token >= request
	for lo < hi {
		mid := (lo + hi) / 2
		if c.outstanding.at(mid).request < request {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if c.outstanding.at(lo).request != request {
		return
	}
	for range lo + 1 {
		c.outstandingBytes -= c.outstanding.pop().bytes
	}
}

// fail reports an operation. Its connection's later ones must not overtake it: the caller sweeps the queue.
func (r *Replica) fail(request uint64, from *connection, s kv.SessionID, o Outcome) {
	from.broken = true
	out := r.out()
	out.Failed = append(out.Failed, Failed{request, s, o})
}

// endTerm reports Unknown for what was sent. What the own applier has already been handed will still get its
// result. Queued operations of a connection with an Unknown one go with it; the others wait for the next leader.
func (c *clients) endTerm(r *Replica) {
	r.dropCancelled()
	c.outstanding.filter(func(op *outstandingOp) bool {
		if op.zxid != 0 && op.zxid <= r.handed {
			return true
		}
		r.fail(op.request, op.from, op.session, Unknown)
		c.outstandingBytes -= op.bytes
		return false
	})
	r.sweep()
	c.asked = 0
	// zab ends its syncs itself (Synced.OK false), see synced.
}

func (c *clients) failOutstanding(r *Replica) {
	for c.outstanding.len() > 0 {
		op := c.outstanding.pop()
		c.outstandingBytes -= op.bytes
		r.fail(op.request, op.from, op.session, Unknown)
	}
	r.sweep()
}

func (c *clients) refuseQueued(r *Replica) {
	r.dropCancelled()
	for c.queue.len() > 0 {
		op := c.queue.pop()
		r.giveUp(&op)
	}
}

// tickClients gives up on what waited too long for a leader.
func (r *Replica) tickClients() {
	c := &r.clients
	r.dropCancelled()
	old := r.now - int64(r.cfg.QueueTicks)
	if c.queue.len() > 0 && c.queue.at(0).since < old {
		for c.queue.len() > 0 && c.queue.at(0).since < old {
			op := c.queue.pop()
			r.giveUp(&op)
		}
		r.sweep()
	}
	for c.questions.len() > 0 && c.questions.at(0).since < old {
		if q := c.questions.at(0); !q.answered {
			r.answer(Revalidated{Request: q.request, Session: q.session, Validity: NoAnswer})
		}
		c.popQuestion()
	}
	for len(c.syncs) > 0 && c.syncs[0].since < old && !c.syncs[0].gap {
		for _, q := range c.syncs[0].requests {
			r.answerSync(q, 0, false)
		}
		c.syncs = slices.Delete(c.syncs, 0, 1)
	}
}

func (c *clients) popQuestion() {
	c.questions.pop()
	c.asked = max(0, c.asked-1)
}

// validated passes the leader's answer on, if it is still awaited.
func (r *Replica) validated(v Revalidated) {
	c := &r.clients
	for i := range c.asked {
		q := c.questions.at(i)
		if q.request != v.Request || q.answered {
			continue
		}
		q.answered = true
		r.answer(v)
		break
	}
	c.popAnswered()
}

// popAnswered takes what was answered off the front.
func (c *clients) popAnswered() {
	for c.questions.len() > 0 && c.questions.at(0).answered {
		c.popQuestion()
	}
}

// resumeUnasked is a mutation.
func (r *Replica) resumeUnasked(q *revalidation) bool {
	s, ok := r.view().Session(q.session)
	if !ok || s.Password != q.password {
		return false
	}
	r.clients.asked++
	r.validated(Revalidated{Request: q.request, Session: q.session, Validity: Valid, TimeoutMs: s.Timeout})
	return true
}

func (r *Replica) answer(v Revalidated) {
	o := r.out()
	o.Revalidated = append(o.Revalidated, v)
}

func (r *Replica) answerSync(request uint64, z kv.Zxid, ok bool) {
	o := r.out()
	o.Synced = append(o.Synced, zab.Synced{ID: request, Zxid: z, OK: ok})
}

// synced takes zab's answer for one group.
func (r *Replica) synced(s zab.Synced) {
	c := &r.clients
	i := slices.IndexFunc(c.syncs, func(g syncGroup) bool { return g.id == s.ID })
	if i < 0 {
		return // timed out meanwhile
	}
	g := &c.syncs[i]
	switch {
	case g.lead != nil:
		gone, lead := g.gone, g.lead
		c.syncs = slices.Delete(c.syncs, i, i+1)
		if s.OK && lead == r.lead {
			r.goneConfirmed(gone)
		}
		return
	case g.gap:
		r.gapSynced(s.OK)
	case !s.OK && !r.stopping:
		g.id = 0 // ask the next leader
		return
	default:
		for _, q := range g.requests {
			r.answerSync(q, s.Zxid, s.OK)
		}
	}
	c.syncs = slices.Delete(c.syncs, i, i+1)
}

// open reports whether operations may leave the queue now.
func (r *Replica) open() bool {
	if r.role.Stage != zab.Broadcast {
		return false
	}
	switch r.role.Role {
	case zab.Leading:
		return r.lead != nil && r.lead.open
	case zab.Following, zab.Observing:
		return true
	}
	return false
}

func (r *Replica) canPump() bool {
	c := &r.clients
	if len(c.cancelled) > 0 {
		return true
	}
	if c.blocked || !r.open() {
		return false
	}
	if c.queue.len() > 0 || (r.lead != nil && (r.lead.remote.len() > 0 || len(r.lead.expiring) > 0)) {
		return true
	}
	return c.asked < c.questions.len() || slices.ContainsFunc(c.syncs, func(g syncGroup) bool { return g.id == 0 })
}

// pump moves what waits to where it is decided: into the leader's own pipeline or onto the link.
func (r *Replica) pump() {
	r.dropCancelled()
	if !r.canPump() {
		return
	}
	if r.lead != nil {
		r.pumpLeader()
	} else {
		r.forward()
	}
	c := &r.clients
	for i := range c.syncs {
		if c.syncs[i].id == 0 {
			c.nextSync++
			c.syncs[i].id = c.nextSync
			r.zab.Sync(c.nextSync)
		}
	}
}

// forward sends the queue's front to the leader, in batches, as far as the window allows.
func (r *Replica) forward() {
	c := &r.clients
	for c.queue.len() > 0 {
		n, bytes := 0, 0
		for n < c.queue.len() && c.outstanding.len()+n < r.cfg.MaxForwardedOps {
			size := c.queue.at(n).size()
			if c.outstandingBytes+bytes+size > r.cfg.MaxForwardedBytes && c.outstandingBytes+bytes > 0 {
				break
			}
			if n > 0 && bytes+size > r.cfg.MaxBatchBytes {
				break
			}
			n, bytes = n+1, bytes+size
		}
		if n == 0 {
			c.blocked = true
			return
		}
		b := appendForwardHeader(make([]byte, 0, bytes+32), n)
		for i := range n {
			b = appendForwardOp(b, &c.queue.at(i).ClientOp)
		}
		if !r.zab.SendRequest(b) {
			c.blocked = true
			return
		}
		for range n {
			op := c.queue.pop()
			size := op.size()
			c.queuedBytes -= size
			c.outstanding.push(outstandingOp{request: op.Request, from: op.from, session: op.Session, bytes: size})
			c.outstandingBytes += size
		}
	}
	for c.asked < c.questions.len() {
		if q := c.questions.at(c.asked); r.cfg.Mutations.ResumeUnasked && !q.answered && r.resumeUnasked(&q.revalidation) {
			return
		}
		if q := c.questions.at(c.asked); !q.answered && !r.zab.SendRequest(appendRevalidation(nil, &q.revalidation)) {
			c.blocked = true
			return
		}
		c.asked++
	}
}
