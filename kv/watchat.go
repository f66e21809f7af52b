package kv

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// stripeCount is the number of independently locked parts of the watch tables.
const stripeCount = 256

// stripe is a part of the watch tables: the watches at the paths whose hash falls to it, in both of ZooKeeper's tables
// and of all modes.
type stripe struct {
	mu    sync.Mutex
	table watchTable          // under mu
	_     [128 - 8 - 112]byte // whole cache lines
}

// watches are the watch tables of a Tree.
//
// Every watch is in the stripe of its path. A recursive one is in recursive as well, where changes look for it on
// their way up; that table has one lock.
//
// Lock order: publishing, recursive.mu, stripes in ascending order, party.mu; the watcher's own locks come last.
type watches struct {
	seed maphash.Seed
	// front is the view that the tables stand at: a watch that is set gets the changes after it. It runs ahead of
	// Tree.view while a publish delivers its events. It changes with the locks of all touched paths held.
	front   atomic.Pointer[View]
	parties parties

	// publishing is held by the applier while events are on their way to the watchers. Whoever sets a watch and finds
	// that its node has changed since the answer takes it: the state that he then tells of is published, and earlier
	// events about it are queued. So does GetWatch (and its like), whose answer is from the present. Nobody else waits for
	// a delivery.
	publishing sync.Mutex
	recursive  stripe
	stripes    [stripeCount]stripe
}

// hashOf hashes a path. The lowest bits choose the stripe, the others the place in its table. The seed is drawn for each
// tree, so that no client can aim at one stripe.
func (t *watches) hashOf(path string) uint32 { return fold(maphash.String(t.seed, path)) }

// fold makes a hash of the tables. None is 0: a wordSet could not hold it, and the watch would outlive its watcher.
func fold(h uint64) uint32 {
	return max(1, uint32(h>>32)^uint32(h))
}

// longPath is the length from which on the hashes of the paths above a path are made in one pass. Computing each by
// itself takes a time that grows with the square of the length, under a lock that every publish takes.
const longPath = 256

// eachAbove calls fn with every path above path and its hash, in no promised order, until fn returns false.
func (t *watches) eachAbove(path string, fn func(above string, hash uint32) bool) {
	if len(path) < longPath {
		for path != RootPath {
			if path = parentOf(path); !fn(path, t.hashOf(path)) {
				return
			}
		}
		return
	}
	if !fn(RootPath, t.hashOf(RootPath)) {
		return
	}
	var h maphash.Hash
	h.SetSeed(t.seed)
	for from := 0; ; {
		n := strings.IndexByte(path[from+1:], '/') // not the one at the start
		if n < 0 {
			return
		}
		to := from + 1 + n
		h.WriteString(path[from:to])
		from = to
		if above := path[:to]; above != RootPath && !fn(above, fold(h.Sum64())) {
			return
		}
	}
}

func (t *watches) stripeOf(hash uint32) *stripe { return &t.stripes[hash%stripeCount] }

// watchPath is the spelling under which changes look for watches.
func watchPath(path string) string {
	if path == "" {
		return RootPath
	}
	return path
}

// addLocked adds watches of p at path. The stripe is locked, and the recursive table too if m is modeRecursive.
func (t *watches) addLocked(path string, hash uint32, p *party, m watchModes) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return
	}
	was := t.stripeOf(hash).table.add(path, hash, p.id, m)
	if was == 0 {
		p.places.add(hash, 0)
	}
	if m&^was&modeRecursive != 0 {
		t.recursive.table.add(path, hash, p.id, modeRecursive)
		p.roots.add(hash, 0)
	}
}

// GetWatch sets a one-shot data watch if the node exists and returns the view it was set against, in which the
// caller looks up the answer. A watch is kept once for each (watcher, path, kind).
func (t *Tree) GetWatch(path string, w Watcher) *View { return t.watch(path, WatchData, w, false) }

// ExistsWatch sets a one-shot data watch, also for a node that does not exist, and returns the view it was set
// against. A path with NUL, which Exists refuses, gets no watch.
func (t *Tree) ExistsWatch(path string, w Watcher) *View { return t.watch(path, WatchData, w, true) }

// ChildrenWatch sets a one-shot child watch if the node exists and returns the view it was set against.
func (t *Tree) ChildrenWatch(path string, w Watcher) *View {
	return t.watch(path, WatchChildren, w, false)
}

// AddWatch sets a persistent or recursive watch, on a node that may be missing, and returns the view that it was set
// against: the watch tells of every change after it, and of none before.
func (t *Tree) AddWatch(path string, mode WatchMode, w Watcher) *View {
	t.watches.publishing.Lock()
	defer t.watches.publishing.Unlock()
	v := t.view.Load()
	t.AddWatchAt(v, path, mode, w)
	return v
}

func (t *Tree) watch(path string, kind WatchKind, w Watcher, also bool) *View {
	t.watches.publishing.Lock() // the view is then the one that the tables stand at
	defer t.watches.publishing.Unlock()
	v := t.view.Load()
	t.WatchAt(v, path, kind, w, also)
	return v
}

