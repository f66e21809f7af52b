package kv

import (
	"errors"
	"strings"
	"testing"
)

// TestPathRules is the table of zookeeper-protocol 5.1.
func TestPathRules(t *testing.T) {
	for _, c := range []struct {
		path string
		ok   bool
	}{
		{"/", true}, {"/a", true}, {"/a/b", true}, {"/a b", true}, {"/...", true}, {"/.a", true}, {"/a.", true}, {"/..a/b..", true},
		{"/é", true}, {"/漢字", true}, {"/\ud7ff", true}, {"/\uf900", true}, {"/\uffef", true}, {"/\u00a0", true},
		{"", false}, {"abc", false}, {"a/b", false}, {"/a/", false}, {"//", false}, {"/a//b", false}, {"//a", false},
		{"/.", false}, {"/..", false}, {"/a/.", false}, {"/a/./b", false}, {"/a/../b", false}, {"/./a", false},
		{"/\x00", false}, {"/\x01", false}, {"/\x1f", false}, {"/\t", false}, {"/\x7f", false}, {"/\u0080", false}, {"/\u009f", false},
		{"/\ue000", false}, {"/\uf8ff", false}, {"/\ufff0", false}, {"/\uffff", false}, {"/\ufffd", false}, {"/😀", false},
		{"/\xff", false}, {"/a\xc3", false}, {"/\xed\xa0\x80", false}, // broken UTF-8, a lone surrogate among it
		{"/" + strings.Repeat("x", MaxPathBytes-1), true}, {"/" + strings.Repeat("x", MaxPathBytes), false},
	} {
		err := ValidatePath(c.path)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrBadArguments) {
			t.Errorf("%.40q: %v, want ok=%v", c.path, err, c.ok)
		}
	}
}

// TestSequenceSuffix checks Java's "%010d".
func TestSequenceSuffix(t *testing.T) {
	for n, want := range map[int32]string{
		0: "0000000000", 7: "0000000007", 2147483647: "2147483647", -2147483648: "-2147483648", -1: "-000000001", -123456789: "-123456789",
	} {
		if got := string(appendSequence([]byte("/p-"), n)); got != "/p-"+want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

// TestKeysKeepSiblingsTogether: the order of keys is by parent, then by name, whatever characters the names have.
func TestKeysKeepSiblingsTogether(t *testing.T) {
	ordered := []string{"/a", "/a!", "/a!x", "/b", "/", "/a/a", "/a/a b", "/a/b", "/a/zz", "/a!/x", "/a/a/x", "/ab/x"}
	last := ""
	for _, p := range ordered {
		k := string(appendKey(nil, p))
		if k <= last {
			t.Errorf("key of %q is %q, not after %q", p, k, last)
		}
		last = k
		if back := pathOfKey(k); back != p {
			t.Errorf("%q came back as %q", p, back)
		}
		if p != "/" && parentPathOfKey(k) != parentOf(p) {
			t.Errorf("%q: parent %q", p, parentPathOfKey(k))
		}
	}
}

// TestReadsDoNotValidate: reads of impossible paths find nothing, except that "" is the root.
func TestReadsDoNotValidate(t *testing.T) {
	h := newHistory(NewTree(nil))
	h.do(t, &Request{Op: OpCreate, Path: "/a", ACL: OpenACL()})
	h.do(t, &Request{Op: OpCreate, Path: "/a/b", ACL: OpenACL()})
	v := h.tree.View()
	for _, p := range []string{"abc", "/a/", "//", "/a//b", "a/b", "/a/b/", "\x00a", "/a\x00b", "\x00", "/zookeeper\x00quota", "a"} {
		if _, _, err := v.Get(p); !errors.Is(err, ErrNoNode) {
			t.Errorf("get %q: %v", p, err)
		}
		if _, _, err := v.Children(p, nil); !errors.Is(err, ErrNoNode) {
			t.Errorf("children of %q: %v", p, err)
		}
		want := ErrNoNode
		if strings.Contains(p, "\x00") {
			want = ErrBadArguments
		}
		if _, err := v.Exists(p); !errors.Is(err, want) {
			t.Errorf("exists %q: %v, want %v", p, err, want)
		}
	}
	names, st, err := v.Children("", nil)
	if err != nil || len(names) != 2 || st.NumChildren != 2 {
		t.Errorf("children of the empty path: %q %+v %v", names, st, err)
	}
}

// FuzzPath compares the rules with the model's, which go by UTF-16 units, and checks the key round trip.
func FuzzPath(f *testing.F) {
	for _, s := range []string{"/", "/a/b", "/a//b", "/é/漢", "/\xff", "/a\x00b", "/./x", "/\u009f", "/\ufff0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, path string) {
		ok := validPath(path)
		if ok != modelPathOK(path) {
			t.Fatalf("%q: valid=%v, the model disagrees", path, ok)
		}
		key := string(appendKey(nil, path))
		if ok && pathOfKey(key) != path {
			t.Fatalf("%q has key %q, which is of %q", path, key, pathOfKey(key))
		}
		if !ok && path != "" && strings.Count(key, "\x00") == 1 && validPath(pathOfKey(key)) {
			t.Fatalf("%q is invalid and has the key of %q", path, pathOfKey(key))
		}
	})
}
