package kv

import "encoding/binary"

// edit changes a state under one owner: nodes of the trees that it has copied once are changed in place from
// then on. Whoever takes a View of the state must call renew, which ends the ownership.
type edit struct {
	state
	own     *owner
	scratch []byte
	// Lists of the node that removeNode removed last and of the parent that touchParent touched last, for the watches.
	removedAccess, parentAccess AccessList
}

// begin starts over from a view.
func (e *edit) begin(v *View) {
	e.state = v.state
	e.own = new(owner)
}

// freeze returns the state as a View that later changes do not touch.
func (e *edit) freeze() *View {
	v := &View{state: e.state}
	e.own = new(owner)
	return v
}

// put stores the record held in scratch form in one of the tables.
func (e *edit) put(table uint8, rec []byte) (old string, replaced bool) {
	s := string(rec)
	old, replaced = e.table(table).put(e.own, s)
	if replaced {
		e.digest -= recordDigest(table, old)
	}
	e.digest += recordDigest(table, s)
	return old, replaced
}

// drop removes a record from one of the tables.
func (e *edit) drop(table uint8, key string) (old string, ok bool) {
	old, ok = e.table(table).delete(e.own, key)
	if ok {
		e.digest -= recordDigest(table, old)
	}
	return old, ok
}

// putNode writes the node record of path.
func (e *edit) putNode(path string, n *node) {
	e.scratch = appendNode(appendRecordKey(e.scratch[:0], path), n)
	old, replaced := e.put(TableNode, e.scratch)
	if replaced {
		var was node
		decodeNode(recValue(old), &was)
		e.dataBytes += int64(len(n.data) - len(was.data))
		return
	}
	e.dataBytes += int64(len(path) + len(n.data))
}

// putFamily writes the child facts of the node of path.
func (e *edit) putFamily(path string, f family) {
	e.scratch = appendFamily(appendRecordKey(e.scratch[:0], path), f)
	e.put(TableChildren, e.scratch)
}

// touchParent records the creation or deletion of a child below parent. The first child makes the parent's own
// record say that it has child facts; later ones leave it alone.
func (e *edit) touchParent(parent string, z Zxid, change func(*family)) bool {
	var p node
	if !e.node(parent, &p) {
		return false
	}
	e.parentAccess = e.access(p.acl)
	f := e.family(parent, &p)
	f.pzxid = z
	change(&f)
	if !p.parent {
		p.parent = true
		e.putNode(parent, &p)
	}
	e.putFamily(parent, f)
	return true
}

// putEphemeral enters the node with that key in the index of its session.
func (e *edit) putEphemeral(id SessionID, key string) {
	e.scratch = appendUvarint(e.scratch[:0], uint64(8+len(key)))
	e.scratch = append(appendSessionID(e.scratch, id), key...)
	e.ephemerals.put(e.own, string(e.scratch))
}

func (e *edit) dropEphemeral(id SessionID, key string) bool {
	e.scratch = append(appendSessionID(e.scratch[:0], id), key...)
	_, ok := e.ephemerals.delete(e.own, stringOf(e.scratch))
	return ok
}

// indexOwner enters the node with that key in the index that its owner calls for.
func (e *edit) indexOwner(o Owner, key string) {
	if id := o.Ephemeral(); id != 0 {
		e.putEphemeral(id, key)
	} else if table := e.reapTable(o); table != nil {
		table.put(e.own, string(appendString(nil, key)))
	}
}

// unindexOwner is the inverse of indexOwner.
func (e *edit) unindexOwner(o Owner, key string) {
	if o == 0 {
		return
	}
	if id := o.Ephemeral(); id != 0 {
		e.dropEphemeral(id, key)
	} else if table := e.reapTable(o); table != nil {
		table.delete(e.own, key)
	}
}

