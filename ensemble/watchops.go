package ensemble

import (
	"kvd/kv"
	"kvd/kv/wire"
)

// setWatch registers the connection for the next change after the view that the read was answered from; if there was
// one already the event is queued at once. also: a node that is missing is watched too.
func (c *conn) setWatch(s *slot, path string, kind kv.WatchKind, also bool) {
	c.port.tree.WatchAt(s.view, path, kind, c, also)
	c.caughtUp()
}

// caughtUp makes the present state the oldest that later requests see, and takes all events up to it: those that setting
// watches has raised at once, which no reply further on must overtake, and those of changes that such a reply may show.
func (c *conn) caughtUp() {
	c.floor = c.port.tree.View()
	c.mu.Lock()
	c.takeEvents()
	c.mu.Unlock()
	c.mergeEvents()
}

// answerWatchOp is addWatch, checkWatches and removeWatches. They take effect at their place in the order of the
// connection, with its watches as they are then. No node is looked at, no permission asked (zookeeper-protocol 3.5).
//
// An event that was raised before removeWatches is answered but belongs behind the reply in the order of zxids still
// arrives, as it may with ZooKeeper.
func (c *conn) answerWatchOp(s *slot) progress {
	var q wire.PathKindRequest
	if wire.Decode(s.body, &q) != nil {
		return c.refuse(s, kv.CodeMarshallingError)
	}
	tree := c.port.tree
	if s.op == wire.OpAddWatch {
		switch q.Kind {
		case watchModePersistent:
			s.view = tree.AddWatch(q.Path, kv.Persistent, c)
		case watchModeRecursive:
			s.view = tree.AddWatch(q.Path, kv.Recursive, c)
		default:
			return c.refuse(s, kv.CodeMarshallingError)
		}
		c.caughtUp()
		if !c.beginReply(s, kv.CodeOK) {
			return broken
		}
		c.out = wire.AppendInt32(c.out, 0)
		return c.endReply()
	}
	t := kv.WatcherType(q.Kind)
	if t < kv.WatcherChildren || t > kv.WatcherRecursive {
		return c.refuse(s, kv.CodeMarshallingError)
	}
	found := false
	if s.op == wire.OpCheckWatches {
		found = tree.HasWatch(q.Path, t, c)
	} else {
		found = tree.RemoveWatch(q.Path, t, c)
	}
	if !found {
		return c.refuse(s, kv.CodeNoWatcher)
	}
	if !c.beginReply(s, kv.CodeOK) {
		return broken
	}
	return c.endReply()
}

// The modes of addWatch on the wire (zookeeper-protocol 4.7).
const (
	watchModePersistent int32 = 0
	watchModeRecursive  int32 = 1
)

// answerSetWatches sets the watches of a client that comes back (zookeeper-protocol 6.5). What happened meanwhile is told
// at once, in the order of the request, with the header zxid -1 and directly before the reply. The events do not go
// through the queue of events, so that their number has no bound but the request's.
func (c *conn) answerSetWatches(s *slot) progress {
	since, err := wire.WalkWatches(s.op, s.body, nil)
	if err != nil {
		return c.refuse(s, kv.CodeMarshallingError)
	}
	if len(s.body) > maxSetWatchesInline && !c.patient {
		return handOver
	}
	z := max(s.view.Zxid(), c.lastZxid)
	if !c.writeEvents(z) {
		return broken
	}
	c.lastZxid = z
	ok := true
	_, _ = wire.WalkWatches(s.op, s.body, func(list int, path string) bool { // was checked above
		if e, fire := c.rearm(s, kv.WatchList(list), path, since); fire {
			c.out = wire.AppendEventFrame(c.out, -1, int32(e), path)
			c.sent.Add(1)
			ok = len(c.out) < flushBytes || c.flushPiece()
		}
		return ok
	})
	if !ok {
		return broken
	}
	c.caughtUp()
	if !c.beginReply(s, kv.CodeOK) {
		return broken
	}
	return c.endReply()
}

// rearm carries out one entry of a setWatches. A client that says it has seen a negative zxid, as one that has seen nothing
// may, is told of every node that is there: the built-in ones have been changed at zxid 0.
func (c *conn) rearm(s *slot, list kv.WatchList, path string, since int64) (kv.EventType, bool) {
	if since < 0 && (list == kv.ListData || list == kv.ListChild) {
		if _, err := s.view.Exists(path); err == nil {
			if list == kv.ListData {
				return kv.EventNodeDataChanged, true
			}
			return kv.EventNodeChildrenChanged, true
		}
	}
	return c.port.tree.RearmAt(s.view, list, path, kv.Zxid(max(since, 0)), c)
}

// maxSetWatchesInline is the length of a setWatches that the reader answers itself.
const maxSetWatchesInline = 16 << 10
