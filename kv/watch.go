package kv

import "fmt"

// EventType says what happened to a node, with ZooKeeper's numbers. Part of the client protocol.
type EventType int32

// The events a server sends.
const (
	EventNodeCreated         EventType = 1
	EventNodeDeleted         EventType = 2
	EventNodeDataChanged     EventType = 3
	EventNodeChildrenChanged EventType = 4
)

// String names the event as ZooKeeper does.
func (e EventType) String() string {
	switch e {
	case EventNodeCreated:
		return "NodeCreated"
	case EventNodeDeleted:
		return "NodeDeleted"
	case EventNodeDataChanged:
		return "NodeDataChanged"
	case EventNodeChildrenChanged:
		return "NodeChildrenChanged"
	}
	return fmt.Sprintf("EventType(%d)", int32(e))
}

// Event tells a watcher of a change.
type Event struct {
	Type EventType
	Path string
	// Zxid orders the event among views: it must reach the client before any answer from a view at Zxid or
	// later, and after the answer that set the watch. It is the zxid of the change, except for an event that
	// WatchAt, AddWatchAt or Reset raises for a change they did not see happen: there it is the first that could have been.
	Zxid Zxid
	// Late marks an event that setting a watch raised for a change since the view of the answer. An earlier one-shot
	// watch of the same watcher may have told of that change: if an event of the same type and path is still on its way
	// to the client, the late one says nothing new.
	Late bool
}

// Watcher receives events, usually for one client connection. It is used as a map key, so it must be comparable:
// a pointer. Both methods may be called with locks of the Tree held and on the applier's way: they must not block and
// not call the Tree.
type Watcher interface {
	// Event queues an event. Events of Apply come in zxid order; one that WatchAt or AddWatchAt raises may be older than
	// what is queued already and belongs behind the last queued event that is not newer. An event of a change that is
	// just being published may still come right after RemoveWatcher.
	Event(Event)
	// MayRead reports whether events of a node with that list may go to the watcher (zookeeper-protocol 6.2). It is
	// asked only for lists that are not open.
	MayRead(AccessList) bool
}

// WatchKind is the table a watch is in (zookeeper-protocol 6.1).
type WatchKind uint8

const (
	// WatchData is for the node itself: created, deleted, data changed. Set by Get and Exists.
	WatchData WatchKind = iota
	// WatchChildren is for the list of children, and for the node's deletion. Set by Children.
	WatchChildren
)

// WatchMode says how long a watch lasts and what it covers (zookeeper-protocol 6.1).
type WatchMode uint8

const (
	// OneShot watches are set by reads; they go when they fire.
	OneShot WatchMode = iota
	// Persistent watches stay: NodeCreated, NodeDeleted, NodeDataChanged and NodeChildrenChanged of their path.
	Persistent
	// Recursive watches stay and cover the node and all its descendants: NodeCreated, NodeDeleted and
	// NodeDataChanged with the path of the changed node, never NodeChildrenChanged.
	Recursive
)

// WatchList names one of the lists of setWatches and setWatches2 (zookeeper-protocol 6.5).
type WatchList uint8

// The lists, in the order of the request.
const (
	ListData WatchList = iota
	ListExist
	ListChild
	ListPersistent
	ListRecursive
)

// WatcherType says which watches checkWatches and removeWatches mean, with ZooKeeper's numbers. Part of the client
// protocol.
type WatcherType int32

// The types, as ZooKeeper 3.9 understands them (zookeeper-protocol 4.6).
const (
	WatcherChildren   WatcherType = 1 // the one-shot watch of the children
	WatcherData       WatcherType = 2 // the one-shot watch of the node
	WatcherAny        WatcherType = 3 // all of the watcher's at the path
	WatcherPersistent WatcherType = 4
	WatcherRecursive  WatcherType = 5
)
