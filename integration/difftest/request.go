package main

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// Operations of the client protocol (protocol 3.1).
const (
	opCreate          = 1
	opDelete          = 2
	opExists          = 3
	opGetData         = 4
	opSetData         = 5
	opGetACL          = 6
	opSetACL          = 7
	opGetChildren     = 8
	opSync            = 9
	opPing            = 11
	opGetChildren2    = 12
	opCheck           = 13
	opMulti           = 14
	opCreate2         = 15
	opReconfig        = 16
	opCheckWatches    = 17
	opRemoveWatches   = 18
	opCreateContainer = 19
	opDeleteContainer = 20
	opCreateTTL       = 21
	opMultiRead       = 22
	opAuth            = 100
	opSetWatches      = 101
	opSASL            = 102
	opGetEphemerals   = 103
	opDescendants     = 104
	opSetWatches2     = 105
	opAddWatch        = 106
	opWhoAmI          = 107
	opCreateSession   = -10
	opCloseSession    = -11
)

var opNames = map[int32]string{
	opCreate: "create", opDelete: "delete", opExists: "exists", opGetData: "getData", opSetData: "setData",
	opGetACL: "getACL", opSetACL: "setACL", opGetChildren: "getChildren", opSync: "sync", opPing: "ping",
	opGetChildren2: "getChildren2", opCheck: "check", opMulti: "multi", opCreate2: "create2", opReconfig: "reconfig",
	opCheckWatches: "checkWatches", opRemoveWatches: "removeWatches", opCreateContainer: "createContainer",
	opDeleteContainer: "deleteContainer", opCreateTTL: "createTTL", opMultiRead: "multiRead", opAuth: "auth",
	opSetWatches: "setWatches", opSASL: "sasl", opGetEphemerals: "getEphemerals", opDescendants: "getAllChildrenNumber",
	opSetWatches2: "setWatches2", opAddWatch: "addWatch", opWhoAmI: "whoAmI", opCreateSession: "createSession",
	opCloseSession: "closeSession",
}

func opName(op int32) string {
	if n, ok := opNames[op]; ok {
		return n
	}
	return "op " + strconv.Itoa(int(op))
}

// text is a string of any bytes. In JSON it is written with the escapes of Go, so that invalid UTF-8 survives.
type text string

// MarshalText implements encoding.TextMarshaler.
func (t text) MarshalText() ([]byte, error) {
	q := strconv.QuoteToASCII(string(t))
	return []byte(q[1 : len(q)-1]), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *text) UnmarshalText(b []byte) error {
	s, err := strconv.Unquote(`"` + string(b) + `"`)
	*t = text(s)
	return err
}

func ptr(s string) *text { t := text(s); return &t }

func (t *text) String() string {
	if t == nil {
		return "null"
	}
	return strconv.QuoteToASCII(string(*t))
}

// ACL is one entry as it is sent; nil texts are nulls.
type ACL struct {
	Perms  int32
	Scheme *text
	ID     *text
}

// ZxidRef names a zxid in a way that both servers understand.
type ZxidRef struct {
	Kind string // "": the number N itself. "last": the zxid that was the newest N answers ago. "ahead": N after the newest
	N    int64
}

// Request is one request, with everything that its record may hold; each operation uses its own part.
type Request struct {
	Op      int32
	Xid     int32
	Path    *text    `json:",omitempty"` // nil: null
	Data    []byte   // nil: null
	ACL     []ACL    `json:",omitempty"` // nil: null
	NoACL   bool     `json:",omitempty"` // an empty list, not null
	Flags   int32    `json:",omitempty"`
	TTL     int64    `json:",omitempty"`
	Version int32    `json:",omitempty"`
	Watch   bool     `json:",omitempty"`
	Mode    int32    `json:",omitempty"` // of addWatch, or the watcher type
	Since   *ZxidRef `json:",omitempty"`
	// Lists of setWatches: data, exist, child, persistent, recursive; an absent one is empty, NullList is null.
	Lists    [][]text  `json:",omitempty"`
	NullList bool      `json:",omitempty"`
	Scheme   *text     `json:",omitempty"`
	Sub      []Request `json:",omitempty"`
	Unended  bool      `json:",omitempty"` // a multi without its end mark
	Cut      int       `json:",omitempty"` // bytes taken off the end
	Extra    []byte    `json:",omitempty"` // bytes added to the end
	Length   int32     `json:",omitempty"` // what the frame says of its length, if not the truth
}

func (r *Request) path() string {
	if r.Path == nil {
		return ""
	}
	return string(*r.Path)
}

func (r *Request) acl() []ACL {
	if r.NoACL {
		return []ACL{}
	}
	return r.ACL
}

