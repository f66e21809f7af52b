package wire

import "kvd/kv"

// Record is what follows a header. AppendTo never fails; DecodeFrom leaves a failure in the Reader, and its
// strings and buffers alias the Reader's bytes.
type Record interface {
	AppendTo(dst []byte) []byte
	DecodeFrom(r *Reader)
}

// Decode decodes body into rec. Bytes after the record are ignored.
func Decode(body []byte, rec Record) error {
	r := NewReader(body)
	rec.DecodeFrom(&r)
	return r.Err()
}

// RequestHeader stands before every request but the first.
type RequestHeader struct {
	Xid int32
	Op  Op
}

// RequestHeaderBytes and ReplyHeaderBytes are the encoded lengths of the two headers.
const (
	RequestHeaderBytes = 8
	ReplyHeaderBytes   = 16
)

// AppendTo implements Record.
func (h *RequestHeader) AppendTo(dst []byte) []byte {
	return AppendInt32(AppendInt32(dst, h.Xid), int32(h.Op))
}

// DecodeFrom implements Record.
func (h *RequestHeader) DecodeFrom(r *Reader) { h.Xid, h.Op = r.Int32(), Op(r.Int32()) }

// SplitRequest cuts a frame into header and record. It fails if the frame is too short for a header.
func SplitRequest(frame []byte) (h RequestHeader, body []byte, err error) {
	r := NewReader(frame)
	h.DecodeFrom(&r)
	return h, r.rest, r.Err()
}

// ReplyHeader stands before every reply but the first, and before every event. Zxid is signed here: -1 and 0
// have meanings (an unknown operation, an authentication).
type ReplyHeader struct {
	Xid  int32
	Zxid int64
	Err  kv.Code
}

// AppendTo implements Record.
func (h *ReplyHeader) AppendTo(dst []byte) []byte {
	return AppendInt32(AppendInt64(AppendInt32(dst, h.Xid), h.Zxid), int32(h.Err))
}

// DecodeFrom implements Record.
func (h *ReplyHeader) DecodeFrom(r *Reader) {
	h.Xid, h.Zxid, h.Err = r.Int32(), r.Int64(), kv.Code(r.Int32())
}

// SplitReply cuts a frame into header and record. It fails if the frame is too short for a header.
func SplitReply(frame []byte) (h ReplyHeader, body []byte, err error) {
	r := NewReader(frame)
	h.DecodeFrom(&r)
	return h, r.rest, r.Err()
}

// Empty is the record that is not there.
type Empty struct{}

// AppendTo implements Record.
func (*Empty) AppendTo(dst []byte) []byte { return dst }

// DecodeFrom implements Record.
func (*Empty) DecodeFrom(*Reader) {}

// CreateRequest is create, create2 and createContainer.
type CreateRequest struct {
	Path  string
	Data  []byte // nil is null
	ACL   []kv.ACL
	Flags int32
}

// AppendTo implements Record.
func (q *CreateRequest) AppendTo(dst []byte) []byte {
	dst = AppendString(dst, q.Path)
	dst = AppendBuffer(dst, q.Data)
	dst = AppendACL(dst, q.ACL)
	return AppendInt32(dst, q.Flags)
}

// DecodeFrom implements Record.
func (q *CreateRequest) DecodeFrom(r *Reader) {
	q.Path, q.Data, q.ACL, q.Flags = r.String(), r.Buffer(), r.ACL(), r.Int32()
}

// CreateTTLRequest is createTTL; TTL is in milliseconds.
type CreateTTLRequest struct {
	CreateRequest
	TTL int64
}

// AppendTo implements Record.
func (q *CreateTTLRequest) AppendTo(dst []byte) []byte {
	return AppendInt64(q.CreateRequest.AppendTo(dst), q.TTL)
}

// DecodeFrom implements Record.
func (q *CreateTTLRequest) DecodeFrom(r *Reader) {
	q.CreateRequest.DecodeFrom(r)
	q.TTL = r.Int64()
}