// WatchAt sets a one-shot watch for a read that is answered from v, a view of this tree that may not be the
// current one any more. If the node changed since v, the event is queued at once instead, with the zxid after
// v's, so that it goes out right behind the answer. also says whether to watch a node that v does not have, as
// exists does. A node that was made and removed again since, or the other way round with the same facts, counts
// as unchanged, as with ZooKeeper's setWatches; a node that was removed and made anew counts as deleted.
//
// The views a watcher passes must not grow older from call to call. No event is queued for a change that another
// watch of the watcher, persistent or recursive, has told already. Watches of a watcher must not be set while
// RemoveWatcher runs for it.
func (t *Tree) WatchAt(v *View, path string, kind WatchKind, w Watcher, also bool) {
	path = watchPath(path)
	if _, ok := v.lookup(path); !ok && (!also || strings.IndexByte(path, 0) >= 0) {
		return
	}
	m := modeData
	if kind == WatchChildren {
		m = modeChild
	}
	hash := t.watches.hashOf(path)
	p := t.watches.parties.join(w)
	s := t.watches.stripeOf(hash)
	s.mu.Lock()
	_, changed := difference(v, t.watches.front.Load(), path, kind)
	if !changed {
		t.watches.addLocked(path, hash, p, m)
	}
	s.mu.Unlock()
	if changed {
		t.raiseOneShot(v, path, kind, p, m)
	}
}

// raiseOneShot is WatchAt for a node that seems to have changed.
func (t *Tree) raiseOneShot(v *View, path string, kind WatchKind, p *party, m watchModes) {
	a := &t.watches
	hash := a.hashOf(path)
	a.publishing.Lock()
	defer a.publishing.Unlock()
	a.recursive.mu.Lock()
	s := a.stripeOf(hash)
	s.mu.Lock()
	now := a.front.Load()
	event, changed := difference(v, now, path, kind)
	if !changed {
		a.addLocked(path, hash, p, m)
	}
	has := s.table.modes(path, hash, p.id)
	told := has&modePersist != 0 || event != EventNodeChildrenChanged && a.coveredLocked(path, p.id)
	s.mu.Unlock()
	a.recursive.mu.Unlock()
	if changed && !told {
		raise(v, now, event, strings.Clone(path), p.w)
	}
}

// raise queues an event for what changed between two views, if the watcher may know.
func raise(was, now *View, event EventType, path string, w Watcher) {
	if mayRead(w, accessBetween(was, now, event, path)) {
		w.Event(Event{Type: event, Path: path, Zxid: was.zxid + 1, Late: true})
	}
}

// accessBetween returns the list by which events about a difference are filtered: that of a deleted node is the one it
// had.
func accessBetween(was, now *View, event EventType, path string) AccessList {
	if event == EventNodeDeleted {
		now = was
	}
	l, _ := now.Access(path)
	return l
}

func mayRead(w Watcher, l AccessList) bool { return l == "" || w.MayRead(l) }

// coveredLocked reports whether the watcher has a recursive watch at path or above. recursive is locked. A path that no
// node can have is not looked at: nothing ever happens there.
func (t *watches) coveredLocked(path string, id uint32) bool {
	above := &t.recursive.table
	if above.n == 0 || len(path) > MaxPathBytes {
		return false
	}
	covered := above.modes(path, t.hashOf(path), id) != 0
	if !covered {
		t.eachAbove(path, func(path string, hash uint32) bool {
			covered = above.modes(path, hash, id) != 0
			return !covered
		})
	}
	return covered
}

// difference returns the event that a one-shot watch set at a view must get if the state is that of another, later
// one.
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
		changed := a.mzxid != b.mzxid || a.version != b.version
		if path == ConfigPath { // changed without a zxid; the statistics of quotas change so without an event
			changed = changed || a.data != b.data || a.null != b.null
		}
		return EventNodeDataChanged, changed
	default:
		return EventNodeChildrenChanged, was.family(path, &a).pzxid != now.family(path, &b).pzxid
	}
}

// remade reports whether a node that has an event NodeDeleted by difference is there again.
func remade(now *View, path string) bool {
	_, ok := now.lookup(path)
	return ok
}

// kidsChanged reports whether the children of a node changed between the views, other than by being deleted with it.
func kidsChanged(was, now *View, path string) bool {
	var a, b node
	if !now.node(path, &b) {
		return false
	}
	before := b.czxid // a node that is new has this if it never had children
	if was.node(path, &a) && a.czxid == b.czxid {
		before = was.family(path, &a).pzxid
	}
	return now.family(path, &b).pzxid != before
}

// AddWatchAt sets a persistent or recursive watch, on a node that may be missing, for an answer that goes out at v.
// Changes since v that the watch covers raise their events at once, with the zxid after v's, unless another watch of
// the watcher has told them. Of several changes to one node since v the net effect is told. For the rest see WatchAt.
func (t *Tree) AddWatchAt(v *View, path string, mode WatchMode, w Watcher) {
	path = watchPath(path)
	switch mode {
	case Persistent:
		t.addPersistent(v, path, t.watches.parties.join(w))
	case Recursive:
		t.addRecursive(v, path, t.watches.parties.join(w))
	default:
		t.WatchAt(v, path, WatchData, w, true)
	}
}

