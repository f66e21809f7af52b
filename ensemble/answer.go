package ensemble

import (
	"kvd/kv"
	"kvd/kv/wire"
)

// progress says how far pump came with a slot.
type progress uint8

const (
	answered progress = iota
	// handOver: the reply is long, and whoever pumps must go on reading requests. Nothing of it has been written.
	handOver
	// broken: the connection is over.
	broken
)

// fits reports whether a reply with a record of that length may be sent (Config.MaxReplyBytes). The bound is of the
// frame's body, header included: that is what a client compares with its jute.maxbuffer.
func (c *conn) fits(record int) bool {
	return wire.ReplyHeaderBytes+record <= c.port.cfg.MaxReplyBytes
}

// answer writes one slot's reply, and before it the events that it must follow. wmu is held.
func (c *conn) answer(s *slot) progress {
	switch s.kind {
	case slotRead:
		if s.view == nil {
			s.view = c.lastView
		}
		if s.watching {
			c.present(s)
		} else {
			c.raise(s)
		}
		p := c.answerRead(s)
		if p != handOver {
			s.view = nil
		}
		return p
	case slotAside:
		// It says nothing of the state, so it moves no zxid and waits for no event.
		c.openReply(s.xid, int64(s.zxid), s.code)
		c.out = append(c.out, s.reply...)
		return c.endReply()
	case slotRefused:
		if s.view == nil {
			s.view = c.lastView
		}
		s.zxid = c.lastZxid
		if s.view != nil {
			s.zxid = max(s.zxid, s.view.Zxid())
		}
	case slotSync:
		c.raise(s)
		s.zxid = max(s.zxid, s.view.Zxid())
		c.lastView = s.view
	default:
		c.lastView = s.view
	}
	if !c.writeEvents(s.zxid) {
		return broken
	}
	c.lastZxid = max(c.lastZxid, s.zxid)
	c.openReply(s.xid, int64(s.zxid), s.code)
	c.out = append(c.out, s.reply...)
	return c.endReply()
}

// present makes a request that touches watches one about the present state: its own later writes wait for it (enqueue), so
// they are not in that. All events up to it are taken, and what is behind the request sees no older state.
func (c *conn) present(s *slot) {
	if v := c.port.tree.View(); v.Zxid() > s.view.Zxid() {
		s.view = v
		c.caughtUp()
	}
}

// raise keeps a request from being answered from an older state than those before it.
func (c *conn) raise(s *slot) {
	if c.floor != nil && c.floor.Zxid() > s.view.Zxid() {
		s.view = c.floor
	}
}

// openReply begins a frame with a reply's header. The record is appended to c.out, then endReply is called.
func (c *conn) openReply(xid int32, zxid int64, code kv.Code) {
	c.out, c.mark = wire.BeginFrame(c.out)
	c.out = (&wire.ReplyHeader{Xid: xid, Zxid: zxid, Err: code}).AppendTo(c.out)
}

// endReply ends the frame that openReply began.
func (c *conn) endReply() progress {
	c.out = wire.EndFrame(c.out, c.mark)
	c.sizes.add(int64(len(c.out) - c.mark - 4))
	return answered
}

// replySizes gathers the lengths of the replies of a batch for the member's counters.
type replySizes struct{ n, sum, last, least, most int64 }

func (r *replySizes) add(size int64) {
	if r.n == 0 || size < r.least {
		r.least = size
	}
	r.most = max(r.most, size)
	r.sum += size
	r.last = size
	r.n++
}

// beginReply opens the reply of a read, events first. The zxid is that of its view, unless the connection has been told
// of a later one: header zxids never fall. It reports false when the connection is over.
func (c *conn) beginReply(s *slot, code kv.Code) bool {
	z := max(s.view.Zxid(), c.lastZxid)
	if !c.writeEvents(z) {
		return false
	}
	c.lastZxid = z
	c.openReply(s.xid, int64(z), code)
	return true
}

// refuse answers a read with an error.
func (c *conn) refuse(s *slot, code kv.Code) progress {
	if !c.beginReply(s, code) {
		return broken
	}
	return c.endReply()
}

