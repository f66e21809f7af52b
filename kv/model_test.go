package kv

import (
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"sort"
	"strconv"
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
	opt      PreparerOptions
}

type modelNode struct {
	data    []byte
	acl     []ACL
	stat    Stat // Cversion, DataLength, NumChildren are computed
	creates int32

	container bool
	ttl       int64
}

func newModel(opt PreparerOptions) *model {
	m := &model{nodes: map[string]*modelNode{}, sessions: map[SessionID]Session{}, opt: opt}
	for _, p := range []string{"/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"} {
		m.nodes[p] = &modelNode{data: []byte{}, acl: []ACL{{31, "world", "anyone"}}}
	}
	m.nodes["/zookeeper/config"].acl = []ACL{{1, "world", "anyone"}}
	m.nodes["/zookeeper/config"].stat.Aversion = -1
	return m
}

func (m *model) clone() *model {
	c := &model{map[string]*modelNode{}, map[SessionID]Session{}, m.levels, m.opt}
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

func modelACL(list []ACL, c Credentials) ([]ACL, bool) {
	var unique, out []ACL
	for _, a := range list {
		if !slices.Contains(unique, a) {
			unique = append(unique, a)
		}
	}
	for _, a := range unique {
		switch {
		case a.Scheme == "world" && a.ID == "anyone", a.Scheme == "digest" && strings.Count(a.ID, ":") == 1:
			out = append(out, a)
		case a.Scheme == "auth":
			n := len(out)
			for _, id := range c.Identities() {
				if id.Scheme == "digest" {
					out = append(out, ACL{a.Perms, id.Scheme, id.ID})
				}
			}
			if len(out) == n {
				return nil, false
			}
		case a.Scheme == "ip":
			if _, _, err := net.ParseCIDR(a.ID); err != nil {
				return nil, false
			}
			out = append(out, a)
		default:
			return nil, false
		}
	}
	return out, len(out) > 0
}

// modelAllows says whether credentials pass a list.
func modelAllows(list []ACL, c Credentials, perms int32) bool {
	for _, id := range c.Identities() {
		if id.Scheme == "super" {
			return true
		}
	}
	for _, a := range list {
		if a.Perms&perms == 0 {
			continue
		}
		if a.Scheme == "world" {
			return true
		}
		for _, id := range c.Identities() {
			if id.Scheme != a.Scheme {
				continue
			}
			if a.Scheme == "ip" {
				if _, network, err := net.ParseCIDR(a.ID); err == nil && network.Contains(net.ParseIP(id.ID)) {
					return true
				}
			} else if id.ID == a.ID {
				return true
			}
		}
	}
	return false
}

func (m *model) may(r *Request, list []ACL, perms int32) bool {
	return r.Session == 0 || m.opt.SkipACL || modelAllows(list, r.Auth, perms)
}

// modelText reads the text of a quota node: a map, with nil for what cannot be read.
func modelText(data []byte) map[string]int64 {
	text := strings.TrimRight(string(data), ",;")
	out := map[string]int64{}
	if len(data) > 1024 {
		return nil
	}
	if text == "" {
		return out
	}
	for _, pair := range regexp.MustCompile("[,;]+").Split(text, -1) {
		f := strings.Split(strings.TrimRight(pair, "="), "=")
		if len(f) < 2 {
			return nil
		}
		if f[1] == "" {
			f[1] = "-1"
		}
		n, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			return nil
		}
		out[f[0]] = n
	}
	return out
}

func modelFigure(text map[string]int64, key string) int64 {
	if n, ok := text[key]; ok {
		return n
	}
	return -1
}

// quota returns the deepest path with a quota that holds for path, empty if there is none.
func (m *model) quota(path string) string {
	for p := path; p != "/"; p = modelParent(p) {
		if m.nodes["/zookeeper/quota"+p+"/zookeeper_limits"] != nil {
			return p
		}
	}
	return ""
}

