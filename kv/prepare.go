package kv

import (
	"fmt"
	"slices"
	"strings"
)

// Preparer is the leader's door: it decides requests, in the order of their zxids, against the current view and
// what is in flight, and turns each into a transaction that every member can carry out blindly. It is owned by
// one goroutine, the member's loop. The tree may be applied to at the same time.
type Preparer struct {
	view func() *View
	opt  PreparerOptions
	overlay
	cur  *View // during Prepare
	last Zxid  // of the newest prepared transaction
	acl  []byte

	undoable bool // the last Prepare has not been undone
}

// PreparerOptions are the settings that a decision depends on. They are the leader's: members may differ in them for
// as long as they are being changed, since what was decided is carried out blindly.
type PreparerOptions struct {
	ExtendedTypes  bool // nodes with a time to live (extendedTypesEnabled)
	EnforceQuota   bool // hard quotas refuse (enforceQuota)
	SkipACL        bool // nobody is refused for a list (skipACL)
	DigestDisabled bool // lists cannot name the digest scheme (DigestAuthenticationProvider.enabled=false)
}

// NewPreparer returns a Preparer. view returns the newest applied view; its zxid never goes back between calls,
// except across a Reset.
func NewPreparer(view func() *View, o PreparerOptions) *Preparer {
	p := &Preparer{view: view, opt: o}
	p.init()
	return p
}

// Reset forgets everything in flight: the reign of this leader is over, or has not begun.
func (p *Preparer) Reset() {
	p.init()
	p.last, p.undoable = 0, false
}

// InFlight returns how many changed facts are newer than the view was at the last Prepare.
func (p *Preparer) InFlight() int { return len(p.marks) - p.head }

// Prepare decides r and appends the transaction's payload to dst. It always yields one: a request that is refused
// becomes a transaction that changes nothing and carries the reason. z is the zxid it will be proposed under; it
// must be greater than that of every earlier call since Reset. h says who asks (Origin, Request) and what time it
// is (Time); its other fields are filled in from r. The payload holds copies of r's data, but paths of r are kept
// until the transaction is applied, so they must be immutable strings of their own.
func (p *Preparer) Prepare(dst []byte, z Zxid, h TxnHeader, r *Request) []byte {
	p.cur = p.view()
	p.enter(p.cur, z)
	h.Session, h.Kind, h.Err = r.Session, r.Op, CodeOK
	start := len(dst)
	dst = appendTxnHeader(slices.Grow(dst, payloadSize(r)), &h)
	var failed int
	if r.Op == OpMulti {
		dst, failed, h.Err = p.multi(dst, z, h.Time, r)
	} else {
		var code Code
		if code = p.admit(r); code == CodeOK {
			dst, code = p.one(dst, z, r)
		}
		h.Err = code
	}
	if h.Err != CodeOK {
		p.rollback(z)
		dst = appendTxnHeader(dst[:start], &h)
		if r.Op == OpMulti {
			dst = appendRefusedMulti(dst, len(r.Ops), failed)
		}
	}
	p.cur = nil
	return dst
}

// payloadSize is a little more than what the transaction of r takes, so that a payload is allocated once.
func payloadSize(r *Request) int {
	n := 56 + len(r.Path) + len(r.Data) // header, lengths, versions, suffix
	for i := range r.ACL {
		n += 12 + len(r.ACL[i].Scheme) + len(r.ACL[i].ID)
	}
	for i := range r.Ops {
		n += payloadSize(&r.Ops[i])
	}
	return n
}

// PrepareError appends the payload of a transaction that changes nothing and tells the origin why its request was
// refused: one that could not be decoded, or whose session has moved. h.Session and h.Kind are the caller's. z is
// as in Prepare.
func (p *Preparer) PrepareError(dst []byte, z Zxid, h TxnHeader, code Code) []byte {
	if code == CodeOK {
		panic("kv: prepare an error without a code")
	}
	v := p.view()
	p.enter(v, z)
	h.Err = code
	dst = appendTxnHeader(dst, &h)
	if h.Kind == OpMulti {
		dst = appendRefusedMulti(dst, 0, -1)
	}
	return dst
}

// enter begins the transaction z against the view v.
func (p *Preparer) enter(v *View, z Zxid) {
	if z <= p.last || z <= v.zxid {
		panic(fmt.Sprintf("kv: prepare zxid %v, last prepared %v, applied %v", z, p.last, v.zxid))
	}
	p.trim(v.zxid)
	p.last, p.undoable = z, true
}

