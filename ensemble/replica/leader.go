package replica

import (
	"bytes"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"

	"kvd/kv"
	"kvd/kv/wire"
	"kvd/zab"
	"kvd/zab/quorum"
)

// arenaBytes is the size of the blocks that prepared payloads are carved from: one allocation for many small
// transactions. A block lives as long as one of its payloads does (log queue, zab's tail).
const arenaBytes = 64 << 10

// arenaSlack is what a transaction usually needs beyond its request's body. If it needs more, append moves it.
const arenaSlack = 256

// maxScratchBytes bounds what is kept to prepare large transactions in.
const maxScratchBytes = 1 << 20

// leader is what exists only while this member leads.
type leader struct {
	prep *kv.Preparer
	// broadcast: established. open: established, and everything of the initial history is applied; before
	// that the preparer would decide against a tree that lacks the newest of it.
	broadcast, open bool
	openFrom        kv.Zxid // the applied zxid that opens

	claims   uint32         // given out in this term
	sessions *sessions      // nil until first opened in this term
	due      []kv.SessionID // scratch: those whose end was just proposed
	// expiring are sessions that were overdue at the last tick, and whose end is not proposed yet. Who is heard of before it is lives on.
	expiring []kv.SessionID
	// ending are all sessions whose end is decided and not yet applied here; ended are the proposals, in order.
	ending         map[kv.SessionID]bool
	ended          ring[endOfSession]
	gap            gapState
	heard          map[quorum.MemberID]int64 // tick of the newest PING reply
	proposedLevels zab.Levels

	reaper  reaper
	remote  ring[remoteOp]
	arrived uint64 // number of the newest remoteOp that came
	ownTurn bool   // own and forwarded operations take turns
	asked   []askedValidity

	arena   []byte
	carved  int        // bytes of the arena that the newest payload takes, 0 if it has memory of its own
	scratch []byte     // large transactions are prepared here
	request kv.Request // reused by decoding
}

// gapState is the progress of the quorum round that must complete before sessions expire after a pause.
type gapState uint8

const (
	gapNone  gapState = iota
	gapAsk            // to be asked
	gapAsked          // a sync is under way
)

// endOfSession is a proposed closeSession.
type endOfSession struct {
	session kv.SessionID
	zxid    kv.Zxid
}

// remoteOp is an operation that a learner forwarded.
type remoteOp struct {
	ClientOp
	from quorum.MemberID
	link zab.LinkID
	n    uint64 // in the order of their coming
}

// askedValidity is a revalidation that the leader has yet to answer. It is asked again after a change of leader.
type askedValidity struct {
	revalidation
	from quorum.MemberID // this member itself: the link is 0
	link zab.LinkID
	// behind is the newest forwarded operation that came before it. It is answered when that is decided: what the session
	// wrote on an earlier connection is then part of the state that the client is told to wait for, or never comes.
	behind uint64
	// confirmed: a quorum has confirmed that this member led after the question came.
	confirmed bool
}

// leaderStage follows a leader through discovery, synchronization and broadcast, and through a re-epoch.
func (r *Replica) leaderStage(c zab.RoleChange) {
	if r.lead == nil {
		r.lead = &leader{prep: kv.NewPreparer(r.view, r.cfg.Preparer), ending: make(map[kv.SessionID]bool)}
		r.clients.touches = r.clients.touches[:0] // every session gets a full time-out at establishment
		clear(r.clients.touched)
	}
	l := r.lead
	l.open, l.broadcast = false, c.Stage == zab.Broadcast
	if l.broadcast {
		l.openFrom = r.zab.Status().Last
		r.openLeader()
	}
}

// openLeader begins to take operations, or resumes after a re-epoch, once the tree has caught up.
func (r *Replica) openLeader() {
	l := r.lead
	if l == nil || l.open || !l.broadcast || r.applied < l.openFrom {
		return
	}
	l.open = true
	l.prep.Reset() // the view holds everything: nothing is in flight
	if l.sessions == nil {
		l.sessions = newSessions(r.cfg.TickMs)
		l.heard = make(map[quorum.MemberID]int64)
		for _, id := range r.cfg.Members.Voters {
			l.heard[id] = r.now
		}
		r.view().Sessions(func(s kv.Session) bool {
			l.sessions.add(s.ID, s.Password, s.Timeout, 0)
			if r.cfg.Mutations.NoFullTimeout {
				n := l.sessions.get(s.ID)
				n.deadline = l.sessions.now + 2
				l.sessions.place(n)
			}
			return true
		})
	}
	r.answerAsked()
	r.clients.blocked = false
	r.refreshServing()
}

