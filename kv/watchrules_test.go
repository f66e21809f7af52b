package kv

import (
	"slices"
	"testing"
)

// watchBench is a tree with one watcher whose events are compared step by step.
type watchBench struct {
	*testing.T
	h *history
	w *mailbox
}

func newWatchBench(t *testing.T, nodes ...string) *watchBench {
	b := &watchBench{t, newHistory(NewTree(nil)), new(mailbox)}
	for _, n := range nodes {
		b.do(OpCreate, n)
	}
	return b
}

func (b *watchBench) do(op Op, path string) {
	b.Helper()
	b.h.do(b, &Request{Op: op, Path: path, Version: -1, ACL: OpenACL()})
}

func (b *watchBench) add(mode WatchMode, path string) {
	b.h.tree.AddWatchAt(b.h.tree.View(), path, mode, b.w)
}

// expect compares the events, without their zxids.
func (b *watchBench) expect(what string, want ...string) {
	b.Helper()
	var got []string
	for _, e := range b.w.events {
		got = append(got, e.Type.String()+" "+e.Path)
	}
	b.w.events = nil
	if !slices.Equal(got, want) {
		b.Errorf("%s: got %q, want %q", what, got, want)
	}
	if err := checkWatches(b.h.tree); err != nil {
		b.Errorf("%s: %v", what, err)
	}
}

// TestPersistentWatch: zookeeper-protocol 6.2, the persistent watch.
func TestPersistentWatch(t *testing.T) {
	b := newWatchBench(t, "/p")
	b.add(Persistent, "/p/n") // missing
	for range 2 {             // survives deletion and re-creation
		b.do(OpCreate, "/p/n")
		b.expect("create", "NodeCreated /p/n")
		b.do(OpSetData, "/p/n")
		b.do(OpSetData, "/p/n")
		b.expect("setData twice", "NodeDataChanged /p/n", "NodeDataChanged /p/n")
		b.do(OpSetACL, "/p/n")
		b.expect("setACL")
		b.do(OpCreate, "/p/n/k")
		b.expect("child created", "NodeChildrenChanged /p/n")
		b.do(OpSetData, "/p/n/k")
		b.do(OpCreate, "/p/n/k/g")
		b.do(OpDelete, "/p/n/k/g")
		b.expect("data of a child, grandchildren")
		b.do(OpDelete, "/p/n/k")
		b.expect("child deleted", "NodeChildrenChanged /p/n")
		b.do(OpDelete, "/p/n")
		b.expect("delete: once, though it is in both tables", "NodeDeleted /p/n")
	}
	b.h.tree.RemoveWatcher(b.w)
	b.do(OpCreate, "/p/n")
	b.expect("removed")
}

// TestRecursiveWatch: zookeeper-protocol 6.2, the recursive watch.
func TestRecursiveWatch(t *testing.T) {
	b := newWatchBench(t, "/p", "/pp")
	b.add(Recursive, "/p")
	b.add(Recursive, "/p/a") // overlapping, missing
	b.add(Recursive, "/")
	b.h.tree.RemoveWatch("/", WatcherRecursive, b.w)
	b.do(OpSetData, "/pp")
	b.do(OpCreate, "/pp/a")
	b.expect("a sibling whose name begins alike")
	b.do(OpCreate, "/p/a")
	b.do(OpCreate, "/p/a/b")
	b.do(OpSetData, "/p/a/b")
	b.do(OpSetData, "/p")
	b.expect("below and at the node, by the path of what changed, never NodeChildrenChanged",
		"NodeCreated /p/a", "NodeCreated /p/a/b", "NodeDataChanged /p/a/b", "NodeDataChanged /p")
	b.do(OpDelete, "/p/a/b")
	b.do(OpDelete, "/p/a")
	b.do(OpDelete, "/p")
	b.expect("deletions", "NodeDeleted /p/a/b", "NodeDeleted /p/a", "NodeDeleted /p")
	b.do(OpCreate, "/p")
	b.expect("survives", "NodeCreated /p")
	b.add(Recursive, "/")
	b.do(OpCreate, "/q")
	b.h.do(t, &Request{Op: OpSetConfig, Data: []byte("x"), Version: 1})
	b.expect("at the root everything", "NodeCreated /q", "NodeDataChanged /zookeeper/config")
	b.add(Persistent, "/q")
	b.h.tree.WatchAt(b.h.tree.View(), "/q", WatchData, b.w, false)
	b.do(OpSetData, "/q")
	b.expect("three watches match, one event", "NodeDataChanged /q")
	b.do(OpCreate, "/q/c")
	b.expect("recursive above, persistent at the parent", "NodeCreated /q/c", "NodeChildrenChanged /q")
	b.do(OpDelete, "/q/c")
	b.expect("and for the deletion", "NodeDeleted /q/c", "NodeChildrenChanged /q")
	b.h.tree.WatchAt(b.h.tree.View(), "/q", WatchChildren, b.w, false)
	b.do(OpDelete, "/q")
	b.expect("told by the data table, silent in the child table", "NodeDeleted /q")
	if b.h.tree.HasWatch("/q", WatcherChildren, b.w) {
		t.Error("the silent child watch was not consumed")
	}
}