// PathRequest is getACL, getAllChildrenNumber and deleteContainer.
type PathRequest struct{ Path string }

// AppendTo implements Record.
func (q *PathRequest) AppendTo(dst []byte) []byte { return AppendString(dst, q.Path) }

// DecodeFrom implements Record.
func (q *PathRequest) DecodeFrom(r *Reader) { q.Path = r.String() }

// PathVersionRequest is delete, and check within a multi.
type PathVersionRequest struct {
	Path    string
	Version int32
}

// AppendTo implements Record.
func (q *PathVersionRequest) AppendTo(dst []byte) []byte {
	return AppendInt32(AppendString(dst, q.Path), q.Version)
}

// DecodeFrom implements Record.
func (q *PathVersionRequest) DecodeFrom(r *Reader) { q.Path, q.Version = r.String(), r.Int32() }

// PathWatchRequest is exists, getData, getChildren and getChildren2.
type PathWatchRequest struct {
	Path  string
	Watch bool
}

// AppendTo implements Record.
func (q *PathWatchRequest) AppendTo(dst []byte) []byte {
	return AppendBool(AppendString(dst, q.Path), q.Watch)
}

// DecodeFrom implements Record.
func (q *PathWatchRequest) DecodeFrom(r *Reader) { q.Path, q.Watch = r.String(), r.Bool() }

// PathKindRequest is checkWatches and removeWatches (Kind: which watches) and addWatch (Kind: the mode).
type PathKindRequest struct {
	Path string
	Kind int32
}

// AppendTo implements Record.
func (q *PathKindRequest) AppendTo(dst []byte) []byte {
	return AppendInt32(AppendString(dst, q.Path), q.Kind)
}

// DecodeFrom implements Record.
func (q *PathKindRequest) DecodeFrom(r *Reader) { q.Path, q.Kind = r.String(), r.Int32() }

// SetDataRequest is setData.
type SetDataRequest struct {
	Path    string
	Data    []byte // nil is null
	Version int32
}

// AppendTo implements Record.
func (q *SetDataRequest) AppendTo(dst []byte) []byte {
	return AppendInt32(AppendBuffer(AppendString(dst, q.Path), q.Data), q.Version)
}

// DecodeFrom implements Record.
func (q *SetDataRequest) DecodeFrom(r *Reader) {
	q.Path, q.Data, q.Version = r.String(), r.Buffer(), r.Int32()
}

// SetACLRequest is setACL; Version is compared with the node's aversion.
type SetACLRequest struct {
	Path    string
	ACL     []kv.ACL
	Version int32
}

// AppendTo implements Record.
func (q *SetACLRequest) AppendTo(dst []byte) []byte {
	return AppendInt32(AppendACL(AppendString(dst, q.Path), q.ACL), q.Version)
}

// DecodeFrom implements Record.
func (q *SetACLRequest) DecodeFrom(r *Reader) {
	q.Path, q.ACL, q.Version = r.String(), r.ACL(), r.Int32()
}

// SyncRecord is sync, both ways (a null path is echoed as null), and getEphemerals (null: all of them).
type SyncRecord struct {
	Path string
	Null bool
}

// AppendTo implements Record.
func (q *SyncRecord) AppendTo(dst []byte) []byte {
	if q.Null {
		return AppendInt32(dst, -1)
	}
	return AppendString(dst, q.Path)
}

// DecodeFrom implements Record.
func (q *SyncRecord) DecodeFrom(r *Reader) { q.Path, q.Null = r.NullString() }

// ReconfigRequest is reconfig. A nil list is null.
type ReconfigRequest struct {
	Joining, Leaving, NewMembers []byte
	ConfigID                     int64 // -1: whatever is current
}

