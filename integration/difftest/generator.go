package main

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// generator makes the steps of a sequence. It looks at the model, so that most requests meet something.
type generator struct {
	r    *runner
	rng  *rand.Rand
	xid  int32
	path paths
}

func newGenerator(r *runner, seed uint64) *generator {
	rng := rand.New(rand.NewPCG(seed, 0x6b7664))
	return &generator{r: r, rng: rng, path: paths{r: r, rng: rng}}
}

const slots = 5

func (g *generator) chance(percent int) bool { return g.rng.IntN(100) < percent }

func pick[T any](rng *rand.Rand, all ...T) T { return all[rng.IntN(len(all))] }

// connected are the slots with a connection, in order.
func (g *generator) connected() []int {
	var all []int
	for slot, sn := range g.r.m.sessions {
		if sn.conn != nil {
			all = append(all, slot)
		}
	}
	slices.Sort(all)
	return all
}

// next makes one step.
func (g *generator) next() Step {
	live := g.connected()
	if len(live) == 0 || len(live) < 3 && g.chance(40) {
		return g.connect()
	}
	slot := pick(g.rng, live...)
	switch n := g.rng.IntN(200); {
	case n < 8:
		return g.connect()
	case n < 12:
		return Step{Kind: "cut", Slot: slot}
	case n < 15:
		return Step{Kind: "raw", Member: g.rng.IntN(2), Raw: g.firstBytes()}
	case n < 20:
		return Step{Kind: "word", Member: g.rng.IntN(g.members()), Word: pick(g.rng, "ruok", "isro", "srvr", "mntr", "wchs", "wchc", "wchp", "crst", "srst", "gtmk", "ruok\n", "srvrxx")}
	case n < 23:
		return Step{Kind: "requests", Slot: slot, Requests: []Request{g.closing(slot)}}
	case n < 60:
		return g.batch(slot)
	case n < 66:
		s := Step{Kind: "requests", Slot: slot, Requests: []Request{g.request(slot)}}
		s.Split = 1 + g.rng.IntN(40)
		s.Half = g.chance(25)
		return s
	case n < 90:
		if sn := g.r.m.sessions[slot]; sn.former != nil {
			s := Step{Kind: "requests", Slot: slot, Stale: true, Requests: []Request{g.request(slot)}}
			if q := &s.Requests[0]; g.chance(20) && (q.Op == opCreate || q.Op == opCreate2) {
				q.Flags = 7
			}
			return s
		}
	}
	return Step{Kind: "requests", Slot: slot, Requests: []Request{g.request(slot)}}
}

func (g *generator) members() int { return g.r.sides[0].clientMembers() }

// connect makes a handshake, valid or not.
func (g *generator) connect() Step {
	s := Step{Kind: "connect", Slot: g.rng.IntN(slots), Member: g.rng.IntN(g.members())}
	k := &Connect{Timeout: pick[int32](g.rng, 0, 10_000, 300_000, 400_000, 1_000_000_000, -5), Password: "zero"}
	s.Connect = k
	sn := g.r.m.sessions[s.Slot]
	if sn != nil && (sn.alive || g.chance(20)) {
		k.Session, k.Password = "own", "right"
		if g.chance(25) {
			k.Password = pick(g.rng, "wrong", "null", "empty", "short", "zero")
		}
	} else if g.chance(8) {
		k.Session, k.Password = "unknown", pick(g.rng, "zero", "null", "wrong")
	} else if g.chance(10) {
		k.Password = pick(g.rng, "null", "empty", "short")
	}
	switch g.rng.IntN(12) {
	case 0, 1:
		k.ReadOnly = -1
	case 2:
		k.ReadOnly = 1
	case 3:
		k.Protocol = pick[int32](g.rng, 5, -1)
	case 4:
		k.Extra = []byte{1, 2, 3}
		if k.ReadOnly < 0 {
			k.ReadOnly = 0
		}
	}
	switch g.rng.IntN(10) {
	case 0:
		k.LastSeen = ZxidRef{Kind: "last", N: int64(g.rng.IntN(5))}
	case 1:
		k.LastSeen = ZxidRef{Kind: "", N: pick[int64](g.rng, -1, 1, -1<<62)}
	case 2:
		k.LastSeen = ZxidRef{Kind: "ahead", N: 1 << 20}
	}
	return s
}

