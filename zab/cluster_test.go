package zab

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"kvd/kv"
	"kvd/zab/quorum"
)

// This file is the harness of the package's tests: members with in-memory FIFO links and disks with explicit
// completion, and the safety predicates of zab-rules d checked on everything that happens.

// testDisk is the content of a disk. hist is the whole history, what snapshots cover included; base and logStart say
// what of it is only in the snapshot.
type testDisk struct {
	st   DurableState
	hist []kv.Entry
	snap []kv.Entry // content of the newest snapshot
	// dirty: a script says that snap holds what was never committed.
	dirty bool
}

func (d *testDisk) clone() *testDisk {
	c := *d
	c.hist = slices.Clone(d.hist)
	return &c
}

func (d *testDisk) index(z kv.Zxid) int { // number of entries <= z
	return sort.Search(len(d.hist), func(i int) bool { return d.hist[i].Zxid > z })
}

func (d *testDisk) Locate(z kv.Zxid) (kv.Zxid, uint64, bool) {
	if z < d.st.LogStart {
		return 0, 0, false
	}
	at, chain := d.tip(d.index(z))
	return at, chain, true
}

func (d *testDisk) tip(n int) (kv.Zxid, uint64) {
	if n == 0 {
		return 0, kv.ChainSeed()
	}
	return d.hist[n-1].Zxid, d.hist[n-1].Chain
}

func (d *testDisk) read(after, through kv.Zxid, maxBytes int) ([]kv.Entry, error) {
	if after < d.st.LogStart {
		return nil, errors.New("compacted")
	}
	i, j := d.index(after), d.index(through)
	n, size := i, 0
	for n < j && (n == i || size < maxBytes) {
		size += len(d.hist[n].Payload)
		n++
	}
	return slices.Clone(d.hist[i:n]), nil
}

// write applies w as the log store does: all of it or nothing, in field order.
func (d *testDisk) write(w Write, snapshots func(handle uint64) []kv.Entry) {
	if w.Promise != nil {
		d.st.Accepted = *w.Promise
	}
	if w.Install != nil {
		d.hist = slices.Clone(snapshots(w.Install.Handle))
		d.snap, d.dirty = slices.Clone(d.hist), false
		d.st.Base, d.st.BaseChain = w.Install.Zxid, w.Install.Chain
		d.st.LogStart, d.st.LogStartChain = w.Install.Zxid, w.Install.Chain
	}
	if w.Truncate != nil {
		d.hist = slices.Clone(d.hist[:d.index(*w.Truncate)])
	}
	d.hist = append(d.hist, w.Append...)
	if w.Current != 0 {
		d.st.Current = w.Current
	}
	if w.Trusted {
		d.st.Unknown = false
	}
	d.st.Last, d.st.LastChain = d.tip(len(d.hist))
}

type testNode struct {
	id     quorum.MemberID
	cfg    Config
	inc    Incarnation
	p      *Peer // nil: down
	twin   *Peer // if not nil: a clone that gets the same inputs and must stay equal
	disk   *testDisk
	shadow *testDisk // disk plus everything handed out
	queue  []Write
	held   bool // disk does not complete by itself
	// applied is A(m) of this run.
	applied []kv.Entry
	synced  []Synced
	inbound []Inbound
	events  []string
	dial    *Connect
	// asked are log reads and snapshots that the shell has not answered yet; lazy leaves them to serve.
	asked []func()
	lazy  bool
	// syncs is what was committed when each Sync was asked for (S36).
	syncs  map[uint64]kv.Zxid
	nsyncs uint64
	role   RoleChange
	reigns bool
	dirty  bool // applied comes from a snapshot of what was never committed (S24)
}

type testLink struct {
	id              LinkID
	learner, leader quorum.MemberID
	queue           map[quorum.MemberID][]linkItem // by receiver
	closed          bool                           // by one end: what is queued is still delivered
}

type linkItem struct {
	msg   Message
	files *SnapshotRef
}

func (l *testLink) other(id quorum.MemberID) quorum.MemberID {
	if id == l.learner {
		return l.leader
	}
	return l.learner
}

type establishment struct {
	who quorum.MemberID
	inc Incarnation
	h   []kv.Entry
}

type direction struct{ from, to quorum.MemberID }

type promiseKey struct {
	m quorum.MemberID
	e kv.Epoch
}

