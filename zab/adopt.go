package zab

import (
	"fmt"

	"kvd/kv"
)

// This file is phase 2 at a learner: verify where the leader's history starts, take it in, and make it and the current epoch
// durable in one batch (zab-rules c, phase 2).

// onDiff: the stream starts at this member's last entry.
func (p *Peer) onDiff(m *Diff) {
	f := p.learn
	if f.stage != learnAcked {
		p.leave("DIFF at %s", f.stage)
		return
	}
	if m.After != p.last {
		p.needSnapshot("DIFF after %s, last entry is %s", m.After, p.last)
		return
	}
	p.beginHistory(m.After, p.lastChain)
}

// onTrunc verifies the point: this member's base or an entry of its log, with the leader's digest (rows 5, 6). What has
// been applied is committed and is never dropped (P14).
func (p *Peer) onTrunc(m *Trunc) {
	f := p.learn
	if f.stage != learnAcked {
		p.leave("TRUNC at %s", f.stage)
		return
	}
	d := &p.durable
	at, chain, ok := p.locate(m.To)
	applied := max(p.applying, p.applicable())
	if p.restore != nil {
		applied = p.restore.Zxid // the tree is about to restart from there
	}
	switch {
	case m.To < d.Base:
		p.needSnapshot("TRUNC to %s, below the base %s", m.To, d.Base)
	case !ok || at != m.To:
		p.needSnapshot("TRUNC to %s, which is not in the log", m.To)
	case chain != m.Chain:
		p.event("alarm", "leader=%d digests differ at %s", f.leader, m.To)
		p.needSnapshot("TRUNC to %s, where the digests differ", m.To)
	case m.To < applied:
		p.event("alarm", "leader=%d would drop committed entries after %s, applied %s", f.leader, m.To, applied)
		p.leave("TRUNC to %s would drop committed entries", m.To)
	default:
		if m.To < p.last {
			to := m.To
			f.truncate = &to
		}
		p.beginHistory(m.To, m.Chain)
	}
}

func (p *Peer) needSnapshot(format string, args ...any) {
	f := p.learn
	reason := fmt.Sprintf(format, args...)
	f.stage = learnRefused
	p.event("need-snapshot", "leader=%d reason=%q", f.leader, reason)
	p.send(f.leader, f.link, &NeedSnapshot{Reason: reason})
}

func (p *Peer) onSnap(m *Snap) {
	f := p.learn
	// At learnHistory: the leader's log was compacted under the stream; what is not staged yet is superseded.
	if f.stage != learnAcked && f.stage != learnRefused && f.stage != learnHistory {
		p.leave("SNAP at %s", f.stage)
		return
	}
	f.dropStream()
	f.stage, f.snapZxid, f.snapChain = learnSnapshot, m.Zxid, m.Chain
	if p.stage == Discovery {
		p.setStage(Synchronization, "synchronizing")
	}
}

// SnapshotReceived reports that the shell holds the announced snapshot, verified and synced, under ref.Handle.
func (p *Peer) SnapshotReceived(link LinkID, ref SnapshotRef, ok bool) {
	f := p.learn
	if f == nil || f.link != link || f.stage != learnSnapshot {
		return
	}
	p.dirty = true
	f.heard = p.now
	if !ok {
		p.leave("the snapshot could not be received")
		return
	}
	if ref.Zxid != f.snapZxid || ref.Chain != f.snapChain {
		p.leave("received a snapshot at %s, announced was %s", ref.Zxid, f.snapZxid)
		return
	}
	f.install = &ref
	p.beginHistory(ref.Zxid, ref.Chain)
}

func (p *Peer) beginHistory(z kv.Zxid, chain uint64) {
	f := p.learn
	f.stage = learnHistory
	f.received, f.receivedChain, f.receivedSent = z, chain, z
	if p.stage == Discovery {
		p.setStage(Synchronization, "synchronizing")
	}
}

// buffer keeps history until NEWLEADER; a long one is written in stages with the old current epoch: "a prefix of
// the new leader's history", a legal state to crash in (zab-rules c, phase 2).
func (p *Peer) buffer(entries []kv.Entry) {
	f := p.learn
	f.buffer = append(f.buffer, entries...)
	for i := range entries {
		f.bufferBytes += entryBytes(&entries[i])
	}
	e := &entries[len(entries)-1]
	f.received, f.receivedChain = e.Zxid, e.Chain
	if f.bufferBytes >= p.cfg.StageBytes {
		p.writeHistory(writeStage)
	}
}

// writeHistory hands out what is buffered, with the truncation or the snapshot in front if that is still due, and with the
// current epoch if it is the last part: one atomic batch (design rule 2).
func (p *Peer) writeHistory(kind writeKind) {
	f := p.learn
	w := Write{Install: f.install, Truncate: f.truncate, Append: f.buffer}
	before, chainBefore := p.last, p.lastChain
	switch {
	case f.install != nil:
		p.tail.reset(f.install.Zxid, f.install.Chain)
	case f.truncate != nil:
		_, chain, _ := p.locate(*f.truncate)
		p.tail.truncate(*f.truncate, chain)
	}
	for i := range f.buffer {
		p.tail.add(f.buffer[i])
	}
	p.last, p.lastChain = f.received, f.receivedChain
	if kind == writeNewLeader {
		w.Current = f.epoch
		w.Trusted = p.durable.Unknown
		w.ClearSole = p.durable.Sole
	} else {
		f.stagedBytes += f.bufferBytes
		f.staged = append(f.staged, f.bufferBytes)
	}
	f.install, f.truncate, f.buffer, f.bufferBytes = nil, nil, nil, 0
	if kind == writeNewLeader && p.cfg.Mutations.CurrentEpochBeforeHistory {
		last, chain := p.last, p.lastChain
		p.last, p.lastChain = before, chainBefore
		p.write(Write{Current: w.Current}, writeStage, f.link, f.epoch)
		f.staged = append(f.staged, 0)
		p.last, p.lastChain = last, chain
		w.Current = 0
	}
	p.write(w, kind, f.link, f.epoch)
}

// onNewLeader: the history is complete. Its rest and the current epoch become durable in one batch; the ack
// leaves when that is done (P11).
func (p *Peer) onNewLeader(m *NewLeader) {
	f := p.learn
	switch {
	case f.stage == learnRefused || f.stage == learnPromising:
		return // ends the stream that was refused, or of the epoch being left
	case f.stage != learnHistory || m.Epoch != f.epoch:
		p.leave("NEWLEADER of epoch %d at %s of epoch %d", m.Epoch, f.stage, f.epoch)
		return
	case m.Last != f.received || m.Chain != f.receivedChain:
		if !p.cfg.Mutations.AcceptHoles && !p.cfg.Mutations.RegistrationKeptAcrossLinks {
			p.leave("NEWLEADER ends at %s, received is %s", m.Last, f.received)
			return
		}
	}
	if m.Commit > m.Last {
		p.leave("NEWLEADER commits %s, beyond its end %s", m.Commit, m.Last)
		return
	}
	f.stage = learnProving
	f.pendingCommit = max(f.pendingCommit, m.Commit)
	p.writeHistory(writeNewLeader)
	if p.cfg.Mutations.AckNewLeaderBeforeBatch {
		p.ackNewLeader(p.last)
	}
}

func (p *Peer) ackNewLeader(last kv.Zxid) {
	f := p.learn
	f.stage = learnProven
	f.ackSent = last
	p.send(f.leader, f.link, &AckNewLeader{Epoch: f.epoch, Last: last})
}
