package wire

import (
	"encoding/binary"
	"unsafe"

	"kvd/kv"
)

// AppendInt32 appends a big-endian int.
func AppendInt32(dst []byte, v int32) []byte { return binary.BigEndian.AppendUint32(dst, uint32(v)) }

// AppendInt64 appends a big-endian long.
func AppendInt64(dst []byte, v int64) []byte { return binary.BigEndian.AppendUint64(dst, uint64(v)) }

// AppendBool appends one byte, 0 or 1.
func AppendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// AppendString appends a string; it is never null.
func AppendString(dst []byte, s string) []byte {
	return append(AppendInt32(dst, int32(len(s))), s...)
}

// AppendBuffer appends a buffer; nil becomes null, an empty slice stays empty.
func AppendBuffer(dst, b []byte) []byte {
	if b == nil {
		return AppendInt32(dst, -1)
	}
	return append(AppendInt32(dst, int32(len(b))), b...)
}

// AppendStrings appends a vector of strings; nil becomes an empty vector, because no server's reply has a
// null one and a null list in a request is refused.
func AppendStrings(dst []byte, list []string) []byte {
	dst = AppendInt32(dst, int32(len(list)))
	for _, s := range list {
		dst = AppendString(dst, s)
	}
	return dst
}

// ACLBytes is the length of what AppendACL appends.
func ACLBytes(acl []kv.ACL) int {
	n := 4
	for i := range acl {
		n += 12 + len(acl[i].Scheme) + len(acl[i].ID)
	}
	return n
}

// AppendACL appends a vector of ACL entries; nil becomes null.
func AppendACL(dst []byte, acl []kv.ACL) []byte {
	if acl == nil {
		return AppendInt32(dst, -1)
	}
	dst = AppendInt32(dst, int32(len(acl)))
	for i := range acl {
		dst = AppendInt32(dst, acl[i].Perms)
		dst = AppendString(dst, acl[i].Scheme)
		if acl[i].ID == kv.NullID {
			dst = AppendInt32(dst, -1)
			continue
		}
		dst = AppendString(dst, acl[i].ID)
	}
	return dst
}

// StatBytes is the length of an encoded Stat.
const StatBytes = 68

// AppendStat appends a Stat (68 bytes).
func AppendStat(dst []byte, s *kv.Stat) []byte {
	dst = AppendInt64(dst, int64(s.Czxid))
	dst = AppendInt64(dst, int64(s.Mzxid))
	dst = AppendInt64(dst, s.Ctime)
	dst = AppendInt64(dst, s.Mtime)
	dst = AppendInt32(dst, s.Version)
	dst = AppendInt32(dst, s.Cversion)
	dst = AppendInt32(dst, s.Aversion)
	dst = AppendInt64(dst, int64(s.EphemeralOwner))
	dst = AppendInt32(dst, s.DataLength)
	dst = AppendInt32(dst, s.NumChildren)
	return AppendInt64(dst, int64(s.Pzxid))
}

// Reader decodes fields from a frame, in place. The first field that does not fit makes it fail: every later
// field is zero and Err returns ErrMarshalling. The zero Reader is an empty frame; Reset points it at bytes.
type Reader struct {
	rest []byte
	bad  bool
}

// NewReader returns a Reader over b.
func NewReader(b []byte) Reader { return Reader{rest: b} }

// Reset points the Reader at b and forgets a failure.
func (r *Reader) Reset(b []byte) { r.rest, r.bad = b, false }

// Err is nil as long as every field read so far was there, and ErrMarshalling afterwards.
func (r *Reader) Err() error {
	if r.bad {
		return ErrMarshalling
	}
	return nil
}

// Len is the number of bytes not read yet; 0 after a failure.
func (r *Reader) Len() int { return len(r.rest) }

func (r *Reader) fail() { r.rest, r.bad = nil, true }