// cluster is the ensemble under test.
type cluster struct {
	members quorum.Config
	nodes   map[quorum.MemberID]*testNode
	links   []*testLink
	nextID  LinkID
	snaps   [][]kv.Entry // by handle - 1
	base    Config       // template
	log     func(format string, args ...any)
	verbose bool
	blocked map[direction]bool // stabilize delivers nothing there

	// Ghost state of the predicates.
	g         []kv.Entry
	seen      map[kv.Zxid]uint64
	est       map[kv.Epoch]establishment
	promises  map[promiseKey]Incarnation
	epochs    map[quorum.MemberID][2]kv.Epoch
	violation string
	// covered counts what happened, so that a test can demand that it did.
	covered map[string]int
}

func newCluster(voters, observers int, base Config) *cluster {
	var vs, os []quorum.MemberID
	for i := 1; i <= voters; i++ {
		vs = append(vs, quorum.MemberID(i))
	}
	for i := 1; i <= observers; i++ {
		os = append(os, quorum.MemberID(voters+i))
	}
	cfg, err := quorum.NewConfig(1, vs, os)
	if err != nil {
		panic(err)
	}
	c := &cluster{
		members: cfg, nodes: map[quorum.MemberID]*testNode{}, base: base, log: func(string, ...any) {},
		seen: map[kv.Zxid]uint64{}, est: map[kv.Epoch]establishment{}, promises: map[promiseKey]Incarnation{},
		epochs: map[quorum.MemberID][2]kv.Epoch{}, blocked: map[direction]bool{}, covered: map[string]int{},
	}
	for _, id := range cfg.Members() {
		n := &testNode{id: id, disk: &testDisk{}, cfg: base}
		n.cfg.ID, n.cfg.Members = id, cfg
		n.cfg.Incarnation = func() Incarnation { return n.inc }
		c.nodes[id] = n
		c.start(id)
	}
	return c
}

func (c *cluster) fail(format string, args ...any) {
	if c.violation == "" {
		c.violation = fmt.Sprintf(format, args...)
	}
}

func (c *cluster) start(id quorum.MemberID) {
	n := c.nodes[id]
	n.queue, n.inbound, n.dial, n.asked = nil, nil, nil, nil
	n.shadow = n.disk.clone()
	n.applied, n.dirty, n.reigns = slices.Clone(n.disk.snap), n.disk.dirty, false
	n.role = RoleChange{}
	p, err := New(n.cfg, n.disk.st, n.disk)
	if err != nil {
		c.fail("start %d: %v", id, err)
		return
	}
	n.p, n.twin = p, nil
}

// do gives one input to n, and to its twin.
func (n *testNode) do(input func(p *Peer)) {
	n.inc = Incarnation(n.id)<<32 | (n.inc+1)&0xffffffff
	input(n.p)
	if n.twin != nil {
		input(n.twin)
	}
}

// checkTwin compares a clone with its original.
func (c *cluster) checkTwin(n *testNode) {
	if n.p == nil || n.twin == nil {
		return
	}
	if a, b := n.p.AppendCanonical(nil), n.twin.AppendCanonical(nil); !bytes.Equal(a, b) {
		c.fail("the clone of member %d has come to another state", n.id)
	}
}

func (c *cluster) crash(id quorum.MemberID) {
	n := c.nodes[id]
	n.p, n.twin = nil, nil
	n.queue, n.dial, n.asked = nil, nil, nil
	for _, l := range slices.Clone(c.links) {
		if l.learner == id || l.leader == id {
			c.breakLink(l)
		}
	}
}

// breakLink ends a link at both sides at once; what was on it is lost.
func (c *cluster) breakLink(l *testLink) {
	c.links = slices.DeleteFunc(c.links, func(x *testLink) bool { return x == l })
	for _, end := range []quorum.MemberID{l.learner, l.leader} {
		if n := c.nodes[end]; n.p != nil {
			n.do(func(p *Peer) { p.LinkDown(l.other(end), l.id) })
			c.pump(n)
		}
	}
}

func (c *cluster) link(id LinkID) *testLink {
	for _, l := range c.links {
		if l.id == id {
			return l
		}
	}
	return nil
}

func (c *cluster) between(a, b quorum.MemberID) *testLink {
	for i := len(c.links) - 1; i >= 0; i-- {
		if l := c.links[i]; l.learner == a && l.leader == b || l.learner == b && l.leader == a {
			return l
		}
	}
	return nil
}

