package client

import (
	"slices"
	"strings"

	"kvd/kv"
	"kvd/kv/wire"
)

// Call is one request and its result, for callers that keep many outstanding without a goroutine and an
// allocation each. Fill the request, hand it to Client.Do, and leave it alone until Done is called; then it
// may be used again. The methods of Client are built on it and are what most callers want.
type Call struct {
	// Op says which fields below count: OpCreate, OpCreate2, OpDelete, OpExists, OpGetData, OpSetData,
	// OpGetChildren, OpGetChildren2, OpSync or OpMulti. The other operations have methods only.
	Op      wire.Op
	Path    string
	Data    []byte   // nil is sent as null; must not change until Done
	ACL     []kv.ACL // nil: everybody may do everything
	Flags   int32    // kv.FlagEphemeral and so on
	Version int32    // wire.AnyVersion to overwrite whatever is there
	Ops     []Op
	// Watch leaves a one-shot watch behind a read that succeeds (or an exists of a missing node).
	Watch bool
	// FailFast makes a call that is waiting for a connection fail with ErrUnavailable instead.
	FailFast bool

	// Done is called once, on the client's reader goroutine: it must not block and must not
	// call Close. It may call Client.Do.
	Done func(*Call)

	// The result. Err is nil, or *Error; the other fields are set by the operations that have them.
	Err     error
	Name    string // real path of a created node
	Value   []byte // reused by the next call on this object; nil if the node's data is null
	Stat    kv.Stat
	Names   []string
	Results []Result
	Zxid    kv.Zxid      // last transaction the server had applied when it answered
	Watched <-chan Event // with Watch: gets one event, then is closed

	state callState // guarded by Client.mu
	pos   int64     // in Client.queue or Client.inflight, by state
	size  int
	value []byte // keeps Value's memory over calls

	// request and response are the records of the operations that are not spelt out above, with paths as the server knows them.
	request, response wire.Record
	watcher           *Watcher // of addWatch
}

type callState uint8

const (
	callIdle     callState = iota
	callQueued             // in Client.queue, not sent
	callInflight           // in Client.inflight, sent
)

// Result is the outcome of one operation of a multi.
type Result struct {
	Path string  // of a created node
	Stat kv.Stat // of a set or created node
	Err  error   // nil, the server's error, or kv.ErrRuntimeInconsistency for one behind the failed one
}

// Op is one operation of a multi.
type Op struct {
	op             wire.Op
	path           string
	data           []byte
	acl            []kv.ACL
	flags, version int32
}

// CreateOp creates a node within a multi; without acl everybody may do everything.
func CreateOp(path string, data []byte, flags int32, acl ...kv.ACL) Op {
	return Op{op: wire.OpCreate2, path: path, data: data, flags: flags, acl: acl}
}

// SetOp sets a node's data within a multi.
func SetOp(path string, data []byte, version int32) Op {
	return Op{op: wire.OpSetData, path: path, data: data, version: version}
}

// DeleteOp deletes a node within a multi.
func DeleteOp(path string, version int32) Op {
	return Op{op: wire.OpDelete, path: path, version: version}
}

// CheckOp makes a multi fail unless the node has the version.
func CheckOp(path string, version int32) Op {
	return Op{op: wire.OpCheck, path: path, version: version}
}

var openACL = kv.OpenACL()

// isWrite reports whether a call that was sent and not answered may have changed something.
func isWrite(op wire.Op) bool { return op.Class() == wire.ClassWrite }

// check refuses what could not be sent or understood.
func (c *Client) check(call *Call) error {
	switch {
	case call.request != nil:
		if call.Path != "" && !validStart(call.Path) {
			return kv.ErrBadArguments
		}
		call.size = wire.RequestHeaderBytes + len(call.request.AppendTo(nil))
		if call.size > c.opts.maxRequest {
			return ErrTooLarge
		}
		return nil
	}
	switch call.Op {
	case wire.OpCreate, wire.OpCreate2, wire.OpDelete, wire.OpExists, wire.OpGetData, wire.OpSetData,
		wire.OpGetChildren, wire.OpGetChildren2, wire.OpSync:
		if !validStart(call.Path) {
			return kv.ErrBadArguments
		}
	case wire.OpMulti:
		for i := range call.Ops {
			if !validStart(call.Ops[i].path) {
				return &MultiError{i, kv.ErrBadArguments}
			}
		}
	case wire.OpCloseSession:
	default:
		return kv.ErrUnimplemented
	}
	call.size = c.sizeOf(call)
	if call.size > c.opts.maxRequest {
		return ErrTooLarge
	}
	return nil
}

// validStart: the server validates paths, but it sees them behind the chroot.
func validStart(path string) bool { return len(path) > 0 && path[0] == '/' }

// sizeOf is the length of the encoded frame's body, at least.
func (c *Client) sizeOf(call *Call) int {
	n := wire.RequestHeaderBytes + c.opSize(call.Path, call.Data, call.ACL)
	for i := range call.Ops {
		n += 9 + c.opSize(call.Ops[i].path, call.Ops[i].data, call.Ops[i].acl)
	}
	return n
}

func (c *Client) opSize(path string, data []byte, acl []kv.ACL) int {
	n := 4 + len(c.chroot) + len(path) + 4 + len(data) + 8
	for i := range acl {
		n += 12 + len(acl[i].Scheme) + len(acl[i].ID)
	}
	return n
}

