package history

import (
	"math"
	"sync"

	"kvd/kv"
)

// MaxKeys is how many keys a group has at most: checking multi-key histories costs too much beyond that.
const MaxKeys = 3

// Kind is what an operation does.
type Kind uint8

// The kinds.
const (
	Write    Kind = iota + 1 // sets the keys of Mask, as one transaction, if the first of them has version Expected
	SyncRead                 // sync, then a read of the one key of Mask
)

// AnyVersion as Expected: the write asks for no version.
const AnyVersion = int32(-1)

// Op is one operation on a group of keys, with what its caller was told. All nodes of a group are made empty, at
// version 0, before its first operation.
type Op struct {
	Group    uint32
	Session  uint32
	Kind     Kind
	Outcome  Outcome
	Mismatch bool  // Failed because the version differed: a statement about the state, which is checked too
	Mask     uint8 // bit i: key i of the group
	Expected int32
	Invoke   int64 // nanoseconds on one monotonic clock
	Return   int64
	// Value identifies a write: no two writes share one. A write puts it on all its keys; a read returns it, 0
	// for the empty node.
	Value    uint64
	Versions [MaxKeys]int32 // of each key of Mask behind the operation
	Zxid     kv.Zxid        // what the answer said the server had applied; 0 if there was no answer
	Mzxid    kv.Zxid        // of the nodes, from the Stat in the answer
}

// First is the lowest key of the mask.
func (o *Op) First() int {
	for i := range MaxKeys {
		if o.Mask&(1<<i) != 0 {
			return i
		}
	}
	return 0
}

// Has reports whether key i is concerned.
func (o *Op) Has(i int) bool { return o.Mask&(1<<i) != 0 }

// end is when the operation's effect must have happened: never, if nobody knows that it did.
func (o *Op) end() int64 {
	if o.Outcome == Unknown {
		return math.MaxInt64
	}
	return o.Return
}

// Final is what a member holds of a key in the end.
type Final struct {
	Value   uint64
	Version int32
	Mzxid   kv.Zxid
}

// Key is a key of a group.
type Key struct {
	Group uint32
	Index int
}

// Log collects what concurrent workers record. Each worker appends to a list of its own (NewList), in the order in
// which it called; Ops joins them when all have ended.
type Log struct {
	mu    sync.Mutex
	lists []*[]Op
}

// NewList returns a list for one worker.
func (l *Log) NewList() *[]Op {
	l.mu.Lock()
	defer l.mu.Unlock()
	ops := new([]Op)
	l.lists = append(l.lists, ops)
	return ops
}

// Ops returns all operations, each worker's own in its order. Not beside workers.
func (l *Log) Ops() []Op {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []Op
	for _, ops := range l.lists {
		all = append(all, *ops...)
	}
	return all
}
