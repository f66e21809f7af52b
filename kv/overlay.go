package kv

// The overlay is what Prepare knows beyond the view: the effects of transactions that have been prepared but not
// applied yet. (ZooKeeper: outstandingChanges.) Since a view carries its zxid, an overlay is simply "the changes
// newer than that", and no lock spans the leader's loop and the applier.

// nodeFacts are what the checks of a request need to know about a node.
type nodeFacts struct {
	exists   bool
	version  int32
	aversion int32
	creates  int32
	children int32
	owner    Owner
	dataLen  int32
	mtime    int64
	acl      AccessList
}

// facts returns the facts of the node of path in a state.
func (s *state) facts(path string) nodeFacts {
	var n node
	if !s.node(path, &n) {
		return nodeFacts{}
	}
	f := s.family(path, &n)
	return nodeFacts{
		exists: true, version: n.version, aversion: n.aversion, creates: f.creates, children: f.children,
		owner: n.owner, dataLen: int32(len(n.data)), mtime: n.mtime, acl: s.access(n.acl),
	}
}

// pendingNode is a node as the newest prepared transaction that touches it leaves it.
type pendingNode struct {
	facts nodeFacts
	zxid  Zxid
}

// pendingSession is a session that a prepared transaction makes, closes, or creates ephemeral nodes for.
type pendingSession struct {
	zxid Zxid
	open bool
	made *Session // by the transaction that makes it, if that is not applied yet
	// created are the paths of ephemeral nodes prepared for the session, oldest first; some may be gone again.
	created []string
}

// mark is an entry of the list by which the overlay is trimmed.
type mark struct {
	zxid    Zxid
	path    string    // a node, if not empty
	session SessionID // a session, or the owner of an ephemeral node that was made
}

// overlay holds the pending facts, the marks in zxid order by which they are dropped once applied, and the undo
// list of the transaction being prepared.
type overlay struct {
	nodes    map[string]pendingNode
	sessions map[SessionID]*pendingSession
	quotas   map[string]pendingQuota // nil until a quota is charged; those at or before applied count no more
	levels   Levels                  // the newest prepared ones
	levelsAt Zxid
	marks    []mark // marks[head:] are live
	head     int
	applied  Zxid // of the view at the last trim

	quotaAt    Zxid // of the newest transaction that made a quota
	quotaSweep int  // size of quotas at which it is swept

	undo []undoEntry
}

// undoEntry restores one pending fact: that of a node, unless more is set. Every request makes some, so what is rare is
// kept apart.
type undoEntry struct {
	path string
	node pendingNode // zxid 0: there was none
	more *undoMore
}

// undoMore restores a session, a quota (of path), or else the levels.
type undoMore struct {
	session  SessionID
	had      bool
	was      pendingSession // without created, which only ever grows within one transaction
	created  int
	quota    *pendingQuota
	levels   Levels
	levelsAt Zxid
}

func (o *overlay) init() {
	o.nodes = make(map[string]pendingNode)
	o.sessions = make(map[SessionID]*pendingSession)
	o.quotas = nil
	o.levels, o.levelsAt = Levels{}, 0
	o.applied, o.quotaAt = 0, 0
	o.marks, o.head = nil, 0
	o.undo = nil
}

// trim drops everything that a view at zxid z shows.
func (o *overlay) trim(z Zxid) {
	o.applied = z
	for o.head < len(o.marks) && o.marks[o.head].zxid <= z {
		m := &o.marks[o.head]
		o.head++
		if m.path != "" {
			if p, ok := o.nodes[m.path]; ok && p.zxid <= z {
				delete(o.nodes, m.path)
			}
		}
		if m.session != 0 {
			if s := o.sessions[m.session]; s != nil {
				if m.path != "" && len(s.created) > 0 {
					s.created[0] = ""
					s.created = s.created[1:]
				}
				if s.zxid <= z {
					delete(o.sessions, m.session)
				}
			}
		}
		*m = mark{}
	}
	switch {
	case o.head == len(o.marks):
		o.marks, o.head = o.marks[:0], 0
		o.quotas = nil
		if cap(o.marks) > 1<<16 { // maps and lists do not shrink by themselves
			o.marks, o.undo = nil, nil
			if len(o.nodes) == 0 {
				o.nodes = make(map[string]pendingNode)
			}
			if len(o.sessions) == 0 {
				o.sessions = make(map[SessionID]*pendingSession)
			}
		}
	case o.head > 1024 && o.head > len(o.marks)/2:
		n := copy(o.marks, o.marks[o.head:])
		clear(o.marks[n:])
		o.marks, o.head = o.marks[:n], 0
	}
	o.forgetUndo()
}

