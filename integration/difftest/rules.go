package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// exchange is one request and its answers. ZooKeeper's answer is zk, what kvd must answer is want, in ZooKeeper's
// numbers; it begins as a copy.
type exchange struct {
	m        *model
	c        *conn
	req      *Request
	asked    Request // what was sent to ZooKeeper, if not the request itself
	since    [2]int64
	ensemble bool
	stale    bool // over a connection that the session has left for another member
	zk       item
	want     item
	closes   bool // kvd closes the connection after its answer, though ZooKeeper does not
	mayRead  bool // the connection may read the node, before the request
	zxids    *zxids
	before   int64   // kvd's newest zxid before the step
	nudges   []int64 // zxids of writes that only ZooKeeper was sent, to release this answer
}

// rule is one permitted difference. All of it is exact: apply turns ZooKeeper's answer into the one answer that kvd
// must give, ask says what ZooKeeper is asked in the place of a request that harms it.
type rule struct {
	name      string
	source    string // where the fact or the decision is written
	zookeeper string
	kvd       string
	ask       func(x *exchange) (Request, bool)
	apply     func(x *exchange) bool
	model     bool // the difference lies in the two watch states of the model
}

// rules are all permitted differences of the client protocol, in the order in which they are applied.
var rules = []*rule{
	{
		name: "event-zxid", source: "protocol 1.5 and 15: kvd follows 3.9",
		zookeeper: "an event's header carries zxid -1", kvd: "the zxid of the transaction that raised it; -1 for those raised by setWatches",
		model: true,
	},
	{
		name: "one-shot-beside-persistent", source: "protocol 6.2 and 15: kvd follows 3.9",
		zookeeper: "a one-shot watch on the path of an own persistent one replaces it", kvd: "both are kept",
		model: true,
	},
	{
		name: "exists-needs-read", source: "protocol 3.5 and 15: kvd follows 3.9",
		zookeeper: "exists without READ is answered, and its watch is set", kvd: "-102, no watch",
		apply: func(x *exchange) bool {
			if x.req.Op != opExists || x.zk.err != 0 || x.mayRead {
				return false
			}
			x.want = item{what: "reply", xid: x.zk.xid, zxid: x.zk.zxid, err: -102}
			return true
		},
	},
	{
		name: "watcher-types", source: "protocol 4.6 and 15: kvd follows 3.9",
		zookeeper: "checkWatches and removeWatches refuse types 4 and 5 with -5; 1 and 2 match persistent watches too",
		kvd:       "4 and 5 mean persistent and recursive watches, 1 and 2 one-shots only; -121 if there is none",
		apply: func(x *exchange) bool {
			if x.req.Op != opCheckWatches && x.req.Op != opRemoveWatches {
				return false
			}
			if x.zk.err != 0 && x.zk.err != -121 && !strings.HasPrefix(x.req.path(), "/") && x.req.Path != nil && x.zk.err == -5 && x.req.Mode >= 1 && x.req.Mode <= 3 && x.req.Cut <= len(x.req.Extra) {
				// Looking for the parents of such a path fails, if there is any recursive watch.
				x.want.err = -121
				if x.m.new.holds(x.req.path(), x.req.Mode, x.c) {
					x.want.err = 0
				}
				return true
			}
			if x.zk.err != 0 && x.zk.err != -121 && (x.zk.err != -5 || x.req.Mode != 4 && x.req.Mode != 5 || x.req.Path == nil || x.req.Cut > len(x.req.Extra)) {
				return false
			}
			x.want.err = -121
			if x.m.new.holds(x.req.path(), x.req.Mode, x.c) {
				x.want.err = 0
			}
			return x.want.err != x.zk.err
		},
	},
	{
		name: "create2-in-multi", source: "protocol 3.6 and 15: kvd follows 3.9",
		zookeeper: "the result of a create2 in a multi has type 1 and no Stat", kvd: "type 15 with the Stat of the new node",
		apply: create2InMulti,
	},
	{
		name: "create-flags-in-multi", source: "protocol 3.6 and 15: kvd follows 3.9",
		zookeeper: "flags outside 0 to 6 make the operation fail with -8", kvd: "the whole request is -5, without a body",
		apply: func(x *exchange) bool {
			if x.req.Op != opMulti || x.zk.err != 0 || !slices.ContainsFunc(x.req.Sub, badFlags) {
				return false
			}
			x.want = item{what: "reply", xid: x.zk.xid, zxid: x.zk.zxid, err: -5}
			return true
		},
	},
	{
		name: "reconfig-refused", source: "protocol 3.2: a compatible server does not have to burn a zxid",
		zookeeper: "a reconfig that is refused with -123 or -5 costs a zxid", kvd: "it costs none",
		apply: func(x *exchange) bool {
			if x.req.Op != opReconfig || x.zk.err != -123 && x.zk.err != -5 || !x.zxids.fresh(x.zk.zxid) {
				return false
			}
			x.zxids.ghost(x.zk.zxid)
			return true
		},
	},
	{
		name: "ipv6-acl", source: "protocol 9.1 and 15: kvd follows 3.9",
		zookeeper: "an IPv6 address in an ip ACL is -114", kvd: "it is valid and matches by prefix",
		ask: func(x *exchange) (Request, bool) { return standIn(x.m, x.req) },
		apply: func(x *exchange) bool {
			hit := false
			if x.req.Op != opGetACL || x.zk.err != 0 {
				return false
			}
			for i := range x.want.fields {
				f := &x.want.fields[i]
				if real, ok := x.m.standIns[f.text]; ok && strings.HasSuffix(f.name, ".id") {
					f.text, hit = real, true
				}
			}
			return hit
		},
	},
	{
		name: "check-alone", source: "protocol 3.5 and 15: neither release is followed where it is dangerous",
		zookeeper: "a check outside a multi is logged as something that cannot be read back (not sent to ZooKeeper)", kvd: "as an unknown operation: -6 with zxid -1, then the connection is closed",
		ask: unknownInstead(opCheck),
	},
	{
		name: "create-session-by-client", source: "protocol 3.5: internal use only",
		zookeeper: "createSession from a client is answered with a bare ConnectResponse (not sent to ZooKeeper)", kvd: "as an unknown operation: -6 with zxid -1, then the connection is closed",
		ask: unknownInstead(opCreateSession),
	},
	{
		name: "delete-container-by-client", source: "protocol 3.5 and 15: refuse it from clients",
		zookeeper: "deleteContainer from a client is -8", kvd: "as an unknown operation: -6 with zxid -1, then the connection is closed",
		apply: func(x *exchange) bool {
			if x.req.Op != opDeleteContainer || x.zk.err != -8 && x.zk.err != -5 {
				return false
			}
			if x.zxids.fresh(x.zk.zxid) {
				x.zxids.ghost(x.zk.zxid)
			}
			x.want = item{what: "reply", xid: x.zk.xid, zxid: -1, err: -6}
			x.closes = true
			return true
		},
	},
	{
		name: "create-ttl-negative", source: "protocol 3.3 and 15: neither release is followed where it is dangerous",
		zookeeper: "createTTL with no TTL mode and a negative TTL kills the server for good (asked with TTL 0 in its place)", kvd: "-8, as for every other TTL outside the range",
		ask: func(x *exchange) (Request, bool) {
			r := *x.req
			if r.Op != opCreateTTL || r.Flags == 5 || r.Flags == 6 || r.TTL >= 0 {
				return r, false
			}
			r.TTL = 0
			return r, true
		},
	},
	{
		name: "null-path-in-multi", source: "protocol 15: neither release is followed where it is dangerous",
		zookeeper: "a multi with a null path, a null id in an ACL, or a TTL mode without a TTL leaves a hole in the zxids, which hangs an ensemble (asked with an operation that no multi takes in its place)", kvd: "-5, as for every multi that cannot be read",
		ask: func(x *exchange) (Request, bool) {
			if x.req.Op != opMulti || !slices.ContainsFunc(x.req.Sub, stumbles) {
				return Request{}, false
			}
			return Request{Op: opMulti, Xid: x.req.Xid, Sub: []Request{{Op: opExists, Path: ptr("/")}}}, true
		},
	},
	{
		name: "null-in-acl", source: "protocol 9.4: a null scheme is -114",
		zookeeper: "an entry with a null scheme or id is -5 already while double entries are dropped, if it has the permissions of another entry (asked with other permissions in their place)", kvd: "the entry is refused in its turn: -114 for a null scheme, -5 for a null id",
		ask: func(x *exchange) (Request, bool) { return distinctNulls(x.req) },
	},
	{
		name: "null-path-of-a-watch", source: "protocol 3.3: a null path is a marshalling error",
		zookeeper: "checkWatches and removeWatches with a null path are -121", kvd: "-5",
		apply: func(x *exchange) bool {
			if x.req.Op != opCheckWatches && x.req.Op != opRemoveWatches || x.req.Path != nil || x.zk.err != -121 {
				return false
			}
			x.want.err = -5
			return true
		},
	},
	{
		name: "reconfig-unreadable", source: "protocol 15: neither release is followed where it is dangerous",
		zookeeper: "a reconfig that cannot be read leaves a hole in the zxids, which hangs an ensemble (asked with a multi that cannot be read in its place)", kvd: "-5",
		ask: func(x *exchange) (Request, bool) {
			return Request{Op: opMulti, Xid: x.req.Xid, Sub: []Request{{Op: opExists, Path: ptr("/")}}}, x.req.Op == opReconfig && x.req.Cut > len(x.req.Extra)
		},
	},
	{
		name: "null-path-watched", source: "protocol 3.3: a null path is a marshalling error",
		zookeeper: "addWatch accepts a null path, and can then not close the connection (asked with an unknown mode in its place)", kvd: "-5, no watch",
		ask: func(x *exchange) (Request, bool) {
			r := *x.req
			if r.Op != opAddWatch || r.Path != nil {
				return r, false
			}
			r.Mode = 7
			return r, true
		},
	},
	{
		name: "multi-read-unreadable", source: "protocol 3.2 and 3.6: an error reply has no body",
		zookeeper: "a multiRead with a null path or bad create flags is -5 followed by the results before it, or by the end mark", kvd: "-5 without a body",
		apply: func(x *exchange) bool {
			odd := slices.ContainsFunc(x.req.Sub, func(s Request) bool { return s.Path == nil || badFlags(s) })
			if x.req.Op != opMultiRead || x.zk.err != -5 || len(x.zk.rest) == 0 || !odd {
				return false
			}
			x.want.rest = nil
			return true
		},
	},
	{
		name: "sync-on-follower", source: "protocol 15: kvd answers",
		zookeeper: "a follower may hold the answer to a sync till the next commit (a write of the tester's own releases it)", kvd: "answered at once",
		apply: func(x *exchange) bool {
			if x.req.Op != opSync || len(x.nudges) == 0 {
				return false
			}
			for _, a := range x.nudges {
				x.zxids.ghost(a)
			}
			return true
		},
	},
	{
		name: "odd-text", source: "protocol 2: emit standard UTF-8",
		zookeeper: "a text that comes back has characters outside the basic plane as two groups of three bytes, and U+FFFD for what was not UTF-8",
		kvd:       "the bytes that were sent",
		apply:     oddText,
	},
	{
		name: "ping-overtakes", source: "protocol 13.4 and 13.27: the reply to a ping may come anywhere",
		zookeeper: "a ping behind writes is answered behind them", kvd: "at once, with the newest zxid that this connection may know: one between the first and the last of the pipeline",
		model: true,
	},
	{
		name: "watch-words", source: "protocol 10.2 and 6.1: the words name connections that hold a watch",
		zookeeper: "wchs, wchc and mntr count a connection that once had a watch, and a recursive watch in both tables", kvd: "connections that have one now; a recursive watch is one",
		model: true,
	},
	{
		name: "own-lines", source: "protocol 10.2: a reader finds its lines by their names",
		zookeeper: "srvr ends with the node count", kvd: "lines of its own follow, with the member's version, id, process, role, leader, epoch, health and digest",
		model: true,
	},
	{
		name: "watch-on-empty-path", source: "protocol 3.2: the tree keeps the empty path as another name of the root",
		zookeeper: "a watch set on the empty path never fires", kvd: "it is a watch on the root",
		model: true,
	},
	{
		name: "moved-session-write", source: "protocol 3.3 and 7.1: a write on the connection that a session has left closes it",
		zookeeper: "a write that cannot be read, or has bad flags or a bad TTL, is answered -5, -6 or -8 before the session is looked at; so is a multi whose first operation has them; an empty one is carried out", kvd: "the connection is closed without an answer, as for every write",
		model: true,
	},
	{
		name: "watch-on-nul-path", source: "protocol 3.5: exists refuses a path with NUL with -8, and a refused read sets no watch",
		zookeeper: "the exist list of setWatches sets a watch on such a path, which never fires", kvd: "none is set",
		model: true,
	},
	{
		name: "null-list-in-set-watches", source: "protocol 2: a null list in setWatches is -5",
		zookeeper: "a null list is -5, after the lists before it have been carried out", kvd: "-5, and nothing is carried out",
		model: true,
	},
	{
		name: "other-history", source: "protocol 1.3; operations.md, In place of ZooKeeper",
		zookeeper: "a client that has seen a higher zxid is turned away, whatever its session", kvd: "it hears that its session is gone, if no quorum knows it",
		model: true,
	},
	{
		name: "wrong-password", source: "protocol 13.30 and 15: a wrong password does no harm",
		zookeeper: "an attempt to resume with a wrong password closes the living session's connection (not sent to ZooKeeper)", kvd: "the attempt is refused as for an unknown session; the living one notices nothing",
		model: true,
	},
}

