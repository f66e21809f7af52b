package sim

import (
	"fmt"
	"sort"

	"kvd/kv"
	"kvd/zab"
	"kvd/zab/quorum"
)

// ghost is what an all-seeing observer remembers: the state that the properties of zab-rules d speak of. Members know
// nothing of it. Each property is checked where something that it speaks of changes, which after every step is
// the same as checking all of them, only faster.
type ghost struct {
	sim *Sim
	// g is G: what leaders have declared committed, in order. pos is the index of a zxid in it.
	g   []committed
	pos map[kv.Zxid]int
	// proposed are all entries that established leaders handed out, for ever.
	proposed map[kv.Zxid]proposal
	// chains has the digest chain of every entry that any log ever held (P5, over all of time: an epoch has one
	// established leader, so a zxid has one history).
	chains map[kv.Zxid]uint64
	est    map[kv.Epoch]established
	epochs []kv.Epoch // established, in the order in which it happened
	// promises are the counted epoch acks (P2).
	promises map[promiseKey]zab.Incarnation
	attempts map[zab.Incarnation]quorum.MemberID // whose attempt to lead it is
	// followed is what A(m) is compared with, without G (P18): each applied zxid's predecessor and chain.
	followed map[kv.Zxid]step
	digests  map[kv.Zxid]uint64
	members  []ghostMember // by id-1
	model    model
	sessions ghostSessions
	// okZxid is the newest zxid of a write answered OK: a later write must get a greater one (C1), a sync read a
	// view at least as new (C3).
	okZxid kv.Zxid
	ops    map[uint64]*Op // by token
	inG    map[uint64]kv.Zxid
	order  map[uint64]*executed // by connection
	lossy  bool                 // the script destroyed a disk: P8 holds in its weaker form
}

type committed struct {
	zxid  kv.Zxid
	chain uint64
}

type proposal struct {
	by    quorum.MemberID
	inc   zab.Incarnation
	chain uint64
}

type established struct {
	by  quorum.MemberID
	inc zab.Incarnation
	// last and chain end H(e).
	last  kv.Zxid
	chain uint64
}

type promiseKey struct {
	m quorum.MemberID
	e kv.Epoch
}

type step struct {
	prev  kv.Zxid
	chain uint64
}

// ghostMember is what the observer remembers of one member.
type ghostMember struct {
	accepted, current kv.Epoch // the greatest ever durable
	match             int      // how much of G its durable history holds
	applied           kv.Zxid
	appliedChain      uint64
	dirty             bool     // the script put an uncommitted snapshot on its disk
	propEpoch         kv.Epoch // the newest epoch in which it proposed
	ackSent           map[zab.LinkID]kv.Zxid
	commitSent        map[zab.LinkID]kv.Zxid
	leaderInfo        map[zab.LinkID]zab.Incarnation // received on a link
	newLeader         map[zab.LinkID]*zab.NewLeader  // received on a link
}

func (g *ghost) init(s *Sim) {
	*g = ghost{
		sim: s, pos: map[kv.Zxid]int{}, proposed: map[kv.Zxid]proposal{}, chains: map[kv.Zxid]uint64{},
		est: map[kv.Epoch]established{}, promises: map[promiseKey]zab.Incarnation{}, attempts: map[zab.Incarnation]quorum.MemberID{}, followed: map[kv.Zxid]step{},
		digests: map[kv.Zxid]uint64{}, ops: map[uint64]*Op{}, inG: map[uint64]kv.Zxid{},
		order: map[uint64]*executed{},
	}
	g.members = make([]ghostMember, s.opt.Members+s.opt.Observers)
	g.model.init()
	g.sessions.init()
}

func (g *ghost) of(m *Member) *ghostMember { return &g.members[m.ID-1] }

func (g *ghost) started(m *Member) {
	gm := g.of(m)
	gm.ackSent, gm.commitSent = map[zab.LinkID]kv.Zxid{}, map[zab.LinkID]kv.Zxid{}
	gm.leaderInfo, gm.newLeader = map[zab.LinkID]zab.Incarnation{}, map[zab.LinkID]*zab.NewLeader{}
	v := m.tree.View()
	gm.applied, gm.appliedChain = v.Zxid(), v.Chain()
	g.checkApplied(m)
}

