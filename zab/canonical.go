package zab

import (
	"encoding/binary"
	"slices"

	"kvd/kv"
	"kvd/zab/quorum"
)

// AppendCanonical appends the whole state in a form that is equal exactly for members that will behave equally
// from here on (same configuration and disk content assumed). For exhaustive exploration; not a storage format.
// Chunk boundaries and spare memory are left out, everything else is in, in a fixed order.
func (p *Peer) AppendCanonical(dst []byte) []byte {
	c := canonical{dst}
	c.num(uint64(p.cfg.ID), uint64(p.cfg.Members.Version), uint64(p.cfg.Levels.Protocol), uint64(p.cfg.Levels.Format), uint64(p.now))
	d := &p.durable
	c.num(uint64(d.Accepted.Epoch), uint64(d.Accepted.To), uint64(d.Current), uint64(d.Base), d.BaseChain, uint64(d.LogStart), d.LogStartChain,
		uint64(d.Last), d.LastChain)
	c.bool(d.Unknown)
	c.bool(d.Sole)
	c.num(uint64(len(p.inflight)))
	for i := range p.inflight {
		w := &p.inflight[i]
		c.num(w.seq, uint64(w.kind), w.generation, uint64(w.link), uint64(w.epoch), uint64(w.born), uint64(w.current), uint64(w.last), w.lastChain)
		c.bool(w.trusted)
		c.bool(w.clearSole)
		c.promise(w.promise)
		c.ref(w.install)
	}
	c.num(p.nextSeq, uint64(p.last), p.lastChain)
	c.num(uint64(p.tail.start), p.tail.startChain, uint64(p.tail.count), uint64(p.tail.bytes)) // newest only decides where a Write is split
	for _, chunk := range p.tail.chunks {
		for i := range chunk {
			c.entry(&chunk[i])
		}
	}
	c.num(uint64(p.committed), uint64(p.applying), uint64(p.applied), uint64(p.role), uint64(p.stage), p.generation, p.dials)
	c.window(&p.handed)
	c.ref(p.restore)
	c.bool(p.start != nil)
	if p.start != nil {
		c.num(uint64(p.start.role), uint64(p.start.leader))
	}
	c.leader(p.leader)
	c.learner(p.learn)
	c.num(uint64(len(p.parked)))
	for _, k := range p.parked {
		c.num(uint64(k.peer), uint64(k.link), uint64(len(k.msgs)))
		for _, m := range k.msgs {
			c.message(m)
		}
	}
	c.num(uint64(p.disk.oldestMs), p.disk.free)
	c.bool(p.disk.low)
	c.bool(p.disk.wantSnapshot)
	c.bool(p.disk.snapshotting)
	c.bool(p.dirty)
	c.ready(&p.out)
	return c.b
}

// canonical writes fixed-width values and length-prefixed bytes, so that no two states share a form.
type canonical struct{ b []byte }

func (c *canonical) num(vs ...uint64) {
	for _, v := range vs {
		c.b = binary.BigEndian.AppendUint64(c.b, v)
	}
}

func (c *canonical) bool(v bool) {
	if v {
		c.b = append(c.b, 1)
	} else {
		c.b = append(c.b, 0)
	}
}

func (c *canonical) bytes(v []byte) {
	c.num(uint64(len(v)))
	c.b = append(c.b, v...)
}

func (c *canonical) entry(e *kv.Entry) {
	c.num(uint64(e.Zxid), e.Chain)
	c.bytes(e.Payload)
}

func (c *canonical) entries(es []kv.Entry) {
	c.num(uint64(len(es)))
	for i := range es {
		c.entry(&es[i])
	}
}

func (c *canonical) promise(v *Promise) {
	c.bool(v != nil)
	if v != nil {
		c.num(uint64(v.Epoch), uint64(v.To))
	}
}

func (c *canonical) ref(v *SnapshotRef) {
	c.bool(v != nil)
	if v != nil {
		c.num(uint64(v.Zxid), v.Chain, v.Handle)
	}
}

func (c *canonical) zxid(v *kv.Zxid) {
	c.bool(v != nil)
	if v != nil {
		c.num(uint64(*v))
	}
}

func (c *canonical) message(m Message) {
	b, err := AppendMessage(nil, m)
	if err != nil {
		panic(err) // a message kind without an encoding cannot pass the codec's test
	}
	c.bytes(b)
}

func (c *canonical) leader(l *leader) {
	c.bool(l != nil)
	if l == nil {
		return
	}
	c.num(uint64(l.inc), uint64(l.epoch), uint64(l.frozen.current), uint64(l.frozen.last), l.frozenChain, uint64(len(l.epochAcks)))
	acks := slices.Clone(l.epochAcks)
	slices.Sort(acks)
	for _, id := range acks {
		c.num(uint64(id))
	}
	c.bool(l.promised)
	c.bool(l.selfSynced)
	c.bool(l.sole)
	c.bool(l.soleWritten)
	c.bool(l.full)
	c.bool(l.everEstablished)
	c.num(uint64(l.wantEpoch))
	c.bytes([]byte(l.wantReason))
	c.bool(l.resigning)
	c.num(uint64(l.digestAt))
	c.num(uint64(l.resignSince), uint64(l.next), uint64(l.outstandingCount), uint64(l.outstandingBytes), uint64(l.progressAt),
		uint64(l.best.infos), uint64(l.best.acks), uint64(l.best.synced), l.probe, uint64(l.pingedAt), uint64(len(l.syncs)))
	for _, s := range l.syncs {
		c.num(uint64(s.to), uint64(s.link), s.id, s.probe, uint64(s.zxid))
	}
	c.num(uint64(len(l.links)))
	for _, pr := range l.links {
		c.progress(pr)
	}
	for id := quorum.MemberID(1); l.keptMatch != nil && id <= 255; id++ { // used by mutations only
		c.num(uint64(l.keptMatch[id]), uint64(l.keptCursor[id]))
	}
}

