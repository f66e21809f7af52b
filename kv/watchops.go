package kv

import (
	"slices"
	"strings"
)

// modesOf returns the watches that a type of checkWatches and removeWatches means.
func (wt WatcherType) modesOf() watchModes {
	switch wt {
	case WatcherChildren:
		return modeChild
	case WatcherData:
		return modeData
	case WatcherAny:
		return modeAll
	case WatcherPersistent:
		return modePersist
	case WatcherRecursive:
		return modeRecursive
	}
	return 0
}

// HasWatch reports whether the watcher has a watch of that type at path (zookeeper-protocol 4.6). A number that is no
// type matches nothing.
func (t *Tree) HasWatch(path string, wt WatcherType, w Watcher) bool {
	p := t.watches.parties.get(w)
	if p == nil {
		return false
	}
	path = watchPath(path)
	hash := t.watches.hashOf(path)
	s := t.watches.stripeOf(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.modes(path, hash, p.id)&wt.modesOf() != 0
}

// RemoveWatch removes the watcher's watches of that type at path and reports whether there was one. Events of earlier
// changes stay queued.
func (t *Tree) RemoveWatch(path string, wt WatcherType, w Watcher) bool {
	p := t.watches.parties.get(w)
	if p == nil {
		return false
	}
	path = watchPath(path)
	hash := t.watches.hashOf(path)
	m := wt.modesOf()
	if m&modeRecursive != 0 {
		t.watches.recursive.mu.Lock()
		defer t.watches.recursive.mu.Unlock()
	}
	s := t.watches.stripeOf(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.table.find(path, hash)
	if i < 0 {
		return false
	}
	was := s.table.modesAt(i, p.id)
	if was&m == 0 {
		return false
	}
	s.table.setModes(i, p.id, was&^m)
	p.mu.Lock()
	defer p.mu.Unlock()
	if was&^m == 0 {
		p.places.remove(hash, 0)
	}
	if was&m&modeRecursive != 0 {
		above := &t.watches.recursive.table
		above.setModes(above.find(path, hash), p.id, 0)
		p.roots.remove(hash, 0)
	}
	return true
}

// RemoveWatcher removes all watches of w and forgets it, as when its connection ends. Nothing is sent. The cost follows
// the number of its watches, and no lock is held for longer than it takes to remove one. Every watcher that has ever
// set a watch must be removed in the end, also if all its watches have fired.
func (t *Tree) RemoveWatcher(w Watcher) {
	a := &t.watches
	p := a.parties.leave(w)
	if p == nil {
		return
	}
	p.mu.Lock()
	places, roots := p.places, p.roots
	p.places, p.roots, p.gone = wordSet{}, wordSet{}, true
	p.mu.Unlock()
	for _, hash := range roots.slots {
		if hash != 0 {
			a.recursive.mu.Lock()
			a.recursive.table.removeHash(hash, p.id)
			a.recursive.mu.Unlock()
		}
	}
	for _, hash := range places.slots {
		if hash != 0 {
			s := a.stripeOf(hash)
			s.mu.Lock()
			s.table.removeHash(hash, p.id)
			s.mu.Unlock()
		}
	}
	a.parties.release(p)
}

// WatchCount returns the number of watches as ZooKeeper counts them: for each table the pairs of watcher and path that
// are in it. A persistent watch is in both. It looks at every watch, one stripe after the other.
func (t *Tree) WatchCount() int {
	count := 0
	for i := range t.watches.stripes {
		s := &t.watches.stripes[i]
		s.mu.Lock()
		s.table.eachSpot(func(i int) {
			s.table.each(i, func(who seat) {
				if who.modes()&modesInData != 0 {
					count++
				}
				if who.modes()&modesInChild != 0 {
					count++
				}
			})
		})
		s.mu.Unlock()
	}
	return count
}

// WatchStats returns the size of the data table, persistent and recursive watches included: its watchers, its paths,
// and the pairs of both. It looks at every watch, one stripe after the other, so the figures may be of slightly
// different moments.
func (t *Tree) WatchStats() (watchers, paths, watches int) {
	seen := make([]bool, len(*t.watches.parties.numbers.Load()))
	for i := range t.watches.stripes {
		s := &t.watches.stripes[i]
		s.mu.Lock()
		s.table.eachSpot(func(i int) {
			here := 0
			s.table.each(i, func(who seat) {
				if who.modes()&modesInData == 0 {
					return
				}
				here++
				for int(who.id()) >= len(seen) {
					seen = append(seen, false)
				}
				if !seen[who.id()] {
					seen[who.id()] = true
					watchers++
				}
			})
			watches += here
			if here > 0 {
				paths++
			}
		})
		s.mu.Unlock()
	}
	return watchers, paths, watches
}

// EachWatch calls yield with every watch of the data table, persistent and recursive ones included, until it returns
// false. Those of one path come together, otherwise there is no order. No lock is held while yield runs; stripes are
// copied one by one.
func (t *Tree) EachWatch(yield func(path string, w Watcher) bool) {
	type found struct {
		path string
		w    Watcher
	}
	var list []found
	for i := range t.watches.stripes {
		s := &t.watches.stripes[i]
		list = list[:0]
		s.mu.Lock()
		s.table.eachSpot(func(i int) {
			path := ""
			s.table.each(i, func(who seat) {
				if who.modes()&modesInData == 0 {
					return
				}
				if path == "" {
					path = strings.Clone(s.table.pathAt(i))
				}
				list = append(list, found{path, t.watches.parties.at(who.id()).w})
			})
		})
		s.mu.Unlock()
		for _, f := range list {
			if !yield(f.path, f.w) {
				return
			}
		}
	}
}

// WatchesOf calls yield with the path of every watch that w has in the data table, in no order, until it returns false.
// No lock is held while yield runs. The cost follows the number of the watches of w.
func (t *Tree) WatchesOf(w Watcher, yield func(path string) bool) {
	p := t.watches.parties.get(w)
	if p == nil {
		return
	}
	p.mu.Lock()
	places := slices.Clone(p.places.slots)
	p.mu.Unlock()
	slices.Sort(places)
	var paths []string
	for _, hash := range slices.Compact(places) { // two paths may have the same
		if hash == 0 {
			continue
		}
		s := t.watches.stripeOf(hash)
		paths = paths[:0]
		s.mu.Lock()
		s.table.eachHash(hash, func(i int) bool {
			if s.table.modesAt(i, p.id)&modesInData != 0 {
				paths = append(paths, strings.Clone(s.table.pathAt(i)))
			}
			return true
		})
		s.mu.Unlock()
		for _, path := range paths {
			if !yield(path) {
				return
			}
		}
	}
}
