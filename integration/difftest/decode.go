package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// kind says how a field is compared.
type kind uint8

const (
	kindInt     kind = iota // equal
	kindText                // equal bytes; null is -1 in num
	kindZxid                // by the bijection
	kindTime                // by the transaction in at
	kindSession             // by session
	kindVersion             // counters of built-in nodes, relative to the start of the sequence; path in text
	kindEnv                 // text that names the servers' own addresses
)

// field is one decoded value of an answer.
type field struct {
	name string
	kind kind
	num  int64
	text string
	at   int64 // of a time: the zxid of the transaction that it belongs to
}

func (f field) String() string {
	switch f.kind {
	case kindText, kindEnv:
		if f.num == -1 {
			return f.name + "=null"
		}
		if len(f.text) > 200 {
			return fmt.Sprintf("%s=%q...(%d bytes)", f.name, f.text[:200], len(f.text))
		}
		return fmt.Sprintf("%s=%q", f.name, f.text)
	case kindZxid, kindSession:
		return fmt.Sprintf("%s=0x%x", f.name, uint64(f.num))
	default:
		return f.name + "=" + strconv.FormatInt(f.num, 10)
	}
}

// item is one thing that a connection received: a reply, an event, or its end.
type item struct {
	what   string // reply, event, closed
	xid    int32
	zxid   int64
	err    int32
	fields []field
	rest   []byte // what no record describes
}

