package ensemble

import (
	"context"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// Containers and nodes with a time to live are removed by the leader, whatever member made them; watchers see an
// ordinary deletion with the zxid of its transaction, once, and nobody's session pays for it. A change of leader in
// between changes nothing.
func TestLeaderRemovesContainersAndExpiredNodes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tr := startTrio(t, func(c *Config) {
		c.ExtendedTypes, c.ContainerCheckInterval = true, 200*time.Millisecond
	})
	leader := tr.serving(ctx, 0, 1, 2)
	at := (leader + 1) % 3
	r := dialRaw(t, tr.peers[at].ClientAddr)
	r.session()
	xid := int32(0)
	var deleted []string // by the events so far
	event := func(h wire.ReplyHeader, body []byte) {
		t.Helper()
		var e wire.WatcherEvent
		if err := wire.Decode(body, &e); err != nil || h.Xid != wire.XidEvent || e.Type != wire.EventDeleted || kv.Zxid(h.Zxid).Counter() == 0 {
			t.Fatalf("%+v %+v %v", h, e, err)
		}
		deleted = append(deleted, e.Path)
	}
	do := func(op wire.Op, body []byte) {
		t.Helper()
		xid++
		r.send(request(xid, op, body))
		for {
			h, got := r.reply()
			if h.Xid == xid && h.Err == kv.CodeOK {
				return
			}
			event(h, got) // a node may go at any time
		}
	}
	create := func(path string, flags int32) []byte {
		return record(&wire.CreateRequest{Path: path, ACL: openACL, Flags: flags})
	}
	ttl := func(path string, ms uint64) []byte {
		return binary.BigEndian.AppendUint64(create(path, kv.FlagTTL), ms)
	}
	watch := func(path string) { do(wire.OpExists, record(&wire.PathWatchRequest{Path: path, Watch: true})) }
	gone := func(want ...string) {
		t.Helper()
		for len(deleted) < len(want) {
			event(r.reply())
		}
		slices.Sort(deleted)
		if !slices.Equal(deleted, want) {
			t.Fatalf("removed %v, want %v", deleted, want)
		}
	}

	do(wire.OpCreateContainer, create("/box", kv.FlagContainer))
	do(wire.OpCreateContainer, create("/kept", kv.FlagContainer))
	do(wire.OpCreateContainer, create("/unused", kv.FlagContainer))
	do(wire.OpCreate, create("/kept/child", kv.FlagPersistent))
	do(wire.OpCreate, create("/box/child", kv.FlagPersistent))
	do(wire.OpCreateTTL, ttl("/short", 3000))
	do(wire.OpCreateTTL, ttl("/long", 3_600_000))
	watch("/box")
	watch("/short")
	do(wire.OpDelete, record(&wire.PathVersionRequest{Path: "/box/child", Version: -1}))
	gone("/box", "/short")

	do(wire.OpCreateTTL, ttl("/second", 300))
	_ = tr.members[leader].Close()
	tr.members[leader] = nil
	tr.serving(ctx, at, (leader+2)%3)
	// Its connection may have been cut, or not: the session goes on in any case, perhaps on a new one.
	again := dialRaw(t, tr.peers[at].ClientAddr)
	again.session()
	for {
		h, _ := askExists(again, 1, "/second")
		if h.Err == kv.CodeNoNode {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("the new leader removes nothing")
		}
	}
	for path, want := range map[string]kv.Code{
		"/box": kv.CodeNoNode, "/short": kv.CodeNoNode, "/kept": kv.CodeOK, "/kept/child": kv.CodeOK, "/unused": kv.CodeOK, "/long": kv.CodeOK,
	} {
		if h, _ := askExists(again, 2, path); h.Err != want {
			t.Errorf("%s: %v, want %v", path, h.Err, want)
		}
	}
}