func ruleNamed(name string) *rule {
	for _, r := range rules {
		if r.name == name {
			return r
		}
	}
	panic("no rule " + name)
}

// sentBack undoes what Java makes of the texts of a request.
func sentBack(r *Request) map[string]string {
	undo := map[string]string{}
	note := func(s string) {
		if j := javaText(s); j != s {
			undo[j] = s
		}
	}
	note(r.path())
	for _, l := range r.Lists {
		for _, s := range l {
			note(string(s))
		}
	}
	return undo
}

// javaText is a text after it was read and written by Java (protocol 2).
func javaText(s string) string {
	var b []byte
	for _, c := range s {
		if c < 0x10000 {
			b = utf8.AppendRune(b, c)
			continue
		}
		for _, half := range utf16.Encode([]rune{c}) {
			b = append(b, 0xe0|byte(half>>12), 0x80|byte(half>>6&0x3f), 0x80|byte(half&0x3f))
		}
	}
	return string(b)
}

func oddText(x *exchange) bool {
	undo, hit := sentBack(x.req), false
	for i := range x.want.fields {
		if s, ok := undo[x.want.fields[i].text]; ok {
			x.want.fields[i].text, hit = s, true
		}
	}
	return hit
}

// stumbles tells whether a sub-operation holds a null, or a TTL mode without a TTL, that ZooKeeper stumbles over.
func stumbles(s Request) bool {
	ttl := (s.Op == opCreate || s.Op == opCreate2 || s.Op == opCreateContainer) && (s.Flags == 5 || s.Flags == 6)
	return ttl || s.Path == nil || slices.ContainsFunc(s.ACL, func(a ACL) bool { return a.Scheme != nil && a.ID == nil })
}

