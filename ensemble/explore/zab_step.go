package explore

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"

	"kvd/zab"
)

// Next implements State.
func (w *world) Next(a Action) (State, error) {
	c := *w
	c.owned = 0
	c.carryOut(a)
	if c.broken == nil {
		c.check(w)
	}
	switch {
	case c.broken != nil:
		return &c, c.broken
	case c.outside:
		return nil, nil
	}
	return &c, nil
}

func (w *world) fail(format string, args ...any) {
	if w.broken == nil {
		w.broken = fmt.Errorf(format, args...)
	}
}

func (w *world) carryOut(a Action) {
	kind, x, y := unpack(a)
	switch kind {
	case doDeliver:
		w.deliver(x, y)
	case doEnd:
		w.end(x, y)
	case doCut:
		w.change(x).queue[y] = nil
	case doBreak:
		w.left.breaks--
		w.change(x).ended = [2]bool{true, true}
	case doPersist:
		w.persist(x)
	case doConnect:
		w.connect(x)
	case doRedial:
		w.run(x, func(p *zab.Peer) {
			for p.Glance().Redial {
				p.Tick()
			}
		})
	case doLook:
		w.left.looks--
		w.run(x, func(p *zab.Peer) { p.Look("told to look") })
	case doLead:
		w.left.leads--
		w.leads++
		w.own(x).inc = w.leads
		w.run(x, (*zab.Peer).Lead)
	case doFollow:
		w.left.follows--
		w.run(x, func(p *zab.Peer) { p.Follow(w.m[y].id) })
	case doWrite:
		w.propose(x)
	case doCrash:
		w.left.crashes--
		w.crash(x)
	case doStart:
		if err := w.start(w.own(x)); err != nil {
			w.fail("%w", err)
		}
	case doPing:
		w.left.pings--
		w.run(x, (*zab.Peer).Tick)
	}
}

// run gives member i one input and carries out everything that follows from it.
func (w *world) run(i int, input func(*zab.Peer)) {
	m := w.own(i)
	w.env.inc = m.inc
	reigned := m.p.Glance().Reigns
	input(m.p)
	for m.p.HasReady() && w.broken == nil {
		rd := m.p.Ready()
		m.queue = append(m.queue, rd.Writes...)
		reigned = w.noteCommits(m, reigned)
		w.ready(i, m, &rd)
	}
	if g := m.p.Glance(); g.Role != zab.Leading {
		m.inc = 0
	}
}

// ready is the shell, behind the disk's queue: the order of effects is that of zab.Ready's fields.
func (w *world) ready(i int, m *member, rd *zab.Ready) {
	w.checkEvents(m, rd)
	for k := range rd.Send {
		w.checkSend(m, &rd.Send[k])
		w.send(i, &rd.Send[k])
	}
	for _, k := range rd.CloseLinks {
		w.close(i, m, k.Link)
	}
	if rd.Role != nil && rd.Role.Role == zab.Looking {
		m.dial = nil
	}
	if rd.Connect != nil {
		d := *rd.Connect
		m.dial = &d
	}
	for k := range rd.Apply {
		w.apply(m, &rd.Apply[k])
	}
	for _, q := range rd.Reads {
		es := m.disk.hist[index(m.disk.hist, q.After):index(m.disk.hist, q.Through)]
		m.p.LogRead(q.Link, q.After, slices.Clip(es), nil)
	}
	for _, s := range rd.Snapshots {
		m.p.SnapshotChosen(s.Link, 0, 0, false)
	}
}

func (w *world) send(from int, o *zab.Outbound) {
	i := w.find(o.Link)
	if i < 0 {
		return
	}
	l, dir := w.links[i], toLeader
	if l.leader == from {
		dir = toLearner
	}
	if l.ended[dir] || !l.open[dir] {
		return // nobody will read it
	}
	l = w.change(i)
	l.queue[dir] = append(slices.Clip(l.queue[dir]), message{o.Msg})
	n := 0
	for _, q := range l.queue[dir] {
		switch q.Message.(type) {
		case nil, *zab.Resign, *zab.Refuse:
		default:
			n++
		}
	}
	if n > w.env.bounds.Queue {
		w.outside = true
	}
}

// close ends a link at member i: it reads no more from it, and what it sent is on its way.
func (w *world) close(i int, m *member, id zab.LinkID) {
	m.unnamed(id)
	k := w.find(id)
	if k < 0 {
		return
	}
	l := w.change(k)
	in := toLearner
	if l.leader == i {
		in = toLeader
	}
	l.open[in], l.queue[in] = false, nil
	l.ended[1-in] = true
	w.forget(k)
}

// forget drops a link that is closed at both ends.
func (w *world) forget(k int) {
	if l := w.links[k]; !l.open[0] && !l.open[1] {
		w.drop(k)
	}
}

func (w *world) deliver(k, dir int) {
	l := w.change(k)
	msg := l.queue[dir][0]
	l.queue[dir] = l.queue[dir][1:]
	i := l.receiver(dir)
	from := w.m[l.learner+l.leader-i].id
	if msg.Message == nil {
		w.named(w.own(i), i, l.id)
		w.run(i, func(p *zab.Peer) { p.LinkUp(from, l.id, false) })
		return
	}
	w.run(i, func(p *zab.Peer) { p.Step(from, l.id, msg.Message) })
}

