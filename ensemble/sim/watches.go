package sim

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"kvd/kv"
)

// What clients are told of changes that they watch. The tables of watches, the events of a batch, of an installed snapshot and
// of a reconnect are those of package kv; the shell below is the simulator's: it delivers before each answer all events
// up to its zxid, and sets the watches again when the session is resumed elsewhere, as a client does with setWatches2.
//
// The claim is judged against G: from the answer that set a watch on, whoever is shown the state of a zxid has been told
// exactly the changes up to it, each once, that its watches cover.

// change is one event that the committed history has for whoever watches.
type change struct {
	zxid  kv.Zxid
	event kv.EventType
	path  string
}

func (c change) String() string { return fmt.Sprintf("%v %v %s", c.zxid, c.event, c.path) }

// order is by zxid, path and event: within one transaction it is the tree's own business.
func (c change) order(d change) int {
	if c.zxid != d.zxid {
		return int(int64(c.zxid) - int64(d.zxid))
	}
	if n := strings.Compare(c.path, d.path); n != 0 {
		return n
	}
	return int(c.event) - int(d.event)
}

// created, deleted and updated note what a transaction does to a node, until it is known that all of it counts.
func (m *model) created(path string) {
	m.touched = append(m.touched, change{event: kv.EventNodeCreated, path: path}, change{event: kv.EventNodeChildrenChanged, path: parentPath(path)})
}

func (m *model) deleted(path string) {
	m.touched = append(m.touched, change{event: kv.EventNodeDeleted, path: path}, change{event: kv.EventNodeChildrenChanged, path: parentPath(path)})
}

func (m *model) updated(path string) {
	m.touched = append(m.touched, change{event: kv.EventNodeDataChanged, path: path})
}

// history moves what the transaction at z did into the list of changes.
func (m *model) history(z kv.Zxid) {
	for _, c := range m.touched {
		c.zxid = z
		m.changes = append(m.changes, c)
	}
	m.touched = m.touched[:0]
}

// until is the number of changes up to z.
func (m *model) until(z kv.Zxid) int {
	return sort.Search(len(m.changes), func(i int) bool { return m.changes[i].zxid > z })
}

func parentPath(path string) string {
	if p := parentOf(path); p != "" {
		return p
	}
	return kv.RootPath
}

// watch is one that a client believes to have.
type watch struct {
	list kv.WatchList
	path string
}

// covers reports whether the watch tells of a change.
func (w watch) covers(c change) bool {
	kids := c.event == kv.EventNodeChildrenChanged
	switch w.list {
	case kv.ListData, kv.ListExist:
		return c.path == w.path && !kids
	case kv.ListChild:
		return c.path == w.path && (kids || c.event == kv.EventNodeDeleted)
	case kv.ListPersistent:
		return c.path == w.path
	}
	return !kids && (w.path == kv.RootPath || c.path == w.path || strings.HasPrefix(c.path, w.path+"/"))
}

func (w watch) oneShot() bool { return w.list != kv.ListPersistent && w.list != kv.ListRecursive }

// mailbox is one connection's watcher.
type mailbox struct {
	c    *Client
	tree *kv.Tree
	news []change // in the order of their arrival
	late []change // with ShellMutations.EventsBehindReplies
}

// Event implements kv.Watcher.
func (b *mailbox) Event(e kv.Event) {
	n := change{e.Zxid, e.Type, e.Path}
	b.c.sim.logf("client %d: event %v", b.c.ID, n)
	if b.c.sim.opt.ShellMutations.EventsBehindReplies {
		b.late = append(b.late, n)
		return
	}
	b.news = append(b.news, n)
}

// MayRead implements kv.Watcher: every list that clients of the simulation give lets everybody read.
func (b *mailbox) MayRead(kv.AccessList) bool { return true }

// watcher returns the mailbox of the present connection.
func (c *Client) watcher() *mailbox {
	if c.box == nil {
		c.box = &mailbox{c: c, tree: c.member.tree}
	}
	return c.box
}

// unwatch is the end of a connection: what was not delivered is lost with it.
func (c *Client) unwatch() {
	if c.box != nil {
		c.box.tree.RemoveWatcher(c.box)
		c.box = nil
	}
}