// inbound takes a payload from the other side of a link.
func (r *Replica) inbound(in *zab.Inbound) {
	rd := reader{b: in.Payload}
	rd.array()
	kind := rd.uint32()
	reason := errPayload
	switch {
	case r.lead != nil && (r.lead.remote.len() > r.learners()*r.cfg.MaxForwardedOps || len(r.lead.asked) > r.learners()*r.cfg.MaxQueuedOps):
		// Learners keep their windows; somebody does not.
		rd.bad, reason = true, errFlood
	case r.lead != nil && kind == payloadForward:
		for n := rd.uint32(); n > 0; n-- {
			op := rd.clientOp()
			if rd.bad {
				break
			}
			r.lead.arrived++
			r.lead.remote.push(remoteOp{op, in.From, in.Link, r.lead.arrived})
		}
	case r.lead != nil && kind == payloadRevalidate:
		if q := rd.revalidation(); !rd.bad {
			r.ask(askedValidity{q, in.From, in.Link, r.lead.arrived, false})
		}
	case r.lead == nil && kind == payloadValidity:
		if v := rd.validity(); !rd.bad {
			r.validated(v)
		}
	default:
		rd.bad = true
	}
	if !rd.done() {
		r.event("payload-refused", fmt.Sprintf("from=%d link=%d kind=%d reason=%q", in.From, in.Link, kind, reason))
		r.zab.LinkDown(in.From, in.Link)
		r.closing = append(r.closing, zab.CloseLink{Peer: in.From, Link: in.Link, Reason: reason.Error()})
	}
}

// learners is how many members there can be; each of them has windows.
func (r *Replica) learners() int { return len(r.cfg.Members.Voters) + len(r.cfg.Members.Observers) }

// validity decides about a resume. The leader's deadlines are the overlay: a session in flight is there, one whose end
// is in flight is not. That end may still be lost with this leader, so nobody is told of it before it is applied:
// ok is false until then.
func (r *Replica) validity(q *revalidation, from quorum.MemberID) (v Revalidated, ok bool) {
	l := r.lead
	v = Revalidated{Request: q.request, Session: q.session, Validity: Gone, Fresh: max(l.openFrom, r.zab.Status().Last)}
	s := l.sessions.get(q.session)
	if r.cfg.Mutations.ValidityFromTree && !r.applies(q.session) {
		return v, true
	}
	if s == nil {
		return v, !l.ending[q.session]
	}
	if subtle.ConstantTimeCompare(s.password[:], q.password[:]) != 1 && !r.cfg.Mutations.AnyPassword {
		v.Validity = WrongPassword
		return v, true
	}
	v.Validity, v.TimeoutMs = Valid, r.clampTimeout(q.timeoutMs)
	l.sessions.touch(q.session, v.TimeoutMs, from)
	l.claims++
	v.Claim = Claim(r.role.Epoch)<<32 | Claim(l.claims)
	l.sessions.claimed(q.session, v.Claim, from)
	return v, true
}

// applies is for a mutation: the applied tree has the session.
func (r *Replica) applies(id kv.SessionID) bool {
	_, ok := r.view().Session(id)
	return ok
}

// appliedEnds forgets the ends of sessions that the tree shows.
func (l *leader) appliedEnds(z kv.Zxid) {
	for l.ended.len() > 0 && l.ended.at(0).zxid <= z {
		delete(l.ending, l.ended.pop().session)
	}
}

// ask answers one revalidation, or keeps it until it can be answered. The others are not looked at: thousands may wait.
func (r *Replica) ask(a askedValidity) {
	if !r.lead.open || !r.answerOne(&a) {
		r.lead.asked = append(r.lead.asked, a)
	}
}

// answerOne reports false if it is too early.
func (r *Replica) answerOne(a *askedValidity) bool {
	l := r.lead
	if l.remote.len() > 0 && l.remote.at(0).n <= a.behind {
		return false
	}
	v, ok := r.validity(&a.revalidation, a.from)
	switch {
	case !ok:
		return false
	case v.Validity == Gone && !a.confirmed:
		r.confirmGone(a)
	case a.from == r.cfg.ID:
		r.validated(v)
	default:
		r.zab.SendReply(a.from, a.link, appendValidity(nil, &v))
	}
	return true
}

