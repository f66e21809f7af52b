package kv

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestPathsAbove: the paths above a path, and their hashes, are those that the tables use, however they are found.
func TestPathsAbove(t *testing.T) {
	tree := NewTree(nil)
	a := &tree.watches
	long := strings.Repeat("x", longPath)
	for _, path := range []string{"/", "/a", "/a/b/c", "abc", "a/b", "//", "//x", "/a//b", "/a/", "/" + long, "/a/b/" + long + "/c", long, "a/" + long, "//" + long,
		"/a//b/" + long, "/" + long + "/", strings.Repeat("/a", 500), strings.Repeat("/", 300), "/" + long + "//x"} {
		want := map[string]bool{}
		for p := path; p != RootPath; {
			p = parentOf(p)
			want[p] = true
		}
		a.eachAbove(path, func(above string, hash uint32) bool {
			if !want[above] || hash != a.hashOf(above) {
				t.Errorf("%.40q: %.40q, hash %#x", path, above, hash)
			}
			delete(want, above)
			return true
		})
		if len(want) > 0 {
			t.Errorf("%.40q: %d are missing", path, len(want))
		}
		calls := 0
		a.eachAbove(path, func(string, uint32) bool { calls++; return calls < 2 })
		if calls > 2 {
			t.Errorf("%.40q: goes on after the end", path)
		}
	}
	if fold(0) == 0 || fold(0x1234_0000_1234) == 0 {
		t.Error("a hash of 0")
	}
}

// TestDeepWatches: a watch of a path with hundreds of thousands of components, which a frame can hold, takes a time that
// grows with its length, while everybody who publishes waits; and so does a change deep down. (By the square of the length
// the first takes minutes.)
func TestDeepWatches(t *testing.T) {
	tree := NewTree(nil)
	w := new(mailbox)
	old := tree.View()
	h := newHistory(tree)
	tree.AddWatchAt(old, "/a", Recursive, w)
	h.do(t, &Request{Op: OpCreate, Path: "/a", ACL: OpenACL()})
	deep := strings.Repeat("/a", 500_000)
	start := time.Now()
	for _, v := range []*View{old, tree.View()} {
		tree.AddWatchAt(v, deep, Recursive, w)
		tree.AddWatchAt(v, deep, Persistent, w)
		tree.WatchAt(v, deep, WatchData, w, true)
		tree.RearmAt(v, ListRecursive, deep, 0, w)
	}
	for _, wt := range []WatcherType{WatcherData, WatcherPersistent, WatcherRecursive} {
		if !tree.HasWatch(deep, wt, w) || !tree.RemoveWatch(deep, wt, w) || tree.HasWatch(deep, wt, w) {
			t.Errorf("type %d", wt)
		}
	}
	w.take()
	c := change{kind: dataChanged, path: deep[:MaxPathBytes], zxid: 9}
	for range 10 {
		tree.publish(tree.View(), []change{c})
	}
	if d := time.Since(start); d > time.Minute {
		t.Errorf("%v", d)
	}
	if got := w.take(); len(got) != 10 {
		t.Errorf("%d events", len(got))
	}
	tree.RemoveWatcher(w)
	if err := checkWatches(tree); err != nil || tree.WatchCount() != 0 {
		t.Error(err)
	}
}

// shortLived is a watcher that knows where it has ever watched.
type shortLived struct {
	mu     sync.Mutex
	at     map[string]bool // under mu
	strays []Event         // under mu
	deny   bool
	told   *atomic.Int64
}

func (s *shortLived) MayRead(AccessList) bool { return !s.deny }

func (s *shortLived) Event(e Event) {
	s.told.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := e.Path; ; p = parentOf(p) {
		if s.at[p] {
			return
		}
		if p == RootPath {
			break
		}
	}
	s.strays = append(s.strays, e)
}

