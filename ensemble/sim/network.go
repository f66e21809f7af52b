package sim

import (
	"kvd/zab"
	"kvd/zab/quorum"
)

// Message is one message on the wire, as filters and checkers see it.
type Message struct {
	From, To quorum.MemberID
	// Kind names the message: NOTIFICATION, IDENTITY, or the name of zab's struct in capitals.
	Kind string
	// Zab is nil for election messages.
	Zab     zab.Message
	payload []byte
	kind    byte // of payload
	link    *link
	files   *files  // snapshot content behind a SNAP
	touches []touch // what a PING reply says of clients
}

// link is one connection between a learner and a leader. Each side knows it by its own id. Both directions are
// FIFO; a message is delivered or lost, and if it is lost so is everything after it in that direction.
type link struct {
	chosen            *files // the snapshot that the acceptor will stream behind its SNAP
	dialler, acceptor *Member
	life              [2]uint64 // lives of dialler and acceptor when it was made
	id                [2]zab.LinkID
	pipe              [2]pipe // 0: dialler to acceptor, 1: back
	down              bool    // reset: nothing moves any more
	told              [2]bool // LinkDown was delivered to dialler, acceptor
}

// pipe is one direction of a link.
type pipe struct {
	queue   []pipeItem
	blocked bool  // the delivery event of the front found a cut or a hold and waits
	last    int64 // delivery time of the newest message
	closed  bool  // the sender closed: the receiver learns when the queue is empty
}

type pipeItem struct {
	msg Message
	at  int64
}

// reachable reports whether packets get from a to b.
func (s *Sim) reachable(a, b *Member) bool { return !s.cuts[[2]quorum.MemberID{a.ID, b.ID}] }

// Cut stops packets from a to b. Established connections do not notice by themselves.
func (s *Sim) Cut(a, b quorum.MemberID) {
	s.logf("cut %d->%d", a, b)
	s.cuts[[2]quorum.MemberID{a, b}] = true
	// A sender whose packets vanish gives up in the end, as TCP does.
	s.after(s.between(2000, 8000), nil, "tcp timeout", func() {
		if s.cuts[[2]quorum.MemberID{a, b}] {
			s.resetLinks(s.member(a), s.member(b))
			s.electionConns(s.member(a), s.member(b))
		}
	})
}

// CutBoth stops packets in both directions.
func (s *Sim) CutBoth(a, b quorum.MemberID) { s.Cut(a, b); s.Cut(b, a) }

// Isolate cuts a member off from all others.
func (s *Sim) Isolate(id quorum.MemberID) {
	for _, o := range s.members {
		if o.ID != id {
			s.CutBoth(id, o.ID)
		}
	}
}

// Heal removes all cuts. What was on its way arrives.
func (s *Sim) Heal() {
	s.logf("heal")
	clear(s.cuts)
	s.unblock()
	for i, a := range s.members {
		for _, b := range s.members[i+1:] {
			s.electionConns(a, b)
		}
	}
}

// HealPair removes the cuts between two members.
func (s *Sim) HealPair(a, b quorum.MemberID) {
	s.logf("heal %d-%d", a, b)
	delete(s.cuts, [2]quorum.MemberID{a, b})
	delete(s.cuts, [2]quorum.MemberID{b, a})
	s.unblock()
	s.electionConns(s.member(a), s.member(b))
}

// unblock lets the pipes try again whose front waited for a heal or a release.
func (s *Sim) unblock() {
	for _, l := range s.links {
		for d := range l.pipe {
			if l.pipe[d].blocked {
				l.pipe[d].blocked = false
				s.scheduleFront(l, d)
			}
		}
	}
	for _, m := range s.members {
		m.stale = 0 // however short the heal, something may have got through
	}
	held := s.held
	s.held = nil
	for _, m := range held {
		s.sendElection(m)
	}
}

// Hold keeps matching messages from being delivered until Release; those behind them on a link wait too.
// It returns the rule's number.
func (s *Sim) Hold(match func(*Message) bool) int {
	s.rules = append(s.rules, rule{match: match, id: len(s.rules) + 1})
	return len(s.rules)
}

// Drop loses matching messages: an election message vanishes, a message on a link takes the link with it.
func (s *Sim) Drop(match func(*Message) bool) int {
	s.rules = append(s.rules, rule{match: match, id: len(s.rules) + 1, drop: true})
	return len(s.rules)
}

