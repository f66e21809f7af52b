package kv

import (
	"slices"
	"sync/atomic"
)

// owner marks the nodes that one edit may change in place: those it made or copied itself. Everybody else's
// nodes are shared with published views and never written to. Owners are compared by address.
type owner struct{ _ uint64 }

// Fan-out of the tree. Chosen by measurement (package comment).
const (
	maxRecords = 64          // records of a leaf
	maxKids    = 64          // children of an inner node
	appendZone = maxKids / 8 // a split this close to the end keeps the left part full, for ascending inserts
)

// bnode is a node of a B+tree of records. A leaf has no kids and its recs are records in key order. An inner
// node has kids, and recs are the separators between them: recs[i] is greater than every key below kids[i] and
// not greater than any below kids[i+1].
type bnode struct {
	owner *owner
	recs  []string
	kids  []*bnode

	weight atomic.Pointer[weight] // of what is below, nil until somebody asks
}

// btree is a persistent B+tree of records (see recKey), each one string. The zero value is empty. Copying the
// struct gives an independent tree that shares all nodes, provided that both are edited under different owners.
type btree struct {
	root *bnode
	size int
}

// recKey returns the key of a record: a length, the key, the value.
func recKey(rec string) string {
	if n := int(rec[0]); n < 0x80 {
		return rec[1 : 1+n]
	}
	n, skip := recKeyLen(rec)
	return rec[skip : skip+n]
}

// recValue returns what follows the key.
func recValue(rec string) string {
	if n := int(rec[0]); n < 0x80 {
		return rec[1+n:]
	}
	n, skip := recKeyLen(rec)
	return rec[skip+n:]
}

func recKeyLen(rec string) (n, skip int) {
	for shift := 0; ; shift += 7 {
		b := rec[skip]
		skip++
		n |= int(b&0x7f) << shift
		if b < 0x80 {
			return n, skip
		}
	}
}

// searchRecs returns the position of key among records and whether it is there.
func searchRecs(recs []string, key string) (int, bool) {
	lo, hi := 0, len(recs)
	for lo < hi {
		m := int(uint(lo+hi) >> 1)
		k := recKey(recs[m])
		if k < key {
			lo = m + 1
		} else if k == key {
			return m, true
		} else {
			hi = m
		}
	}
	return lo, false
}

