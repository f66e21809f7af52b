package kv

import (
	"encoding/binary"
	"math"
)

// A record is what a tree of this package stores under a key: length of the key, key, value, in one immutable
// string without pointers, so that a million of them cost the garbage collector nothing to look at.

// The tables of a view. Part of the record format.
const (
	// TableNode holds one record for every node: its own facts and its data.
	TableNode uint8 = 1
	// TableChildren holds what creating and deleting children changes about a node, apart from the node itself
	// so that a create below a node with a megabyte of data does not write that megabyte again.
	TableChildren uint8 = 2
	// TableSession holds the open client sessions.
	TableSession uint8 = 3
	// TableACL holds the access control lists other than the two that every tree has.
	TableACL uint8 = 4
	// TableMeta holds single values: the format of the records, the levels, the next number of a list.
	TableMeta uint8 = 5
)

// RecordFormat is the version of keys and values of all tables. It is itself a record; a newer one is refused.
const RecordFormat = 1

// Keys of TableMeta. Part of the record format.
const (
	metaFormat  = "format"
	metaLevels  = "levels"
	metaNextACL = "next-acl"
)

// Bits of the first byte of a node's value. Part of the record format.
const (
	hasChanges  byte = 1 << iota // mzxid, mtime or version differ from a fresh node's
	hasChildren                  // there is a record in TableChildren (and was a child at some time)
	hasOwner                     // not a plain persistent node
	hasAversion                  // aversion is not 0
	hasACL                       // not the open list
	hasNull                      // the data is null, not empty
	knownFlags  = hasChanges | hasChildren | hasOwner | hasAversion | hasACL | hasNull
)

// node is a decoded node record. Data aliases the record.
type node struct {
	czxid, mzxid Zxid
	ctime, mtime int64
	version      int32
	aversion     int32
	owner        Owner
	acl          uint32
	parent       bool // has a record in TableChildren
	null         bool
	data         string
}

// appendRecordKey begins a record with the key of path.
func appendRecordKey(dst []byte, path string) []byte {
	n := len(path)
	if n == 0 {
		n = 1
	}
	return appendKey(binary.AppendUvarint(dst, uint64(n)), path)
}

// appendNode appends the value of a node record.
func appendNode(dst []byte, n *node) []byte {
	at := len(dst)
	var flags byte
	dst = append(dst, 0)
	dst = appendUvarint(dst, uint64(n.czxid))
	dst = appendVarint(dst, n.ctime)
	if n.mzxid != n.czxid || n.mtime != n.ctime || n.version != 0 {
		flags |= hasChanges
		dst = appendUvarint(dst, uint64(n.mzxid-n.czxid)) // wraps for a smaller one, which never happens
		dst = appendVarint(dst, n.mtime-n.ctime)
		dst = appendVarint(dst, int64(n.version))
	}
	if n.parent {
		flags |= hasChildren
	}
	if n.owner != 0 {
		flags |= hasOwner
		dst = binary.BigEndian.AppendUint64(dst, uint64(n.owner))
	}
	if n.aversion != 0 {
		flags |= hasAversion
		dst = appendVarint(dst, int64(n.aversion))
	}
	if n.acl != aclOpen {
		flags |= hasACL
		dst = appendUvarint(dst, uint64(n.acl))
	}
	if n.null {
		flags |= hasNull
	}
	dst[at] = flags
	return append(dst, n.data...)
}

// decodeNode decodes a node record's value. It reports false for a value that appendNode does not produce.
func decodeNode(value string, n *node) bool {
	r := reader{buf: bytesOf(value)}
	flags := r.byte()
	n.czxid = Zxid(r.uvarint())
	n.ctime = r.varint()
	n.mzxid, n.mtime, n.version = n.czxid, n.ctime, 0
	if flags&hasChanges != 0 {
		n.mzxid += Zxid(r.uvarint())
		n.mtime += r.varint()
		n.version = r.int32()
	}
	n.parent = flags&hasChildren != 0
	n.owner, n.aversion, n.acl = 0, 0, aclOpen
	if flags&hasOwner != 0 {
		n.owner = Owner(r.uint64())
	}
	if flags&hasAversion != 0 {
		n.aversion = r.int32()
	}
	if flags&hasACL != 0 {
		n.acl = r.uint32()
	}
	n.null = flags&hasNull != 0
	n.data = value[r.off:]
	return !r.bad && flags&^knownFlags == 0 && !(n.null && n.data != "") && len(n.data) <= math.MaxInt32
}

// family is a decoded record of TableChildren.
type family struct {
	pzxid    Zxid
	creates  int32 // children ever created here, wrapping; what sequence numbers are made of
	children int32
}

func appendFamily(dst []byte, f family) []byte {
	dst = appendUvarint(dst, uint64(f.pzxid))
	dst = appendVarint(dst, int64(f.creates))
	return appendVarint(dst, int64(f.children))
}

func decodeFamily(value string) (family, bool) {
	r := reader{buf: bytesOf(value)}
	f := family{pzxid: Zxid(r.uvarint()), creates: r.int32(), children: r.int32()}
	return f, !r.bad && r.off == len(r.buf) && f.children >= 0
}

// stat combines the two records of a node.
func (n *node) stat(f family) Stat {
	return Stat{
		Czxid: n.czxid, Mzxid: n.mzxid, Pzxid: f.pzxid,
		Ctime: n.ctime, Mtime: n.mtime,
		Version: n.version, Cversion: visibleCversion(f.creates, f.children), Aversion: n.aversion,
		EphemeralOwner: n.owner.Ephemeral(),
		DataLength:     int32(len(n.data)),
		NumChildren:    f.children,
	}
}

// appendSessionRecord appends a whole session record: key is the id, value timeout and password.
func appendSessionRecord(dst []byte, s Session) []byte {
	dst = append(dst, 8)
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.ID))
	dst = appendVarint(dst, int64(s.Timeout))
	return append(dst, s.Password[:]...)
}

func decodeSession(rec string) (Session, bool) {
	key := recKey(rec)
	r := reader{buf: bytesOf(recValue(rec))}
	s := Session{Timeout: r.int32()}
	pw := r.take(uint64(len(s.Password)))
	if r.bad || r.off != len(r.buf) || len(key) != 8 {
		return Session{}, false
	}
	s.ID = SessionID(binary.BigEndian.Uint64(bytesOf(key)))
	copy(s.Password[:], pw)
	return s, true
}

// appendMetaRecord appends a whole record of TableMeta.
func appendMetaRecord(dst []byte, key string, values ...uint64) []byte {
	dst = appendString(dst, key)
	for _, v := range values {
		dst = appendUvarint(dst, v)
	}
	return dst
}