// distinctNulls gives entries with a null permissions of their own, where another entry has the same.
func distinctNulls(r *Request) (Request, bool) {
	out, hit := *r, false
	out.ACL, out.Sub = slices.Clone(r.ACL), slices.Clone(r.Sub)
	for i, a := range r.ACL {
		for k, b := range r.ACL {
			if (a.Scheme == nil || a.ID == nil) && i != k && a.Perms == b.Perms {
				out.ACL[i].Perms, hit = int32(1<<20+i), true
			}
		}
	}
	for i := range out.Sub {
		s, h := distinctNulls(&out.Sub[i])
		out.Sub[i], hit = s, hit || h
	}
	return out, hit
}

// firstHasBadForm reports whether a multi failed at its first operation for flags or a time to live, which ZooKeeper
// looks at before it looks at the session.
func firstHasBadForm(zk *item) bool {
	code := zk.get("[0].err")
	return code != nil && (code.num == -6 || code.num == -8)
}

// movedWrite tells whether an answer to a write on an abandoned connection is one that ZooKeeper gives before it looks
// at the session.
func (x *exchange) movedWrite(zk *item) bool {
	switch x.req.Op {
	case opCreate, opCreate2, opCreateContainer, opCreateTTL, opDelete, opSetData, opSetACL, opMulti:
		unseen := x.req.Op == opMulti && zk.err == 0 && (len(x.req.Sub) == 0 || firstHasBadForm(zk))
		return x.stale && (unseen || zk.err == -5 || zk.err == -6 && zk.zxid != -1 || zk.err == -8)
	}
	return false
}