// Session returns a session as it will be when everything in flight is applied.
func (p *Preparer) Session(id SessionID) (Session, bool) {
	v := p.view()
	if s := p.sessions[id]; s != nil && s.zxid > v.zxid {
		if !s.open {
			return Session{}, false
		}
		if s.made != nil {
			return *s.made, true
		}
	}
	return v.Session(id)
}

// Undo takes back the last Prepare, whose transaction was not proposed after all. It must come before the next
// Prepare; the same zxid may then be used again.
func (p *Preparer) Undo() {
	if !p.undoable {
		panic("kv: nothing to undo")
	}
	p.undoable = false
	p.rollback(p.last)
	p.last--
}

// appendRefusedMulti ends the payload of a refused multi; failed is -1 if it was refused as a whole.
func appendRefusedMulti(dst []byte, total, failed int) []byte {
	if failed < 0 {
		return appendUvarint(dst, 0)
	}
	return appendUvarint(appendUvarint(dst, uint64(total)), uint64(failed))
}

// admit makes the checks that come before those of the operation itself.
func (p *Preparer) admit(r *Request) Code {
	switch r.Op {
	case OpCreate, OpCreate2, OpDelete, OpSetData, OpSetACL:
		if code := checkForm(r); code != CodeOK {
			return code
		}
		if !p.sessionOpen(r.Session) {
			return CodeSessionExpired
		}
		return CodeOK
	case OpCreateSession, OpCloseSession, OpSetLevels, OpSetConfig:
		return CodeOK
	}
	return CodeUnimplemented
}

// checkForm makes the checks of a create that come before the session's.
func checkForm(r *Request) Code {
	if r.Op != OpCreate && r.Op != OpCreate2 {
		return CodeOK
	}
	switch {
	case r.Flags < 0 || r.Flags > maxCreateFlag:
		return CodeBadArguments
	case r.Flags == FlagTTL || r.Flags == FlagSequentialTTL:
		return CodeUnimplemented // as ZooKeeper without extended types
	}
	return CodeOK
}

// sessionOpen reports whether a session may still write. Session 0 is the leader itself.
func (p *Preparer) sessionOpen(id SessionID) bool {
	if id == 0 {
		return true
	}
	if s := p.sessions[id]; s != nil {
		return s.open
	}
	return p.cur.hasSession(id)
}

// facts returns the facts of a node after everything in flight.
func (p *Preparer) facts(path string) nodeFacts {
	if n, ok := p.nodes[watchPath(path)]; ok {
		return n.facts
	}
	return p.cur.facts(path)
}

// multi decides a multi: all of its operations or none. failed is the operation that was refused, -1 if the multi
// is refused as a whole.
func (p *Preparer) multi(dst []byte, z Zxid, now int64, r *Request) (_ []byte, failed int, _ Code) {
	if len(r.Ops) > maxTxnOps {
		return dst, -1, CodeMarshallingError
	}
	for i := range r.Ops {
		o := &r.Ops[i]
		if !inMulti(o.Op) {
			return dst, -1, CodeMarshallingError
		}
		if (o.Op == OpCreate || o.Op == OpCreate2) && (o.Flags < 0 || o.Flags > maxCreateFlag) {
			return dst, -1, CodeMarshallingError
		}
	}
	if !p.sessionOpen(r.Session) {
		return dst, -1, CodeSessionExpired
	}
	dst = appendUvarint(dst, uint64(len(r.Ops)))
	for i := range r.Ops {
		o := r.Ops[i]
		o.Session = r.Session
		code := checkForm(&o)
		if code == CodeOK {
			dst = appendVarint(dst, int64(o.Op))
			dst, code = p.one(dst, z, &o)
		}
		if code != CodeOK {
			return dst, i, code
		}
	}
	return dst, 0, CodeOK
}

// one decides one operation, appends it and records its effects. The order of the checks is ZooKeeper's.
func (p *Preparer) one(dst []byte, z Zxid, r *Request) ([]byte, Code) {
	switch r.Op {
	case OpCreate, OpCreate2:
		return p.create(dst, z, r)
	case OpDelete:
		return p.delete(dst, z, r)
	case OpSetData:
		return p.setData(dst, z, r)
	case OpSetACL:
		return p.setACL(dst, z, r)
	case OpCheck:
		return p.check(dst, r)
	case OpCreateSession:
		return p.createSession(dst, z, r)
	case OpCloseSession:
		return p.closeSession(dst, z, r)
	case OpSetLevels:
		return p.raiseLevels(dst, z, r)
	case OpSetConfig:
		return p.setConfig(dst, z, r)
	}
	return dst, CodeUnimplemented
}

