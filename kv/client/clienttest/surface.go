package clienttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"kvd/kv"
	"kvd/kv/client"
	"kvd/kv/wire"
)

// Cutter is a Dialer whose connections a test ends, and which a test can keep from making new ones.
type Cutter struct {
	mu    sync.Mutex
	conns []io.Closer
	gate  chan struct{} // closed: open
}

// NewCutter returns an open Cutter.
func NewCutter() *Cutter {
	c := &Cutter{gate: make(chan struct{})}
	close(c.gate)
	return c
}

// Dial implements client.Dialer over TCP.
func (c *Cutter) Dial(ctx context.Context, addr string) (io.ReadWriteCloser, error) {
	c.mu.Lock()
	gate := c.gate
	c.mu.Unlock()
	select {
	case <-gate:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns = append(c.conns, conn)
	return conn, nil
}

// Cut ends all connections; new ones wait until Heal.
func (c *Cutter) Cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gate = make(chan struct{})
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

// Heal ends Cut.
func (c *Cutter) Heal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.gate:
	default:
		close(c.gate)
	}
}

// surfaceLimit ends what hangs.
const surfaceLimit = 2 * time.Minute

// Surface checks what Conformance does not: the operations beyond the usual ones, identities, and watches that outlive a connection, on whatever
// server is at servers. It uses and removes /surface.
func Surface(t *testing.T, servers string, opts ...client.Option) {
	ctx, cancel := context.WithTimeout(t.Context(), surfaceLimit)
	defer cancel()
	open := func(t *testing.T, servers string, opts ...client.Option) *client.Client {
		t.Helper()
		c, err := client.Dial(ctx, servers, opts...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	root := open(t, servers, opts...)
	if err := root.DeleteAll(ctx, "/surface"); err != nil && !errors.Is(err, kv.ErrNoNode) {
		t.Fatal(err)
	}
	if _, _, err := root.Create(ctx, "/surface", nil, kv.FlagPersistent); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := root.DeleteAll(ctx, "/surface"); err != nil {
			t.Error(err)
		}
		if _, err := root.Exists(ctx, "/surface"); !errors.Is(err, kv.ErrNoNode) {
			t.Errorf("after DeleteAll: %v", err)
		}
	}()
	below := servers + "/surface"
	t.Run("nodes", func(t *testing.T) { nodes(t, ctx, open(t, below, opts...)) })
	t.Run("lists", func(t *testing.T) { lists(t, ctx, open(t, below, opts...)) })
	t.Run("identities", func(t *testing.T) { identities(t, ctx, below, opts, open) })
	t.Run("one-shots", func(t *testing.T) { oneShots(t, ctx, below, opts, open) })
	t.Run("watchers", func(t *testing.T) { persistent(t, ctx, below, opts, open) })
	t.Run("session context", func(t *testing.T) { sessionContext(t, ctx, below, opts, open) })
}

type opener func(t *testing.T, servers string, opts ...client.Option) *client.Client

func nodes(t *testing.T, ctx context.Context, c *client.Client) {
	if name, stat, err := c.CreateContainer(ctx, "/box", []byte("x")); err != nil || name != "/box" || stat.DataLength != 1 {
		t.Errorf("container: %q %+v %v", name, stat, err)
	}
	if _, _, err := c.CreateContainer(ctx, "/box", nil); !errors.Is(err, kv.ErrNodeExists) {
		t.Errorf("a second container: %v", err)
	}
	if name, _, err := c.CreateTTL(ctx, "/box/t-", nil, kv.FlagSequential, time.Hour); err != nil || len(name) != len("/box/t-0000000000") {
		t.Errorf("TTL node: %q %v", name, err)
	}
	if _, _, err := c.CreateTTL(ctx, "/box/t", nil, kv.FlagEphemeral, time.Hour); !errors.Is(err, kv.ErrBadArguments) {
		t.Errorf("an ephemeral TTL node: %v", err)
	}
	if _, _, err := c.GetACL(ctx, "box"); !errors.Is(err, kv.ErrBadArguments) {
		t.Errorf("a path without a slash: %v", err)
	}
	name, stat, err := c.CreateAll(ctx, "/a/b/c/d", []byte("deep"), kv.FlagPersistent)
	if err != nil || name != "/a/b/c/d" || stat.DataLength != 4 {
		t.Errorf("CreateAll: %q %+v %v", name, stat, err)
	}
	if _, _, err := c.CreateAll(ctx, "/a/b/c/d", nil, kv.FlagPersistent); !errors.Is(err, kv.ErrNodeExists) {
		t.Errorf("CreateAll of what is there: %v", err)
	}
	var walked []string
	for path, err := range c.Walk(ctx, "/a") {
		if err != nil {
			t.Fatal(err)
		}
		walked = append(walked, path)
	}
	if !slices.Equal(walked, []string{"/a", "/a/b", "/a/b/c", "/a/b/c/d"}) {
		t.Errorf("walked %v", walked)
	}
	for path, err := range c.Walk(ctx, "/nowhere") {
		if path != "/nowhere" || !errors.Is(err, kv.ErrNoNode) {
			t.Errorf("walk of nothing: %q %v", path, err)
		}
	}
	if err := c.DeleteAll(ctx, "/a"); err != nil {
		t.Error(err)
	}
	if err := c.DeleteAll(ctx, "/a"); !errors.Is(err, kv.ErrNoNode) {
		t.Errorf("DeleteAll of nothing: %v", err)
	}
	results, err := c.Txn().Create("/x", []byte("1"), kv.FlagPersistent).Set("/x", []byte("2"), 0).Check("/x", 1).Delete("/x", 1).Commit(ctx)
	if err != nil || len(results) != 4 || results[0].Path != "/x" || results[1].Stat.Version != 1 {
		t.Errorf("transaction: %+v %v", results, err)
	}
	var failed *client.MultiError
	if _, err := c.Txn().Create("/y", nil, kv.FlagPersistent).Check("/x", 0).Commit(ctx); !errors.As(err, &failed) || failed.Index != 1 || !errors.Is(err, kv.ErrNoNode) {
		t.Errorf("a transaction that fails: %v", err)
	}
}

func lists(t *testing.T, ctx context.Context, c *client.Client) {
	stat, err := c.SetACL(ctx, "/", kv.OpenACL(), wire.AnyVersion)
	if err != nil || stat.Aversion == 0 {
		t.Errorf("SetACL: %+v %v", stat, err)
	}
	if acl, _, err := c.GetACL(ctx, "/"); err != nil || !slices.Equal(acl, kv.OpenACL()) {
		t.Errorf("GetACL: %v %v", acl, err)
	}
	if _, err := c.SetACL(ctx, "/", kv.OpenACL(), stat.Aversion+7); !errors.Is(err, kv.ErrBadVersion) {
		t.Errorf("SetACL of another version: %v", err)
	}
	for _, path := range []string{"/e1", "/e2", "/other"} {
		if _, _, err := c.Create(ctx, path, nil, kv.FlagEphemeral); err != nil {
			t.Fatal(err)
		}
	}
	own, err := c.Ephemerals(ctx, "/e")
	slices.Sort(own)
	if err != nil || !slices.Equal(own, []string{"/e1", "/e2"}) {
		t.Errorf("ephemerals: %v %v", own, err)
	}
	before, err := c.CountDescendants(ctx, "/")
	if err != nil || before < 3 {
		t.Errorf("%d nodes below the root, %v", before, err)
	}
}

// secret is an identity and its list; the password is "secret".
var secret = []kv.ACL{{Perms: kv.PermAll, Scheme: "auth"}}

func identities(t *testing.T, ctx context.Context, servers string, opts []client.Option, open opener) {
	cutter := NewCutter()
	c, other := open(t, servers, append(slices.Clone(opts), client.WithDialer(cutter.Dial))...), open(t, servers, opts...)
	if err := c.AddAuth(ctx, "digest", []byte("user:secret")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Create(ctx, "/mine", []byte("m"), kv.FlagPersistent, secret...); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Delete(ctx, "/mine", wire.AnyVersion); err != nil {
			t.Error(err)
		}
	}()
	if err := other.Sync(ctx, "/"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := other.Get(ctx, "/mine"); !errors.Is(err, kv.ErrNoAuth) {
		t.Errorf("somebody else reads: %v", err)
	}
	cutter.Cut()
	cutter.Heal()
	if data, _, err := c.Get(ctx, "/mine"); err != nil || string(data) != "m" {
		t.Errorf("on the next connection: %q %v", data, err)
	}
	who, err := c.WhoAmI(ctx)
	if err != nil || !slices.ContainsFunc(who, func(i wire.Identity) bool { return i.Scheme == "digest" }) {
		t.Errorf("WhoAmI: %+v %v", who, err)
	}
	// One that is claimed while there is no connection comes with the next.
	cutter.Cut()
	claimed := make(chan error, 1)
	go func() { claimed <- c.AddAuth(ctx, "digest", []byte("second:secret")) }()
	cutter.Heal()
	if err := <-claimed; err != nil {
		t.Errorf("claimed without a connection: %v", err)
	}
	refused := open(t, servers, opts...)
	if err := refused.AddAuth(ctx, "no-such-scheme", []byte("x")); err == nil {
		t.Error("a scheme that does not exist is accepted")
	}
	if _, err := refused.Exists(ctx, "/"); err != nil {
		t.Errorf("after a refused identity: %v", err)
	}
}

func mustSee(t *testing.T, ctx context.Context, ch <-chan client.Event, typ client.EventType, path string, caughtUp bool) {
	t.Helper()
	select {
	case e := <-ch:
		if e.Type != typ || e.Path != path || e.CaughtUp != caughtUp {
			t.Errorf("event %+v, want %v %s, caught up %v", e, typ, path, caughtUp)
		}
	case <-ctx.Done():
		t.Fatalf("no %v of %s", typ, path)
	}
}

// oneShots: what changed while there was no connection is told by the next one, and what did not is still watched.
func oneShots(t *testing.T, ctx context.Context, servers string, opts []client.Option, open opener) {
	cutter := NewCutter()
	c, other := open(t, servers, append(slices.Clone(opts), client.WithDialer(cutter.Dial))...), open(t, servers, opts...)
	for _, path := range []string{"/w", "/w/changed", "/w/deleted", "/w/kept", "/w/parent"} {
		if _, _, err := other.Create(ctx, path, nil, kv.FlagPersistent); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Sync(ctx, "/"); err != nil {
		t.Fatal(err)
	}
	watch := func(path string) <-chan client.Event {
		_, _, ch, err := c.GetWatch(ctx, path)
		if err != nil {
			t.Fatal(err)
		}
		return ch
	}
	changed, deleted, kept := watch("/w/changed"), watch("/w/deleted"), watch("/w/kept")
	_, created, err := c.ExistsWatch(ctx, "/w/created")
	if !errors.Is(err, kv.ErrNoNode) {
		t.Fatal(err)
	}
	_, absent, err := c.ExistsWatch(ctx, "/w/absent")
	if !errors.Is(err, kv.ErrNoNode) {
		t.Fatal(err)
	}
	_, _, child, err := c.ChildrenWatch(ctx, "/w/parent")
	if err != nil {
		t.Fatal(err)
	}
	// Many more than one request holds.
	const many = 3000
	var crowd []<-chan client.Event
	for i := range many {
		_, ch, err := c.ExistsWatch(ctx, fmt.Sprintf("/w/a-rather-long-name-so-that-they-do-not-fit-%05d", i))
		if !errors.Is(err, kv.ErrNoNode) {
			t.Fatal(err)
		}
		crowd = append(crowd, ch)
	}
	cutter.Cut()
	if _, err := other.Set(ctx, "/w/changed", []byte("x"), wire.AnyVersion); err != nil {
		t.Fatal(err)
	}
	if err := other.Delete(ctx, "/w/deleted", wire.AnyVersion); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/w/created", "/w/parent/child", fmt.Sprintf("/w/a-rather-long-name-so-that-they-do-not-fit-%05d", many-1)} {
		if _, _, err := other.Create(ctx, path, nil, kv.FlagPersistent); err != nil {
			t.Fatal(err)
		}
	}
	if err := other.Sync(ctx, "/"); err != nil {
		t.Fatal(err)
	}
	zxid := other.LastZxid()
	cutter.Heal()
	for c.LastZxid() < zxid { // whichever server it is at now
		if err := c.Sync(ctx, "/"); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range []struct {
		ch   <-chan client.Event
		typ  client.EventType
		path string
	}{
		{changed, client.EventDataChanged, "/w/changed"}, {deleted, client.EventDeleted, "/w/deleted"}, {created, client.EventCreated, "/w/created"},
		{child, client.EventChildrenChanged, "/w/parent"}, {crowd[many-1], client.EventCreated, fmt.Sprintf("/w/a-rather-long-name-so-that-they-do-not-fit-%05d", many-1)},
	} {
		select {
		case e := <-w.ch: // a server that lagged when the watch was set again tells it as it happens
			if e.Type != w.typ || e.Path != w.path {
				t.Errorf("event %+v, want %v %s", e, w.typ, w.path)
			}
		case <-ctx.Done():
			t.Fatalf("no %v of %s", w.typ, w.path)
		}
	}
	if len(kept)+len(absent)+len(crowd[0]) > 0 {
		t.Error("a watch of what did not change has fired")
	}
	if _, err := other.Set(ctx, "/w/kept", nil, wire.AnyVersion); err != nil {
		t.Fatal(err)
	}
	if _, _, err := other.Create(ctx, "/w/absent", nil, kv.FlagPersistent); err != nil {
		t.Fatal(err)
	}
	mustSee(t, ctx, kept, client.EventDataChanged, "/w/kept", false)
	mustSee(t, ctx, absent, client.EventCreated, "/w/absent", false)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if e := <-crowd[0]; e.Type != client.EventLost || !errors.Is(e.Err, client.ErrClosed) {
		t.Errorf("at the end: %+v", e)
	}
}

func persistent(t *testing.T, ctx context.Context, servers string, opts []client.Option, open opener) {
	cutter := NewCutter()
	c, other := open(t, servers, append(slices.Clone(opts), client.WithDialer(cutter.Dial))...), open(t, servers, opts...)
	// A server before 3.9 has one mode for the watches of a session at one path.
	apart := open(t, servers, append(slices.Clone(opts), client.WithDialer(cutter.Dial))...)
	node, err := apart.Watch(ctx, "/p", false)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := c.Watch(ctx, "/p", true)
	if err != nil {
		t.Fatal(err)
	}
	second, err := c.Watch(ctx, "/p", true)
	if err != nil {
		t.Fatal(err)
	}
	step := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	next := func(w *client.Watcher, typ client.EventType, path string) {
		t.Helper()
		e, err := w.Next(ctx)
		if err != nil || e.Type != typ || e.Path != path {
			t.Fatalf("event %+v, %v; want %v %s", e, err, typ, path)
		}
	}
	create := func(path string) {
		t.Helper()
		_, _, err := other.Create(ctx, path, nil, kv.FlagPersistent)
		step(err)
	}
	create("/p")
	create("/p/q")
	_, err = other.Set(ctx, "/p/q", nil, wire.AnyVersion)
	step(err)
	_, err = other.Set(ctx, "/p", nil, wire.AnyVersion)
	step(err)
	step(other.Delete(ctx, "/p/q", wire.AnyVersion))
	for _, w := range []*client.Watcher{tree, second} {
		next(w, client.EventCreated, "/p")
		next(w, client.EventCreated, "/p/q")
		next(w, client.EventDataChanged, "/p/q")
		next(w, client.EventDataChanged, "/p")
		next(w, client.EventDeleted, "/p/q")
	}
	next(node, client.EventCreated, "/p")
	next(node, client.EventChildrenChanged, "/p")
	next(node, client.EventDataChanged, "/p")
	next(node, client.EventChildrenChanged, "/p")

	// What happens meanwhile is not told, and that is told.
	cutter.Cut()
	create("/p/meanwhile")
	step(other.Sync(ctx, "/"))
	zxid := other.LastZxid()
	cutter.Heal()
	for c.LastZxid() < zxid || apart.LastZxid() < zxid {
		step(c.Sync(ctx, "/"))
		step(apart.Sync(ctx, "/"))
	}
	next(tree, client.EventGap, "/p")
	next(node, client.EventGap, "/p")
	create("/p/after")
	e, err := tree.Next(ctx)
	if e.Path == "/p/meanwhile" { // it came to a server that had not applied it yet
		e, err = tree.Next(ctx)
	}
	if err != nil || e.Type != client.EventCreated || e.Path != "/p/after" {
		t.Errorf("behind the gap: %+v %v", e, err)
	}

	// An owner who does not read loses the oldest, and hears of it.
	for range 1500 {
		_, err := other.Set(ctx, "/p/after", nil, wire.AnyVersion)
		step(err)
	}
	create("/p/last")
	step(other.Sync(ctx, "/"))
	zxid = other.LastZxid()
	for c.LastZxid() < zxid {
		step(c.Sync(ctx, "/"))
	}
	gaps, seen := 0, 0
	for e := range second.All(ctx) {
		seen++
		if e.Type == client.EventGap {
			gaps++
		}
		if e.Path == "/p/last" {
			break
		}
	}
	if gaps == 0 || seen > 1100 {
		t.Errorf("%d events with %d gaps after 1,500 unread ones", seen, gaps)
	}
	// One of two that share a watch goes, the other one stays.
	step(second.Close(ctx))
	if _, err := second.Next(ctx); !errors.Is(err, client.ErrClosed) {
		t.Errorf("a closed watcher: %v", err)
	}
	create("/p/shared")
	for {
		e, err := tree.Next(ctx)
		step(err)
		if e.Path == "/p/shared" {
			break
		}
	}
	step(tree.Close(ctx))
	step(tree.Close(ctx))
	step(apart.Close())
	for _, err = range node.All(ctx) {
	}
	if !errors.Is(err, client.ErrClosed) {
		t.Errorf("the end of the session: %v", err)
	}
}

// sessionContext: it ends with the session, and before that when no server has answered for as long as the session may be silent.
func sessionContext(t *testing.T, ctx context.Context, servers string, opts []client.Option, open opener) {
	closed := open(t, servers, opts...)
	life := closed.SessionContext()
	if life.Err() != nil {
		t.Error(life.Err())
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	<-life.Done()
	if !errors.Is(life.Err(), client.ErrClosed) || !errors.Is(life.Err(), context.Canceled) {
		t.Errorf("closed: %v", life.Err())
	}
	cutter := NewCutter()
	c := open(t, servers, append(slices.Clone(opts), client.WithDialer(cutter.Dial), client.WithSessionTimeout(4*time.Second))...)
	life = c.SessionContext()
	begun := time.Now()
	for time.Since(begun) < c.SessionTimeout()*3/2 { // pings keep it
		if life.Err() != nil {
			t.Fatal(life.Err())
		}
		time.Sleep(50 * time.Millisecond)
	}
	cutter.Cut()
	defer cutter.Heal()
	cut := time.Now()
	select {
	case <-life.Done():
	case <-ctx.Done():
		t.Fatal("it does not end")
	}
	if !errors.Is(life.Err(), client.ErrSessionDoubtful) || !errors.Is(life.Err(), context.Canceled) {
		t.Errorf("without a server: %v", life.Err())
	}
	if early := c.SessionTimeout()/2 - time.Since(cut); early > 0 { // it had been heard of a sixth of it before, at the latest
		t.Errorf("it ended %v too early", early)
	}
	if again := c.SessionContext(); again.Err() == nil {
		t.Error("it lives again")
	}
}
