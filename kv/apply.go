package kv

// Applying a transaction: everything was decided when it was prepared. What is checked here are promises (the
// history is contiguous, the transaction fits the tree); none of them can fail on one healthy member alone.

// OpResult is the outcome of one operation.
type OpResult struct {
	Op   Op
	Code Code
	Path string // of create: the final path; aliases the transaction's payload
	Stat Stat   // of create, setData, setACL: the node right after the operation
}

// Result is the outcome of a transaction. It is valid during the call that passes it.
type Result struct {
	// OpResult is the outcome of a transaction that is no multi. For a multi, Code is what the reply's header
	// carries: CodeOK if Ops is to be sent, also when the multi failed (zookeeper-protocol 3.6).
	OpResult
	// Ops are the outcomes of a multi's operations. If one failed nothing was changed: it has its code, those
	// before it CodeOK and those after it CodeRuntimeInconsistency.
	Ops []OpResult
}

// changeKind says what a change means to watches.
type changeKind uint8

const (
	nodeCreated changeKind = iota + 1
	nodeDeleted
	dataChanged
)

// change is one change of the tree, for the watches.
type change struct {
	kind changeKind
	path string
	zxid Zxid
	// access is the list of the node at this moment (of a deleted one: that it had), parentAccess that of its parent if
	// the change concerns the parent's children.
	access, parentAccess AccessList
	hash, parentHash     uint32 // of the paths, for the watch tables; filled in by publish
}

// applier carries out transactions on an edit and notes the changes.
type applier struct {
	edit
	changes []change
	op      TxnOp
}

// apply carries out one entry. If res is not nil, it is filled in.
func (a *applier) apply(en *Entry, h *TxnHeader, r *reader, res *Result) error {
	z := en.Zxid
	switch {
	case h.Err != CodeOK:
		if err := refusedResult(h, r, res); err != nil {
			return broken(z, "%w", err)
		}
	case h.Kind == OpMulti:
		n := r.opCount()
		for range n {
			a.op.Op = Op(r.int32())
			if !inMulti(a.op.Op) {
				return broken(z, "%v inside multi", a.op.Op)
			}
			if err := a.applyOp(z, h, r, res); err != nil {
				return err
			}
		}
		if res != nil {
			res.OpResult = OpResult{Op: OpMulti}
		}
	default:
		a.op.Op = h.Kind
		if err := a.applyOp(z, h, r, res); err != nil {
			return err
		}
		if res != nil {
			res.OpResult, res.Ops = res.Ops[0], res.Ops[:0]
		}
	}
	if r.bad || r.off != len(r.buf) {
		return broken(z, "%w", errBadTxn)
	}
	a.zxid, a.chain = z, en.Chain
	return nil
}

// refusedResult fills in the result of a transaction that changes nothing.
func refusedResult(h *TxnHeader, r *reader, res *Result) error {
	var total, failed int
	if h.Kind == OpMulti {
		if total = r.opCount(); total > 0 {
			failed = r.opCount()
		}
		if r.bad || failed > 0 && failed >= total {
			return errBadTxn
		}
	}
	if res == nil {
		return nil
	}
	res.OpResult = OpResult{Op: h.Kind, Code: h.Err}
	if total == 0 {
		return nil
	}
	res.Code = CodeOK
	for i := range total {
		code := CodeOK
		switch {
		case i == failed:
			code = h.Err
		case i > failed:
			code = CodeRuntimeInconsistency
		}
		res.Ops = append(res.Ops, OpResult{Op: OpMulti, Code: code})
	}
	return nil
}

// applyOp decodes and carries out the next operation, whose code is in a.op.Op. If res is not nil its outcome is
// appended to res.Ops.
func (a *applier) applyOp(z Zxid, h *TxnHeader, r *reader, res *Result) error {
	o := &a.op
	if !r.txnOp(o) {
		return broken(z, "%w", errBadTxn)
	}
	var stat Stat
	ok := true
	switch o.Op {
	case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL:
		ok = a.applyCreate(z, h.Time, o, res != nil, &stat)
	case OpDelete, OpDeleteContainer:
		ok = !isBuiltin(o.Path) && a.removeNode(o.Path, z)
		a.note(nodeDeleted, o.Path, z, a.removedAccess, a.parentAccess)
	case OpSetData:
		ok = a.applySetData(z, h.Time, o, res != nil, &stat)
	case OpSetACL:
		ok = a.applySetACL(o, res != nil, &stat)
	case OpCheck:
	case OpSetConfig:
		ok = a.applySetConfig(z, o)
	case OpCreateSession:
		s := Session{ID: h.Session, Timeout: o.Timeout, Password: o.Passwd}
		a.scratch = appendSessionRecord(a.scratch[:0], s)
		_, replaced := a.put(TableSession, a.scratch)
		ok = !replaced
	case OpCloseSession:
		ok = a.applyCloseSession(z, h.Session)
	case OpSetLevels:
		a.setLevels(o.Levels)
	}
	if !ok {
		return broken(z, "%v %q does not fit the tree", o.Op, o.Path)
	}
	if res != nil {
		out := OpResult{Op: o.Op, Stat: stat}
		if isCreate(o.Op) {
			out.Path = o.Path
		}
		res.Ops = append(res.Ops, out)
	}
	return nil
}