// create follows zookeeper-protocol 3.3, checks 6 to 12.
func (p *Preparer) create(dst []byte, z Zxid, r *Request) ([]byte, Code) {
	path := r.Path
	if strings.IndexByte(path, '/') < 0 || strings.IndexByte(path, 0) >= 0 {
		return dst, CodeBadArguments
	}
	list, code := p.encodeACL(r.ACL)
	if code != CodeOK {
		return dst, code
	}
	parentPath := parentOf(path)
	parent := p.facts(parentPath)
	if !parent.exists {
		return dst, CodeNoNode
	}
	if parentPath == ConfigPath {
		return dst, CodeNoAuth // world may only read it
	}
	if r.Flags == FlagSequential || r.Flags == FlagEphemeralSequential {
		path = string(appendSequence([]byte(path), parent.creates))
	}
	if !validPath(path) {
		return dst, CodeBadArguments
	}
	if p.facts(path).exists {
		return dst, CodeNodeExists
	}
	if parent.owner.Ephemeral() != 0 {
		return dst, CodeNoChildrenForEphemerals
	}
	o := TxnOp{Op: r.Op, Path: path, Data: r.Data, ACL: list, Creates: parent.creates + 1}
	if r.Flags == FlagEphemeral || r.Flags == FlagEphemeralSequential {
		if r.Session == 0 {
			return dst, CodeSessionExpired
		}
		o.Owner = Owner(r.Session)
	}
	parent.creates++
	parent.children++
	p.setNode(parentPath, parent, z, 0)
	p.setNode(path, nodeFacts{exists: true, owner: o.Owner}, z, o.Owner.Ephemeral())
	return appendTxnOp(dst, &o), CodeOK
}

// encodeACL checks a list and returns its stored form, nil for the open one. The result is valid until the next
// call.
func (p *Preparer) encodeACL(acl []ACL) ([]byte, Code) {
	if len(acl) == 1 && acl[0].Perms == PermAll && acl[0].Scheme == "world" && acl[0].ID == "anyone" {
		return nil, CodeOK
	}
	list, code := normalizeACL(acl)
	if code != CodeOK {
		return nil, code
	}
	p.acl = appendACL(p.acl[:0], list)
	if string(p.acl) == encodedOpenACL {
		return nil, CodeOK
	}
	return p.acl, CodeOK
}

// delete follows zookeeper-protocol 3.4.
func (p *Preparer) delete(dst []byte, z Zxid, r *Request) ([]byte, Code) {
	path := r.Path
	if strings.IndexByte(path, '/') < 0 || strings.IndexByte(path, 0) >= 0 || isBuiltin(path) {
		return dst, CodeBadArguments
	}
	parentPath := parentOf(path)
	parent := p.facts(parentPath)
	if !parent.exists {
		return dst, CodeNoNode
	}
	if parentPath == ConfigPath {
		return dst, CodeNoAuth
	}
	n := p.facts(path)
	switch {
	case !n.exists:
		return dst, CodeNoNode
	case !versionMatches(r.Version, n.version):
		return dst, CodeBadVersion
	case n.children > 0:
		return dst, CodeNotEmpty
	}
	p.removed(path, parentPath, parent, z)
	return appendTxnOp(dst, &TxnOp{Op: OpDelete, Path: path}), CodeOK
}

// removed records that transaction z removes a node.
func (p *Preparer) removed(path, parentPath string, parent nodeFacts, z Zxid) {
	parent.children--
	p.setNode(parentPath, parent, z, 0)
	p.setNode(path, nodeFacts{}, z, 0)
}

func versionMatches(want, have int32) bool { return want == anyVersion || want == have }

// setData follows zookeeper-protocol 3.4.
func (p *Preparer) setData(dst []byte, z Zxid, r *Request) ([]byte, Code) {
	if !validPath(r.Path) {
		return dst, CodeBadArguments
	}
	n := p.facts(r.Path)
	switch {
	case !n.exists:
		return dst, CodeNoNode
	case r.Path == ConfigPath:
		return dst, CodeNoAuth
	case !versionMatches(r.Version, n.version):
		return dst, CodeBadVersion
	}
	n.version = nextVersion(n.version)
	p.setNode(r.Path, n, z, 0)
	return appendTxnOp(dst, &TxnOp{Op: OpSetData, Path: r.Path, Data: r.Data, Version: n.version}), CodeOK
}