// TestModesCoexist: one-shot, persistent and recursive watches of one watcher on one path (zookeeper-protocol 6.2 as of
// 3.9), and what each type of 4.6 finds and removes.
func TestModesCoexist(t *testing.T) {
	b := newWatchBench(t, "/n")
	tree := b.h.tree
	has := func(what string, want ...WatcherType) {
		t.Helper()
		var got []WatcherType
		for wt := WatcherType(-1); wt <= 6; wt++ {
			if tree.HasWatch("/n", wt, b.w) {
				got = append(got, wt)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: types %v, want %v", what, got, want)
		}
	}
	setAll := func() {
		tree.GetWatch("/n", b.w)
		tree.ChildrenWatch("/n", b.w)
		b.add(Persistent, "/n")
		b.add(Recursive, "/n")
		tree.GetWatch("/n", b.w)
	}
	has("none")
	setAll()
	has("all", 1, 2, 3, 4, 5)
	if n := tree.WatchCount(); n != 2 {
		t.Errorf("%d watches, want 2: one pair in each table", n)
	}
	b.do(OpSetData, "/n")
	b.expect("setData", "NodeDataChanged /n")
	has("the one-shot data watch is consumed", 1, 3, 4, 5)
	b.do(OpCreate, "/n/k")
	b.expect("create below", "NodeCreated /n/k", "NodeChildrenChanged /n")
	has("the one-shot child watch is consumed", 3, 4, 5)
	for wt := WatcherType(1); wt <= 5; wt++ {
		setAll()
		if wt == WatcherAny {
			continue
		}
		if !tree.RemoveWatch("/n", wt, b.w) || tree.HasWatch("/n", wt, b.w) || tree.RemoveWatch("/n", wt, b.w) {
			t.Errorf("type %d is not removed once", wt)
		}
		want := []WatcherType{1, 2, 3, 4, 5}
		has("all but one", slices.DeleteFunc(want, func(o WatcherType) bool { return o == wt })...)
		setAll()
	}
	for _, wt := range []WatcherType{-1, 0, 6} {
		if tree.RemoveWatch("/n", wt, b.w) {
			t.Errorf("type %d removes something", wt)
		}
	}
	if tree.RemoveWatch("/other", WatcherAny, b.w) || tree.RemoveWatch("/n", WatcherAny, new(mailbox)) {
		t.Error("removed a watch that nobody set")
	}
	if !tree.RemoveWatch("/n", WatcherAny, b.w) {
		t.Error("nothing removed")
	}
	has("none left")
	b.do(OpSetData, "/n")
	b.do(OpCreate, "/n/l")
	b.expect("nothing")
}

// TestAccessFilter: an event goes only to who may read the node whose watch fires, at the moment of the change; a
// one-shot is consumed all the same (zookeeper-protocol 6.2).
func TestAccessFilter(t *testing.T) {
	h := newHistory(NewTree(nil))
	tree := h.tree
	mine := []ACL{{PermAll, "digest", "me:x"}}
	admin := []ACL{{PermAll &^ PermRead, "digest", "me:x"}}
	me, other := &reader1{t: t, user: "me"}, &reader1{t: t, user: "other"}
	expect := func(what string, w *reader1, want ...string) {
		t.Helper()
		var got []string
		for _, e := range w.got {
			got = append(got, e.Type.String()+" "+e.Path)
		}
		w.got = nil
		if !slices.Equal(got, want) {
			t.Errorf("%s: %s got %q, want %q", what, w.user, got, want)
		}
	}
	batch := func(rs ...Request) {
		t.Helper()
		var entries []Entry
		for i := range rs {
			rs[i].Version = -1
			entries = append(entries, h.prepare(&rs[i]))
		}
		if err := tree.Apply(entries, nil); err != nil {
			t.Fatal(err)
		}
	}
	watchAll := func() {
		for _, w := range []*reader1{me, other} {
			tree.ExistsWatch("/n", w)
			tree.ChildrenWatch("/", w)
			tree.ChildrenWatch("/n", w)
		}
	}
	watchAll()
	batch(Request{Op: OpCreate, Path: "/n", ACL: mine})
	expect("create", me, "NodeCreated /n", "NodeChildrenChanged /")
	expect("create", other, "NodeChildrenChanged /") // the root is open
	if n := tree.WatchCount(); n != 0 {
		t.Errorf("%d watches: filtered ones are consumed", n)
	}
	watchAll()
	batch(Request{Op: OpSetData, Path: "/n"}, Request{Op: OpCreate, Path: "/n/k", ACL: OpenACL()})
	expect("setData, open child created", me, "NodeDataChanged /n", "NodeChildrenChanged /n")
	expect("setData, open child created", other)
	if tree.HasWatch("/n", WatcherAny, other) {
		t.Error("a filtered watch is still there")
	}
	for _, w := range []*reader1{me, other} {
		tree.AddWatchAt(tree.View(), "/n", Recursive, w)
		tree.AddWatchAt(tree.View(), "/n", Persistent, w)
	}
	batch(Request{Op: OpSetData, Path: "/n/k"}, Request{Op: OpDelete, Path: "/n/k"})
	expect("open child of a closed node", me, "NodeDataChanged /n/k", "NodeDeleted /n/k", "NodeChildrenChanged /n")
	expect("open child of a closed node", other, "NodeDataChanged /n/k", "NodeDeleted /n/k")
	// Within one batch each change counts under the list of its moment; one of them exists nowhere afterwards.
	passing := []ACL{{PermRead, "digest", "other:x"}}
	batch(Request{Op: OpSetData, Path: "/n"}, Request{Op: OpSetACL, Path: "/n", ACL: passing}, Request{Op: OpSetData, Path: "/n"},
		Request{Op: OpSetACL, Path: "/n", ACL: admin}, Request{Op: OpSetData, Path: "/n"}, Request{Op: OpSetACL, Path: "/n", ACL: mine},
		Request{Op: OpDelete, Path: "/n"})
	expect("lists that change", me, "NodeDataChanged /n", "NodeDeleted /n", "NodeChildrenChanged /")
	expect("lists that change", other, "NodeDataChanged /n", "NodeChildrenChanged /")
	// Catch-up is filtered too; what setWatches finds is not.
	old := tree.View()
	batch(Request{Op: OpCreate, Path: "/late", ACL: mine})
	for _, w := range []*reader1{me, other} {
		tree.RemoveWatcher(w)
		tree.WatchAt(old, "/late", WatchData, w, true)
		tree.AddWatchAt(old, "/late", Persistent, w)
		tree.AddWatchAt(old, "/", Recursive, w)
		if e, now := tree.RearmAt(tree.View(), ListExist, "/late", old.Zxid(), w); !now || e != EventNodeCreated {
			t.Errorf("setWatches: %v %v", e, now)
		}
	}
	expect("older view", me, "NodeCreated /late", "NodeCreated /late") // one-shot first, nothing told it; then persistent
	expect("older view", other)
	old = tree.View()
	batch(Request{Op: OpDelete, Path: "/late"})
	for _, w := range []*reader1{me, other} {
		w.got = nil
		tree.RemoveWatcher(w)
		tree.AddWatchAt(old, "/late", Persistent, w)
	}
	expect("deleted since", me, "NodeDeleted /late")
	expect("deleted since", other)
	if err := checkWatches(tree); err != nil {
		t.Error(err)
	}
}

// TestRearm: every line of the table of zookeeper-protocol 6.5.
func TestRearm(t *testing.T) {
	b := newWatchBench(t, "/same", "/changed", "/kids")
	since := b.h.last.Zxid
	b.do(OpSetData, "/changed")
	b.do(OpCreate, "/kids/k")
	b.do(OpCreate, "/new")
	tree := b.h.tree
	for _, c := range []struct {
		list  WatchList
		path  string
		since Zxid
		event EventType
		left  WatcherType // what is set then
	}{
		{ListData, "/missing", since, EventNodeDeleted, 0},
		{ListData, "/changed", since, EventNodeDataChanged, 0},
		{ListData, "/changed", since + 1, 0, WatcherData},
		{ListData, "/same", since, 0, WatcherData},
		{ListData, "/kids", since, 0, WatcherData},
		{ListExist, "/same", since, EventNodeCreated, 0},
		{ListExist, "/same", since + 100, EventNodeCreated, 0}, // whatever its zxid
		{ListExist, "/missing", since, 0, WatcherData},
		{ListExist, "/nul\x00", since, 0, 0},
		{ListChild, "/missing", since, EventNodeDeleted, 0},
		{ListChild, "/kids", since, EventNodeChildrenChanged, 0},
		{ListChild, "/kids", since + 2, 0, WatcherChildren},
		{ListChild, "/changed", since, 0, WatcherChildren},
		{ListPersistent, "/changed", 0, 0, WatcherPersistent},
		{ListPersistent, "/missing", since, 0, WatcherPersistent},
		{ListRecursive, "/kids", 0, 0, WatcherRecursive},
		{ListRecursive, "/missing", since, 0, WatcherRecursive},
	} {
		e, now := tree.RearmAt(tree.View(), c.list, c.path, c.since, b.w)
		if e != c.event || now != (c.event != 0) {
			t.Errorf("list %d of %q: %v %v, want %v", c.list, c.path, e, now, c.event)
		}
		for wt := WatcherType(1); wt <= 5; wt++ {
			if got := tree.HasWatch(c.path, wt, b.w); got != (c.left != 0 && (wt == c.left || wt == WatcherAny)) {
				t.Errorf("list %d of %q: watch of type %d: %v", c.list, c.path, wt, got)
			}
		}
		b.expect("nothing is queued")
		tree.RemoveWatcher(b.w)
	}
	// Changes after the view that setWatches is answered from come as ordinary events.
	v := tree.View()
	b.do(OpSetData, "/same")
	b.do(OpSetData, "/kids/k")
	b.do(OpCreate, "/same/k")
	for _, c := range []struct {
		list WatchList
		path string
		want []string
	}{
		{ListData, "/same", []string{"NodeDataChanged /same"}},
		{ListChild, "/same", []string{"NodeChildrenChanged /same"}},
		{ListExist, "/same/k", []string{"NodeCreated /same/k"}},
		{ListPersistent, "/same", []string{"NodeDataChanged /same", "NodeChildrenChanged /same"}},
		{ListRecursive, "/", []string{"NodeDataChanged /same", "NodeDataChanged /kids/k", "NodeCreated /same/k"}},
	} {
		if e, now := tree.RearmAt(v, c.list, c.path, v.Zxid(), b.w); now {
			t.Errorf("list %d of %q: event %v", c.list, c.path, e)
		}
		b.expect("since the view", c.want...)
		tree.RemoveWatcher(b.w)
	}
}

// TestCatchUpTellsNothingTwice: a change that one watch of a watcher has told is not told by another one that is set
// for an answer from before it.
func TestCatchUpTellsNothingTwice(t *testing.T) {
	for _, c := range []struct {
		first     WatchMode
		firstPath string
		set       func(tree *Tree, v *View, w Watcher)
		want      []string // raised when set
	}{
		{Persistent, "/n", func(tree *Tree, v *View, w Watcher) { tree.WatchAt(v, "/n", WatchData, w, true) }, nil},
		{Persistent, "/n", func(tree *Tree, v *View, w Watcher) { tree.WatchAt(v, "/n", WatchChildren, w, true) }, nil},
		{Recursive, "/", func(tree *Tree, v *View, w Watcher) { tree.WatchAt(v, "/n", WatchData, w, true) }, nil},
		{Recursive, "/n", func(tree *Tree, v *View, w Watcher) { tree.WatchAt(v, "/n", WatchChildren, w, true) },
			[]string{"NodeChildrenChanged /n"}},
		{Recursive, "/n", func(tree *Tree, v *View, w Watcher) { tree.AddWatchAt(v, "/n", Persistent, w) },
			[]string{"NodeChildrenChanged /n"}},
		{Recursive, "/", func(tree *Tree, v *View, w Watcher) { tree.AddWatchAt(v, "/n", Recursive, w) }, nil},
		{Persistent, "/n", func(tree *Tree, v *View, w Watcher) { tree.AddWatchAt(v, "/", Recursive, w) },
			[]string{"NodeCreated /n/k"}},
		{Persistent, "/n", func(tree *Tree, v *View, w Watcher) { tree.AddWatchAt(v, "/n", Persistent, w) }, nil},
	} {
		b := newWatchBench(t, "/n")
		v := b.h.tree.View()
		b.add(c.first, c.firstPath)
		b.do(OpSetData, "/n")
		b.do(OpCreate, "/n/k")
		b.w.events = nil
		c.set(b.h.tree, v, b.w)
		b.expect("set late", c.want...)
	}
	// A deletion that the recursive watch has told ends a child watch silently.
	b := newWatchBench(t, "/n")
	v := b.h.tree.View()
	b.add(Recursive, "/")
	b.do(OpDelete, "/n")
	b.w.events = nil
	b.h.tree.WatchAt(v, "/n", WatchChildren, b.w, false)
	b.expect("deleted since")
	if b.h.tree.HasWatch("/n", WatcherChildren, b.w) {
		t.Error("a child watch on a deleted node")
	}
}

// TestRemoveWatcherWhileFiring: watchers that come and go while their paths fire leave nothing, and a number that is
// given out again brings no events of its former owner.
func TestRemoveWatcherWhileFiring(t *testing.T) {
	h := newHistory(NewTree(nil))
	tree := h.tree
	paths := []string{"/a", "/a/b", "/a/b/c"}
	for _, p := range paths {
		h.do(t, &Request{Op: OpCreate, Path: p, ACL: OpenACL()})
	}
	stop := make(chan struct{})
	done := make(chan error, 2)
	for range 2 {
		go func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					done <- nil
					return
				default:
				}
				w := new(mailbox)
				path := paths[n%3]
				switch v := tree.View(); n % 4 {
				case 0:
					tree.AddWatchAt(v, path, Persistent, w)
				case 1:
					tree.AddWatchAt(v, path, Recursive, w)
				case 2:
					tree.WatchAt(v, path, WatchChildren, w, false)
				}
				tree.WatchAt(tree.View(), path, WatchData, w, false)
				tree.RemoveWatcher(w)
				for _, wt := range []WatcherType{WatcherAny, WatcherRecursive} {
					if tree.HasWatch(path, wt, w) || tree.RemoveWatch(path, wt, w) {
						t.Error("a watch is left")
					}
				}
				w.mu.Lock()
				for _, e := range w.events {
					if !within(e.Path, path) {
						t.Errorf("watcher of %q got %v", path, e)
					}
				}
				w.mu.Unlock()
			}
		}()
	}
	for range 3000 {
		for _, p := range paths {
			h.do(t, &Request{Op: OpSetData, Path: p, Version: -1})
		}
	}
	close(stop)
	for range 2 {
		<-done
	}
	if err := checkWatches(tree); err != nil {
		t.Error(err)
	}
	if n, numbers := tree.WatchCount(), len(*tree.watches.parties.numbers.Load()); n != 0 || numbers != 1 {
		t.Errorf("%d watches, %d numbers left", n, numbers-1)
	}
}

