package kv

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// Builder makes a View from records: those of a full snapshot, then those of its deltas, in any order of keys (it
// is fastest in ascending order). It is not safe for concurrent use.
type Builder struct {
	e   edit
	err error
}

// NewBuilder returns an empty Builder.
func NewBuilder() *Builder {
	return &Builder{e: edit{own: new(owner)}}
}

// ErrBadRecord is matched by the errors of a Builder: the records are not what a View emits.
var ErrBadRecord = errors.New("bad record")

// Add stores a record, replacing one of the same key. It copies key and value. Error: ErrBadRecord, also from
// every later call.
func (b *Builder) Add(table uint8, key, value []byte) error {
	if b.err != nil {
		return b.err
	}
	if err := checkRecord(table, key, value); err != nil {
		b.err = fmt.Errorf("%w: table %d key %q: %w", ErrBadRecord, table, key, err)
		return b.err
	}
	e := &b.e
	e.scratch = appendUvarint(e.scratch[:0], uint64(len(key)))
	e.scratch = append(append(e.scratch, key...), value...)
	e.put(table, e.scratch)
	return nil
}

// Delete removes a record, as a delta says it. Error: ErrBadRecord if there is no such record.
func (b *Builder) Delete(table uint8, key []byte) error {
	if b.err != nil {
		return b.err
	}
	if b.e.table(table) == nil {
		b.err = fmt.Errorf("%w: no table %d", ErrBadRecord, table)
		return b.err
	}
	if _, ok := b.e.drop(table, stringOf(key)); !ok {
		b.err = fmt.Errorf("%w: table %d: delta deletes %q, which is not there", ErrBadRecord, table, key)
	}
	return b.err
}

var (
	errRecordTable = errors.New("unknown table")
	errRecordKey   = errors.New("malformed key")
	errRecordValue = errors.New("malformed value")
)

// checkRecord checks the form of one record, so that reads need not.
func checkRecord(table uint8, key, value []byte) error {
	var ok bool
	switch table {
	case TableNode, TableChildren:
		if !validKey(key) {
			return errRecordKey
		}
		if table == TableChildren {
			_, ok = decodeFamily(stringOf(value))
			break
		}
		var n node
		ok = len(value) > 0 && decodeNode(stringOf(value), &n) && n.owner.valid()
	case TableSession:
		if len(key) != 8 {
			return errRecordKey
		}
		r := reader{buf: value}
		r.int32()
		r.take(16)
		ok = !r.bad && r.off == len(value)
	case TableACL:
		if len(key) != 4 || binary.BigEndian.Uint32(key) < aclFirst {
			return errRecordKey
		}
		_, ok = decodeACL(stringOf(value))
	case TableMeta:
		return checkMeta(string(key), value)
	default:
		return errRecordTable
	}
	if !ok {
		return errRecordValue
	}
	return nil
}

// validKey reports whether key is that of a valid path: with its only NUL made a slash it is one, and that slash is
// the last.
func validKey(key []byte) bool {
	if string(key) == RootPath {
		return true
	}
	at := bytes.IndexByte(key, 0)
	if at < 0 || bytes.IndexByte(key[at:], '/') >= 0 {
		return false
	}
	var buf keyBuffer
	path := append(buf[:0], key...)
	path[at] = '/'
	return validPath(stringOf(path)) && len(path) > 1
}

func checkMeta(key string, value []byte) error {
	r := reader{buf: value}
	switch key {
	case metaFormat:
		if v := r.uvarint(); !r.bad && v != RecordFormat {
			return fmt.Errorf("record format %d, this build knows %d", v, RecordFormat)
		}
	case metaLevels:
		r.uint32()
		r.uint32()
	case metaNextACL:
		r.uint32()
	default:
		return errRecordKey
	}
	if r.bad || r.off != len(value) {
		return errRecordValue
	}
	return nil
}

// Finish checks that the records are a whole tree with that digest and returns it as the view at z, where the
// history's digest chain is chain. Error: ErrBadRecord. The Builder must not be used afterwards.
func (b *Builder) Finish(z Zxid, chain, digest uint64) (*View, error) {
	if b.err != nil {
		return nil, b.err
	}
	b.err = errors.New("kv: Builder used after Finish")
	e := &b.e
	if e.digest != digest {
		return nil, fmt.Errorf("%w: tree digest at %v is %#x, expected %#x", ErrBadRecord, z, e.digest, digest)
	}
	if err := e.loadMeta(); err != nil {
		return nil, err
	}
	if err := e.derive(); err != nil {
		return nil, err
	}
	e.zxid, e.chain = z, chain
	return e.freeze(), nil
}