// enter adds a lasting watch and returns the view from which on the tables tell it of changes, what the watcher had at
// the path before, and, unless nothing has changed since v, whether a recursive watch of its covered the path. That view is v, or one that is published: an
// event of a change must not reach a client who might then read the state before it and hear no more of it.
func (t *Tree) enter(v *View, path string, p *party, m watchModes) (now *View, had watchModes, covered bool) {
	a := &t.watches
	hash := a.hashOf(path)
	a.recursive.mu.Lock()
	if a.front.Load() != v {
		a.recursive.mu.Unlock()
		a.publishing.Lock()
		defer a.publishing.Unlock()
		a.recursive.mu.Lock()
	}
	defer a.recursive.mu.Unlock()
	s := a.stripeOf(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	now, had = a.front.Load(), s.table.modes(path, hash, p.id)
	covered = now != v && a.coveredLocked(path, p.id)
	a.addLocked(path, hash, p, m)
	return now, had, covered
}

func (t *Tree) addPersistent(v *View, path string, p *party) {
	now, had, covered := t.enter(v, path, p, modePersist)
	if now == v || had&modePersist != 0 {
		return
	}
	path = strings.Clone(path)
	if event, changed := difference(v, now, path, WatchData); changed && !covered {
		raise(v, now, event, path, p.w)
		if event == EventNodeDeleted && remade(now, path) {
			raise(v, now, EventNodeCreated, path, p.w)
		}
	}
	if kidsChanged(v, now, path) {
		raise(v, now, EventNodeChildrenChanged, path, p.w)
	}
}

func (t *Tree) addRecursive(v *View, path string, p *party) {
	now, _, covered := t.enter(v, path, p, modeRecursive)
	if now == v || covered {
		return
	}
	// Of what comes below, deletions come from the leaves up, everything else from the root down.
	gone, rest := subtreeDifferences(v, now, path, nil)
	slices.Reverse(gone)
	for _, d := range append(gone, rest...) {
		if !t.watches.persistentAt(d.path, p.id) {
			raise(v, now, d.event, d.path, p.w)
		}
	}
}

// persistentAt reports whether a watcher has a persistent watch at path.
func (t *watches) persistentAt(path string, id uint32) bool {
	hash := t.hashOf(path)
	s := t.stripeOf(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.modes(path, hash, id)&modePersist != 0
}

// nodeDifference is what a recursive watch has to tell about one node.
type nodeDifference struct {
	event EventType
	path  string
}

// subtreeDifferences compares the nodes at and below root that are of interest (nil: all), in the order of their keys,
// in which a node comes before those below it. A node that was removed and made anew is among both. The cost follows
// what changed in the whole tree.
func subtreeDifferences(was, now *View, root string, interest func(path string) bool) (gone, rest []nodeDifference) {
	// The yield never fails, and neither does the comparison.
	_, _ = diffTrees(was.nodes, now.nodes, TableNode, func(_ uint8, key, _ []byte) error {
		path := pathOfKey(string(key))
		if !within(path, root) || interest != nil && !interest(path) {
			return nil
		}
		event, changed := difference(was, now, path, WatchData)
		switch {
		case !changed: // only its list, or whether it has children
		case event != EventNodeDeleted:
			rest = append(rest, nodeDifference{event, path})
		default:
			gone = append(gone, nodeDifference{event, path})
			if remade(now, path) {
				rest = append(rest, nodeDifference{EventNodeCreated, path})
			}
		}
		return nil
	})
	return gone, rest
}

// within reports whether path is root or below it.
func within(path, root string) bool {
	if root == RootPath {
		return true
	}
	rest, ok := strings.CutPrefix(path, root)
	return ok && (rest == "" || rest[0] == '/')
}

// RearmAt sets the watch that an entry of setWatches or setWatches2 asks for (zookeeper-protocol 6.5), answered from
// v, or returns the event that the client must get instead: since is the last zxid it has seen. The event is not
// filtered by access lists. Persistent and recursive watches are always set. Changes since v are raised as WatchAt and
// AddWatchAt do.
func (t *Tree) RearmAt(v *View, list WatchList, path string, since Zxid, w Watcher) (EventType, bool) {
	var n node
	exists := v.node(path, &n)
	switch list {
	case ListData:
		switch {
		case !exists:
			return EventNodeDeleted, true
		case n.mzxid > since:
			return EventNodeDataChanged, true
		}
		t.WatchAt(v, path, WatchData, w, false)
	case ListExist:
		if exists {
			return EventNodeCreated, true
		}
		t.WatchAt(v, path, WatchData, w, true)
	case ListChild:
		switch {
		case !exists:
			return EventNodeDeleted, true
		case v.family(path, &n).pzxid > since:
			return EventNodeChildrenChanged, true
		}
		t.WatchAt(v, path, WatchChildren, w, false)
	case ListPersistent:
		t.AddWatchAt(v, path, Persistent, w)
	case ListRecursive:
		t.AddWatchAt(v, path, Recursive, w)
	}
	return 0, false
}
