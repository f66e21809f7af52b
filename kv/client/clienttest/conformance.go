package clienttest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"kvd/kv"
	"kvd/kv/client"
	"kvd/kv/wire"
)

// limit bounds the suite.
const limit = time.Minute

// Conformance checks what the client promises against servers: this package's, kvd's or ZooKeeper's. Every
// change is made and seen through different sessions. It works below /conf-1 and leaves nothing behind.
func Conformance(t *testing.T, servers string, opts ...client.Option) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	dial := func(t *testing.T, chroot string) *client.Client {
		t.Helper()
		c, err := client.Dial(ctx, servers+chroot, opts...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	root := dial(t, "")
	for _, chroot := range []string{"/conf-1", "/conf-1/inner"} {
		if _, _, err := root.Create(ctx, chroot, nil, kv.FlagPersistent); err != nil {
			t.Fatal(err)
		}
	}
	for _, chroot := range []string{"/conf-1/inner", "/conf-1"} {
		t.Run("operations below "+chroot, func(t *testing.T) { operations(t, ctx, root, dial(t, chroot), chroot) })
	}
	t.Run("data", func(t *testing.T) { data(t, ctx, dial(t, "/conf-1")) })
	t.Run("watches", func(t *testing.T) { watches(t, ctx, dial(t, "/conf-1"), dial(t, "/conf-1")) })
	t.Run("ephemerals", func(t *testing.T) { ephemerals(t, ctx, dial(t, "/conf-1"), dial(t, "/conf-1")) })
	t.Run("pipeline", func(t *testing.T) { pipeline(t, ctx, dial(t, "/conf-1")) })
	if err := removeAll(ctx, root, "/conf-1"); err != nil {
		t.Error(err)
	}
}

func removeAll(ctx context.Context, c *client.Client, path string) error {
	names, _, err := c.Children(ctx, path)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := removeAll(ctx, c, path+"/"+name); err != nil {
			return err
		}
	}
	return c.Delete(ctx, path, wire.AnyVersion)
}

func operations(t *testing.T, ctx context.Context, root, c *client.Client, chroot string) {
	name, stat, err := c.Create(ctx, "/a", []byte("one"), kv.FlagPersistent)
	if err != nil || name != "/a" || stat.DataLength != 3 {
		t.Fatalf("create: %q %+v %v", name, stat, err)
	}
	if err := root.Sync(ctx, "/"); err != nil {
		t.Fatal(err)
	}
	if got, _, err := root.Get(ctx, chroot+"/a"); err != nil || string(got) != "one" {
		t.Fatalf("seen from the root: %q %v", got, err)
	}
	stat, err = c.Set(ctx, "/a", []byte("two"), 0)
	if err != nil || stat.Version != 1 {
		t.Fatalf("set: %+v %v", stat, err)
	}
	if _, err = c.Set(ctx, "/a", nil, 0); !errors.Is(err, kv.ErrBadVersion) {
		t.Fatalf("set with a wrong version: %v", err)
	}
	data, got, err := c.Get(ctx, "/a")
	if err != nil || string(data) != "two" || got != stat {
		t.Fatalf("get: %q %+v %v", data, got, err)
	}
	if got, err := c.Exists(ctx, "/a"); err != nil || got != stat {
		t.Fatalf("exists: %+v %v", got, err)
	}
	for range 3 {
		if name, _, err = c.Create(ctx, "/a/s-", nil, kv.FlagEphemeralSequential); err != nil {
			t.Fatal(err)
		}
	}
	if name != "/a/s-0000000002" {
		t.Fatalf("third sequential node: %q", name)
	}
	names, stat, err := c.Children(ctx, "/a")
	if err != nil || !slices.Equal(names, []string{"s-0000000000", "s-0000000001", "s-0000000002"}) || stat.NumChildren != 3 {
		t.Fatalf("children: %v %+v %v", names, stat, err)
	}
	if err := c.Delete(ctx, "/a", wire.AnyVersion); !errors.Is(err, kv.ErrNotEmpty) {
		t.Fatalf("delete: %v", err)
	}
	if err := c.Sync(ctx, "/a"); err != nil {
		t.Fatal(err)
	}
	names, _, err = c.Children(ctx, "/")
	if err != nil || !slices.Contains(names, "a") {
		t.Fatalf("children of /: %v %v", names, err)
	}
	res, err := c.Multi(ctx, client.CreateOp("/m", []byte("x"), 0), client.SetOp("/m", []byte("y"), 0), client.CheckOp("/m", 1), client.DeleteOp("/a/s-0000000001", -1))
	if err != nil || len(res) != 4 || res[0].Path != "/m" || res[1].Stat.Version != 1 {
		t.Fatalf("multi: %+v %v", res, err)
	}
	res, err = c.Multi(ctx, client.DeleteOp("/m", -1), client.CheckOp("/none", -1), client.DeleteOp("/a", -1))
	var me *client.MultiError
	if !errors.Is(err, kv.ErrNoNode) || !errors.As(err, &me) || me.Index != 1 || len(res) != 3 || !errors.Is(res[2].Err, kv.ErrRuntimeInconsistency) {
		t.Fatalf("failing multi: %+v %v", res, err)
	}
	if _, err := c.Exists(ctx, "/m"); err != nil {
		t.Fatalf("a failed multi deleted: %v", err)
	}
	if res, err := c.Multi(ctx); err != nil || len(res) != 0 {
		t.Fatalf("empty multi: %v %v", res, err)
	}
}