// connect answers a node's pending dial.
func (c *cluster) connect(n *testNode) bool {
	if n.p == nil || n.dial == nil {
		return false
	}
	d := *n.dial
	n.dial = nil
	target := c.nodes[d.Leader]
	if target == nil || target.p == nil {
		n.do(func(p *Peer) { p.ConnectFailed(d.Attempt) })
		c.pump(n)
		return true
	}
	c.nextID++
	l := &testLink{id: c.nextID, learner: n.id, leader: d.Leader, queue: map[quorum.MemberID][]linkItem{}}
	c.links = append(c.links, l)
	target.do(func(p *Peer) { p.LinkUp(n.id, l.id, false) })
	n.do(func(p *Peer) { p.LinkUp(d.Leader, l.id, true) })
	c.pump(target)
	c.pump(n)
	return true
}

// deliver moves the oldest message for `to` on l.
func (c *cluster) deliver(l *testLink, to quorum.MemberID) bool {
	q := l.queue[to]
	if len(q) == 0 {
		return false
	}
	it := q[0]
	l.queue[to] = q[1:]
	n := c.nodes[to]
	if n.p == nil {
		return true
	}
	from := l.other(to)
	if it.files != nil {
		n.do(func(p *Peer) {
			p.SnapshotProgress(l.id)
			p.SnapshotReceived(l.id, *it.files, true)
		})
	} else {
		if c.verbose {
			c.log("%d->%d %s", from, to, describe(it.msg))
		}
		n.do(func(p *Peer) { p.Step(from, l.id, it.msg) })
	}
	c.pump(n)
	return true
}

// settle ends links that were closed by one side and have nothing more to deliver.
func (c *cluster) settle() {
	for _, l := range slices.Clone(c.links) {
		if l.closed && len(l.queue[l.learner]) == 0 && len(l.queue[l.leader]) == 0 {
			c.breakLink(l)
		}
	}
}

// persist completes the oldest k writes of n (all if k is 0).
func (c *cluster) persist(n *testNode, k int) bool {
	if n.p == nil || len(n.queue) == 0 {
		return false
	}
	if k == 0 || k > len(n.queue) {
		k = len(n.queue)
	}
	for _, w := range n.queue[:k] {
		c.checkWrite(n, w)
		n.disk.write(w, c.snapshot)
	}
	seq := n.queue[k-1].Seq
	n.queue = n.queue[k:]
	c.check()
	n.do(func(p *Peer) { p.Persisted(seq) })
	c.pump(n)
	return true
}

func (c *cluster) snapshot(handle uint64) []kv.Entry { return c.snaps[handle-1] }

// takeSnapshot makes n's own snapshot at what it has applied; keep entries stay in the log before it.
func (c *cluster) takeSnapshot(n *testNode, keep int) {
	if n.p == nil || len(n.queue) > 0 || len(n.applied) == 0 {
		return
	}
	z := n.applied[len(n.applied)-1].Zxid
	d := n.disk
	if z <= d.st.Base || z > d.st.Last {
		return
	}
	k := d.index(z)
	d.st.Base, d.st.BaseChain = d.tip(k)
	d.snap = slices.Clone(n.applied)
	if s := k - keep; s > 0 {
		if at, chain := d.tip(s); at > d.st.LogStart {
			if z, ok := n.p.OldestNeeded(); !ok || at <= z {
				d.st.LogStart, d.st.LogStartChain = at, chain
			}
		}
	}
	n.shadow.st.Base, n.shadow.st.LogStart = d.st.Base, d.st.LogStart
	n.do(func(p *Peer) { p.SnapshotTaken(d.st.Base, d.st.BaseChain, d.st.LogStart, d.st.LogStartChain) })
	c.pump(n)
}

// pump carries out everything n has ready, as a shell does.
func (c *cluster) pump(n *testNode) {
	for n.p != nil && n.p.HasReady() {
		c.checkTwin(n)
		if n.twin != nil {
			n.twin.Ready()
		}
		c.carryOut(n, n.p.Ready())
		c.check()
	}
}

