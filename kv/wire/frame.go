package wire

import (
	"encoding/binary"
	"fmt"
	"io"
)

// DefaultMaxFrameBytes is ZooKeeper's default limit of a frame's body (jute.maxbuffer).
const DefaultMaxFrameBytes = 0xfffff

// BeginFrame appends room for a frame's length and returns where it is; EndFrame fills it in.
func BeginFrame(dst []byte) (_ []byte, mark int) { return append(dst, 0, 0, 0, 0), len(dst) }

// EndFrame writes the length of everything appended since BeginFrame returned mark.
func EndFrame(dst []byte, mark int) []byte {
	binary.BigEndian.PutUint32(dst[mark:], uint32(len(dst)-mark-4))
	return dst
}

// PutFrameLength writes the length of a frame whose body is not all there yet, and may never be in dst.
func PutFrameLength(dst []byte, mark, body int) {
	binary.BigEndian.PutUint32(dst[mark:], uint32(body))
}

const (
	minChunkBytes = 4 << 10  // what an idle connection costs
	maxChunkBytes = 64 << 10 // what one read of a busy connection brings
	minReadBytes  = 512      // less room is not worth a read
)

// FrameReader cuts a byte stream into frames. It reads as much as is there at once (one system call brings
// many small frames) and grows with what has arrived, never with what a length announces: a frame of the
// largest legal length costs its sender the bytes before it costs the receiver the memory.
//
// It is used by one goroutine.
type FrameReader struct {
	src   io.Reader
	limit int

	// buf[start:end] has been read and not been returned. keep: bytes of buf before start are in use by
	// others, so that buf must not be moved within or written below end again.
	buf        []byte
	start, end int
	keep       bool
	chunkBytes int  // size of the next large chunk: doubles while reads fill it, halves when they do not
	full       bool // the last read filled its chunk: there is more
}

// NewFrameReader returns a FrameReader that refuses bodies longer than limit bytes.
func NewFrameReader(src io.Reader, limit int) *FrameReader {
	return &FrameReader{src: src, limit: limit, chunkBytes: minChunkBytes}
}

// SetLimit changes the limit for the frames that follow.
func (f *FrameReader) SetLimit(limit int) { f.limit = limit }

// Buffered reports whether a whole frame (or a refusable length) is there, so that Next will not block. A
// server flushes what it has gathered before a Next that may block.
func (f *FrameReader) Buffered() bool {
	if f.end-f.start < 4 {
		return false
	}
	n := int(int32(binary.BigEndian.Uint32(f.buf[f.start:])))
	return n < 0 || n > f.limit || f.end-f.start-4 >= n
}

// Next returns the body of the next frame. It is valid until the next call of Next or Peek, or for good if
// Keep is called before that. At a clean end between frames the error is io.EOF, within a frame
// io.ErrUnexpectedEOF; an illegal length is ErrFrameLength (wrapped) and final.
func (f *FrameReader) Next() ([]byte, error) {
	if err := f.fill(4); err != nil {
		return nil, err
	}
	n := int(int32(binary.BigEndian.Uint32(f.buf[f.start:])))
	if n < 0 || n > f.limit {
		return nil, fmt.Errorf("%w: %d with a limit of %d", ErrFrameLength, n, f.limit)
	}
	if err := f.fill(4 + n); err != nil {
		return nil, err
	}
	body := f.buf[f.start+4 : f.start+4+n : f.start+4+n]
	f.start += 4 + n
	return body, nil
}

// Peek returns the next n bytes without consuming them (n at most minChunkBytes): the server looks at the
// first four of a connection for a four-letter word.
func (f *FrameReader) Peek(n int) ([]byte, error) {
	if err := f.fill(n); err != nil {
		return nil, err
	}
	return f.buf[f.start : f.start+n : f.start+n], nil
}

// Keep makes the frame that Next returned last (and every earlier one still in the buffer) belong to the
// caller: its bytes are never written again. The memory is freed when the last keeper drops it; a chunk is
// at most 64 KiB, or one frame that is larger.
func (f *FrameReader) Keep() { f.keep = true }

// fill reads until need bytes are unread.
func (f *FrameReader) fill(need int) error {
	for f.end-f.start < need {
		if f.start == f.end && !f.full {
			f.await()
		}
		if len(f.buf)-f.end == 0 || (len(f.buf)-f.start < need && f.start > 0) {
			f.makeRoom(need)
		}
		n, err := f.src.Read(f.buf[f.end:])
		f.end += n
		f.full = f.end == len(f.buf)
		switch size := len(f.buf); {
		case f.full && f.chunkBytes < maxChunkBytes:
			f.chunkBytes *= 2
		case n < size/4 && size == f.chunkBytes && size > minChunkBytes:
			f.chunkBytes /= 2
		}
		if n > 0 {
			continue
		}
		if err == nil {
			return io.ErrNoProgress
		}
		if err == io.EOF && f.end > f.start {
			return io.ErrUnexpectedEOF
		}
		return err
	}
	return nil
}

// await prepares for a read that will probably wait: nothing is unread, and the last read took all that there was. One of
// a server's many idle connections must not hold more than a small chunk, whatever it has read before.
func (f *FrameReader) await() {
	switch {
	case !f.keep && len(f.buf) > 0 && len(f.buf) <= maxChunkBytes:
		f.start, f.end = 0, 0
	case len(f.buf) > minChunkBytes || len(f.buf)-f.end < minReadBytes:
		f.buf, f.start, f.end, f.keep = make([]byte, minChunkBytes), 0, 0, false
	}
}

// makeRoom leaves at least one byte free behind what is unread, and never more than twice of what has
// arrived (or a chunk).
func (f *FrameReader) makeRoom(need int) {
	unread := f.buf[f.start:f.end]
	size := max(f.chunkBytes, min(need, 2*len(unread)))
	if !f.keep && f.start > 0 && len(f.buf) >= min(need, size) {
		f.end = copy(f.buf, unread)
		f.start = 0
		return
	}
	buf := make([]byte, size)
	f.end = copy(buf, unread)
	f.buf, f.start, f.keep = buf, 0, false
}