// loadMeta reads the single values.
func (e *edit) loadMeta() error {
	for _, key := range [...]string{metaFormat, metaLevels, metaNextACL} {
		rec, ok := e.meta.get(key)
		if !ok {
			return fmt.Errorf("%w: no %q record", ErrBadRecord, key)
		}
		r := reader{buf: bytesOf(recValue(rec))}
		switch key {
		case metaLevels:
			e.levels = Levels{Protocol: r.uint32(), Format: r.uint32()}
		case metaNextACL:
			e.nextACL = r.uint32()
		}
	}
	return nil
}

// derive rebuilds what is not in the records and checks that nodes, child facts, lists and sessions fit together.
// Siblings are neighbours in key order, so children are counted in one pass.
func (e *edit) derive() error {
	var err error
	fault := func(format string, args ...any) bool {
		err = fmt.Errorf("%w: %w", ErrBadRecord, fmt.Errorf(format, args...))
		return false
	}
	e.acls.ascend("", func(rec string) bool {
		id := binary.BigEndian.Uint32(bytesOf(recKey(rec)))
		e.aclNumbers.put(e.own, string(binary.BigEndian.AppendUint32(appendString(nil, recValue(rec)), id)))
		return true
	})
	if err != nil {
		return err
	}
	uses := make(map[uint32]int64)
	family, parents := "", 0 // the path of the parent being counted
	count := int32(0)
	closeFamily := func() bool {
		if count == 0 {
			return true
		}
		var p node
		if !e.node(family, &p) {
			return fault("%q has children and does not exist", family)
		}
		if f := e.state.family(family, &p); !p.parent || f.children != count {
			return fault("%q has %d children, its record says %d", family, count, f.children)
		}
		return true
	}
	total := 0
	e.nodes.ascend("", func(rec string) bool {
		key := recKey(rec)
		var n node
		decodeNode(recValue(rec), &n)
		e.dataBytes += int64(len(key) + len(n.data))
		if n.parent {
			parents++
			if _, ok := e.families.get(key); !ok {
				return fault("%q has no child record", pathOfKey(key))
			}
		}
		if n.acl >= aclFirst {
			uses[n.acl]++
			if e.aclByNumber(n.acl) == "" {
				return fault("%q has access control list %d, which does not exist", pathOfKey(key), n.acl)
			}
		}
		if id := n.owner.Ephemeral(); id != 0 {
			if !e.hasSession(id) {
				return fault("%q belongs to session %v, which does not exist", pathOfKey(key), id)
			}
			e.putEphemeral(id, key)
		} else {
			e.indexOwner(n.owner, key)
		}
		if prefix, part := splitQuotaKey(key); part == quotaLimits && prefix != "" {
			e.quotas.put(e.own, string(appendString(nil, prefix)))
		}
		if key == RootPath {
			return true
		}
		if parent := parentPathOfKey(key); parent != family || count == 0 {
			if !closeFamily() {
				return false
			}
			family, count = parent, 0
		}
		count++
		return true
	})
	if err != nil || !closeFamily() {
		return err
	}
	if _, ok := e.lookup(RootPath); !ok {
		return fmt.Errorf("%w: no root", ErrBadRecord)
	}
	if parents != e.families.size {
		return fmt.Errorf("%w: %d child records, %d nodes that have one", ErrBadRecord, e.families.size, parents)
	}
	e.families.ascend("", func(rec string) bool {
		f, _ := decodeFamily(recValue(rec))
		total += int(f.children)
		return true
	})
	if total != e.nodes.size-1 {
		return fmt.Errorf("%w: child records speak of %d nodes, there are %d", ErrBadRecord, total, e.nodes.size-1)
	}
	if len(uses) != e.acls.size {
		return fmt.Errorf("%w: %d access control lists, %d in use", ErrBadRecord, e.acls.size, len(uses))
	}
	e.acls.ascend("", func(rec string) bool {
		id := binary.BigEndian.Uint32(bytesOf(recKey(rec)))
		e.countACL(id, uses[id])
		return true
	})
	return nil
}