// firstBytes are no handshake.
func (g *generator) firstBytes() []byte {
	return pick(g.rng,
		[]byte{0, 0, 0, 0},
		[]byte{0xff, 0xff, 0xff, 0xff},
		[]byte{0x80, 0, 0, 0},
		[]byte{0x00, 0x10, 0x00, 0x00}, // 1048576: one more than a frame may have
		[]byte{0, 0, 0, 4, 1, 2, 3, 4},
		[]byte("GET / HTTP/1.0\r\n\r\n"),
		[]byte("xxxx"),
		[]byte{0xff, 0xf4, 0xff, 0xfd},
		frame([]byte{0, 0, 0, 0, 0, 0, 0, 0}),
	)
}

// closing ends a connection: by closeSession, or by something the server closes it for.
func (g *generator) closing(slot int) Request {
	r := Request{Xid: g.nextXid(), Op: opCloseSession}
	switch g.rng.IntN(10) {
	case 7:
		r.Op, r.Path, r.Length = opGetData, g.path.any(), pick[int32](g.rng, 1048576, -1, -1<<31, 1<<30, 4)
	case 0:
		r.Op = pick[int32](g.rng, 99, 0, -1, 10, 23, 108, -100, 1000)
	case 1:
		r.Op, r.Scheme, r.Data = opAuth, ptr(pick(g.rng, "world", "auth", "", "nosuch", "super")), []byte("x:y")
	case 2:
		r.Op, r.Scheme = opAuth, ptr("digest")
	case 3:
		r.Op, r.Path, r.Version = opCheck, g.path.any(), -1
	case 4:
		r.Op, r.Path = opDeleteContainer, g.path.any()
	case 5:
		r.Op = opCreateSession
	case 6:
		r.Op = opSASL
	}
	return r
}

func (g *generator) nextXid() int32 {
	g.xid++
	if g.chance(3) {
		return pick[int32](g.rng, 0, -3, -100, 1<<30)
	}
	return g.xid
}

// batch pipelines. setACL comes last, because ZooKeeper checks what is right behind it by the old list or the new one
// (protocol 15); auth first, because it is answered out of turn; what is asked in the place of another request, alone.
func (g *generator) batch(slot int) Step {
	s := Step{Kind: "requests", Slot: slot}
	if g.chance(15) {
		s.Requests = append(s.Requests, g.auth())
	}
	for range 2 + g.rng.IntN(6) {
		r := g.request(slot)
		if r.Op == opAuth || r.Op == opSASL || r.Op == opSetWatches || r.Op == opSetWatches2 {
			continue
		}
		if _, odd := standIn(newModel(), &r); odd {
			continue
		}
		if len(r.encode(0)) < 4+8 {
			continue // no whole header: the connection is closed, and which replies come before that is a matter of time
		}
		s.Requests = append(s.Requests, r)
		if r.Op == opSetACL {
			break
		}
	}
	return s
}

func (g *generator) auth() Request {
	r := Request{Op: opAuth, Xid: -4, Scheme: ptr("digest"), Data: []byte(pick(g.rng, "a:a", "b:b", "c:", "nocolon", "a:b:c", ""))}
	switch g.rng.IntN(10) {
	case 0:
		r.Scheme, r.Data = ptr("ip"), []byte("x")
	case 1, 2:
		r.Data = []byte("super:admin")
	case 3:
		r.Xid = g.nextXid()
	}
	return r
}

var operations = []struct {
	op     int32
	weight int
}{
	{opCreate, 14}, {opCreate2, 8}, {opCreateContainer, 4}, {opCreateTTL, 4}, {opDelete, 9}, {opExists, 8}, {opGetData, 8},
	{opSetData, 9}, {opGetACL, 4}, {opSetACL, 5}, {opGetChildren, 4}, {opGetChildren2, 4}, {opSync, 2}, {opPing, 2}, {opMulti, 10},
	{opMultiRead, 4}, {opReconfig, 1}, {opCheckWatches, 3}, {opRemoveWatches, 4}, {opAuth, 4}, {opSetWatches, 2}, {opSetWatches2, 3},
	{opSASL, 1}, {opGetEphemerals, 2}, {opDescendants, 2}, {opAddWatch, 7}, {opWhoAmI, 2},
}

