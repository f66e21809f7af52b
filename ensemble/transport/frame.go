package transport

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
)

// Frame kinds. Part of the peer protocol. Election connections use the payload kinds (KindNotification,
// KindIdentity).
const (
	kindMessage   byte = 16 // a zab message
	kindGoodbye   byte = 17 // body: reason, text; nothing follows
	kindSnapBegin byte = 18 // stream, point
	kindSnapHave  byte = 19 // stream, bytes held per file
	kindSnapChunk byte = 20 // stream, file, offset, hash, data
	kindSnapAck   byte = 21 // stream, bytes taken since the start
	kindSnapDone  byte = 22 // stream, reason; from the receiver; empty: durable
	kindSnapAbort byte = 23 // stream, reason; from the sender
)

const (
	headBytes      = 5                 // length and kind
	chunkHeadBytes = 4 + 2 + 8 + 8 + 1 // what a chunk frame adds to its data, kind included
	// growStep is how much a frame's buffer grows ahead of the bytes that have really arrived.
	growStep = 1 << 20
	// slabBytes is the block that small frames are cut from: one allocation for many.
	slabBytes = 32 << 10
	// pooledBytes is the largest buffer kept for reuse. A recycled buffer may end up under a tiny message, and
	// queues count what is really held, so large buffers in the pool would fill queues with air.
	pooledBytes = 8 << 10
)

// errFrame matches every malformed frame.
var errFrame = errors.New("malformed frame")

// frame is one encoded frame, possibly waiting in the queues of several links. It is returned to the pool when
// the last holder releases it.
type frame struct {
	buf  []byte // length, kind, body
	refs atomic.Int32
}

var framePool = sync.Pool{New: func() any { return new(frame) }}

// newFrame returns a frame of the given kind with an empty body and one reference.
func newFrame(kind byte) *frame {
	f := framePool.Get().(*frame)
	f.buf = append(f.buf[:0], 0, 0, 0, 0, kind)
	f.refs.Store(1)
	return f
}

// seal writes the length once the body is complete.
func (f *frame) seal() { binary.BigEndian.PutUint32(f.buf, uint32(len(f.buf)-4)) }

// held is the memory that the frame keeps while it waits.
func (f *frame) held() int { return cap(f.buf) }

func (f *frame) retain() { f.refs.Add(1) }

func (f *frame) release() {
	if n := f.refs.Add(-1); n > 0 {
		return
	} else if n < 0 {
		panic("transport: frame released twice")
	}
	if cap(f.buf) > pooledBytes {
		f.buf = nil
	}
	framePool.Put(f)
}

// frameReader cuts frames out of a byte stream. Bodies are freshly allocated (small ones out of a shared slab)
// and belong to the caller for good: decoded messages alias them.
type frameReader struct {
	r        *bufio.Reader
	maxBytes int // kind and body
	slab     []byte
	progress func() // nil, or called whenever another growStep of a large frame has arrived
}

func newFrameReader(r io.Reader, maxBytes int) *frameReader {
	return &frameReader{r: bufio.NewReaderSize(r, 64<<10), maxBytes: maxBytes}
}

// next returns the next frame. Errors are those of the stream, io.ErrUnexpectedEOF inside a frame, or match errFrame.
func (fr *frameReader) next() (kind byte, body []byte, err error) {
	var head [headBytes]byte
	if _, err := io.ReadFull(fr.r, head[:]); err != nil {
		return 0, nil, err
	}
	n := int64(binary.BigEndian.Uint32(head[:4]))
	if n < 1 || n > int64(fr.maxBytes) {
		return 0, nil, fmt.Errorf("%w: length %d, limit %d", errFrame, n, fr.maxBytes)
	}
	body, err = fr.body(int(n - 1))
	return head[4], body, err
}

func (fr *frameReader) body(n int) ([]byte, error) {
	if n <= slabBytes/8 {
		if n > len(fr.slab) {
			fr.slab = make([]byte, slabBytes)
		}
		b := fr.slab[:n:n]
		fr.slab = fr.slab[n:]
		return b, fr.fill(b)
	}
	b := make([]byte, min(n, growStep))
	if err := fr.fill(b); err != nil {
		return nil, err
	}
	for len(b) < n { // a large frame: allocate as its bytes arrive, doubling, not as announced
		old := len(b)
		grown := make([]byte, min(n, 2*old))
		copy(grown, b)
		if err := fr.fill(grown[old:]); err != nil {
			return nil, err
		}
		b = grown
	}
	return b, nil
}

func (fr *frameReader) fill(b []byte) error {
	for {
		n := min(len(b), growStep)
		_, err := io.ReadFull(fr.r, b[:n])
		if errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		if n == growStep && fr.progress != nil {
			fr.progress()
		}
		if b = b[n:]; len(b) == 0 {
			return nil
		}
	}
}
