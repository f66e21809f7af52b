package replica

import (
	"encoding/binary"
	"errors"
	"unsafe"

	"kvd/kv"
)

// The payloads that replicas exchange inside zab.Request, zab.Reply and zab.PingReply.Touched. They are
// msgpack, written by hand because they carry every forwarded write: fixed-width integers (readers accept
// exactly what writers produce), binaries, arrays. Part of the peer protocol, version 1.
//
//	forward     [1, n, (request, session, op, flags, body, auth) × n]   learner → leader
//	revalidate  [2, request, session, password, timeoutMs]              learner → leader
//	validity    [3, request, session, validity, timeoutMs, claim, fresh]   leader → learner
//	touches     [n, (session, timeoutMs, claim) × n]                    in PING replies
const (
	payloadForward    = 1
	payloadRevalidate = 2
	payloadValidity   = 3
)

// errPayload is the reason for closing a link on which an impossible payload arrived.
var errPayload = errors.New("malformed replica payload")

// errFlood is the reason for closing a link whose learner does not keep its window.
var errFlood = errors.New("more requests forwarded than the window allows")

// opOverhead bounds what an operation adds to its body and auth in a forward payload.
const opOverhead = 9 + 9 + 5 + 5 + 5 + 5

// Flags of a forwarded operation.
const (
	flagLocal  = 1 << iota // ClientOp.Local
	knownFlags = flagLocal
)

func appendUint64(b []byte, v uint64) []byte {
	return binary.BigEndian.AppendUint64(append(b, 0xcf), v)
}

func appendUint32(b []byte, v uint32) []byte {
	return binary.BigEndian.AppendUint32(append(b, 0xce), v)
}

// appendBinary keeps nil apart from empty: a null buffer is a value of the client protocol.
func appendBinary(b, v []byte) []byte {
	if v == nil {
		return append(b, 0xc0)
	}
	return append(binary.BigEndian.AppendUint32(append(b, 0xc6), uint32(len(v))), v...)
}

func appendText(b []byte, v string) []byte {
	return append(binary.BigEndian.AppendUint32(append(b, 0xc6), uint32(len(v))), v...)
}

func appendArray(b []byte, n int) []byte {
	return binary.BigEndian.AppendUint32(append(b, 0xdd), uint32(n))
}

// reader consumes a payload; after the first mistake everything is zero and bad is set.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(tag byte, n int) []byte {
	if r.bad || len(r.b) < 1+n || r.b[0] != tag {
		r.bad = true
		return nil
	}
	v := r.b[1 : 1+n]
	r.b = r.b[1+n:]
	return v
}

