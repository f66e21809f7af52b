package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"kvd/kv"
)

// model is a naive tree that follows G, one committed transaction at a time, from what the clients asked for, not from
// what the transactions say. Against it are compared: every answer (C1), and the trees of the members (C4).
type model struct {
	nodes    map[string]modelNode
	sessions map[kv.SessionID]bool
	closed   map[kv.SessionID]bool // ever closed
	answers  map[uint64]answer     // by token
	touched  []change              // by the transaction under way
	changes  []change              // what G has for those who watch, in its order
}

type modelNode struct {
	data      string
	version   int32
	owner     kv.SessionID
	container bool
	ttl       int64 // milliseconds, 0 none
	mtime     int64
	creates   int
	guarded   bool // only who holds guard may change it
}

func parentOf(path string) string { return path[:strings.LastIndexByte(path, '/')] }

// children is the number of children of path.
func (m *model) children(path string) (n int) {
	for p := range m.nodes {
		if parentOf(p) == path {
			n++
		}
	}
	return n
}

// reap follows a removal that the leader decided by itself: only of a container that lost its last child or of a node
// whose time to live is over, and of nothing that has a child.
func (m *model) reap(g *ghost, z kv.Zxid, path string, now int64) {
	n, ok := m.nodes[path]
	overdue := n.container && n.creates > 0 || n.ttl > 0 && now-n.mtime > n.ttl
	if !ok || !overdue || m.children(path) > 0 {
		g.sim.fail("reap", "%v removes %s at %d: there %v, %+v, children %d", z, path, now, ok, n, m.children(path))
	}
	g.sim.happened["removed-by-leader"]++
	delete(m.nodes, path)
	m.deleted(path)
}

type answer struct {
	code    kv.Code
	path    string
	version int32
	zxid    kv.Zxid
	ops     []opAnswer // of a multi
	space   bool       // refused for want of disk space
}

// opAnswer is the answer to one operation of a multi.
type opAnswer struct {
	code    kv.Code
	path    string
	version int32
}

func (m *model) init() {
	*m = model{nodes: map[string]modelNode{}, sessions: map[kv.SessionID]bool{}, closed: map[kv.SessionID]bool{}, answers: map[uint64]answer{}}
}

// commit follows one committed entry. It fails if a request is in G twice (C1), or was decided otherwise than the
// model decides.
func (m *model) commit(g *ghost, e *kv.Entry) {
	s := g.sim
	defer m.history(e.Zxid)
	t, err := kv.DecodeTxn(e.Payload)
	if err != nil {
		s.fail("P17", "%v is committed and cannot be decoded: %v", e.Zxid, err)
		return
	}
	h := &t.Header
	if h.Request == 0 { // the leader's own: the end of a session, or levels
		switch {
		case h.Err != kv.CodeOK:
		case h.Kind == kv.OpCloseSession:
			m.closeSession(h.Session)
		case len(t.Ops) == 1 && (h.Kind == kv.OpDeleteContainer || h.Kind == kv.OpDelete):
			m.reap(g, e.Zxid, t.Ops[0].Path, h.Time)
		}
		return
	}
	op := g.ops[h.Request]
	if op == nil {
		s.fail("C1", "%v is committed for token %d, which nobody submitted", e.Zxid, h.Request)
		return
	}
	if z, ok := g.inG[h.Request]; ok {
		s.fail("C1", "token %d is committed twice, at %v and %v", h.Request, z, e.Zxid)
	}
	if op.Outcome == NotSent || op.never {
		s.fail("C1", "token %d was reported not sent and is committed at %v", h.Request, e.Zxid)
	}
	g.inG[h.Request] = e.Zxid
	g.inOrder(op, e.Zxid, h.Err)
	a := answer{code: h.Err, zxid: e.Zxid}
	if h.Err == kv.CodeSessionMoved {
		if !op.Client.moved {
			s.fail("C1", "token %d at %v: session moved, and it never did", h.Request, e.Zxid)
		}
		m.answers[h.Request] = a
		return
	}
	if h.Err == kv.CodeSystemError && s.lowSpace && op.Request.AddsData() {
		s.happened["refused:space"]++
		a.space = true
		m.answers[h.Request] = a // refused for want of disk space; when that is due is for the leader to know
		return
	}
	finals := make([]string, max(1, len(op.Request.Ops)))
	for i := range t.Ops[:min(len(t.Ops), len(finals))] {
		finals[i] = t.Ops[i].Path
	}
	if op.Request.Op == kv.OpMulti && h.Err != kv.CodeOK { // no numbers were given: any will do, nothing of it stays
		for i := range op.Request.Ops {
			finals[i] = fmt.Sprintf("%s99999999%02d", op.Request.Ops[i].Path, i)
		}
	}
	if op.Request.Op == kv.OpMulti {
		want, ops := m.multi(&op.Request, finals, h.Time)
		if want != h.Err {
			s.fail("C1", "token %d (multi %v) was decided %v at %v, the model says %v", h.Request, op.Request.Ops, h.Err, e.Zxid, want)
		}
		s.happened["multi:"+map[bool]string{true: "done", false: "refused"}[want == kv.CodeOK]]++
		if a.ops = ops; ops != nil {
			a.code = kv.CodeOK // of the header
		}
		m.answers[h.Request] = a
		return
	}
	want, path, version := m.decide(&op.Request, finals[0], h.Time)
	if want != h.Err {
		s.fail("C1", "token %d (%v %s) was decided %v at %v, the model says %v", h.Request, op.Request.Op, op.Request.Path, h.Err, e.Zxid, want)
	}
	a.path, a.version = path, version
	m.answers[h.Request] = a
}

