package kv

import (
	"sync"
	"sync/atomic"
)

// party is a watcher as the tables know it: a number in them, and a list of where it is, so that it can be removed at
// a cost that follows the number of its watches.
type party struct {
	w  Watcher
	id uint32
	// told is the newest event, counted by the tree, that was queued here. It belongs to the applier.
	told uint64

	mu sync.Mutex
	// places are the hashes of the paths at which the watcher has watches, once for each path, under mu. While a
	// publish delivers, a path whose watch it took is still counted.
	places wordSet
	// roots are the hashes of the paths of its recursive watches, which are among places too. Under mu.
	roots wordSet
	gone  bool // under mu: RemoveWatcher was called, nothing is added any more
}

// left notes that the watcher has nothing any more at one path with that hash.
func (p *party) left(hash uint32) {
	p.mu.Lock()
	p.places.remove(hash, 0)
	p.mu.Unlock()
}

// parties numbers the watchers. A number is given out at a watcher's first watch and returned by RemoveWatcher, after
// the last place has been cleared.
type parties struct {
	mu      sync.RWMutex
	known   map[Watcher]*party // under mu
	unused  []uint32           // under mu: numbers to give out again
	numbers atomic.Pointer[[]*party]
}

func (r *parties) init() {
	r.known = make(map[Watcher]*party)
	r.numbers.Store(&[]*party{nil}) // no watcher is number 0
}

// at returns the party with a number that a table holds. The table's lock is held: whoever put the number there had
// stored the party before, and it is taken away only after.
func (r *parties) at(id uint32) *party { return (*r.numbers.Load())[id] }

// get returns the party of a watcher, nil if it has none.
func (r *parties) get(w Watcher) *party {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.known[w]
}

// any reports whether there are watchers.
func (r *parties) any() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.known) > 0
}

// join returns the party of a watcher, making one if needed.
func (r *parties) join(w Watcher) *party {
	if p := r.get(w); p != nil {
		return p
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.known[w]; p != nil {
		return p
	}
	list := *r.numbers.Load()
	p := &party{w: w}
	if n := len(r.unused); n > 0 {
		p.id = r.unused[n-1]
		r.unused = r.unused[:n-1]
		list[p.id] = p
	} else {
		if len(list) > maxWatchers {
			panic("kv: more than 134 million watchers")
		}
		p.id = uint32(len(list))
		list = append(list, p) // readers of the old slice do not look behind its end
		r.numbers.Store(&list)
	}
	r.known[w] = p
	return p
}

// leave forgets the watcher and returns its party, whose number stays taken until release.
func (r *parties) leave(w Watcher) *party {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.known[w]
	if p != nil {
		delete(r.known, w)
		if len(r.known) == 0 {
			r.known = make(map[Watcher]*party) // a map does not shrink
		}
	}
	return p
}

// release returns the number of a party that no table holds any more.
func (r *parties) release(p *party) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := *r.numbers.Load()
	list[p.id] = nil
	r.unused = append(r.unused, p.id)
	if len(r.unused) == len(list)-1 {
		r.unused = nil
		r.numbers.Store(&[]*party{nil})
	}
}