func (o *overlay) forgetUndo() {
	clear(o.undo)
	o.undo = o.undo[:0]
}

// setNode records how transaction z leaves a node. owner is the session if z makes an ephemeral node there.
func (o *overlay) setNode(path string, f nodeFacts, z Zxid, owner SessionID) {
	path = watchPath(path)
	o.undo = append(o.undo, undoEntry{path: path, node: o.nodes[path]})
	o.nodes[path] = pendingNode{f, z}
	o.marks = append(o.marks, mark{zxid: z, path: path, session: owner})
	if owner != 0 {
		s := o.session(owner, true)
		s.zxid = z
		s.created = append(s.created, path)
	}
}

// session returns the pending facts of a session for changing, first noting how to undo that. open is the state
// of a session that has none yet.
func (o *overlay) session(id SessionID, open bool) *pendingSession {
	s, had := o.sessions[id]
	if !had {
		s = &pendingSession{open: open}
		o.sessions[id] = s
	}
	o.undo = append(o.undo, undoEntry{more: &undoMore{session: id, had: had, was: *s, created: len(s.created)}})
	return s
}

// setSession records that transaction z opens or closes a session.
func (o *overlay) setSession(id SessionID, open bool, z Zxid) {
	s := o.session(id, open)
	s.open, s.zxid = open, z
	o.marks = append(o.marks, mark{zxid: z, session: id})
}

func (o *overlay) setLevels(l Levels, z Zxid) {
	o.undo = append(o.undo, undoEntry{more: &undoMore{levels: o.levels, levelsAt: o.levelsAt}})
	o.levels, o.levelsAt = l, z
}

// setQuota records how transaction z leaves the quota of a prefix.
func (o *overlay) setQuota(prefix string, f quotaFacts, z Zxid) {
	was := o.quotas[prefix]
	o.undo = append(o.undo, undoEntry{path: prefix, more: &undoMore{quota: &was}})
	if o.quotas == nil {
		o.quotas = make(map[string]pendingQuota)
		o.quotaSweep = 1024
	}
	if len(o.quotas) >= o.quotaSweep { // never idle: those that are applied have to be looked for
		for p, q := range o.quotas {
			if q.zxid <= o.applied && p != prefix {
				delete(o.quotas, p)
			}
		}
		o.quotaSweep = max(1024, 2*len(o.quotas))
	}
	o.quotas[prefix] = pendingQuota{f, z}
}

// rollback undoes everything since the undo list was empty. Marks of z are at the end of the list.
func (o *overlay) rollback(z Zxid) {
	for i := len(o.undo) - 1; i >= 0; i-- {
		u := &o.undo[i]
		switch {
		case u.more != nil:
			o.undoMore(u.path, u.more)
		case u.node.zxid == 0:
			delete(o.nodes, u.path)
		default:
			o.nodes[u.path] = u.node
		}
	}
	o.forgetUndo()
	for n := len(o.marks); n > o.head && o.marks[n-1].zxid == z; n-- {
		o.marks[n-1] = mark{}
		o.marks = o.marks[:n-1]
	}
}

func (o *overlay) undoMore(path string, u *undoMore) {
	switch {
	case u.session != 0 && !u.had:
		delete(o.sessions, u.session)
	case u.session != 0:
		s := o.sessions[u.session]
		clear(s.created[u.created:])
		s.open, s.zxid, s.made, s.created = u.was.open, u.was.zxid, u.was.made, s.created[:u.created]
	case u.quota != nil && u.quota.zxid == 0:
		delete(o.quotas, path)
	case u.quota != nil:
		o.quotas[path] = *u.quota
	default:
		o.levels, o.levelsAt = u.levels, u.levelsAt
	}
}