// multi carries out all operations of a multi, or none.
func (m *model) multi(q *kv.Request, finals []string, now int64) (code kv.Code, ops []opAnswer) {
	if !q.Local && !m.sessions[q.Session] {
		return kv.CodeSessionExpired, nil
	}
	before := maps.Clone(m.nodes)
	for i := range q.Ops {
		o := q.Ops[i]
		o.Session, o.Auth, o.Local = q.Session, q.Auth, q.Local
		var a opAnswer
		a.code, a.path, a.version = m.decide(&o, finals[i], now)
		ops = append(ops, a)
		if a.code == kv.CodeOK {
			continue
		}
		m.nodes, m.touched = before, m.touched[:0]
		for j := range ops {
			if j < i {
				ops[j] = opAnswer{}
			}
		}
		for len(ops) < len(q.Ops) {
			ops = append(ops, opAnswer{code: kv.CodeRuntimeInconsistency})
		}
		return a.code, ops
	}
	return kv.CodeOK, ops
}

// decide carries out one request. final is the path that the transaction gave to a sequential node: which number it is
// does not matter to the model, only that it is new.
func (m *model) decide(q *kv.Request, final string, now int64) (kv.Code, string, int32) {
	switch q.Op {
	case kv.OpCreateSession:
		if m.sessions[q.Session] {
			return kv.CodeSystemError, "", 0
		}
		m.sessions[q.Session] = true
		return kv.CodeOK, "", 0
	case kv.OpCloseSession:
		if !m.sessions[q.Session] {
			return kv.CodeSessionExpired, "", 0
		}
		m.closeSession(q.Session)
		return kv.CodeOK, "", 0
	}
	ephemeral := q.Op == kv.OpCreate && (q.Flags == kv.FlagEphemeral || q.Flags == kv.FlagEphemeralSequential)
	switch {
	case !q.Local && !m.sessions[q.Session]:
		return kv.CodeSessionExpired, "", 0
	case q.Local && ephemeral:
		return kv.CodeEphemeralOnLocalSession, "", 0
	}
	n, exists := m.nodes[q.Path]
	parentPath := parentOf(q.Path)
	parent, hasParent := m.nodes[parentPath]
	denied := n.guarded && q.Auth == ""
	switch q.Op {
	case kv.OpCreate, kv.OpCreateContainer, kv.OpCreateTTL:
		if !hasParent && parentPath != "" {
			return kv.CodeNoNode, "", 0
		}
		path := q.Path
		if q.Flags == kv.FlagEphemeralSequential {
			if !strings.HasPrefix(final, path) || len(final) != len(path)+10 {
				return kv.CodeSystemError, "", 0
			}
			path = final
			_, exists = m.nodes[path]
		}
		if exists {
			return kv.CodeNodeExists, "", 0
		}
		n = modelNode{data: string(q.Data), mtime: now, container: q.Op == kv.OpCreateContainer, guarded: len(q.ACL) > 1}
		if q.Op == kv.OpCreateTTL {
			n.ttl = q.TTL
		}
		if ephemeral {
			n.owner = q.Session
		}
		m.nodes[path] = n
		m.created(path)
		if hasParent {
			parent.creates++
			m.nodes[parentPath] = parent
		}
		return kv.CodeOK, path, 0
	case kv.OpSetData:
		switch {
		case !exists:
			return kv.CodeNoNode, "", 0
		case denied:
			return kv.CodeNoAuth, "", 0
		case q.Version >= 0 && q.Version != n.version:
			return kv.CodeBadVersion, "", 0
		}
		n.data, n.mtime = string(q.Data), now
		n.version++
		m.nodes[q.Path] = n
		m.updated(q.Path)
		return kv.CodeOK, "", n.version
	case kv.OpSetACL:
		switch {
		case !exists:
			return kv.CodeNoNode, "", 0
		case denied:
			return kv.CodeNoAuth, "", 0
		}
		n.guarded = len(q.ACL) > 1
		m.nodes[q.Path] = n
		return kv.CodeOK, "", 0
	case kv.OpDelete:
		switch {
		case !exists:
			return kv.CodeNoNode, "", 0
		case q.Version >= 0 && q.Version != n.version:
			return kv.CodeBadVersion, "", 0
		case m.children(q.Path) > 0:
			return kv.CodeNotEmpty, "", 0
		}
		delete(m.nodes, q.Path)
		m.deleted(q.Path)
		return kv.CodeOK, "", 0
	case kv.OpCheck:
		switch {
		case !exists:
			return kv.CodeNoNode, "", 0
		case q.Version >= 0 && q.Version != n.version:
			return kv.CodeBadVersion, "", 0
		}
		return kv.CodeOK, "", 0
	}
	return kv.CodeUnimplemented, "", 0
}

