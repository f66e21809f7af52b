// Package clienttest is a small ZooKeeper server in memory, for tests of programs that use kv/client. It
// is one process's map, not an ensemble: it knows sessions, ephemerals, sequences, one-shot watches, multi and
// `srvr`, and it fails on command (see Hook). Its answers to correct requests are those of the real server;
// it is no reference for anything else.
package clienttest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// Action is what a Hook makes the server do with a request.
type Action uint8

// The actions.
const (
	Answer     Action = iota // as usual
	Drop                     // close the connection without doing anything
	DropAfter                // do it, then close the connection without a reply
	Swallow                  // neither do nor answer it; what follows is answered
	Garble                   // answer with a record that does not parse
	WrongXid                 // answer with another xid
	OtherError               // answer with error -6
	NoNode                   // do nothing, and answer with error -101
)

// Hook decides about each request before it is done. It runs under the server's lock.
type Hook func(h wire.RequestHeader, body []byte) Action

type node struct {
	data     []byte
	stat     kv.Stat
	sequence int32
}

type session struct {
	id       kv.SessionID
	password [wire.PasswordBytes]byte
	timeout  int32
	expired  bool
}

type watchKey struct {
	child bool
	path  string
}

type conn struct {
	rw      io.ReadWriteCloser
	session *session
	watches map[watchKey]bool
	writeMu sync.Mutex
}

func (c *conn) send(b []byte) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	_, _ = c.rw.Write(b)
}

// Server is the server. Listen, or Dial in memory, as often as needed; all connections share one tree.
type Server struct {
	mu        sync.Mutex
	zxid      int64
	nodes     map[string]*node
	sessions  map[kv.SessionID]*session
	conns     map[*conn]struct{}
	listeners []net.Listener
	hook      Hook
	refusing  bool
	stats     wire.ServerStats
	requests  map[wire.Op]int // received
	handled   sync.WaitGroup
}

// NewServer returns a server with an empty tree.
func NewServer() *Server {
	s := &Server{
		nodes:    map[string]*node{"/": {}, "/zookeeper": {}, "/zookeeper/config": {}},
		sessions: make(map[kv.SessionID]*session),
		conns:    make(map[*conn]struct{}),
		requests: make(map[wire.Op]int),
		zxid:     1 << 32,
	}
	s.nodes["/"].stat.NumChildren, s.nodes["/zookeeper"].stat.NumChildren = 1, 1
	return s
}

// SetHook replaces the hook; nil answers everything.
func (s *Server) SetHook(h Hook) {
	s.mu.Lock()
	s.hook = h
	s.mu.Unlock()
}

// SetStats sets what `srvr` answers, but for Zxid and Received.
func (s *Server) SetStats(st wire.ServerStats) {
	s.mu.Lock()
	s.stats = st
	s.mu.Unlock()
}

// Refuse makes the server close new connections without an answer, as one does that is not serving.
func (s *Server) Refuse(refuse bool) {
	s.mu.Lock()
	s.refusing = refuse
	s.mu.Unlock()
}

// Requests says how often an operation was received.
func (s *Server) Requests(op wire.Op) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[op]
}

// Sessions lists the living sessions.
func (s *Server) Sessions() []kv.SessionID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []kv.SessionID
	for id, sess := range s.sessions {
		if !sess.expired {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// CutAll closes every connection; sessions live on.
func (s *Server) CutAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.rw.Close()
	}
}

// Expire ends a session as the real server does: its ephemerals go, its connection is closed.
func (s *Server) Expire(id kv.SessionID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sess := s.sessions[id]; sess != nil {
		sess.expired = true
		s.zxid++
		s.removeEphemerals(id)
	}
	for c := range s.conns {
		if c.session != nil && c.session.id == id {
			c.rw.Close()
		}
	}
}

// Listen serves on a loopback port from the kernel and returns its address.
func (s *Server) Listen() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	s.listeners = append(s.listeners, ln)
	s.mu.Unlock()
	s.handled.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.handled.Go(func() { s.handle(c) })
		}
	})
	return ln.Addr().String(), nil
}

// Pipe serves one connection in memory and returns the client's end.
func (s *Server) Pipe() net.Conn {
	client, server := net.Pipe()
	s.handled.Go(func() { s.handle(server) })
	return client
}