// TestFired counts changes that had watchers and the watchers.
func TestFired(t *testing.T) {
	b := newWatchBench(t, "/n")
	var others [3]mailbox
	b.add(Persistent, "/n")
	b.add(Recursive, "/")
	for i := range others {
		b.h.tree.GetWatch("/n", &others[i])
	}
	b.do(OpSetData, "/n") // four, of whom one by two watches
	b.do(OpSetData, "/n") // one
	b.do(OpSetData, "/zookeeper")
	b.do(OpCreate, "/n/k")
	b.do(OpDelete, "/n/k")
	for e, want := range map[EventType][4]int64{
		EventNodeDataChanged: {3, 6, 1, 4}, EventNodeCreated: {1, 1, 1, 1}, EventNodeDeleted: {1, 1, 1, 1},
		EventNodeChildrenChanged: {2, 2, 1, 1}, 0: {}, 5: {},
	} {
		var got [4]int64
		if got[0], got[1], got[2], got[3] = b.h.tree.Fired(e); got != want {
			t.Errorf("%v: %v, want %v", e, got, want)
		}
	}
}

// TestResetIgnoresQuotaStatistics: they change in place and never raise an event.
func TestResetIgnoresQuotaStatistics(t *testing.T) {
	b := newWatchBench(t, "/q", QuotaPath+"/q")
	for name, text := range map[string]string{"zookeeper_limits": "count=9,bytes=-1", "zookeeper_stats": "count=1,bytes=0"} {
		b.h.do(t, &Request{Op: OpCreate, Path: QuotaPath + "/q/" + name, Data: []byte(text), ACL: OpenACL()})
	}
	old := b.h.tree.View()
	b.do(OpCreate, "/q/n")
	now := b.h.tree.View()
	stats := QuotaPath + "/q/zookeeper_stats"
	before, _, _ := old.Get(stats)
	if after, _, _ := now.Get(stats); string(before) == string(after) {
		t.Fatalf("the statistics did not change: %q", after)
	}
	tree := NewTree(old)
	tree.AddWatchAt(old, QuotaPath, Recursive, b.w)
	tree.Reset(now)
	b.h.tree.WatchAt(old, stats, WatchData, b.w, false)
	b.h.tree.AddWatchAt(old, QuotaPath, Recursive, b.w)
	b.expect("statistics")
}

