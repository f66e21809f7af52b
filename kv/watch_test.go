package kv

import (
	"fmt"
	"slices"
	"sync"
	"testing"
)

// mailbox is a watcher that keeps what it is told, by zxid.
type mailbox struct {
	mu     sync.Mutex
	events []Event // under mu
}

func (m *mailbox) Event(e Event) {
	m.mu.Lock()
	i := len(m.events)
	for i > 0 && m.events[i-1].Zxid > e.Zxid {
		i--
	}
	m.events = slices.Insert(m.events, i, e)
	m.mu.Unlock()
}

func (m *mailbox) MayRead(AccessList) bool { return true }

// take returns the events so far, printed.
func (m *mailbox) take() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for _, e := range m.events {
		out = append(out, fmt.Sprintf("%v %s @%v", e.Type, e.Path, e.Zxid))
	}
	m.events = nil
	return out
}

// TestWatchesFire checks the table of zookeeper-protocol 6.2 and the one-shot rule, change by change.
func TestWatchesFire(t *testing.T) {
	h := newHistory(NewTree(nil))
	tree := h.tree
	open := OpenACL()
	var w mailbox
	expect := func(what string, want ...string) {
		t.Helper()
		if got := w.take(); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
	h.do(t, &Request{Op: OpCreateSession, Session: 9, Timeout: 1})
	h.do(t, &Request{Op: OpCreate, Path: "/p", ACL: open})

	if tree.GetWatch("/p/n", &w); tree.WatchCount() != 0 {
		t.Error("a data watch was set on a missing node by get")
	}
	if tree.ChildrenWatch("/p/n", &w); tree.WatchCount() != 0 {
		t.Error("a child watch was set on a missing node")
	}
	if tree.ExistsWatch("/p\x00", &w); tree.WatchCount() != 0 {
		t.Error("a watch was set on a path with NUL")
	}
	tree.ExistsWatch("/p/n", &w)
	tree.ExistsWatch("/p/n", &w)
	tree.ChildrenWatch("/p", &w)
	if tree.WatchCount() != 2 {
		t.Errorf("%d watches, want 2: setting one twice keeps one", tree.WatchCount())
	}
	h.do(t, &Request{Op: OpCreate, Path: "/p/n", ACL: open})
	expect("create", "NodeCreated /p/n @1:3", "NodeChildrenChanged /p @1:3")
	h.do(t, &Request{Op: OpSetData, Path: "/p/n", Version: -1})
	expect("one shot")

	tree.GetWatch("/p/n", &w)
	tree.ExistsWatch("/p/n", &w)
	tree.ChildrenWatch("/p/n", &w)
	h.do(t, &Request{Op: OpSetACL, Path: "/p/n", ACL: open, Version: -1})
	h.do(t, &Request{Op: OpSetData, Path: "/p/n", Version: 7})
	expect("setACL and a refused setData")
	h.do(t, &Request{Op: OpSetData, Path: "/p/n", Version: -1})
	expect("setData", "NodeDataChanged /p/n @1:7")

	tree.GetWatch("/p/n", &w) // the child watch is still there
	tree.ChildrenWatch("/p", &w)
	h.do(t, &Request{Op: OpDelete, Path: "/p/n", Version: -1})
	expect("delete: told once", "NodeDeleted /p/n @1:8", "NodeChildrenChanged /p @1:8")
	h.do(t, &Request{Op: OpCreate, Path: "/p/n", ACL: open})
	tree.ChildrenWatch("/p/n", &w)
	h.do(t, &Request{Op: OpDelete, Path: "/p/n", Version: -1})
	expect("delete of a node with a child watch", "NodeDeleted /p/n @1:10")

	tree.ChildrenWatch("", &w) // an alias of the root
	tree.ExistsWatch("/e2", &w)
	h.do(t, &Request{Op: OpMulti, Session: 9, Ops: []Request{
		{Op: OpCreate, Path: "/e1", Flags: FlagEphemeral, ACL: open},
		{Op: OpCreate, Path: "/e2", Flags: FlagEphemeral, ACL: open},
	}})
	expect("multi, operation by operation", "NodeChildrenChanged / @1:11", "NodeCreated /e2 @1:11")
	tree.GetWatch("/e1", &w)
	tree.GetWatch("/e2", &w)
	tree.ChildrenWatch("/", &w)
	h.do(t, &Request{Op: OpCloseSession, Session: 9})
	expect("session closed", "NodeDeleted /e1 @1:12", "NodeChildrenChanged / @1:12", "NodeDeleted /e2 @1:12")

	tree.ExistsWatch(ConfigPath, &w)
	h.do(t, &Request{Op: OpSetConfig, Data: []byte("x"), Version: -1})
	expect("configuration", "NodeDataChanged /zookeeper/config @1:13")

	var other mailbox
	for i := range 50 {
		tree.ExistsWatch(fmt.Sprintf("/x%d", i%25), &w)
		tree.ExistsWatch(fmt.Sprintf("/x%d", i%25), &other)
	}
	if tree.WatchCount() != 50 {
		t.Errorf("%d watches, want 50", tree.WatchCount())
	}
	tree.RemoveWatcher(&w)
	if tree.WatchCount() != 25 {
		t.Errorf("%d watches after one of two watchers left, want 25", tree.WatchCount())
	}
	h.do(t, &Request{Op: OpCreate, Path: "/x3", ACL: open})
	expect("a watcher that left")
	if got := other.take(); !slices.Equal(got, []string{"NodeCreated /x3 @1:14"}) {
		t.Errorf("the other watcher got %q", got)
	}
	tree.RemoveWatcher(&other)
	if err := checkWatches(tree); err != nil {
		t.Error(err)
	}
	if n, list := tree.WatchCount(), *tree.watches.parties.numbers.Load(); n != 0 || len(list) != 1 {
		t.Errorf("%d watches and %d numbers left behind", n, len(list)-1)
	}
}

// TestEventsPrecedeTheSink: everything a batch fires is queued when the first outcome is handed out, the view
// included.
func TestEventsPrecedeTheSink(t *testing.T) {
	h := newHistory(NewTree(nil))
	var w mailbox
	h.tree.ExistsWatch("/a", &w)
	h.tree.ExistsWatch("/b", &w)
	batch := []Entry{
		h.prepare(&Request{Op: OpCreate, Path: "/a", ACL: OpenACL()}),
		h.prepare(&Request{Op: OpCreate, Path: "/b", ACL: OpenACL()}),
	}
	calls := 0
	err := h.tree.Apply(batch, sinkFunc(func(z Zxid) {
		calls++
		if got := h.tree.View().Zxid(); got != batch[1].Zxid {
			t.Errorf("outcome of %v while the view is at %v", z, got)
		}
		if len(w.events) != 2 {
			t.Errorf("outcome of %v with %d events queued", z, len(w.events))
		}
	}))
	if err != nil || calls != 2 {
		t.Fatal(err, calls)
	}
}

type sinkFunc func(Zxid)

func (sinkFunc) Begin(Zxid, *TxnHeader) (bool, bool)             { return true, false }
func (f sinkFunc) Done(z Zxid, _ *TxnHeader, _ *Result, _ *View) { f(z) }

// TestWatchAt sets watches for reads answered from an older view.
func TestWatchAt(t *testing.T) {
	h := newHistory(NewTree(nil))
	open := OpenACL()
	for _, p := range []string{"/same", "/changed", "/gone", "/again", "/kids"} {
		h.do(t, &Request{Op: OpCreate, Path: p, ACL: open})
	}
	old := h.tree.View()
	h.do(t, &Request{Op: OpSetData, Path: "/changed", Version: -1})
	h.do(t, &Request{Op: OpDelete, Path: "/gone", Version: -1})
	h.do(t, &Request{Op: OpDelete, Path: "/again", Version: -1})
	h.do(t, &Request{Op: OpCreate, Path: "/again", ACL: open})
	h.do(t, &Request{Op: OpCreate, Path: "/kids/k", ACL: open})
	h.do(t, &Request{Op: OpCreate, Path: "/new", ACL: open})
	for _, c := range []struct {
		path   string
		kind   WatchKind
		also   bool
		event  string
		placed int
	}{
		{"/same", WatchData, false, "", 1},
		{"/same", WatchChildren, false, "", 1},
		{"/changed", WatchData, false, "NodeDataChanged /changed @1:6", 0},
		{"/changed", WatchChildren, false, "", 1},
		{"/gone", WatchData, true, "NodeDeleted /gone @1:6", 0},
		{"/gone", WatchChildren, false, "NodeDeleted /gone @1:6", 0},
		{"/again", WatchData, false, "NodeDeleted /again @1:6", 0},
		{"/kids", WatchData, false, "", 1},
		{"/kids", WatchChildren, false, "NodeChildrenChanged /kids @1:6", 0},
		{"/new", WatchData, false, "", 0}, // the answer was "no such node"
		{"/new", WatchChildren, false, "", 0},
		{"/new", WatchData, true, "NodeCreated /new @1:6", 0},
		{"/never", WatchData, true, "", 1},
		{"/never\x00", WatchData, true, "", 0},
	} {
		var w mailbox
		h.tree.WatchAt(old, c.path, c.kind, &w, c.also)
		var want []string
		if c.event != "" {
			want = []string{c.event}
		}
		if got := w.take(); !slices.Equal(got, want) {
			t.Errorf("%q kind %d: got %q, want %q", c.path, c.kind, got, want)
		}
		if n := h.tree.WatchCount(); n != c.placed {
			t.Errorf("%q kind %d: %d watches set, want %d", c.path, c.kind, n, c.placed)
		}
		h.tree.RemoveWatcher(&w)
	}
}

// TestResetFiresDifferences installs a later view, as after a snapshot, and checks that watches on what differs
// fire and that the others stay.
func TestResetFiresDifferences(t *testing.T) {
	here, there := newHistory(NewTree(nil)), newHistory(NewTree(nil))
	both := func(r Request) { here.do(t, &r); there.do(t, &r) }
	for _, p := range []string{"/same", "/changed", "/gone", "/kids"} {
		both(Request{Op: OpCreate, Path: p, ACL: OpenACL()})
	}
	there.do(t, &Request{Op: OpSetData, Path: "/changed", Version: -1})
	there.do(t, &Request{Op: OpDelete, Path: "/gone", Version: -1})
	there.do(t, &Request{Op: OpCreate, Path: "/kids/k", ACL: OpenACL()})
	var w mailbox
	for _, p := range []string{"/same", "/changed", "/gone", "/kids"} {
		here.tree.GetWatch(p, &w)
		here.tree.ChildrenWatch(p, &w)
	}
	here.tree.ExistsWatch("/kids/k", &w)
	here.tree.Reset(there.tree.View())
	got := w.take()
	slices.Sort(got) // stripes are told one after the other
	want := []string{"NodeChildrenChanged /kids @1:5", "NodeCreated /kids/k @1:5", "NodeDataChanged /changed @1:5", "NodeDeleted /gone @1:5"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if n := here.tree.WatchCount(); n != 4 { // both on /same, child of /changed, data of /kids
		t.Errorf("%d watches left, want 4", n)
	}
	if here.tree.View() != there.tree.View() {
		t.Error("the new view is not current")
	}
}
