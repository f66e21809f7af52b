package ensemble

import (
	"errors"
	"fmt"
	"testing"

	"kvd/kv"
	"kvd/wal"
)

// goneLog is a log store from which an installed snapshot has taken everything.
type goneLog struct{ err error }

func (g goneLog) Read(kv.Zxid, kv.Zxid, int, []kv.Entry) ([]kv.Entry, error) { return nil, g.err }

// A range that was committed before a snapshot was installed may be read after the install has dropped the log: it is
// part of the snapshot, whose restore follows. Everything before that restore is skipped, what follows it is applied.
func TestRangeThatAnInstallTookAwayIsSkippedUntilTheRestore(t *testing.T) {
	// The history: five creates, prepared on a tree of their own.
	source := kv.NewTree(kv.NewView())
	p := kv.NewPreparer(source.View, kv.PreparerOptions{})
	var entries []kv.Entry
	chain := kv.ChainSeed()
	var atThree *kv.View
	for i := uint32(1); i <= 5; i++ {
		z := kv.MakeZxid(1, i)
		r := kv.Request{Op: kv.OpCreate, Path: fmt.Sprintf("/n%d", i), ACL: openACL, TTL: -1}
		payload := p.Prepare(nil, z, kv.TxnHeader{Time: 1}, &r)
		chain = kv.ChainDigest(chain, z, payload)
		e := kv.Entry{Zxid: z, Chain: chain, Payload: payload}
		if err := source.Apply([]kv.Entry{e}, nil); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
		if i == 3 {
			atThree = source.View()
		}
	}
	for _, gone := range []error{fmt.Errorf("%w: test", wal.ErrCompacted), fmt.Errorf("%w: test", wal.ErrNotFound)} {
		a := &applier{
			member: 1, tree: kv.NewTree(kv.NewView()), port: &clientPort{}, log: goneLog{gone},
			restore: func(applyItem) (*kv.View, error) { return atThree, nil },
			applied: func(kv.Zxid, uint64) {},
		}
		err := a.work([]applyItem{
			{after: 0, through: entries[1].Zxid},
			{after: entries[1].Zxid, through: entries[2].Zxid, entries: entries[2:3]},
		})
		if err != nil || a.tree.View().Zxid() != 0 {
			t.Fatalf("%v: before the restore: applied %v, error %v", gone, a.tree.View().Zxid(), err)
		}
		err = a.work([]applyItem{
			{restore: true, zxid: entries[2].Zxid},
			{after: entries[2].Zxid, through: entries[4].Zxid, entries: entries[3:5]},
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := a.tree.View(); got.Zxid() != entries[4].Zxid || got.Digest() != source.View().Digest() {
			t.Errorf("%v: at %v with digest %x, want %v with %x", gone, got.Zxid(), got.Digest(), entries[4].Zxid, source.View().Digest())
		}
	}
	// Any other error of the log ends the member.
	broken := errors.New("broken")
	a := &applier{member: 1, tree: kv.NewTree(kv.NewView()), port: &clientPort{}, log: goneLog{broken}, applied: func(kv.Zxid, uint64) {}}
	if err := a.work([]applyItem{{after: 0, through: entries[1].Zxid}}); !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
}
