package kv

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// watchKey names a one-shot watch.
type watchKey struct {
	path string
	kind WatchKind
}

// watchingClient is one client connection and the client behind it. Answers and events reach the client in the
// order in which the connection's writer would send them: before an answer from a view at z, all queued events up
// to z.
type watchingClient struct {
	mailbox
	tree  *Tree
	paths []string
	rnd   *rand.Rand
	kept  []*View // older views, as a read behind an own write is answered from
	seen  Zxid    // newest answer

	pending map[watchKey]seenState // watches the client believes are set
	// excused counts watches that a NodeDeleted has ended on the client's side although another event of theirs may
	// be under way. Only with older views: there a data watch and a child watch of one node can have different
	// deletions, while from Apply they always have the same one.
	older     bool
	excused   map[watchKey]int
	delivered *atomic.Int64
}

// seenState is what the answer that set a watch showed.
type seenState struct {
	at     Zxid
	exists bool
	czxid  Zxid
	zxid   Zxid // mzxid or pzxid
}

func stateOf(v *View, k watchKey) seenState {
	st, err := v.Exists(k.path)
	s := seenState{at: v.Zxid(), exists: err == nil, czxid: st.Czxid, zxid: st.Mzxid}
	if k.kind == WatchChildren {
		s.zxid = st.Pzxid
	}
	return s
}

func (a seenState) differs(b seenState) bool {
	return a.exists != b.exists || a.czxid != b.czxid || a.zxid != b.zxid
}

// deliver hands the client all queued events up to z.
func (c *watchingClient) deliver(z Zxid) error {
	c.mu.Lock()
	n := 0
	for n < len(c.events) && c.events[n].Zxid <= z {
		n++
	}
	events := c.events[:n:n]
	c.events = c.events[n:]
	c.mu.Unlock()
	for i, e := range events {
		if i > 0 && e.Zxid < events[i-1].Zxid {
			return fmt.Errorf("event %v after one at %v", e, events[i-1].Zxid)
		}
		if e.Zxid <= 0 || e.Zxid > z {
			return fmt.Errorf("event %v delivered before the answer at %v", e, z)
		}
		matched := 0
		for _, kind := range []WatchKind{WatchData, WatchChildren} {
			k := watchKey{e.Path, kind}
			s, ok := c.pending[k]
			fits := e.Type == EventNodeDeleted || (e.Type == EventNodeChildrenChanged) == (kind == WatchChildren)
			if !ok || !fits || e.Zxid <= s.at {
				continue
			}
			delete(c.pending, k)
			matched++
			if c.older && e.Type == EventNodeDeleted {
				c.excused[k]++
			}
		}
		for _, kind := range []WatchKind{WatchData, WatchChildren} {
			if k := (watchKey{e.Path, kind}); matched == 0 && c.excused[k] > 0 {
				c.excused[k]--
				matched++
			}
		}
		if matched == 0 {
			return fmt.Errorf("event %v that no answer had set a watch for: %v", e, c.pending)
		}
		c.delivered.Add(1)
	}
	return nil
}

// answer is a read from v reaching the client: events first, then what it shows.
func (c *watchingClient) answer(v *View) error {
	if v.Zxid() < c.seen {
		return nil // a connection never answers from a view before one it has shown
	}
	c.seen = v.Zxid()
	if err := c.deliver(v.Zxid()); err != nil {
		return err
	}
	for _, p := range c.paths {
		for _, kind := range []WatchKind{WatchData, WatchChildren} {
			k := watchKey{p, kind}
			if was, ok := c.pending[k]; ok && was.differs(stateOf(v, k)) {
				return fmt.Errorf("the answer at %v shows %+v of %q (kind %d), set at %+v, without an event before it",
					v.Zxid(), stateOf(v, k), p, kind, was)
			}
		}
	}
	return nil
}

