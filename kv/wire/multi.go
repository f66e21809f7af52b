package wire

import (
	"fmt"

	"kvd/kv"
)

// MultiHeader stands before every operation and every result of a multi, and ends the list with Done.
type MultiHeader struct {
	Op   Op // -1 at the end and before an error result
	Done bool
	Err  int32 // -1 in requests and at the end
}

// MultiHeaderBytes is the length of a MultiHeader.
const MultiHeaderBytes = 9

// AppendTo implements Record.
func (h *MultiHeader) AppendTo(dst []byte) []byte {
	return AppendInt32(AppendBool(AppendInt32(dst, int32(h.Op)), h.Done), h.Err)
}

// DecodeFrom implements Record.
func (h *MultiHeader) DecodeFrom(r *Reader) {
	h.Op, h.Done, h.Err = Op(r.Int32()), r.Bool(), r.Int32()
}

// AppendMultiOp appends one operation of a multi or multiRead request.
func AppendMultiOp(dst []byte, op Op, rec Record) []byte {
	return rec.AppendTo((&MultiHeader{Op: op, Err: -1}).AppendTo(dst))
}

// AppendMultiEnd ends a request or a list of results.
func AppendMultiEnd(dst []byte) []byte {
	return (&MultiHeader{Op: -1, Done: true, Err: -1}).AppendTo(dst)
}

// AppendMultiError appends the result of one operation of a multi that failed: 0 before the failing one, its
// code, -2 after it.
func AppendMultiError(dst []byte, code kv.Code) []byte {
	return AppendInt32((&MultiHeader{Op: -1, Err: int32(code)}).AppendTo(dst), int32(code))
}

// AppendMultiResult appends the result of one operation of a multi that succeeded. path and stat are used
// where the operation's result has them: create (path), create2, createContainer and createTTL (both, and all
// three answer as create2), setData (stat).
func AppendMultiResult(dst []byte, op Op, path string, stat *kv.Stat) []byte {
	switch op {
	case OpCreateContainer, OpCreateTTL:
		op = OpCreate2
	}
	dst = (&MultiHeader{Op: op}).AppendTo(dst)
	switch op {
	case OpCreate:
		dst = AppendString(dst, path)
	case OpCreate2:
		dst = AppendStat(AppendString(dst, path), stat)
	case OpSetData:
		dst = AppendStat(dst, stat)
	}
	return dst
}

// MultiResult is one decoded result of a multi or multiRead. Which fields are set follows from Op; with
// Failed only Err is (it may be 0: an operation before the one that failed).
type MultiResult struct {
	Op     Op
	Failed bool
	Err    kv.Code
	Path   string
	Data   []byte
	Names  []string
	Stat   kv.Stat
}

// DecodeMultiResults decodes the reply of a multi or multiRead into dst[:0]. Strings and data alias body.
func DecodeMultiResults(body []byte, dst []MultiResult) ([]MultiResult, error) {
	r := NewReader(body)
	dst = dst[:0]
	for {
		var h MultiHeader
		h.DecodeFrom(&r)
		if r.bad || h.Done {
			return dst, r.Err()
		}
		res := MultiResult{Op: h.Op}
		switch h.Op {
		case OpCreate:
			res.Path = r.String()
		case OpCreate2:
			res.Path = r.String()
			r.Stat(&res.Stat)
		case OpSetData:
			r.Stat(&res.Stat)
		case OpGetData:
			res.Data = r.Buffer()
			r.Stat(&res.Stat)
		case OpGetChildren:
			res.Names = r.Strings(nil)
		case OpDelete, OpCheck:
		case -1:
			res.Failed, res.Err = true, kv.Code(r.Int32())
		default:
			r.fail()
		}
		if r.bad {
			return dst, r.Err()
		}
		dst = append(dst, res)
	}
}

// AppendMultiResults is the inverse of DecodeMultiResults.
func AppendMultiResults(dst []byte, results []MultiResult) []byte {
	for i := range results {
		res := &results[i]
		switch {
		case res.Failed:
			dst = AppendMultiError(dst, res.Err)
		case res.Op == OpGetData:
			dst = (&MultiHeader{Op: res.Op}).AppendTo(dst)
			dst = AppendStat(AppendBuffer(dst, res.Data), &res.Stat)
		case res.Op == OpGetChildren:
			dst = AppendStrings((&MultiHeader{Op: res.Op}).AppendTo(dst), res.Names)
		default:
			dst = AppendMultiResult(dst, res.Op, res.Path, &res.Stat)
		}
	}
	return AppendMultiEnd(dst)
}

