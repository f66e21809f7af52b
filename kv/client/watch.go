package client

import (
	"kvd/kv"
	"kvd/kv/wire"
)

// EventType says what a watch saw.
type EventType int32

// The events of a watch. EventLost is the client's own: the connection that carried the watch is gone, the
// node may have changed since; read again to set a new one.
const (
	EventCreated         = EventType(wire.EventCreated)
	EventDeleted         = EventType(wire.EventDeleted)
	EventDataChanged     = EventType(wire.EventDataChanged)
	EventChildrenChanged = EventType(wire.EventChildrenChanged)
	EventLost            = EventType(-1)
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
	}
	return "unknown event"
}

// Event is what a one-shot watch delivers, once.
type Event struct {
	Type EventType
	Path string
	Zxid kv.Zxid // of the change; 0 if the server does not say (ZooKeeper before 3.9)
	Err  error   // with EventLost: why
}

// watches are the watches of one connection, by the path as the server knows it. Only the reader goroutine
// touches them.
type watches struct {
	data  map[string][]chan Event // set by exists and getData
	child map[string][]chan Event
}

// add registers a watch. Several on one path are one on the server, which sends one event for all.
func (w *watches) add(op wire.Op, path string) <-chan Event {
	ch := make(chan Event, 1)
	table := &w.data
	if op == wire.OpGetChildren || op == wire.OpGetChildren2 {
		table = &w.child
	}
	if *table == nil {
		*table = make(map[string][]chan Event)
	}
	(*table)[path] = append((*table)[path], ch)
	return ch
}

// fire delivers an event to the watches it concerns and forgets them.
func (w *watches) fire(path string, ev Event) {
	switch ev.Type {
	case EventChildrenChanged:
		deliver(w.child, path, ev)
	case EventDeleted:
		deliver(w.data, path, ev)
		deliver(w.child, path, ev)
	default:
		deliver(w.data, path, ev)
	}
}

func deliver(table map[string][]chan Event, path string, ev Event) {
	for _, ch := range table[path] {
		ch <- ev
		close(ch)
	}
	delete(table, path)
}

// lose ends all watches with the connection.
func (w *watches) lose(local func(string) string, err error) {
	for _, table := range []map[string][]chan Event{w.data, w.child} {
		for path := range table {
			deliver(table, path, Event{Type: EventLost, Path: local(path), Err: err})
		}
	}
}