// appendPath appends the path as the server knows it.
func (c *Client) appendPath(dst []byte, path string) []byte {
	if c.chroot == "" {
		return wire.AppendString(dst, path)
	}
	if path == "/" {
		return wire.AppendString(dst, c.chroot)
	}
	dst = wire.AppendInt32(dst, int32(len(c.chroot)+len(path)))
	return append(append(dst, c.chroot...), path...)
}

// serverPath is appendPath as a string.
func (c *Client) serverPath(path string) string {
	if c.chroot == "" {
		return strings.Clone(path)
	}
	if path == "/" {
		return c.chroot
	}
	return c.chroot + path
}

// localPath undoes serverPath; the result is a copy.
func (c *Client) localPath(path string) string {
	local, ok := strings.CutPrefix(path, c.chroot)
	if !ok {
		local = path // not below the chroot: shown as it is
	}
	if local == "" {
		return "/"
	}
	return strings.Clone(local)
}

// appendCall appends the frame of a call.
func (c *Client) appendCall(dst []byte, xid int32, call *Call) []byte {
	dst, mark := wire.BeginFrame(dst)
	dst = (&wire.RequestHeader{Xid: xid, Op: call.Op}).AppendTo(dst)
	if call.request != nil {
		return wire.EndFrame(call.request.AppendTo(dst), mark)
	}
	switch call.Op {
	case wire.OpExists, wire.OpGetData, wire.OpGetChildren, wire.OpGetChildren2:
		dst = wire.AppendBool(c.appendPath(dst, call.Path), call.Watch)
	case wire.OpMulti:
		for i := range call.Ops {
			o := &call.Ops[i]
			dst = (&wire.MultiHeader{Op: o.op, Err: -1}).AppendTo(dst)
			dst = c.appendWrite(dst, o.op, o.path, o.data, o.acl, o.flags, o.version)
		}
		dst = wire.AppendMultiEnd(dst)
	case wire.OpSync:
		dst = c.appendPath(dst, call.Path)
	case wire.OpCloseSession:
	default:
		dst = c.appendWrite(dst, call.Op, call.Path, call.Data, call.ACL, call.Flags, call.Version)
	}
	return wire.EndFrame(dst, mark)
}

func (c *Client) appendWrite(dst []byte, op wire.Op, path string, data []byte, acl []kv.ACL, flags, version int32) []byte {
	dst = c.appendPath(dst, path)
	switch op {
	case wire.OpCreate, wire.OpCreate2:
		if len(acl) == 0 {
			acl = openACL
		}
		return wire.AppendInt32(wire.AppendACL(wire.AppendBuffer(dst, data), acl), flags)
	case wire.OpSetData:
		dst = wire.AppendBuffer(dst, data)
	}
	return wire.AppendInt32(dst, version)
}

// decodeReply fills the call's result from a reply. Nothing in the result aliases body. An error return means
// that the reply does not parse; the call's own error is in call.Err.
func (c *Client) decodeReply(call *Call, code kv.Code, body []byte) error {
	if code != kv.CodeOK {
		call.Err = &Error{Op: call.Op, Path: call.Path, Err: code.Err()}
		return nil
	}
	if call.response != nil {
		return wire.Decode(body, call.response)
	}
	r := wire.NewReader(body)
	switch call.Op {
	case wire.OpCreate:
		call.Name = c.localPath(r.String())
	case wire.OpCreate2:
		call.Name = c.localPath(r.String())
		r.Stat(&call.Stat)
	case wire.OpExists, wire.OpSetData:
		r.Stat(&call.Stat)
	case wire.OpGetData:
		if data := r.Buffer(); data != nil {
			call.value = append(call.value[:0], data...)
			call.Value = call.value
			if call.Value == nil {
				call.Value = []byte{}
			}
		}
		r.Stat(&call.Stat)
	case wire.OpGetChildren, wire.OpGetChildren2:
		own := wire.NewReader(slices.Clone(body)) // one copy for all names
		call.Names = own.Strings(nil)
		if call.Op == wire.OpGetChildren2 {
			own.Stat(&call.Stat)
		}
		return own.Err()
	case wire.OpMulti:
		return c.decodeMulti(call, body)
	}
	return r.Err()
}

func (c *Client) decodeMulti(call *Call, body []byte) error {
	results, err := wire.DecodeMultiResults(body, nil)
	if err != nil {
		return err
	}
	if len(results) != len(call.Ops) {
		return wire.ErrMarshalling
	}
	call.Results = call.Results[:0]
	for i := range results {
		res := Result{Stat: results[i].Stat, Err: results[i].Err.Err()}
		if results[i].Path != "" {
			res.Path = c.localPath(results[i].Path)
		}
		call.Results = append(call.Results, res)
		if code := results[i].Err; code != kv.CodeOK && code != kv.CodeRuntimeInconsistency && call.Err == nil {
			call.Err = &Error{Op: call.Op, Path: call.Ops[i].path, Err: &MultiError{i, res.Err}}
		}
	}
	// Every operation says -2 and none why: an answer no known server gives, but it is a failure.
	if call.Err == nil && len(results) > 0 && results[len(results)-1].Failed {
		call.Err = &Error{Op: call.Op, Err: kv.ErrRuntimeInconsistency}
	}
	return nil
}

// resetResult forgets the result of an earlier use.
func (call *Call) resetResult() {
	call.Err, call.Name, call.Value, call.Stat, call.Names, call.Zxid, call.Watched = nil, "", nil, kv.Stat{}, nil, 0, nil
	call.Results = call.Results[:0]
}
