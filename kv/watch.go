package kv

import (
	"fmt"
	"sort"
	"strings"
	"sync"

	"github.com/cespare/xxhash/v2"
)

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
	// WatchAt or Reset raises for a change they did not see happen: there it is the first that could have been.
	Zxid Zxid
}

// Watcher receives events, usually for one client connection. It is used as a map key, so it must be comparable:
// a pointer.
type Watcher interface {
	// Event queues an event. It is called with watch locks held: it must not block and not call the Tree. Events
	// of Apply come in zxid order; one that WatchAt raises may be older than what is queued already and belongs
	// behind the last queued event that is not newer.
	Event(Event)
	// MayRead reports whether events of a node with that list may go to the watcher (zookeeper-protocol 6.2). It is
	// asked only for lists that are not open, under the same rules as Event.
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

// stripeCount is the number of independently locked parts of the watch tables.
const stripeCount = 256

// stripeSet is a set of stripes.
type stripeSet [stripeCount / 64]uint64

func (s *stripeSet) add(i int) { s[i>>6] |= 1 << (i & 63) }

// stripeOf spreads paths over stripes. Both tables of a path are in the same one.
func stripeOf(path string) int {
	if path == "" {
		path = RootPath
	}
	return int(xxhash.Sum64String(path) % stripeCount)
}

// watchKey names the watches of one path in one table.
type watchKey struct {
	path string
	kind WatchKind
}

// stripe is a part of the watch tables. The two maps say the same from two sides: places[w][k] is the position of
// w in watchers[k].
type stripe struct {
	mu       sync.Mutex
	watchers map[watchKey][]Watcher       // under mu
	places   map[Watcher]map[watchKey]int // under mu
	_        [64 - 8 - 2*8]byte           // a cache line each
}

func (s *stripe) init() {
	s.watchers = make(map[watchKey][]Watcher)
	s.places = make(map[Watcher]map[watchKey]int)
}

// addLocked registers w once.
func (s *stripe) addLocked(k watchKey, w Watcher) {
	mine := s.places[w]
	if mine == nil {
		mine = make(map[watchKey]int, 1)
		s.places[w] = mine
	}
	if _, ok := mine[k]; ok {
		return
	}
	list, known := s.watchers[k]
	if !known {
		k.path = strings.Clone(k.path) // the caller's string may be part of a request
	}
	mine[k] = len(list)
	s.watchers[k] = append(list, w)
}

// takeLocked removes and returns all watchers of k.
func (s *stripe) takeLocked(k watchKey) []Watcher {
	list, ok := s.watchers[k]
	if !ok {
		return nil
	}
	delete(s.watchers, k)
	for _, w := range list {
		s.forgetLocked(k, w)
	}
	return list
}

func (s *stripe) forgetLocked(k watchKey, w Watcher) {
	mine := s.places[w]
	if len(mine) == 1 {
		delete(s.places, w)
		return
	}
	delete(mine, k)
}

// removeLocked removes one watch.
func (s *stripe) removeLocked(k watchKey, w Watcher) bool {
	at, ok := s.places[w][k]
	if !ok {
		return false
	}
	s.forgetLocked(k, w)
	list := s.watchers[k]
	last := len(list) - 1
	if last == 0 {
		delete(s.watchers, k)
		return true
	}
	if at != last {
		list[at] = list[last]
		s.places[list[at]][k] = at
	}
	list[last] = nil
	s.watchers[k] = list[:last]
	return true
}

// watch registers w if the current view allows it, and returns that view.
func (t *Tree) watch(path string, kind WatchKind, w Watcher, also bool) *View {
	s := &t.stripes[stripeOf(path)]
	path = watchPath(path)
	s.mu.Lock()
	defer s.mu.Unlock()
	v := t.view.Load()
	if !also {
		if _, ok := v.lookup(path); !ok {
			return v
		}
	}
	s.addLocked(watchKey{path, kind}, w)
	return v
}

// watchPath is the spelling under which changes look for watches.
func watchPath(path string) string {
	if path == "" {
		return RootPath
	}
	return path
}

// GetWatch sets a one-shot data watch if the node exists and returns the view it was set against, in which the
// caller looks up the answer. A watch is kept once for each (watcher, path, kind).
func (t *Tree) GetWatch(path string, w Watcher) *View { return t.watch(path, WatchData, w, false) }

// ExistsWatch sets a one-shot data watch, also for a node that does not exist, and returns the view it was set
// against. A path with NUL, which Exists refuses, gets no watch.
func (t *Tree) ExistsWatch(path string, w Watcher) *View {
	return t.watch(path, WatchData, w, strings.IndexByte(path, 0) < 0)
}

// ChildrenWatch sets a one-shot child watch if the node exists and returns the view it was set against.
func (t *Tree) ChildrenWatch(path string, w Watcher) *View {
	return t.watch(path, WatchChildren, w, false)
}

// WatchAt sets a one-shot watch for a read that is answered from v, a view of this tree that may not be the
// current one any more. If the node changed since v, the event is queued at once instead, with the zxid after
// v's, so that it goes out right behind the answer. also says whether to watch a node that v does not have, as
// exists does. A node that was made and removed again since, or the other way round with the same facts, counts
// as unchanged, as with ZooKeeper's setWatches; a node that was removed and made anew counts as deleted.
func (t *Tree) WatchAt(v *View, path string, kind WatchKind, w Watcher, also bool) {
	s := &t.stripes[stripeOf(path)]
	path = watchPath(path)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := v.lookup(path); !ok && (!also || strings.IndexByte(path, 0) >= 0) {
		return
	}
	if e, changed := difference(v, t.view.Load(), path, kind); changed {
		w.Event(Event{Type: e, Path: strings.Clone(path), Zxid: v.zxid + 1})
		return
	}
	s.addLocked(watchKey{path, kind}, w)
}

// difference returns the event that a watch set at a view must get if the state is that of another, later one.
func difference(was, now *View, path string, kind WatchKind) (EventType, bool) {
	if was == now {
		return 0, false
	}
	var a, b node
	existed, exists := was.node(path, &a), now.node(path, &b)
	switch {
	case !existed && !exists:
		return 0, false
	case !existed && kind == WatchChildren:
		return 0, false
	case !existed:
		return EventNodeCreated, true
	case !exists || a.czxid != b.czxid:
		return EventNodeDeleted, true
	case kind == WatchData:
		changed := a.mzxid != b.mzxid || a.version != b.version || a.data != b.data || a.null != b.null
		return EventNodeDataChanged, changed
	default:
		return EventNodeChildrenChanged, was.family(path, &a).pzxid != now.family(path, &b).pzxid
	}
}

// fireLocked queues the events of one change: data table of the node, child table of the node, child table of
// the parent (zookeeper-protocol 6.2). The stripes of both are locked.
func (t *Tree) fireLocked(c *change) {
	s := &t.stripes[stripeOf(c.path)]
	var event EventType
	switch c.kind {
	case nodeCreated:
		event = EventNodeCreated
	case nodeDeleted:
		event = EventNodeDeleted
	case dataChanged:
		event = EventNodeDataChanged
	}
	if len(s.watchers) > 0 {
		told := s.fire(watchKey{c.path, WatchData}, event, c.zxid, nil)
		if c.kind == nodeDeleted {
			s.fire(watchKey{c.path, WatchChildren}, event, c.zxid, told)
		}
	}
	if c.kind == dataChanged {
		return
	}
	parent := parentOf(c.path)
	if s = &t.stripes[stripeOf(parent)]; len(s.watchers) > 0 {
		s.fire(watchKey{parent, WatchChildren}, EventNodeChildrenChanged, c.zxid, nil)
	}
}

// fire takes the watchers of k and queues the event for each but those that have been told already.
func (s *stripe) fire(k watchKey, event EventType, z Zxid, told []Watcher) []Watcher {
	list := s.takeLocked(k)
	if len(list) == 0 {
		return nil
	}
	e := Event{Type: event, Path: strings.Clone(k.path), Zxid: z} // k.path is part of the entry's payload
	var skip map[Watcher]struct{}
	if len(told) > 0 {
		skip = make(map[Watcher]struct{}, len(told))
		for _, w := range told {
			skip[w] = struct{}{}
		}
	}
	for _, w := range list {
		if _, ok := skip[w]; !ok {
			w.Event(e)
		}
	}
	return list
}

// fireDifferencesLocked queues an event for every watch whose node differs between the views, in the order of
// paths.
func (s *stripe) fireDifferencesLocked(was, now *View) {
	keys := make([]watchKey, 0, len(s.watchers))
	for k := range s.watchers {
		keys = append(keys, k)
	}
	sort.Slice(keys, func(i, j int) bool {
		if keys[i].path != keys[j].path {
			return keys[i].path < keys[j].path
		}
		return keys[i].kind < keys[j].kind
	})
	var deleted string // whose data watchers have been told
	var told []Watcher
	for _, k := range keys {
		event, changed := difference(was, now, k.path, k.kind)
		if !changed {
			continue
		}
		if k.path != deleted {
			told = nil
		}
		list := s.fire(k, event, was.zxid+1, told)
		if event == EventNodeDeleted && k.kind == WatchData {
			deleted, told = k.path, list
		}
	}
}

// RemoveWatcher removes all watches of w, as when its connection ends. Nothing is sent.
func (t *Tree) RemoveWatcher(w Watcher) {
	for i := range t.stripes {
		s := &t.stripes[i]
		s.mu.Lock()
		for k := range s.places[w] { // any order: removal is silent
			s.removeLocked(k, w)
		}
		s.mu.Unlock()
	}
}

// WatchCount returns the number of watches.
func (t *Tree) WatchCount() int {
	n := 0
	for i := range t.stripes {
		s := &t.stripes[i]
		s.mu.Lock()
		for _, list := range s.watchers {
			n += len(list)
		}
		s.mu.Unlock()
	}
	return n
}