// Byte reads one byte.
func (r *Reader) Byte() byte {
	if len(r.rest) < 1 {
		r.fail()
		return 0
	}
	v := r.rest[0]
	r.rest = r.rest[1:]
	return v
}

// Bool reads one byte; anything but 0 is true.
func (r *Reader) Bool() bool { return r.Byte() != 0 }

// Int32 reads an int.
func (r *Reader) Int32() int32 {
	if len(r.rest) < 4 {
		r.fail()
		return 0
	}
	v := binary.BigEndian.Uint32(r.rest)
	r.rest = r.rest[4:]
	return int32(v)
}

// Int64 reads a long.
func (r *Reader) Int64() int64 {
	if len(r.rest) < 8 {
		r.fail()
		return 0
	}
	v := binary.BigEndian.Uint64(r.rest)
	r.rest = r.rest[8:]
	return int64(v)
}

// Buffer reads a buffer: nil if it is null, otherwise a slice of the frame (not nil, capacity cut).
func (r *Reader) Buffer() []byte {
	n := r.Int32()
	if n == -1 && !r.bad {
		return nil
	}
	if n < 0 || int(n) > len(r.rest) || r.bad {
		r.fail()
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

// NullString reads a string that may be null; it aliases the frame.
func (r *Reader) NullString() (s string, null bool) {
	b := r.Buffer()
	if b == nil {
		return "", !r.bad
	}
	return unsafe.String(unsafe.SliceData(b), len(b)), false
}

// String reads a string that must not be null; it aliases the frame.
func (r *Reader) String() string {
	s, null := r.NullString()
	if null {
		r.fail()
	}
	return s
}

// count reads a vector's count and checks it against the bytes that are left, each element taking at least
// min of them. A null vector is -1.
func (r *Reader) count(min int) int {
	n := r.Int32()
	if r.bad || n < -1 || int(n) > len(r.rest)/min {
		r.fail()
		return 0
	}
	return int(n)
}

// Strings reads a vector of strings into dst[:0]; the strings alias the frame. A null vector or a null
// element fails. The result is not nil unless the Reader failed.
func (r *Reader) Strings(dst []string) []string {
	n := r.count(4)
	if n < 0 {
		r.fail()
	}
	if r.bad {
		return nil
	}
	dst = grow(dst, n)
	for range n {
		dst = append(dst, r.String())
	}
	if r.bad {
		return nil
	}
	return dst
}

// ACL reads a vector of ACL entries; the strings alias the frame. A null vector is nil, an empty one is not. A null
// scheme is an empty one, which nobody knows either; a null id is kv.NullID.
func (r *Reader) ACL() []kv.ACL {
	n := r.count(12)
	if r.bad || n < 0 {
		return nil
	}
	acl := make([]kv.ACL, n)
	for i := range acl {
		acl[i].Perms = r.Int32()
		acl[i].Scheme, _ = r.NullString()
		id, null := r.NullString()
		if null {
			id = kv.NullID
		}
		acl[i].ID = id
	}
	if r.bad {
		return nil
	}
	return acl
}

// Stat reads a Stat into s.
func (r *Reader) Stat(s *kv.Stat) {
	if len(r.rest) < StatBytes {
		r.fail()
		return
	}
	s.Czxid = kv.Zxid(r.Int64())
	s.Mzxid = kv.Zxid(r.Int64())
	s.Ctime = r.Int64()
	s.Mtime = r.Int64()
	s.Version = r.Int32()
	s.Cversion = r.Int32()
	s.Aversion = r.Int32()
	s.EphemeralOwner = kv.SessionID(r.Int64())
	s.DataLength = r.Int32()
	s.NumChildren = r.Int32()
	s.Pzxid = kv.Zxid(r.Int64())
}

// grow returns dst[:0] with room for n elements, never nil.
func grow[T any](dst []T, n int) []T {
	if dst == nil || cap(dst) < n {
		return make([]T, 0, n)
	}
	return dst[:0]
}
