package ensemble

import (
	"errors"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// readLoop is the reader goroutine of a connection: four-letter word or handshake, then requests until the
// end. It waits for nobody but the client, the bounds it must respect, and results the order depends on.
func (c *conn) readLoop() {
	if !c.open() {
		return
	}
	fresh := true
	for {
		c.settleFrame()
		if c.port.large != nil && !c.admitLarge() {
			return
		}
		frame, err := c.frames.Next()
		if err != nil {
			if closedByPeer(err) && !c.isClosed() {
				c.port.counters.dropped.Add(1)
			}
			c.close(c.readError(err))
			return
		}
		if fresh {
			c.readAt, fresh = time.Now(), false
		}
		c.hear()
		if !c.port.mayAnswer(c) && !c.awaitGate() {
			return
		}
		c.frames.Keep() // bodies travel on; a chunk of the frame reader is freed with the last of them
		if c.port.throttle != nil {
			switch c.throttle(frame) {
			case refused:
				fresh = true
				continue
			case ended:
				return
			}
		}
		if !c.handle(frame) {
			return
		}
		if !c.frames.Buffered() || len(c.batch) >= maxReadBatch {
			c.port.counters.bytesReceived.Add(c.bytesIn)
			c.bytesIn = 0
			if !c.submit() || !c.tryPump() {
				c.close("")
				return
			}
			fresh = true
		}
	}
}

// hear notes that the client lives, at most once a tick.
func (c *conn) hear() {
	if now := c.port.clock.now(); c.heard.Load() != now {
		c.heard.Store(now)
		c.port.touch(c)
	}
}

// readError names what the client did wrong; "" if it only went away.
func (c *conn) readError(err error) string {
	if errors.Is(err, wire.ErrFrameLength) || !closedByPeer(err) {
		return err.Error()
	}
	return ""
}

// awaitGate waits while no leader is established. What was read before goes first.
func (c *conn) awaitGate() bool {
	if !c.submit() {
		c.close("")
		return false
	}
	select {
	case <-c.port.gate.opened():
		return true
	case <-c.done:
		return false
	}
}

// handle takes one request in. It reports false when the connection ends.
func (c *conn) handle(frame []byte) bool {
	h, body, err := wire.SplitRequest(frame)
	if err != nil {
		c.close("frame too short for a request header")
		return false
	}
	c.received.Add(1)
	c.bytesIn += int64(len(frame))
	class := h.Op.Class()
	switch {
	case !c.admitted && class != wire.ClassConn:
		return c.refuseUnauthenticated(h)
	case c.readOnly.Load() && (class == wire.ClassWrite || class == wire.ClassSync) && h.Op != wire.OpCloseSession:
		return c.enqueue(slot{kind: slotRefused, xid: h.Xid, op: h.Op, code: kv.CodeNotReadOnly})
	}
	s := slot{xid: h.Xid, op: h.Op, body: body, cost: int64(len(body)) + slotOverhead, session: c.sessionID(), auth: c.auth}
	switch class {
	case wire.ClassPing:
		return c.ping()
	case wire.ClassConn:
		if h.Op == wire.OpSASL {
			return c.handleSASL(h, body)
		}
		return c.handleAuth(h, body)
	case wire.ClassRead:
		s.kind, s.watching = slotRead, wire.TouchesWatches(h.Op, body)
	case wire.ClassWrite:
		s.kind = slotWrite
		if l := c.ownLocal(); l != nil {
			switch {
			case h.Op == wire.OpCloseSession:
				return c.closeLocal(h.Xid)
			case c.port.cfg.LocalSessionsUpgrading && needsGlobal(h.Op, body):
				c.goGlobal(l)
			default:
				s.local = true
			}
		}
		switch {
		case h.Op == wire.OpCloseSession:
			s.last = true
			return c.enqueue(s) && c.awaitEnd()
		case h.Op == wire.OpReconfig:
			return c.refuseReconfig(s)
		case !c.answerable(h.Op, body):
			s.refuse(kv.CodeMarshallingError)
		case c.port.full.Load() && addsData(h.Op, body):
			s.refuse(kv.CodeSystemError) // here, so that it costs no transaction
		}
	case wire.ClassSync:
		s.kind = slotSync
		var q wire.SyncRecord
		if wire.Decode(body, &q) != nil || !c.fits(len(body)) {
			s.refuse(kv.CodeMarshallingError)
		}
	case wire.ClassUnknown, wire.ClassRefused:
		return c.enqueue(slot{kind: slotAside, xid: h.Xid, op: h.Op, zxid: noZxid, code: kv.CodeUnimplemented, last: true}) && c.awaitEnd()
	}
	return c.enqueue(s)
}

// noZxid is -1 in a header.
const noZxid = ^kv.Zxid(0)

// refuse makes the slot one that is answered with an error of the record.
func (s *slot) refuse(code kv.Code) { s.kind, s.code, s.body = slotRefused, code, nil }

// refuseReconfig answers a reconfiguration, which this member does not carry out: it is disabled (zookeeper-protocol 3.9).
func (c *conn) refuseReconfig(s slot) bool {
	var q wire.ReconfigRequest
	code := kv.CodeReconfigDisabled
	if wire.Decode(s.body, &q) != nil {
		code = kv.CodeMarshallingError
	}
	s.refuse(code)
	return c.enqueue(s)
}

// answerable reports whether the reply of a write will be short enough, whatever comes of it. It is asked before the
// write is taken in: one that was carried out must not be answered with an error, and not with a reply that its client
// cannot read.
func (c *conn) answerable(op wire.Op, body []byte) bool {
	return c.fits(wire.MaxReplyGrowth*len(body)+wire.ReplySlack) || c.fits(wire.ReplyBound(op, body))
}

// slotOverhead is what a request without a body costs.
const slotOverhead = 64

// ping counts a ping; it is answered out of the ring (zookeeper-protocol 13.4).
func (c *conn) ping() bool {
	c.mu.Lock()
	c.pings++
	c.pingAt = c.readAt
	over := c.pings > maxConnSlots
	c.mu.Unlock()
	if over {
		c.close("pings piled up, replies are not read")
	}
	return !over
}

// enqueue puts a request into the ring, in the state that its place in the order demands (see conn), waiting
// for room or for results if it has to. It reports false when the connection is over.
func (c *conn) enqueue(q slot) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.closed && c.held > 0 && (c.held >= maxConnSlots || c.heldBytes+q.cost > maxConnBytes) {
		if !c.waitLocked(func() bool { return c.held == 0 || c.held < maxConnSlots && c.heldBytes+q.cost <= maxConnBytes }) {
			return false
		}
	}
	switch q.kind {
	case slotRead, slotRefused:
		switch t := c.tail; {
		case t == nil:
			q.view = c.port.tree.View()
		case !t.begun:
			t.wantView = true
		default:
			// The write is being applied: too late to ask for exactly its state, so let nothing later of this session
			// be submitted before the present state is taken.
			if !c.waitLocked(func() bool { return c.tail == nil }) {
				return false
			}
			q.view = c.port.tree.View()
		}
	case slotWrite:
		// Reads behind a sync see the state at which it was confirmed; this write must not be in it.
		// And what sets or takes away watches does it before the changes of this write, as the client sent them.
		if (c.openSync != nil || c.watching > 0) && !c.waitLocked(func() bool { return c.openSync == nil && c.watching == 0 }) {
			return false
		}
	case slotSync:
		// A sync is confirmed by another path than writes: it starts when the session's own writes have ended.
		if c.tail != nil && !c.waitLocked(func() bool { return c.tail == nil }) {
			return false
		}
	}
	if c.closed {
		return false
	}
	s := c.newSlotLocked()
	reply := append(s.reply[:0], q.reply...)
	*s = q
	s.conn, s.reply, s.at = c, reply, c.readAt
	s.charge, c.charge = c.charge, charge{}
	c.ring.push(s)
	c.held++
	c.heldBytes += s.cost
	if s.watching {
		c.watching++
	}
	switch s.kind {
	case slotWrite:
		c.tail = s
		c.batch = append(c.batch, s)
	case slotSync:
		c.tail, c.openSync = s, s
		c.batch = append(c.batch, s)
	}
	return true
}

