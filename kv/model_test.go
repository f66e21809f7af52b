package kv

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// model is the tree written as plainly as possible: maps, whole copies for rollback, one request after the other.
// It shares no code with the package but the types of requests and results.
type model struct {
	nodes    map[string]*modelNode
	sessions map[SessionID]Session
	levels   Levels
}

type modelNode struct {
	data    []byte
	acl     []ACL
	stat    Stat // Cversion, DataLength, NumChildren are computed
	creates int32
}

func newModel() *model {
	m := &model{nodes: map[string]*modelNode{}, sessions: map[SessionID]Session{}}
	for _, p := range []string{"/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"} {
		m.nodes[p] = &modelNode{data: []byte{}, acl: []ACL{{31, "world", "anyone"}}}
	}
	m.nodes["/zookeeper/config"].acl = []ACL{{1, "world", "anyone"}}
	m.nodes["/zookeeper/config"].stat.Aversion = -1
	return m
}

func (m *model) clone() *model {
	c := &model{map[string]*modelNode{}, map[SessionID]Session{}, m.levels}
	for p, n := range m.nodes {
		k := *n
		c.nodes[p] = &k
	}
	for id, s := range m.sessions {
		c.sessions[id] = s
	}
	return c
}

func modelParent(path string) string {
	if i := strings.LastIndex(path, "/"); i > 0 {
		return path[:i]
	}
	return "/"
}

func (m *model) children(path string) []string {
	names := []string{}
	for p := range m.nodes {
		if p != "/" && modelParent(p) == path {
			names = append(names, p[strings.LastIndex(p, "/")+1:])
		}
	}
	sort.Strings(names)
	return names
}

func (m *model) stat(path string) Stat {
	n := m.nodes[path]
	s := n.stat
	s.DataLength = int32(len(n.data))
	s.NumChildren = int32(len(m.children(path)))
	s.Cversion = 2*n.creates - s.NumChildren
	return s
}

// modelPathOK is the rule in Java's terms: UTF-16 units.
func modelPathOK(p string) bool {
	if p == "" || p[0] != '/' || !utf8.ValidString(p) || len(p) > MaxPathBytes {
		return false
	}
	if p == "/" {
		return true
	}
	for _, c := range strings.Split(p[1:], "/") {
		if c == "" || c == "." || c == ".." {
			return false
		}
		for _, u := range utf16.Encode([]rune(c)) {
			if u <= 0x1f || u >= 0x7f && u <= 0x9f || u >= 0xd800 && u <= 0xf8ff || u >= 0xfff0 {
				return false
			}
		}
	}
	return true
}