// TestResetTellsLastingWatches: an installed view is told as its net difference, to persistent and recursive watches too,
// and what is gone has no children that changed.
func TestResetTellsLastingWatches(t *testing.T) {
	b := newWatchBench(t, "/gone", "/gone/k", "/again", "/again/k", "/kids")
	b.do(OpDelete, "/gone/k")
	b.do(OpDelete, "/again/k")
	old := b.h.tree.View()
	b.do(OpDelete, "/gone")
	b.do(OpDelete, "/again")
	b.do(OpCreate, "/again")
	b.do(OpCreate, "/kids/k")
	tree := NewTree(old)
	for _, p := range []string{"/gone", "/again", "/kids"} {
		tree.AddWatchAt(old, p, Persistent, b.w)
		tree.ChildrenWatch(p, b.w)
	}
	var all mailbox
	tree.AddWatchAt(old, "/", Recursive, &all)
	tree.Reset(b.h.tree.View())
	b.expect("persistent", "NodeDeleted /gone", "NodeDeleted /again", "NodeCreated /again", "NodeChildrenChanged /kids")
	b.w = &all
	b.expect("recursive", "NodeDeleted /gone", "NodeDeleted /again", "NodeCreated /again", "NodeCreated /kids/k")
	if err := checkWatches(tree); err != nil {
		t.Error(err)
	}
	if n := tree.WatchCount(); n != 3*2+1 {
		t.Errorf("%d watches left, want the lasting ones", n)
	}
}

// TestCatchUpOrder: of a subtree that is gone the leaves are told first, of a new one the root, deletions before
// creations; set late or by an installed view.
func TestCatchUpOrder(t *testing.T) {
	b := newWatchBench(t, "/a", "/a/b", "/a/b/c")
	old := b.h.tree.View()
	for _, p := range []string{"/a/b/c", "/a/b", "/a"} {
		b.do(OpDelete, p)
	}
	for _, p := range []string{"/b", "/b/b", "/b/b/c"} {
		b.do(OpCreate, p)
	}
	want := []string{"NodeDeleted /a/b/c", "NodeDeleted /a/b", "NodeDeleted /a", "NodeCreated /b", "NodeCreated /b/b", "NodeCreated /b/b/c"}
	b.h.tree.AddWatchAt(old, "/", Recursive, b.w)
	b.expect("set late", want...)
	tree := NewTree(old)
	tree.AddWatchAt(old, "/", Recursive, b.w)
	tree.Reset(b.h.tree.View())
	b.expect("installed", want...)
}