func (i item) String() string {
	if i.what == "closed" {
		return "closed by the server"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s xid=%d zxid=0x%x err=%d", i.what, i.xid, uint64(i.zxid), i.err)
	for _, f := range i.fields {
		b.WriteByte(' ')
		b.WriteString(f.String())
	}
	if len(i.rest) > 0 {
		fmt.Fprintf(&b, " undecoded=%x", i.rest[:min(len(i.rest), 64)])
	}
	return b.String()
}

// clone is a copy whose fields can be changed.
func (i item) clone() item {
	i.fields = slices.Clone(i.fields)
	return i
}

// builtin are the nodes that every server begins with.
var builtin = map[string]bool{"": true, "/": true, "/zookeeper": true, "/zookeeper/quota": true, "/zookeeper/config": true}

type builder struct {
	d      dec
	fields []field
}

func (b *builder) add(f field) { b.fields = append(b.fields, f) }

func (b *builder) num(name string, v int64) { b.add(field{name: name, num: v}) }

func (b *builder) text(name string) {
	v, ok := b.d.buffer()
	if !ok {
		b.add(field{name: name, kind: kindText, num: -1})
		return
	}
	b.add(field{name: name, kind: kindText, text: string(v)})
}

func (b *builder) stat(prefix, path string) {
	d := &b.d
	version := func(name string, v int32) {
		f := field{name: prefix + name, num: int64(v)}
		if builtin[path] {
			f.kind, f.text = kindVersion, builtinKey(path)+" "+name
		}
		b.add(f)
	}
	czxid, mzxid := d.long(), d.long()
	b.add(field{name: prefix + "czxid", kind: kindZxid, num: czxid})
	b.add(field{name: prefix + "mzxid", kind: kindZxid, num: mzxid})
	b.add(field{name: prefix + "ctime", kind: kindTime, num: d.long(), at: czxid})
	b.add(field{name: prefix + "mtime", kind: kindTime, num: d.long(), at: mzxid})
	version("version", d.int())
	version("cversion", d.int())
	version("aversion", d.int())
	b.add(field{name: prefix + "ephemeralOwner", kind: kindSession, num: d.long()})
	b.num(prefix+"dataLength", int64(d.int()))
	b.num(prefix+"numChildren", int64(d.int()))
	b.add(field{name: prefix + "pzxid", kind: kindZxid, num: d.long()})
}

func builtinKey(path string) string {
	if path == "" {
		return "/"
	}
	return path
}

// names reads a list whose order means nothing (protocol 3.5: the order of names is unspecified).
func (b *builder) names(prefix string) {
	n := b.d.count()
	b.num(prefix+"count", int64(n))
	var all []string
	for range n {
		v, ok := b.d.buffer()
		s := "\x00null"
		if ok {
			s = string(v)
		}
		all = append(all, s)
	}
	slices.Sort(all)
	for i, s := range all {
		b.add(field{name: prefix + strconv.Itoa(i), kind: kindText, text: s})
	}
}

func (b *builder) data(name, path string) {
	b.text(name)
	if path == "/zookeeper/config" {
		b.fields[len(b.fields)-1].kind = kindEnv
	}
}

func (b *builder) acl() {
	n := b.d.count()
	b.num("entries", int64(n))
	for i := range n {
		b.num(fmt.Sprintf("acl%d.perms", i), int64(b.d.int()))
		b.text(fmt.Sprintf("acl%d.scheme", i))
		b.text(fmt.Sprintf("acl%d.id", i))
	}
}

// results reads the answer of multi and multiRead.
func (b *builder) results(r *Request) {
	for i := 0; b.d.err == nil; i++ {
		p := fmt.Sprintf("[%d].", i)
		typ, done, code := b.d.int(), b.d.byte(), b.d.int()
		b.num(p+"type", int64(typ))
		b.num(p+"done", int64(done))
		b.num(p+"err", int64(code))
		if done != 0 {
			return
		}
		path := ""
		if i < len(r.Sub) {
			path = r.Sub[i].path()
		}
		switch typ {
		case -1:
			b.num(p+"code", int64(b.d.int()))
		case opCreate:
			b.text(p + "path")
		case opCreate2, opCreateContainer, opCreateTTL:
			b.text(p + "path")
			b.stat(p, "new")
		case opSetData:
			b.stat(p, path)
		case opGetData:
			b.data(p+"data", path)
			b.stat(p, path)
		case opGetChildren:
			b.names(p)
		}
	}
}

func (b *builder) record(r *Request) {
	path := r.path()
	switch r.Op {
	case opCreate, opSync:
		b.text("path")
	case opCreate2, opCreateContainer, opCreateTTL:
		b.text("path")
		b.stat("", "new")
	case opExists, opSetData, opSetACL:
		b.stat("", path)
	case opGetData:
		b.data("data", path)
		b.stat("", path)
	case opGetACL:
		b.acl()
		b.stat("", path)
	case opGetChildren, opGetEphemerals:
		b.names("name")
	case opGetChildren2:
		b.names("name")
		b.stat("", path)
	case opMulti, opMultiRead:
		b.results(r)
	case opAddWatch:
		b.num("result", int64(b.d.int()))
	case opDescendants:
		b.num("number", int64(b.d.int()))
	case opSASL:
		b.text("token")
	case opWhoAmI:
		b.identities()
	}
}

// identities are a set (protocol 3.5: one entry per identity of the connection).
func (b *builder) identities() {
	n := b.d.count()
	b.num("identities", int64(n))
	var all []string
	for range n {
		s, _ := b.d.buffer()
		u, ok := b.d.buffer()
		all = append(all, fmt.Sprintf("%s:%s:%v", s, u, ok))
	}
	slices.Sort(all)
	for i, s := range all {
		b.add(field{name: "identity" + strconv.Itoa(i), kind: kindText, text: s})
	}
}

// decodeReply reads a reply by the operation it answers. What cannot be read is in rest.
func decodeReply(r *Request, body []byte) item {
	d := dec{b: body}
	i := item{what: "reply", xid: d.int(), zxid: d.long(), err: d.int()}
	if d.err != nil {
		i.rest = body
		return i
	}
	if len(d.b) == 0 {
		return i
	}
	if i.err != 0 && r.Op != opSASL {
		i.rest = d.b
		return i
	}
	b := builder{d: d}
	b.record(r)
	if b.d.err != nil {
		i.rest = d.b
		return i
	}
	i.fields, i.rest = b.fields, b.d.b
	return i
}

func decodeEvent(body []byte) item {
	d := dec{b: body}
	i := item{what: "event", xid: d.int(), zxid: d.long(), err: d.int()}
	b := builder{d: d}
	b.num("type", int64(b.d.int()))
	b.num("state", int64(b.d.int()))
	b.text("path")
	if b.d.err != nil {
		i.rest = d.b
		return i
	}
	i.fields, i.rest = b.fields, b.d.b
	return i
}

func eventItem(typ int32, path string, zxid int64) item {
	return item{what: "event", xid: -1, zxid: zxid, fields: []field{
		{name: "type", num: int64(typ)}, {name: "state", num: 3}, {name: "path", kind: kindText, text: path},
	}}
}

func decodeConnect(body []byte) item {
	b := builder{d: dec{b: body}}
	b.num("protocolVersion", int64(b.d.int()))
	b.num("timeOut", int64(b.d.int()))
	b.add(field{name: "sessionId", kind: kindSession, num: b.d.long()})
	b.text("passwd")
	if b.d.err != nil {
		return item{what: "reply", rest: body}
	}
	return item{what: "reply", fields: b.fields, rest: b.d.b}
}

func (i item) get(name string) *field {
	for k := range i.fields {
		if i.fields[k].name == name {
			return &i.fields[k]
		}
	}
	return nil
}