// answerRead answers a read from its view and sets the watch it asked for (zookeeper-protocol 3.5). The order is:
// checks, length, watch, events, reply: a reply that is refused for its length sets no watch.
func (c *conn) answerRead(s *slot) progress {
	switch s.op {
	case wire.OpExists, wire.OpGetData, wire.OpGetChildren, wire.OpGetChildren2:
		// Decoded without wire.Decode: through an interface, record and reader would be allocated.
		var q wire.PathWatchRequest
		r := wire.NewReader(s.body)
		if q.DecodeFrom(&r); r.Err() != nil {
			return c.refuse(s, kv.CodeMarshallingError)
		}
		switch s.op {
		case wire.OpExists:
			return c.answerExists(s, &q)
		case wire.OpGetData:
			return c.answerGetData(s, &q)
		}
		return c.answerChildren(s, &q)
	case wire.OpGetACL, wire.OpGetAllChildrenNumber:
		var q wire.PathRequest
		if wire.Decode(s.body, &q) != nil {
			return c.refuse(s, kv.CodeMarshallingError)
		}
		if s.op == wire.OpGetACL {
			return c.answerGetACL(s, q.Path)
		}
		return c.answerDescendants(s, q.Path)
	case wire.OpGetEphemerals:
		return c.answerEphemerals(s)
	case wire.OpMultiRead:
		return c.answerMultiRead(s)
	case wire.OpWhoAmI:
		return c.answerWhoAmI(s)
	case wire.OpAddWatch, wire.OpCheckWatches, wire.OpRemoveWatches:
		return c.answerWatchOp(s)
	case wire.OpSetWatches, wire.OpSetWatches2:
		return c.answerSetWatches(s)
	}
	return c.refuse(s, kv.CodeUnimplemented) // no operation of the table comes here
}

func (c *conn) answerExists(s *slot, q *wire.PathWatchRequest) progress {
	stat, err := c.reader(s).Exists(q.Path)
	code := kv.CodeOf(err)
	if q.Watch && (code == kv.CodeOK || code == kv.CodeNoNode) {
		c.setWatch(s, q.Path, kv.WatchData, true)
	}
	if code != kv.CodeOK {
		return c.refuse(s, code)
	}
	if !c.beginReply(s, code) {
		return broken
	}
	c.port.configNode(q.Path, nil, &stat)
	c.out = wire.AppendStat(c.out, &stat)
	return c.endReply()
}

func (c *conn) answerGetData(s *slot, q *wire.PathWatchRequest) progress {
	data, stat, err := c.reader(s).Get(q.Path)
	if err != nil {
		return c.refuse(s, kv.CodeOf(err))
	}
	data = c.port.configNode(q.Path, data, &stat)
	size := 4 + len(data) + wire.StatBytes
	switch {
	case !c.fits(size):
		return c.refuse(s, kv.CodeMarshallingError)
	case size > flushBytes && !c.patient:
		return handOver
	}
	if q.Watch {
		c.setWatch(s, q.Path, kv.WatchData, false)
	}
	if size > flushBytes {
		return c.stream(s, size, func(w *stream) {
			w.buffer(data)
			w.stat(&stat)
		})
	}
	if !c.beginReply(s, kv.CodeOK) {
		return broken
	}
	c.out = wire.AppendStat(wire.AppendBuffer(c.out, data), &stat)
	return c.endReply()
}

// answerChildren is getChildren and getChildren2. A short list is gathered; a long one is counted first and then written
// name by name, twice through the view and never a list in memory.
func (c *conn) answerChildren(s *slot, q *wire.PathWatchRequest) progress {
	names, stat, err := c.reader(s).Names(q.Path)
	if err != nil {
		return c.refuse(s, kv.CodeOf(err))
	}
	c.port.configNode(q.Path, nil, &stat)
	tail := 0
	if s.op == wire.OpGetChildren2 {
		tail = wire.StatBytes
	}
	size := 4 + tail
	list := c.names[:0]
	if names.Len() <= maxKeptNames {
		names.Each(func(name string) bool {
			list = append(list, name)
			size += 4 + len(name)
			return true
		})
		c.names = list
	} else if c.patient {
		size += sizeOf(names)
	} else {
		return handOver
	}
	if !c.fits(size) || size > flushBytes {
		clear(list) // they keep the view
	}
	switch {
	case !c.fits(size):
		return c.refuse(s, kv.CodeMarshallingError)
	case size > flushBytes && !c.patient:
		return handOver
	}
	if q.Watch {
		c.setWatch(s, q.Path, kv.WatchChildren, false)
	}
	if size > flushBytes || names.Len() > maxKeptNames {
		return c.stream(s, size, func(w *stream) {
			w.names(names)
			if tail > 0 {
				w.stat(&stat)
			}
		})
	}
	if !c.beginReply(s, kv.CodeOK) {
		return broken
	}
	c.out = wire.AppendStrings(c.out, list)
	clear(list)
	if tail > 0 {
		c.out = wire.AppendStat(c.out, &stat)
	}
	return c.endReply()
}

// maxKeptNames bounds the list of children that an idle connection keeps.
const maxKeptNames = 1024

