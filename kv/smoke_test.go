package kv

import "testing"

func TestSmoke(t *testing.T) {
	tr := NewTree(nil)
	p := NewPreparer(tr.View)
	z := MakeZxid(1, 1)
	chain := tr.View().Chain()
	do := func(r Request) Entry {
		pl := p.Prepare(nil, z, TxnHeader{Origin: 1, Time: 5}, &r)
		chain = ChainDigest(chain, z, pl)
		e := Entry{z, chain, pl}
		z++
		return e
	}
	es := []Entry{
		do(Request{Op: OpCreateSession, Session: 77, Timeout: 1000}),
		do(Request{Op: OpCreate, Session: 77, Path: "/a", ACL: OpenACL()}),
		do(Request{Op: OpCreate, Session: 77, Path: "/a/b", Data: []byte("x"), ACL: OpenACL(), Flags: 3}),
		do(Request{Op: OpSetData, Session: 77, Path: "/a", Data: []byte("y"), Version: -1}),
		do(Request{Op: OpCloseSession, Session: 77}),
	}
	if err := tr.Apply(es, nil); err != nil {
		t.Fatal(err)
	}
	_, st, err := tr.View().Get("/a")
	if err != nil || st.Version != 1 || st.Cversion != 2 || st.NumChildren != 0 {
		t.Fatal(st, err)
	}
}
