package kv

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// watchModel is zookeeper-protocol 6 written as plainly as possible: every change looks at every watcher. It shares
// nothing with the tables.
type watchModel struct {
	nodes    map[string]modelWatched
	watchers map[*reader1]map[string]map[string]bool // watcher, path, kinds of watches
}

// modelWatched is what watches need to know of a node: who may read it ("" is everybody) and which session owns it.
type modelWatched struct {
	reader string
	owner  SessionID
}

// reader1 is a watcher that may read open nodes and those of one user.
type reader1 struct {
	t    *testing.T
	user string
	got  []Event
	want []Event // by the model
}

func (r *reader1) Event(e Event) { r.got = append(r.got, e) }

func (r *reader1) MayRead(l AccessList) bool {
	list, ok := decodeACL(string(l))
	if !ok || l == "" || string(l) == encodedOpenACL {
		r.t.Errorf("asked whether %q may be read", l)
	}
	for _, a := range list {
		if a.Perms&PermRead != 0 && a.Scheme == "digest" && a.ID == r.user+":x" {
			return true
		}
	}
	return false
}

// row tells every watcher that has one of the kinds at the path, or a recursive watch above it if above, once.
func (m *watchModel) row(e Event, node modelWatched, kinds, consume []string, above bool) {
	for w, paths := range m.watchers {
		hit := false
		for _, k := range kinds {
			hit = hit || paths[e.Path][k]
		}
		for p := range paths {
			inside := p == "/" || strings.HasPrefix(e.Path, p+"/")
			hit = hit || above && inside && paths[p]["recursive"]
		}
		if !hit {
			continue
		}
		if node.reader == "" || node.reader == w.user {
			w.want = append(w.want, e)
		}
		for _, k := range consume {
			m.drop(w, e.Path, k)
		}
	}
}

func (m *watchModel) drop(w *reader1, path, kind string) {
	delete(m.watchers[w][path], kind)
	if len(m.watchers[w][path]) == 0 {
		delete(m.watchers[w], path)
	}
}

func (m *watchModel) set(w *reader1, path, kind string) {
	if m.watchers[w] == nil {
		m.watchers[w] = map[string]map[string]bool{}
	}
	if m.watchers[w][path] == nil {
		m.watchers[w][path] = map[string]bool{}
	}
	m.watchers[w][path][kind] = true
}

// change carries out one successful operation.
func (m *watchModel) change(z Zxid, op Op, path, acl string, owner SessionID) {
	inData, children := []string{"data", "persistent", "recursive"}, []string{"child", "persistent"}
	switch op {
	case OpCreate:
		m.nodes[path] = modelWatched{acl, owner}
		m.row(Event{Type: EventNodeCreated, Path: path, Zxid: z}, m.nodes[path], inData, []string{"data"}, true)
	case OpDelete:
		was := m.nodes[path]
		delete(m.nodes, path)
		m.row(Event{Type: EventNodeDeleted, Path: path, Zxid: z}, was, append(inData, children...), []string{"data", "child"}, true)
	case OpSetData:
		m.row(Event{Type: EventNodeDataChanged, Path: path, Zxid: z}, m.nodes[path], inData, []string{"data"}, true)
		return
	case OpSetACL:
		m.nodes[path] = modelWatched{acl, m.nodes[path].owner}
		return
	default:
		return
	}
	parent := modelParent(path)
	m.row(Event{Type: EventNodeChildrenChanged, Path: parent, Zxid: z}, m.nodes[parent], children, []string{"child"}, false)
}

// watchedHistory drives three things alike: a tree to which batches are applied, one to which every transaction is
// applied alone, and the model.
type watchedHistory struct {
	t       *testing.T
	g       *rand.Rand
	h       *history // of the batched tree
	alone   *Tree
	model   *watchModel
	all     []*reader1 // watch the batched tree
	twins   []*reader1 // and the other one
	pending []Entry
	asked   []Request
	events  map[EventType]int
	counts  struct{ filtered, removed int }
}

