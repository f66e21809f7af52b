package kv

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// follower is a connection with one persistent or recursive watch and the client behind it, who keeps a picture of what
// he watches: what the last answer showed. Events reach him as the connection's writer would send them.
type follower struct {
	mailbox
	tree  *Tree
	log   *changeLog
	mode  WatchMode
	root  string
	paths []string
	set   Zxid // the answer that set the watch was from the view of this zxid
	last  *View
	had   map[Event]bool
	count *atomic.Int64
}

// changeLog holds every event that changes can raise, written before they are applied.
type changeLog struct {
	mu     sync.Mutex
	events map[Event]bool // under mu
}

func (l *changeLog) add(e Event) {
	l.mu.Lock()
	l.events[e] = true
	l.mu.Unlock()
}

func (l *changeLog) has(e Event) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.events[e]
}

func (f *follower) covers(path string) bool {
	return path == f.root || f.mode == Recursive && (f.root == "/" || strings.HasPrefix(path, f.root+"/"))
}

// answer is a read from v reaching the client, after the events that are due.
func (f *follower) answer(v *View) error {
	if v.Zxid() < f.last.Zxid() {
		return nil // a connection never answers from a view before one it has shown
	}
	f.mu.Lock()
	n := 0
	for n < len(f.events) && f.events[n].Zxid <= v.Zxid() {
		n++
	}
	due := f.events[:n:n]
	f.events = f.events[n:]
	f.mu.Unlock()
	told := map[string]map[EventType]bool{}
	for _, e := range due {
		f.count.Add(1)
		switch {
		case !f.covers(e.Path) || f.mode == Recursive && e.Type == EventNodeChildrenChanged:
			return fmt.Errorf("event %v for a watch of mode %d at %q", e, f.mode, f.root)
		case e.Zxid <= f.set:
			return fmt.Errorf("event %v, but the answer at %v that set the watch shows it", e, f.set)
		case f.had[e]:
			return fmt.Errorf("event %v twice", e)
		case e.Late && e.Zxid != f.set+1:
			return fmt.Errorf("late event %v of a watch set at %v", e, f.set)
		case !e.Late && !f.log.has(e):
			return fmt.Errorf("event %v of no change", e)
		}
		f.had[e] = true
		if told[e.Path] == nil {
			told[e.Path] = map[EventType]bool{}
		}
		told[e.Path][e.Type] = true
	}
	for _, p := range f.paths {
		if !f.covers(p) {
			continue
		}
		a, errA := f.last.Exists(p)
		b, errB := v.Exists(p)
		var owed []EventType
		same := errA == nil && errB == nil && a.Czxid == b.Czxid
		if errA == nil && !same {
			owed = append(owed, EventNodeDeleted)
		}
		if errB == nil && !same {
			owed = append(owed, EventNodeCreated)
		}
		if same && a.Mzxid != b.Mzxid {
			owed = append(owed, EventNodeDataChanged)
		}
		if f.mode == Persistent && same && a.Pzxid != b.Pzxid {
			owed = append(owed, EventNodeChildrenChanged)
		}
		for _, e := range owed {
			if !told[p][e] {
				return fmt.Errorf("the answer at %v shows a change of %q since %v, but %v has not come: %v", v.Zxid(), p, f.last.Zxid(), e, due)
			}
		}
	}
	f.last = v
	return nil
}

// TestFollowersRace runs an applier against clients that follow nodes and subtrees through persistent and recursive
// watches set for answers from the present and from older views. Nothing is missed or late, nothing comes twice, before
// the answer that set the watch, or without a change; and nothing is left in the end.
func TestFollowersRace(t *testing.T) {
	h := newHistory(NewTree(nil))
	tree := h.tree
	paths := []string{"/", "/a", "/a/x", "/a/x/p", "/a/y", "/b", "/b/x", "/c"}
	l := &changeLog{events: map[Event]bool{}}
	enough := int64(30_000)
	if testing.Short() || raceEnabled {
		enough = 5000
	}
	var count atomic.Int64
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for i := range 4 {
		g := rand.New(rand.NewPCG(uint64(i), 8))
		clients.Go(func() {
			var older *View
			for {
				select {
				case <-stop:
					return
				default:
				}
				v := tree.View()
				if older != nil && g.IntN(2) == 0 {
					v = older
				}
				older = tree.View()
				f := &follower{tree: tree, log: l, mode: Persistent + WatchMode(g.IntN(2)), root: paths[g.IntN(len(paths))], paths: paths,
					set: v.Zxid(), last: v, had: map[Event]bool{}, count: &count}
				tree.AddWatchAt(v, f.root, f.mode, f)
				for range g.IntN(30) {
					runtime.Gosched()
					if err := f.answer(tree.View()); err != nil {
						t.Error(err)
						tree.RemoveWatcher(f)
						return
					}
				}
				tree.RemoveWatcher(f)
			}
		})
	}
	g := rand.New(rand.NewPCG(9, 9))
	there := map[string]bool{"/": true}
	kids := map[string]int{}
	for n := 0; count.Load() < enough && !t.Failed(); n++ {
		if n == 1_000_000 {
			t.Errorf("%d batches, only %d events", n, count.Load())
			break
		}
		runtime.Gosched()
		var batch []Entry
		for range 1 + g.IntN(5) {
			p := paths[1+g.IntN(len(paths)-1)]
			parent := parentOf(p)
			r := Request{Op: []Op{OpCreate, OpCreate, OpDelete, OpSetData}[g.IntN(4)], Path: p, Version: -1, ACL: OpenACL()}
			e := h.prepare(&r)
			batch = append(batch, e)
			switch {
			case r.Op == OpCreate && !there[p] && there[parent]:
				there[p] = true
				kids[parent]++
				l.add(Event{Type: EventNodeCreated, Path: p, Zxid: e.Zxid})
				l.add(Event{Type: EventNodeChildrenChanged, Path: parent, Zxid: e.Zxid})
			case r.Op == OpDelete && there[p] && kids[p] == 0:
				delete(there, p)
				kids[parent]--
				l.add(Event{Type: EventNodeDeleted, Path: p, Zxid: e.Zxid})
				l.add(Event{Type: EventNodeChildrenChanged, Path: parent, Zxid: e.Zxid})
			case r.Op == OpSetData && there[p]:
				l.add(Event{Type: EventNodeDataChanged, Path: p, Zxid: e.Zxid})
			}
		}
		if err := tree.Apply(batch, nil); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	clients.Wait()
	if err := checkWatches(tree); err != nil {
		t.Error(err)
	}
	if n, numbers := tree.WatchCount(), len(*tree.watches.parties.numbers.Load()); n != 0 || numbers != 1 {
		t.Errorf("%d watches, %d numbers left", n, numbers-1)
	}
}
