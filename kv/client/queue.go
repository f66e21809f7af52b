package client

// slot is one call in a queue. A nil call is one whose caller has given up; its place is kept because the
// reply still comes, or because taking it out of the middle would cost more than skipping it.
type slot struct {
	call *Call
	xid  int32
	sent int64 // nanoseconds since Client.start
}

// queue is a double-ended queue of calls in a ring. Each slot has a position that stays the same while it is
// in the queue, so that a call is found again when its caller gives up.
type queue struct {
	ring  []slot // length is a power of two
	first int64  // position of the oldest slot
	n     int
}

func (q *queue) len() int { return q.n }

func (q *queue) at(pos int64) *slot { return &q.ring[int(pos)&(len(q.ring)-1)] }

func (q *queue) grow() {
	if q.n < len(q.ring) {
		return
	}
	bigger := make([]slot, max(16, 2*len(q.ring)))
	for i := range int64(q.n) {
		bigger[int(q.first+i)&(len(bigger)-1)] = *q.at(q.first + i)
	}
	q.ring = bigger
}

// pushBack appends a slot and returns its position.
func (q *queue) pushBack(s slot) int64 {
	q.grow()
	pos := q.first + int64(q.n)
	*q.at(pos) = s
	q.n++
	return pos
}

// pushFront puts a slot before all others and returns its position.
func (q *queue) pushFront(s slot) int64 {
	q.grow()
	q.first--
	*q.at(q.first) = s
	q.n++
	return q.first
}

// popFront takes the oldest slot; the queue must not be empty.
func (q *queue) popFront() slot {
	p := q.at(q.first)
	s := *p
	*p = slot{}
	q.first++
	q.n--
	return s
}

// popBack takes the newest slot; the queue must not be empty.
func (q *queue) popBack() slot {
	p := q.at(q.first + int64(q.n) - 1)
	s := *p
	*p = slot{}
	q.n--
	return s
}