// AppendTo implements Record.
func (q *ReconfigRequest) AppendTo(dst []byte) []byte {
	dst = AppendBuffer(dst, q.Joining)
	dst = AppendBuffer(dst, q.Leaving)
	dst = AppendBuffer(dst, q.NewMembers)
	return AppendInt64(dst, q.ConfigID)
}

// DecodeFrom implements Record.
func (q *ReconfigRequest) DecodeFrom(r *Reader) {
	q.Joining, q.Leaving, q.NewMembers, q.ConfigID = r.Buffer(), r.Buffer(), r.Buffer(), r.Int64()
}

// AuthRequest is auth. A nil Auth is null.
type AuthRequest struct {
	Type   int32 // always 0
	Scheme string
	Auth   []byte
}

// AppendTo implements Record.
func (q *AuthRequest) AppendTo(dst []byte) []byte {
	return AppendBuffer(AppendString(AppendInt32(dst, q.Type), q.Scheme), q.Auth)
}

// DecodeFrom implements Record.
func (q *AuthRequest) DecodeFrom(r *Reader) {
	q.Type, q.Scheme, q.Auth = r.Int32(), r.String(), r.Buffer()
}

// SetWatchesRequest re-registers one-shot watches after a reconnect.
type SetWatchesRequest struct {
	Relative           int64 // the last zxid the client saw
	Data, Exist, Child []string
}

// AppendTo implements Record.
func (q *SetWatchesRequest) AppendTo(dst []byte) []byte {
	dst = AppendInt64(dst, q.Relative)
	dst = AppendStrings(dst, q.Data)
	dst = AppendStrings(dst, q.Exist)
	return AppendStrings(dst, q.Child)
}

// DecodeFrom implements Record. The lists' slices are reused.
func (q *SetWatchesRequest) DecodeFrom(r *Reader) {
	q.Relative = r.Int64()
	q.Data, q.Exist, q.Child = r.Strings(q.Data), r.Strings(q.Exist), r.Strings(q.Child)
}

// SetWatches2Request adds the lists of persistent watches.
type SetWatches2Request struct {
	SetWatchesRequest
	Persistent, Recursive []string
}

// AppendTo implements Record.
func (q *SetWatches2Request) AppendTo(dst []byte) []byte {
	dst = q.SetWatchesRequest.AppendTo(dst)
	return AppendStrings(AppendStrings(dst, q.Persistent), q.Recursive)
}

// DecodeFrom implements Record. The lists' slices are reused.
func (q *SetWatches2Request) DecodeFrom(r *Reader) {
	q.SetWatchesRequest.DecodeFrom(r)
	q.Persistent, q.Recursive = r.Strings(q.Persistent), r.Strings(q.Recursive)
}

// WalkWatches calls fn with every path of a setWatches or setWatches2 record, in the order of the bytes, and the number of
// the list that it is in: data, exist, child, persistent, recursive. It builds no list, so a request of the largest size
// costs nothing beyond its frame. A nil fn only checks the record; so does everything behind a false of fn. paths alias
// body. Errors: ErrMarshalling; fn may have been called before it is found, so check first.
func WalkWatches(op Op, body []byte, fn func(list int, path string) bool) (relative int64, err error) {
	lists := 3
	if op == OpSetWatches2 {
		lists = 5
	}
	r := NewReader(body)
	relative = r.Int64()
	for list := range lists {
		n := r.count(4)
		if n < 0 {
			r.fail()
		}
		for range n {
			path := r.String()
			if r.bad {
				break
			}
			if fn != nil && !fn(list, path) {
				fn = nil
			}
		}
	}
	return relative, r.Err()
}

// SASLRecord is a token of an authentication exchange, both ways. Nil is null.
type SASLRecord struct{ Token []byte }

// AppendTo implements Record.
func (q *SASLRecord) AppendTo(dst []byte) []byte { return AppendBuffer(dst, q.Token) }

// DecodeFrom implements Record.
func (q *SASLRecord) DecodeFrom(r *Reader) { q.Token = r.Buffer() }
