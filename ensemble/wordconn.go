package ensemble

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// Words about connections, sessions and watches.

// statLine is the connection as stat shows it.
func (c *conn) statLine(s *connStats, held int) wire.ClientStats {
	interest := 1 // reading
	switch {
	case c.word.Load():
		interest = 0
	case c.writing.Load() != 0:
		interest = 5 // its replies wait for the socket
	}
	return wire.ClientStats{
		Addr: c.remote, Interest: interest, Queued: int64(held),
		Received: c.received.Load() - s.receivedBefore, Sent: c.sent.Load() - s.sentBefore,
	}
}

// consLine is the connection as cons shows it.
func (c *conn) consLine() wire.ConnStats {
	s, held := c.snapshotStats()
	line := wire.ConnStats{
		ClientStats: c.statLine(&s, held), Session: c.sessionID(), LastOp: s.lastOp, Established: s.established, TimeoutMs: c.timeoutMs.Load(),
		LastXid: s.lastXid, LastZxid: wire.NoZxid, LatencyLast: s.last, LatencyMin: s.lat.min, LatencyMax: s.lat.max,
	}
	if s.lat.n > 0 {
		line.LastZxid, line.LastReply = s.lastZxid, s.lastReply.Sub(c.port.started)
		line.LatencyAvg = s.lat.sum / time.Duration(s.lat.n)
	}
	return line
}

func (c *conn) resetStats() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.reset(c.received.Load(), c.sent.Load())
}

// writeStat writes the answer to stat: srvr's with the list of clients.
func (m *Member) writeStat(w *wordWriter, mode wire.Mode) {
	s := m.serverStats(mode)
	if !s.Serving {
		w.buf = wire.AppendStatWord(w.buf, &s)
		return
	}
	w.buf = wire.AppendStatHead(w.buf, &s)
	w.text("Clients:\n")
	for _, c := range m.port.list() {
		st, held := c.snapshotStats()
		line := c.statLine(&st, held)
		if w.buf = wire.AppendStatClient(w.buf, &line); !w.room() {
			return
		}
	}
	w.text("\n")
	w.buf = wire.AppendStatTail(w.buf, &s)
}

func (m *Member) writeCons(w *wordWriter) {
	for _, c := range m.port.list() {
		line := c.consLine()
		if w.buf = wire.AppendCons(w.buf, &line); !w.room() {
			return
		}
	}
	w.text("\n")
}

// writeWatchesByPath writes the data table path by path.
func (m *Member) writeWatchesByPath(w *wordWriter) {
	last, begun := "", false
	m.tree.EachWatch(func(path string, watcher kv.Watcher) bool {
		c, ok := watcher.(*conn)
		if !ok {
			return true
		}
		if path != last || !begun {
			last, begun = path, true
			w.printf("%s\n", path)
		}
		return w.printf("\t0x%x\n", uint64(c.sessionID()))
	})
	w.text("\n")
}

// writeWatchesBySession writes the data table connection by connection.
func (m *Member) writeWatchesBySession(w *wordWriter) {
	for _, c := range m.port.list() {
		begun := false
		m.tree.WatchesOf(c, func(path string) bool {
			if !begun {
				begun = true
				w.printf("0x%x\n", uint64(c.sessionID()))
			}
			return w.printf("\t%s\n", path)
		})
		if w.gone() {
			return
		}
	}
	w.text("\n")
}

// writeDump writes sessions, ephemeral nodes and connections.
func (m *Member) writeDump(w *wordWriter, mode wire.Mode) {
	view := m.tree.View()
	w.text("SessionTracker dump:\n")
	if m.cfg.LocalSessions {
		w.printf("Local Sessions(%d):\n", m.port.local.count())
		m.port.local.each(func(id kv.SessionID, timeoutMs int32) { w.printf("0x%x\t%dms\n", uint64(id), timeoutMs) })
	}
	switch mode {
	case wire.ModeLeader, wire.ModeStandalone:
		m.writeSessionSets(w, view)
	default:
		w.printf("Global Sessions(%d):\n", view.SessionCount())
		view.Sessions(func(s kv.Session) bool { return w.printf("0x%x\t%dms\n", uint64(s.ID), s.Timeout) })
	}
	if w.gone() {
		return
	}
	m.writeEphemerals(w, view)
	m.writeConnectionSets(w)
}

// writeSessionSets writes the leader's sessions by the time at which they expire if nothing is heard.
func (m *Member) writeSessionSets(w *wordWriter, view *kv.View) {
	sets := expirySets[kv.SessionID]{bucket: m.cfg.TickTime}
	now := time.Now()
	for _, d := range m.deadlines() {
		sets.add(now.Add(time.Duration(d.Ticks)*tick), d.Session)
	}
	sets.sort()
	w.printf("Session Sets (%d)/(%d):\n", sets.count(), len(sets.all))
	sets.write(w, func(id kv.SessionID) string { return fmt.Sprintf("\t0x%x\n", uint64(id)) })
}

// writeEphemerals writes the ephemeral nodes by session.
func (m *Member) writeEphemerals(w *wordWriter, view *kv.View) {
	owners := 0
	view.EphemeralOwners(func(kv.SessionID) bool { owners++; return true })
	w.printf("ephemeral nodes dump:\nSessions with Ephemerals (%d):\n", owners)
	view.EphemeralOwners(func(id kv.SessionID) bool {
		w.printf("0x%x:\n", uint64(id))
		view.Ephemerals(id, func(path string) bool { return w.printf("\t%s\n", path) })
		return !w.gone()
	})
}

// connectionBucket is the granularity in which ZooKeeper keeps the deadlines of connections.
const connectionBucket = 10 * time.Second

// writeConnectionSets writes the connections by the time at which they are cut if nothing is heard.
func (m *Member) writeConnectionSets(w *wordWriter) {
	sets := expirySets[*conn]{bucket: connectionBucket}
	now, at := time.Now(), m.port.clock.now()
	for _, c := range m.port.list() {
		patience := m.cfg.SessionlessTimeout
		if c.sessionID() != 0 {
			patience = time.Duration(c.timeoutMs.Load()) * time.Millisecond
		}
		sets.add(now.Add(patience-time.Duration(at-c.heard.Load())*tick), c)
	}
	sets.sort()
	w.printf("Connections dump:\nConnections Sets (%d)/(%d):\n", sets.count(), len(sets.all))
	sets.write(w, func(c *conn) string {
		return fmt.Sprintf("\tip: /%s sessionId: 0x%x\n", c.remote, uint64(c.sessionID()))
	})
}

// sortConns orders connections by age.
func sortConns(all []*conn) {
	slices.SortFunc(all, func(a, b *conn) int { return cmp.Compare(a.id, b.id) })
}

// localSessionCount is the number of sessions that only this member knows.
func (p *clientPort) localSessionCount() int64 { return int64(p.local.count()) }