func badFlags(s Request) bool {
	switch s.Op {
	case opCreate, opCreate2, opCreateContainer, opCreateTTL:
		return s.Flags < 0 || s.Flags > 6
	}
	return false
}

// unknownInstead asks ZooKeeper for an operation that nobody knows.
func unknownInstead(op int32) func(x *exchange) (Request, bool) {
	return func(x *exchange) (Request, bool) {
		return Request{Op: 99, Xid: x.req.Xid}, x.req.Op == op
	}
}

func create2InMulti(x *exchange) bool {
	if x.req.Op != opMulti || x.zk.err != 0 || !slices.ContainsFunc(x.req.Sub, func(s Request) bool { return s.Op == opCreate2 }) {
		return false
	}
	hit := false
	var fields []field
	for i := range x.req.Sub {
		s := &x.req.Sub[i]
		prefix, bare := fmt.Sprintf("[%d].", i), false
		for _, f := range x.want.fields {
			if !strings.HasPrefix(f.name, prefix) {
				continue
			}
			if s.Op == opCreate2 && f.name == prefix+"type" && f.num == opCreate {
				f.num, hit, bare = opCreate2, true, true
			}
			fields = append(fields, f)
			if bare && f.name == prefix+"path" {
				fields = append(fields, x.newStat(prefix, s)...)
			}
		}
	}
	if !hit {
		return false
	}
	end := fmt.Sprintf("[%d].", len(x.req.Sub))
	for _, f := range x.want.fields {
		if strings.HasPrefix(f.name, end) {
			fields = append(fields, f)
		}
	}
	x.want.fields = fields
	return true
}

