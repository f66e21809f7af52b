package replica

// ring is a FIFO that reuses its memory. The zero value is empty and usable.
type ring[T any] struct {
	buf  []T // len is a power of two
	head int
	n    int
}

func (q *ring[T]) len() int { return q.n }

// at returns the i-th element from the front; the pointer is valid until the next push.
func (q *ring[T]) at(i int) *T { return &q.buf[(q.head+i)&(len(q.buf)-1)] }

func (q *ring[T]) push(v T) {
	if q.n == len(q.buf) {
		q.grow()
	}
	q.buf[(q.head+q.n)&(len(q.buf)-1)] = v
	q.n++
}

func (q *ring[T]) pop() T {
	var zero T
	p := &q.buf[q.head]
	v := *p
	*p = zero // let go of what it refers to
	q.head = (q.head + 1) & (len(q.buf) - 1)
	q.n--
	return v
}

func (q *ring[T]) grow() {
	next := make([]T, max(16, 2*len(q.buf)))
	for i := range q.n {
		next[i] = *q.at(i)
	}
	q.buf, q.head = next, 0
}

// filter keeps the elements for which keep returns true, in order.
func (q *ring[T]) filter(keep func(*T) bool) {
	n := q.n
	for range n {
		v := q.pop()
		if keep(&v) {
			q.push(v)
		}
	}
}
