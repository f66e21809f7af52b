package sim

import (
	"context"

	"kvd/kv"
	"kvd/snapshot"
	"kvd/zab"
	"kvd/zab/quorum"
)

// point is a snapshot on a member's disk: files in its store, and the zxid and digest chain that the log refers to them by.
// The files are durable before the batch that refers to them is queued; what a crash leaves unreferenced is deleted at
// the next start (zab-rules f, two stores; S23).
type point struct {
	zxid  kv.Zxid
	chain uint64
	files snapshot.Point
}

// files is a snapshot on its way: what the sender's store held when it was sent.
type files struct {
	p    point
	data [][]byte
}

// chunkBytes is how much of a file travels at a time. Small, so that small trees have several chunks.
const chunkBytes = 512

func records(walk func(yield func(table uint8, key, value []byte) error) error) snapshot.Source {
	return snapshot.SourceFunc(func(yield func(snapshot.Record) error) error {
		return walk(func(table uint8, key, value []byte) error {
			return yield(snapshot.Record{Table: table, Key: key, Value: value})
		})
	})
}

// save writes the present view to the member's store, as a delta on the newest point if it may be one.
func (m *Member) save(v *kv.View) (point, bool) {
	meta := snapshot.Meta{Zxid: v.Zxid(), Chain: v.Chain(), Digest: v.Digest()}
	if i := m.disk.find(v.Zxid()); m.sim.opt.ShellMutations.SnapshotAhead && i > 1 && m.disk.entries[i-2].Zxid > m.handed.base {
		meta.Zxid, meta.Chain = m.disk.entries[i-2].Zxid, m.disk.entries[i-2].Chain
	}
	last, ok := m.handed.newestPoint()
	var err error
	var p snapshot.Point
	if ok && m.saved != nil && m.saved.Zxid() == last.zxid && last.zxid < v.Zxid() && !snapshot.NeedFull(last.files) {
		old := m.saved
		p, err = m.disk.store.WriteDelta(context.Background(), meta, records(func(yield func(uint8, []byte, []byte) error) error { return v.Diff(old, yield) }), last.files)
	} else {
		p, err = m.disk.store.WriteFull(context.Background(), meta, records(v.Records))
	}
	if err != nil {
		m.sim.fail("P20", "member %d cannot write a snapshot at %v: %v", m.ID, v.Zxid(), err)
		return point{}, false
	}
	m.saved = v
	m.sim.ghost.snapshot(m, v)
	return point{zxid: meta.Zxid, chain: meta.Chain, files: p}, true
}

// load builds the view that a point holds. nil: it cannot, which is a broken property.
func (m *Member) load(p *point) *kv.View {
	b := kv.NewBuilder()
	err := m.disk.store.Load(p.files, func(r snapshot.Record) error { return b.Add(r.Table, r.Key, r.Value) })
	if err == nil {
		var v *kv.View
		if v, err = b.Finish(p.zxid, p.chain, p.files.Digest); err == nil {
			return v
		}
	}
	m.sim.fail("P20", "member %d cannot load its snapshot at %v: %v", m.ID, p.zxid, err)
	return nil
}

// retain deletes what no durable or queued batch refers to.
func (m *Member) retain() {
	var keep []snapshot.Point
	for _, ps := range [][]point{m.disk.points, m.handed.points} {
		for i := range ps {
			keep = append(keep, ps[i].files)
		}
	}
	if m.saving != nil {
		keep = append(keep, m.saving.files)
	}
	for _, p := range m.received { // about to be installed, or given up
		keep = append(keep, p.files)
	}
	for _, w := range m.disk.writes { // what an earlier batch of the queue installs and a later one forgets
		if w.install != nil {
			keep = append(keep, w.install.files)
		}
		if w.snapshot != nil {
			keep = append(keep, w.snapshot.files)
		}
	}
	if err := m.disk.store.Retain(keep); err != nil {
		m.sim.fail("P20", "member %d cannot delete old snapshots: %v", m.ID, err)
	}
	m.syncFiles()
}

// maybeSnapshot asks for the turn to write a snapshot.
func (m *Member) maybeSnapshot() {
	if e := m.sim.opt.SnapshotEvery; e > 0 && m.sinceSnap >= e && !m.snapping {
		m.rep.SetSnapshot(true, false)
	}
}

