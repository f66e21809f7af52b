package kv

import (
	"math/bits"
	"slices"
	"strings"
	"sync/atomic"
)

// stripeSet is a set of stripes.
type stripeSet [stripeCount / 64]uint64

func (s *stripeSet) add(hash uint32) { s[hash%stripeCount>>6] |= 1 << (hash & 63) }

func (t *watches) lock(set *stripeSet) {
	t.recursive.mu.Lock()
	for word, left := range set {
		for ; left != 0; left &= left - 1 {
			t.stripes[word<<6+bits.TrailingZeros64(left)].mu.Lock()
		}
	}
}

func (t *watches) unlock(set *stripeSet) {
	for word, left := range set {
		for ; left != 0; left &= left - 1 {
			t.stripes[word<<6+bits.TrailingZeros64(left)].mu.Unlock()
		}
	}
	t.recursive.mu.Unlock()
}

// outbox holds the events of a batch between the moment at which they are taken from the tables, under locks, and that
// at which they are queued at the watchers, without.
type outbox struct {
	rows  []firedRow
	tells []tell
	count uint64 // of rows in earlier batches
}

// firedRow is one row of the table of zookeeper-protocol 6.2 for one change: what it tells every watcher at most once.
type firedRow struct {
	event  Event
	access AccessList
	hash   uint32 // of the path
}

// tell is a watcher to whom a row goes.
type tell struct {
	p    *party
	row  uint32
	left bool // the row took the last watch that p had at the row's path
}

// publish takes the watches that the changes fire, queues their events and makes v the current view, as one step for
// everybody who sets a watch or reads.
//
// Under the locks of recursive and of the stripes of all touched paths, in order, the watchers are only listed, and
// front is set to v. From then on a watch that is set gets the changes after v; one that is set for an answer from an
// older view finds the difference by itself (WatchAt). Then, without these locks, every watcher gets its events, and at
// the end the view is stored: who can read a change has its events. So a storm holds up nobody but the applier: to list
// 100,000 watchers of one path takes 2 to 5 ms, to queue their events another 5 to 15 (BenchmarkStorm).
//
// (Tempting: skip stripes without watches. A watch could then be registered between the look and the store; closing that
// hole costs as much as the uncontended lock.)
func (t *Tree) publish(v *View, changes []change) {
	if len(changes) == 0 {
		t.watches.front.Store(v)
		t.view.Store(v)
		return
	}
	a := &t.watches
	var touched stripeSet
	for i := range changes {
		c := &changes[i]
		c.hash = a.hashOf(c.path)
		touched.add(c.hash)
		if c.kind != dataChanged {
			c.parentHash = a.hashOf(parentOf(c.path))
			touched.add(c.parentHash)
		}
	}
	a.publishing.Lock()
	a.lock(&touched)
	for i := range changes {
		t.fireLocked(&changes[i])
	}
	a.front.Store(v)
	a.unlock(&touched)
	t.deliver()
	t.view.Store(v)
	a.publishing.Unlock()
}

// deliver queues the listed events, each once for each watcher.
func (t *Tree) deliver() {
	o := &t.events
	told := 0 // of the present row; those of a row lie together
	for i := range o.tells {
		s := &o.tells[i]
		row := &o.rows[s.row]
		if s.left {
			s.p.left(row.hash)
		}
		if number := o.count + uint64(s.row) + 1; s.p.told != number {
			s.p.told = number
			told++
			if mayRead(s.p.w, row.access) {
				s.p.w.Event(row.event)
			}
		}
		if i+1 == len(o.tells) || o.tells[i+1].row != s.row {
			t.fired[row.event.Type-1].note(int64(told))
			told = 0
		}
	}
	o.count += uint64(len(o.rows))
	o.rows, o.tells = recycle(o.rows), recycle(o.tells)
}

// firedCount counts the changes of one kind that had watchers. Only the applier writes.
type firedCount struct{ changes, watchers, least, most atomic.Int64 }

func (f *firedCount) note(told int64) {
	if n := f.changes.Add(1); n == 1 || told < f.least.Load() {
		f.least.Store(told)
	}
	f.most.Store(max(f.most.Load(), told))
	f.watchers.Add(told)
}

// Fired returns how many events of one type had watchers (each for one node, whatever the number of its watchers), how
// many watchers they had together, and the least and the most of one event, since the tree was made. Watchers that may
// not read the node count too. All are 0 for a number that is no type.
func (t *Tree) Fired(e EventType) (changes, watchers, least, most int64) {
	if e < EventNodeCreated || e > EventNodeChildrenChanged {
		return 0, 0, 0, 0
	}
	f := &t.fired[e-1]
	return f.changes.Load(), f.watchers.Load(), f.least.Load(), f.most.Load()
}