// record appends what follows the header. since is the server's own number for r.Since.
func (r *Request) record(e *enc, since int64) {
	switch r.Op {
	case opCreate, opCreate2, opCreateContainer, opCreateTTL:
		e.nullable(r.Path)
		e.buffer(r.Data)
		e.acls(r.acl())
		e.int(r.Flags)
		if r.Op == opCreateTTL {
			e.long(r.TTL)
		}
	case opDelete, opCheck:
		e.nullable(r.Path)
		e.int(r.Version)
	case opExists, opGetData, opGetChildren, opGetChildren2:
		e.nullable(r.Path)
		e.bool(r.Watch)
	case opSetData:
		e.nullable(r.Path)
		e.buffer(r.Data)
		e.int(r.Version)
	case opSetACL:
		e.nullable(r.Path)
		e.acls(r.acl())
		e.int(r.Version)
	case opGetACL, opSync, opDeleteContainer, opGetEphemerals, opDescendants:
		e.nullable(r.Path)
	case opMulti, opMultiRead:
		for i := range r.Sub {
			e.int(r.Sub[i].Op)
			e.bool(false)
			e.int(-1)
			r.Sub[i].record(e, since)
		}
		if !r.Unended {
			e.int(-1)
			e.bool(true)
			e.int(-1)
		}
	case opReconfig:
		e.nullable(r.Path)
		e.nullable(nil)
		e.nullable(r.Scheme)
		e.long(-1)
	case opCheckWatches, opRemoveWatches, opAddWatch:
		e.nullable(r.Path)
		e.int(r.Mode)
	case opAuth:
		e.int(0)
		e.nullable(r.Scheme)
		e.buffer(r.Data)
	case opSASL:
		e.buffer(r.Data)
	case opSetWatches, opSetWatches2:
		e.long(since)
		n := 3
		if r.Op == opSetWatches2 {
			n = 5
		}
		for i := range n {
			switch {
			case i < len(r.Lists) && r.Lists[i] != nil:
				e.texts(r.Lists[i])
			case r.NullList:
				e.texts(nil)
			default:
				e.int(0)
			}
		}
	}
}

// encode returns the whole frame.
func (r *Request) encode(since int64) []byte {
	var e enc
	e.int(r.Xid)
	e.int(r.Op)
	r.record(&e, since)
	b := e.b
	if r.Cut > 0 {
		b = b[:max(0, len(b)-r.Cut)]
	}
	f := frame(append(b, r.Extra...))
	if r.Length != 0 {
		binary.BigEndian.PutUint32(f, uint32(r.Length))
	}
	return f
}

// String is how a request looks in a report.
func (r Request) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s", opName(r.Op))
	switch r.Op {
	case opMulti, opMultiRead:
		b.WriteByte('[')
		for i := range r.Sub {
			if i > 0 {
				b.WriteString("; ")
			}
			b.WriteString(r.Sub[i].String())
		}
		b.WriteByte(']')
	case opPing, opWhoAmI, opCloseSession:
	case opAuth:
		fmt.Fprintf(&b, " %v %q", r.Scheme, r.Data)
	case opSetWatches, opSetWatches2:
		fmt.Fprintf(&b, " since %+v %q null=%v", *r.Since, r.Lists, r.NullList)
	default:
		fmt.Fprintf(&b, " %v", r.Path)
	}
	switch r.Op {
	case opCreate, opCreate2, opCreateContainer, opCreateTTL, opSetData, opSetACL:
		if r.Op != opSetACL {
			fmt.Fprintf(&b, " data=%s", shortBytes(r.Data))
		}
		if r.Op != opSetData {
			b.WriteString(" acl=" + aclText(r.acl()))
		}
	}
	switch r.Op {
	case opCreate, opCreate2, opCreateContainer:
		fmt.Fprintf(&b, " flags=%d", r.Flags)
	case opCreateTTL:
		fmt.Fprintf(&b, " flags=%d ttl=%d", r.Flags, r.TTL)
	case opDelete, opSetData, opSetACL, opCheck:
		fmt.Fprintf(&b, " version=%d", r.Version)
	case opCheckWatches, opRemoveWatches, opAddWatch:
		fmt.Fprintf(&b, " mode=%d", r.Mode)
	}
	if r.Watch {
		b.WriteString(" watch")
	}
	if r.Unended {
		b.WriteString(" unended")
	}
	if r.Cut > 0 {
		fmt.Fprintf(&b, " cut=%d", r.Cut)
	}
	if len(r.Extra) > 0 {
		fmt.Fprintf(&b, " extra=%x", r.Extra)
	}
	if r.Length != 0 {
		fmt.Fprintf(&b, " length=%d", r.Length)
	}
	if r.Xid != 0 {
		fmt.Fprintf(&b, " xid=%d", r.Xid)
	}
	return b.String()
}

func shortBytes(b []byte) string {
	switch {
	case b == nil:
		return "null"
	case len(b) > 40:
		return fmt.Sprintf("%q...(%d bytes)", b[:20], len(b))
	}
	return strconv.QuoteToASCII(string(b))
}

func aclText(l []ACL) string {
	if l == nil {
		return "null"
	}
	var b strings.Builder
	b.WriteByte('[')
	for i, a := range l {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%v:%v=%d", a.Scheme, a.ID, a.Perms)
	}
	return b.String() + "]"
}