// end delivers the end of a link.
func (w *world) end(k, dir int) {
	l := w.change(k)
	i := l.receiver(dir)
	from := w.m[l.learner+l.leader-i].id
	m := w.own(i)
	known := slices.Contains(m.names, l.id) // not if the leader never heard of the connection
	l.open[dir] = false
	l.ended[1-dir] = true
	m.unnamed(l.id)
	w.forget(k)
	if known {
		w.run(i, func(p *zab.Peer) { p.LinkDown(from, l.id) })
	}
}

func (w *world) connect(i int) {
	m := w.own(i)
	d := m.dial
	m.dial = nil
	w.nextLink++
	l := &link{id: w.nextLink, learner: i, leader: int(d.Leader) - 1, open: [2]bool{true, true}}
	l.queue[toLeader] = []message{{}}
	k := 0
	for k < len(w.links) && (w.links[k].learner < l.learner || w.links[k].learner == l.learner && w.links[k].leader <= l.leader) {
		k++
	}
	w.links = slices.Insert(slices.Clone(w.links), k, l)
	w.named(m, i, l.id)
	w.run(i, func(p *zab.Peer) { p.LinkUp(d.Leader, l.id, true) })
}

func (w *world) persist(i int) {
	m := w.own(i)
	wr := m.queue[0]
	m.queue = m.queue[1:]
	before := *m.disk
	m.disk.write(&wr)
	w.checkWrite(m, &before, &wr)
	w.run(i, func(p *zab.Peer) { p.Persisted(wr.Seq) })
}

// crash loses what is not durable. What was sent is on its way; what was to be received is not.
func (w *world) crash(i int) {
	m := w.own(i)
	m.p, m.queue, m.dial, m.names, m.applied, m.inc = nil, nil, nil, nil, 0, 0
	for k := len(w.links) - 1; k >= 0; k-- {
		l := w.links[k]
		if l.learner != i && l.leader != i {
			continue
		}
		in := toLearner
		if l.leader == i {
			in = toLeader
		}
		if !l.open[in] {
			continue
		}
		l = w.change(k)
		l.open[in], l.queue[in], l.ended[1-in] = false, nil, true
		w.forget(k)
	}
}

// Fingerprint implements State. The members' parts are hashed to 128 bits each and kept: a step changes one or two.
func (w *world) Fingerprint() uint64 {
	b := w.env.buf[:0]
	for i := range w.env.members.Voters {
		m := w.m[i]
		if !m.summed {
			form := m.form(b)
			m.sum[0] = xxhash.Sum64(form[len(b):])
			m.sum[1] = xxhash.Sum64(append(form, 0x5a)[len(b):])
			m.summed = true
		}
		b = binary.LittleEndian.AppendUint64(b, m.sum[0])
		b = binary.LittleEndian.AppendUint64(b, m.sum[1])
	}
	for _, l := range w.links {
		b = append(b, byte(l.learner), byte(l.leader), byte(nameAt(w.m[l.learner], l.id)), byte(nameAt(w.m[l.leader], l.id)),
			bits(l.ended[0], l.ended[1], l.open[0], l.open[1]), byte(len(l.queue[0])), byte(len(l.queue[1])))
		for dir := range 2 {
			for _, q := range l.queue[dir] {
				if q.Message == nil {
					b = append(b, 0)
					continue
				}
				b = zab.AppendMessageForm(b, q.Message)
			}
		}
	}
	b = append(b, byte(w.left.writes), byte(w.left.leads), byte(w.left.follows), byte(w.left.looks), byte(w.left.crashes), byte(w.left.breaks), byte(w.left.pings))
	b = w.ghosts.form(b)
	w.env.buf = b
	return xxhash.Sum64(b)
}

func bits(vs ...bool) byte {
	var b byte
	for i, v := range vs {
		if v {
			b |= 1 << i
		}
	}
	return b
}

// nameAt is the position of a link among those that are up at m; 255 if it is not.
func nameAt(m *member, id zab.LinkID) uint64 {
	if i := slices.Index(m.names, id); i >= 0 {
		return uint64(i)
	}
	return 255
}

// form appends everything that m's future depends on.
func (m *member) form(b []byte) []byte {
	num := func(vs ...uint64) {
		for _, v := range vs {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	num(uint64(m.id), uint64(m.inc), uint64(m.applied), uint64(len(m.names)), uint64(len(m.disk.hist)))
	for i := range m.disk.hist {
		num(uint64(m.disk.hist[i].Zxid), m.disk.hist[i].Chain)
	}
	if m.p == nil {
		st := &m.disk.st
		num(0, uint64(st.Accepted.Epoch), uint64(st.Accepted.To), uint64(st.Current))
		return b
	}
	num(1, uint64(len(m.queue)))
	for i := range m.queue {
		q := &m.queue[i]
		num(bit(q.Promise != nil), bit(q.Truncate != nil), uint64(q.Current), uint64(len(q.Append)))
		if q.Promise != nil {
			num(uint64(q.Promise.Epoch), uint64(q.Promise.To))
		}
		if q.Truncate != nil {
			num(uint64(*q.Truncate))
		}
		for k := range q.Append {
			num(uint64(q.Append[k].Zxid), q.Append[k].Chain)
		}
	}
	num(bit(m.dial != nil))
	if m.dial != nil {
		num(uint64(m.dial.Leader))
	}
	return m.p.AppendAbstract(b, func(id zab.LinkID) uint64 { return nameAt(m, id) })
}

func bit(v bool) uint64 {
	if v {
		return 1
	}
	return 0
}