// waitLocked submits what was batched, so that what is waited for can come, and waits for cond. c.mu is held
// on entry and exit. It reports false when the connection is over.
func (c *conn) waitLocked(cond func() bool) bool {
	if c.closed {
		return false
	}
	c.mu.Unlock()
	ok := c.submit() && c.tryPump()
	c.mu.Lock()
	if !ok || c.closed || cond() {
		return ok && !c.closed
	}
	c.waiting.Store(true)
	for !c.closed && !cond() {
		c.cond.Wait()
	}
	c.waiting.Store(false)
	return !c.closed
}

// newSlotLocked returns a slot, reused if possible.
func (c *conn) newSlotLocked() *slot {
	if n := len(c.free); n > 0 {
		s := c.free[n-1]
		c.free[n-1] = nil
		c.free = c.free[:n-1]
		return s
	}
	return spareSlots.Get().(*slot)
}

// submit hands the batched writes to the loop.
func (c *conn) submit() bool {
	if len(c.batch) == 0 {
		return true
	}
	ok := c.port.intake.push(c.batch)
	clear(c.batch)
	c.batch = c.batch[:0]
	return ok
}

// awaitEnd is for the time after a last request: nothing more is read; the end comes with its reply.
func (c *conn) awaitEnd() bool {
	if c.submit() && c.tryPump() {
		<-c.done
	}
	c.close("")
	return false
}