// confirmGone has a quorum confirm that this member still leads before a client is told that its session is gone: a leader
// that was replaced and does not know it yet has never heard of sessions that began since. All that came in one turn wait
// for the same round.
func (r *Replica) confirmGone(a *askedValidity) {
	c := &r.clients
	if n := len(c.syncs); n == 0 || c.syncs[n-1].id != 0 || c.syncs[n-1].lead != r.lead {
		c.syncs = append(c.syncs, syncGroup{since: r.now, lead: r.lead})
	}
	g := &c.syncs[len(c.syncs)-1]
	g.gone = append(g.gone, *a)
	c.blocked = false
}

// goneConfirmed answers them: a session may have begun meanwhile.
func (r *Replica) goneConfirmed(gone []askedValidity) {
	for i := range gone {
		gone[i].confirmed = true
		r.ask(gone[i])
	}
}

// answerAsked answers the revalidations that can be answered now.
func (r *Replica) answerAsked() {
	l := r.lead
	if !l.open || len(l.asked) == 0 {
		return
	}
	keep := l.asked[:0]
	for i := range l.asked {
		if a := &l.asked[i]; !r.answerOne(a) {
			keep = append(keep, *a)
		}
	}
	clear(l.asked[len(keep):])
	l.asked = keep
}

func (r *Replica) clampTimeout(ms int32) int32 {
	return min(max(ms, r.cfg.MinSessionTimeoutMs), r.cfg.MaxSessionTimeoutMs)
}

// forget drops what came on a link that ended: its origin has been told Unknown, and a later write of the same
// client, perhaps through another member, must not be overtaken by an older one.
func (l *leader) forget(link zab.LinkID) {
	l.remote.filter(func(op *remoteOp) bool { return op.link != link })
	l.asked = slices.DeleteFunc(l.asked, func(a askedValidity) bool { return a.link == link })
}

// pumpLeader proposes what waits, as far as zab has room: the ends of sessions, then by turns the own clients'
// operations and the forwarded ones, so that neither starves the other when there is little room.
func (r *Replica) pumpLeader() {
	l, c := r.lead, &r.clients
	if !r.pumpExpiring() {
		c.blocked = true
		return
	}
	for {
		// Own operations stay outstanding until they are applied here, as a learner's do there: what has a quorum and waits for a
		// slow applier is bounded like what is forwarded.
		room := c.outstanding.len() < r.cfg.MaxForwardedOps && c.outstandingBytes < r.cfg.MaxForwardedBytes
		if l.remote.len() == 0 && (c.queue.len() == 0 || !room) {
			c.blocked = c.queue.len() > 0
			break
		}
		own := c.queue.len() > 0 && room && (l.ownTurn || l.remote.len() == 0)
		l.ownTurn = !own
		if own {
			op := c.queue.at(0)
			z, ok := r.propose(r.cfg.ID, &op.ClientOp)
			if !ok {
				c.blocked = true
				return
			}
			size := op.size()
			c.outstanding.push(outstandingOp{request: op.Request, from: op.from, session: op.Session, zxid: z, bytes: size})
			c.outstandingBytes += size
			c.queuedBytes -= size
			c.queue.pop()
			continue
		}
		op := l.remote.at(0)
		if _, ok := r.propose(op.from, &op.ClientOp); !ok {
			c.blocked = true
			return
		}
		l.remote.pop()
	}
	for ; c.asked < c.questions.len(); c.asked++ {
		if q := c.questions.at(c.asked); !q.answered {
			l.asked = append(l.asked, askedValidity{revalidation: q.revalidation, from: r.cfg.ID})
		}
	}
	r.answerAsked()
}