func (m *model) charge(path string, count, bytes int) {
	q := m.quota(path)
	stats := m.nodes["/zookeeper/quota"+q+"/zookeeper_stats"]
	if q == "" || stats == nil {
		return
	}
	text := modelText(stats.data)
	if text == nil {
		return
	}
	text["count"] = modelFigure(text, "count") + int64(count)
	text["bytes"] = modelFigure(text, "bytes") + int64(bytes)
	out := fmt.Sprintf("count=%d,bytes=%d", text["count"], text["bytes"])
	keys := slices.Sorted(maps.Keys(text))
	keys = slices.DeleteFunc(keys, func(k string) bool { return k == "count" || k == "bytes" })
	for i, k := range keys {
		if i == 0 {
			out += "="
		}
		out += fmt.Sprintf(";%s=%d", k, text[k])
	}
	stats.data = []byte(out)
}

func (m *model) overQuota(path string, count, bytes int) bool {
	q := m.quota(path)
	if !m.opt.EnforceQuota || q == "" {
		return false
	}
	stats := m.nodes["/zookeeper/quota"+q+"/zookeeper_stats"]
	if stats == nil {
		return false
	}
	limits, used := modelText(m.nodes["/zookeeper/quota"+q+"/zookeeper_limits"].data), modelText(stats.data)
	if limits == nil || used == nil {
		return false
	}
	over := func(more int, key, limit string) bool {
		l := modelFigure(limits, limit)
		return more != 0 && l >= 0 && modelFigure(used, key)+int64(more) > l
	}
	return over(count, "count", "countHardLimit") || over(bytes, "bytes", "byteHardLimit")
}

// created does what quotas need after a create.
func (m *model) created(path string, bytes int) {
	if p, ok := strings.CutSuffix(path, "/zookeeper_stats"); ok && strings.HasPrefix(path, "/zookeeper/quota/") {
		p = strings.TrimPrefix(p, "/zookeeper/quota")
		count, sum := 0, 0
		for q, n := range m.nodes {
			if q == p || strings.HasPrefix(q, p+"/") {
				count++
				sum += len(n.data)
			}
		}
		m.nodes[path].data = fmt.Appendf(nil, "count=%d,bytes=%d", count, sum)
	}
	m.charge(path, 1, bytes)
}

func (m *model) remove(path string, z Zxid) {
	n := m.nodes[path]
	delete(m.nodes, path)
	m.nodes[modelParent(path)].stat.Pzxid = z
	m.charge(path, -1, -len(n.data))
}

// reapable says whether the leader may remove a node.
func (m *model) reapable(path string, now, neverUsed int64) bool {
	n := m.nodes[path]
	if n == nil || len(m.children(path)) > 0 {
		return false
	}
	age := now - n.stat.Mtime
	return n.container && (n.creates > 0 || neverUsed > 0 && age > neverUsed) || n.ttl > 0 && age > n.ttl
}

func modelCreate(o Op) bool {
	return o == OpCreate || o == OpCreate2 || o == OpCreateContainer || o == OpCreateTTL
}