func (c *cluster) carryOut(n *testNode, rd Ready) {
	for _, e := range rd.Events {
		if c.verbose {
			c.log("%d: %s %s", n.id, e.Kind, e.Text)
		}
	}
	for _, e := range rd.Events {
		switch e.Kind {
		case "sync":
			if _, rest, found := strings.Cut(e.Text, "row="); found {
				c.covered["row "+rest[:1]]++
			}
		case "abdicate", "re-epoch", "need-snapshot":
			c.covered[e.Kind]++
		}
	}
	for _, w := range rd.Writes {
		switch {
		case w.Install != nil:
			c.covered["install"]++
		case w.Truncate != nil && w.Current == 0:
			c.covered["staged truncation"]++
		case w.Truncate != nil:
			c.covered["truncation"]++
		}
		if c.verbose {
			c.log("%d: write %s", n.id, describeWrite(w))
		}
		n.queue = append(n.queue, w)
		n.shadow.write(w, c.snapshot)
		for _, e := range w.Append {
			if chain, ok := c.seen[e.Zxid]; ok && chain != e.Chain {
				c.fail("P5: %s written with two histories", e.Zxid)
			}
			c.seen[e.Zxid] = e.Chain
		}
	}
	if rd.Role != nil {
		n.role = *rd.Role
	}
	c.noteCommits(n)
	for _, o := range rd.Send {
		c.checkSend(n, o)
		l := c.link(o.Link)
		if l == nil || l.closed {
			continue
		}
		l.queue[o.To] = append(l.queue[o.To], linkItem{msg: o.Msg})
		if m, ok := o.Msg.(*Snap); ok {
			c.snaps = append(c.snaps, slices.Clone(n.disk.hist[:n.disk.index(m.Zxid)]))
			l.queue[o.To] = append(l.queue[o.To], linkItem{files: &SnapshotRef{Zxid: m.Zxid, Chain: m.Chain, Handle: uint64(len(c.snaps))}})
		}
	}
	for _, o := range rd.Send {
		if _, ok := o.Msg.(*Snap); ok {
			n.asked = append(n.asked, func() { n.do(func(p *Peer) { p.SnapshotSent(o.Link, true) }) })
		}
	}
	for _, k := range rd.CloseLinks {
		if c.verbose {
			c.log("%d: close link to %d: %s", n.id, k.Peer, k.Reason)
		}
		if l := c.link(k.Link); l != nil {
			l.closed = true
			l.queue[n.id] = nil // nothing is read from it any more
		}
	}
	if rd.Connect != nil {
		d := *rd.Connect
		n.dial = &d
	}
	if rd.Restore != nil {
		n.applied, n.dirty = slices.Clone(c.snapshot(rd.Restore.Handle)), false
	}
	for _, a := range rd.Apply {
		c.apply(n, a)
	}
	for _, q := range rd.Reads {
		n.asked = append(n.asked, func() {
			es, err := n.disk.read(q.After, q.Through, q.MaxBytes)
			n.do(func(p *Peer) { p.LogRead(q.Link, q.After, es, err) })
		})
	}
	for _, s := range rd.Snapshots {
		n.asked = append(n.asked, func() {
			d := n.disk
			n.do(func(p *Peer) { p.SnapshotChosen(s.Link, d.st.Base, d.st.BaseChain, d.st.Base != 0) })
		})
	}
	if !n.lazy {
		c.serve(n)
	}
	for _, y := range rd.Synced {
		c.covered[fmt.Sprintf("sync confirmed %t", y.OK)]++
		if since, asked := n.syncs[y.ID]; asked && y.OK && y.Zxid < since {
			c.fail("C3: sync %d at member %d confirms %s, %s was committed when it was asked for", y.ID, n.id, y.Zxid, since)
		}
	}
	n.synced = append(n.synced, rd.Synced...)
	n.inbound = append(n.inbound, rd.Inbound...)
	for _, e := range rd.Events {
		n.events = append(n.events, e.Kind+" "+e.Text)
	}
}

// serve answers what the shell was asked for.
func (c *cluster) serve(n *testNode) bool {
	if n.p == nil || len(n.asked) == 0 {
		return false
	}
	asked := n.asked
	n.asked = nil
	for _, answer := range asked {
		answer()
	}
	return true
}

// sync asks for a read point and remembers what it must not be older than.
func (c *cluster) sync(n *testNode) {
	if n.p == nil {
		return
	}
	if n.syncs == nil {
		n.syncs = map[uint64]kv.Zxid{}
	}
	n.nsyncs++
	if k := len(c.g); k > 0 {
		n.syncs[n.nsyncs] = c.g[k-1].Zxid
	}
	n.do(func(p *Peer) { p.Sync(n.nsyncs) })
	c.pump(n)
}

