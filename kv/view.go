package kv

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// View is the whole state at one zxid. It never changes, shares most of its memory with the views before and
// after it, and may be read from any goroutine for as long as it is kept.
type View struct {
	state
}

// state is the content of a View, and what an edit works on.
type state struct {
	zxid   Zxid
	chain  uint64
	digest uint64 // sum of recordDigest over all records of all tables

	nodes    btree // TableNode
	families btree // TableChildren
	sessions btree // TableSession
	acls     btree // TableACL
	meta     btree // TableMeta

	// Derived from the tables, not part of Records or of the digest.
	ephemerals btree // session id, key of the node
	containers btree // key of the node
	ttls       btree // key of the node
	quotas     btree // path that has a quota
	aclNumbers btree // encoded list -> number
	aclUses    btree // number -> nodes that have it
	dataBytes  int64 // sum of path and data lengths over all nodes

	levels  Levels
	nextACL uint32
}

// Zxid returns the zxid of the last transaction the view includes, zero for a fresh one.
func (v *View) Zxid() Zxid { return v.zxid }

// Chain returns the history's digest chain at Zxid.
func (v *View) Chain() uint64 { return v.chain }

// Digest returns the digest of the content: the sum of a hash over each record, so that two members at the same
// zxid can be compared. Which transactions led there does not matter.
func (v *View) Digest() uint64 { return v.digest }

// Levels returns the replicated active versions.
func (v *View) Levels() Levels { return v.levels }

// NodeCount returns the number of nodes, the built-in ones included.
func (v *View) NodeCount() int { return v.nodes.size }

// SessionCount returns the number of open sessions.
func (v *View) SessionCount() int { return v.sessions.size }

// EphemeralCount returns the number of ephemeral nodes.
func (v *View) EphemeralCount() int { return v.ephemerals.size }

// QuotaCount returns the number of paths that have a quota.
func (v *View) QuotaCount() int { return v.quotas.size }

// DataBytes returns the sum of path and data lengths over all nodes.
func (v *View) DataBytes() int64 { return v.dataBytes }

// keyBuffer is stack space for the key of a path of ordinary length.
type keyBuffer [160]byte

// lookup finds the record of path.
func (s *state) lookup(path string) (rec string, ok bool) {
	var buf keyBuffer
	return s.nodes.get(stringOf(appendKey(buf[:0], path)))
}

// node finds and decodes the node of path.
func (s *state) node(path string, n *node) bool {
	rec, ok := s.lookup(path)
	if !ok {
		return false
	}
	decodeNode(recValue(rec), n) // was checked when it came in
	return true
}

// family returns the child facts of the node n of path.
func (s *state) family(path string, n *node) family {
	if !n.parent {
		return family{pzxid: n.czxid}
	}
	var buf keyBuffer
	rec, ok := s.families.get(stringOf(appendKey(buf[:0], path)))
	if !ok {
		return family{pzxid: n.czxid}
	}
	f, _ := decodeFamily(recValue(rec))
	return f
}

// Exists returns the node's Stat. Errors: ErrNoNode; ErrBadArguments for a path with NUL.
func (v *View) Exists(path string) (Stat, error) {
	if strings.IndexByte(path, 0) >= 0 {
		return Stat{}, ErrBadArguments
	}
	var n node
	if !v.node(path, &n) {
		return Stat{}, ErrNoNode
	}
	return n.stat(v.family(path, &n)), nil
}

// Get returns the node's data, nil if it is null, and Stat. The data belongs to the view and must not be written
// to. Error: ErrNoNode.
func (v *View) Get(path string) ([]byte, Stat, error) {
	var n node
	if !v.node(path, &n) {
		return nil, Stat{}, ErrNoNode
	}
	return n.bytes(), n.stat(v.family(path, &n)), nil
}

func (n *node) bytes() []byte {
	if n.null {
		return nil
	}
	return bytesOf(n.data)
}

// Children appends the names of the node's children to dst, in byte order, and returns the node's Stat. The names
// share memory with the view: clone those that are kept. Error: ErrNoNode.
func (v *View) Children(path string, dst []string) ([]string, Stat, error) {
	var n node
	if !v.node(path, &n) {
		return dst, Stat{}, ErrNoNode
	}
	f := v.family(path, &n)
	return v.appendChildren(dst, path, f), n.stat(f), nil
}

