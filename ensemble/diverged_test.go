package ensemble

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"kvd/kv"
	"kvd/snapshot"
)

// spoil puts another tree in the place of a member's, as if it had applied its last transaction wrongly: /a has other data,
// and everything else is in order.
func spoil(t *testing.T, m *Member) {
	t.Helper()
	v := m.tree.View()
	wrong := kv.NewTree(v)
	var session kv.SessionID
	v.Sessions(func(s kv.Session) bool {
		session = s.ID
		return false
	})
	z := v.Zxid() + 1
	payload := kv.NewPreparer(wrong.View, kv.PreparerOptions{SkipACL: true}).Prepare(nil, z, kv.TxnHeader{Time: 1},
		&kv.Request{Op: kv.OpSetData, Session: session, Path: "/a", Data: []byte("wrong"), Version: -1})
	if err := wrong.Apply([]kv.Entry{{Zxid: z, Chain: kv.ChainDigest(v.Chain(), z, payload), Payload: payload}}, nil); err != nil {
		t.Fatal(err)
	}
	w := wrong.View()
	if w.Digest() == v.Digest() {
		t.Fatal("nothing was changed")
	}
	point, err := m.snaps.store.WriteFull(t.Context(), snapshot.Meta{Zxid: v.Zxid(), Chain: v.Chain(), Digest: w.Digest()},
		snapshot.SourceFunc(func(yield func(snapshot.Record) error) error { return w.Records(records(yield)) }))
	if err != nil {
		t.Fatal(err)
	}
	m.applier.enqueue(applyItem{restore: true, zxid: v.Zxid(), point: point})
}

// TestWrongTreeIsStopped: a member whose tree differs from that of a quorum ends by itself, be it the leader, and believes
// nothing of its state when it starts again; the others go on, and clients find the right data everywhere.
func TestWrongTreeIsStopped(t *testing.T) {
	for _, who := range []string{"leader", "follower"} {
		t.Run(who, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			tr := startTrio(t, nil)
			leader := tr.serving(ctx, 0, 1, 2)
			at, other := leader, (leader+1)%3
			if who == "follower" {
				at, other = other, leader
			}
			c, err := tr.members[other].Client(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			write(t, ctx, c, "/a")
			eventually(t, "all have /a", func() bool {
				for _, m := range tr.members {
					if m.Status().Applied != tr.members[other].Status().Applied {
						return false
					}
				}
				return true
			})
			spoil(t, tr.members[at])
			select {
			case <-tr.members[at].Done():
			case <-ctx.Done():
				t.Fatal("a wrong tree is served")
			}
			if err := tr.members[at].Err(); !errors.Is(err, ErrDiverged) || !curable(err) {
				t.Fatalf("ended with %v", err)
			}
			for i, m := range tr.members {
				if i != at && m.Err() != nil {
					t.Fatalf("member %d ended too: %v", i+1, m.Err())
				}
			}
			eventually(t, "the others take writes", func() bool { // after an election, if it was the leader
				_, _, err := c.Create(ctx, "/b", nil, 0)
				return err == nil || errors.Is(err, kv.ErrNodeExists)
			})
			tr.restart(at)
			if s := tr.members[at].Status().Suspect; !strings.Contains(s, "a quorum has another one at") {
				t.Errorf("the start says %q", s)
			}
			tr.serving(ctx, 0, 1, 2)
			d, err := tr.members[at].Client(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if b, _, err := d.Get(ctx, "/a"); err != nil || !bytes.Equal(b, []byte("x")) {
				t.Errorf("/a is %q, %v", b, err)
			}
			eventually(t, "it votes, and all are equal", func() bool {
				s := tr.members[at].Status()
				o := tr.members[other].Status()
				return s.Suspect == "" && s.Applied == o.Applied && s.Digest == o.Digest
			})
		})
	}
}

// TestMemoryThatChanges: a tree whose content is not what was put together ends the member, before any other member knows.
func TestMemoryThatChanges(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	m, _ := startSingle(t, func(c *Config) { c.SelfCheckInterval = -1 })
	c, err := m.Client(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	write(t, ctx, c, "/a")
	b, _, err := m.tree.View().Get("/a")
	if err != nil || string(b) != "x" {
		t.Fatalf("%q %v", b, err)
	}
	if err := m.loop.check.content(); err != nil {
		t.Fatal(err)
	}
	b[0] = 'y'
	if err := m.loop.check.content(); !errors.Is(err, ErrDiverged) {
		t.Fatalf("the check says %v", err)
	}
	<-m.Done()
	if err := m.Err(); !errors.Is(err, ErrDiverged) || !curable(err) {
		t.Fatalf("ended with %v", err)
	}
}