// Lose makes matching messages vanish from the middle of a link without breaking it, which no TCP connection does. It
// exists for the mutation that accepts holes.
func (s *Sim) Lose(match func(*Message) bool) int {
	s.rules = append(s.rules, rule{match: match, id: len(s.rules) + 1, lose: true})
	return len(s.rules)
}

// Release ends a rule of Hold, Drop or Lose.
func (s *Sim) Release(id int) {
	s.rules[id-1].match = nil
	s.unblock()
}

type rule struct {
	match      func(*Message) bool
	id         int
	drop, lose bool
}

func (s *Sim) ruleFor(m *Message) *rule {
	for i := range s.rules {
		if r := &s.rules[i]; r.match != nil && r.match(m) {
			return r
		}
	}
	return nil
}

// delay is how long a message takes.
func (s *Sim) delay() int64 {
	if s.calm {
		return 1
	}
	switch r := s.rng.IntN(64); {
	case r == 0:
		return s.between(20, 200)
	case r < 8:
		return s.between(4, 20)
	}
	return s.between(0, 4)
}

// sendElection puts an election payload on the wire: it may be lost, doubled or overtaken.
func (s *Sim) sendElection(m Message) {
	if !s.exists(m.To) {
		return
	}
	from, to := s.member(m.From), s.member(m.To)
	if !from.Up || !to.Up || !s.reachable(from, to) || !s.reachable(to, from) {
		return
	}
	if r := s.ruleFor(&m); r != nil {
		if !r.drop && !r.lose {
			s.held = append(s.held, m)
		}
		return
	}
	n := 1
	if !s.calm && s.opt.ElectionLoss > 0 {
		if s.rng.IntN(s.opt.ElectionLoss) == 0 {
			n = 0
		} else if s.rng.IntN(s.opt.ElectionLoss) == 0 {
			n = 2
		}
	}
	for range n {
		s.after(s.delay(), to, "election message", func() {
			if !s.reachable(from, to) {
				return
			}
			s.received(&m)
			to.rep.ElectionMessage(m.From, m.kind, m.payload)
		})
	}
}

// electionConns tells both members, in a little while, whether their election connection works.
func (s *Sim) electionConns(a, b *Member) {
	for _, p := range [2][2]*Member{{a, b}, {b, a}} {
		x, y := p[0], p[1]
		if !x.Up {
			continue
		}
		s.after(s.delay(), x, "election connection", func() {
			if y.Up && s.reachable(x, y) && s.reachable(y, x) {
				x.rep.ElectionUp(y.ID)
			} else {
				x.rep.ElectionDown(y.ID)
			}
		})
	}
}

// dial connects a learner to its leader, or fails after a while.
func (s *Sim) dial(from *Member, to quorum.MemberID, attempt uint64) {
	from.dialling = attempt
	if !s.exists(to) {
		s.after(1, from, "dial failed", func() { from.rep.ConnectFailed(attempt) })
		return
	}
	leader := s.member(to)
	s.after(2*s.delay()+1, from, "dial", func() {
		if from.dialling != attempt {
			return
		}
		if !leader.Up || leader.paused || !s.reachable(from, leader) || !s.reachable(leader, from) {
			wait := s.between(1, 10)
			if leader.Up {
				wait = s.between(200, 1500) // swallowed, not refused
			}
			s.after(wait, from, "dial failed", func() {
				if from.dialling == attempt {
					from.rep.ConnectFailed(attempt)
				}
			})
			return
		}
		s.nextLink += 2
		l := &link{dialler: from, acceptor: leader, life: [2]uint64{from.life, leader.life}, id: [2]zab.LinkID{zab.LinkID(s.nextLink), zab.LinkID(s.nextLink + 1)}}
		s.links = append(s.links, l)
		s.logf("link %d-%d up %d/%d", from.ID, leader.ID, l.id[0], l.id[1])
		from.links[l.id[0]] = l
		leader.links[l.id[1]] = l
		d := s.delay()
		s.after(d, leader, "link up", func() {
			if !l.down {
				leader.rep.LinkUp(from.ID, l.id[1], false)
			}
		})
		l.pipe[0].last = s.now + d // nothing arrives before the acceptor knows the link
		from.rep.LinkUp(leader.ID, l.id[0], true)
	})
}

// side returns 0 if m dialled l, 1 if it accepted it.
func (l *link) side(m *Member) int {
	if m == l.dialler {
		return 0
	}
	return 1
}

func (l *link) end(side int) *Member {
	if side == 0 {
		return l.dialler
	}
	return l.acceptor
}