// propose decodes, prepares and proposes one operation; false if zab has no room or no term, and then nothing has
// happened. Whatever is wrong with the operation becomes an error transaction: it keeps its place in the order,
// and its reply is as linearizable as a success.
func (r *Replica) propose(origin quorum.MemberID, op *ClientOp) (kv.Zxid, bool) {
	l := r.lead
	z := r.zab.NextZxid()
	if z == 0 {
		return 0, false // the term has just ended; the role change is in zab's next Ready
	}
	h := kv.TxnHeader{Origin: uint8(origin), Request: op.Request, Session: op.Session, Time: r.stamp(), Kind: kv.Op(op.Op)}
	code := r.decode(op, origin)
	payload := r.prepare(z, h, code, len(op.Body))
	if r.cfg.Mutations.CloseListsNodes && op.Op == OpCloseSession {
		r.view().Ephemerals(op.Session, func(path string) bool { payload = append(payload, path...); return true })
	}
	_, err := r.zab.Propose(payload)
	if errors.Is(err, zab.ErrTooLarge) {
		l.prep.Undo()
		code = kv.CodeBadArguments
		payload = r.prepare(z, h, code, 0)
		_, err = r.zab.Propose(payload)
	}
	if err != nil {
		l.prep.Undo()
		l.arena = l.arena[:len(l.arena)-l.carved]
		return 0, false
	}
	if code == kv.CodeOK {
		switch op.Op {
		case OpCreateSession:
			l.sessions.add(op.Session, l.request.Password, l.request.Timeout, origin)
			l.sessions.claimed(op.Session, BirthClaim(z), origin)
		case OpCloseSession:
			if !r.cfg.Mutations.WriteAfterClose {
				l.sessions.remove(op.Session)
			}
			l.ending[op.Session] = true
			l.ended.push(endOfSession{op.Session, z})
		}
	}
	return z, true
}

// prepare carves the payload of the next proposal from the arena. What might need more than a part of a block gets
// memory of its own and of its size: room is estimated generously, and a payload that pinned the rest of it would
// cost zab's tail a multiple of what it counts.
func (r *Replica) prepare(z kv.Zxid, h kv.TxnHeader, code kv.Code, bodyBytes int) []byte {
	l := r.lead
	if bodyBytes > arenaBytes/4 {
		l.carved = 0
		l.scratch = r.prepareInto(l.scratch[:0], z, h, code)
		payload := bytes.Clone(l.scratch)
		if cap(l.scratch) > maxScratchBytes {
			l.scratch = nil
		}
		return payload
	}
	if cap(l.arena)-len(l.arena) < bodyBytes+arenaSlack {
		l.arena = make([]byte, 0, arenaBytes)
	}
	from := len(l.arena)
	l.arena = r.prepareInto(l.arena, z, h, code)
	l.carved = len(l.arena) - from
	return l.arena[from:len(l.arena):len(l.arena)]
}

func (r *Replica) prepareInto(dst []byte, z kv.Zxid, h kv.TxnHeader, code kv.Code) []byte {
	if code != kv.CodeOK {
		return r.lead.prep.PrepareError(dst, z, h, code)
	}
	return r.lead.prep.Prepare(dst, z, h, &r.lead.request)
}

// decode fills l.request and says what is wrong with the operation, if anything is. Version, existence and
// permission are the preparer's business.
func (r *Replica) decode(op *ClientOp, origin quorum.MemberID) kv.Code {
	l := r.lead
	l.request = kv.Request{Op: kv.Op(op.Op), Session: op.Session, Auth: op.Auth}
	switch op.Op {
	case OpCreateSession:
		timeout, password, ok := decodeCreateSession(op.Body)
		if !ok {
			return kv.CodeMarshallingError
		}
		if l.sessions.get(op.Session) != nil || l.ending[op.Session] {
			return kv.CodeSystemError // the id is in use: its origin's mistake, and nothing to the session that has it
		}
		if kv.Owner(op.Session).Ephemeral() == 0 {
			return kv.CodeBadArguments
		}
		l.request.Timeout, l.request.Password = r.clampTimeout(timeout), password
		return kv.CodeOK
	case OpCloseSession:
		return kv.CodeOK // whoever asks: a second member may close what the first one served
	case int32(kv.OpDeleteContainer):
		return r.decodeReap(op, origin)
	case int32(kv.OpSetLevels):
		return r.decodeLevels(op, origin)
	}
	if op.Session == 0 {
		return kv.CodeSessionExpired // 0 is the leader itself
	}
	if !op.Local {
		s := l.sessions.get(op.Session)
		switch {
		case s == nil:
			return kv.CodeSessionExpired
		case !s.writes(origin) && !r.cfg.Mutations.KeepMoved:
			return kv.CodeSessionMoved // the client resumed it elsewhere; this is a straggler
		}
	}
	if err := wire.DecodeRequest(wire.Op(op.Op), op.Body, &l.request); err != nil {
		return kv.CodeMarshallingError
	}
	if r.zab.Full() && l.request.AddsData() {
		return kv.CodeSystemError
	}
	l.request.Session, l.request.Auth, l.request.Local = op.Session, op.Auth, op.Local
	return kv.CodeOK
}

