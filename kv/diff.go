package kv

import "unsafe"

// Diff calls yield with every record that differs from old: key and new value for one that was added or changed,
// key and nil for one that is gone; table by table, in the order of their keys. It returns the first error of
// yield. The two views may be given in any order of age. Parts that the views share are not looked at, so the cost
// follows what changed between them. Key and value belong to the views and must not be written to; a value that is
// present is never nil.
func (v *View) Diff(old *View, yield func(table uint8, key, value []byte) error) error {
	for table := TableNode; table <= TableMeta; table++ {
		if _, err := diffTrees(*old.table(table), *v.table(table), table, yield); err != nil {
			return err
		}
	}
	return nil
}

// cursor walks over a tree in key order. What comes next is either a whole subtree, not looked into yet, or a
// record.
type cursor struct {
	stack []step
}

// step is the rest of a node: kids or records from i on.
type step struct {
	n      *bnode
	i      int
	height int // of n
}

func newCursor(t btree) cursor {
	if t.root == nil {
		return cursor{}
	}
	// The root is entered as the only kid of a node above it, so that equal roots are seen to be equal.
	return cursor{[]step{{&bnode{kids: []*bnode{t.root}}, 0, t.root.height() + 1}}}
}

// next returns what comes next: a subtree and its height, or a record, or neither at the end.
func (c *cursor) next() (sub *bnode, height int, rec string, ok bool) {
	for len(c.stack) > 0 {
		s := &c.stack[len(c.stack)-1]
		switch {
		case s.i >= s.n.width():
			c.stack = c.stack[:len(c.stack)-1]
		case s.n.kids != nil:
			return s.n.kids[s.i], s.height - 1, "", true
		default:
			return nil, 0, s.n.recs[s.i], true
		}
	}
	return nil, 0, "", false
}

// skip moves past what next returned.
func (c *cursor) skip() { c.stack[len(c.stack)-1].i++ }

// enter moves into the subtree that next returned.
func (c *cursor) enter(sub *bnode, height int) {
	c.skip()
	c.stack = append(c.stack, step{sub, 0, height})
}

// diffTrees compares two trees and returns how many subtrees and records it looked at.
func diffTrees(old, now btree, table uint8, yield func(table uint8, key, value []byte) error) (looked int, _ error) {
	a, b := newCursor(old), newCursor(now)
	gone := func(rec string) error { return yield(table, bytesOf(recKey(rec)), nil) }
	here := func(rec string) error { return yield(table, bytesOf(recKey(rec)), bytesOf(recValue(rec))) }
	for ; ; looked++ {
		subA, heightA, recA, okA := a.next()
		subB, heightB, recB, okB := b.next()
		var err error
		switch {
		case !okA && !okB:
			return looked, nil
		case subA != nil && subA == subB:
			a.skip()
			b.skip()
		case subA != nil && (subB == nil || heightA >= heightB):
			a.enter(subA, heightA)
			if subB != nil && heightA == heightB {
				b.enter(subB, heightB)
			}
		case subB != nil:
			b.enter(subB, heightB)
		case !okB || okA && recKey(recA) < recKey(recB):
			a.skip()
			err = gone(recA)
		case !okA || recKey(recB) < recKey(recA):
			b.skip()
			err = here(recB)
		default:
			a.skip()
			b.skip()
			if !sameRecord(recA, recB) {
				err = here(recB)
			}
		}
		if err != nil {
			return looked, err
		}
	}
}

// sameRecord compares two records, cheaply if they are the same memory.
func sameRecord(a, b string) bool {
	return len(a) == len(b) && (unsafe.StringData(a) == unsafe.StringData(b) || a == b)
}
