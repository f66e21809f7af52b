package main

import (
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Permissions (protocol 4.2).
const (
	permRead  = 1
	permAdmin = 16
)

type identity struct{ scheme, id string }

// conn is one client connection to each of the two sides.
type conn struct {
	slot   int
	member int
	sides  [2]*raw
	ids    []identity
	super  bool
	dead   bool
	// items of this step, by side, not yet accounted for.
	items [2][]item
}

// session is what a slot holds.
type session struct {
	alive    bool
	ids      [2]int64
	password [2][]byte
	conn     *conn // nil: cut
	former   *conn // of a session that moved to another member, until that one is closed
}

// aclEntry is an entry as a server stores it. Entries of one group come from the same `auth` entry; their order
// means nothing (protocol 9.4).
type aclEntry struct {
	perms int32
	identity
	group int
}

type node struct {
	acl          []aclEntry
	owner        int // slot, -1: nobody's
	container    bool
	mzxid, pzxid int64 // ZooKeeper's
}

// change is one change of a node, as watches see it.
type change struct {
	typ            int32
	path           string
	acl, parentACL []aclEntry
}

// model is what the tester knows of the state that ZooKeeper's answers imply.
type model struct {
	nodes    map[string]*node
	sessions map[int]*session
	conns    []*conn
	old, new *watchState // as 3.8 has them, and as 3.9
	// standIns are the IPv4 addresses that stand for IPv6 ones at ZooKeeper.
	standIns map[string]string
	groups   int
	hits     map[string]int // of the rules that are differences between old and new
}

var open = []aclEntry{{31, identity{"world", "anyone"}, 0}}

func newModel() *model {
	m := &model{
		nodes: map[string]*node{}, hits: map[string]int{}, sessions: map[int]*session{}, standIns: map[string]string{},
		old: newWatchState(true), new: newWatchState(false),
	}
	for _, p := range []string{"/", "/zookeeper", "/zookeeper/quota"} {
		m.nodes[p] = &node{acl: open, owner: -1}
	}
	m.nodes["/zookeeper/config"] = &node{acl: []aclEntry{{1, identity{"world", "anyone"}, 0}}, owner: -1}
	return m
}

// lookup finds a node; "" is another name of the root.
func (m *model) lookup(path string) *node { return m.nodes[builtinKey(path)] }

func parentOf(path string) string {
	i := strings.LastIndexByte(path, '/')
	if i <= 0 {
		return "/"
	}
	return path[:i]
}

// may checks a list (protocol 9.3).
func (c *conn) may(perms int32, acl []aclEntry) bool {
	if c.super {
		return true
	}
	for _, e := range acl {
		if e.perms&perms == 0 {
			continue
		}
		if e.identity == (identity{"world", "anyone"}) || slices.Contains(c.ids, e.identity) {
			return true
		}
		if e.scheme == "ip" && matchesLoopback(e.id) {
			return true
		}
	}
	return false
}

// matchesLoopback: every client of the tester comes from 127.0.0.1.
func matchesLoopback(id string) bool {
	own := netip.MustParseAddr("127.0.0.1")
	if p, err := netip.ParsePrefix(id); err == nil {
		return p.Contains(own)
	}
	a, err := netip.ParseAddr(id)
	return err == nil && a == own
}

// digestIdentity is protocol 9.2.
func digestIdentity(auth string) identity {
	user, _, _ := strings.Cut(auth, ":")
	sum := sha1.Sum([]byte(auth))
	return identity{"digest", user + ":" + base64.StdEncoding.EncodeToString(sum[:])}
}

const superDigest = "super:xQJmxLMiHGwaqBvst5y6rkB6HQs="

// authenticate adds what an accepted auth request gives.
func (c *conn) authenticate(r *Request) {
	if r.Scheme == nil || *r.Scheme != "digest" {
		return
	}
	id := digestIdentity(string(r.Data))
	c.ids = append(c.ids, id)
	if id.id == superDigest {
		c.super = true
	}
}

// stored turns a list that was accepted into what is stored (protocol 9.4).
func (m *model) stored(c *conn, l []ACL) []aclEntry {
	var out []aclEntry
	seen := map[string]bool{}
	for _, a := range l {
		if a.Scheme == nil || a.ID == nil {
			continue
		}
		key := fmt.Sprintf("%d %s %s", a.Perms, *a.Scheme, *a.ID)
		if seen[key] {
			continue
		}
		seen[key] = true
		if *a.Scheme != "auth" {
			out = append(out, aclEntry{a.Perms, identity{string(*a.Scheme), string(*a.ID)}, 0})
			continue
		}
		m.groups++
		var had []identity
		for _, id := range c.ids {
			if id.scheme == "digest" && !slices.Contains(had, id) {
				out = append(out, aclEntry{a.Perms, id, m.groups})
				had = append(had, id)
			}
		}
	}
	return out
}

func (m *model) create(c *conn, r *Request, path string, zxid int64) change {
	n := &node{acl: m.stored(c, r.ACL), owner: -1, mzxid: zxid, pzxid: zxid}
	if (r.Op == opCreate || r.Op == opCreate2) && r.Flags&1 != 0 && r.Flags < 4 {
		n.owner = c.slot
	}
	n.container = r.Op == opCreateContainer
	m.nodes[path] = n
	ch := change{typ: nodeCreated, path: path, acl: n.acl}
	if p := m.nodes[parentOf(path)]; p != nil {
		p.pzxid = zxid
		ch.parentACL = p.acl
	}
	return ch
}

func (m *model) remove(path string, zxid int64) change {
	ch := change{typ: nodeDeleted, path: path}
	if n := m.nodes[path]; n != nil {
		ch.acl = n.acl
	}
	delete(m.nodes, path)
	if p := m.nodes[parentOf(path)]; p != nil {
		p.pzxid = zxid
		ch.parentACL = p.acl
	}
	return ch
}

func (m *model) write(c *conn, r *Request, path string, zxid int64) []change {
	switch r.Op {
	case opCreate, opCreate2, opCreateContainer, opCreateTTL:
		return []change{m.create(c, r, path, zxid)}
	case opDelete:
		return []change{m.remove(r.path(), zxid)}
	case opSetData:
		n := m.lookup(r.path())
		if n == nil {
			return nil
		}
		n.mzxid = zxid
		return []change{{typ: nodeDataChanged, path: r.path(), acl: n.acl}}
	case opSetACL:
		if n := m.lookup(r.path()); n != nil {
			n.acl = m.stored(c, r.ACL)
		}
	}
	return nil
}

// apply takes over what an answer of ZooKeeper says was done.
func (m *model) apply(c *conn, r *Request, reply *item) []change {
	if reply.err != 0 {
		return nil
	}
	switch r.Op {
	case opMulti:
		for i := range r.Sub {
			if f := reply.get(fmt.Sprintf("[%d].err", i)); f == nil || f.num != 0 || reply.get(fmt.Sprintf("[%d].type", i)).num == -1 {
				return nil
			}
		}
		var all []change
		for i := range r.Sub {
			path := ""
			if f := reply.get(fmt.Sprintf("[%d].path", i)); f != nil {
				path = f.text
			}
			s := r.Sub[i]
			// In a multi the flags decide what a create is (protocol 15 leaves it to the judge).
			switch s.Op {
			case opCreate, opCreate2, opCreateContainer, opCreateTTL:
				if s.Flags < 4 {
					s.Op = opCreate
				}
			}
			all = append(all, m.write(c, &s, path, reply.zxid)...)
		}
		return all
	case opCloseSession:
		return m.closeSession(c.slot, reply.zxid)
	case opAuth:
		c.authenticate(r)
		return nil
	}
	path := ""
	if f := reply.get("path"); f != nil {
		path = f.text
	}
	return m.write(c, r, path, reply.zxid)
}

// closeSession removes a session's nodes, in any order.
func (m *model) closeSession(slot int, zxid int64) []change {
	var paths []string
	for p, n := range m.nodes {
		if n.owner == slot {
			paths = append(paths, p)
		}
	}
	slices.Sort(paths)
	var all []change
	for _, p := range paths {
		all = append(all, m.remove(p, zxid))
	}
	if s := m.sessions[slot]; s != nil {
		s.alive = false
	}
	return all
}

// raise returns the events of changes, by connection, in order (protocol 6.2). An event is given only to who may
// read the node; a one-shot watch is consumed all the same.
func (s *watchState) raise(changes []change) map[*conn][]event {
	out := map[*conn][]event{}
	tell := func(told map[*conn]bool, typ int32, path string, acl []aclEntry) {
		for c := range told {
			if c.may(permRead, acl) {
				out[c] = append(out[c], event{typ, path})
			}
		}
	}
	for _, ch := range changes {
		told := s.data.trigger(ch.path, ch.typ)
		tell(told, ch.typ, ch.path, ch.acl)
		if ch.typ == nodeDataChanged {
			continue
		}
		if ch.typ == nodeDeleted {
			rest := s.child.trigger(ch.path, nodeDeleted)
			for c := range told {
				delete(rest, c)
			}
			tell(rest, nodeDeleted, ch.path, ch.acl)
		}
		parent := parentOf(ch.path)
		tell(s.child.trigger(parent, nodeChildrenChanged), nodeChildrenChanged, parent, ch.parentACL)
	}
	return out
}

// register sets the watches that a successful request asks for, and returns what setWatches says at once.
func (m *model) register(s *watchState, c *conn, r *Request, err int32, since int64) []event {
	path := r.path()
	switch r.Op {
	case opExists:
		if r.Watch && (err == 0 || err == -101) {
			s.addData(path, c, oneShot)
		}
	case opGetData:
		if r.Watch && err == 0 {
			s.addData(path, c, oneShot)
		}
	case opGetChildren, opGetChildren2:
		if r.Watch && err == 0 {
			s.add(s.child, path, c, oneShot)
		}
	case opAddWatch:
		if err == 0 {
			s.addWatch(path, c, []int{persistent, recursive}[r.Mode&1])
		}
	case opRemoveWatches:
		if err == 0 {
			s.remove(path, r.Mode, c)
		}
	case opSetWatches, opSetWatches2:
		// A null list is -5. ZooKeeper has then done the lists before it (rule null-list-in-set-watches).
		if err == 0 || s.old && err == -5 && r.NullList && r.Cut <= len(r.Extra) {
			return m.rearm(s, c, r, since)
		}
	}
	return nil
}

// rearm is protocol 6.5.
func (m *model) rearm(s *watchState, c *conn, r *Request, since int64) []event {
	var events []event
	for kind, list := range r.Lists {
		if kind > 2 && r.Op != opSetWatches2 {
			break
		}
		if list == nil && r.NullList {
			break
		}
		for _, p := range list {
			path := string(p)
			n := m.lookup(path)
			switch {
			case kind == 3:
				s.addWatch(path, c, persistent)
			case kind == 4:
				s.addWatch(path, c, recursive)
			case kind == 1 && n != nil:
				events = append(events, event{nodeCreated, path})
			case kind == 1 && !s.old && strings.IndexByte(path, 0) >= 0:
				m.hits["watch-on-nul-path"]++
			case kind == 1:
				s.addData(path, c, oneShot)
			case n == nil:
				events = append(events, event{nodeDeleted, path})
			case kind == 0 && n.mzxid > since:
				events = append(events, event{nodeDataChanged, path})
			case kind == 0:
				s.addData(path, c, oneShot)
			case n.pzxid > since:
				events = append(events, event{nodeChildrenChanged, path})
			default:
				s.add(s.child, path, c, oneShot)
			}
		}
	}
	return events
}
