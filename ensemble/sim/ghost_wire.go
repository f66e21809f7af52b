package sim

import (
	"kvd/ensemble/replica"
	"kvd/fle"
	"kvd/kv"
	"kvd/zab"
	"kvd/zab/quorum"
)

// What the ghost checks on messages: promises, acks and commit points as they leave a member, measured by its disk at
// that moment.

// sent checks a message that a member puts on a link: P2, P10, P11, P12, P16, P21, and what it declares.
func (g *ghost) sent(m *Member, l *link, msg *Message) {
	s, d, gm := g.sim, &m.disk.content, g.of(m)
	id := l.id[l.side(m)]
	switch z := msg.Zab.(type) {
	case *zab.LeaderInfo:
		if d.accepted.Epoch < z.Epoch {
			s.fail("P12", "member %d sends LEADERINFO(%d), its accepted epoch is %d on disk", m.ID, z.Epoch, d.accepted.Epoch)
		}
		g.attempts[z.Incarnation] = m.ID
		g.promise(m, z.Epoch, z.Incarnation)
	case *zab.AckEpoch:
		if d.accepted.Epoch < z.Epoch {
			s.fail("P12", "member %d sends ACKEPOCH(%d), its accepted epoch is %d on disk", m.ID, z.Epoch, d.accepted.Epoch)
		}
		last, _ := d.last()
		if !onlySnapshots(m.older()) {
			s.fail("P21", "member %d sends ACKEPOCH with a write in flight", m.ID)
		}
		if z.Current != d.current || z.Last != last {
			s.fail("P21", "member %d reports (%d, %v), its disk holds (%d, %v)", m.ID, z.Current, z.Last, d.current, last)
		}
		// The promise of a member that may have forgotten something counts for a sole survivor only.
		inc := gm.leaderInfo[id]
		if leader := g.attempts[inc]; !z.AlreadyPromised && (!z.Unknown || leader != 0 && s.member(leader).disk.sole) {
			g.promise(m, z.Epoch, inc)
		}
	case *zab.Ack:
		p, known := g.proposed[z.Zxid]
		if last, _ := d.last(); d.current != z.Epoch || last < z.Zxid {
			s.fail("P10", "member %d acks %v of epoch %d, its disk holds (%d, %v)", m.ID, z.Zxid, z.Epoch, d.current, last)
		} else if at, chain, ok := d.Locate(z.Zxid); ok && known && (at != z.Zxid || chain != p.chain) {
			s.fail("P10", "member %d acks %v and holds something else there", m.ID, z.Zxid)
		}
		if z.Zxid <= gm.ackSent[id] {
			s.fail("P16", "member %d acks %v after %v on one link", m.ID, z.Zxid, gm.ackSent[id])
		}
		gm.ackSent[id] = z.Zxid
	case *zab.AckNewLeader:
		nl := gm.newLeader[id]
		switch {
		case nl == nil || nl.Epoch != z.Epoch:
			s.fail("P11", "member %d sends ACK(NEWLEADER %d) that nobody asked for", m.ID, z.Epoch)
		case d.current != z.Epoch:
			s.fail("P11", "member %d sends ACK(NEWLEADER %d), its current epoch is %d on disk", m.ID, z.Epoch, d.current)
		case nl.Last != 0 && !d.holds(nl.Last, nl.Chain):
			s.fail("P11", "member %d sends ACK(NEWLEADER %d) and does not hold %v", m.ID, z.Epoch, nl.Last)
		}
	case *zab.Proposal:
		g.commitOnLink(m, id, z.Commit)
	case *zab.Commit:
		g.commitOnLink(m, id, z.Zxid)
	case *zab.UpToDate:
		g.commitOnLink(m, id, z.Commit)
	case *zab.Ping:
		g.commitOnLink(m, id, z.Commit)
	case *zab.NewLeader:
		g.declare(m, z.Commit)
	case *zab.Inform:
		if n := len(z.Entries); n > 0 {
			g.declare(m, z.Entries[n-1].Zxid)
		}
	case *zab.SyncReply:
		g.declare(m, z.Zxid)
	}
}