// request makes any request that leaves the connection open.
func (g *generator) request(slot int) Request {
	total := 0
	for _, o := range operations {
		total += o.weight
	}
	n := g.rng.IntN(total)
	op := int32(0)
	for _, o := range operations {
		if n -= o.weight; n < 0 {
			op = o.op
			break
		}
	}
	if op == opAuth {
		return g.auth()
	}
	r := Request{Op: op, Xid: g.nextXid()}
	switch op {
	case opMulti, opMultiRead:
		g.multi(&r, slot)
	case opSetWatches, opSetWatches2:
		g.setWatches(&r)
	case opPing:
		if g.chance(70) {
			r.Xid = -2
		}
	case opSASL:
		r.Data = []byte(pick(g.rng, "", "token"))
	default:
		g.fill(&r, slot)
	}
	switch g.rng.IntN(40) {
	case 0:
		if op != opPing && op != opWhoAmI {
			r.Cut = 1 + g.rng.IntN(6)
		}
	case 1, 2:
		r.Extra = []byte(pick(g.rng, "\x00", "extra", "\xff\xff\xff\xff"))
	}
	return r
}

// fill gives a request its fields.
func (g *generator) fill(r *Request, slot int) {
	r.Path = g.path.of(r.Op)
	if r.Path != nil && g.protected(r, slot) {
		r.Path = ptr(g.r.top())
	}
	switch r.Op {
	case opCreate, opCreate2, opCreateContainer, opCreateTTL:
		r.Data, r.ACL = g.data(r.path()), g.acl()
		r.NoACL = r.ACL == nil && g.chance(50)
		switch {
		case g.chance(4):
			r.Flags = pick[int32](g.rng, 7, -1, 100, 5, 6)
		case r.Op == opCreateTTL:
			r.Flags = pick[int32](g.rng, 5, 6)
			r.TTL = pick[int64](g.rng, 1, 1000, 3_600_000, 1<<40-1)
			if g.chance(15) {
				r.Flags = int32(g.rng.IntN(8))
			}
			if g.chance(20) {
				r.TTL = pick[int64](g.rng, 0, -1, 1<<40, 1<<62, -1<<40)
			}
		case r.Op == opCreateContainer:
			r.Flags = pick[int32](g.rng, 4, 4, 4, 0, 1, 2, 3)
		default:
			r.Flags = pick[int32](g.rng, 0, 0, 0, 0, 1, 1, 2, 3, 4)
		}
		if builtin[parentOf(r.path())] && (r.Flags == 2 || r.Flags == 3 || r.Flags == 6) {
			r.Flags &^= 2 // the counter of a built-in node is another one when the sequence is run again
		}
	case opSetData:
		r.Data, r.Version = g.data(r.path()), g.version()
	case opSetACL:
		r.ACL, r.Version = g.acl(), g.version()
		r.NoACL = r.ACL == nil && g.chance(50)
	case opDelete, opCheck:
		r.Version = g.version()
	case opExists, opGetData, opGetChildren, opGetChildren2:
		r.Watch = g.chance(50)
	case opReconfig:
		r.Scheme = ptr("server.1=127.0.0.1:1:2;3")
	case opCheckWatches, opRemoveWatches:
		r.Mode = pick[int32](g.rng, 1, 2, 3, 3, 4, 5)
		if g.chance(8) {
			r.Mode = pick[int32](g.rng, 0, 6, -1)
		}
		if p := g.watched(slot); p != "" && r.Path != nil && g.chance(75) {
			r.Path = ptr(p)
		}
	case opAddWatch:
		r.Mode = pick[int32](g.rng, 0, 1)
		if g.chance(5) {
			r.Mode = pick[int32](g.rng, 2, -1)
		}
	case opGetEphemerals:
		if g.chance(30) {
			r.Path = pick(g.rng, ptr("/"), ptr(""), nil, ptr("/s"), ptr("  "))
		}
	}
}

// protected keeps a superuser from the configuration node: what is written there outlives the sequence.
func (g *generator) protected(r *Request, slot int) bool {
	if !strings.HasPrefix(r.path(), "/zookeeper/config") {
		return false
	}
	switch r.Op {
	case opSetData, opSetACL, opCreate, opCreate2, opCreateContainer, opCreateTTL:
		return true
	}
	return false
}