func (c *cluster) apply(n *testNode, a Apply) {
	es := a.Entries
	if es == nil {
		i, j := n.disk.index(a.After), n.disk.index(a.Through)
		es = n.disk.hist[i:j]
	}
	last := kv.Zxid(0)
	if len(n.applied) > 0 {
		last = n.applied[len(n.applied)-1].Zxid
	}
	if last != a.After {
		c.fail("P16: member %d applies (%s, %s] on a tree at %s", n.id, a.After, a.Through, last)
		return
	}
	if len(es) == 0 || es[len(es)-1].Zxid != a.Through {
		c.fail("P13: member %d applies through %s, which its disk does not hold", n.id, a.Through)
		return
	}
	n.applied = append(n.applied, es...)
	if a.Through > n.disk.st.Last {
		c.fail("P13: member %d applies %s ahead of its disk at %s", n.id, a.Through, n.disk.st.Last)
	}
	n.do(func(p *Peer) { p.Applied(a.Through) })
}

// noteCommits extends G by what an established leader claims, and notes establishments (P3, P7, P22).
func (c *cluster) noteCommits(n *testNode) {
	p := n.p
	if p == nil {
		return
	}
	reigned := n.reigns // what it committed in the step in which it resigned counts too
	n.reigns = p.leader != nil && p.leader.everEstablished
	if !n.reigns && !reigned {
		return
	}
	s := n.shadow
	k := s.index(p.committed)
	e := p.epoch()
	if p.stage != Broadcast || p.leader == nil {
		// A re-epoch has begun; what the old epoch committed counts.
	} else if est, ok := c.est[e]; !ok {
		h := s.index(kv.MakeZxid(e, 0))
		c.est[e] = establishment{who: n.id, inc: p.leader.inc, h: slices.Clone(s.hist[:h])}
		if len(c.g) > h || len(c.g) > 0 && c.g[len(c.g)-1].Chain != s.hist[len(c.g)-1].Chain {
			c.fail("P7: leader %d of epoch %d lacks committed entries: has %d, committed %d", n.id, e, h, len(c.g))
		}
	} else if est.who != n.id || est.inc != p.leader.inc {
		c.fail("P3: epoch %d established by %d and %d", e, est.who, n.id)
	}
	m := min(k, len(c.g))
	if m > 0 && s.hist[m-1].Chain != c.g[m-1].Chain {
		c.fail("P22: leader %d committed another entry at position %d: %s, before %s", n.id, m, s.hist[m-1].Zxid, c.g[m-1].Zxid)
		return
	}
	if k > len(c.g) {
		c.g = append(c.g, s.hist[len(c.g):k]...)
	}
}

// checkSend is P2, P10, P11, P12 at the moment a message leaves.
func (c *cluster) checkSend(n *testNode, o Outbound) {
	d := n.disk
	switch m := o.Msg.(type) {
	case *LeaderInfo:
		if d.st.Accepted.Epoch < m.Epoch {
			c.fail("P12: LEADERINFO(%d) leaves %d, accepted on disk is %d", m.Epoch, n.id, d.st.Accepted.Epoch)
		}
	case *AckEpoch:
		if d.st.Accepted.Epoch < m.Epoch {
			c.fail("P12: ACKEPOCH(%d) leaves %d, accepted on disk is %d", m.Epoch, n.id, d.st.Accepted.Epoch)
		}
		if m.Current != d.st.Current || m.Last != d.st.Last || len(n.queue) > 0 {
			c.fail("P21: ACKEPOCH of %d says %d/%s, disk %d/%s with %d writes in flight", n.id, m.Current, m.Last, d.st.Current, d.st.Last, len(n.queue))
		}
		if !m.AlreadyPromised && !m.Unknown && c.members.IsVoter(n.id) { // others are never counted
			k := promiseKey{n.id, m.Epoch}
			if to, ok := c.promises[k]; ok && to != d.st.Accepted.To {
				c.fail("P2: member %d promised epoch %d twice", n.id, m.Epoch)
			}
			c.promises[k] = d.st.Accepted.To
		}
	case *AckNewLeader:
		if at, chain, _ := d.Locate(m.Last); d.st.Current != m.Epoch || at != m.Last || chain != c.seen[m.Last] && m.Last != 0 && c.seen[m.Last] != 0 {
			c.fail("P11: ACK(NEWLEADER %d) leaves %d with current epoch %d, last %s", m.Epoch, n.id, d.st.Current, d.st.Last)
		}
	case *Ack:
		if at, chain, _ := d.Locate(m.Zxid); d.st.Current != m.Epoch || at != m.Zxid || chain != c.seen[m.Zxid] {
			c.fail("P10: ACK(%s) of epoch %d leaves %d with current epoch %d, disk at %s", m.Zxid, m.Epoch, n.id, d.st.Current, d.st.Last)
		}
	}
}