func (c *canonical) progress(pr *progress) {
	c.num(uint64(pr.peer), uint64(pr.link), uint64(pr.stage), uint64(pr.accepted), pr.configVersion,
		uint64(pr.protocol.Min), uint64(pr.protocol.Max), uint64(pr.format.Min), uint64(pr.format.Max))
	c.bool(pr.voter)
	c.bool(pr.waiting)
	c.bool(pr.needSnapshot)
	c.bool(pr.diffOnly)
	c.bool(pr.reading)
	c.bool(pr.upToDate)
	c.bool(pr.grantTurn)
	c.num(uint64(pr.diverged.After), uint64(pr.diverged.At))
	c.message(&pr.ack)
	c.num(uint64(pr.plan.kind), uint64(pr.plan.row), uint64(pr.plan.point), pr.plan.chain)
	c.num(uint64(pr.cursor), pr.cursorChain, uint64(pr.target), uint64(pr.match), uint64(pr.received), uint64(pr.commitSent))
	c.window(&pr.window)
	c.num(uint64(pr.heard), uint64(pr.progressAt), pr.probe, uint64(pr.reportAt))
	c.bool(pr.report != nil)
	if pr.report != nil {
		c.message(pr.report)
	}
}

func (c *canonical) window(w *window) {
	c.num(uint64(len(w.batches)))
	for _, b := range w.batches {
		c.num(uint64(b.last), uint64(b.entries), uint64(b.bytes), uint64(b.sent))
	}
}

func (c *canonical) learner(f *learner) {
	c.bool(f != nil)
	if f == nil {
		return
	}
	c.num(uint64(f.leader), uint64(f.link), f.attempt, uint64(f.stage), uint64(f.epoch), uint64(f.inc))
	c.bool(f.retry)
	c.bool(f.full)
	c.num(uint64(f.retryAt), uint64(f.refused), uint64(f.broken))
	c.bool(f.known)
	c.ref(f.install)
	c.zxid(f.truncate)
	c.num(uint64(f.snapZxid), f.snapChain, uint64(f.received), f.receivedChain, uint64(f.receivedSent), uint64(f.bufferBytes), uint64(f.stagedBytes))
	c.entries(f.buffer)
	c.num(uint64(len(f.staged)))
	for _, n := range f.staged {
		c.num(uint64(n))
	}
	c.num(uint64(f.pendingCommit), uint64(f.ackSent), uint64(f.heard), uint64(len(f.syncs)))
	c.num(f.syncs...)
}

func (c *canonical) ready(r *Ready) {
	c.num(uint64(len(r.Writes)))
	for i := range r.Writes {
		w := &r.Writes[i]
		c.num(w.Seq, uint64(w.Current))
		c.bool(w.Trusted)
		c.bool(w.ClearSole)
		c.promise(w.Promise)
		c.ref(w.Install)
		c.zxid(w.Truncate)
		c.entries(w.Append)
	}
	c.num(uint64(len(r.Send)))
	for _, o := range r.Send {
		c.num(uint64(o.To), uint64(o.Link))
		c.message(o.Msg)
	}
	c.num(uint64(len(r.CloseLinks)))
	for _, l := range r.CloseLinks {
		c.num(uint64(l.Peer), uint64(l.Link))
		c.bytes([]byte(l.Reason))
	}
	c.bool(r.Connect != nil)
	if r.Connect != nil {
		c.num(uint64(r.Connect.Leader), r.Connect.Attempt)
	}
	c.num(uint64(len(r.Snapshots)))
	for _, s := range r.Snapshots {
		c.num(uint64(s.To), uint64(s.Link))
	}
	c.num(uint64(len(r.Reads)))
	for _, q := range r.Reads {
		c.num(uint64(q.To), uint64(q.Link), uint64(q.After), uint64(q.Through), uint64(q.MaxBytes))
	}
	c.ref(r.Restore)
	c.num(uint64(len(r.Apply)))
	for _, a := range r.Apply {
		c.num(uint64(a.After), uint64(a.Through))
		c.entries(a.Entries)
	}
	c.num(uint64(len(r.Synced)))
	for _, s := range r.Synced {
		c.num(s.ID, uint64(s.Zxid))
		c.bool(s.OK)
	}
	c.num(uint64(len(r.Inbound)))
	for _, in := range r.Inbound {
		c.num(uint64(in.From), uint64(in.Link))
		c.bytes(in.Payload)
	}
	c.num(uint64(len(r.Reports)))
	for _, rep := range r.Reports {
		c.num(uint64(rep.From))
		c.message(rep.Reply)
	}
	c.bool(r.SnapshotTurn)
	c.bool(r.Diverged != nil)
	if d := r.Diverged; d != nil {
		c.num(uint64(d.After), uint64(d.At))
	}
	c.bool(r.Role != nil)
	if r.Role != nil {
		c.num(uint64(r.Role.Role), uint64(r.Role.Stage), uint64(r.Role.Leader), uint64(r.Role.Epoch))
		c.bytes([]byte(r.Role.Reason))
	}
	c.num(uint64(len(r.Events)))
	for _, e := range r.Events {
		c.bytes([]byte(e.Kind))
		c.bytes([]byte(e.Text))
	}
}