// watched is a path that the slot's connection watches.
func (g *generator) watched(slot int) string {
	c := g.r.m.sessions[slot].conn
	if c == nil {
		return ""
	}
	var all []string
	for _, t := range []watchTable{g.r.m.new.data, g.r.m.new.child} {
		for p, w := range t {
			if w[c] != 0 {
				all = append(all, p)
			}
		}
	}
	if len(all) == 0 {
		return ""
	}
	slices.Sort(all)
	return pick(g.rng, all...)
}

func (g *generator) version() int32 {
	if g.chance(55) {
		return -1
	}
	return pick[int32](g.rng, 0, 0, 0, 1, 1, 2, 3, -2, 100)
}

func (g *generator) data(path string) []byte {
	if strings.HasPrefix(path, "/zookeeper/quota") {
		return []byte(pick(g.rng, "count=3,bytes=20", "count=-1,bytes=-1", "count=2,bytes=-1=;byteHardLimit=10;countHardLimit=3"))
	}
	switch g.rng.IntN(24) {
	case 0, 1:
		return nil
	case 2, 3:
		return []byte{}
	case 4:
		if g.chance(10) {
			return make([]byte, pick(g.rng, 100_000, 400_000, 1_000_000))
		}
		return make([]byte, g.rng.IntN(5000))
	}
	b := make([]byte, 1+g.rng.IntN(12))
	for i := range b {
		b[i] = byte('a' + g.rng.IntN(26))
	}
	return b
}

func (g *generator) acl() []ACL {
	if g.chance(55) {
		return []ACL{{31, ptr("world"), ptr("anyone")}}
	}
	var l []ACL
	for range 1 + g.rng.IntN(3) {
		l = append(l, g.entry())
	}
	switch g.rng.IntN(20) {
	case 0:
		return nil
	case 1:
		l = append(l, l[0])
	}
	return l
}

func (g *generator) entry() ACL {
	perms := pick[int32](g.rng, 31, 31, 31, 1, 2, 15, 16, 30, 9)
	if g.chance(5) {
		perms = pick[int32](g.rng, 0, 64, -1, 1000)
	}
	digest := func(s string) *text { return ptr(digestIdentity(s).id) }
	if g.chance(12) {
		return pick(g.rng,
			ACL{perms, ptr("world"), ptr("bob")}, ACL{perms, ptr("world"), ptr("")}, ACL{perms, ptr("digest"), ptr("nocolon")},
			ACL{perms, ptr("digest"), ptr("a:b:c")}, ACL{perms, ptr("digest"), ptr("a:")}, ACL{perms, ptr("ip"), ptr("1.2.3")},
			ACL{perms, ptr("ip"), ptr("127.0.0.1/33")}, ACL{perms, ptr("ip"), ptr("127.0.0.1/-1")}, ACL{perms, ptr("super"), ptr("x")},
			ACL{perms, ptr("nosuch"), ptr("x")}, ACL{perms, nil, ptr("anyone")}, ACL{perms, ptr("digest"), nil}, ACL{perms, ptr("ip"), ptr("1.2.3.4/x")})
	}
	return pick(g.rng,
		ACL{perms, ptr("world"), ptr("anyone")}, ACL{perms, ptr("world"), ptr("anyone")},
		ACL{perms, ptr("auth"), ptr("")}, ACL{perms, ptr("auth"), ptr("whatever")},
		ACL{perms, ptr("digest"), digest("a:a")}, ACL{perms, ptr("digest"), digest("b:b")},
		ACL{perms, ptr("ip"), ptr("127.0.0.1")}, ACL{perms, ptr("ip"), ptr("127.0.0.0/8")}, ACL{perms, ptr("ip"), ptr("10.1.2.3")}, ACL{perms, ptr("ip"), ptr("10.0.0.0/8")},
		ACL{perms, ptr("ip"), ptr(pick(g.rng, "::1", "fe80::/10", "2001:db8::1/64", "2001:DB8::7"))})
}

