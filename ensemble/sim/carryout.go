package sim

import (
	"fmt"
	"strings"

	"kvd/ensemble/replica"
	"kvd/kv"
	"kvd/zab"
	"kvd/zab/quorum"
)

// run is the end of a turn of the loop: it takes in what clients sent and carries out what the replica wants done.
func (m *Member) run() {
	if m.Up {
		m.port.drain()
	}
	for m.Up && m.rep.HasReady() && m.sim.failure == nil {
		rd := m.rep.Ready()
		m.carryOut(&rd)
	}
}

// carryOut does what production's loop does, in the order that Ready's fields demand.
func (m *Member) carryOut(rd *replica.Ready) {
	s := m.sim
	m.unshut = false
	for _, e := range rd.Events {
		if s.opt.Trace {
			s.logf("%d event %s %s", m.ID, e.Kind, e.Text)
		}
		s.happened[e.Kind]++
		if e.Kind == "sync" {
			s.happened["row:"+rowOf(e.Text)]++
		}
		// Ready.Role is only the newest of several changes; each is also an event.
		if e.Kind == "role" && strings.HasPrefix(e.Text, "role=looking") {
			m.upToDate = 0
		}
		if e.Kind == "role" && strings.HasPrefix(e.Text, "role=leading") {
			m.leads(e.Text)
		}
	}
	if rd.Role != nil {
		m.touches, m.sureTouches = nil, nil // what was to be reported to the last leader may be lost
		m.role = *rd.Role
		m.stale = 0 // L4 begins anew
	}
	m.fresh = len(m.disk.writes)
	for i := range rd.Writes {
		m.write(&rd.Writes[i])
	}
	for i := range rd.Send {
		o := &rd.Send[i]
		m.send(o.To, o.Link, o.Msg)
		if !m.Up {
			return // a crash point
		}
	}
	for _, c := range rd.CloseLinks {
		if l := m.links[c.Link]; l != nil {
			s.logf("%d closes link %d to %d: %s", m.ID, c.Link, c.Peer, c.Reason)
			s.closeLink(l, l.side(m))
		}
	}
	if rd.Connect != nil {
		s.dial(m, rd.Connect.Leader, rd.Connect.Attempt)
	}
	for _, q := range rd.Snapshots {
		m.chooseSnapshot(q)
	}
	for _, q := range rd.Reads {
		s.after(s.between(0, 3), m, "log read", func() { m.readLog(q) })
	}
	if rd.Restore != nil {
		ref := *rd.Restore
		m.applyQ = append(m.applyQ, applyItem{restore: &ref})
	}
	for _, a := range rd.Apply {
		m.applyQ = append(m.applyQ, applyItem{after: a.After, through: a.Through, entries: a.Entries})
		s.ghost.applicable(m, a.Through)
	}
	m.startApplier()
	if rd.Identity != nil {
		id := *rd.Identity
		s.after(s.diskDelay(), m, "identity", func() {
			m.cluster = id.ClusterID
			if id.Trusted {
				m.disk.unknown, m.handed.unknown = false, false
			}
			m.rep.IdentityPersisted()
		})
	}
	for _, e := range rd.Elections {
		msg := Message{From: m.ID, To: e.To, Kind: "NOTIFICATION", kind: e.Kind, payload: e.Payload}
		if e.Kind == replica.KindIdentity {
			msg.Kind = "IDENTITY"
		}
		s.ghost.sentElection(m, &msg)
		s.sendElection(msg)
	}
	if rd.Serving != nil {
		m.serving = *rd.Serving
		m.port.servingChanged()
	}
	for _, f := range rd.Failed {
		m.port.failed(f)
	}
	for _, v := range rd.Revalidated {
		m.port.revalidated(v)
	}
	for _, y := range rd.Synced {
		m.port.synced(y)
	}
	if rd.Diverged != nil {
		m.diverged(rd.Diverged)
		return
	}
	if rd.SnapshotTurn {
		m.takeSnapshot()
	}
	if rd.Stopped {
		s.logf("%d stopped", m.ID)
		s.crash(m, 1<<30)
		if s.settling { // everybody is to be up
			s.after(500, nil, "restart", func() { s.Start(m.ID) })
		}
	}
}

// leads tells the ghost that a prospective leader has passed phase 1 or is established.
func (m *Member) leads(text string) {
	var stage string
	var leader, epoch uint64
	if _, err := fmt.Sscanf(text, "role=leading stage=%s leader=%d epoch=%d", &stage, &leader, &epoch); err != nil {
		panic(fmt.Sprintf("sim: role event %q: %v", text, err))
	}
	switch stage {
	case "synchronization":
		m.sim.ghost.promised(m, kv.Epoch(epoch))
	case "broadcast":
		m.sim.ghost.establish(m, kv.Epoch(epoch))
	}
}

// send puts one message on a link, behind the files if it announces a snapshot.
func (m *Member) send(to quorum.MemberID, id zab.LinkID, z zab.Message) {
	s := m.sim
	l := m.links[id]
	if l == nil {
		return
	}
	msg := Message{From: m.ID, To: to, Kind: kindOf(z), Zab: z}
	if m.crashesAt(BeforeSend, &msg) {
		return
	}
	if _, ok := z.(*zab.PingReply); ok {
		msg.touches = m.pingReply()
	}
	s.ghost.sent(m, l, &msg)
	if s.opt.CodecEvery > 0 && s.rng.IntN(s.opt.CodecEvery) == 0 {
		msg.Zab = s.recode(z)
	}
	s.sendLink(l, l.side(m), msg)
	if _, ok := z.(*zab.Snap); ok {
		m.stream(l, id)
	}
	m.crashesAt(AfterSend, &msg)
}

func (s *Sim) recode(z zab.Message) zab.Message {
	b, err := zab.AppendMessage(nil, z)
	if err != nil {
		s.fail("codec", "%T cannot be encoded: %v", z, err)
		return z
	}
	out, err := zab.DecodeMessage(b)
	if err != nil {
		s.fail("codec", "%T cannot be decoded: %v", z, err)
		return z
	}
	return out
}
