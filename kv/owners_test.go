package kv

import (
	"fmt"
	"slices"
	"testing"
)

func TestEphemeralOwners(t *testing.T) {
	h := newHistory(NewTree(nil))
	owners := func() (ids []SessionID) {
		h.tree.View().EphemeralOwners(func(id SessionID) bool { ids = append(ids, id); return true })
		return ids
	}
	if got := owners(); len(got) != 0 {
		t.Errorf("a fresh tree has %v", got)
	}
	all := []SessionID{1, 2, 1 << 40, -2 << 56} // in the order of unsigned numbers
	for _, id := range all {
		h.do(t, &Request{Op: OpCreateSession, Session: id, Timeout: 1})
		for i := range 3 {
			if id != 2 {
				h.do(t, &Request{Op: OpCreate, Session: id, Path: fmt.Sprintf("/e-%x-%d", uint64(id), i), Flags: 1, ACL: OpenACL()})
			}
		}
	}
	if got, want := owners(), []SessionID{1, 1 << 40, -2 << 56}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	n := 0
	h.tree.View().EphemeralOwners(func(SessionID) bool { n++; return false })
	if n != 1 {
		t.Errorf("went on %d times after false", n-1)
	}
}

// Two trees that apply the same history in batches of different sizes remember the same digests.
func TestDigestsDoNotDependOnBatches(t *testing.T) {
	h := newHistory(NewTree(nil))
	var entries []Entry
	do := func(r *Request) {
		e := h.prepare(r)
		entries = append(entries, e)
		if err := h.tree.Apply([]Entry{e}, nil); err != nil {
			t.Fatal(err)
		}
	}
	do(&Request{Op: OpCreate, Path: "/n", ACL: OpenACL()})
	for i := range 5 * DigestInterval {
		do(&Request{Op: OpSetData, Path: "/n", Data: []byte(fmt.Sprint(i)), Version: -1})
	}
	other := NewTree(nil)
	for n := 1; len(entries) > 0; n = n%97 + 3 {
		n = min(n, len(entries))
		if err := other.Apply(entries[:n], nil); err != nil {
			t.Fatal(err)
		}
		entries = entries[n:]
	}
	got, want := other.Digests(), h.tree.Digests()
	if len(want) != 5 || !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for i, d := range want {
		if d.Zxid.Counter() != uint32((i+1)*DigestInterval) {
			t.Errorf("digest %d is of %v", i, d.Zxid)
		}
	}
}

func TestWatchesOf(t *testing.T) {
	h := newHistory(NewTree(nil))
	h.do(t, &Request{Op: OpCreate, Path: "/a", ACL: OpenACL()})
	var v, w mailbox
	h.tree.GetWatch("/a", &w)
	h.tree.ExistsWatch("/missing", &w)
	h.tree.ChildrenWatch("/a", &w) // not of the data table
	h.tree.GetWatch("/a", &v)
	of := func(w Watcher) (paths []string) {
		h.tree.WatchesOf(w, func(path string) bool { paths = append(paths, path); return true })
		slices.Sort(paths)
		return paths
	}
	if got := of(&w); !slices.Equal(got, []string{"/a", "/missing"}) {
		t.Errorf("w watches %q", got)
	}
	if got := of(&v); !slices.Equal(got, []string{"/a"}) {
		t.Errorf("v watches %q", got)
	}
}
