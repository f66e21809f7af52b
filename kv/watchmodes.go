package kv

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

// AddWatchAt sets a persistent or recursive watch for an answer from v.
func (t *Tree) AddWatchAt(v *View, path string, mode WatchMode, w Watcher) {
	t.WatchAt(v, path, WatchData, w, true)
	if mode == Persistent {
		t.WatchAt(v, path, WatchChildren, w, true)
	}
}

// RearmAt sets the watch that an entry of setWatches asks for, answered from v, or returns the event that the
// client must get instead.
func (t *Tree) RearmAt(v *View, list WatchList, path string, since Zxid, w Watcher) (EventType, bool) {
	st, err := v.Exists(path)
	switch list {
	case ListData, ListChild:
		if err != nil {
			return EventNodeDeleted, true
		}
		if list == ListData && st.Mzxid > since {
			return EventNodeDataChanged, true
		}
		if list == ListChild && st.Pzxid > since {
			return EventNodeChildrenChanged, true
		}
		if list == ListChild {
			t.WatchAt(v, path, WatchChildren, w, false)
			return 0, false
		}
	case ListExist:
		if err == nil {
			return EventNodeCreated, true
		}
	case ListPersistent, ListRecursive:
		t.AddWatchAt(v, path, WatchMode(list-ListPersistent)+Persistent, w)
		return 0, false
	}
	t.WatchAt(v, path, WatchData, w, true)
	return 0, false
}

// HasWatch reports whether the watcher has a watch of that type at path.
func (t *Tree) HasWatch(path string, wt WatcherType, w Watcher) bool {
	s := &t.stripes[stripeOf(path)]
	s.mu.Lock()
	defer s.mu.Unlock()
	_, data := s.places[w][watchKey{watchPath(path), WatchData}]
	_, child := s.places[w][watchKey{watchPath(path), WatchChildren}]
	return child && wt == WatcherChildren || data && wt == WatcherData || (data || child) && wt == WatcherAny
}

// RemoveWatch removes the watcher's watches of that type at path and reports whether there was one.
func (t *Tree) RemoveWatch(path string, wt WatcherType, w Watcher) bool {
	s := &t.stripes[stripeOf(path)]
	s.mu.Lock()
	defer s.mu.Unlock()
	data := wt != WatcherChildren && s.removeLocked(watchKey{watchPath(path), WatchData}, w)
	child := wt != WatcherData && s.removeLocked(watchKey{watchPath(path), WatchChildren}, w)
	return data || child
}

// WatchStats counts the data table.
func (t *Tree) WatchStats() (watchers, paths, watches int) {
	all := map[Watcher]struct{}{}
	last := ""
	t.EachWatch(func(path string, w Watcher) bool {
		all[w] = struct{}{}
		if path != last {
			last = path
			paths++
		}
		watches++
		return true
	})
	return len(all), paths, watches
}

// EachWatch calls yield with every watch of the data table, those of a path together, until it returns false.
func (t *Tree) EachWatch(yield func(path string, w Watcher) bool) {
	for i := range t.stripes {
		s := &t.stripes[i]
		s.mu.Lock()
		lists := make(map[string][]Watcher)
		for k, list := range s.watchers {
			if k.kind == WatchData {
				lists[k.path] = append([]Watcher(nil), list...)
			}
		}
		s.mu.Unlock()
		for path, list := range lists {
			for _, w := range list {
				if !yield(path, w) {
					return
				}
			}
		}
	}
}