// useACL returns the number of an encoded list (nil is the open one), giving it one if it is new, and counts one
// more node that has it.
func (e *edit) useACL(list []byte) uint32 {
	switch {
	case list == nil || string(list) == encodedOpenACL:
		return aclOpen
	case string(list) == encodedReadACL:
		return aclReadOnly
	}
	if rec, ok := e.aclNumbers.get(stringOf(list)); ok {
		id := binary.BigEndian.Uint32(bytesOf(recValue(rec)))
		e.countACL(id, 1)
		return id
	}
	id := e.numberACL()
	e.put(TableMeta, appendMetaRecord(nil, metaNextACL, uint64(e.nextACL)))
	e.put(TableACL, append(binary.BigEndian.AppendUint32([]byte{4}, id), list...))
	e.aclNumbers.put(e.own, string(binary.BigEndian.AppendUint32(appendString(nil, stringOf(list)), id)))
	e.countACL(id, 1)
	return id
}

// numberACL returns the number for a new list. Numbers are given out in sequence and, once they are used up (a list that
// comes and goes takes a new one each time), from the start, without those in use.
func (e *edit) numberACL() uint32 {
	for {
		id := max(e.nextACL, aclFirst)
		e.nextACL = id + 1 // 0 after the last
		var buf [4]byte
		if _, used := e.acls.get(stringOf(binary.BigEndian.AppendUint32(buf[:0], id))); !used {
			return id
		}
	}
}

// countACL changes the number of nodes that have a list and drops the list with its last node.
func (e *edit) countACL(id uint32, by int64) {
	if id < aclFirst {
		return
	}
	rec := binary.BigEndian.AppendUint32([]byte{4}, id)
	uses := by
	if old, ok := e.aclUses.get(stringOf(rec[1:])); ok {
		uses += int64(binary.BigEndian.Uint64(bytesOf(recValue(old))))
	}
	if uses > 0 {
		e.aclUses.put(e.own, string(binary.BigEndian.AppendUint64(rec, uint64(uses))))
		return
	}
	e.aclUses.delete(e.own, stringOf(rec[1:]))
	if old, ok := e.drop(TableACL, stringOf(rec[1:])); ok {
		e.aclNumbers.delete(e.own, recValue(old))
	}
}

// removeNode removes the node of path, which must exist and have no children, and everything that hangs on it.
func (e *edit) removeNode(path string, z Zxid) bool {
	var buf keyBuffer
	key := stringOf(appendKey(buf[:0], path))
	var n node
	if !e.node(path, &n) {
		return false
	}
	if n.parent {
		if e.family(path, &n).children != 0 {
			return false
		}
		e.drop(TableChildren, key)
	}
	e.drop(TableNode, key)
	e.dataBytes -= int64(len(path) + len(n.data))
	e.removedAccess = e.access(n.acl)
	e.countACL(n.acl, -1)
	e.unindexOwner(n.owner, key)
	if !e.touchParent(parentOf(path), z, func(f *family) { f.children-- }) {
		return false
	}
	e.quotaRemoved(path, int64(len(n.data)))
	return true
}

// setLevels replaces the active versions.
func (e *edit) setLevels(l Levels) {
	e.levels = l
	e.put(TableMeta, appendMetaRecord(nil, metaLevels, uint64(l.Protocol), uint64(l.Format)))
}

// builtins are the nodes of a fresh tree, parents first.
var builtins = []struct {
	path     string
	node     node
	children int32
}{
	{RootPath, node{acl: aclOpen, parent: true}, 1},
	{ZookeeperPath, node{acl: aclOpen, parent: true}, 2},
	{ConfigPath, node{acl: aclReadOnly, aversion: -1}, 0},
	{QuotaPath, node{acl: aclOpen}, 0},
}

// NewView returns the state before any transaction: ZooKeeper's built-in nodes, no sessions, levels 0. All fresh
// views are equal. The built-in children were never counted as created, as in ZooKeeper, where the root therefore
// shows cversion -1.
func NewView() *View {
	e := edit{own: new(owner)}
	e.chain = ChainSeed()
	e.nextACL = aclFirst
	for i := range builtins {
		b := builtins[i]
		e.putNode(b.path, &b.node)
		if b.children > 0 {
			e.putFamily(b.path, family{children: b.children})
		}
	}
	e.put(TableMeta, appendMetaRecord(nil, metaFormat, RecordFormat))
	e.put(TableMeta, appendMetaRecord(nil, metaNextACL, uint64(e.nextACL)))
	e.setLevels(Levels{})
	return e.freeze()
}
