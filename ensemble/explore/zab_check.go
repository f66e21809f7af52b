package explore

import (
	"encoding/binary"
	"slices"
	"strings"

	"kvd/kv"
	"kvd/zab"
	"kvd/zab/quorum"
)

// ghosts are what the properties of zab-rules d speak of and no member knows as a whole. The slices only grow, and are
// copied when they do.
type ghosts struct {
	g         []kv.Entry // the committed sequence, as established leaders have declared it
	est       []reign    // by time
	proposals []kv.Zxid  // proposals[k]: what client write k+1 was given
}

// reign is one established epoch.
type reign struct {
	epoch kv.Epoch
	who   quorum.MemberID
	inc   zab.Incarnation
	h     []kv.Entry // initial history
}

func (g *ghosts) form(b []byte) []byte {
	b = append(b, byte(len(g.g)), byte(len(g.est)), byte(len(g.proposals)))
	num := func(v uint64) { b = binary.LittleEndian.AppendUint64(b, v) }
	for i := range g.g {
		num(g.g[i].Chain)
	}
	for i := range g.est {
		e := &g.est[i]
		num(uint64(e.epoch)<<16 | uint64(e.who)<<8 | uint64(len(e.h)))
		num(uint64(e.inc))
		if n := len(e.h); n > 0 {
			num(e.h[n-1].Chain)
		}
	}
	for _, z := range g.proposals {
		num(uint64(z))
	}
	return b
}

func (g *ghosts) reignOf(e kv.Epoch) *reign {
	for i := range g.est {
		if g.est[i].epoch == e {
			return &g.est[i]
		}
	}
	return nil
}

// propose is a client's write at member i.
func (w *world) propose(i int) {
	w.left.writes--
	leader := w.m[i].p.Glance()
	older := 0 // P19, primary integrity: what anybody applied of older epochs
	for k := range w.env.members.Voters {
		older = max(older, min(w.m[k].applied, index(w.g, kv.MakeZxid(leader.Epoch, 0))))
	}
	if w.m[i].applied < older {
		w.fail("P19: leader %d of epoch %d proposes having applied %d entries, %d of older epochs are applied elsewhere", i+1, leader.Epoch, w.m[i].applied, older)
	}
	w.run(i, func(p *zab.Peer) {
		z, err := p.Propose([]byte{byte(len(w.proposals) + 1)})
		if err != nil {
			w.outside = true // a change of epoch is running: the request waits
			return
		}
		if slices.Contains(w.proposals, z) {
			w.fail("P17: %s is given to two writes", z)
		}
		w.proposals = append(slices.Clip(w.proposals), z)
	})
}

// noteCommits extends the committed sequence by what an established leader declares, and notes what was established.
// reigned: so it did before this step, and what it committed in the step in which it resigned counts too.
func (w *world) noteCommits(m *member, reigned bool) bool {
	g := m.p.Glance()
	if g.Reigns && g.Stage == zab.Broadcast {
		if e := w.reignOf(g.Epoch); e == nil {
			h := m.shadow()
			h = slices.Clip(h[:index(h, kv.MakeZxid(g.Epoch, 0))])
			if !begins(h, w.g) {
				w.fail("P7: leader %d of epoch %d lacks committed entries: it has %s, committed is %s", m.id, g.Epoch, listed(h), listed(w.g))
			}
			w.est = append(slices.Clip(w.est), reign{g.Epoch, m.id, g.Incarnation, h})
		} else if e.who != m.id || e.inc != g.Incarnation {
			w.fail("P3: epoch %d is established by members %d and %d", g.Epoch, e.who, m.id)
		}
	}
	if !g.Reigns && !reigned {
		return false
	}
	if n := len(w.g); n == 0 && g.Committed > 0 || n > 0 && g.Committed > w.g[n-1].Zxid {
		h := m.shadow()
		h = h[:index(h, g.Committed)]
		if !begins(h, w.g) {
			w.fail("P22: leader %d commits %s, committed is %s", m.id, listed(h), listed(w.g))
			return g.Reigns
		}
		for i := n; i < len(h); i++ {
			w.checkProposal(&h[i])
		}
		w.g = slices.Clip(h)
	}
	return g.Reigns
}