// fireLocked lists the watchers of one change: data table of the node, child table of the node, child table of the
// parent (zookeeper-protocol 6.2). A deletion is the same event in the first two, so they are one row.
func (t *Tree) fireLocked(c *change) {
	switch c.kind {
	case nodeCreated:
		t.fireNode(c, EventNodeCreated, modesInData, modeData)
	case nodeDeleted:
		t.fireNode(c, EventNodeDeleted, modesInData|modesInChild, modeData|modeChild)
	case dataChanged:
		t.fireNode(c, EventNodeDataChanged, modesInData, modeData)
		return
	}
	t.fireChildren(parentOf(c.path), c.parentHash, c.parentAccess, c.zxid)
}

// fireNode lists the watchers of the node, at its path and recursive ones above.
func (t *Tree) fireNode(c *change, event EventType, want, consume watchModes) {
	row := firedRow{Event{Type: event, Path: c.path, Zxid: c.zxid}, c.access, c.hash}
	listed := t.fire(&row, &t.watches.stripeOf(c.hash).table, c.path, c.hash, want, consume, false)
	above := &t.watches.recursive.table
	if above.n == 0 {
		return
	}
	t.watches.eachAbove(c.path, func(path string, hash uint32) bool {
		listed = t.fire(&row, above, path, hash, modeRecursive, 0, listed)
		return true
	})
}

// fireChildren lists the watchers of a node's children.
func (t *Tree) fireChildren(path string, hash uint32, access AccessList, z Zxid) {
	row := firedRow{Event{Type: EventNodeChildrenChanged, Path: path, Zxid: z}, access, hash}
	t.fire(&row, &t.watches.stripeOf(hash).table, path, hash, modesInChild, modeChild, false)
}

// fire lists the watchers at one path of a table for a row; listed says whether the row is in the outbox already, and
// is returned anew.
func (t *Tree) fire(row *firedRow, table *watchTable, path string, hash uint32, want, consume watchModes, listed bool) bool {
	i := table.find(path, hash)
	if i < 0 {
		return listed
	}
	o := &t.events
	o.tells = slices.Grow(o.tells, table.countAt(i))
	table.take(i, want, consume, func(s seat, keeps watchModes) {
		if !listed {
			listed = true
			row.event.Path = strings.Clone(row.event.Path) // it was part of an entry's payload
			o.rows = append(o.rows, *row)
		}
		o.tells = append(o.tells, tell{t.watches.parties.at(s.id()), uint32(len(o.rows) - 1), keeps == 0})
	})
	return listed
}

// Reset replaces the view by one that did not come from applying to the present one, such as an installed
// snapshot. Watches stay. What differs between the two views is told as if it had been changed just now, with the
// zxid after the old view's: first the deletions, from the leaves up, then the other changes of nodes, from the root
// down, then those of children. Of several changes to one node the net effect is told, a removal followed by a
// creation as both. Watches cannot be set meanwhile, plain reads go on. Only the applier calls it.
func (t *Tree) Reset(v *View) {
	a := &t.watches
	was := t.view.Load()
	all := stripeSet{}
	for i := range all {
		all[i] = ^uint64(0)
	}
	a.publishing.Lock()
	a.lock(&all)
	if a.parties.any() {
		t.fireDifferences(was, v)
	}
	a.front.Store(v)
	a.unlock(&all)
	t.deliver()
	t.view.Store(v)
	a.publishing.Unlock()
}

// fireDifferences lists the watchers of everything that differs. All stripes are locked.
func (t *Tree) fireDifferences(was, now *View) {
	a := &t.watches
	gone, rest := subtreeDifferences(was, now, RootPath, a.watchedLocked)
	slices.Reverse(gone)
	z := was.zxid + 1
	for _, d := range append(gone, rest...) {
		c := change{path: d.path, zxid: z, hash: a.hashOf(d.path), access: accessBetween(was, now, d.event, d.path)}
		switch d.event {
		case EventNodeDeleted:
			t.fireNode(&c, d.event, modesInData|modesInChild, modeData|modeChild)
		default:
			t.fireNode(&c, d.event, modesInData, modeData)
		}
	}
	// The yield never fails, and neither does the comparison.
	_, _ = diffTrees(was.families, now.families, TableChildren, func(_ uint8, key, _ []byte) error {
		path := pathOfKey(string(key))
		if kidsChanged(was, now, path) {
			access, _ := now.Access(path)
			t.fireChildren(path, a.hashOf(path), access, z)
		}
		return nil
	})
}

// watchedLocked reports whether anything would see an event of the node of path. All stripes are locked.
func (t *watches) watchedLocked(path string) bool {
	hash := t.hashOf(path)
	if t.stripeOf(hash).table.find(path, hash) >= 0 {
		return true
	}
	if t.recursive.table.n == 0 {
		return false
	}
	found := false
	t.eachAbove(path, func(path string, hash uint32) bool {
		found = t.recursive.table.find(path, hash) >= 0
		return !found
	})
	return found
}
