package ensemble

import (
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// connStats is what `cons` and `stat` show of one connection (zookeeper-protocol 10.2). It is under conn.mu, which
// whoever answers requests takes once a batch anyway: noting a request costs a few stores, no lock and no allocation.
type connStats struct {
	established time.Time
	lastOp      wire.Op // 0: none yet
	lastXid     int32   // of the last request with an xid that is not special; -1: none
	lastZxid    kv.Zxid
	lastReply   time.Time
	last        time.Duration // latency, from frame to reply
	lat         latencyBatch  // of all requests since the start or crst

	// packets before the last crst.
	receivedBefore, sentBefore int64
}

// begin starts the statistics of a new connection.
func (s *connStats) begin(now time.Time) { *s = connStats{established: now, lastXid: -1} }

// note records an answered request: at is when its frame came in, now when its reply was written. c.mu is held.
func (s *connStats) note(op wire.Op, xid int32, z kv.Zxid, at, now time.Time) {
	d := max(now.Sub(at), 0)
	s.lastOp, s.lastZxid, s.lastReply, s.last = op, z, now, d
	if xid >= 0 { // the special ones would hide the client's last real request
		s.lastXid = xid
	}
	s.lat.add(d)
}

// noteSlot records an answered slot. A write that failed has no name, as in ZooKeeper; a multi always has.
func (s *connStats) noteSlot(q *slot, z kv.Zxid, now time.Time) {
	op := q.op
	if q.kind == slotWrite && q.code != kv.CodeOK && op != wire.OpMulti {
		op = 0
	}
	s.note(op, q.xid, z, q.at, now)
}

// reset is crst: everything but the time of the connection starts anew. received and sent are the present counts.
func (s *connStats) reset(received, sent int64) {
	*s = connStats{established: s.established, lastXid: -1, receivedBefore: received, sentBefore: sent}
}

// snapshot reads the statistics of a connection.
func (c *conn) snapshotStats() (s connStats, held int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats, c.held
}