// tickLeader moves the sessions' deadlines and decides which of them end.
func (r *Replica) tickLeader(gap bool) {
	l := r.lead
	if l.sessions == nil {
		return
	}
	// Touches come with PING replies. A leader that a quorum has not answered for longer than rounds take is as good as asleep:
	// the clients of members that its PINGs do not reach may be alive all that time, and it may still lead when they do again.
	if l.gap == gapNone && !r.cfg.Members.HasQuorum(r.heardLately) && !r.cfg.Mutations.ExpireAfterGap {
		gap = true
	}
	if gap {
		// The process slept. What clients and members sent meanwhile has been processed by now if it was here; what
		// is still on its way arrives before the answer to a question asked now (design rule 10).
		l.gap, l.sessions.held = gapAsk, !r.cfg.Mutations.ExpireAfterGap
	}
	if !l.open {
		return // a re-epoch: sessions are kept, their clocks stand still
	}
	if l.gap == gapAsk {
		l.gap = gapAsked
		r.clients.dropGaps() // a round that began before the newest pause says nothing about it
		r.clients.syncs = append(r.clients.syncs, syncGroup{since: r.now, gap: true})
	}
	r.expire()
	r.tickReaper()
}

// heardLately reports whether a member has answered one of the last two PING rounds.
func (r *Replica) heardLately(id quorum.MemberID) bool {
	return id == r.cfg.ID || r.now-r.lead.heard[id] <= int64(2*r.cfg.PingTicks+2)
}

// expire moves the sessions' clock by a tick and finds those that are overdue.
func (r *Replica) expire() {
	l := r.lead
	l.expiring = l.sessions.tick(l.expiring[:0]) // those that are left of the last tick are due again
}

// pumpExpiring proposes the ends of overdue sessions. It reports false if zab has no room.
func (r *Replica) pumpExpiring() bool {
	l, n := r.lead, 0
	l.due = l.due[:0]
	for ; n < len(l.expiring); n++ {
		id := l.expiring[n]
		if !l.sessions.overdue(id) {
			continue // closed, or heard of, since the tick
		}
		// Origin 0: no client waits for the result.
		if _, ok := r.propose(0, &ClientOp{Session: id, Op: OpCloseSession}); !ok {
			break
		}
		l.sessions.remove(id)
		l.due = append(l.due, id)
	}
	room := n == len(l.expiring)
	l.expiring = l.expiring[:copy(l.expiring, l.expiring[n:])]
	if len(l.due) > 0 {
		r.expired += uint64(len(l.due))
		r.event("session-expired", expiredText(l.due))
	}
	return room
}

// namedExpired is how many expired sessions one event names: thousands may expire in one tick.
const namedExpired = 3

// expiredText is the detail of the event about sessions that expired in one tick.
func expiredText(ids []kv.SessionID) string {
	text := fmt.Sprintf("count=%d sessions=", len(ids))
	for i, id := range ids[:min(len(ids), namedExpired)] {
		if i > 0 {
			text += ","
		}
		text += id.String()
	}
	if len(ids) > namedExpired {
		text += ",..."
	}
	return text
}

// dropGaps forgets the rounds asked for after earlier pauses, of this term or another: their answers find nothing.
func (c *clients) dropGaps() {
	c.syncs = slices.DeleteFunc(c.syncs, func(g syncGroup) bool { return g.gap })
}

// dropGone forgets the rounds of confirmGone when the term ends: whoever asked asks the next leader.
func (c *clients) dropGone() {
	c.syncs = slices.DeleteFunc(c.syncs, func(g syncGroup) bool { return g.lead != nil })
}

// gapSynced ends the waiting that a pause of this process imposed, or asks again if the round failed.
func (r *Replica) gapSynced(ok bool) {
	l := r.lead
	if l == nil || l.sessions == nil || l.gap != gapAsked {
		return
	}
	if !ok {
		l.gap = gapAsk
		return
	}
	l.gap, l.sessions.held = gapNone, false
}

// report takes what a learner said in a PING reply.
func (r *Replica) report(p *zab.PeerReport) {
	l := r.lead
	if l == nil || p.Reply == nil {
		return
	}
	if l.heard != nil {
		l.heard[p.From] = r.now
	}
	if len(p.Reply.Touched) > 0 && l.sessions != nil {
		ok := eachTouch(p.Reply.Touched, func(t touch) {
			l.sessions.heard(t, p.From)
		})
		if !ok {
			r.event("touches-refused", fmt.Sprintf("from=%d bytes=%d", p.From, len(p.Reply.Touched)))
		}
	}
	r.turns.report(p, r.now)
	r.audit.report(p)
}
