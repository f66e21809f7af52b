package client

import (
	"kvd/kv"
	"kvd/kv/wire"
)

// EventType says what a watch saw.
type EventType int32

// The events of a watch. EventLost and EventGap are the client's own.
const (
	EventCreated         = EventType(wire.EventCreated)
	EventDeleted         = EventType(wire.EventDeleted)
	EventDataChanged     = EventType(wire.EventDataChanged)
	EventChildrenChanged = EventType(wire.EventChildrenChanged)
	// EventLost ends a watch: the session is over, nothing more is told.
	EventLost = EventType(-1)
	// EventGap is for a Watcher: events may be missing in front of it, because the connection was another one for a while or because the
	// owner was slow. Read again what matters; what is told from here on is complete again.
	EventGap = EventType(-2)
)

// String names the event as ZooKeeper's tools do.
func (t EventType) String() string {
	switch t {
	case EventCreated:
		return "NodeCreated"
	case EventDeleted:
		return "NodeDeleted"
	case EventDataChanged:
		return "NodeDataChanged"
	case EventChildrenChanged:
		return "NodeChildrenChanged"
	case EventLost:
		return "WatchLost"
	case EventGap:
		return "EventsMissing"
	}
	return "unknown event"
}

// Event is what a watch delivers: a one-shot once, a Watcher again and again.
type Event struct {
	Type EventType
	Path string
	Zxid kv.Zxid // of the change; 0 if the server does not say (ZooKeeper before 3.9) or the event is the client's own
	// CaughtUp: the change happened while the client had no connection, or its event was lost with it. The event is the net effect of all that
	// happened to the node meanwhile, and Zxid need not be that of a change.
	CaughtUp bool
	Err      error // with EventLost: why
}

// watchTable is a kind of one-shot watches, by the path as the server knows it: each is one on the server, however many wait for it.
type watchTable map[string][]chan Event

// watches are the one-shot watches of a session. They survive its connections: the next one sets them again. Only the reader goroutine
// touches them.
type watches struct {
	data  watchTable // set by getData, and by exists of a node that is there
	exist watchTable // set by exists of a node that is not there
	child watchTable // set by getChildren
}

// add registers a watch that the server has set. missing: the node does not exist.
func (w *watches) add(op wire.Op, path string, missing bool) <-chan Event {
	ch := make(chan Event, 1)
	table := &w.data
	switch {
	case op == wire.OpGetChildren || op == wire.OpGetChildren2:
		table = &w.child
	case missing:
		table = &w.exist
	}
	if *table == nil {
		*table = make(watchTable)
	}
	(*table)[path] = append((*table)[path], ch)
	return ch
}

// fire delivers an event to the watches it concerns and forgets them.
func (w *watches) fire(path string, ev Event) {
	if ev.Type == EventChildrenChanged || ev.Type == EventDeleted {
		w.child.deliver(path, ev)
	}
	if ev.Type != EventChildrenChanged {
		w.data.deliver(path, ev)
		w.exist.deliver(path, ev)
	}
}

func (t watchTable) deliver(path string, ev Event) {
	for _, ch := range t[path] {
		ch <- ev
		close(ch)
	}
	delete(t, path)
}

// lose ends all watches with the session.
func (w *watches) lose(local func(string) string, err error) {
	for _, t := range []watchTable{w.data, w.exist, w.child} {
		for path := range t {
			t.deliver(path, Event{Type: EventLost, Path: local(path), Err: err})
		}
	}
}

// maxRearmBytes bounds one setWatches: the rest goes into another one, so that any number of watches passes a server's limit.
const maxRearmBytes = 64 << 10

// rearm appends the requests that set all watches again on a new connection, and returns how many they are. Who has seen zxid since is told
// what changed after it.
func (c *Client) rearm(dst []byte, since int64) (_ []byte, requests int) {
	var q wire.SetWatches2Request
	size := 0
	flush := func() {
		if size == 0 {
			return
		}
		q.Relative = since
		var mark int
		dst, mark = wire.BeginFrame(dst)
		if len(q.Persistent)+len(q.Recursive) == 0 { // servers before 3.6 know only these
			dst = (&wire.RequestHeader{Xid: wire.XidSetWatches, Op: wire.OpSetWatches}).AppendTo(dst)
			dst = q.SetWatchesRequest.AppendTo(dst)
		} else {
			dst = (&wire.RequestHeader{Xid: wire.XidSetWatches, Op: wire.OpSetWatches2}).AppendTo(dst)
			dst = q.AppendTo(dst)
		}
		dst = wire.EndFrame(dst, mark)
		q, size = wire.SetWatches2Request{}, 0
		requests++
	}
	put := func(list func() *[]string, path string) {
		if size+4+len(path) > maxRearmBytes {
			flush()
		}
		*list() = append(*list(), path)
		size += 4 + len(path)
	}
	for path := range c.watches.data {
		put(func() *[]string { return &q.Data }, path)
	}
	for path := range c.watches.exist {
		put(func() *[]string { return &q.Exist }, path)
	}
	for path := range c.watches.child {
		put(func() *[]string { return &q.Child }, path)
	}
	c.watchers.mu.Lock()
	defer c.watchers.mu.Unlock()
	for key := range c.watchers.by {
		if key.recursive {
			put(func() *[]string { return &q.Recursive }, key.path)
		} else {
			put(func() *[]string { return &q.Persistent }, key.path)
		}
	}
	flush()
	return dst, requests
}