var watchedUsers = []string{"", "u0", "u1"}

func (x *watchedHistory) path() string {
	if x.g.IntN(30) == 0 {
		return "/"
	}
	var b strings.Builder
	for range 1 + x.g.IntN(3) {
		b.WriteByte('/')
		b.WriteByte("abc"[x.g.IntN(3)])
		if x.g.IntN(8) == 0 {
			b.WriteByte('!') // sorts before a slash
		}
	}
	return b.String()
}

// list returns an access list that everybody, or only the user, may read.
func (x *watchedHistory) list(user string) []ACL {
	if user == "" {
		return OpenACL()
	}
	return []ACL{{PermAll, "digest", user + ":x"}}
}

func (x *watchedHistory) request(nested bool) Request {
	user := watchedUsers[max(0, x.g.IntN(5)-2)]
	r := Request{Path: x.path(), Version: -1, ACL: x.list(user)}
	switch n := x.g.IntN(20); {
	case n < 8:
		r.Op = OpCreate
		if !nested && x.g.IntN(4) == 0 {
			r.Session, r.Flags = 7, FlagEphemeral
			r.Auth = Credentials("").With(Identity{SchemeSuper, ""})
		}
	case n < 13:
		r.Op = OpDelete
	case n < 17:
		r.Op = OpSetData
	case n < 18 && !nested:
		r.Op = OpSetACL
	case n == 18 && !nested:
		r = Request{Op: OpCloseSession, Session: 7}
		if _, ok := x.h.tree.View().Session(7); !ok || x.g.IntN(2) == 0 {
			r = Request{Op: OpCreateSession, Session: 7, Timeout: 1}
		}
	case n == 19 && !nested:
		r = Request{Op: OpMulti}
		for range 1 + x.g.IntN(3) {
			r.Ops = append(r.Ops, x.request(true))
		}
	default:
		r.Op = OpSetData
	}
	return r
}

// userOf is the inverse of list.
func userOf(l []ACL) string {
	user, _, _ := strings.Cut(l[0].ID, ":")
	if user == "anyone" {
		return ""
	}
	return user
}

// apply applies what was prepared and lets the model do the same, as the outcomes say.
func (x *watchedHistory) apply() {
	x.t.Helper()
	sink := &collector{views: map[Zxid]*View{}}
	if err := x.h.tree.Apply(x.pending, sink); err != nil {
		x.t.Fatal(err)
	}
	for i := range x.pending {
		if err := x.alone.Apply(x.pending[i:i+1], nil); err != nil {
			x.t.Fatal(err)
		}
		z, r, res := x.pending[i].Zxid, &x.asked[i], &sink.results[i]
		switch {
		case res.Code != CodeOK:
		case r.Op == OpMulti:
			failed := slices.ContainsFunc(res.Ops, func(o OpResult) bool { return o.Code != CodeOK })
			for j := range r.Ops {
				if !failed {
					x.model.change(z, r.Ops[j].Op, r.Ops[j].Path, userOf(r.Ops[j].ACL), 0)
				}
			}
		case r.Op == OpCloseSession:
			var own []string
			for p, n := range x.model.nodes {
				if n.owner == r.Session {
					own = append(own, p)
				}
			}
			slices.SortFunc(own, func(a, b string) int { // siblings together
				if c := strings.Compare(modelParent(a), modelParent(b)); c != 0 {
					return strings.Compare(strings.TrimSuffix(modelParent(a), "/")+"\x00", strings.TrimSuffix(modelParent(b), "/")+"\x00")
				}
				return strings.Compare(a, b)
			})
			for _, p := range own {
				x.model.change(z, OpDelete, p, "", 0)
			}
		case r.Op == OpCreateSession:
		default:
			owner := SessionID(0)
			if r.Flags == FlagEphemeral {
				owner = r.Session
			}
			x.model.change(z, r.Op, r.Path, userOf(r.ACL), owner)
		}
	}
	x.pending, x.asked = nil, nil
	for i, w := range x.all {
		if !slices.Equal(w.got, w.want) || !slices.Equal(x.twins[i].got, w.want) {
			x.t.Fatalf("watcher %d of %q got\n%v, applied one by one\n%v, want\n%v", i, w.user, w.got, x.twins[i].got, w.want)
		}
		for _, e := range w.got {
			x.events[e.Type]++
		}
		w.got, w.want, x.twins[i].got = nil, nil, nil
	}
}

