package ensemble

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// A session with 100,000 ephemerals of 200-byte names, twenty times what a frame may hold, ends in one transaction, at
// one zxid, on every member, by its client at another member and by expiry; watches fire, nobody else's session suffers,
// and members that are started again agree.
func TestEndOfASessionWithVeryManyEphemerals(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 20 MiB on three members")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	const perMulti = 2000
	tr := startTrio(t, func(c *Config) { c.TickTime, c.SyncLimit = 500*time.Millisecond, 20 })
	leader := tr.serving(ctx, 0, 1, 2)
	a, b := (leader+1)%3, (leader+2)%3
	pad := strings.Repeat("n", 190)
	for how, nodes := range map[string]int{"closed": 100_000, "expired": 20_000} {
		other := dialRaw(t, tr.peers[b].ClientAddr)
		bystander := other.session()
		other.send(createRequest(1, "/"+how, kv.FlagPersistent))
		other.wantReply(1, kv.CodeOK)

		r := dialRaw(t, tr.peers[a].ClientAddr)
		q := connectRequest()
		q.TimeoutMs = 1000
		s := r.connect(q)
		r.send(request(2, wire.OpSync, wire.AppendString(nil, "/")))
		r.wantReply(2, kv.CodeOK)
		var seen kv.Zxid
		for at := 0; at < nodes; at += perMulti {
			var m []byte
			for i := range perMulti {
				m = wire.AppendMultiOp(m, wire.OpCreate, &wire.CreateRequest{Path: fmt.Sprintf("/%s/%s%08d", how, pad, at+i), ACL: openACL, Flags: kv.FlagEphemeral})
			}
			r.send(request(int32(10+at), wire.OpMulti, wire.AppendMultiEnd(m)))
			h, _ := r.wantReply(int32(10+at), kv.CodeOK)
			seen = kv.Zxid(h.Zxid)
		}
		last := fmt.Sprintf("/%s/%s%08d", how, pad, nodes-1)
		other.send(request(3, wire.OpSync, wire.AppendString(nil, "/")))
		other.wantReply(3, kv.CodeOK)
		other.send(request(4, wire.OpExists, record(&wire.PathWatchRequest{Path: last, Watch: true})))
		other.wantReply(4, kv.CodeOK)

		if how == "closed" {
			moved := tr.resumeAt(ctx, b, s, seen)
			moved.send(request(5, wire.OpCloseSession, nil))
			moved.wantReply(5, kv.CodeOK)
			moved.wantClosed()
		} else {
			_ = r.nc.Close()
		}
		for { // the bystander hears of it, and its pings are answered all the time
			other.send(request(wire.XidPing, wire.OpPing, nil))
			h, body := other.reply()
			if h.Xid == wire.XidEvent {
				var e wire.WatcherEvent
				if err := wire.Decode(body, &e); err != nil || e.Type != wire.EventDeleted || e.Path != last {
					t.Fatalf("%s: event %+v %v", how, e, err)
				}
				break
			}
		}
		if err := tr.agree(ctx); err != nil {
			t.Fatal(err)
		}
		for _, m := range tr.members {
			v := m.tree.View()
			_, stat, err := v.Children("/"+how, nil)
			if err != nil || v.EphemeralCount() != 0 || stat.NumChildren != 0 {
				t.Errorf("%s: member %d has %d ephemerals, %d children (%v)", how, m.ID(), v.EphemeralCount(), stat.NumChildren, err)
			}
			if _, open := v.Session(bystander.Session); !open {
				t.Errorf("%s: somebody else's session is gone at member %d", how, m.ID())
			}
		}
	}
	for i, m := range tr.members {
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		tr.members[i] = nil
	}
	for i := range tr.members {
		tr.restart(i)
	}
	tr.serving(ctx, 0, 1, 2)
	if err := tr.agree(ctx); err != nil {
		t.Fatal(err)
	}
}