// watchSomething reads and leaves a watch behind.
func (c *Client) watchSomething() {
	r, m := c.sim.wrng, c.member
	if !m.ready() {
		return
	}
	paths := []string{fmt.Sprintf("/n%d", r.IntN(12)), fmt.Sprintf("/box%d", r.IntN(3)), fmt.Sprintf("/ttl%d", r.IntN(3)), fmt.Sprintf("/safe%d", r.IntN(2)), kv.RootPath}
	w := watch{kv.WatchList(r.IntN(5)), paths[r.IntN(len(paths))]}
	v := m.tree.View()
	c.saw(m, v.Zxid(), "watching read")
	c.reads++
	_, _, err := v.Get(w.path)
	exists := err == nil
	switch b := c.watcher(); w.list {
	case kv.ListData, kv.ListExist: // an exists leaves either, by what it finds
		if w.list = kv.ListData; !exists {
			w.list = kv.ListExist
		}
		m.tree.WatchAt(v, w.path, kv.WatchData, b, true)
	case kv.ListChild:
		if !exists {
			return
		}
		m.tree.WatchAt(v, w.path, kv.WatchChildren, b, false)
	case kv.ListPersistent:
		m.tree.AddWatchAt(v, w.path, kv.Persistent, b)
	case kv.ListRecursive:
		m.tree.AddWatchAt(v, w.path, kv.Recursive, b)
	}
	c.sim.logf("client %d at %d watches %v %s from %v", c.ID, m.ID, w.list, w.path, v.Zxid())
	if !slices.Contains(c.watches, w) {
		c.watches = append(c.watches, w)
	}
}

// follow: the client is shown the state at z, so it must have been told exactly the changes up to it that its watches cover.
func (c *Client) follow(z kv.Zxid) {
	m := &c.sim.ghost.model
	end := max(m.until(z), c.followed)
	if len(c.watches) == 0 {
		c.followed = end
	}
	var want []change
	for ; c.followed < end; c.followed++ {
		if e := m.changes[c.followed]; c.told(e) {
			want = append(want, e)
		}
	}
	var got []change
	if b := c.box; b != nil {
		n := 0
		for n < len(b.news) && b.news[n].zxid <= z {
			n++
		}
		got = slices.Clone(b.news[:n])
		b.news = b.news[n:]
	}
	slices.SortFunc(want, change.order)
	slices.SortFunc(got, change.order)
	if !slices.Equal(want, got) {
		c.sim.fail("W", "client %d is shown %v: its watches should have told %v, and told %v", c.ID, z, want, got)
	}
	c.sim.happened["watch:event"] += len(want)
}

// told reports whether a watch of the client covers a change. One-shots that do are over.
func (c *Client) told(e change) bool {
	told := false
	c.watches = slices.DeleteFunc(c.watches, func(w watch) bool {
		covers := w.covers(e)
		told = told || covers
		return covers && w.oneShot()
	})
	return told
}

// rearm sets the watches again at the member at which the session was resumed, as setWatches2 does: what changed meanwhile is told at once,
// as its net effect; persistent watches tell nothing of it.
func (c *Client) rearm() {
	if len(c.watches) == 0 {
		return
	}
	s, m, v, b := c.sim, &c.sim.ghost.model, c.member.tree.View(), c.watcher()
	missed := m.changes[c.followed:max(m.until(v.Zxid()), c.followed)]
	keep := make([]watch, 0, len(c.watches))
	for _, w := range c.watches {
		n, exists := node{}, false
		n.data, n.kids, exists = m.since(missed, w.path, v)
		want := kv.EventType(0)
		switch {
		case w.list == kv.ListExist && exists:
			want = kv.EventNodeCreated
		case (w.list == kv.ListData || w.list == kv.ListChild) && !exists:
			want = kv.EventNodeDeleted
		case w.list == kv.ListData && n.data:
			want = kv.EventNodeDataChanged
		case w.list == kv.ListChild && n.kids:
			want = kv.EventNodeChildrenChanged
		}
		got, now := c.member.tree.RearmAt(v, w.list, w.path, c.lastZxid, b)
		if s.opt.ShellMutations.NoCatchUp && now {
			got, now = 0, false
			c.member.tree.WatchAt(v, w.path, kv.WatchData, b, true)
		}
		if now != (want != 0) || got != want {
			s.fail("W", "client %d resumes at member %d with %v, having seen %v: the watch %v of %s is answered %v, and %v is due", c.ID, c.member.ID, v.Zxid(), c.lastZxid, w.list, w.path, got, want)
		}
		if now {
			s.happened["watch:caught-up"]++
			continue
		}
		keep = append(keep, w)
		s.happened["watch:armed-again"]++
	}
	c.watches = keep
	c.followed = max(m.until(v.Zxid()), c.followed)
	c.saw(c.member, v.Zxid(), "setWatches")
}

// node is what happened to a node while a client was away.
type node struct{ data, kids bool }

// since reports what happened to a node in a part of the history, and whether it exists behind it. A node that was made anew has
// new data and new children.
func (m *model) since(part []change, path string, v *kv.View) (data, kids, exists bool) {
	_, _, err := v.Get(path)
	for _, c := range part {
		if c.path == path {
			data = data || c.event != kv.EventNodeChildrenChanged && c.event != kv.EventNodeDeleted
			kids = kids || c.event == kv.EventNodeChildrenChanged || c.event == kv.EventNodeCreated
		}
	}
	return data, kids, err == nil
}

