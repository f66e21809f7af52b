package ensemble

import (
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// streamRate is what a client must take of a long reply, on average and beyond its session's time-out: bytes a second. A
// slower one is cut, because the view that the reply is written from cannot be freed meanwhile.
const streamRate = 64 << 10

// stream is a record on its way to the socket in pieces: whatever its length, no more than flushBytes of it is in memory.
// Its length has been counted before, from the same view.
type stream struct {
	c      *conn
	failed bool // the connection is over; the rest is not written
	// long: it does not stay in the buffer. began and written: progress since then, for the patience with a slow client.
	long    bool
	began   int64 // tick
	written int64
}

// stream writes the reply of a read whose record is size bytes long and is produced piece by piece. A short one stays in
// the connection's buffer, like every reply.
func (c *conn) stream(s *slot, size int, produce func(*stream)) progress {
	if !c.beginReply(s, kv.CodeOK) {
		return broken
	}
	body := wire.ReplyHeaderBytes + size
	w := &c.streaming
	if size <= flushBytes {
		*w = stream{c: c}
		produce(w)
		if len(c.out)-c.mark-4 != body {
			c.close("internal error: a reply has another length than was counted")
			return broken
		}
		return c.endReply()
	}
	wire.PutFrameLength(c.out, c.mark, body)
	// What is in the buffer already belongs to earlier replies and to the header.
	*w = stream{c: c, long: true, began: c.port.clock.now(), written: -int64(len(c.out))}
	produce(w)
	w.flush()
	if w.failed {
		return broken
	}
	if w.written != int64(size) {
		c.close("internal error: a reply has another length than was announced")
		return broken
	}
	c.sizes.add(int64(body))
	return answered
}

// room flushes if much has gathered.
func (w *stream) room() {
	if len(w.c.out) >= flushBytes && w.long {
		w.flush()
	}
}

// flush writes what has gathered. That the client takes it in is a sign of life.
func (w *stream) flush() {
	if w.failed || !w.long {
		return
	}
	w.write(w.c.out)
	w.c.out = w.c.out[:0]
}

func (w *stream) write(b []byte) {
	w.failed = !w.c.writeOut(b, w.since())
	w.written += int64(len(b))
	w.c.hear()
}

// since is the tick from which the janitor counts a blocked write: that of a client which takes streamRate is always
// now, a slower one's falls behind.
func (w *stream) since() int64 {
	due := w.began + w.written*int64(time.Second/tick)/streamRate
	return min(due, w.c.port.clock.now())
}

func (w *stream) int32(v int32) { w.c.out = wire.AppendInt32(w.c.out, v) }

func (w *stream) string(s string) {
	w.c.out = wire.AppendString(w.c.out, s)
	w.room()
}

func (w *stream) stat(s *kv.Stat) {
	w.c.out = wire.AppendStat(w.c.out, s)
	w.room()
}

// buffer writes data; long ones go out without a copy.
func (w *stream) buffer(data []byte) {
	if len(data) < flushBytes || !w.long {
		w.c.out = wire.AppendBuffer(w.c.out, data)
		w.room()
		return
	}
	w.int32(int32(len(data)))
	w.flush()
	for len(data) > 0 && !w.failed {
		piece := data[:min(len(data), streamPiece)]
		data = data[len(piece):]
		w.write(piece)
	}
}

// streamPiece is how much of a node's data is written at once: enough that the time-out of one write means something.
const streamPiece = 256 << 10

func (w *stream) names(names kv.Names) {
	w.int32(int32(names.Len()))
	names.Each(func(name string) bool {
		w.string(name)
		return !w.failed
	})
}

func (w *stream) multiHeader(op wire.Op) { w.c.out = (&wire.MultiHeader{Op: op}).AppendTo(w.c.out) }

func (w *stream) multiError(code kv.Code) {
	w.c.out = wire.AppendMultiError(w.c.out, code)
	w.room()
}

func (w *stream) multiEnd() { w.c.out = wire.AppendMultiEnd(w.c.out) }
