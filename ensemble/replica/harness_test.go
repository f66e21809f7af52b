package replica

import (
	"math/rand/v2"
	"testing"

	"kvd/kv"
	"kvd/kv/wire"
	"kvd/zab"
	"kvd/zab/quorum"
)

// lab is a few replicas whose messages arrive and whose disks sync at once, in the order in which they were asked to. What
// goes wrong in between is the simulator's business (ensemble/sim); here it is the replica's own rules.
type lab struct {
	t       testing.TB
	nodes   []*node
	nextID  zab.LinkID
	wall    int64
	pending []func()
	// hold keeps Persisted from being reported.
	hold bool
}

type node struct {
	lab     *lab
	id      quorum.MemberID
	r       *Replica
	tree    *kv.Tree
	log     logIndex
	links   map[zab.LinkID]*node
	peers   map[zab.LinkID]zab.LinkID // the other side's id of a link
	seq     uint64                    // newest write not reported, while hold
	results []kv.Code                 // of own operations, in order
	tokens  []uint64
	failed  []Failed
	answers []Revalidated
	synced  []zab.Synced
	serving Serving
	events  []zab.Event
	stopped bool
	down    bool // neither runs nor hears
	turns   int
	refused bool // whoever it dials refuses it
	dials   int
}

// logIndex is the part of a log that the broadcast looks into.
type logIndex struct{ entries []kv.Entry }

func (l *logIndex) Locate(z kv.Zxid) (kv.Zxid, uint64, bool) {
	at, chain := kv.Zxid(0), kv.ChainSeed()
	for i := range l.entries {
		if l.entries[i].Zxid <= z {
			at, chain = l.entries[i].Zxid, l.entries[i].Chain
		}
	}
	return at, chain, true
}

// newLab starts n voters and runs until the last of them leads.
func newLab(t testing.TB, n int, tune func(*Config)) *lab {
	t.Helper()
	l := &lab{t: t, wall: 1_700_000_000_000}
	var ids []quorum.MemberID
	for i := range n {
		ids = append(ids, quorum.MemberID(i+1))
	}
	members, err := quorum.NewConfig(1, ids, nil)
	if err != nil {
		t.Fatal(err)
	}
	inc := zab.Incarnation(0)
	for _, id := range ids {
		nd := &node{lab: l, id: id, tree: kv.NewTree(nil), links: map[zab.LinkID]*node{}, peers: map[zab.LinkID]zab.LinkID{}}
		cfg := Config{ID: id, Members: members, Rand: rand.New(rand.NewPCG(1, uint64(id))), Incarnation: func() zab.Incarnation { inc++; return inc }}
		if tune != nil {
			tune(&cfg)
		}
		nd.r, err = New(cfg, Start{Identity: Identity{ClusterID: [16]byte{1}, Run: uint64(id), Mint: [16]byte{2}}, View: nd.tree.View, History: &nd.log})
		if err != nil {
			t.Fatal(err)
		}
		l.nodes = append(l.nodes, nd)
	}
	for _, a := range l.nodes {
		for _, b := range l.nodes {
			if a != b {
				a.r.ElectionUp(b.id)
			}
		}
	}
	for range 100 {
		l.tick(false)
		open := 0
		for _, nd := range l.nodes {
			if nd.serving.Open {
				open++
			}
		}
		if open == n {
			return l
		}
	}
	t.Fatalf("no leader: %+v", l.nodes[n-1].r.Status())
	return nil
}

func (l *lab) leader() *node { return l.nodes[len(l.nodes)-1] }

func (l *lab) tick(gap bool) {
	l.wall += 50
	for _, nd := range l.running() {
		nd.r.Tick(Clock{WallMs: l.wall, Gap: gap})
	}
	l.run()
}

// run carries out everything until nothing is left to do.
func (l *lab) run() {
	for {
		for len(l.pending) > 0 {
			do := l.pending[0]
			l.pending = l.pending[1:]
			do()
		}
		busy := false
		for _, nd := range l.running() {
			if nd.r.HasReady() {
				rd := nd.r.Ready()
				nd.carryOut(&rd)
				busy = true
			}
		}
		if !busy && len(l.pending) == 0 {
			return
		}
	}
}

func (l *lab) running() (up []*node) {
	for _, nd := range l.nodes {
		if !nd.down {
			up = append(up, nd)
		}
	}
	return up
}

func (l *lab) later(do func()) { l.pending = append(l.pending, do) }