// step makes one read, sometimes with a watch.
func (c *watchingClient) step() error {
	k := watchKey{c.paths[c.rnd.IntN(len(c.paths))], WatchKind(c.rnd.IntN(2))}
	var v *View
	exists := k.kind == WatchData && c.rnd.IntN(2) == 0
	switch c.rnd.IntN(4) {
	case 0: // a plain read
		return c.answer(c.tree.View())
	case 1: // a read with a watch that is answered from a view of a moment ago
		if !c.older {
			return nil
		}
		if len(c.kept) == 0 {
			c.kept = append(c.kept, c.tree.View())
			return nil
		}
		v = c.kept[0]
		c.kept = nil
		if v.Zxid() < c.seen {
			return nil
		}
		// The connection answers before any event that WatchAt raises; events up to v are already queued.
		if err := c.answer(v); err != nil {
			return err
		}
		if _, ok := c.pending[k]; ok {
			return nil // setting it again says nothing new
		}
		if s := stateOf(v, k); s.exists || exists {
			c.pending[k] = s
		}
		c.tree.WatchAt(v, k.path, k.kind, c, exists)
		return nil
	}
	switch {
	case exists:
		v = c.tree.ExistsWatch(k.path, c)
	case k.kind == WatchData:
		v = c.tree.GetWatch(k.path, c)
	default:
		v = c.tree.ChildrenWatch(k.path, c)
	}
	if err := c.answer(v); err != nil {
		return err
	}
	if s := stateOf(v, k); s.exists || exists {
		if _, ok := c.pending[k]; !ok {
			c.pending[k] = s
		}
	}
	return nil
}

// TestWatchesAndReadsRace runs an applier against clients that read and watch, and checks on each client's side: no
// answer shows a change of a watched node whose event has not been delivered before (nothing missed, nothing late),
// and no event is delivered for a watch that no earlier answer set. At the end nothing may be owed.
func TestWatchesAndReadsRace(t *testing.T) {
	t.Run("current views", func(t *testing.T) { raceWatches(t, false) })
	t.Run("older views too", func(t *testing.T) { raceWatches(t, true) })
}

func raceWatches(t *testing.T, older bool) {
	tree := NewTree(nil)
	h := newHistory(tree)
	paths := []string{"/a", "/a/x", "/a/y", "/b", "/b/x", "/c"}
	enough := int64(10_000) // events delivered
	if testing.Short() {
		enough = 1000
	}
	var delivered atomic.Int64
	stop := make(chan struct{})
	clients := make([]*watchingClient, 4)
	var readers sync.WaitGroup
	for i := range clients {
		c := &watchingClient{tree: tree, paths: paths, rnd: rand.New(rand.NewPCG(uint64(i), 3)), pending: map[watchKey]seenState{}, delivered: &delivered, older: older, excused: map[watchKey]int{}}
		clients[i] = c
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				runtime.Gosched() // the more they interleave, the more a race shows
				if err := c.step(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	g := rand.New(rand.NewPCG(7, 7))
	for n := 0; delivered.Load() < enough && !t.Failed(); n++ {
		if n == 2_000_000 {
			t.Errorf("%d batches, only %d events: the clients hardly watch anything", n, delivered.Load())
			break
		}
		if n%2 == 0 {
			runtime.Gosched() // on one processor the clients would see little of it
		}
		var batch []Entry
		for range 1 + g.IntN(5) {
			p := paths[g.IntN(len(paths))]
			r := Request{Path: p, Version: -1, ACL: OpenACL()}
			switch g.IntN(4) {
			case 0:
				r.Op = OpDelete
			case 1:
				r.Op = OpSetData
			default:
				r.Op = OpCreate
			}
			batch = append(batch, h.prepare(&r))
		}
		if err := tree.Apply(batch, nil); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	readers.Wait()
	for i, c := range clients {
		if err := c.answer(tree.View()); err != nil {
			t.Errorf("client %d at the end: %v", i, err)
		}
		if len(c.events) != 0 {
			t.Errorf("client %d: events from the future: %v", i, c.events)
		}
		tree.RemoveWatcher(c)
	}
	if n := tree.WatchCount(); n != 0 {
		t.Errorf("%d watches left behind", n)
	}
	if err := checkWatches(tree); err != nil {
		t.Error(err)
	}
}