var watcherKinds = map[WatcherType][]string{WatcherChildren: {"child"}, WatcherData: {"data"},
	WatcherAny: {"data", "child", "persistent", "recursive"}, WatcherPersistent: {"persistent"}, WatcherRecursive: {"recursive"}}

// register does something with a watch, everywhere.
func (x *watchedHistory) register() {
	i := x.g.IntN(len(x.all))
	w, twin, path := x.all[i], x.twins[i], x.path()
	_, exists := x.model.nodes[path]
	v, u := x.h.tree.View(), x.alone.View()
	switch n := x.g.IntN(24); {
	case n < 5:
		x.h.tree.GetWatch(path, w)
		x.alone.WatchAt(u, path, WatchData, twin, false)
		if exists {
			x.model.set(w, path, "data")
		}
	case n < 8:
		x.h.tree.WatchAt(v, path, WatchData, w, true)
		x.alone.ExistsWatch(path, twin)
		x.model.set(w, path, "data")
	case n < 13:
		x.h.tree.WatchAt(v, path, WatchChildren, w, false)
		x.alone.ChildrenWatch(path, twin)
		if exists {
			x.model.set(w, path, "child")
		}
	case n < 15:
		x.h.tree.AddWatchAt(v, path, Persistent, w)
		x.alone.RearmAt(u, ListPersistent, path, 0, twin)
		x.model.set(w, path, "persistent")
	case n < 16:
		x.h.tree.RearmAt(v, ListRecursive, path, 0, w)
		x.alone.AddWatchAt(u, path, Recursive, twin)
		x.model.set(w, path, "recursive")
	case n < 23:
		wt := WatcherType(x.g.IntN(7))
		want := false
		for _, k := range watcherKinds[wt] {
			want = want || x.model.watchers[w][path][k]
		}
		if got := x.h.tree.HasWatch(path, wt, w); got != want {
			x.t.Fatalf("watch of type %d at %q: %v, want %v", wt, path, got, want)
		}
		if n < 20 {
			return
		}
		if a, b := x.h.tree.RemoveWatch(path, wt, w), x.alone.RemoveWatch(path, wt, twin); a != want || b != want {
			x.t.Fatalf("removing type %d at %q: %v and %v, want %v", wt, path, a, b, want)
		}
		for _, k := range watcherKinds[wt] {
			x.model.drop(w, path, k)
		}
		if want {
			x.counts.removed++
		}
	default:
		x.h.tree.RemoveWatcher(w)
		x.alone.RemoveWatcher(twin)
		delete(x.model.watchers, w)
	}
}