// Close ends the listeners and all connections and waits for their goroutines.
func (s *Server) Close() {
	s.mu.Lock()
	for _, ln := range s.listeners {
		ln.Close()
	}
	for c := range s.conns {
		c.rw.Close()
	}
	s.refusing = true
	s.mu.Unlock()
	s.handled.Wait()
}

func (s *Server) handle(rw io.ReadWriteCloser) {
	c := &conn{rw: rw, watches: make(map[watchKey]bool)}
	defer rw.Close()
	s.mu.Lock()
	refusing := s.refusing
	if !refusing {
		s.conns[c] = struct{}{}
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
	if refusing {
		return
	}
	frames := wire.NewFrameReader(rw, wire.DefaultMaxFrameBytes)
	first, err := frames.Peek(4)
	if err != nil {
		return
	}
	if w, ok := wire.ParseWord(first); ok {
		c.send(s.word(w))
		return
	}
	frame, err := frames.Next()
	if err != nil || !s.connect(c, frame) {
		return
	}
	for {
		frame, err := frames.Next()
		if err != nil {
			return
		}
		h, body, err := wire.SplitRequest(frame)
		if err != nil {
			return
		}
		if !s.request(c, h, body) {
			return
		}
	}
}

func (s *Server) word(w wire.Word) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Zxid = kv.Zxid(s.zxid)
	switch w {
	case wire.WordRuok:
		return []byte(wire.AnswerRuok)
	case wire.WordIsro:
		return []byte(wire.AnswerIsroRW)
	case wire.WordSrvr:
		return wire.AppendSrvr(nil, &st)
	case wire.WordStat:
		return wire.AppendStatWord(nil, &st)
	}
	return []byte(wire.AnswerNotAllowed(w))
}

func (s *Server) connect(c *conn, frame []byte) bool {
	var q wire.ConnectRequest
	if wire.Decode(frame, &q) != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.LastZxidSeen > s.zxid {
		return false
	}
	resp := wire.ConnectResponse{HasReadOnly: q.HasReadOnly}
	sess := s.sessions[q.Session]
	switch {
	case q.Session == 0:
		s.zxid++
		sess = &session{id: kv.SessionID(1<<56 + s.zxid), timeout: max(q.TimeoutMs, 1)}
		copy(sess.password[:], fmt.Sprintf("password%08x", s.zxid))
		s.sessions[sess.id] = sess
	case sess == nil || sess.expired || string(q.Password) != string(sess.password[:]):
		sess = nil
	default:
		for old := range s.conns {
			if old.session == sess {
				old.rw.Close()
			}
		}
	}
	if sess != nil {
		resp.TimeoutMs, resp.Session, resp.Password = sess.timeout, sess.id, sess.password
		c.session = sess
	}
	b, mark := wire.BeginFrame(nil)
	c.send(wire.EndFrame(resp.AppendTo(b), mark))
	return sess != nil
}

// request handles one request; false closes the connection.
func (s *Server) request(c *conn, h wire.RequestHeader, body []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests[h.Op]++
	action := Answer
	if s.hook != nil {
		action = s.hook(h, body)
	}
	switch action {
	case Drop:
		return false
	case Swallow:
		return true
	}
	var record []byte
	code := kv.CodeNoNode
	if action != NoNode {
		record, code = s.do(c, h.Op, body)
	}
	switch action {
	case DropAfter:
		return false
	case Garble:
		record, code = []byte{0x7f}, kv.CodeOK
	case WrongXid:
		h.Xid += 5
	case OtherError:
		code = kv.CodeUnimplemented
	}
	b, mark := wire.BeginFrame(nil)
	b = (&wire.ReplyHeader{Xid: h.Xid, Zxid: s.zxid, Err: code}).AppendTo(b)
	if code == kv.CodeOK {
		b = append(b, record...)
	}
	c.send(wire.EndFrame(b, mark))
	return h.Op != wire.OpCloseSession
}

