package kv

import "strings"

// How each operation is decided. The order of the checks is ZooKeeper's; where two fail, clients see the first.

// one decides one operation, appends it and records its effects. The order of the checks is ZooKeeper's.
func (p *Preparer) one(dst []byte, z Zxid, r *Request) ([]byte, Code) {
	switch r.Op {
	case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL:
		return p.create(dst, z, r)
	case OpDelete:
		return p.delete(dst, z, r)
	case OpDeleteContainer:
		return p.deleteContainer(dst, z, r)
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

// create follows zookeeper-protocol 3.3, checks 6 to 13.
func (p *Preparer) create(dst []byte, z Zxid, r *Request) ([]byte, Code) {
	path := r.Path
	if strings.IndexByte(path, '/') < 0 || strings.IndexByte(path, 0) >= 0 {
		return dst, CodeBadArguments
	}
	list, code := p.encodeACL(r)
	if code != CodeOK {
		return dst, code
	}
	parentPath := parentOf(path)
	parent := p.facts(parentPath)
	if !parent.exists {
		return dst, CodeNoNode
	}
	if !p.may(r, parent.acl, PermCreate) {
		return dst, CodeNoAuth
	}
	switch r.Flags {
	case FlagSequential, FlagEphemeralSequential, FlagSequentialTTL:
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
	if p.overQuota(path, 1, int64(len(r.Data))) || !p.mayCount(path) {
		return dst, CodeQuotaExceeded
	}
	o := TxnOp{Op: r.Op, Path: path, Data: r.Data, ACL: list.bytes(), Creates: parent.creates + 1}
	switch {
	case r.Op == OpCreateContainer:
		o.Owner = ownerContainer
	case r.Op == OpCreateTTL:
		o.Owner = ttlOwner(r.TTL)
	case r.Flags == FlagEphemeral || r.Flags == FlagEphemeralSequential:
		if r.Session == 0 {
			return dst, CodeSessionExpired
		}
		o.Owner = Owner(r.Session)
	}
	parent.creates++
	parent.children++
	p.setNode(parentPath, parent, z, 0)
	f := nodeFacts{exists: true, owner: o.Owner, dataLen: int32(len(r.Data)), mtime: p.now, acl: list}
	p.setNode(path, f, z, o.Owner.Ephemeral())
	p.quotaCreated(path, r.Data, z)
	return appendTxnOp(dst, &o), CodeOK
}

// encodeACL checks the list of a request and returns its stored form.
func (p *Preparer) encodeACL(r *Request) (AccessList, Code) {
	acl := r.ACL
	if len(acl) == 1 && acl[0].Perms == PermAll && acl[0].Scheme == "world" && acl[0].ID == "anyone" {
		return "", CodeOK
	}
	rules := aclRules{digest: !p.opt.DigestDisabled, x509: p.opt.X509, sasl: p.opt.SASL}
	list, code := rules.normalizeACL(acl, r.Auth)
	if code != CodeOK {
		return "", code
	}
	p.acl = appendACL(p.acl[:0], list)
	switch string(p.acl) {
	case encodedOpenACL:
		return "", CodeOK
	case encodedReadACL:
		return AccessList(encodedReadACL), CodeOK
	}
	if rec, ok := p.cur.aclNumbers.get(stringOf(p.acl)); ok {
		return AccessList(recKey(rec)), CodeOK
	}
	return AccessList(p.acl), CodeOK
}

// bytes returns the form that a transaction carries: nil is the open list.
func (l AccessList) bytes() []byte {
	if l == "" {
		return nil
	}
	return bytesOf(string(l))
}

// deletablePath makes the checks of a path that is to be deleted.
func deletablePath(path string) bool {
	return strings.IndexByte(path, '/') >= 0 && strings.IndexByte(path, 0) < 0 && !isBuiltin(path)
}

// delete follows zookeeper-protocol 3.4.
func (p *Preparer) delete(dst []byte, z Zxid, r *Request) ([]byte, Code) {
	path := r.Path
	if !deletablePath(path) {
		return dst, CodeBadArguments
	}
	parentPath := parentOf(path)
	parent := p.facts(parentPath)
	if !parent.exists {
		return dst, CodeNoNode
	}
	if !p.may(r, parent.acl, PermDelete) {
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
	p.removed(path, n, parentPath, parent, z)
	return appendTxnOp(dst, &TxnOp{Op: OpDelete, Path: path}), CodeOK
}

// removed records that transaction z removes the node n.
func (p *Preparer) removed(path string, n nodeFacts, parentPath string, parent nodeFacts, z Zxid) {
	parent.children--
	p.setNode(parentPath, parent, z, 0)
	p.setNode(path, nodeFacts{}, z, 0)
	p.quotaRemoved(path, int64(n.dataLen), z)
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
	case !p.may(r, n.acl, PermWrite):
		return dst, CodeNoAuth
	case p.overQuota(r.Path, 0, int64(len(r.Data))-int64(n.dataLen)):
		return dst, CodeQuotaExceeded
	case !versionMatches(r.Version, n.version):
		return dst, CodeBadVersion
	}
	was := n.dataLen
	n.version, n.dataLen, n.mtime = nextVersion(n.version), int32(len(r.Data)), p.now
	p.setNode(r.Path, n, z, 0)
	p.quotaWritten(r.Path, r.Data, was, z)
	return appendTxnOp(dst, &TxnOp{Op: OpSetData, Path: r.Path, Data: r.Data, Version: n.version}), CodeOK
}

// setACL follows zookeeper-protocol 3.4.
func (p *Preparer) setACL(dst []byte, z Zxid, r *Request) ([]byte, Code) {
	if !validPath(r.Path) {
		return dst, CodeBadArguments
	}
	list, code := p.encodeACL(r)
	if code != CodeOK {
		return dst, code
	}
	n := p.facts(r.Path)
	switch {
	case !n.exists:
		return dst, CodeNoNode
	case !p.may(r, n.acl, PermAdmin):
		return dst, CodeNoAuth
	case !versionMatches(r.Version, n.aversion):
		return dst, CodeBadVersion
	}
	n.aversion, n.acl = nextVersion(n.aversion), list
	p.setNode(r.Path, n, z, 0)
	return appendTxnOp(dst, &TxnOp{Op: OpSetACL, Path: r.Path, ACL: list.bytes(), Version: n.aversion}), CodeOK
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
	case !p.may(r, n.acl, PermRead):
		return dst, CodeNoAuth
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
			p.removed(path, n, parentPath, p.facts(parentPath), z)
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
	n.version, n.dataLen = r.Version, int32(len(r.Data))
	p.setNode(ConfigPath, n, z, 0)
	return appendTxnOp(dst, &TxnOp{Op: OpSetConfig, Data: r.Data, Version: r.Version}), CodeOK
}