// count compares the statistics with the model.
func (x *watchedHistory) count() {
	x.t.Helper()
	watchers, watches, all := 0, 0, 0
	paths := map[string]bool{}
	want := map[string]bool{}
	for w, at := range x.model.watchers {
		mine := 0
		for p, kinds := range at {
			if kinds["data"] || kinds["persistent"] || kinds["recursive"] {
				mine++
				paths[p] = true
				want[fmt.Sprintf("%p %s", w, p)] = true
			}
			if kinds["child"] || kinds["persistent"] {
				all++
			}
		}
		watches += mine
		if mine > 0 {
			watchers++
		}
	}
	if a, b, c := x.h.tree.WatchStats(); a != watchers || b != len(paths) || c != watches {
		x.t.Fatalf("%d watchers, %d paths, %d watches; want %d, %d, %d", a, b, c, watchers, len(paths), watches)
	}
	if n := x.h.tree.WatchCount(); n != watches+all {
		x.t.Fatalf("%d watches, want %d", n, watches+all)
	}
	got := map[string]bool{}
	last, left := "", map[string]bool{}
	x.h.tree.EachWatch(func(p string, w Watcher) bool {
		if p != last {
			if left[p] {
				x.t.Fatalf("the watches of %q do not come together", p)
			}
			left[last], last = true, p
		}
		got[fmt.Sprintf("%p %s", w, p)] = true
		return true
	})
	if !maps.Equal(got, want) {
		x.t.Fatalf("watches %v, want %v", got, want)
	}
	for w, at := range x.model.watchers {
		x.h.tree.WatchesOf(w, func(p string) bool {
			if key := fmt.Sprintf("%p %s", w, p); !got[key] {
				x.t.Fatalf("%q is no watch, or is there twice", p)
			} else {
				delete(got, key)
			}
			return len(at) > 0
		})
	}
	if len(got) > 0 {
		x.t.Fatalf("watches of nobody: %v", got)
	}
	for _, tree := range []*Tree{x.h.tree, x.alone} {
		if err := checkWatches(tree); err != nil {
			x.t.Fatal(err)
		}
	}
}

// TestWatchesMatchTheModel compares every event of random histories, with watches of all modes that come and go, with
// the model: which, in which order, under which zxid; applied in batches and one by one.
func TestWatchesMatchTheModel(t *testing.T) {
	seeds, first := uint64(200), uint64(1)
	if testing.Short() {
		seeds = 20
	}
	if *seedFlag != 0 {
		first, seeds = *seedFlag, 1
	}
	events := map[EventType]int{}
	removed := 0
	for seed := first; seed < first+seeds; seed++ {
		x := &watchedHistory{t: t, g: rand.New(rand.NewPCG(seed, 5)), h: newHistory(NewTree(nil)), alone: NewTree(nil), events: events}
		x.model = &watchModel{nodes: map[string]modelWatched{"/": {}}, watchers: map[*reader1]map[string]map[string]bool{}}
		for i := range 6 {
			user := watchedUsers[i%len(watchedUsers)]
			x.all, x.twins = append(x.all, &reader1{t: t, user: user}), append(x.twins, &reader1{t: t, user: user})
		}
		for range 150 {
			for range x.g.IntN(6) {
				x.register()
			}
			for range 1 + x.g.IntN(5) {
				r := x.request(false)
				x.pending = append(x.pending, x.h.prepare(&r))
				x.asked = append(x.asked, r)
			}
			x.apply()
			if x.g.IntN(10) == 0 {
				x.count()
			}
			if t.Failed() {
				t.Fatalf("replay: go test ./kv -run '^%s$' -seed=%d", t.Name(), seed)
			}
		}
		x.count()
		removed += x.counts.removed
	}
	if *seedFlag == 0 && !testing.Short() {
		for e := EventNodeCreated; e <= EventNodeChildrenChanged; e++ {
			if events[e] < 1000 {
				t.Errorf("only %d events %v: the histories hardly reach them", events[e], e)
			}
		}
		if removed < 100 {
			t.Errorf("only %d watches removed", removed)
		}
	}
}