// Null, empty and full data stay apart, and a returned value is not touched by later calls.
func data(t *testing.T, ctx context.Context, c *client.Client) {
	for i, data := range [][]byte{nil, {}, []byte("x")} {
		p := fmt.Sprintf("/d%d", i)
		if _, _, err := c.Create(ctx, p, data, 0); err != nil {
			t.Fatal(err)
		}
		got, _, err := c.Get(ctx, p)
		if err != nil || !reflect.DeepEqual(got, data) {
			t.Errorf("%#v comes back as %#v, %v", data, got, err)
		}
	}
	first, _, _ := c.Get(ctx, "/d2")
	if _, err := c.Set(ctx, "/d2", []byte("y"), -1); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if _, _, err := c.Get(ctx, "/d2"); err != nil {
			t.Fatal(err)
		}
	}
	if string(first) != "x" {
		t.Errorf("an earlier result became %q", first)
	}
	big := make([]byte, 1_000_000)
	big[999_999] = 7
	if _, err := c.Set(ctx, "/d2", big, -1); err != nil {
		t.Fatal(err)
	}
	if got, _, err := c.Get(ctx, "/d2"); err != nil || !slices.Equal(got, big) {
		t.Errorf("a million bytes: %d come back, %v", len(got), err)
	}
}

func watches(t *testing.T, ctx context.Context, c, other *client.Client) {
	expect := func(ch <-chan client.Event, typ client.EventType, path string) {
		t.Helper()
		select {
		case ev := <-ch:
			if ev.Type != typ || ev.Path != path {
				t.Errorf("event %v %q, want %v %q", ev.Type, ev.Path, typ, path)
			}
			if _, more := <-ch; more {
				t.Error("a second event")
			}
		case <-ctx.Done():
			t.Fatalf("no event %v", typ)
		}
	}
	_, created, err := c.ExistsWatch(ctx, "/w")
	if !errors.Is(err, kv.ErrNoNode) || created == nil {
		t.Fatal(err)
	}
	if _, _, w, err := c.GetWatch(ctx, "/w"); !errors.Is(err, kv.ErrNoNode) || w != nil {
		t.Fatal("a failed get leaves a watch", err)
	}
	_, stat, err := other.Create(ctx, "/w", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	expect(created, client.EventCreated, "/w")
	_, got, changed, err := c.GetWatch(ctx, "/w")
	if err != nil || got != stat {
		t.Fatal(got, stat, err)
	}
	_, _, again, _ := c.GetWatch(ctx, "/w")
	_, _, children, _ := c.ChildrenWatch(ctx, "/")
	if _, err := other.Set(ctx, "/w", nil, -1); err != nil {
		t.Fatal(err)
	}
	expect(changed, client.EventDataChanged, "/w")
	expect(again, client.EventDataChanged, "/w")
	_, deleted, _ := c.ExistsWatch(ctx, "/w")
	_, _, childless, _ := c.ChildrenWatch(ctx, "/w")
	if err := other.Delete(ctx, "/w", -1); err != nil {
		t.Fatal(err)
	}
	expect(deleted, client.EventDeleted, "/w")
	expect(childless, client.EventDeleted, "/w")
	expect(children, client.EventChildrenChanged, "/")
}

// Ephemeral nodes end with their session, and have no children.
func ephemerals(t *testing.T, ctx context.Context, c, other *client.Client) {
	_, stat, err := c.Create(ctx, "/e", nil, kv.FlagEphemeral)
	if err != nil || stat.EphemeralOwner != c.Session() {
		t.Fatalf("%+v %v", stat, err)
	}
	if _, _, err := c.Create(ctx, "/e/child", nil, 0); !errors.Is(err, kv.ErrNoChildrenForEphemerals) {
		t.Error(err)
	}
	if err := other.Sync(ctx, "/e"); err != nil {
		t.Fatal(err)
	}
	_, gone, err := other.ExistsWatch(ctx, "/e")
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	select {
	case ev := <-gone:
		if ev.Type != client.EventDeleted {
			t.Errorf("%+v", ev)
		}
	case <-ctx.Done():
		t.Fatal("an ephemeral node outlived its session")
	}
}

// Calls of one session are done in the order they were submitted in, reads among them.
func pipeline(t *testing.T, ctx context.Context, c *client.Client) {
	if _, _, err := c.Create(ctx, "/p", nil, 0); err != nil {
		t.Fatal(err)
	}
	const calls = 1000
	type answer struct {
		op      wire.Op
		version int32
		err     error
	}
	answers := make(chan answer, calls)
	for i := range calls {
		call := &client.Call{Op: wire.OpSetData, Path: "/p", Version: wire.AnyVersion}
		if i%3 == 2 {
			call.Op = wire.OpExists
		}
		call.Done = func(call *client.Call) { answers <- answer{call.Op, call.Stat.Version, call.Err} }
		if err := c.Do(call); err != nil {
			t.Fatal(err)
		}
	}
	version := int32(0)
	for i := range calls {
		select {
		case a := <-answers:
			if a.op == wire.OpSetData {
				version++
			}
			if a.err != nil || (a.op == wire.OpExists) != (i%3 == 2) || a.version != version {
				t.Fatalf("answer %d: %v with version %d, want %d; %v", i, a.op, a.version, version, a.err)
			}
		case <-ctx.Done():
			t.Fatalf("%d of %d answers", i, calls)
		}
	}
}
