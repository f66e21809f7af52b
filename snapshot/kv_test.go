package snapshot_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"kvd/kv"
	"kvd/snapshot"
)

// The tree's own records through both stores, full and as deltas: what is loaded has the zxid, the chain and
// the digest of the view that was written, at each of many points of a random history (P20, and S25: a snapshot
// is exactly its label).
func TestTreeThroughSnapshots(t *testing.T) {
	dir, err := snapshot.OpenDir(t.TempDir(), snapshot.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, store := range map[string]snapshot.Store{"dir": dir, "memory": snapshot.NewMemory()} {
		t.Run(name, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(7, 7))
			tree := kv.NewTree(kv.NewView())
			prep := kv.NewPreparer(tree.View, kv.PreparerOptions{})
			var point snapshot.Point
			var old *kv.View
			chain := kv.ChainSeed()
			z := kv.MakeZxid(1, 0)
			open := []kv.ACL{{Perms: 31, Scheme: "world", ID: "anyone"}}
			for round := range 10 {
				for range 60 {
					z++
					path := fmt.Sprintf("/n%d", rnd.IntN(40))
					if rnd.IntN(3) == 0 {
						path += fmt.Sprintf("/c%d", rnd.IntN(5))
					}
					r := kv.Request{Op: kv.OpCreate, Path: path, Data: make([]byte, rnd.IntN(300)), ACL: open, Version: -1}
					switch rnd.IntN(4) {
					case 0:
						r = kv.Request{Op: kv.OpDelete, Path: path, Version: -1}
					case 1:
						r.Op = kv.OpSetData
					case 2:
						r = kv.Request{Op: kv.OpCreateSession, Session: kv.SessionID(rnd.IntN(20) + 1), Timeout: 1000}
					}
					if r.Session == 0 {
						r.Session = 1
					}
					payload := prep.Prepare(nil, z, kv.TxnHeader{Time: int64(z)}, &r)
					chain = kv.ChainDigest(chain, z, payload)
					if err := tree.Apply([]kv.Entry{{Zxid: z, Chain: chain, Payload: payload}}, nil); err != nil {
						t.Fatal(err)
					}
				}
				v := tree.View()
				meta := snapshot.Meta{Zxid: v.Zxid(), Chain: v.Chain(), Digest: v.Digest()}
				records := func(walk func(func(uint8, []byte, []byte) error) error) snapshot.Source {
					return snapshot.SourceFunc(func(yield func(snapshot.Record) error) error {
						return walk(func(table uint8, key, value []byte) error {
							return yield(snapshot.Record{Table: table, Key: key, Value: value})
						})
					})
				}
				full, err := store.WriteFull(context.Background(), meta, records(v.Records))
				if err != nil {
					t.Fatal(err)
				}
				if old == nil {
					point = full
				} else {
					point, err = store.WriteDelta(context.Background(), meta, records(func(yield func(uint8, []byte, []byte) error) error { return v.Diff(old, yield) }), point)
					if err != nil {
						t.Fatal(err)
					}
				}
				old = v
				for _, p := range []snapshot.Point{full, point} {
					b := kv.NewBuilder()
					if err := store.Load(p, func(r snapshot.Record) error { return b.Add(r.Table, r.Key, r.Value) }); err != nil {
						t.Fatal(err)
					}
					got, err := b.Finish(p.Zxid, p.Chain, p.Digest)
					if err != nil {
						t.Fatalf("round %d, %d files: %v", round, len(p.Files), err)
					}
					if got.Zxid() != v.Zxid() || got.Digest() != v.Digest() || got.NodeCount() != v.NodeCount() || got.SessionCount() != v.SessionCount() {
						t.Fatalf("round %d, %d files: %d nodes and %d sessions at %s, want %d and %d at %s", round, len(p.Files),
							got.NodeCount(), got.SessionCount(), got.Zxid(), v.NodeCount(), v.SessionCount(), v.Zxid())
					}
				}
			}
			if old.NodeCount() < 20 || old.SessionCount() < 5 {
				t.Fatalf("the history makes only %d nodes, %d sessions", old.NodeCount(), old.SessionCount())
			}
		})
	}
}
