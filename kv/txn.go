package kv

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// TxnFormat is the version of the transaction encoding, the first byte of every payload.
const TxnFormat = 1

// maxTxnOps bounds the operations of one multi. A frame cannot carry as many.
const maxTxnOps = 1 << 17

// TxnHeader says who asked for a transaction and how it was decided.
type TxnHeader struct {
	Origin  uint8     // member whose client asked, for matching the reply; 0 for the leader's own
	Request uint64    // the origin's token for the request
	Session SessionID // whose request it was; the session made or closed by the session operations
	Time    int64     // milliseconds since the Unix epoch, by the leader's clock: ctime and mtime of what it changes
	Kind    Op        // set by Prepare from the request
	Err     Code      // set by Prepare; not CodeOK: nothing is changed
}

// TxnOp is one decided operation.
type TxnOp struct {
	Op      Op
	Path    string // final, with the sequence number
	Data    []byte // nil is null
	ACL     []byte // encoded list (appendACL); nil is the open list
	Owner   Owner
	Creates int32 // the parent's counter of created children, after a create
	Version int32 // after setData, setACL (aversion) and setConfig
	Timeout int32 // milliseconds
	Passwd  [16]byte
	Levels  Levels
}

// Txn is a decoded transaction.
type Txn struct {
	Header TxnHeader
	Ops    []TxnOp // one, or those of a multi; none if Header.Err is set
	// Total and Failed describe a multi that failed: how many operations it had and which one was refused with
	// Header.Err. Total is 0 if the multi was refused as a whole.
	Total, Failed int
}

var errBadTxn = errors.New("malformed transaction")

// appendTxnHeader appends version and header. Part of the format:
//
//	version 1 byte | origin 1 byte | kind varint | err varint | request uvarint | session 8 bytes | time varint
func appendTxnHeader(dst []byte, h *TxnHeader) []byte {
	dst = append(dst, TxnFormat, h.Origin)
	dst = appendVarint(dst, int64(h.Kind))
	dst = appendVarint(dst, int64(h.Err))
	dst = appendUvarint(dst, h.Request)
	dst = binary.BigEndian.AppendUint64(dst, uint64(h.Session))
	return appendVarint(dst, h.Time)
}

func (r *reader) txnHeader(h *TxnHeader) error {
	if v := r.byte(); v != TxnFormat {
		if v > TxnFormat {
			return fmt.Errorf("transaction format %d is newer than this build's %d", v, TxnFormat)
		}
		return errBadTxn
	}
	h.Origin = r.byte()
	h.Kind = Op(r.int32())
	h.Err = Code(r.int32())
	h.Request = r.uvarint()
	h.Session = SessionID(r.uint64())
	h.Time = r.varint()
	if r.bad || (h.Err == CodeOK && !isTxnKind(h.Kind)) {
		return errBadTxn
	}
	return nil
}

// isTxnKind reports whether a transaction that changes something may be of that kind. One that was refused may
// name any operation, known or not.
func isTxnKind(k Op) bool { return k == OpMulti || isTxnOp(k) }

// isTxnOp reports whether k can be an operation of a transaction.
func isTxnOp(k Op) bool {
	switch k {
	case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL, OpDelete, OpDeleteContainer, OpSetData, OpSetACL, OpCheck,
		OpCreateSession, OpCloseSession, OpSetLevels, OpSetConfig:
		return true
	}
	return false
}

// inMulti reports whether an operation may be part of a multi.
func inMulti(k Op) bool {
	switch k {
	case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL, OpDelete, OpSetData, OpCheck:
		return true
	}
	return false
}

// appendTxnOp appends one operation without its code. Part of the format:
//
//	create, create2   path | data | acl (0 = open, 1 + list) | owner (0, or 1 + 8 bytes) | creates varint
//	createContainer   path | data | acl | creates varint
//	createTTL         path | data | acl | time to live in ms uvarint | creates varint
//	delete, check     path
//	deleteContainer   path
//	setData           path | data | version varint
//	setACL            path | acl | version varint
//	setConfig         data | version varint
//	createSession     timeout varint | password 16 bytes
//	closeSession      nothing: the session is the header's
//	setLevels         protocol uvarint | format uvarint
//
// Paths are a uvarint length and bytes; data is 0 for null, else length + 1 and bytes. An owner is a session's id, a time
// to live 1 to 2^40-1.
func appendTxnOp(dst []byte, o *TxnOp) []byte {
	switch o.Op {
	case OpCreate, OpCreate2:
		dst = appendString(dst, o.Path)
		dst = appendNullable(dst, o.Data)
		dst = appendTxnACL(dst, o.ACL)
		if o.Owner == 0 {
			dst = append(dst, 0)
		} else {
			dst = binary.BigEndian.AppendUint64(append(dst, 1), uint64(o.Owner))
		}
		dst = appendVarint(dst, int64(o.Creates))
	case OpCreateContainer, OpCreateTTL:
		dst = appendString(dst, o.Path)
		dst = appendNullable(dst, o.Data)
		dst = appendTxnACL(dst, o.ACL)
		if o.Op == OpCreateTTL {
			dst = appendUvarint(dst, uint64(o.Owner.TTL()))
		}
		dst = appendVarint(dst, int64(o.Creates))
	case OpDelete, OpDeleteContainer, OpCheck:
		dst = appendString(dst, o.Path)
	case OpSetData:
		dst = appendString(dst, o.Path)
		dst = appendNullable(dst, o.Data)
		dst = appendVarint(dst, int64(o.Version))
	case OpSetACL:
		dst = appendString(dst, o.Path)
		dst = appendTxnACL(dst, o.ACL)
		dst = appendVarint(dst, int64(o.Version))
	case OpSetConfig:
		dst = appendNullable(dst, o.Data)
		dst = appendVarint(dst, int64(o.Version))
	case OpCreateSession:
		dst = appendVarint(dst, int64(o.Timeout))
		dst = append(dst, o.Passwd[:]...)
	case OpSetLevels:
		dst = appendUvarint(dst, uint64(o.Levels.Protocol))
		dst = appendUvarint(dst, uint64(o.Levels.Format))
	}
	return dst
}