// appendChildren appends the names of the children of the node with these child facts.
func (v *View) appendChildren(dst []string, path string, f family) []string {
	if f.children == 0 {
		return dst
	}
	prefix := childPrefix(path)
	if free := cap(dst) - len(dst); free < int(f.children) {
		dst = append(make([]string, 0, len(dst)+int(f.children)), dst...)
	}
	v.nodes.ascend(prefix, func(rec string) bool {
		key := recKey(rec)
		if !strings.HasPrefix(key, prefix) {
			return false
		}
		dst = append(dst, key[len(prefix):])
		return true
	})
	return dst
}

// childPrefix is what the keys of all children of path begin with.
func childPrefix(path string) string {
	if path == "" || path == RootPath {
		return "\x00"
	}
	return path + "\x00"
}

// ACL returns the node's access control list and Stat. Error: ErrNoNode.
func (v *View) ACL(path string) ([]ACL, Stat, error) {
	var n node
	if !v.node(path, &n) {
		return nil, Stat{}, ErrNoNode
	}
	list, ok := decodeACL(v.aclByNumber(n.acl))
	if !ok {
		return nil, Stat{}, fmt.Errorf("access control list %d of %q: %w", n.acl, path, ErrSystemError)
	}
	return list, n.stat(v.family(path, &n)), nil
}

// Access returns the node's access control list in its stored form, and whether the node exists.
func (v *View) Access(path string) (AccessList, bool) {
	var n node
	if !v.node(path, &n) {
		return "", false
	}
	return v.access(n.acl), true
}

// access returns the list with that number.
func (s *state) access(id uint32) AccessList {
	if id == aclOpen {
		return ""
	}
	return AccessList(s.aclByNumber(id))
}

// aclByNumber returns the encoded list, empty if there is none of that number.
func (s *state) aclByNumber(id uint32) string {
	switch id {
	case aclOpen:
		return encodedOpenACL
	case aclReadOnly:
		return encodedReadACL
	}
	var buf [4]byte
	rec, ok := s.acls.get(stringOf(binary.BigEndian.AppendUint32(buf[:0], id)))
	if !ok {
		return ""
	}
	return recValue(rec)
}

// Session returns an open session.
func (v *View) Session(id SessionID) (Session, bool) {
	var buf [8]byte
	rec, ok := v.sessions.get(stringOf(appendSessionID(buf[:0], id)))
	if !ok {
		return Session{}, false
	}
	return decodeSession(rec)
}

func (s *state) hasSession(id SessionID) bool {
	var buf [8]byte
	_, ok := s.sessions.get(stringOf(appendSessionID(buf[:0], id)))
	return ok
}

func appendSessionID(dst []byte, id SessionID) []byte {
	return binary.BigEndian.AppendUint64(dst, uint64(id))
}

// Sessions calls yield with every open session, in the order of their ids taken as unsigned, until it returns
// false.
func (v *View) Sessions(yield func(Session) bool) {
	v.sessions.ascend("", func(rec string) bool {
		s, _ := decodeSession(rec)
		return yield(s)
	})
}

// Ephemerals calls yield with the path of every ephemeral node of a session, siblings together and in order,
// until it returns false.
func (v *View) Ephemerals(id SessionID, yield func(path string) bool) {
	v.eachEphemeral(id, func(key string) bool { return yield(pathOfKey(key)) })
}

// eachEphemeral calls fn with the keys of the session's ephemeral nodes.
func (s *state) eachEphemeral(id SessionID, fn func(key string) bool) {
	var buf [8]byte
	prefix := stringOf(appendSessionID(buf[:0], id))
	s.ephemerals.ascend(prefix, func(rec string) bool {
		key := recKey(rec)
		return strings.HasPrefix(key, prefix) && fn(key[len(prefix):])
	})
}

// table returns the tree behind a table of the record format, nil if there is no such table.
func (s *state) table(table uint8) *btree {
	switch table {
	case TableNode:
		return &s.nodes
	case TableChildren:
		return &s.families
	case TableSession:
		return &s.sessions
	case TableACL:
		return &s.acls
	case TableMeta:
		return &s.meta
	}
	return nil
}

// Records calls yield with every record of the view, table by table, in the order of their keys, until it returns
// an error, which Records returns. A Builder makes an equal view of them. Key and value belong to the view and
// must not be written to; keys are never empty and at most MaxPathBytes long.
func (v *View) Records(yield func(table uint8, key, value []byte) error) error {
	var err error
	for table := TableNode; table <= TableMeta && err == nil; table++ {
		v.table(table).ascend("", func(rec string) bool {
			err = yield(table, bytesOf(recKey(rec)), bytesOf(recValue(rec)))
			return err == nil
		})
	}
	return err
}