// do carries out a request under z and returns what the client must be told.
func (m *model) do(z Zxid, now int64, r *Request) Result {
	if r.Op == OpCheck || r.Op == OpDeleteContainer && r.Session != 0 {
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
		known := modelCreate(o.Op) || o.Op == OpDelete || o.Op == OpSetData || o.Op == OpCheck
		if !known || modelCreate(o.Op) && (o.Flags < 0 || o.Flags > 6) {
			out.Code = CodeMarshallingError
			return out
		}
	}
	if _, ok := m.sessions[r.Session]; !ok && r.Session != 0 && !r.Local {
		out.Code = CodeSessionExpired
		return out
	}
	c := m.clone()
	for i, o := range r.Ops {
		o.Session, o.Auth, o.Local = r.Session, r.Auth, r.Local
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
	if modelCreate(r.Op) {
		if r.Flags < 0 || r.Flags > 6 {
			return fail(CodeBadArguments)
		}
		if r.Flags > 4 && !m.opt.ExtendedTypes {
			return fail(CodeUnimplemented)
		}
		if (r.Flags > 4) != (r.Op == OpCreateTTL) || r.Op == OpCreateTTL && (r.TTL < 1 || r.TTL >= 1<<40) {
			return fail(CodeBadArguments)
		}
	}
	if client && !sessionOpen && r.Session != 0 && !r.Local {
		return fail(CodeSessionExpired)
	}
	if modelCreate(r.Op) && r.Local && (r.Flags == 1 || r.Flags == 3) {
		return fail(CodeEphemeralOnLocalSession)
	}
	parent := m.nodes[modelParent(r.Path)]
	n := m.nodes[r.Path]
	switch r.Op {
	case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL:
		if !strings.Contains(r.Path, "/") || strings.Contains(r.Path, "\x00") {
			return fail(CodeBadArguments)
		}
		acl, ok := modelACL(r.ACL, r.Auth)
		if !ok {
			return fail(CodeInvalidACL)
		}
		if parent == nil {
			return fail(CodeNoNode)
		}
		if !m.may(r, parent.acl, 4) {
			return fail(CodeNoAuth)
		}
		path := r.Path
		if r.Flags == 2 || r.Flags == 3 || r.Flags == 6 {
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
		if m.overQuota(path, 1, len(r.Data)) {
			return fail(CodeQuotaExceeded)
		}
		n = &modelNode{data: r.Data, acl: acl, container: r.Op == OpCreateContainer}
		if r.Op == OpCreateTTL {
			n.ttl = r.TTL
		}
		n.stat = Stat{Czxid: z, Mzxid: z, Pzxid: z, Ctime: now, Mtime: now}
		if !n.container && (r.Flags == 1 || r.Flags == 3) {
			if r.Session == 0 {
				return fail(CodeSessionExpired)
			}
			n.stat.EphemeralOwner = r.Session
		}
		m.nodes[path] = n
		parent.creates++
		parent.stat.Pzxid = z
		res.Path, res.Stat = path, m.stat(path)
		m.created(path, len(r.Data))
	case OpDelete, OpDeleteContainer:
		if !strings.Contains(r.Path, "/") || strings.Contains(r.Path, "\x00") || r.Path == "/" ||
			r.Path == "/zookeeper" || r.Path == "/zookeeper/quota" || r.Path == "/zookeeper/config" {
			return fail(CodeBadArguments)
		}
		if parent == nil {
			return fail(CodeNoNode)
		}
		if r.Op == OpDelete && !m.may(r, parent.acl, 8) {
			return fail(CodeNoAuth)
		}
		if n == nil {
			return fail(CodeNoNode)
		}
		if r.Op == OpDelete && r.Version != -1 && r.Version != n.stat.Version {
			return fail(CodeBadVersion)
		}
		if len(m.children(r.Path)) > 0 {
			return fail(CodeNotEmpty)
		}
		if r.Op == OpDeleteContainer && !m.reapable(r.Path, now, r.TTL) {
			return fail(CodeBadVersion)
		}
		m.remove(r.Path, z)
	case OpSetData, OpSetACL, OpCheck:
		if !modelPathOK(r.Path) {
			return fail(CodeBadArguments)
		}
		acl, aclOK := modelACL(r.ACL, r.Auth)
		if r.Op == OpSetACL && !aclOK {
			return fail(CodeInvalidACL)
		}
		if n == nil {
			return fail(CodeNoNode)
		}
		if !m.may(r, n.acl, map[Op]int32{OpCheck: 1, OpSetData: 2, OpSetACL: 16}[r.Op]) {
			return fail(CodeNoAuth)
		}
		if r.Op == OpSetData && m.overQuota(r.Path, 0, len(r.Data)-len(n.data)) {
			return fail(CodeQuotaExceeded)
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
			more := len(r.Data) - len(n.data)
			n.data = r.Data
			n.stat.Version++
			n.stat.Mzxid, n.stat.Mtime = z, now
			res.Stat = m.stat(r.Path)
			m.charge(r.Path, 0, more)
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
				m.remove(p, z)
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