// childFor returns which child of an inner node holds key.
func childFor(seps []string, key string) int {
	lo, hi := 0, len(seps)
	for lo < hi {
		m := int(uint(lo+hi) >> 1)
		if seps[m] <= key {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo
}

// get returns the record with that key. It does not keep key.
func (t btree) get(key string) (string, bool) {
	n := t.root
	if n == nil {
		return "", false
	}
	for n.kids != nil {
		n = n.kids[childFor(n.recs, key)]
	}
	if i, ok := searchRecs(n.recs, key); ok {
		return n.recs[i], true
	}
	return "", false
}

// editable returns n if o may change it in place, else a copy that o may change.
func (n *bnode) editable(o *owner) *bnode {
	if n.owner == o {
		return n
	}
	c := &bnode{owner: o, recs: slices.Clone(n.recs)}
	if n.kids != nil {
		c.kids = slices.Clone(n.kids)
	}
	return c
}

// put stores rec under its key and returns the record it replaced, if there was one.
func (t *btree) put(o *owner, rec string) (old string, replaced bool) {
	if t.root == nil {
		t.root = &bnode{owner: o, recs: append(make([]string, 0, 4), rec)}
		t.size = 1
		return "", false
	}
	t.root = t.root.editable(o)
	old, replaced, sep, right := t.root.put(o, recKey(rec), rec)
	if right != nil {
		t.root = &bnode{owner: o, recs: []string{sep}, kids: []*bnode{t.root, right}}
	}
	if !replaced {
		t.size++
	}
	return old, replaced
}

// put works on a node that o owns. If the node had to be split, right is its new right neighbour and sep the
// separator between the two.
func (n *bnode) put(o *owner, key, rec string) (old string, replaced bool, sep string, right *bnode) {
	n.changing()
	if n.kids == nil {
		i, found := len(n.recs), false
		if recKey(n.recs[i-1]) >= key { // else ascending, as from a snapshot
			i, found = searchRecs(n.recs, key)
		}
		if found {
			old, n.recs[i] = n.recs[i], rec
			return old, true, "", nil
		}
		if len(n.recs) < maxRecords {
			n.recs = insertAt(n.recs, i, rec, maxRecords)
			return "", false, "", nil
		}
		right = n.splitLeaf(o, i, rec)
		return "", false, separator(recKey(n.recs[len(n.recs)-1]), recKey(right.recs[0])), right
	}
	i := len(n.recs)
	if i > 0 && n.recs[i-1] > key { // a single kid has no separator
		i = childFor(n.recs, key)
	}
	child := n.kids[i].editable(o)
	n.kids[i] = child
	old, replaced, sep, right = child.put(o, key, rec)
	if right == nil {
		return old, replaced, "", nil
	}
	n.recs = insertAt(n.recs, i, sep, maxKids)
	n.kids = insertAt(n.kids, i+1, right, maxKids+1)
	if len(n.kids) <= maxKids {
		return old, replaced, "", nil
	}
	sep, right = n.splitInner(o, i+1)
	return old, replaced, sep, right
}

// splitLeaf splits a full leaf, adding rec at position i of the whole.
func (n *bnode) splitLeaf(o *owner, i int, rec string) *bnode {
	at := len(n.recs) / 2
	if i >= len(n.recs)-appendZone {
		at = i
	}
	rest := n.recs[at:]
	right := &bnode{owner: o, recs: make([]string, len(rest), roundUp(len(rest)+1, maxRecords))}
	copy(right.recs, rest)
	clear(rest)
	n.recs = n.recs[:at]
	if i < at {
		n.recs = insertAt(n.recs, i, rec, maxRecords)
	} else {
		right.recs = insertAt(right.recs, i-at, rec, maxRecords)
	}
	return right
}

// splitInner splits an overfull inner node whose newest child is at position i.
func (n *bnode) splitInner(o *owner, i int) (string, *bnode) {
	at := len(n.kids) / 2
	if i >= len(n.kids)-appendZone {
		at = len(n.kids) - 1
	}
	right := &bnode{owner: o, recs: slices.Clone(n.recs[at:]), kids: slices.Clone(n.kids[at:])}
	sep := n.recs[at-1]
	clear(n.recs[at-1:])
	clear(n.kids[at:])
	n.recs, n.kids = n.recs[:at-1], n.kids[:at]
	return sep, right
}

// separator returns a copy of the shortest prefix of right that is greater than left. A copy, because a part of
// a record would keep the whole record in memory for as long as the separator lives.
func separator(left, right string) string {
	n := min(len(left), len(right))
	i := 0
	for i < n && left[i] == right[i] {
		i++
	}
	return string(append([]byte(nil), right[:i+1]...)) // right > left, so right is longer than the common prefix
}

// roundUp is the capacity given to a slice that must hold n elements: a little more, never above limit.
func roundUp(n, limit int) int { return max(n, min(limit, (n+7)&^7)) }

// insertAt inserts v at i, growing in small steps up to limit: most leaves are written once and then only read.
func insertAt[E any](s []E, i int, v E, limit int) []E {
	if len(s) == cap(s) {
		grown := make([]E, len(s)+1, roundUp(len(s)+1, limit))
		copy(grown, s[:i])
		grown[i] = v
		copy(grown[i+1:], s[i:])
		return grown
	}
	s = s[:len(s)+1]
	copy(s[i+1:], s[i:])
	s[i] = v
	return s
}

// delete removes the record with that key and returns it.
func (t *btree) delete(o *owner, key string) (string, bool) {
	if _, ok := t.get(key); !ok { // nothing is copied for a key that is not there
		return "", false
	}
	t.root = t.root.editable(o)
	old := t.root.delete(o, key)
	t.size--
	for len(t.root.kids) == 1 {
		t.root = t.root.kids[0]
	}
	if t.size == 0 {
		t.root = nil
	}
	return old, true
}

// delete works on a node that o owns; the key is below it.
func (n *bnode) delete(o *owner, key string) string {
	n.changing()
	if n.kids == nil {
		i, _ := searchRecs(n.recs, key)
		old := n.recs[i]
		n.recs = slices.Delete(n.recs, i, i+1) // clears the freed slot
		return old
	}
	i := childFor(n.recs, key)
	child := n.kids[i].editable(o)
	n.kids[i] = child
	old := child.delete(o, key)
	switch w := child.width(); {
	case w == 0:
		n.dropKid(i)
	case w < maxKids/4:
		if !n.tryMerge(o, i) && i > 0 {
			n.tryMerge(o, i-1)
		}
	}
	return old
}

// width is the number of records of a leaf or children of an inner node.
func (n *bnode) width() int {
	if n.kids != nil {
		return len(n.kids)
	}
	return len(n.recs)
}

// dropKid removes the empty child i. An inner node left without children is empty itself and dropped by its
// own parent.
func (n *bnode) dropKid(i int) {
	n.kids = slices.Delete(n.kids, i, i+1)
	if len(n.recs) > 0 {
		n.recs = slices.Delete(n.recs, max(i-1, 0), max(i-1, 0)+1)
	}
}

// tryMerge joins children i and i+1 if the result leaves room for inserts.
func (n *bnode) tryMerge(o *owner, i int) bool {
	if i+1 >= len(n.kids) {
		return false
	}
	a, b := n.kids[i], n.kids[i+1]
	if a.width()+b.width() > maxKids*3/4 {
		return false
	}
	m := &bnode{owner: o, recs: make([]string, 0, len(a.recs)+len(b.recs)+1)}
	m.recs = append(m.recs, a.recs...)
	if a.kids != nil {
		m.recs = append(m.recs, n.recs[i])
		m.kids = append(append(make([]*bnode, 0, len(a.kids)+len(b.kids)), a.kids...), b.kids...)
	}
	m.recs = append(m.recs, b.recs...)
	n.kids[i] = m
	n.kids = slices.Delete(n.kids, i+1, i+2)
	n.recs = slices.Delete(n.recs, i, i+1)
	return true
}

// ascend calls fn with the records whose key is from or greater, in order, until fn returns false.
func (t btree) ascend(from string, fn func(rec string) bool) {
	if t.root != nil {
		t.root.ascend(from, fn)
	}
}

func (n *bnode) ascend(from string, fn func(rec string) bool) bool {
	if n.kids == nil {
		i := 0
		if from != "" {
			i, _ = searchRecs(n.recs, from)
		}
		for _, rec := range n.recs[i:] {
			if !fn(rec) {
				return false
			}
		}
		return true
	}
	i := 0
	if from != "" {
		i = childFor(n.recs, from)
	}
	for _, kid := range n.kids[i:] {
		if !kid.ascend(from, fn) {
			return false
		}
		from = "" // only the first child has smaller keys
	}
	return true
}

// height is 0 for a leaf. All leaves are equally deep.
func (n *bnode) height() int {
	h := 0
	for n.kids != nil {
		n = n.kids[0]
		h++
	}
	return h
}

// count returns the number of records whose key is from or greater and less than to. It looks at the records of two
// leaves and at the length of those in between.
func (t btree) count(from, to string) int {
	if t.root == nil || from >= to {
		return 0
	}
	return t.root.count(from, to)
}

// count is btree.count below n; an empty bound is none.
func (n *bnode) count(from, to string) int {
	i, j := 0, len(n.recs) // of the records, or of the kids that hold the ends
	if n.kids == nil {
		if from != "" {
			i, _ = searchRecs(n.recs, from)
		}
		if to != "" {
			j, _ = searchRecs(n.recs, to)
		}
		return j - i
	}
	if from != "" {
		i = childFor(n.recs, from)
	}
	if to != "" {
		j = childFor(n.recs, to)
	}
	if i == j {
		return n.kids[i].count(from, to)
	}
	sum := n.kids[i].count(from, "") + n.kids[j].count("", to)
	for _, kid := range n.kids[i+1 : j] {
		sum += kid.records()
	}
	return sum
}

// records returns the number of records below n.
func (n *bnode) records() int {
	if n.kids == nil {
		return len(n.recs)
	}
	sum := 0
	for _, kid := range n.kids {
		sum += kid.records()
	}
	return sum
}