// do performs one operation.
func (s *Server) do(c *conn, op wire.Op, body []byte) ([]byte, kv.Code) {
	r := wire.NewReader(body)
	switch op {
	case wire.OpPing:
		return nil, kv.CodeOK
	case wire.OpCloseSession:
		c.session.expired = true
		s.zxid++
		s.removeEphemerals(c.session.id)
		return nil, kv.CodeOK
	case wire.OpSync:
		return slices.Clone(body), kv.CodeOK
	case wire.OpSetWatches:
		var q wire.SetWatchesRequest
		q.DecodeFrom(&r)
		s.setWatches(c, &q)
		return nil, kv.CodeOK
	case wire.OpExists, wire.OpGetData, wire.OpGetChildren, wire.OpGetChildren2:
		var q wire.PathWatchRequest
		q.DecodeFrom(&r)
		return s.readOp(c, op, strings.Clone(q.Path), q.Watch)
	}
	var q kv.Request
	if err := wire.DecodeRequest(op, body, &q); errors.Is(err, wire.ErrNotWrite) {
		return nil, kv.CodeUnimplemented
	} else if err != nil {
		return nil, kv.CodeMarshallingError
	}
	s.zxid++
	if op != wire.OpMulti {
		_, record, code := s.writeOp(c, &q)
		if code == kv.CodeOK {
			s.fire(&q)
		}
		return record[min(len(record), multiHead):], code
	}
	var results []byte
	var undos []func()
	for i := range q.Ops {
		undo, record, code := s.writeOp(c, &q.Ops[i])
		if code == kv.CodeOK {
			results, undos = append(results, record...), append(undos, undo)
			continue
		}
		for _, undo := range slices.Backward(undos) {
			undo()
		}
		results = nil
		for j := range q.Ops {
			each := kv.CodeOK
			if j == i {
				each = code
			} else if j > i {
				each = kv.CodeRuntimeInconsistency
			}
			results = wire.AppendMultiError(results, each)
		}
		return wire.AppendMultiEnd(results), kv.CodeOK
	}
	for i := range q.Ops {
		s.fire(&q.Ops[i])
	}
	return wire.AppendMultiEnd(results), kv.CodeOK
}

const multiHead = 9 // bytes before a result's record within a multi

// setWatches tells what has changed since the client saw it, and sets the other watches again.
func (s *Server) setWatches(c *conn, q *wire.SetWatchesRequest) {
	rearm := func(list []string, child, absent bool) {
		for _, p := range list {
			n, event := s.nodes[p], int32(0)
			switch {
			case absent && n != nil:
				event = wire.EventCreated
			case !absent && n == nil:
				event = wire.EventDeleted
			case n != nil && child && int64(n.stat.Pzxid) > q.Relative:
				event = wire.EventChildrenChanged
			case n != nil && !child && int64(n.stat.Mzxid) > q.Relative:
				event = wire.EventDataChanged
			default:
				c.watches[watchKey{child, strings.Clone(p)}] = true
				continue
			}
			c.send(wire.AppendEventFrame(nil, s.zxid, event, p))
		}
	}
	rearm(q.Data, false, false)
	rearm(q.Exist, false, true)
	rearm(q.Child, true, false)
}

func (s *Server) readOp(c *conn, op wire.Op, p string, watch bool) ([]byte, kv.Code) {
	n := s.nodes[p]
	if watch && (n != nil || op == wire.OpExists) {
		c.watches[watchKey{op == wire.OpGetChildren || op == wire.OpGetChildren2, p}] = true
	}
	if n == nil {
		return nil, kv.CodeNoNode
	}
	switch op {
	case wire.OpExists:
		return wire.AppendStat(nil, &n.stat), kv.CodeOK
	case wire.OpGetData:
		return (&wire.DataResponse{Data: n.data, Stat: n.stat}).AppendTo(nil), kv.CodeOK
	}
	var names []string
	for q := range s.nodes {
		if q != "/" && path.Dir(q) == p {
			names = append(names, path.Base(q))
		}
	}
	slices.Sort(names)
	slices.Reverse(names) // real servers promise no order
	if op == wire.OpGetChildren {
		return (&wire.NamesResponse{Names: names}).AppendTo(nil), kv.CodeOK
	}
	return (&wire.NamesStatResponse{Names: names, Stat: n.stat}).AppendTo(nil), kv.CodeOK
}

