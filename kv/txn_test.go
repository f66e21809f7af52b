package kv

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var rewriteGolden = flag.Bool("rewrite-golden", false, "write testdata/*.golden anew")

// golden compares text with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := "testdata/" + name
	if *rewriteGolden {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: the format has changed; got\n%s", file, got)
	}
}

func sampleTxns() []Txn {
	h := TxnHeader{Origin: 3, Request: 0x1234, Session: 0x300000000000007, Time: 1_700_000_000_123}
	with := func(kind Op, err Code) TxnHeader { g := h; g.Kind, g.Err = kind, err; return g }
	digest := appendACL(nil, []ACL{{PermRead, "digest", "bob:hash"}, {PermAll, "ip", "10.0.0.0/8"}})
	create := TxnOp{Op: OpCreate, Path: "/app/config", Data: []byte("hello"), Creates: 1}
	eph := TxnOp{Op: OpCreate2, Path: "/app/e-0000000001", ACL: digest, Owner: Owner(h.Session), Creates: 2}
	set := TxnOp{Op: OpSetData, Path: "/app/config", Data: []byte{}, Version: 1}
	container := TxnOp{Op: OpCreateContainer, Path: "/app/c", Data: []byte("x"), Owner: ownerContainer, Creates: 3}
	ttl := TxnOp{Op: OpCreateTTL, Path: "/app/t", ACL: digest, Owner: ttlOwner(MaxTTL), Creates: 4}
	return []Txn{
		{Header: with(OpCreate, 0), Ops: []TxnOp{create}},
		{Header: with(OpCreate2, 0), Ops: []TxnOp{eph}},
		{Header: with(OpDelete, 0), Ops: []TxnOp{{Op: OpDelete, Path: "/app/config"}}},
		{Header: with(OpSetData, 0), Ops: []TxnOp{set}},
		{Header: with(OpSetACL, 0), Ops: []TxnOp{{Op: OpSetACL, Path: "/app", ACL: digest, Version: 4}}},
		{Header: with(OpMulti, 0), Ops: []TxnOp{create, {Op: OpCheck, Path: "/app"}, set, {Op: OpDelete, Path: "/x"}, eph}},
		{Header: with(OpMulti, 0)},
		{Header: with(OpMulti, CodeBadVersion), Total: 3, Failed: 1},
		{Header: with(OpMulti, CodeMarshallingError)},
		{Header: with(OpDelete, CodeNotEmpty)},
		{Header: with(OpDeleteContainer, CodeUnimplemented)},
		{Header: with(OpCreateSession, 0), Ops: []TxnOp{{Op: OpCreateSession, Timeout: 10_000, Passwd: [16]byte{1, 2, 15: 16}}}},
		{Header: with(OpCloseSession, 0), Ops: []TxnOp{{Op: OpCloseSession}}},
		{Header: with(OpSetLevels, 0), Ops: []TxnOp{{Op: OpSetLevels, Levels: Levels{2, 1}}}},
		{Header: with(OpSetConfig, 0), Ops: []TxnOp{{Op: OpSetConfig, Path: ConfigPath, Data: []byte("server.1=x\n"), Version: -1}}},
		{Header: with(OpCreateContainer, 0), Ops: []TxnOp{container}},
		{Header: with(OpCreateTTL, 0), Ops: []TxnOp{ttl}},
		{Header: with(OpDeleteContainer, 0), Ops: []TxnOp{{Op: OpDeleteContainer, Path: "/app/c"}}},
		{Header: with(OpMulti, 0), Ops: []TxnOp{container, ttl}},
	}
}

// TestTxnFormat pins the bytes of transactions.
func TestTxnFormat(t *testing.T) {
	var out strings.Builder
	for _, txn := range sampleTxns() {
		b := AppendTxn(nil, &txn)
		fmt.Fprintf(&out, "%v %v\n%s\n", txn.Header.Kind, txn.Header.Err, hex.EncodeToString(b))
		got, err := DecodeTxn(b)
		if err != nil || !bytes.Equal(AppendTxn(nil, got), b) {
			t.Errorf("%v: %+v %v", txn.Header.Kind, got, err)
		}
		if h, err := DecodeTxnHeader(b); err != nil || h != txn.Header {
			t.Errorf("%v: header %+v %v", txn.Header.Kind, h, err)
		}
	}
	golden(t, "txn.golden", out.String())
}