func (g *ghost) crashed(m *Member) { g.of(m).applied = 0 }

// wiped: the script destroyed a disk; what the member held it holds no more.
func (g *ghost) wiped(m *Member) {
	*g.of(m) = ghostMember{}
	g.lossy = true
	// What it promised to attempts of its own is void: they died with it, and nobody else was bound by them. (If it was
	// forming and no other voter had promised anything, it may be an ordinary voter again and reuse the epoch.)
	for k, inc := range g.promises {
		if k.m == m.ID && g.attempts[inc] == m.ID {
			delete(g.promises, k)
		}
	}
}

// reset forgets what the script declared committed, to declare something else.
func (g *ghost) reset() {
	g.g = nil
	clear(g.pos)
	for i := range g.members {
		g.members[i].match = 0
	}
}

// given: the script set a disk.
func (g *ghost) given(m *Member) {
	gm := g.of(m)
	gm.accepted, gm.current = m.disk.accepted.Epoch, m.disk.current
	for i := range m.disk.entries {
		e := &m.disk.entries[i]
		g.chains[e.Zxid] = e.Chain
		if _, ok := g.proposed[e.Zxid]; !ok {
			g.proposed[e.Zxid] = proposal{chain: e.Chain}
		}
	}
}

// beforeDisk remembers what a batch must not lose.
func (g *ghost) beforeDisk(m *Member) int { return g.of(m).match }

// diskChanged checks what speaks of durable state: P1, P4, P5, P8, P9, P13, P14.
func (g *ghost) diskChanged(m *Member, w *diskWrite, before int) {
	d, gm, s := &m.disk.content, g.of(m), g.sim
	last, _ := d.last()
	if d.accepted.Epoch < gm.accepted || d.current < gm.current {
		s.fail("P1", "member %d: accepted %d after %d, current %d after %d", m.ID, d.accepted.Epoch, gm.accepted, d.current, gm.current)
	}
	if d.accepted.Epoch < d.current || last.Epoch() > d.accepted.Epoch {
		s.fail("P1", "member %d: accepted %d, current %d, last %v", m.ID, d.accepted.Epoch, d.current, last)
	}
	gm.accepted, gm.current = d.accepted.Epoch, d.current
	if w != nil {
		g.checkAppend(m, w)
	}
	gm.match = g.matching(d, gm.match, w)
	if gm.match < before {
		s.fail("P14", "member %d dropped %v, which is committed", m.ID, g.g[gm.match].zxid)
	}
	if gm.applied > last {
		s.fail("P13", "member %d has applied %v, its disk ends at %v", m.ID, gm.applied, last)
	}
	g.checkQuorums()
	g.checkResurrection(m)
}

// checkAppend is P4 and P5.
func (g *ghost) checkAppend(m *Member, w *diskWrite) {
	d := &m.disk.content
	n := len(w.w.Append)
	if n == 0 {
		return
	}
	i := len(d.entries) - n
	prev := d.logStart
	if i > 0 {
		prev = d.entries[i-1].Zxid
	}
	for ; i < len(d.entries); i++ {
		e := &d.entries[i]
		if !e.Zxid.Follows(prev) {
			g.sim.fail("P4", "member %d: %v stands after %v", m.ID, e.Zxid, prev)
			return
		}
		prev = e.Zxid
		if c, ok := g.chains[e.Zxid]; ok && c != e.Chain {
			g.sim.fail("P5", "member %d: %v has chain %x, elsewhere it had %x", m.ID, e.Zxid, e.Chain, c)
			return
		}
		g.chains[e.Zxid] = e.Chain
	}
}

// matching returns how much of G is in d. It grows from at, or is looked up anew after a batch that removed something.
func (g *ghost) matching(d *content, at int, w *diskWrite) int {
	if w == nil || w.install != nil || w.w.Truncate != nil {
		at = 0
		// G and D are histories: if D holds G[i] it holds everything before. Search backwards for the newest held.
		for i := len(g.g); i > 0; i-- {
			if c := &g.g[i-1]; d.holds(c.zxid, c.chain) {
				at = i
				break
			}
		}
		return at
	}
	for at < len(g.g) && d.holds(g.g[at].zxid, g.g[at].chain) {
		at++
	}
	return at
}