// closeSession removes a session and all that it owns, at one zxid (C4).
func (m *model) closeSession(id kv.SessionID) {
	if !m.sessions[id] {
		return
	}
	delete(m.sessions, id)
	m.closed[id] = true
	for path, n := range m.nodes {
		if n.owner == id {
			delete(m.nodes, path)
			m.deleted(path)
		}
	}
}

// answered is C1 for one answer: what the client was told is what the model decided at that zxid.
func (g *ghost) answered(op *Op) {
	a, ok := g.model.answers[op.Token]
	switch {
	case !ok:
		g.sim.fail("C1", "token %d was answered with %v and is not committed", op.Token, op.Zxid)
	case op.Request.Op == kv.OpMulti && !a.space:
		if a.zxid != op.Zxid || a.code != op.Code || !slices.Equal(a.ops, op.Results) {
			g.sim.fail("C1", "token %d was answered (%v %v %v), the model says (%v %v %v)", op.Token, op.Zxid, op.Code, op.Results, a.zxid, a.code, a.ops)
		}
	case a.zxid != op.Zxid || !a.space && a.code != op.Code || a.version != op.Version && op.Code == kv.CodeOK && op.Request.Op == kv.OpSetData ||
		a.path != op.Path && op.Code == kv.CodeOK && op.Request.Op == kv.OpCreate:
		g.sim.fail("C1", "token %d was answered (%v %v %q %d), the model says (%v %v %q %d)", op.Token, op.Zxid, op.Code, op.Path, op.Version, a.zxid, a.code, a.path, a.version)
	}
}

// gone is C4 for a session that a client is told is dead: its end is committed.
func (g *ghost) gone(c *Client) {
	if c.upgrade != nil && c.upgrade.Outcome != OK {
		return // it left while its local session was being made global: that may still happen, and then the session is left to expire
	}
	if g.model.sessions[c.session] {
		g.sim.fail("C4", "client %d is told that its session %v is gone, and no end of it is committed", c.ID, c.session)
	}
}

// compareTree is C4 and P20 at rest: the tree of a member that has applied all of G equals the model.
func (g *ghost) compareTree(m *Member) {
	v, s := m.tree.View(), g.sim
	seen := 0
	var walk func(path string) bool
	walk = func(path string) bool {
		names, _, err := v.Children(path, nil)
		if err != nil {
			s.fail("C4", "member %d: children of %s: %v", m.ID, path, err)
			return false
		}
		for _, name := range names {
			child := strings.TrimSuffix(path, "/") + "/" + name
			if child == "/zookeeper" {
				continue
			}
			seen++
			data, stat, err := v.Get(child)
			list, _, _ := v.ACL(child)
			n, ok := g.model.nodes[child]
			if err != nil || !ok || string(data) != n.data || stat.Version != n.version || stat.EphemeralOwner != n.owner || (len(list) > 1) != n.guarded {
				s.fail("C4", "member %d: %s is %q %+v, the model has %v %+v (%v)", m.ID, child, data, stat, ok, n, err)
				return false
			}
			if !walk(child) {
				return false
			}
		}
		return true
	}
	if !walk("/") {
		return
	}
	if seen != len(g.model.nodes) {
		s.fail("C4", "member %d has %d nodes, the model %d", m.ID, seen, len(g.model.nodes))
	}
	var ids []kv.SessionID
	v.Sessions(func(x kv.Session) bool { ids = append(ids, x.ID); return true })
	if len(ids) != len(g.model.sessions) || slices.ContainsFunc(ids, func(id kv.SessionID) bool { return !g.model.sessions[id] }) {
		s.fail("C4", "member %d has the sessions %v, the model has %d", m.ID, ids, len(g.model.sessions))
	}
}
