package ensemble

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// What the client port does when clients ask for more than their share (zookeeper-protocol 1.3, 1.9, 4.1). Each limit
// is off unless it is configured, and then costs nothing.

// tokenBucket bounds how fast connections may become sessions (ZooKeeper: connectionMaxTokens and its relatives).
type tokenBucket struct {
	capacity, fill int
	every          time.Duration

	mu     sync.Mutex
	tokens int
	filled time.Time // when tokens were last added
}

// newTokenBucket returns a full bucket; nil, which lets everybody pass, if capacity is 0. fill tokens are added every
// interval.
func newTokenBucket(capacity, fill int, every time.Duration, now time.Time) *tokenBucket {
	if capacity <= 0 {
		return nil
	}
	return &tokenBucket{capacity: capacity, fill: max(fill, 1), every: max(every, time.Nanosecond), tokens: capacity, filled: now}
}

// take takes a token if there is one.
func (b *tokenBucket) take(now time.Time) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := int64(now.Sub(b.filled) / b.every); n > 0 {
		// n may be huge after an idle year: compare before multiplying.
		if missing := int64(b.capacity - b.tokens); n >= (missing+int64(b.fill)-1)/int64(b.fill) {
			b.tokens, b.filled = b.capacity, now
		} else {
			b.tokens += int(n) * b.fill
			b.filled = b.filled.Add(time.Duration(n) * b.every)
		}
	}
	if b.tokens == 0 {
		return false
	}
	b.tokens--
	return true
}

// requestThrottle bounds the requests in flight of all connections together: from the frame to the reply
// (ZooKeeper: requestThrottleLimit). Requests with special xids are not counted.
type requestThrottle struct {
	limit int
	wait  time.Duration // a request that found no room for so long is answered -127; 0: it waits on

	mu       sync.Mutex
	inFlight int
	freed    chan struct{} // closed and replaced when room appears; nil while nobody waits
}

// newRequestThrottle returns nil, which admits everybody, if limit is 0.
func newRequestThrottle(limit int, wait time.Duration) *requestThrottle {
	if limit <= 0 {
		return nil
	}
	return &requestThrottle{limit: limit, wait: wait}
}

// tryAcquire takes a place, or returns a channel that is closed when it is worth trying again.
func (t *requestThrottle) tryAcquire() (ok bool, again <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.inFlight < t.limit {
		t.inFlight++
		return true, nil
	}
	if t.freed == nil {
		t.freed = make(chan struct{})
	}
	return false, t.freed
}

// release gives places back.
func (t *requestThrottle) release(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inFlight -= n
	if t.freed != nil {
		close(t.freed)
		t.freed = nil
	}
}

// verdict is what a throttle says about one request.
type verdict uint8

const (
	admitted verdict = iota
	refused          // answer -127
	ended            // the connection is over
)

// throttle takes a place for the request of a frame, waiting for one if it must; a request that waited too long is
// answered here. What was read before goes first, or the places it holds would never be freed. Only the reader
// calls it. Pings and the end of a session are never held up, nor requests with special xids counted.
func (c *conn) throttle(frame []byte) verdict {
	t := c.port.throttle
	h, _, err := wire.SplitRequest(frame)
	if err != nil || h.Xid <= 0 || h.Op == wire.OpPing || h.Op == wire.OpCloseSession {
		return admitted
	}
	ok, again := t.tryAcquire()
	if !ok {
		c.port.counters.throttleWaits.Add(1)
		if !c.submit() || !c.tryPump() {
			c.close("")
			return ended
		}
		c.waiting.Store(true)
		v := t.await(again, c.done)
		c.waiting.Store(false)
		switch v {
		case ended:
			return ended
		case refused:
			c.received.Add(1)
			c.port.counters.throttledOps.Add(1)
			if !c.enqueue(slot{kind: slotRefused, xid: h.Xid, op: h.Op, code: kv.CodeThrottled}) || !c.tryPump() {
				return ended
			}
			return refused
		}
	}
	c.chargeNow(charge{placed: true})
	return admitted
}

// await waits until it has a place, the patience of a request ends, or done is closed.
func (t *requestThrottle) await(again, done <-chan struct{}) verdict {
	var late <-chan time.Time
	if t.wait > 0 {
		timer := time.NewTimer(t.wait)
		defer timer.Stop()
		late = timer.C
	}
	for {
		select {
		case <-again:
		case <-late:
			return refused
		case <-done:
			return ended
		}
		var ok bool
		if ok, again = t.tryAcquire(); ok {
			return admitted
		}
	}
}

// largeBudget bounds the bytes of all large requests in flight together (ZooKeeper: largeRequestMaxBytes). A
// connection whose next one would exceed it is closed.
type largeBudget struct {
	threshold int // a request is large above it
	limit     int64
	used      atomic.Int64
}

// newLargeBudget returns nil, which admits everything, if threshold is 0.
func newLargeBudget(threshold int, limit int64) *largeBudget {
	if threshold <= 0 {
		return nil
	}
	return &largeBudget{threshold: threshold, limit: limit}
}

// admitLarge charges the frame that comes next, if it is large, before its body is read. It reports false when the
// connection is over.
func (c *conn) admitLarge() bool {
	b := c.port.large
	head, err := c.frames.Peek(4)
	if err != nil {
		c.close(c.readError(err))
		return false
	}
	n := int64(int32(binary.BigEndian.Uint32(head)))
	if n <= int64(b.threshold) || n > int64(c.port.maxFrame) {
		return true // an illegal length is the frame reader's to refuse
	}
	if b.used.Add(n) > b.limit {
		b.used.Add(-n)
		c.port.counters.largeRejected.Add(1)
		c.close(fmt.Sprintf("large request of %d bytes exceeds what is left of %d", n, b.limit))
		return false
	}
	c.chargeNow(charge{large: n})
	return true
}

// charge is what the port's limits hold against one request, from its frame to its reply.
type charge struct {
	large  int64 // bytes of largeBudget
	placed bool  // a place of requestThrottle
}

// portCharge is the sum of a connection's charges. It is given back when the connection ends, whatever has become of
// the requests.
type portCharge struct {
	large  int64
	places int
}

// chargeNow notes a charge of the present frame. Only the reader calls it.
func (c *conn) chargeNow(q charge) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.charge.large += q.large
	c.charge.placed = c.charge.placed || q.placed
	c.charged.large += q.large
	if q.placed {
		c.charged.places++
	}
}

// settleFrame ends the charge of a frame that made no slot. Only the reader calls it.
func (c *conn) settleFrame() {
	if c.charge == (charge{}) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settleLocked(&c.charge)
}

// settleLocked gives back one charge and clears it. c.mu is held.
func (c *conn) settleLocked(q *charge) {
	if q.large > 0 && c.charged.large >= q.large {
		c.port.large.used.Add(-q.large)
		c.charged.large -= q.large
	}
	if q.placed && c.charged.places > 0 {
		c.port.throttle.release(1)
		c.charged.places--
	}
	*q = charge{}
}

// settleRunLocked gives back what the requests being answered were charged: before their replies are written, so that
// a client that waits for each finds room for the next. c.mu is held.
func (c *conn) settleRunLocked() {
	if c.charged == (portCharge{}) {
		return
	}
	for _, s := range c.run {
		c.settleLocked(&s.charge)
	}
}

// settleAll gives back what is left when the connection ends.
func (c *conn) settleAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.charged.large > 0 {
		c.port.large.used.Add(-c.charged.large)
	}
	if c.charged.places > 0 {
		c.port.throttle.release(c.charged.places)
	}
	c.charged = portCharge{}
}
