package kv

import (
	"encoding/binary"
	"unsafe"
)

// The primitive encodings shared by transactions and records: variable-length integers as in encoding/binary
// (always in their shortest form; a longer one is refused, so that decoding and encoding are inverse), byte
// strings with their length in front, and eight big-endian bytes for identifiers.

func appendUvarint(dst []byte, v uint64) []byte { return binary.AppendUvarint(dst, v) }

func appendVarint(dst []byte, v int64) []byte {
	return binary.AppendUvarint(dst, uint64(v)<<1^uint64(v>>63))
}

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// appendNullable appends data that may be null: zero for null, else length + 1 and the bytes.
func appendNullable(dst, data []byte) []byte {
	if data == nil {
		return append(dst, 0)
	}
	return append(binary.AppendUvarint(dst, uint64(len(data))+1), data...)
}

// reader walks over encoded bytes. The first fault sets bad and makes everything after it zero, so callers
// check once. It never allocates: what it returns aliases buf.
type reader struct {
	buf []byte
	off int
	bad bool
}

func (r *reader) fail() {
	r.bad = true
	r.off = len(r.buf)
}

func (r *reader) byte() byte {
	if r.off >= len(r.buf) {
		r.fail()
		return 0
	}
	b := r.buf[r.off]
	r.off++
	return b
}

func (r *reader) uvarint() uint64 {
	if r.off < len(r.buf) && r.buf[r.off] < 0x80 {
		r.off++
		return uint64(r.buf[r.off-1])
	}
	v, n := binary.Uvarint(r.buf[r.off:])
	if n <= 0 || (n > 1 && r.buf[r.off+n-1] == 0) { // a last byte of zero means a shorter form exists
		r.fail()
		return 0
	}
	r.off += n
	return v
}

func (r *reader) varint() int64 {
	u := r.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

func (r *reader) int32() int32 {
	v := r.varint()
	if v != int64(int32(v)) {
		r.fail()
		return 0
	}
	return int32(v)
}

func (r *reader) uint32() uint32 {
	v := r.uvarint()
	if v > 1<<32-1 {
		r.fail()
		return 0
	}
	return uint32(v)
}

func (r *reader) uint64() uint64 {
	if len(r.buf)-r.off < 8 {
		r.fail()
		return 0
	}
	v := binary.BigEndian.Uint64(r.buf[r.off:])
	r.off += 8
	return v
}

// bytes returns a byte string, aliasing the input.
func (r *reader) bytes() []byte { return r.take(r.uvarint()) }

// take returns the next n bytes, aliasing the input.
func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.buf)-r.off) {
		r.fail()
		return nil
	}
	b := r.buf[r.off : r.off+int(n) : r.off+int(n)]
	r.off += int(n)
	return b
}

// nullable returns data that may be null, aliasing the input; empty data is not nil.
func (r *reader) nullable() []byte {
	n := r.uvarint()
	if n == 0 {
		return nil
	}
	return r.take(n - 1)
}

// stringOf and bytesOf convert without copying. They are for memory that nobody writes to again: payloads of
// entries and records of the tree, both immutable once made.
func stringOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

func bytesOf(s string) []byte {
	if s == "" {
		return []byte{}
	}
	return unsafe.Slice(unsafe.StringData(s), len(s))
}