// writeOp performs a write and returns its undo and its result as a multi has it. A create's request gets the
// real path.
func (s *Server) writeOp(c *conn, q *kv.Request) (undo func(), record []byte, code kv.Code) {
	now := time.Now().UnixMilli()
	z := kv.Zxid(s.zxid)
	p := strings.Clone(q.Path)
	switch q.Op {
	case kv.OpCreate, kv.OpCreate2:
		if q.Flags < 0 || q.Flags > kv.FlagContainer || !strings.HasPrefix(p, "/") {
			return nil, nil, kv.CodeBadArguments
		}
		if p == "/" {
			return nil, nil, kv.CodeNodeExists
		}
		dir := path.Dir(p)
		if strings.HasSuffix(p, "/") {
			dir = strings.TrimSuffix(p, "/")
		}
		parent := s.nodes[dir]
		if parent == nil {
			return nil, nil, kv.CodeNoNode
		}
		if q.Flags == kv.FlagSequential || q.Flags == kv.FlagEphemeralSequential {
			p = fmt.Sprintf("%s%010d", p, parent.sequence)
		}
		if kv.ValidatePath(p) != nil {
			return nil, nil, kv.CodeBadArguments
		}
		if s.nodes[p] != nil {
			return nil, nil, kv.CodeNodeExists
		}
		if parent.stat.EphemeralOwner != 0 {
			return nil, nil, kv.CodeNoChildrenForEphemerals
		}
		old := *parent
		n := &node{data: slices.Clone(q.Data), stat: kv.Stat{Czxid: z, Mzxid: z, Pzxid: z, Ctime: now, Mtime: now, DataLength: int32(len(q.Data))}}
		if q.Flags == kv.FlagEphemeral || q.Flags == kv.FlagEphemeralSequential {
			n.stat.EphemeralOwner = c.session.id
		}
		s.nodes[p] = n
		parent.sequence++
		parent.stat.Cversion++
		parent.stat.NumChildren++
		parent.stat.Pzxid = z
		q.Path = p
		return func() { delete(s.nodes, p); *parent = old }, wire.AppendMultiResult(nil, wire.Op(q.Op), p, &n.stat), kv.CodeOK
	case kv.OpSetData, kv.OpDelete, kv.OpCheck:
		n := s.nodes[p]
		switch {
		case n == nil:
			return nil, nil, kv.CodeNoNode
		case q.Version != -1 && q.Version != n.stat.Version:
			return nil, nil, kv.CodeBadVersion
		}
		old := *n
		switch q.Op {
		case kv.OpSetData:
			n.data = slices.Clone(q.Data)
			n.stat.Version++
			n.stat.Mzxid, n.stat.Mtime, n.stat.DataLength = z, now, int32(len(q.Data))
			return func() { *n = old }, wire.AppendMultiResult(nil, wire.OpSetData, "", &n.stat), kv.CodeOK
		case kv.OpDelete:
			if n.stat.NumChildren > 0 {
				return nil, nil, kv.CodeNotEmpty
			}
			parent := s.nodes[path.Dir(p)]
			oldParent := *parent
			s.remove(p)
			return func() { s.nodes[p] = n; *parent = oldParent }, wire.AppendMultiResult(nil, wire.OpDelete, "", nil), kv.CodeOK
		}
		return func() {}, wire.AppendMultiResult(nil, wire.OpCheck, "", nil), kv.CodeOK
	}
	return nil, nil, kv.CodeUnimplemented
}

func (s *Server) remove(p string) {
	parent := s.nodes[path.Dir(p)]
	delete(s.nodes, p)
	parent.stat.Cversion++
	parent.stat.NumChildren--
	parent.stat.Pzxid = kv.Zxid(s.zxid)
}

func (s *Server) removeEphemerals(id kv.SessionID) {
	for p, n := range s.nodes {
		if n.stat.EphemeralOwner == id {
			s.remove(p)
			s.fire(&kv.Request{Op: kv.OpDelete, Path: p})
		}
	}
}

// fire sends the events of a write that was done.
func (s *Server) fire(q *kv.Request) {
	p := strings.Clone(q.Path)
	for c := range s.conns {
		take := func(child bool, p string) bool {
			k := watchKey{child, p}
			if !c.watches[k] {
				return false
			}
			delete(c.watches, k)
			return true
		}
		send := func(typ int32, p string) { c.send(wire.AppendEventFrame(nil, s.zxid, typ, p)) }
		switch q.Op {
		case kv.OpCreate, kv.OpCreate2:
			if take(false, p) {
				send(wire.EventCreated, p)
			}
		case kv.OpSetData:
			if take(false, p) {
				send(wire.EventDataChanged, p)
			}
			continue
		case kv.OpDelete:
			data, child := take(false, p), take(true, p)
			if data || child {
				send(wire.EventDeleted, p)
			}
		default:
			continue
		}
		if take(true, path.Dir(p)) {
			send(wire.EventChildrenChanged, path.Dir(p))
		}
	}
}