// installed is the moment before and after a snapshot takes the place of the tree below those who watch: they hear the
// differences, at most once for each node and kind.
func (p *port) installed(reset func(), was, now *kv.View) {
	m := &p.m.sim.ghost.model
	watching := p.watching()
	for _, c := range watching {
		c.follow(was.Zxid()) // what was told up to here was told change by change
	}
	reset()
	for _, c := range watching {
		b := c.box
		news := append(b.news, b.late...)
		b.news, b.late = nil, nil
		from, to := max(m.until(was.Zxid()), c.followed), max(m.until(now.Zxid()), c.followed)
		part := m.changes[from:to]
		for _, w := range c.watches {
			differs := false
			a, aStat, aErr := was.Get(w.path)
			z, zStat, zErr := now.Get(w.path)
			_, _ = a, z
			switch w.list {
			case kv.ListData, kv.ListExist:
				differs = (aErr == nil) != (zErr == nil) || aErr == nil && aStat.Mzxid != zStat.Mzxid
			case kv.ListChild:
				differs = aErr == nil && (zErr != nil || aStat.Pzxid != zStat.Pzxid)
			case kv.ListPersistent:
				differs = (aErr == nil) != (zErr == nil) || aErr == nil && (aStat.Mzxid != zStat.Mzxid || aStat.Pzxid != zStat.Pzxid)
			}
			if differs && !slices.ContainsFunc(news, w.covers) {
				p.m.sim.fail("W", "client %d: snapshot %v is installed over %v at member %d, the watch %v of %s should tell, and it told %v", c.ID, now.Zxid(), was.Zxid(), p.m.ID, w.list, w.path, news)
			}
		}
		for _, e := range news {
			if !slices.ContainsFunc(part, func(o change) bool { return o.path == e.path }) {
				p.m.sim.fail("W", "client %d: snapshot %v is installed over %v at member %d, and %v is told, which did not change", c.ID, now.Zxid(), was.Zxid(), p.m.ID, e)
			}
			if !c.told(e) {
				p.m.sim.fail("W", "client %d: snapshot %v is installed at member %d, and %v is told, which it does not watch", c.ID, now.Zxid(), p.m.ID, e)
			}
			p.m.sim.happened["watch:installed"]++
		}
		c.followed = to
	}
}

// watching are the clients that are connected here and have a watcher in the tree.
func (p *port) watching() (list []*Client) {
	for _, c := range p.m.sim.clients {
		if c.member == p.m && c.box != nil && c.box.tree == p.m.tree {
			list = append(list, c)
		}
	}
	return list
}

// deliver hands out the events that no answer asked for.
func (p *port) deliver() {
	for _, c := range p.watching() {
		b := c.box
		if len(b.late) > 0 {
			b.news = append(b.news, b.late...)
			b.late = nil
		}
		if c.state == ready && len(b.news) > 0 && p.m.ready() && p.conns[c.session] == c {
			c.saw(p.m, b.news[len(b.news)-1].zxid, "event")
		}
	}
}

// unwatched: nobody's watches are left where nobody is connected that has any.
func (s *Sim) unwatched() {
	for _, m := range s.members {
		if n := m.tree.WatchCount(); n > 0 && len(m.port.watching()) == 0 {
			s.fail("W", "member %d has %d watches of clients that are gone", m.ID, n)
		}
	}
}

// bundle makes a multi of a write and one to three others, most of them such that it can be done.
func (c *Client) bundle(first kv.Request) kv.Request {
	r := c.sim.wrng
	q := kv.Request{Op: kv.OpMulti, Ops: []kv.Request{first}}
	for i := range 1 + r.IntN(3) {
		path := fmt.Sprintf("/n%d", r.IntN(12))
		data := []byte(fmt.Sprintf("c%d-%d-%d", c.ID, c.sim.tokens, i))
		version := int32(-1)
		if r.IntN(3) == 0 {
			version = int32(r.IntN(4))
		}
		_, _, err := c.member.tree.View().Get(path)
		kind := r.IntN(8)
		switch {
		case kind < 3 && err != nil && r.IntN(4) > 0:
			kind = 3
		case kind == 3 || kind == 4 || kind == 6:
			if err == nil && r.IntN(4) > 0 {
				kind = 0
			}
		}
		switch kind {
		case 0, 1, 2:
			q.Ops = append(q.Ops, kv.Request{Op: kv.OpSetData, Path: path, Data: data, Version: version})
		case 3, 4:
			q.Ops = append(q.Ops, kv.Request{Op: kv.OpCreate, Path: path, Data: data, ACL: kv.OpenACL(), Flags: kv.FlagPersistent})
		case 5:
			q.Ops = append(q.Ops, kv.Request{Op: kv.OpCreate, Path: "/q-", Data: data, ACL: kv.OpenACL(), Flags: kv.FlagEphemeralSequential})
		case 6:
			q.Ops = append(q.Ops, kv.Request{Op: kv.OpCheck, Path: path, Version: version})
		case 7:
			q.Ops = append(q.Ops, kv.Request{Op: kv.OpDelete, Path: path, Version: version})
		}
	}
	return q
}