// newStat is the Stat of a node just created (protocol 3.3, effects).
func (x *exchange) newStat(prefix string, s *Request) []field {
	z, owner := x.zk.zxid, int64(0)
	if s.Flags == 1 || s.Flags == 3 {
		owner = x.m.sessions[x.c.slot].ids[0]
	}
	return []field{
		{name: prefix + "czxid", kind: kindZxid, num: z}, {name: prefix + "mzxid", kind: kindZxid, num: z},
		{name: prefix + "ctime", kind: kindTime, at: z}, {name: prefix + "mtime", kind: kindTime, at: z},
		{name: prefix + "version"}, {name: prefix + "cversion"}, {name: prefix + "aversion"},
		{name: prefix + "ephemeralOwner", kind: kindSession, num: owner},
		{name: prefix + "dataLength", num: int64(len(s.Data))}, {name: prefix + "numChildren"},
		{name: prefix + "pzxid", kind: kindZxid, num: z},
	}
}

// isIPv6 tells whether a valid ip entry holds an IPv6 address.
func isIPv6(a ACL) bool {
	if a.Scheme == nil || *a.Scheme != "ip" || a.ID == nil {
		return false
	}
	if p, err := netip.ParsePrefix(string(*a.ID)); err == nil {
		return p.Addr().Is6()
	}
	addr, err := netip.ParseAddr(string(*a.ID))
	return err == nil && addr.Is6() && addr.Zone() == ""
}

// standIn replaces every IPv6 address by an IPv4 one that matches nobody.
func standIn(m *model, r *Request) (Request, bool) {
	out, hit := *r, false
	out.ACL = slices.Clone(r.ACL)
	for i, a := range out.ACL {
		if !isIPv6(a) {
			continue
		}
		hit = true
		name := ""
		for k, v := range m.standIns {
			if v == string(*a.ID) {
				name = k
			}
		}
		if name == "" {
			name = fmt.Sprintf("10.66.%d.%d", len(m.standIns)/250, len(m.standIns)%250+1)
			m.standIns[name] = string(*a.ID)
		}
		out.ACL[i].ID = ptr(name)
	}
	out.Sub = slices.Clone(r.Sub)
	for i := range out.Sub {
		s, h := standIn(m, &out.Sub[i])
		out.Sub[i], hit = s, hit || h
	}
	return out, hit
}