func appendTxnACL(dst, acl []byte) []byte {
	if acl == nil {
		return append(dst, 0)
	}
	return append(append(dst, 1), acl...)
}

// txnOp decodes what appendTxnOp wrote for code o.Op. Everything in o aliases the payload.
func (r *reader) txnOp(o *TxnOp) bool {
	switch o.Op {
	case OpCreate, OpCreate2:
		o.Path = stringOf(r.bytes())
		o.Data = r.nullable()
		o.ACL = r.txnACL()
		o.Owner = 0
		if r.flag() {
			if o.Owner = Owner(r.uint64()); o.Owner.Ephemeral() == 0 {
				r.fail()
			}
		}
		o.Creates = r.int32()
	case OpCreateContainer, OpCreateTTL:
		o.Path = stringOf(r.bytes())
		o.Data = r.nullable()
		o.ACL = r.txnACL()
		o.Owner = ownerContainer
		if o.Op == OpCreateTTL {
			ttl := r.uvarint()
			if ttl > uint64(MaxTTL) || ttl == 0 {
				r.fail()
			}
			o.Owner = ttlOwner(int64(ttl))
		}
		o.Creates = r.int32()
	case OpDelete, OpDeleteContainer, OpCheck:
		o.Path = stringOf(r.bytes())
	case OpSetData:
		o.Path = stringOf(r.bytes())
		o.Data = r.nullable()
		o.Version = r.int32()
	case OpSetACL:
		o.Path = stringOf(r.bytes())
		o.ACL = r.txnACL()
		o.Version = r.int32()
	case OpSetConfig:
		o.Path = ConfigPath
		o.Data = r.nullable()
		o.Version = r.int32()
	case OpCreateSession:
		o.Timeout = r.int32()
		copy(o.Passwd[:], r.take(uint64(len(o.Passwd))))
	case OpCloseSession:
	case OpSetLevels:
		o.Levels = Levels{Protocol: r.uint32(), Format: r.uint32()}
	default:
		r.fail()
	}
	return !r.bad
}

// flag reads a byte that must be 0 or 1.
func (r *reader) flag() bool {
	b := r.byte()
	if b > 1 {
		r.fail()
	}
	return b == 1
}

func (r *reader) txnACL() []byte {
	if !r.flag() {
		return nil
	}
	acl := skipACL(r)
	if string(acl) == encodedOpenACL { // has a shorter form
		r.fail()
	}
	return acl
}

// opCount reads the number of operations of a multi.
func (r *reader) opCount() int {
	n := r.uvarint()
	if n > maxTxnOps {
		r.fail()
		return 0
	}
	return int(n)
}

// DecodeTxn decodes a payload. The result aliases it; the payload must not be written to afterwards. What is
// allocated is proportional to the payload's length.
func DecodeTxn(payload []byte) (*Txn, error) {
	r := reader{buf: payload}
	t := new(Txn)
	if err := r.txnHeader(&t.Header); err != nil {
		return nil, err
	}
	switch {
	case t.Header.Err != CodeOK:
		if t.Header.Kind == OpMulti {
			t.Total = r.opCount()
			if t.Total > 0 {
				t.Failed = r.opCount()
				if t.Failed >= t.Total {
					r.fail()
				}
			}
		}
	case t.Header.Kind == OpMulti:
		for range r.opCount() {
			o := TxnOp{Op: Op(r.int32())}
			if !inMulti(o.Op) || !r.txnOp(&o) {
				r.fail()
				break
			}
			t.Ops = append(t.Ops, o)
		}
	default:
		o := TxnOp{Op: t.Header.Kind}
		if r.txnOp(&o) {
			t.Ops = []TxnOp{o}
		}
	}
	if r.bad || r.off != len(payload) {
		return nil, errBadTxn
	}
	return t, nil
}

// AppendTxn appends the encoding of a transaction; it is the inverse of DecodeTxn.
func AppendTxn(dst []byte, t *Txn) []byte {
	dst = appendTxnHeader(dst, &t.Header)
	switch {
	case t.Header.Err != CodeOK:
		if t.Header.Kind == OpMulti {
			dst = appendUvarint(dst, uint64(t.Total))
			if t.Total > 0 {
				dst = appendUvarint(dst, uint64(t.Failed))
			}
		}
	case t.Header.Kind == OpMulti:
		dst = appendUvarint(dst, uint64(len(t.Ops)))
		for i := range t.Ops {
			dst = appendVarint(dst, int64(t.Ops[i].Op))
			dst = appendTxnOp(dst, &t.Ops[i])
		}
	case len(t.Ops) == 1:
		dst = appendTxnOp(dst, &t.Ops[0])
	}
	return dst
}

// DecodeTxnHeader decodes only who asked and how it was decided, without allocating.
func DecodeTxnHeader(payload []byte) (TxnHeader, error) {
	r := reader{buf: payload}
	var h TxnHeader
	err := r.txnHeader(&h)
	return h, err
}