// checkWrite is P14, before w is applied to n's disk.
func (c *cluster) checkWrite(n *testNode, w Write) {
	if w.Truncate == nil && w.Install == nil {
		return
	}
	after := n.disk.clone()
	after.write(w, c.snapshot)
	held := c.matches(n.disk)
	if kept := c.matches(after); kept < held {
		c.fail("P14: member %d drops committed entries: held %d of G, keeps %d (%s)", n.id, held, kept, describeWrite(w))
	}
}

// matches is how much of G a disk holds.
func (c *cluster) matches(d *testDisk) int {
	n := min(len(d.hist), len(c.g))
	return sort.Search(n, func(i int) bool { return d.hist[i].Chain != c.g[i].Chain })
}

// check is P1, P4, P5, P6, P8, P9, P13 on the state as it is now.
func (c *cluster) check() {
	if c.violation != "" {
		return
	}
	holders := 0
	for _, id := range c.members.Members() {
		n := c.nodes[id]
		st := n.disk.st
		if st.Accepted.Epoch < st.Current || st.Last.Epoch() > st.Accepted.Epoch {
			c.fail("P1: member %d: accepted %d, current %d, last %s", id, st.Accepted.Epoch, st.Current, st.Last)
		}
		if e := c.epochs[id]; st.Accepted.Epoch < e[0] || st.Current < e[1] {
			c.fail("P1: member %d: epochs went back from %v", id, e)
		}
		c.epochs[id] = [2]kv.Epoch{st.Accepted.Epoch, st.Current}
		h := n.disk.hist
		for i := max(0, len(h)-64); i < len(h); i++ { // older ones were checked when they were new
			prev := kv.Zxid(0)
			if i > 0 {
				prev = h[i-1].Zxid
			}
			if !h[i].Zxid.Follows(prev) {
				c.fail("P4: member %d: %s after %s", id, h[i].Zxid, prev)
			}
			if s, ok := c.seen[h[i].Zxid]; ok && s != h[i].Chain {
				c.fail("P5: member %d holds %s with another history", id, h[i].Zxid)
			}
		}
		a := n.applied
		if n.p != nil && !n.dirty && len(a) > 0 && (len(a) > len(c.g) || a[len(a)-1].Chain != c.g[len(a)-1].Chain) {
			c.fail("P6: member %d applied %s at position %d, which is not committed", id, a[len(a)-1].Zxid, len(a))
		}
		if c.members.IsVoter(id) && len(h) >= len(c.g) && (len(c.g) == 0 || h[len(c.g)-1].Chain == c.g[len(c.g)-1].Chain) {
			holders++
		}
		for e, est := range c.est {
			if st.Current < e || len(h) == 0 {
				continue
			}
			k := n.disk.index(kv.MakeZxid(e, 0))
			if k > len(est.h) || k > 0 && h[k-1].Chain != est.h[k-1].Chain {
				c.fail("P9: member %d with current epoch %d holds %s, which epoch %d's history lacks", id, st.Current, h[k-1].Zxid, e)
			}
		}
	}
	if holders < c.members.Majority() {
		c.fail("P8: only %d voters hold everything committed (%d entries)", holders, len(c.g))
	}
}

// stabilize connects, delivers and persists until nothing moves. Disks that are held do not complete.
func (c *cluster) stabilize() {
	for range 100000 {
		moved := false
		for _, id := range c.members.Members() {
			n := c.nodes[id]
			if n.p == nil {
				continue
			}
			c.pump(n)
			moved = c.serve(n) || moved
			c.pump(n)
			moved = c.connect(n) || moved
			if !n.held {
				moved = c.persist(n, 0) || moved
			}
		}
		for _, l := range slices.Clone(c.links) {
			for _, to := range []quorum.MemberID{l.leader, l.learner} {
				for c.link(l.id) != nil && !c.blocked[direction{l.other(to), to}] && c.deliver(l, to) {
					moved = true
				}
			}
		}
		c.settle()
		if !moved || c.violation != "" {
			return
		}
	}
	c.fail("does not stabilize")
}

