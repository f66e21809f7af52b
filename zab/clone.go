package zab

import (
	"maps"
	"slices"
)

// Clone returns an independent copy that sees its durable log through h. A run continued on the copy produces what
// the original would. Payloads and chunks of entries, which never change, are shared; so are Config's functions.
// What Ready returned last stays valid for the original only.
func (p *Peer) Clone(h History) *Peer {
	q := *p
	q.hist = h
	q.inflight = slices.Clone(p.inflight)
	q.tail = p.tail.clone()
	q.handed.batches = slices.Clone(p.handed.batches)
	if p.start != nil {
		s := *p.start
		q.start = &s
	}
	q.leader, q.learn = p.leader.clone(), p.learn.clone()
	q.parked = slices.Clone(p.parked)
	for i := range q.parked {
		q.parked[i].msgs = slices.Clone(q.parked[i].msgs)
	}
	q.out = p.out.clone()
	q.repointLastWrite()
	q.spare = Ready{}
	q.shared = nil
	return &q
}

// repointLastWrite makes the write that appendLive may still extend refer to the copy of the newest chunk.
func (p *Peer) repointLastWrite() {
	n := len(p.out.Writes)
	if n == 0 || len(p.tail.chunks) == 0 {
		return
	}
	w := &p.out.Writes[n-1]
	c := p.tail.chunks[len(p.tail.chunks)-1]
	k := len(w.Append)
	if k > 0 && k <= len(c) && c[len(c)-1].Zxid == w.Append[k-1].Zxid && p.inflight[len(p.inflight)-1].kind == writeAppend {
		w.Append = c[len(c)-k : len(c) : len(c)]
	}
}

func (r *Ready) clone() Ready {
	c := *r
	c.Writes = slices.Clone(r.Writes)
	c.Send = slices.Clone(r.Send)
	c.CloseLinks = slices.Clone(r.CloseLinks)
	c.Snapshots = slices.Clone(r.Snapshots)
	c.Reads = slices.Clone(r.Reads)
	c.Apply = slices.Clone(r.Apply)
	c.Synced = slices.Clone(r.Synced)
	c.Inbound = slices.Clone(r.Inbound)
	c.Reports = slices.Clone(r.Reports)
	c.Events = slices.Clone(r.Events)
	return c
}

func (l *leader) clone() *leader {
	if l == nil {
		return nil
	}
	c := *l
	c.epochAcks = slices.Clone(l.epochAcks)
	c.syncs = slices.Clone(l.syncs)
	c.keptMatch, c.keptCursor = maps.Clone(l.keptMatch), maps.Clone(l.keptCursor)
	c.links = make([]*progress, len(l.links))
	for i, pr := range l.links {
		cp := *pr
		cp.window.batches = slices.Clone(pr.window.batches)
		c.links[i] = &cp
	}
	return &c
}

func (f *learner) clone() *learner {
	if f == nil {
		return nil
	}
	c := *f
	c.buffer = slices.Clone(f.buffer)
	c.staged = slices.Clone(f.staged)
	c.syncs = slices.Clone(f.syncs)
	return &c
}
