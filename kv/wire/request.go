package wire

import (
	"slices"

	"kvd/kv"
)

// DecodeRequest decodes the record of a write into req, which it overwrites; the slice of req.Ops is reused.
// Strings and data alias body. The leader calls it on what any member's client sent, so req.Session is left
// zero and is the caller's to fill. Errors: ErrMarshalling (answered with -5), ErrNotWrite.
//
// Flags are passed on as they came, also for single creates where kv decides about values outside 0..6; only
// within a multi such a value makes the whole request unreadable. Plain creates get TTL -1.
func DecodeRequest(op Op, body []byte, req *kv.Request) error {
	if op.Class() != ClassWrite || op == OpReconfig {
		return ErrNotWrite
	}
	r := NewReader(body)
	if op == OpMulti {
		ops := req.Ops
		*req = kv.Request{Op: kv.OpMulti}
		var err error
		req.Ops, err = decodeMulti(&r, ops)
		return err
	}
	decodeWrite(&r, op, req, false)
	return r.Err()
}

// decodeWrite decodes one write that is not a multi. It is the one place that maps records to kv.Request. A null path or
// null id of an ACL is refused where the checks come to it; within a multi it makes the whole request unreadable.
func decodeWrite(r *Reader, op Op, req *kv.Request, within bool) {
	ops := req.Ops
	*req = kv.Request{Op: kv.Op(op), Ops: ops[:0]}
	switch op {
	case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL:
		path, null := r.NullString()
		req.Path, req.Data, req.ACL, req.Flags, req.TTL = path, r.Buffer(), r.ACL(), r.Int32(), -1
		if op == OpCreateTTL {
			req.TTL = r.Int64()
		}
		if null && (within || validMode(op, req.Flags, req.TTL)) {
			r.fail() // a mode that is none comes first and has a code of its own
		}
	case OpDelete, OpCheck:
		req.Path, req.Version = r.String(), r.Int32()
	case OpSetData:
		path, null := r.NullString() // refused like an empty one
		req.Path, req.Data, req.Version = path, r.Buffer(), r.Int32()
		if null && within {
			r.fail()
		}
	case OpSetACL:
		req.Path, _ = r.NullString()
		req.ACL, req.Version = r.ACL(), r.Int32()
	case OpCloseSession:
	default:
		r.fail()
	}
	if within && slices.ContainsFunc(req.ACL, func(a kv.ACL) bool { return a.ID == kv.NullID }) {
		r.fail()
	}
}

// validMode reports whether flags and time to live of a create pass the checks that are made before the path is looked at.
func validMode(op Op, flags int32, ttl int64) bool {
	if withTTL := flags == kv.FlagTTL || flags == kv.FlagSequentialTTL; withTTL || op == OpCreateTTL {
		return withTTL && op == OpCreateTTL && ttl > 0 && ttl <= kv.MaxTTL
	}
	return flags >= kv.FlagPersistent && flags <= kv.FlagContainer
}

// AppendRequest appends the record of a write: the inverse of DecodeRequest.
func AppendRequest(dst []byte, req *kv.Request) []byte {
	op := Op(req.Op)
	if op == OpMulti {
		for i := range req.Ops {
			dst = (&MultiHeader{Op: Op(req.Ops[i].Op), Err: -1}).AppendTo(dst)
			dst = AppendRequest(dst, &req.Ops[i])
		}
		return AppendMultiEnd(dst)
	}
	switch op {
	case OpCreate, OpCreate2, OpCreateContainer:
		dst = AppendInt32(AppendACL(AppendBuffer(AppendString(dst, req.Path), req.Data), req.ACL), req.Flags)
	case OpCreateTTL:
		dst = AppendInt32(AppendACL(AppendBuffer(AppendString(dst, req.Path), req.Data), req.ACL), req.Flags)
		dst = AppendInt64(dst, req.TTL)
	case OpDelete, OpCheck:
		dst = AppendInt32(AppendString(dst, req.Path), req.Version)
	case OpSetData:
		dst = AppendInt32(AppendBuffer(AppendString(dst, req.Path), req.Data), req.Version)
	case OpSetACL:
		dst = AppendInt32(AppendACL(AppendString(dst, req.Path), req.ACL), req.Version)
	}
	return dst
}

// sequenceBytes is the longest suffix of a sequential node: ten digits, and a sign once the counter has wrapped.
const sequenceBytes = 11

// ReplyBound returns an upper bound of the reply's record for a write, whatever comes of it. A server that bounds its
// replies asks before it takes the write in: a write that was carried out must not be answered with an error. A record
// that does not parse counts 0, as its answer has no record. Its cost is that of decoding the request.
func ReplyBound(op Op, body []byte) int {
	var req kv.Request
	if DecodeRequest(op, body, &req) != nil {
		return 0
	}
	if op != OpMulti {
		return resultBound(&req)
	}
	done, failed := MultiHeaderBytes, MultiHeaderBytes
	for i := range req.Ops {
		done += MultiHeaderBytes + resultBound(&req.Ops[i])
		failed += MultiHeaderBytes + 4
	}
	return max(done, failed)
}

func resultBound(req *kv.Request) int {
	switch Op(req.Op) {
	case OpCreate:
		return 4 + len(req.Path) + sequenceBytes
	case OpCreate2, OpCreateContainer, OpCreateTTL:
		return 4 + len(req.Path) + sequenceBytes + StatBytes
	case OpSetData, OpSetACL:
		return StatBytes
	}
	return 0
}

// MaxReplyGrowth bounds how much longer the record of a write's reply can be than that of its request: ReplyBound is at
// most MaxReplyGrowth times the request's length plus ReplySlack. (The worst is a multi of setData on the root: 22 bytes
// become 77.)
const (
	MaxReplyGrowth = 4
	ReplySlack     = 128
)

// TouchesWatches reports whether a read sets, asks for or takes away watches. A record that does not parse does not.
func TouchesWatches(op Op, body []byte) bool {
	switch op {
	case OpExists, OpGetData, OpGetChildren, OpGetChildren2:
		var q PathWatchRequest
		r := NewReader(body)
		q.DecodeFrom(&r)
		return q.Watch
	case OpAddWatch, OpCheckWatches, OpRemoveWatches, OpSetWatches, OpSetWatches2:
		return true
	}
	return false
}