func modelACL(list []ACL) ([]ACL, bool) {
	var out []ACL
	for _, a := range list {
		if a.Scheme == "world" && a.ID != "anyone" || a.Scheme != "world" && a.Scheme != "digest" {
			return nil, false
		}
		if a.Scheme == "digest" && strings.Count(a.ID, ":") != 1 {
			return nil, false
		}
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out, len(out) > 0
}

// do carries out a request under z and returns what the client must be told.
func (m *model) do(z Zxid, now int64, r *Request) Result {
	if r.Op == OpCheck || r.Op > OpCreate2 { // not (yet) operations of their own
		return Result{OpResult: OpResult{Op: r.Op, Code: CodeUnimplemented}}
	}
	if r.Op != OpMulti {
		c := m.clone()
		res := c.one(z, now, r)
		if res.Code == CodeOK {
			*m = *c
		}
		return Result{OpResult: res}
	}
	out := Result{OpResult: OpResult{Op: OpMulti}}
	for _, o := range r.Ops {
		known := o.Op == OpCreate || o.Op == OpCreate2 || o.Op == OpDelete || o.Op == OpSetData || o.Op == OpCheck
		if !known || (o.Op == OpCreate || o.Op == OpCreate2) && (o.Flags < 0 || o.Flags > 6) {
			out.Code = CodeMarshallingError
			return out
		}
	}
	if _, ok := m.sessions[r.Session]; !ok && r.Session != 0 {
		out.Code = CodeSessionExpired
		return out
	}
	c := m.clone()
	for i, o := range r.Ops {
		o.Session = r.Session
		res := c.one(z, now, &o)
		out.Ops = append(out.Ops, res)
		if res.Code != CodeOK {
			for j := range r.Ops {
				code := CodeOK
				if j == i {
					code = res.Code
				} else if j > i {
					code = CodeRuntimeInconsistency
				}
				if j < len(out.Ops) {
					out.Ops[j] = OpResult{Op: OpMulti, Code: code}
				} else {
					out.Ops = append(out.Ops, OpResult{Op: OpMulti, Code: code})
				}
			}
			return out
		}
	}
	*m = *c
	return out
}

func (m *model) one(z Zxid, now int64, r *Request) (res OpResult) {
	res.Op = r.Op
	fail := func(c Code) OpResult { return OpResult{Op: r.Op, Code: c} }
	_, sessionOpen := m.sessions[r.Session]
	client := r.Op > 0
	if r.Op == OpCreate || r.Op == OpCreate2 {
		if r.Flags < 0 || r.Flags > 6 {
			return fail(CodeBadArguments)
		}
		if r.Flags > 4 {
			return fail(CodeUnimplemented)
		}
	}
	if client && !sessionOpen && r.Session != 0 {
		return fail(CodeSessionExpired)
	}
	parent := m.nodes[modelParent(r.Path)]
	n := m.nodes[r.Path]
	switch r.Op {
	case OpCreate, OpCreate2:
		if !strings.Contains(r.Path, "/") || strings.Contains(r.Path, "\x00") {
			return fail(CodeBadArguments)
		}
		acl, ok := modelACL(r.ACL)
		if !ok {
			return fail(CodeInvalidACL)
		}
		if parent == nil {
			return fail(CodeNoNode)
		}
		if modelParent(r.Path) == "/zookeeper/config" {
			return fail(CodeNoAuth)
		}
		path := r.Path
		if r.Flags == 2 || r.Flags == 3 {
			path += fmt.Sprintf("%010d", parent.creates)
		}
		if !modelPathOK(path) {
			return fail(CodeBadArguments)
		}
		if m.nodes[path] != nil {
			return fail(CodeNodeExists)
		}
		if parent.stat.EphemeralOwner != 0 {
			return fail(CodeNoChildrenForEphemerals)
		}
		n = &modelNode{data: r.Data, acl: acl}
		n.stat = Stat{Czxid: z, Mzxid: z, Pzxid: z, Ctime: now, Mtime: now}
		if r.Flags == 1 || r.Flags == 3 {
			if r.Session == 0 {
				return fail(CodeSessionExpired)
			}
			n.stat.EphemeralOwner = r.Session
		}
		m.nodes[path] = n
		parent.creates++
		parent.stat.Pzxid = z
		res.Path, res.Stat = path, m.stat(path)
	case OpDelete:
		if !strings.Contains(r.Path, "/") || strings.Contains(r.Path, "\x00") || r.Path == "/" ||
			r.Path == "/zookeeper" || r.Path == "/zookeeper/quota" || r.Path == "/zookeeper/config" {
			return fail(CodeBadArguments)
		}
		if parent == nil {
			return fail(CodeNoNode)
		}
		if modelParent(r.Path) == "/zookeeper/config" {
			return fail(CodeNoAuth)
		}
		if n == nil {
			return fail(CodeNoNode)
		}
		if r.Version != -1 && r.Version != n.stat.Version {
			return fail(CodeBadVersion)
		}
		if len(m.children(r.Path)) > 0 {
			return fail(CodeNotEmpty)
		}
		delete(m.nodes, r.Path)
		parent.stat.Pzxid = z
	case OpSetData, OpSetACL, OpCheck:
		if !modelPathOK(r.Path) {
			return fail(CodeBadArguments)
		}
		acl, aclOK := modelACL(r.ACL)
		if r.Op == OpSetACL && !aclOK {
			return fail(CodeInvalidACL)
		}
		if n == nil {
			return fail(CodeNoNode)
		}
		if r.Op != OpCheck && r.Path == "/zookeeper/config" {
			return fail(CodeNoAuth)
		}
		version := n.stat.Version
		if r.Op == OpSetACL {
			version = n.stat.Aversion
		}
		if r.Version != -1 && r.Version != version {
			return fail(CodeBadVersion)
		}
		switch r.Op {
		case OpSetData:
			n.data = r.Data
			n.stat.Version++
			n.stat.Mzxid, n.stat.Mtime = z, now
			res.Stat = m.stat(r.Path)
		case OpSetACL:
			n.acl = acl
			n.stat.Aversion++
			res.Stat = m.stat(r.Path)
		}
	case OpCreateSession:
		if r.Session == 0 {
			return fail(CodeBadArguments)
		}
		if sessionOpen {
			return fail(CodeSystemError)
		}
		m.sessions[r.Session] = Session{r.Session, r.Timeout, r.Password}
	case OpCloseSession:
		if !sessionOpen {
			return fail(CodeSessionExpired)
		}
		delete(m.sessions, r.Session)
		for p, n := range m.nodes {
			if n.stat.EphemeralOwner == r.Session {
				delete(m.nodes, p)
				m.nodes[modelParent(p)].stat.Pzxid = z
			}
		}
	case OpSetLevels:
		if r.Session != 0 || r.Levels.Protocol < m.levels.Protocol || r.Levels.Format < m.levels.Format {
			return fail(CodeBadArguments)
		}
		m.levels = r.Levels
	case OpSetConfig:
		if r.Session != 0 {
			return fail(CodeNoAuth)
		}
		n = m.nodes["/zookeeper/config"]
		n.data, n.stat.Version = r.Data, r.Version
	}
	return res
}