// netEvents are the events that a persistent or recursive watch must raise for the difference of two views, found by
// looking at every node of both.
func netEvents(was, now *View, root string, mode WatchMode) map[string]int {
	paths := map[string]bool{}
	var walk func(v *View, path string)
	walk = func(v *View, path string) {
		paths[path] = true
		names, _, _ := v.Children(path, nil)
		for _, n := range names {
			walk(v, strings.TrimSuffix(path, "/")+"/"+n)
		}
	}
	walk(was, "/")
	walk(now, "/")
	out := map[string]int{}
	for p := range paths {
		if p != root && (mode == Persistent || root != "/" && !strings.HasPrefix(p, root+"/")) {
			continue
		}
		a, errA := was.Exists(p)
		b, errB := now.Exists(p)
		same := errA == nil && errB == nil && a.Czxid == b.Czxid
		if errA == nil && !same {
			out["NodeDeleted "+p]++
		}
		if errB == nil && !same {
			out["NodeCreated "+p]++
		}
		if same && a.Mzxid != b.Mzxid {
			out["NodeDataChanged "+p]++
		}
		if mode == Persistent && errB == nil && (same && a.Pzxid != b.Pzxid || !same && b.Pzxid != b.Czxid) {
			out["NodeChildrenChanged "+p]++
		}
	}
	return out
}

// TestCatchUpIsTheDifference sets persistent and recursive watches for answers from older views, in random histories,
// and installs other views over watched trees. Both must tell the net difference, deletions first and from the
// leaves up, the rest from the root down, nothing twice.
func TestCatchUpIsTheDifference(t *testing.T) {
	told := 0
	for seed := range uint64(300) {
		x := &watchedHistory{t: t, g: rand.New(rand.NewPCG(seed, 6)), h: newHistory(NewTree(nil))}
		step := func() {
			r := x.request(false)
			for r.Session != 0 {
				r = x.request(false)
			}
			x.h.do(t, &r)
		}
		for range 60 {
			step()
		}
		old := x.h.tree.View()
		var installed *Tree // gets the later view by Reset
		root := x.path()
		if seed%5 == 0 {
			root = "/"
		}
		for mode := Persistent; mode <= Recursive; mode++ {
			installed = NewTree(old)
			var early, late mailbox
			installed.AddWatchAt(old, root, mode, &early)
			if mode == Recursive { // covered by the other one: nothing is told twice
				installed.AddWatchAt(old, root, mode, &early)
				installed.AddWatchAt(old, root, Recursive, &early)
			}
			for range x.g.IntN(40) {
				step()
			}
			now := x.h.tree.View()
			installed.Reset(now)
			x.h.tree.AddWatchAt(old, root, mode, &late)
			want := netEvents(old, now, root, mode)
			told += len(want)
			for name, box := range map[string]*mailbox{"reset": &early, "older view": &late} {
				got := map[string]int{}
				alive := map[string]bool{}
				created := false
				for _, e := range box.events {
					got[e.Type.String()+" "+e.Path]++
					if e.Zxid != old.Zxid()+1 {
						t.Errorf("seed %d, %s: %v", seed, name, e)
					}
					switch e.Type {
					case EventNodeDeleted:
						if created {
							t.Errorf("seed %d, %s: deletion after a creation: %v", seed, name, box.events)
						}
						alive[e.Path] = true // its parent may go from now on, it had to be there
						for p := range alive {
							if strings.HasPrefix(e.Path, p+"/") {
								t.Errorf("seed %d, %s: %q deleted after %q", seed, name, e.Path, p)
							}
						}
					case EventNodeCreated:
						created = true
					}
				}
				if !maps.Equal(got, want) {
					t.Fatalf("seed %d, %s, mode %d at %q: got %v, want %v", seed, name, mode, root, got, want)
				}
			}
			if err := checkWatches(x.h.tree); err != nil {
				t.Fatal(err)
			}
			// The same again, by a watcher that has them all already, tells nothing.
			late.events = nil
			x.h.tree.AddWatchAt(old, root, mode, &late)
			if mode == Recursive {
				x.h.tree.AddWatchAt(old, strings.TrimSuffix(root, "/")+"/a", Recursive, &late)
			}
			if len(late.events) > 0 {
				t.Errorf("seed %d: told again: %v", seed, late.events)
			}
			x.h.tree.RemoveWatcher(&late)
		}
	}
	if told < 500 {
		t.Errorf("only %d events: the histories hardly differ", told)
	}
}
