package sim

// event is one thing that will happen. Events at the same time happen in the order in which they were made.
type event struct {
	at  int64 // virtual milliseconds
	seq uint64
	// life is the member's life (Member.life) in which the event makes sense; a restart makes older ones void.
	// 0: the event belongs to no member's life.
	life uint64
	m    *Member // who it happens to; nil: the world
	do   func()
	name string // for the trace; constant
}

// queue is a binary heap of events.
type queue struct{ h []event }

func (q *queue) less(a, b *event) bool {
	if a.at != b.at {
		return a.at < b.at
	}
	return a.seq < b.seq
}

func (q *queue) push(e event) {
	q.h = append(q.h, e)
	i := len(q.h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !q.less(&q.h[i], &q.h[up]) {
			return
		}
		q.h[i], q.h[up] = q.h[up], q.h[i]
		i = up
	}
}

func (q *queue) pop() event {
	e := q.h[0]
	n := len(q.h) - 1
	q.h[0] = q.h[n]
	q.h[n] = event{}
	q.h = q.h[:n]
	for i := 0; ; {
		c := 2*i + 1
		if c >= n {
			return e
		}
		if c+1 < n && q.less(&q.h[c+1], &q.h[c]) {
			c++
		}
		if !q.less(&q.h[c], &q.h[i]) {
			return e
		}
		q.h[i], q.h[c] = q.h[c], q.h[i]
		i = c
	}
}