// commitOnLink is P16 at the sender: only an established leader declares, and never backwards on a link.
func (g *ghost) commitOnLink(m *Member, id zab.LinkID, z kv.Zxid) {
	if z == 0 {
		return
	}
	if m.inc == 0 {
		g.sim.fail("P16", "member %d declares %v committed and has never led", m.ID, z)
	}
	gm := g.of(m)
	if z < gm.commitSent[id] {
		g.sim.fail("P16", "member %d: commit point %v after %v on one link", m.ID, z, gm.commitSent[id])
	}
	gm.commitSent[id] = z
	g.declare(m, z)
}

// older are the unfinished writes that were handed out before the Ready that is being carried out. The messages of a Ready
// may have been made before its writes were: they speak of the disk at that time.
func (m *Member) older() []diskWrite { return m.disk.writes[:min(m.fresh, len(m.disk.writes))] }

func onlySnapshots(ws []diskWrite) bool {
	for i := range ws {
		if ws[i].snapshot == nil {
			return false
		}
	}
	return true
}

// promise is P2.
func (g *ghost) promise(m *Member, e kv.Epoch, inc zab.Incarnation) {
	k := promiseKey{m.ID, e}
	if old, ok := g.promises[k]; ok && old != inc {
		g.sim.fail("P2", "member %d promised epoch %d to attempt %d and to attempt %d", m.ID, e, old, inc)
	}
	g.promises[k] = inc
}

// promised is P2 at the leader: it passes phase 1 on promises that were made to this attempt, of a quorum.
func (g *ghost) promised(m *Member, e kv.Epoch) {
	in := func(id quorum.MemberID) bool {
		to, ok := g.promises[promiseKey{id, e}]
		return id == m.ID || ok && to == m.inc
	}
	if !g.sim.config.HasQuorum(in) {
		g.sim.fail("P2", "leader %d (attempt %d) passes phase 1 of epoch %d without a quorum of promises to it", m.ID, m.inc, e)
	}
}

// received notes what a later answer must be measured by.
func (s *Sim) received(msg *Message) {
	s.arrived[msg.Kind]++
	if s.onMessage != nil {
		s.onMessage(msg)
	}
	if msg.link == nil {
		return
	}
	m := s.member(msg.To)
	gm := s.ghost.of(m)
	id := msg.link.id[msg.link.side(m)]
	switch z := msg.Zab.(type) {
	case *zab.LeaderInfo:
		gm.leaderInfo[id] = z.Incarnation
	case *zab.UpToDate:
		if msg.From == m.role.Leader { // one of a leader that the member has left is late, and counts for nothing
			m.upToDate = msg.From
		}
	case *zab.NewLeader:
		gm.newLeader[id] = z
		gm.ackSent[id] = 0 // a re-epoch over the same link begins anew
	}
}

// sentElection is P21 for votes.
func (g *ghost) sentElection(m *Member, msg *Message) {
	if msg.kind != replica.KindNotification {
		return
	}
	n, err := fle.DecodeNotification(msg.payload)
	if err != nil {
		g.sim.fail("codec", "member %d sends a notification that cannot be decoded: %v", m.ID, err)
		return
	}
	if n.State != fle.Looking {
		return
	}
	d := &m.disk.content
	last, _ := d.last()
	if !onlySnapshots(m.older()) {
		g.sim.fail("P21", "member %d votes with a write in flight", m.ID)
	}
	if n.SenderEpoch != d.current || n.SenderZxid != last {
		g.sim.fail("P21", "member %d reports (%d, %v) in its vote, its disk holds (%d, %v)", m.ID, n.SenderEpoch, n.SenderZxid, d.current, last)
	}
	if n.Vote.Leader == m.ID && (n.Vote.Epoch != d.current || n.Vote.Zxid != last || d.unknown) {
		g.sim.fail("P21", "member %d votes for itself with (%d, %v), its disk holds (%d, %v), unknown=%v", m.ID, n.Vote.Epoch, n.Vote.Zxid, d.current, last, d.unknown)
	}
}