// checkQuorums is P8: a quorum holds all of G. After a scripted loss of a disk: every quorum of members that may vote
// has a holder.
func (g *ghost) checkQuorums() {
	s := g.sim
	n := len(g.g)
	if n == 0 {
		return
	}
	holds := func(id quorum.MemberID) bool { return g.members[id-1].match >= n }
	if !g.lossy {
		if !s.config.HasQuorum(holds) {
			s.fail("P8", "%v is committed and a quorum does not hold it durably%s", g.g[n-1].zxid, g.holders())
		}
		return
	}
	if s.config.HasQuorum(func(id quorum.MemberID) bool { return !holds(id) && !s.member(id).disk.unknown }) {
		s.fail("P8", "%v is committed and a quorum of members that may vote holds it nowhere%s", g.g[n-1].zxid, g.holders())
	}
}

func (g *ghost) holders() string {
	text := ""
	for _, m := range g.sim.members {
		last, _ := m.disk.last()
		text += fmt.Sprintf("; member %d holds %d of %d and ends at %v", m.ID, g.of(m).match, len(g.g), last)
	}
	return text
}

// checkResurrection is P9 for the disk: below an established epoch that it has adopted, a log is that epoch's initial
// history, no more (P9) and no less (P11: the epoch and the history are adopted in one batch).
func (g *ghost) checkResurrection(m *Member) {
	d := &m.disk.content
	if d.unknown {
		return // it has forgotten something, and knows that
	}
	for i := len(g.epochs) - 1; i >= 0; i-- {
		e := g.epochs[i]
		if e > d.current {
			continue
		}
		h := g.est[e]
		if h.last > d.base && !d.holds(h.last, h.chain) {
			g.sim.fail("P11", "member %d has adopted epoch %d and does not hold the history that it began with, up to %v", m.ID, d.current, h.last)
			return
		}
		at, chain, ok := d.Locate(kv.MakeZxid(e, 0))
		if !ok || at == 0 {
			return // all of it lies in the snapshot
		}
		if at > h.last || (at == h.last && chain != h.chain) || (at < h.last && g.chains[at] != chain) {
			g.sim.fail("P9", "member %d has adopted epoch %d, whose history ends at %v, and holds %v", m.ID, e, h.last, at)
		}
		return
	}
}

// handed checks what a member is about to write, and remembers the proposals of established leaders (P3, P17, P19).
func (g *ghost) handed(m *Member, w *diskWrite) {
	s := g.sim
	if len(w.w.Append) == 0 {
		return
	}
	e := w.w.Append[0].Zxid.Epoch()
	if est, ok := g.est[e]; !ok || est.by != m.ID || est.inc != m.inc {
		return // what others proposed
	}
	gm := g.of(m)
	if gm.propEpoch != e {
		gm.propEpoch = e
		// PrimaryIntegrity: the leader has applied everything older that anybody has applied.
		for i := range g.members {
			if a := g.members[i].applied; a.Epoch() < e && a > gm.applied {
				s.fail("P19", "leader %d of epoch %d proposes before it applied %v, which member %d has applied", m.ID, e, a, i+1)
			}
		}
	}
	for i := range w.w.Append {
		en := &w.w.Append[i]
		if p, ok := g.proposed[en.Zxid]; ok || en.Zxid.Epoch() != e {
			s.fail("P17", "leader %d of epoch %d proposes %v, which member %d has proposed", m.ID, e, en.Zxid, p.by)
		}
		g.proposed[en.Zxid] = proposal{m.ID, m.inc, en.Chain}
		g.sessions.proposed(m, en)
	}
}