// sizeOf is the length of the elements of a list of names.
func sizeOf(names kv.Names) (size int) {
	names.Each(func(name string) bool {
		size += 4 + len(name)
		return true
	})
	return size
}

func (c *conn) answerGetACL(s *slot, path string) progress {
	list, stat, err := c.reader(s).ACL(path)
	if err != nil {
		return c.refuse(s, kv.CodeOf(err))
	}
	c.port.configNode(path, nil, &stat)
	if !c.fits(wire.ACLBytes(list) + wire.StatBytes) {
		return c.refuse(s, kv.CodeMarshallingError)
	}
	if !c.beginReply(s, kv.CodeOK) {
		return broken
	}
	c.out = wire.AppendStat(wire.AppendACL(c.out, list), &stat)
	return c.endReply()
}

func (c *conn) answerDescendants(s *slot, path string) progress {
	n, err := c.reader(s).Descendants(path)
	if err != nil {
		return c.refuse(s, kv.CodeOf(err))
	}
	if !c.beginReply(s, kv.CodeOK) {
		return broken
	}
	c.out = wire.AppendInt32(c.out, n)
	return c.endReply()
}

// answerEphemerals lists the session's ephemeral nodes below a prefix of text; null is the empty one.
func (c *conn) answerEphemerals(s *slot) progress {
	var q wire.SyncRecord
	if wire.Decode(s.body, &q) != nil {
		return c.refuse(s, kv.CodeMarshallingError)
	}
	n, size := 0, 4
	s.view.EachEphemeralWithPrefix(s.session, q.Path, func(path string) bool {
		n++
		size += 4 + len(path)
		return c.fits(size) && (c.patient || size <= flushBytes)
	})
	switch {
	case !c.fits(size):
		return c.refuse(s, kv.CodeMarshallingError)
	case size > flushBytes && !c.patient:
		return handOver
	}
	return c.stream(s, size, func(w *stream) {
		w.int32(int32(n))
		s.view.EachEphemeralWithPrefix(s.session, q.Path, func(path string) bool {
			w.string(path)
			return !w.failed
		})
	})
}

// answerMultiRead answers every operation from the same view and on its own: one that fails has its code in its place
// (zookeeper-protocol 3.7). The replies are counted first: a megabyte of requests may ask for a terabyte.
func (c *conn) answerMultiRead(s *slot) progress {
	ops, writesOnly, err := wire.DecodeMultiRead(s.body, c.reads[:0])
	c.reads = ops
	defer func() {
		clear(c.reads)
		if cap(c.reads) > maxKeptReads {
			c.reads = nil
		}
	}()
	if err != nil {
		if !c.beginReply(s, kv.CodeMarshallingError) {
			return broken
		}
		if writesOnly {
			c.out = wire.AppendMultiEnd(c.out)
		}
		return c.endReply()
	}
	if len(ops) > maxKeptReads && !c.patient {
		return handOver
	}
	rd := c.reader(s)
	size := wire.MultiHeaderBytes // the end
	for i := range ops {
		size += wire.MultiHeaderBytes
		data, names, _, err := c.readOne(rd, &ops[i])
		switch {
		case err != nil:
			size += 4
		case ops[i].Op == wire.OpGetData:
			size += 4 + len(data) + wire.StatBytes
		case names.Len() > maxKeptNames && !c.patient:
			return handOver
		default:
			size += 4 + sizeOf(names)
		}
		if !c.fits(size) {
			return c.refuse(s, kv.CodeMarshallingError)
		}
	}
	if size > flushBytes && !c.patient {
		return handOver
	}
	return c.stream(s, size, func(w *stream) {
		for i := range ops {
			data, names, stat, err := c.readOne(rd, &ops[i])
			if err != nil {
				w.multiError(kv.CodeOf(err))
				continue
			}
			w.multiHeader(ops[i].Op)
			if ops[i].Op == wire.OpGetData {
				w.buffer(data)
				w.stat(&stat)
			} else {
				w.names(names)
			}
			if w.failed {
				return
			}
		}
		w.multiEnd()
	})
}

// maxKeptReads bounds the list of operations that a connection keeps.
const maxKeptReads = 256

// readOne carries out one operation of a multiRead.
func (c *conn) readOne(rd kv.Reader, op *wire.ReadOp) (data []byte, names kv.Names, stat kv.Stat, err error) {
	if op.Op == wire.OpGetData {
		data, stat, err = rd.Get(op.Path)
		data = c.port.configNode(op.Path, data, &stat)
	} else {
		names, stat, err = rd.Names(op.Path)
	}
	return data, names, stat, err
}