// TestConnectionsComeAndGo lets watchers set and remove watches of all kinds and end, again and again, while changes are
// applied, views replaced, and figures asked for. A number that is given out again never brings anyone the events of
// another, and in the end nothing is left.
func TestConnectionsComeAndGo(t *testing.T) {
	h := newHistory(NewTree(nil))
	tree := h.tree
	paths := []string{"/", "/a", "/a/x", "/a/x/p", "/a/y", "/b", "/b/x", "/c", "/none", "/a/" + strings.Repeat("l", 300)}
	var told atomic.Int64
	lives := 1500
	if testing.Short() || raceEnabled {
		lives = 300
	}
	var clients, others sync.WaitGroup
	for i := range 4 {
		clients.Go(func() {
			g := rand.New(rand.NewPCG(uint64(i), 21))
			for range lives {
				w := &shortLived{at: map[string]bool{}, deny: g.IntN(4) == 0, told: &told}
				old := tree.View()
				for range g.IntN(30) {
					p := paths[g.IntN(len(paths))]
					w.mu.Lock()
					w.at[p] = true
					w.mu.Unlock()
					switch v := old; g.IntN(9) {
					case 0:
						tree.AddWatchAt(v, p, WatchMode(g.IntN(3)), w)
					case 1:
						tree.WatchAt(v, p, WatchKind(g.IntN(2)), w, g.IntN(2) == 0)
					case 2:
						tree.RearmAt(v, WatchList(g.IntN(5)), p, v.Zxid(), w)
					case 3:
						tree.RemoveWatch(p, WatcherType(g.IntN(7)), w)
						tree.HasWatch(p, WatcherType(g.IntN(7)), w)
					case 4:
						old = tree.ExistsWatch(p, w)
					case 5:
						tree.WatchesOf(w, func(string) bool { return g.IntN(3) > 0 })
					case 6:
						old = tree.ChildrenWatch(p, w)
					default:
						runtime.Gosched()
					}
				}
				tree.RemoveWatcher(w)
				w.mu.Lock()
				for _, e := range w.strays {
					t.Errorf("%+v for a watcher of %v", e, w.at)
				}
				w.mu.Unlock()
			}
		})
	}
	stop := make(chan struct{})
	others.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			tree.WatchCount()
			tree.WatchStats()
			tree.EachWatch(func(string, Watcher) bool { return true })
			runtime.Gosched()
		}
	})
	done := make(chan struct{})
	go func() {
		clients.Wait()
		close(done)
	}()
	g := rand.New(rand.NewPCG(1, 22))
	list := []ACL{{31, "digest", "u:h"}, {30, "world", "anyone"}}
	for n, ended := 0, false; !ended; n++ {
		select {
		case <-done:
			ended = true
		default:
		}
		var batch []Entry
		for range 1 + g.IntN(4) {
			r := Request{Op: []Op{OpCreate, OpCreate, OpSetData, OpDelete}[g.IntN(4)], Path: paths[g.IntN(len(paths))], Version: -1, ACL: OpenACL()}
			if g.IntN(3) == 0 {
				r.ACL = list
			}
			batch = append(batch, h.prepare(&r))
		}
		if err := tree.Apply(batch, nil); err != nil {
			t.Error(err)
			break
		}
		if n%50 == 49 { // a view that did not come from applying
			other := newHistory(NewTree(tree.View()))
			other.last = h.last
			for range 3 {
				other.do(t, &Request{Op: OpCreate, Path: paths[g.IntN(len(paths))], ACL: list})
				other.do(t, &Request{Op: OpDelete, Path: paths[g.IntN(len(paths))], Version: -1})
			}
			tree.Reset(other.tree.View())
			h.prep.Reset()
			h.last = other.last
		}
		runtime.Gosched()
	}
	close(stop)
	others.Wait()
	if told.Load() < int64(lives) {
		t.Errorf("only %d events", told.Load())
	}
	if n := tree.WatchCount(); n != 0 {
		t.Errorf("%d watches left behind", n)
	}
	if err := checkWatches(tree); err != nil {
		t.Error(err)
	}
	if p := &tree.watches.parties; p.any() || len(*p.numbers.Load()) != 1 {
		t.Errorf("watchers left behind: %d", len(*p.numbers.Load()))
	}
	for i := range tree.watches.stripes {
		if s := &tree.watches.stripes[i].table; s.spots != nil || s.text != nil || s.crowds != nil {
			t.Error(fmt.Sprint("memory left in stripe ", i))
		}
	}
}