func (a *applier) note(kind changeKind, path string, z Zxid, access, parent AccessList) {
	a.changes = append(a.changes, change{kind: kind, path: path, zxid: z, access: access, parentAccess: parent})
}

func (a *applier) applyCreate(z Zxid, now int64, o *TxnOp, wantStat bool, stat *Stat) bool {
	if !validPath(o.Path) {
		return false
	}
	if _, exists := a.lookup(o.Path); exists {
		return false
	}
	if id := o.Owner.Ephemeral(); id != 0 && !a.hasSession(id) {
		return false
	}
	creates := o.Creates
	if !a.touchParent(parentOf(o.Path), z, func(f *family) { f.creates = creates; f.children++ }) {
		return false
	}
	n := node{
		czxid: z, mzxid: z, ctime: now, mtime: now,
		owner: o.Owner, acl: a.useACL(o.ACL), null: o.Data == nil, data: stringOf(o.Data),
	}
	a.putNode(o.Path, &n)
	if n.owner != 0 {
		var buf keyBuffer
		a.indexOwner(n.owner, stringOf(appendKey(buf[:0], o.Path)))
	}
	a.note(nodeCreated, o.Path, z, a.access(n.acl), a.parentAccess)
	if wantStat {
		*stat = n.stat(family{pzxid: z})
	}
	a.quotaCreated(o.Path, int64(len(o.Data)))
	return true
}

func (a *applier) applySetData(z Zxid, now int64, o *TxnOp, wantStat bool, stat *Stat) bool {
	var n node
	if !a.node(o.Path, &n) {
		return false
	}
	was := len(n.data)
	n.mzxid, n.mtime, n.version = z, now, o.Version
	n.null, n.data = o.Data == nil, stringOf(o.Data)
	a.putNode(o.Path, &n)
	a.note(dataChanged, o.Path, z, a.access(n.acl), "")
	if wantStat {
		*stat = n.stat(a.family(o.Path, &n))
	}
	a.charge(o.Path, 0, int64(len(o.Data)-was))
	return true
}

func (a *applier) applySetACL(o *TxnOp, wantStat bool, stat *Stat) bool {
	var n node
	if !a.node(o.Path, &n) {
		return false
	}
	was := n.acl
	n.acl, n.aversion = a.useACL(o.ACL), o.Version // before countACL: the same list must not vanish in between
	a.countACL(was, -1)
	a.putNode(o.Path, &n)
	if wantStat {
		*stat = n.stat(a.family(o.Path, &n))
	}
	return true
}

// applySetConfig replaces the text of the configuration node. ZooKeeper's servers write it at their start
// without a transaction, so only data and version of its Stat ever show it.
func (a *applier) applySetConfig(z Zxid, o *TxnOp) bool {
	var n node
	if !a.node(ConfigPath, &n) {
		return false
	}
	n.version, n.null, n.data = o.Version, o.Data == nil, stringOf(o.Data)
	a.putNode(ConfigPath, &n)
	a.note(dataChanged, ConfigPath, z, a.access(n.acl), "")
	return true
}

// applyCloseSession ends a session and removes the ephemeral nodes it has at this point of the history. They are
// not listed in the transaction, so their number is not bounded by the size of one.
func (a *applier) applyCloseSession(z Zxid, id SessionID) bool {
	var buf [8]byte
	if _, ok := a.drop(TableSession, stringOf(appendSessionID(buf[:0], id))); !ok {
		return false
	}
	first := len(a.changes)
	a.eachEphemeral(id, func(key string) bool { // collected first: removing changes the index
		a.note(nodeDeleted, pathOfKey(key), z, "", "")
		return true
	})
	for i := first; i < len(a.changes); i++ {
		c := &a.changes[i]
		if !a.removeNode(c.path, z) {
			return false
		}
		c.access, c.parentAccess = a.removedAccess, a.parentAccess
	}
	return true
}
