package kv_test

import (
	"fmt"

	"kvd/kv"
)

// printer is a watcher and a sink that prints.
type printer struct{}

func (*printer) MayRead(kv.AccessList) bool { return true }
func (*printer) Event(e kv.Event)           { fmt.Println("event:", e.Type, e.Path) }

func (*printer) Begin(kv.Zxid, *kv.TxnHeader) (want, wantView bool) { return true, false }

func (*printer) Done(z kv.Zxid, h *kv.TxnHeader, r *kv.Result, _ *kv.View) {
	fmt.Printf("%v %v %q: %v\n", z, h.Kind, r.Path, r.Code)
}

// One member alone: every prepared transaction is committed at once.
func ExampleTree_Apply() {
	tree := kv.NewTree(nil)
	prep := kv.NewPreparer(tree.View, kv.PreparerOptions{})
	var p printer
	var batch []kv.Entry
	z, chain := kv.MakeZxid(1, 0), tree.View().Chain()
	propose := func(r kv.Request) {
		z++
		payload := prep.Prepare(nil, z, kv.TxnHeader{Origin: 1, Time: 1_700_000_000_000}, &r)
		chain = kv.ChainDigest(chain, z, payload)
		batch = append(batch, kv.Entry{Zxid: z, Chain: chain, Payload: payload})
	}

	tree.ExistsWatch("/queue/job-0000000001", &p)
	propose(kv.Request{Op: kv.OpCreate, Path: "/queue", ACL: kv.OpenACL()})
	propose(kv.Request{Op: kv.OpCreate, Path: "/queue/job-", Flags: kv.FlagSequential, ACL: kv.OpenACL()})
	propose(kv.Request{Op: kv.OpCreate, Path: "/queue/job-", Flags: kv.FlagSequential, ACL: kv.OpenACL()})
	propose(kv.Request{Op: kv.OpDelete, Path: "/queue", Version: -1}) // refused: it sees what is in flight
	if err := tree.Apply(batch, &p); err != nil {
		fmt.Println(err)
	}

	names, stat, _ := tree.View().Children("/queue", nil)
	fmt.Println(names, stat.NumChildren)
	// Output:
	// event: NodeCreated /queue/job-0000000001
	// 1:1 create "/queue": OK
	// 1:2 create "/queue/job-0000000000": OK
	// 1:3 create "/queue/job-0000000001": OK
	// 1:4 delete "": NotEmpty
	// [job-0000000000 job-0000000001] 2
}

// What a snapshot stores, and what a later one adds.
func ExampleView_Diff() {
	tree := kv.NewTree(nil)
	old := tree.View()
	prep := kv.NewPreparer(tree.View, kv.PreparerOptions{})
	z := kv.MakeZxid(1, 1)
	payload := prep.Prepare(nil, z, kv.TxnHeader{}, &kv.Request{Op: kv.OpCreate, Path: "/a", Data: []byte("x"), ACL: kv.OpenACL()})
	if err := tree.Apply([]kv.Entry{{Zxid: z, Chain: kv.ChainDigest(old.Chain(), z, payload), Payload: payload}}, nil); err != nil {
		fmt.Println(err)
	}
	now := tree.View()

	b := kv.NewBuilder()
	_ = old.Records(b.Add)
	_ = now.Diff(old, func(table uint8, key, value []byte) error {
		fmt.Printf("table %d key %q\n", table, key)
		return b.Add(table, key, value)
	})
	restored, err := b.Finish(now.Zxid(), now.Chain(), now.Digest())
	if err != nil {
		fmt.Println(err)
		return
	}
	data, _, _ := restored.Get("/a")
	fmt.Printf("%s\n", data)
	// Output:
	// table 1 key "\x00a"
	// table 2 key "/"
	// x
}