// sendLink queues a message on a link, unless the link is gone.
func (s *Sim) sendLink(l *link, side int, m Message) {
	p := &l.pipe[side]
	if l.down || p.closed {
		return
	}
	m.link = l
	at := max(p.last, s.now+s.delay())
	p.last = at
	p.queue = append(p.queue, pipeItem{m, at})
	if len(p.queue) == 1 && !p.blocked {
		s.scheduleFront(l, side)
	}
}

// scheduleFront delivers the front of a pipe when its time has come.
func (s *Sim) scheduleFront(l *link, side int) {
	p := &l.pipe[side]
	if len(p.queue) == 0 {
		if p.closed {
			s.tellDown(l, 1-side)
		}
		return
	}
	to := l.end(1 - side)
	s.afterLife(p.queue[0].at-s.now, to, l.life[1-side], "link message", func() { s.deliver(l, side) })
}

func (s *Sim) deliver(l *link, side int) {
	p := &l.pipe[side]
	if l.told[1-side] || len(p.queue) == 0 {
		return
	}
	from, to := l.end(side), l.end(1-side)
	m := &p.queue[0].msg
	r := s.ruleFor(m)
	if !s.reachable(from, to) || (r != nil && !r.drop && !r.lose) {
		p.blocked = true
		return
	}
	if r != nil && r.drop {
		s.reset(l)
		return
	}
	msg := *m
	if to.role.Role != zab.Leading || s.now-p.queue[0].at > 100 {
		to.stale = 0 // perhaps held back by a cut that has ended meanwhile: a late sign of life, but one
	}
	p.queue = p.queue[1:]
	if r == nil {
		s.received(&msg)
		s.logf("%d<-%d %s", to.ID, from.ID, msg.Kind)
		if msg.files != nil {
			to.receiveSnapshot(l, side, msg.files)
		} else {
			to.reach(to, msg.touches)
			to.rep.PeerMessage(from.ID, l.id[1-side], msg.Zab)
		}
	}
	s.scheduleFront(l, side)
}

// closeLink closes one side's end: what it sent before still arrives, what was on its way to it is lost.
func (s *Sim) closeLink(l *link, side int) {
	p := &l.pipe[side]
	if l.down || p.closed {
		return
	}
	p.closed = true
	l.told[side] = true
	delete(l.end(side).links, l.id[side])
	l.pipe[1-side].queue = nil
	l.pipe[1-side].closed = true
	if len(p.queue) == 0 && !p.blocked {
		s.tellDown(l, 1-side)
	}
}

// tellDown reports the end of a link to one side.
func (s *Sim) tellDown(l *link, side int) {
	if l.told[side] {
		return
	}
	m, wait := l.end(side), s.delay()
	if !s.reachable(l.end(1-side), m) {
		wait += 8000 // the reset is lost too; the next retransmission finds out
	}
	s.afterLife(wait, m, l.life[side], "link down", func() {
		if l.told[side] {
			return
		}
		l.told[side] = true
		l.down = l.told[1-side]
		delete(m.links, l.id[side])
		m.unshut = true
		peer := l.end(1 - side)
		s.logf("link %d-%d down at %d", m.ID, peer.ID, m.ID)
		m.rep.LinkDown(peer.ID, l.id[side])
	})
}

// reset breaks a link: everything on its way is lost, both sides learn at their own time.
func (s *Sim) reset(l *link) {
	if l.down {
		return
	}
	l.down = true
	for d := range l.pipe {
		l.pipe[d].queue = nil
		l.pipe[d].closed = true
	}
	s.tellDown(l, 0)
	s.tellDown(l, 1)
}

// resetLinks breaks all links between two members.
func (s *Sim) resetLinks(a, b *Member) {
	for _, l := range s.links {
		if (l.dialler == a && l.acceptor == b) || (l.dialler == b && l.acceptor == a) {
			s.reset(l)
		}
	}
}

// DropLinks breaks all links between two members, as a reset connection does.
func (s *Sim) DropLinks(a, b quorum.MemberID) {
	s.logf("drop links %d-%d", a, b)
	s.resetLinks(s.member(a), s.member(b))
}

// dropDead forgets links that both sides know to be down.
func (s *Sim) dropDead() {
	live := s.links[:0]
	for _, l := range s.links {
		gone := true
		for side := range 2 {
			m := l.end(side)
			gone = gone && (l.told[side] || m.life != l.life[side] || !m.Up)
		}
		if !gone {
			live = append(live, l)
		}
	}
	clear(s.links[len(live):])
	s.links = live
}