// checkProposal is P17 for an entry that becomes committed.
func (w *world) checkProposal(e *kv.Entry) {
	if len(e.Payload) != 1 || int(e.Payload[0]) > len(w.proposals) || w.proposals[e.Payload[0]-1] != e.Zxid {
		w.fail("P17: %s is committed with payload %v, which no leader proposed there", e.Zxid, e.Payload)
	}
}

// begins reports whether h begins with g.
func begins(h, g []kv.Entry) bool {
	n := len(g)
	return n == 0 || len(h) >= n && h[n-1].Zxid == g[n-1].Zxid && h[n-1].Chain == g[n-1].Chain
}

func listed(h []kv.Entry) string {
	var b strings.Builder
	b.WriteByte('[')
	for i := range h {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(h[i].Zxid.String())
	}
	b.WriteByte(']')
	return b.String()
}

// apply is P6, P13, P16, P18: what a member applies is the next part of the committed sequence and on its disk.
func (w *world) apply(m *member, a *zab.Apply) {
	es := a.Entries
	if es == nil {
		es = m.disk.hist[index(m.disk.hist, a.After):index(m.disk.hist, a.Through)]
	}
	at, _ := (&disk{hist: w.g}).tip(min(m.applied, len(w.g)))
	if at != a.After {
		w.fail("P16: member %d applies (%s, %s] at %s", m.id, a.After, a.Through, at)
		return
	}
	if a.Through > m.disk.st.Last || len(es) == 0 || es[len(es)-1].Zxid != a.Through {
		w.fail("P13: member %d applies %s, its disk ends at %s", m.id, a.Through, m.disk.st.Last)
	}
	n := m.applied + len(es)
	if n > len(w.g) || !begins(es, w.g[m.applied:n]) || es[0].Chain != w.g[m.applied].Chain {
		w.fail("P6: member %d applies %s at position %d, committed is %s", m.id, listed(es), m.applied, listed(w.g))
		return
	}
	m.applied = n
	m.p.Applied(a.Through)
}

// checkSend is P2, P10, P11, P12 and P21 at the moment a message leaves.
func (w *world) checkSend(m *member, o *zab.Outbound) {
	if w.env.bounds.Outcomes {
		return
	}
	d := m.disk
	switch msg := o.Msg.(type) {
	case *zab.LeaderInfo:
		if d.st.Accepted.Epoch < msg.Epoch {
			w.fail("P12: LEADERINFO(%d) leaves member %d, accepted on disk is %d", msg.Epoch, m.id, d.st.Accepted.Epoch)
		}
	case *zab.AckEpoch:
		if d.st.Accepted.Epoch < msg.Epoch {
			w.fail("P12: ACKEPOCH(%d) leaves member %d, accepted on disk is %d", msg.Epoch, m.id, d.st.Accepted.Epoch)
		}
		if msg.Current != d.st.Current || msg.Last != d.st.Last || msg.Chain != d.st.LastChain && msg.Last != 0 || len(m.queue) > 0 {
			w.fail("P21: ACKEPOCH of member %d says %d/%s, its disk %d/%s with %d writes in flight", m.id, msg.Current, msg.Last, d.st.Current, d.st.Last, len(m.queue))
		}
		// With promised epochs never lower or given twice (checkWrite), this makes counted promises of one epoch go to
		// one incarnation.
		if inc := m.p.Glance().Incarnation; !msg.AlreadyPromised && (d.st.Accepted.Epoch != msg.Epoch || d.st.Accepted.To != inc) {
			w.fail("P2: member %d promises epoch %d to attempt %d, on disk it is epoch %d to attempt %d", m.id, msg.Epoch, inc, d.st.Accepted.Epoch, d.st.Accepted.To)
		}
	case *zab.AckNewLeader:
		at, _ := d.tip(len(d.hist))
		if n := index(d.hist, msg.Last); d.st.Current != msg.Epoch || at < msg.Last || n > 0 && d.hist[n-1].Zxid != msg.Last {
			w.fail("P11: ACK(NEWLEADER %d at %s) leaves member %d, its disk has current epoch %d and %s", msg.Epoch, msg.Last, m.id, d.st.Current, listed(d.hist))
		}
	case *zab.Ack:
		n := index(d.hist, msg.Zxid)
		if d.st.Current != msg.Epoch || n == 0 || d.hist[n-1].Zxid != msg.Zxid {
			w.fail("P10: ACK(%s) of epoch %d leaves member %d, its disk has current epoch %d and %s", msg.Zxid, msg.Epoch, m.id, d.st.Current, listed(d.hist))
			return
		}
		if h := w.m[o.To-1]; h.p != nil && h.p.Glance().Epoch == msg.Epoch && !begins(h.shadow(), d.hist[:n]) {
			w.fail("P10: ACK(%s) leaves member %d with %s, its leader has %s", msg.Zxid, m.id, listed(d.hist), listed(h.shadow()))
		}
	}
}

