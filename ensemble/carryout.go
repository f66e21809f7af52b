package ensemble

import (
	"slices"

	"time"

	"kvd/ensemble/replica"
	"kvd/wal"
	"kvd/zab"
)

// carryOut does what a step of the replica asks for, in the order of Ready's fields. Nothing here waits: the log,
// the transport and the applier take their parts into queues that the protocol's own limits bound.
func (l *loop) carryOut(r replica.Ready) {
	if r.Role != nil {
		l.counters.changed(*r.Role, time.Now())
	}
	l.counters.step(&r)
	for i := range r.Writes {
		l.submitWrite(&r.Writes[i])
	}
	if l.net != nil {
		l.net.Send(r.Send)
		l.startStreams(r.Send)
		for _, c := range r.CloseLinks {
			l.net.CloseLink(c.Link, c.Reason)
		}
		if r.Connect != nil {
			l.net.Connect(r.Connect.Leader, r.Connect.Attempt)
		}
	}
	for _, s := range r.Snapshots {
		l.chooseSnapshot(s)
	}
	for _, c := range r.CloseLinks {
		l.promiseEnds(c.Link)
	}
	for _, read := range r.Reads {
		l.reader.enqueue(read)
	}
	if r.Restore != nil {
		l.applier.enqueue(applyItem{restore: true, zxid: r.Restore.Zxid, point: l.received[r.Restore.Handle]})
		clear(l.received)
	}
	for _, a := range r.Apply {
		l.applier.enqueue(applyItem{after: a.After, through: a.Through, entries: a.Entries})
	}
	if r.Identity != nil {
		id := wal.Identity{ClusterID: r.Identity.ClusterID, Member: uint64(l.cfg.ID)}
		l.wal.Submit(wal.Write{Identity: &id, Trusted: r.Identity.Trusted, Done: func(err error) {
			if err == nil {
				l.hello.adopt(id.ClusterID)
				l.inbox.push(identityDone{}, false)
			}
		}})
	}
	if l.net != nil {
		for _, e := range r.Elections {
			l.net.SendElection(e.To, transportKind(e.Kind), e.Payload)
		}
	}
	l.answer(&r)
	if r.Diverged != nil {
		l.condemned = true // the gate stays shut
		l.condemn(*r.Diverged)
	}
	if r.SnapshotTurn {
		l.snaps.start(l)
	}
	l.report(&r)
	if r.Stopped && l.closing {
		select {
		case <-l.stopped:
		default:
			close(l.stopped)
		}
	}
}

// answer passes on what concerns clients.
func (l *loop) answer(r *replica.Ready) {
	l.applier.fail(r.Failed)
	for _, s := range r.Synced {
		if s.OK {
			l.applier.enqueue(applyItem{sync: true, token: s.ID, zxid: s.Zxid})
		} else if slot := l.intake.take(s.ID); slot != nil {
			slot.conn.close("") // no leader confirmed it in time
		}
	}
	for i := range r.Revalidated {
		l.revalidated(&r.Revalidated[i])
	}
	if r.Serving != nil {
		l.serving = *r.Serving
		if !l.serving.Open {
			l.port.setGate(false)
			l.counters.gate(false, time.Now())
		}
		l.openGate()
	}
}

// revalidated ends the wait of a client that resumes its session here. The connection is attached now, so that an
// end of the session that the leader decided afterwards finds it.
func (l *loop) revalidated(v *replica.Revalidated) {
	s := l.intake.take(v.Request)
	if s == nil {
		return
	}
	c := s.conn
	c.mu.Lock()
	switch v.Validity {
	case replica.Valid:
		s.validity, s.fresh, s.timeoutMs = resumeValid, v.Fresh, v.TimeoutMs
	case replica.Gone, replica.WrongPassword:
		s.validity, s.gone = resumeRefused, v.Validity == replica.Gone
	default:
		s.validity = resumeNoAnswer
	}
	c.mu.Unlock()
	if s.validity == resumeValid {
		c.claim.Store(uint64(v.Claim))
		l.port.attach(v.Session, v.TimeoutMs, c)
	}
	c.mu.Lock()
	c.finishLocked(s)
	c.mu.Unlock()
}

// submitWrite hands one atomic step to the log.
func (l *loop) submitWrite(w *zab.Write) {
	out := wal.Write{Seq: w.Seq, Truncate: w.Truncate, Append: w.Append, Current: w.Current, Trusted: w.Trusted}
	if w.ClearSole {
		out.Sole = new(bool)
	}
	if w.Promise != nil {
		out.Accepted = &wal.Promise{Epoch: w.Promise.Epoch, To: uint64(w.Promise.To)}
	}
	if w.Install != nil {
		point := l.received[w.Install.Handle]
		out.Install = &wal.Install{Zxid: w.Install.Zxid, Chain: w.Install.Chain, Point: point.AppendTo(nil)}
		l.snaps.installing(point)
	}
	l.snaps.logged(w.Append)
	l.wal.Submit(out)
}

// chooseSnapshot answers SendSnapshot with the newest point. The core then puts a Snap message on the link, and
// startStreams sends the files right behind it. If there is no point yet one is written first.
func (l *loop) chooseSnapshot(s zab.SendSnapshot) {
	point, ok := l.snaps.newest()
	if !ok {
		l.awaitingSnapshot = append(l.awaitingSnapshot, s)
		l.snaps.start(l)
		return
	}
	l.chosen[s.Link] = point
	l.replica.SnapshotChosen(s.Link, point.Zxid, point.Chain, true)
}

// promiseEnds forgets the point that was chosen, or is to be, for a link that has ended: its files need not stay.
func (l *loop) promiseEnds(link zab.LinkID) {
	delete(l.chosen, link)
	l.awaitingSnapshot = slices.DeleteFunc(l.awaitingSnapshot, func(s zab.SendSnapshot) bool { return s.Link == link })
}

// startStreams streams the files of a chosen snapshot behind the message that announces it.
func (l *loop) startStreams(sent []zab.Outbound) {
	if len(l.chosen) == 0 {
		return
	}
	for i := range sent {
		if _, ok := sent[i].Msg.(*zab.Snap); !ok {
			continue
		}
		if point, ok := l.chosen[sent[i].Link]; ok {
			delete(l.chosen, sent[i].Link)
			l.streaming[sent[i].Link] = point
			l.net.StreamSnapshot(sent[i].Link, point, l.snaps.store)
		}
	}
}

// report logs transitions, never traffic: why first, then what became of it.
func (l *loop) report(r *replica.Ready) {
	for i := range r.Events {
		if e := &r.Events[i]; e.Kind == eventElected {
			l.log.Info(e.Kind, "detail", e.Text)
		}
	}
	if c := r.Role; c != nil {
		args := []any{"role", c.Role.String()}
		if c.Role != zab.Looking {
			args = append(args, "stage", c.Stage.String(), "leader", uint64(c.Leader), "epoch", uint32(c.Epoch))
		}
		l.log.Info("role", append(args, "reason", c.Reason)...)
	}
	for i := range r.Events {
		if e := &r.Events[i]; e.Kind != eventElected && e.Kind != eventRole {
			l.log.Info(e.Kind, "detail", e.Text)
		}
	}
	if r.Role != nil || r.Serving != nil {
		l.publish(l.replica.Status())
	}
}

// Kinds of events with a place of their own in the story.
const (
	eventElected = "elected"
	eventRole    = "role" // the same as Ready.Role
)