// multi fills in a list of operations, mostly such as can succeed together.
func (g *generator) multi(r *Request, slot int) {
	n := g.rng.IntN(6)
	for range n {
		var s Request
		if r.Op == opMultiRead {
			s.Op = pick[int32](g.rng, opGetData, opGetChildren)
			if g.chance(4) {
				s.Op = pick[int32](g.rng, opExists, opSetData, opCreate)
			}
		} else {
			s.Op = pick[int32](g.rng, opCreate, opCreate, opCreate2, opDelete, opSetData, opCheck, opCreateContainer, opCreateTTL)
			if g.chance(2) {
				s.Op = pick[int32](g.rng, opSetACL, opExists, opGetData, opGetChildren, 99)
			}
		}
		g.fill(&s, slot)
		if g.chance(50) && len(r.Sub) > 0 && s.Op != opCreate && s.Op != opCreate2 {
			s.Path = r.Sub[len(r.Sub)-1].Path
		}
		if s.Op == opCheck || s.Op == opSetData || s.Op == opDelete {
			if g.chance(60) {
				s.Version = -1
			}
		}
		r.Sub = append(r.Sub, s)
	}
	r.Unended = g.chance(2)
}

func (g *generator) setWatches(r *Request) {
	r.Xid = -8
	if g.chance(20) {
		r.Xid = g.nextXid()
	}
	r.Since = &ZxidRef{Kind: "last", N: int64(g.rng.IntN(40))}
	if g.chance(15) {
		r.Since = &ZxidRef{N: pick[int64](g.rng, 0, -1, 1<<62)}
	}
	n := 3
	if r.Op == opSetWatches2 {
		n = 5
	}
	r.Lists = make([][]text, n)
	for i := range r.Lists {
		for range g.rng.IntN(4) {
			if p := g.path.of(opExists); p != nil {
				r.Lists[i] = append(r.Lists[i], *p)
			}
		}
	}
	r.NullList = g.chance(5)
}

// paths picks paths.
type paths struct {
	r   *runner
	rng *rand.Rand
}

// existing is a node that is there.
func (p *paths) existing() string {
	all := slices.Sorted(maps.Keys(p.r.m.nodes))
	own := slices.DeleteFunc(slices.Clone(all), func(s string) bool { return !strings.HasPrefix(s, p.r.top()) })
	if len(own) > 0 && p.rng.IntN(100) < 88 {
		return pick(p.rng, own...)
	}
	return pick(p.rng, all...)
}

// fresh is a child of a node that is there; it may be there too.
func (p *paths) fresh() string {
	parent := p.existing()
	if strings.Count(parent, "/") > 4 {
		parent = p.r.top()
	}
	if strings.HasPrefix(parent, "/zookeeper") || parent == "/" {
		return pick(p.rng, "/zookeeper/quota"+p.r.top(), "/zookeeper/quota"+p.r.top()+"/zookeeper_limits", "/zookeeper/quota"+p.r.top()+"/zookeeper_stats", p.r.top()+"/q", "/t"+p.r.top()[1:])
	}
	return parent + "/" + pick(p.rng, "a", "b", "c", "d", "e", "f", "lock-", "ü", "x y", "...")
}

func (p *paths) odd() *text {
	base := p.existing()
	return pick(p.rng, ptr(""), ptr("nopath"), ptr(base+"/"), ptr(base+"//x"), ptr(base+"/."), ptr(base+"/../x"), ptr(base+"/a\x00b"), ptr(base+"/\x01"),
		ptr(base+"/\u0085"), ptr(base+"/\ue000"), ptr(base+"/\U0001F600"), ptr(base+"/\ufff3"), ptr(base+"/\xff\xfe"), ptr("/"), ptr("//"), ptr(base+"/nosuch/x"), ptr(base+"/\ud7ff"),
		ptr("/zookeeper"), ptr("/zookeeper/config"), ptr("/zookeeper/quota"), ptr("/zookeeper/x"))
}

func (p *paths) any() *text { return p.of(opGetData) }

// of picks a path that suits an operation, mostly.
func (p *paths) of(op int32) *text {
	n := p.rng.IntN(100)
	switch {
	case n < 2:
		return nil
	case n < 10 || op == opSync && n < 50:
		return p.odd()
	}
	create := op == opCreate || op == opCreate2 || op == opCreateContainer || op == opCreateTTL
	if create && n < 90 || !create && n < 25 {
		return ptr(p.fresh())
	}
	return ptr(p.existing())
}