// checkWrite is P1, P2 and P14 for a write that has become durable.
func (w *world) checkWrite(m *member, before *disk, wr *zab.Write) {
	st := &m.disk.st
	if st.Accepted.Epoch < before.st.Accepted.Epoch || st.Current < before.st.Current {
		w.fail("P1: member %d goes back from epochs %d, %d to %d, %d", m.id, before.st.Accepted.Epoch, before.st.Current, st.Accepted.Epoch, st.Current)
	}
	if wr.Promise != nil && wr.Promise.Epoch <= before.st.Accepted.Epoch && *wr.Promise != before.st.Accepted {
		w.fail("P2: member %d promises epoch %d to attempt %d, before it was epoch %d to %d", m.id, wr.Promise.Epoch, wr.Promise.To, before.st.Accepted.Epoch, before.st.Accepted.To)
	}
	if wr.Current != 0 && !w.env.bounds.Outcomes {
		w.checkAdopted(m, wr.Current)
	}
	if kept, held := common(m.disk.hist, w.g), common(before.hist, w.g); kept < held {
		w.fail("P14: member %d drops committed entries: it has %s, committed is %s", m.id, listed(m.disk.hist), listed(w.g))
	}
}

// checkAdopted: a current epoch is on disk with the whole history that its leader began with, established or not, and
// never without (zab-rules a, orders that must never be seen on disk).
func (w *world) checkAdopted(m *member, e kv.Epoch) {
	for i := range w.env.members.Voters {
		l := w.m[i]
		if l.p == nil {
			continue
		}
		if g := l.p.Glance(); g.Role != zab.Leading || g.Epoch != e || g.Stage == zab.Discovery {
			continue
		}
		want, have := l.shadow(), m.disk.hist
		want, have = want[:index(want, kv.MakeZxid(e, 0))], have[:index(have, kv.MakeZxid(e, 0))]
		if len(want) != len(have) || !begins(have, want) {
			w.fail("P11: member %d has current epoch %d and %s, its leader %d began with %s", m.id, e, listed(have), l.id, listed(want))
		}
	}
}

// common is how many entries two histories begin with.
func common(a, b []kv.Entry) int {
	n := 0
	for n < len(a) && n < len(b) && a[n].Chain == b[n].Chain {
		n++
	}
	return n
}

// On connections that are in order or broken, nobody ever sends what the other side has to call an error. These are the
// reasons of zab for ending a link or a role that say so (P16).
var protocolErrors = []string{
	"ACK of", "ACK before", "ACKEPOCH that", "ACK(NEWLEADER) that", "FOLLOWERINFO twice", "NEEDSNAPSHOT that", "a learner sent", "answered a PING",
	"received what", "own log", "the log no longer", "request before", "the snapshot", "no snapshot",
	"DIFF at", "SNAP at", "entries at", "entry ", "a hole", "the digest", "NEWLEADER", "UPTODATE of", "COMMIT of", "the leader sent", "TRUNC ",
}

func (w *world) checkEvents(m *member, rd *zab.Ready) {
	if w.env.bounds.Outcomes {
		return
	}
	for _, e := range rd.Events {
		if e.Kind == "alarm" || e.Kind == "need-snapshot" {
			w.fail("P5: member %d: %s %s", m.id, e.Kind, e.Text)
		}
	}
	wrong := func(reason string) {
		for _, p := range protocolErrors {
			if strings.HasPrefix(reason, p) {
				w.fail("P16: member %d: %s", m.id, reason)
			}
		}
	}
	for _, k := range rd.CloseLinks {
		wrong(k.Reason)
	}
	if rd.Role != nil {
		wrong(rd.Role.Reason)
	}
}