func (c *cluster) tick(n *testNode) {
	if n.p != nil {
		n.do((*Peer).Tick)
		c.pump(n)
	}
}

func (n *testNode) decide(leader quorum.MemberID) {
	n.do(func(p *Peer) {
		if n.id == leader {
			p.Lead()
		} else {
			p.Follow(leader)
		}
	})
}

// elect makes leader lead and the others follow it.
func (c *cluster) elect(leader quorum.MemberID, by ...quorum.MemberID) {
	for _, id := range append([]quorum.MemberID{leader}, by...) {
		n := c.nodes[id]
		n.do(func(p *Peer) { p.Look("elect") })
		c.pump(n)
		n.decide(leader)
		c.pump(n)
	}
}

// describe prints a message the way scripts show it.
func describe(m Message) string {
	name := strings.TrimPrefix(fmt.Sprintf("%T", m), "*zab.")
	entries := func(es []kv.Entry) string {
		if len(es) == 0 {
			return "none"
		}
		return fmt.Sprintf("%s..%s", es[0].Zxid, es[len(es)-1].Zxid)
	}
	switch m := m.(type) {
	case *FollowerInfo:
		return fmt.Sprintf("%s accepted=%d", name, m.Accepted)
	case *LeaderInfo:
		return fmt.Sprintf("%s epoch=%d", name, m.Epoch)
	case *AckEpoch:
		s := fmt.Sprintf("%s epoch=%d current=%d last=%s base=%s", name, m.Epoch, m.Current, m.Last, m.Base)
		if m.AlreadyPromised {
			s += " already-promised"
		}
		if m.Unknown {
			s += " unknown"
		}
		return s
	case *Diff:
		return fmt.Sprintf("%s after=%s", name, m.After)
	case *Trunc:
		return fmt.Sprintf("%s to=%s", name, m.To)
	case *Snap:
		return fmt.Sprintf("%s zxid=%s", name, m.Zxid)
	case *NeedSnapshot:
		return fmt.Sprintf("%s %q", name, m.Reason)
	case *Proposal:
		return fmt.Sprintf("%s %s commit=%s", name, entries(m.Entries), m.Commit)
	case *Inform:
		return fmt.Sprintf("%s %s", name, entries(m.Entries))
	case *NewLeader:
		return fmt.Sprintf("%s epoch=%d last=%s commit=%s", name, m.Epoch, m.Last, m.Commit)
	case *AckNewLeader:
		return fmt.Sprintf("%s epoch=%d last=%s", name, m.Epoch, m.Last)
	case *UpToDate:
		return fmt.Sprintf("%s epoch=%d commit=%s", name, m.Epoch, m.Commit)
	case *Ack:
		return fmt.Sprintf("%s epoch=%d %s", name, m.Epoch, m.Zxid)
	case *Commit:
		return fmt.Sprintf("%s epoch=%d %s", name, m.Epoch, m.Zxid)
	case *Ping:
		return fmt.Sprintf("%s probe=%d commit=%s", name, m.Probe, m.Commit)
	case *PingReply:
		return fmt.Sprintf("%s probe=%d", name, m.Probe)
	case *SyncRequest:
		return fmt.Sprintf("%s id=%d", name, m.ID)
	case *SyncReply:
		return fmt.Sprintf("%s id=%d zxid=%s", name, m.ID, m.Zxid)
	case *Received:
		return fmt.Sprintf("%s %s", name, m.Zxid)
	case *Refuse:
		return fmt.Sprintf("%s %q", name, m.Reason)
	default:
		return name
	}
}

func describeWrite(w Write) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if w.Promise != nil {
		add("promise=%d", w.Promise.Epoch)
	}
	if w.Install != nil {
		add("install=%s", w.Install.Zxid)
	}
	if w.Truncate != nil {
		add("truncate=%s", *w.Truncate)
	}
	if len(w.Append) > 0 {
		add("append=%s..%s", w.Append[0].Zxid, w.Append[len(w.Append)-1].Zxid)
	}
	if w.Current != 0 {
		add("current=%d", w.Current)
	}
	if w.Trusted {
		add("trusted")
	}
	return strings.Join(parts, " ")
}