// setACL follows zookeeper-protocol 3.4.
func (p *Preparer) setACL(dst []byte, z Zxid, r *Request) ([]byte, Code) {
	if !validPath(r.Path) {
		return dst, CodeBadArguments
	}
	list, code := p.encodeACL(r.ACL)
	if code != CodeOK {
		return dst, code
	}
	n := p.facts(r.Path)
	switch {
	case !n.exists:
		return dst, CodeNoNode
	case r.Path == ConfigPath:
		return dst, CodeNoAuth
	case !versionMatches(r.Version, n.aversion):
		return dst, CodeBadVersion
	}
	n.aversion = nextVersion(n.aversion)
	p.setNode(r.Path, n, z, 0)
	return appendTxnOp(dst, &TxnOp{Op: OpSetACL, Path: r.Path, ACL: list, Version: n.aversion}), CodeOK
}

// check follows zookeeper-protocol 3.6.
func (p *Preparer) check(dst []byte, r *Request) ([]byte, Code) {
	if !validPath(r.Path) {
		return dst, CodeBadArguments
	}
	n := p.facts(r.Path)
	switch {
	case !n.exists:
		return dst, CodeNoNode
	case !versionMatches(r.Version, n.version):
		return dst, CodeBadVersion
	}
	return appendTxnOp(dst, &TxnOp{Op: OpCheck, Path: r.Path}), CodeOK
}

// createSession makes the session that the origin has chosen id and password for. An id that is already in use
// is a mistake of the origin.
func (p *Preparer) createSession(dst []byte, z Zxid, r *Request) ([]byte, Code) {
	if Owner(r.Session).Ephemeral() == 0 {
		return dst, CodeBadArguments // zero, or an id that would read as a container or a time to live
	}
	if p.sessionOpen(r.Session) {
		return dst, CodeSystemError
	}
	p.setSession(r.Session, true, z)
	p.sessions[r.Session].made = &Session{r.Session, r.Timeout, r.Password}
	o := TxnOp{Op: OpCreateSession, Timeout: r.Timeout, Passwd: r.Password}
	return appendTxnOp(dst, &o), CodeOK
}

// closeSession ends a session. Everything the session has in flight comes before it; nothing can come after it.
func (p *Preparer) closeSession(dst []byte, z Zxid, r *Request) ([]byte, Code) {
	if r.Session == 0 || !p.sessionOpen(r.Session) {
		return dst, CodeSessionExpired
	}
	remove := func(path string) {
		n := p.facts(path)
		if n.exists && n.owner == Owner(r.Session) {
			parentPath := parentOf(path)
			p.removed(path, parentPath, p.facts(parentPath), z)
		}
	}
	if s := p.sessions[r.Session]; s != nil {
		for _, path := range s.created {
			remove(path)
		}
	}
	p.cur.eachEphemeral(r.Session, func(key string) bool {
		remove(pathOfKey(key))
		return true
	})
	p.setSession(r.Session, false, z)
	return dst, CodeOK
}

// raiseLevels sets the active versions, none of which may fall.
func (p *Preparer) raiseLevels(dst []byte, z Zxid, r *Request) ([]byte, Code) {
	now := p.cur.levels
	if p.levelsAt > p.cur.zxid {
		now = p.levels
	}
	if r.Session != 0 || r.Levels.Protocol < now.Protocol || r.Levels.Format < now.Format {
		return dst, CodeBadArguments
	}
	p.overlay.setLevels(r.Levels, z)
	return appendTxnOp(dst, &TxnOp{Op: OpSetLevels, Levels: r.Levels}), CodeOK
}

// setConfig replaces text and version of the configuration node.
func (p *Preparer) setConfig(dst []byte, z Zxid, r *Request) ([]byte, Code) {
	if r.Session != 0 {
		return dst, CodeNoAuth
	}
	n := p.facts(ConfigPath)
	n.version = r.Version
	p.setNode(ConfigPath, n, z, 0)
	return appendTxnOp(dst, &TxnOp{Op: OpSetConfig, Data: r.Data, Version: r.Version}), CodeOK
}