// ReadOp is one operation of a multiRead: getData or getChildren. The watch flag is ignored by servers.
type ReadOp struct {
	Op Op
	PathWatchRequest
}

// DecodeMultiRead decodes a multiRead request into dst[:0]. writesOnly tells the case that ZooKeeper answers
// with error -5 and the end of an empty list for a body: all operations are writes, as a multi has them.
func DecodeMultiRead(body []byte, dst []ReadOp) (_ []ReadOp, writesOnly bool, err error) {
	r := NewReader(body)
	dst = dst[:0]
	for {
		var h MultiHeader
		h.DecodeFrom(&r)
		if r.bad || h.Done {
			return dst, false, r.Err()
		}
		switch h.Op {
		case OpGetData, OpGetChildren:
			q := ReadOp{Op: h.Op}
			q.PathWatchRequest.DecodeFrom(&r)
			dst = append(dst, q)
		case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL, OpDelete, OpSetData, OpCheck:
			if len(dst) == 0 {
				writes := NewReader(body)
				_, err := decodeMulti(&writes, nil)
				writesOnly = err == nil
			}
			return dst, writesOnly, fmt.Errorf("%w: %v within a multiRead", ErrMarshalling, h.Op)
		default:
			return dst, false, fmt.Errorf("%w: %v within a multiRead", ErrMarshalling, h.Op)
		}
		if r.bad {
			return dst, false, r.Err()
		}
	}
}

// AppendMultiRead is the inverse of DecodeMultiRead.
func AppendMultiRead(dst []byte, ops []ReadOp) []byte {
	for i := range ops {
		dst = AppendMultiOp(dst, ops[i].Op, &ops[i].PathWatchRequest)
	}
	return AppendMultiEnd(dst)
}

// decodeMulti decodes a multi request into ops[:0]. Operations that are not allowed and create flags outside
// 0..6 make the whole request unreadable, as in ZooKeeper 3.9.
func decodeMulti(r *Reader, ops []kv.Request) ([]kv.Request, error) {
	ops = ops[:0]
	for {
		var h MultiHeader
		h.DecodeFrom(r)
		if r.bad || h.Done {
			return ops, r.Err()
		}
		if !multiAllows(h.Op) {
			return ops, fmt.Errorf("%w: %v within a multi", ErrMarshalling, h.Op)
		}
		// The smallest operation takes 17 bytes on the wire, so the list is at most a dozen times the frame.
		if cap(ops) == len(ops) {
			ops = append(ops, kv.Request{})
		} else {
			ops = ops[:len(ops)+1]
		}
		q := &ops[len(ops)-1]
		decodeWrite(r, h.Op, q, true)
		if r.bad {
			return ops, r.Err()
		}
		if isCreate(h.Op) && !createByFlags(q) {
			return ops, fmt.Errorf("%w: %v with flags %d within a multi", ErrMarshalling, h.Op, q.Flags)
		}
	}
}

// createByFlags makes of a create within a multi what its flags say, whatever its code: ZooKeeper rebuilds these requests
// from the flags alone. It reports false for flags that no create within a multi can have, or this one cannot.
func createByFlags(q *kv.Request) bool {
	switch q.Flags {
	case kv.FlagPersistent, kv.FlagEphemeral, kv.FlagSequential, kv.FlagEphemeralSequential:
		if q.Op != kv.OpCreate2 {
			q.Op, q.TTL = kv.OpCreate, -1
		}
	case kv.FlagContainer:
		q.Op, q.TTL = kv.OpCreateContainer, -1
	case kv.FlagTTL, kv.FlagSequentialTTL:
		return q.Op == kv.OpCreateTTL
	default:
		return false
	}
	return true
}

func multiAllows(op Op) bool {
	return isCreate(op) || op == OpDelete || op == OpSetData || op == OpCheck
}

func isCreate(op Op) bool {
	switch op {
	case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL:
		return true
	}
	return false
}