// check is what must hold of every state; before is the one that the step began at. Members that the step did not
// touch are as they were.
func (w *world) check(before *world) {
	disks := len(w.g) != len(before.g) || len(w.est) != len(before.est)
	for i := range w.env.members.Voters {
		if m := w.m[i]; m != before.m[i] {
			disks = disks || m.disk.st != before.m[i].disk.st || len(m.queue) > len(before.m[i].queue)
			w.checkMember(m)
		}
	}
	if !disks || w.broken != nil {
		return
	}
	holders := 0
	for i := range w.env.members.Voters {
		m := w.m[i]
		w.checkDisk(m)
		if begins(m.disk.hist, w.g) {
			holders++
		}
		h := m.shadow()
		for k := range i {
			w.checkMatching(w.m[i], w.m[k], h, w.m[k].shadow())
		}
	}
	if holders < w.env.members.Majority() {
		w.fail("P8: only %d members hold everything committed: %s", holders, listed(w.g))
	}
}

// checkMember is P13, P15 and P16 for one member.
func (w *world) checkMember(m *member) {
	if m.p == nil {
		return
	}
	g := m.p.Glance()
	if g.Committed != 0 {
		if n := index(w.g, g.Committed); n == 0 || w.g[n-1].Zxid != g.Committed {
			w.fail("P16: member %d believes %s committed, committed is %s", m.id, g.Committed, listed(w.g))
		}
	}
	if g.Role == zab.Following && g.Stage == zab.Broadcast {
		if e := w.reignOf(g.Epoch); e == nil || e.inc != g.Incarnation {
			w.fail("P15: member %d serves under epoch %d, which is not established", m.id, g.Epoch)
		}
	}
	if d, st := m.p.Durable(), &m.disk.st; d.Accepted != st.Accepted || d.Current != st.Current || d.Last != st.Last {
		w.fail("P21: member %d believes %+v durable, its disk has %+v", m.id, m.p.Durable(), m.disk.st)
	}
}

// checkDisk is P1, P4 and P9 for one disk.
func (w *world) checkDisk(m *member) {
	st, h := &m.disk.st, m.disk.hist
	if st.Accepted.Epoch < st.Current || st.Last.Epoch() > st.Current {
		w.fail("P1: member %d: accepted %d, current %d, last %s", m.id, st.Accepted.Epoch, st.Current, st.Last)
	}
	prev := kv.Zxid(0)
	for i := range h {
		if !h[i].Zxid.Follows(prev) {
			w.fail("P4: member %d: %s", m.id, listed(h))
		}
		prev = h[i].Zxid
	}
	for i := range w.est {
		e := &w.est[i]
		k := index(h, kv.MakeZxid(e.epoch, 0))
		switch {
		case st.Current < e.epoch:
		case k > len(e.h) || !begins(e.h, h[:k]):
			w.fail("P9: member %d with current epoch %d holds %s, epoch %d began with %s", m.id, st.Current, listed(h), e.epoch, listed(e.h))
		case w.env.bounds.Outcomes:
		case st.Current == e.epoch && k != len(e.h):
			w.fail("P11: member %d has current epoch %d and %s, the epoch began with %s", m.id, st.Current, listed(h), listed(e.h))
		}
	}
}

// checkMatching is P5 for two logs, writes in flight included.
func (w *world) checkMatching(a, b *member, ha, hb []kv.Entry) {
	i, k := 0, 0
	for i < len(ha) && k < len(hb) {
		switch x, y := ha[i].Zxid, hb[k].Zxid; {
		case x < y:
			i++
		case x > y:
			k++
		default:
			if ha[i].Chain != hb[k].Chain {
				w.fail("P5: members %d and %d hold %s with different histories: %s, %s", a.id, b.id, x, listed(ha), listed(hb))
			}
			i++
			k++
		}
	}
}