func (r *reader) uint64() uint64 {
	if v := r.take(0xcf, 8); v != nil {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if v := r.take(0xce, 4); v != nil {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}

func (r *reader) array() int {
	if v := r.take(0xdd, 4); v != nil {
		return int(binary.BigEndian.Uint32(v))
	}
	return 0
}

// binary returns a slice of the payload itself, with its capacity cut.
func (r *reader) binary() []byte {
	if !r.bad && len(r.b) > 0 && r.b[0] == 0xc0 {
		r.b = r.b[1:]
		return nil
	}
	head := r.take(0xc6, 4)
	if head == nil {
		return nil
	}
	n := int(binary.BigEndian.Uint32(head))
	if n > len(r.b) {
		r.bad = true
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

// text returns a string that aliases the payload. Unlike a binary it is never null.
func (r *reader) text() string {
	head := r.take(0xc6, 4)
	if head == nil {
		return ""
	}
	n := int(binary.BigEndian.Uint32(head))
	if n > len(r.b) {
		r.bad = true
		return ""
	}
	v := unsafe.String(unsafe.SliceData(r.b), n)
	r.b = r.b[n:]
	return v
}

// done reports whether the payload was well formed and used up.
func (r *reader) done() bool { return !r.bad && len(r.b) == 0 }

func appendForwardHeader(b []byte, n int) []byte {
	return appendUint32(appendUint32(appendArray(b, 2+6*n), payloadForward), uint32(n))
}

func appendForwardOp(b []byte, op *ClientOp) []byte {
	b = appendUint64(b, op.Request)
	b = appendUint64(b, uint64(op.Session))
	b = appendUint32(b, uint32(op.Op))
	flags := uint32(0)
	if op.Local {
		flags |= flagLocal
	}
	b = appendUint32(b, flags)
	b = appendBinary(b, op.Body)
	return appendText(b, string(op.Auth))
}

// clientOp decodes one operation. Body and Auth alias the payload, which is immutable.
func (r *reader) clientOp() ClientOp {
	op := ClientOp{
		Request: r.uint64(),
		Session: kv.SessionID(r.uint64()),
		Op:      int32(r.uint32()),
	}
	flags := r.uint32()
	op.Local = flags&flagLocal != 0
	op.Body = r.binary()
	op.Auth = kv.Credentials(r.text())
	if flags&^knownFlags != 0 || !op.Auth.Valid() {
		r.bad = true // what cannot be read must not pass for fewer identities
	}
	return op
}

// revalidation asks about one session; it is safe to ask again.
type revalidation struct {
	request   uint64
	session   kv.SessionID
	password  [16]byte
	timeoutMs int32
}

func appendRevalidation(b []byte, q *revalidation) []byte {
	b = appendUint32(appendArray(b, 5), payloadRevalidate)
	b = appendUint64(b, q.request)
	b = appendUint64(b, uint64(q.session))
	b = appendBinary(b, q.password[:])
	return appendUint32(b, uint32(q.timeoutMs))
}

func (r *reader) revalidation() (q revalidation) {
	q.request = r.uint64()
	q.session = kv.SessionID(r.uint64())
	if pw := r.binary(); len(pw) == len(q.password) {
		copy(q.password[:], pw)
	} else {
		r.bad = true
	}
	q.timeoutMs = int32(r.uint32())
	return q
}

func appendValidity(b []byte, v *Revalidated) []byte {
	b = appendUint32(appendArray(b, 7), payloadValidity)
	b = appendUint64(b, v.Request)
	b = appendUint64(b, uint64(v.Session))
	b = appendUint32(b, uint32(v.Validity))
	b = appendUint32(b, uint32(v.TimeoutMs))
	b = appendUint64(b, uint64(v.Claim))
	return appendUint64(b, uint64(v.Fresh))
}

func (r *reader) validity() (v Revalidated) {
	v.Request = r.uint64()
	v.Session = kv.SessionID(r.uint64())
	code := r.uint32()
	if code < uint32(NoAnswer) || code > uint32(WrongPassword) {
		r.bad = true
	}
	v.Validity = Validity(code)
	v.TimeoutMs = int32(r.uint32())
	v.Claim = Claim(r.uint64())
	v.Fresh = kv.Zxid(r.uint64())
	return v
}

// touch is one session that a member heard from, with the time-out agreed with its client and the claim of the
// connection.
type touch struct {
	session   kv.SessionID
	timeoutMs int32
	claim     Claim
}

func appendTouches(b []byte, ts []touch) []byte {
	b = appendUint32(appendArray(b, 1+3*len(ts)), uint32(len(ts)))
	for _, t := range ts {
		b = appendUint32(appendUint64(b, uint64(t.session)), uint32(t.timeoutMs))
		b = appendUint64(b, uint64(t.claim))
	}
	return b
}

// eachTouch calls yield for every touch and reports whether the table was well formed.
func eachTouch(b []byte, yield func(touch)) bool {
	r := reader{b: b}
	r.array()
	for n := r.uint32(); n > 0 && !r.bad; n-- {
		t := touch{session: kv.SessionID(r.uint64()), timeoutMs: int32(r.uint32()), claim: Claim(r.uint64())}
		if !r.bad {
			yield(t)
		}
	}
	return r.done()
}

// AppendCreateSession encodes the body of an OpCreateSession operation: the time-out asked for, in
// milliseconds, and the session's password.
func AppendCreateSession(dst []byte, timeoutMs int32, password [16]byte) []byte {
	return appendBinary(appendUint32(dst, uint32(timeoutMs)), password[:])
}

func decodeCreateSession(body []byte) (timeoutMs int32, password [16]byte, ok bool) {
	r := reader{b: body}
	timeoutMs = int32(r.uint32())
	pw := r.binary()
	if len(pw) != len(password) || !r.done() {
		return 0, password, false
	}
	copy(password[:], pw)
	return timeoutMs, password, true
}
