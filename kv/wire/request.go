package wire

import "kvd/kv"

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
	decodeWrite(&r, op, req)
	return r.Err()
}

// decodeWrite decodes one write that is not a multi. It is the one place that maps records to kv.Request.
func decodeWrite(r *Reader, op Op, req *kv.Request) {
	ops := req.Ops
	*req = kv.Request{Op: kv.Op(op), Ops: ops[:0]}
	switch op {
	case OpCreate, OpCreate2, OpCreateContainer:
		req.Path, req.Data, req.ACL, req.Flags, req.TTL = r.String(), r.Buffer(), r.ACL(), r.Int32(), -1
	case OpCreateTTL:
		req.Path, req.Data, req.ACL, req.Flags, req.TTL = r.String(), r.Buffer(), r.ACL(), r.Int32(), r.Int64()
	case OpDelete, OpCheck:
		req.Path, req.Version = r.String(), r.Int32()
	case OpSetData:
		req.Path, req.Data, req.Version = r.String(), r.Buffer(), r.Int32()
	case OpSetACL:
		req.Path, req.ACL, req.Version = r.String(), r.ACL(), r.Int32()
	case OpCloseSession:
	default:
		r.fail()
	}
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