// establish is P3 and P7, when a leader becomes established in epoch e.
func (g *ghost) establish(m *Member, e kv.Epoch) {
	s := g.sim
	if old, ok := g.est[e]; ok {
		if old.by != m.ID || old.inc != m.inc {
			s.fail("P3", "epoch %d has two leaders: member %d (attempt %d) and member %d (attempt %d)", e, old.by, old.inc, m.ID, m.inc)
		}
		return
	}
	h := &m.handed
	last, chain := h.last()
	g.est[e] = established{m.ID, m.inc, last, chain}
	if _, ok := g.sessions.began[m.inc]; !ok {
		g.sessions.began[m.inc] = s.now
	}
	g.epochs = append(g.epochs, e)
	// Of G, what is older than e: a leader may notice late that it was established, when a greater epoch has
	// begun; it can then commit nothing more.
	n := sort.Search(len(g.g), func(i int) bool { return g.g[i].zxid.Epoch() >= e })
	if n > 0 && h.base < g.g[n-1].zxid && !h.holds(g.g[n-1].zxid, g.g[n-1].chain) {
		s.fail("P7", "leader %d of epoch %d ends at %v and lacks the committed %v", m.ID, e, last, g.g[n-1].zxid)
	}
	for _, o := range s.members {
		g.checkResurrection(o)
		if a := g.of(o); o.Up && a.applied > last && a.applied.Epoch() < e {
			s.fail("P9", "member %d has applied %v, which the history of epoch %d (ending at %v) lacks", o.ID, a.applied, e, last)
		}
	}
}

// declare extends G: m says that everything up to z is committed (P6, P22).
func (g *ghost) declare(m *Member, z kv.Zxid) {
	n := len(g.g)
	if z == 0 || (n > 0 && z <= g.g[n-1].zxid) {
		return
	}
	s, h := g.sim, &m.handed
	last := kv.Zxid(0)
	if n > 0 {
		last = g.g[n-1].zxid
		if at, chain, ok := h.Locate(last); ok && (at != last || chain != g.g[n-1].chain) {
			s.fail("P22", "member %d declares %v committed and lacks the committed %v", m.ID, z, last)
			return
		}
	}
	if h.logStart > last {
		s.fail("P22", "member %d declares %v committed from a log that begins at %v, G ends at %v", m.ID, z, h.logStart, last)
		return
	}
	if l, _ := h.last(); l < z {
		return // a learner that repeats what its leader said; the leader's own declaration counts
	}
	for i := h.find(last); i < len(h.entries) && h.entries[i].Zxid <= z; i++ {
		e := &h.entries[i]
		g.pos[e.Zxid] = len(g.g)
		g.g = append(g.g, committed{e.Zxid, e.Chain})
		g.model.commit(g, e)
	}
	for _, o := range s.members {
		gm := g.of(o)
		gm.match = g.matching(&o.disk.content, gm.match, &diskWrite{})
	}
	g.checkQuorums()
}

// executed is how much of one connection's operations is in G.
type executed struct {
	places uint64
	moved  bool
}

// inOrder is C2 for what is executed: of the operations of one connection it is a prefix of those that were sent on it, in
// the order in which they were sent. Once the leader has refused one because the session had moved, none is executed; only
// the end of the session is, from wherever its client asks for it, as ZooKeeper does it, and what follows finds it gone.
func (g *ghost) inOrder(op *Op, z kv.Zxid, code kv.Code) {
	moved, gone := code == kv.CodeSessionMoved, code == kv.CodeSessionExpired
	x := g.order[op.conn]
	if x == nil {
		x = &executed{}
		g.order[op.conn] = x
	}
	if op.place != x.places+1 {
		g.sim.fail("C2", "token %d at %v is operation %d of connection %d (client %d), the one before it in the history is %d", op.Token, z, op.place, op.conn, op.Client.ID, x.places)
	}
	if x.moved && !moved && !gone && op.Request.Op != kv.OpCloseSession {
		g.sim.fail("C2", "token %d at %v is executed, and an earlier one of connection %d was refused because the session had moved", op.Token, z, op.conn)
	}
	x.places, x.moved = op.place, x.moved || moved
	g.sessions.executed(g.sim, op, z, code)
}

func (g *ghost) last() (z kv.Zxid) {
	if n := len(g.g); n > 0 {
		z = g.g[n-1].zxid
	}
	return z
}

// account is C1 over the whole history: every OK is in G (exactly once: commit checked "twice"), nothing that was not
// sent is.
func (g *ghost) account() {
	for _, c := range g.sim.clients {
		for _, op := range c.ops {
			z, in := g.inG[op.Token]
			switch {
			case op.Outcome == OK && (!in || z != op.Zxid):
				g.sim.fail("C1", "token %d was answered OK at %v and is in G: %v at %v", op.Token, op.Zxid, in, z)
			case (op.Outcome == NotSent || op.never) && in:
				g.sim.fail("C1", "token %d was not sent and is in G at %v", op.Token, z)
			}
		}
	}
}