// takeSnapshot writes a snapshot of the present view: the files at once, their sync in a while, then the batch that refers to
// them. A crash in between leaves the point before in charge.
func (m *Member) takeSnapshot() {
	v := m.tree.View()
	if m.snapping || v.Zxid() == 0 || v.Zxid() <= m.handed.base {
		m.rep.SetSnapshot(false, false)
		m.sinceSnap = 0
		return
	}
	s := m.sim
	m.snapping, m.sinceSnap = true, 0
	m.rep.SetSnapshot(false, true)
	p, ok := m.save(v)
	if !ok {
		return
	}
	m.saving = &p
	s.after(s.between(5, 100), m, "snapshot", func() {
		m.saving = nil
		m.syncFiles()
		if p.zxid <= m.handed.base {
			m.snapping = false // overtaken by an installed one
			m.rep.SetSnapshot(false, false)
			return
		}
		start := m.handed.logStart
		if n := len(m.handed.points); n > 0 && s.rng.IntN(2) == 0 {
			start = m.handed.points[s.rng.IntN(n)].zxid
		}
		m.refer(p, start)
	})
}

// TakeSnapshot makes a member write a snapshot now and drop its log up to it: whoever is behind needs a SNAP.
func (s *Sim) TakeSnapshot(id quorum.MemberID) {
	m := s.member(id)
	if v := m.tree.View(); v.Zxid() > m.handed.base && !m.snapping {
		if p, ok := m.save(v); ok {
			m.syncFiles()
			m.refer(p, p.zxid)
		}
	}
}

// refer queues the batch that makes p the member's base and drops the log up to start, except what a synchronization reads.
func (m *Member) refer(p point, start kv.Zxid) {
	if need, ok := m.rep.OldestNeeded(); ok {
		start = min(start, need)
	}
	start = max(start, m.handed.logStart)
	m.sim.logf("%d snapshot %v, log from %v", m.ID, p.zxid, start)
	m.queueWrite(diskWrite{snapshot: &p, logStart: start})
}

// chooseSnapshot answers a request to stream the newest snapshot point; without one it is taken now.
func (m *Member) chooseSnapshot(q zab.SendSnapshot) {
	p, ok := m.disk.newestPoint()
	if v := m.tree.View(); !ok && v.Zxid() != 0 {
		p, ok = m.save(v)
	}
	if l := m.links[q.Link]; ok && l != nil {
		f := &files{p: p}
		for _, x := range p.files.Files {
			r, err := m.disk.store.OpenFile(x.Name)
			if err != nil {
				m.sim.fail("P20", "member %d: a file of its snapshot at %v: %v", m.ID, p.zxid, err)
				return
			}
			b := make([]byte, x.Bytes)
			if _, err := r.ReadAt(b, 0); err != nil {
				m.sim.fail("P20", "member %d: a file of its snapshot at %v: %v", m.ID, p.zxid, err)
				return
			}
			_ = r.Close()
			f.data = append(f.data, b)
		}
		l.chosen = f
	}
	m.rep.SnapshotChosen(q.Link, p.zxid, p.chain, ok)
}

// stream sends the files behind their SNAP message.
func (m *Member) stream(l *link, id zab.LinkID) {
	s := m.sim
	if l.chosen == nil {
		s.fail("P20", "member %d sends SNAP without a chosen snapshot", m.ID)
		return
	}
	f := l.chosen
	l.chosen = nil
	side := l.side(m)
	s.after(s.between(0, 50), m, "snapshot stream", func() {
		m.rep.SnapshotProgress(id)
		s.trickle(m, l, id, s.slowStream, func() {
			s.sendLink(l, side, Message{From: m.ID, To: l.end(1 - side).ID, Kind: "FILES", files: f})
			m.rep.SnapshotSent(id, true)
		})
	})
}

// receiveSnapshot takes in the files, chunk by chunk.
func (m *Member) receiveSnapshot(l *link, fromSide int, f *files) {
	s, id := m.sim, l.id[1-fromSide]
	r, err := m.disk.store.Receive(f.p.files)
	if err == nil {
		for i, have := range r.Have() {
			for b := f.data[i]; err == nil && have < int64(len(b)); {
				chunk := b[have:min(have+chunkBytes, int64(len(b)))]
				err = r.WriteChunk(i, have, chunk, snapshot.ChunkHash(chunk))
				have += int64(len(chunk))
			}
		}
		if err == nil {
			err = r.Commit()
		}
	}
	if err != nil {
		s.fail("P20", "member %d cannot receive the snapshot at %v: %v", m.ID, f.p.zxid, err)
		return
	}
	m.syncFiles()
	p := f.p
	s.handles++
	m.received[s.handles] = &p
	m.rep.SnapshotReceived(id, zab.SnapshotRef{Zxid: p.zxid, Chain: p.chain, Handle: s.handles}, true)
}

// syncFiles makes everything in the member's snapshot store durable.
func (m *Member) syncFiles() {
	if !m.sim.opt.ShellMutations.ReferUnsynced {
		m.disk.store.Sync()
	}
}