func (nd *node) carryOut(rd *Ready) {
	l := nd.lab
	for i := range rd.Writes {
		w := &rd.Writes[i]
		nd.log.entries = append(nd.log.entries, w.Append...)
		nd.seq = w.Seq
	}
	if n := len(rd.Writes); n > 0 && !l.hold {
		seq := nd.seq
		l.later(func() { nd.r.Persisted(seq) })
	}
	for _, o := range rd.Send {
		if to := nd.links[o.Link]; to != nil && !to.down {
			link, msg := nd.peers[o.Link], o.Msg
			l.later(func() { to.r.PeerMessage(nd.id, link, msg) })
		}
	}
	for _, c := range rd.CloseLinks {
		l.cut(nd, c.Link)
	}
	if c := rd.Connect; c != nil && nd.refused {
		if nd.dials++; nd.dials > 1000 {
			l.t.Fatalf("member %d dials without a pause", nd.id)
		}
		l.nextID++
		link := l.nextID
		l.later(func() {
			nd.r.LinkUp(c.Leader, link, true)
			nd.r.PeerMessage(c.Leader, link, &zab.Refuse{Reason: "test"})
		})
	} else if c != nil && !l.nodes[c.Leader-1].down {
		leader := l.nodes[c.Leader-1]
		l.nextID += 2
		mine, theirs := l.nextID, l.nextID+1
		nd.links[mine], leader.links[theirs] = leader, nd
		nd.peers[mine], leader.peers[theirs] = theirs, mine
		l.later(func() { leader.r.LinkUp(nd.id, theirs, false); nd.r.LinkUp(leader.id, mine, true) })
	}
	for _, a := range rd.Apply {
		entries := a.Entries
		l.later(func() {
			before := len(nd.tokens)
			if err := nd.tree.Apply(entries, nd); err != nil {
				l.t.Fatal(err)
			}
			token := uint64(0)
			if len(nd.tokens) > before {
				token = nd.tokens[len(nd.tokens)-1]
			}
			nd.r.Applied(entries[len(entries)-1].Zxid, token)
		})
	}
	for _, e := range rd.Elections {
		to, kind, payload := l.nodes[e.To-1], e.Kind, e.Payload
		if !to.down {
			l.later(func() { to.r.ElectionMessage(nd.id, kind, payload) })
		}
	}
	nd.failed = append(nd.failed, rd.Failed...)
	nd.answers = append(nd.answers, rd.Revalidated...)
	nd.synced = append(nd.synced, rd.Synced...)
	nd.events = append(nd.events, rd.Events...)
	if rd.Serving != nil {
		nd.serving = *rd.Serving
	}
	if rd.SnapshotTurn {
		nd.turns++
	}
	nd.stopped = nd.stopped || rd.Stopped
}

// cut ends a link at nd's side; the other side hears of it.
func (l *lab) cut(nd *node, id zab.LinkID) {
	to, other := nd.links[id], nd.peers[id]
	delete(nd.links, id)
	if to == nil {
		return
	}
	l.later(func() {
		delete(to.links, other)
		to.r.LinkDown(nd.id, other)
	})
}

// breakLinks resets all links of nd: both sides hear of it.
func (l *lab) breakLinks(nd *node) {
	for id, to := range nd.links {
		other := nd.peers[id]
		delete(to.links, other)
		delete(nd.links, id)
		l.later(func() { to.r.LinkDown(nd.id, other); nd.r.LinkDown(to.id, id) })
	}
}

// Begin implements kv.Sink.
func (nd *node) Begin(_ kv.Zxid, h *kv.TxnHeader) (want, wantView bool) {
	return h.Origin == uint8(nd.id) && h.Request != 0, false
}

// Done implements kv.Sink.
func (nd *node) Done(_ kv.Zxid, h *kv.TxnHeader, r *kv.Result, _ *kv.View) {
	nd.tokens = append(nd.tokens, h.Request)
	nd.results = append(nd.results, r.Code)
}

// open creates a session on nd.
func (nd *node) open(token uint64, id kv.SessionID) {
	nd.lab.t.Helper()
	if err := nd.r.Submit(ClientOp{Request: token, Conn: uint64(id), Session: id, Op: OpCreateSession, Body: AppendCreateSession(nil, 4000, [16]byte{7})}); err != nil {
		nd.lab.t.Fatal(err)
	}
	nd.lab.run()
	if n := len(nd.results); n == 0 || nd.results[n-1] != kv.CodeOK {
		nd.lab.t.Fatalf("session %v: %v", id, nd.results)
	}
}

// create is on a connection of the session's number; on changes that.
func create(token uint64, id kv.SessionID, path string) ClientOp {
	q := kv.Request{Op: kv.OpCreate, Path: path, ACL: kv.OpenACL()}
	return ClientOp{Request: token, Conn: uint64(id), Session: id, Op: int32(kv.OpCreate), Body: wire.AppendRequest(nil, &q)}
}

func on(conn uint64, op ClientOp) ClientOp {
	op.Conn = conn
	return op
}

func set(token uint64, id kv.SessionID, path string, data []byte) ClientOp {
	q := kv.Request{Op: kv.OpSetData, Path: path, Data: data, Version: -1}
	return ClientOp{Request: token, Conn: uint64(id), Session: id, Op: int32(kv.OpSetData), Body: wire.AppendRequest(nil, &q)}
}