// TestTxnDecoderRefuses cuts and damages each sample everywhere: a strict prefix never decodes, and what decodes
// after a changed byte encodes to itself.
func TestTxnDecoderRefuses(t *testing.T) {
	for _, txn := range sampleTxns() {
		b := AppendTxn(nil, &txn)
		for n := range b {
			if _, err := DecodeTxn(b[:n:n]); err == nil {
				t.Errorf("%v: decodes from %d of %d bytes", txn.Header.Kind, n, len(b))
			}
			for bit := range 8 {
				c := bytes.Clone(b)
				c[n] ^= 1 << bit
				checkDecode(t, c)
			}
		}
		if _, err := DecodeTxn(append(bytes.Clone(b), 0)); err == nil {
			t.Errorf("%v: decodes with a byte too many", txn.Header.Kind)
		}
	}
	spelledOut := AppendTxn(nil, &Txn{Header: TxnHeader{Kind: OpSetACL}, Ops: []TxnOp{{Op: OpSetACL, Path: "/a", ACL: []byte(encodedOpenACL)}}})
	if _, err := DecodeTxn(spelledOut); err == nil {
		t.Error("the open list decodes from its long form, too")
	}
	for what, o := range map[string]TxnOp{
		"an owner that no session can be":  {Op: OpCreate, Path: "/a", Owner: ttlOwner(5)},
		"a container made by create":       {Op: OpCreate2, Path: "/a", Owner: ownerContainer},
		"no time to live":                  {Op: OpCreateTTL, Path: "/a"},
		"a session where a time should be": {Op: OpCreateTTL, Path: "/a", Owner: 7},
	} {
		if _, err := DecodeTxn(AppendTxn(nil, &Txn{Header: TxnHeader{Kind: o.Op}, Ops: []TxnOp{o}})); err == nil {
			t.Errorf("%s decodes", what)
		}
	}
	if _, err := DecodeTxn([]byte{TxnFormat + 1, 0, 0}); err == nil || !strings.Contains(err.Error(), "newer") {
		t.Errorf("a newer format gives %v", err)
	}
}

func checkDecode(t *testing.T, b []byte) {
	t.Helper()
	txn, err := DecodeTxn(b)
	if err != nil {
		return
	}
	if again := AppendTxn(nil, txn); !bytes.Equal(again, b) {
		t.Fatalf("%x decodes to %+v, which encodes to %x", b, txn, again)
	}
}

// FuzzDecodeTxn: no input panics or makes the decoder allocate out of proportion, and decoding is the inverse of
// encoding.
func FuzzDecodeTxn(f *testing.F) {
	for _, txn := range sampleTxns() {
		f.Add(AppendTxn(nil, &txn))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		checkDecode(t, b)
		if len(b) > 1<<10 {
			return
		}
		var before, after testMem
		before.read()
		_, _ = DecodeTxn(b)
		after.read()
		if used := after.total - before.total; used > uint64(4096+400*len(b)) {
			t.Fatalf("%d bytes allocated for an input of %d", used, len(b))
		}
	})
}

// FuzzApplyTxn applies arbitrary payloads to a small tree: whatever a damaged history holds, Apply refuses it or
// leaves a view that its own records rebuild.
func FuzzApplyTxn(f *testing.F) {
	for _, txn := range sampleTxns() {
		f.Add(AppendTxn(nil, &txn))
	}
	h := newHistory(NewTree(nil))
	h.do(f, &Request{Op: OpCreateSession, Session: 0x300000000000007})
	h.do(f, &Request{Op: OpCreate, Path: "/app", ACL: OpenACL()})
	h.do(f, &Request{Op: OpCreate, Path: "/x", Session: 0x300000000000007, Flags: FlagEphemeral, ACL: OpenACL()})
	for _, p := range []string{"/zookeeper/quota/app", "/zookeeper/quota/app/zookeeper_limits", "/zookeeper/quota/app/zookeeper_stats"} {
		h.do(f, &Request{Op: OpCreate, Path: p, ACL: OpenACL()})
	}
	h.do(f, &Request{Op: OpCreateContainer, Path: "/app/c", ACL: []ACL{{PermRead, "digest", "bob:hash"}}})
	base := h.tree.View()
	f.Fuzz(func(t *testing.T, payload []byte) {
		tree := NewTree(base)
		z := base.Zxid() + 1
		err := tree.Apply([]Entry{{z, ChainDigest(base.Chain(), z, payload), payload}}, &collector{})
		v := tree.View()
		if err != nil {
			if v != base {
				t.Fatal("a refused batch is visible")
			}
			return
		}
		b := NewBuilder()
		if err := v.Records(b.Add); err != nil {
			t.Fatal(err)
		}
		w, err := b.Finish(v.Zxid(), v.Chain(), v.Digest())
		if err != nil {
			t.Fatal(err)
		}
		sameContent(t, w, v)
	})
}
