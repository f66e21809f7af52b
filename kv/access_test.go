package kv

import (
	"fmt"
	"slices"
	"testing"
)

func credentials(ids ...string) Credentials {
	var c Credentials
	for i := 0; i < len(ids); i += 2 {
		c = c.With(Identity{ids[i], ids[i+1]})
	}
	return c
}

// TestDigestIdentity: the vectors of zookeeper-protocol 9.2 (read from a running ZooKeeper), and texts without a colon.
func TestDigestIdentity(t *testing.T) {
	for text, want := range map[string]string{
		"u:p":   "u:Jq7wMyA/w2Vd5WIDAKdu4OIIFEQ=",
		"u2:p2": "u2:o9NxcCGDPOlcV7JVhmKHOf5ctVE=",
	} {
		if got := DigestIdentity("", []byte(text)); got != (Identity{"digest", want}) {
			t.Errorf("%q: %v, want %s", text, got, want)
		}
	}
	if a, b := DigestIdentity("SHA1", nil), DigestIdentity("SHA1", []byte("nobody")); a.ID != ":2jmj7l5rSw0yVb/vlWAYkK/YBwk=" ||
		b.ID[:7] != "nobody:" {
		t.Errorf("%v %v", a, b)
	}
	sizes := map[string]int{"sha-1": 28, "SHA-224": 40, "SHA-256": 44, "SHA-384": 64, "SHA-512": 88}
	for alg, n := range sizes {
		if id := DigestIdentity(alg, []byte("u:p")); len(id.ID) != n+2 {
			t.Errorf("%s: %q", alg, id.ID)
		}
	}
}

// TestAllows goes through the rules of zookeeper-protocol 9.3.
func TestAllows(t *testing.T) {
	bob := credentials("ip", "10.1.2.3", "digest", "bob:h")
	for i, c := range []struct {
		list  []ACL
		who   Credentials
		perms int32
		want  bool
	}{
		{OpenACL(), "", PermAdmin, true},
		{[]ACL{{PermRead, "world", "anyone"}}, "", PermRead, true},
		{[]ACL{{PermRead, "world", "anyone"}}, bob, PermWrite, false},
		{[]ACL{{PermRead, "world", "anyone"}}, AllCredentials, PermWrite, true},
		{[]ACL{{PermRead, "world", "anyone"}}, credentials("digest", "a:b", "super", ""), PermWrite, true},
		{[]ACL{{PermRead, "world", "anyone"}}, "", PermRead | PermAdmin, true}, // one bit will do
		{[]ACL{{PermAll, "digest", "bob:h"}}, bob, PermDelete, true},
		{[]ACL{{PermAll, "digest", "bob:H"}}, bob, PermDelete, false},
		{[]ACL{{PermAll, "digest", "bob:h"}}, "", PermDelete, false},
		{[]ACL{{PermAll, "ip", "bob:h"}}, bob, PermDelete, false},
		{[]ACL{{PermAll, "x509", "bob:h"}}, bob, PermDelete, false},
		{[]ACL{{0, "digest", "bob:h"}, {PermRead, "digest", "eve:h"}, {PermWrite, "digest", "bob:h"}}, bob, PermWrite, true},
		{[]ACL{{0, "digest", "bob:h"}, {PermRead, "digest", "eve:h"}, {PermWrite, "digest", "bob:h"}}, bob, PermRead, false},
		{[]ACL{{-1, "digest", "bob:h"}}, bob, PermRead, true},
		{[]ACL{{PermAll, "ip", "10.0.0.0/8"}}, bob, PermRead, true},
		{[]ACL{{PermAll, "ip", "10.255.255.255/8"}}, bob, PermRead, true}, // bits beyond those that count
		{[]ACL{{PermAll, "ip", "11.0.0.0/8"}}, bob, PermRead, false},
		{[]ACL{{PermAll, "ip", "0.0.0.0/0"}}, bob, PermRead, true},
		{[]ACL{{PermAll, "ip", "::/0"}}, bob, PermRead, false}, // the other family
		{[]ACL{{PermAll, "ip", "10.1.2.3"}}, bob, PermRead, true},
		{[]ACL{{PermAll, "ip", "010.1.2.03/32"}}, bob, PermRead, true},
		{[]ACL{{PermAll, "ip", "2001:db8::/32"}}, credentials("ip", "2001:db8:1::7"), PermRead, true},
		{[]ACL{{PermAll, "ip", "2001:db8::/32"}}, credentials("ip", "2001:db9::7"), PermRead, false},
		{[]ACL{{PermAll, "ip", "10.0.0.0/8"}}, credentials("ip", "::ffff:10.1.1.1"), PermRead, true},
		{[]ACL{{PermAll, "ip", "10.0.0.0/8"}}, credentials("ip", "nonsense"), PermRead, false},
		{[]ACL{{PermAll, "sasl", "bob"}}, credentials("sasl", "super"), PermRead, true},
		{[]ACL{{PermAll, "sasl", "bob"}}, credentials("sasl", "bob"), PermRead, true},
		{[]ACL{{PermAll, "sasl", "bob"}}, credentials("sasl", "eve"), PermRead, false},
	} {
		l := EncodeACL(c.list)
		if got := l.Allows(c.who, c.perms); got != c.want {
			t.Errorf("%d: %v for %v, %d: %v", i, c.list, c.who.Identities(), c.perms, got)
		}
		if back, err := l.Entries(); err != nil || !slices.Equal(back, c.list) {
			t.Errorf("%d: %v %v", i, back, err)
		}
	}
	if AccessList("\xff").Allows(bob, PermRead) || !AccessList("\xff").Allows(AllCredentials, PermRead) {
		t.Error("a malformed list must let nobody pass but a super user")
	}
}

// TestNormalizeACL: what is valid was tried on ZooKeeper 3.8.0, but for IPv6 (3.9.4) and the schemes that it knows only
// when configured.
func TestNormalizeACL(t *testing.T) {
	plain, every := aclRules{digest: true}, aclRules{true, true, true}
	for _, c := range []struct {
		rules      aclRules
		scheme, id string
		want       bool
	}{
		{plain, "world", "anyone", true}, {plain, "world", "", false}, {plain, "World", "anyone", false},
		{plain, "digest", "a:b", true}, {plain, "digest", ":b", true}, {plain, "digest", "a:b::", true},
		{plain, "digest", "a", false}, {plain, "digest", "", false}, {plain, "digest", ":", false},
		{plain, "digest", "a:", false}, {plain, "digest", "a:b:c", false}, {aclRules{}, "digest", "a:b", false},
		{plain, "ip", "01.2.3.4", true}, {plain, "ip", "+1.2.3.4", true}, {plain, "ip", "-0.1.1.1", true},
		{plain, "ip", "1.2.3.4/", false}, {plain, "ip", "1.2.3.4/+8", true}, {plain, "ip", "1.2.3.4/08", true},
		{plain, "ip", "1.2.3.4/33", false}, {plain, "ip", "1.2.3.4/-1", false}, {plain, "ip", "1.2.3.4/8/8", false},
		{plain, "ip", "1.2.3.", false}, {plain, "ip", "1.2.3", false}, {plain, "ip", "1.2.3.4.5", false},
		{plain, "ip", "256.1.1.1", false}, {plain, "ip", "1.2.3.4 ", false}, {plain, "ip", "", false},
		{plain, "ip", "::1", true}, {plain, "ip", "::/129", false}, {plain, "ip", "fe80::1%eth0", false},
		{plain, "super", "a:b", false}, {plain, "", "x", false}, {plain, "foo", "x", false},
		{plain, "x509", "CN=a", false}, {plain, "sasl", "bob", false},
		{every, "x509", "CN=a, OU=b\\,c+O=\"x,y\"", true}, {every, "x509", "a", false}, {every, "x509", "CN=a,b", false},
		{every, "x509", "=a", false}, {every, "x509", "CN=\"a", false},
		{every, "sasl", "bob", true}, {every, "sasl", "bob/host@REALM", true}, {every, "sasl", "a@b@c", false},
	} {
		_, code := c.rules.normalizeACL([]ACL{{PermAll, c.scheme, c.id}}, "")
		if (code == CodeOK) != c.want || code != CodeOK && code != CodeInvalidACL {
			t.Errorf("%s:%s: %v", c.scheme, c.id, code)
		}
	}
	world, bob, eve := ACL{31, "world", "anyone"}, ACL{1, "digest", "bob:h"}, ACL{1, "digest", "eve:h"}
	c := credentials("ip", "::1", "digest", "eve:h", "super", "", "digest", "bob:h")
	got, code := plain.normalizeACL([]ACL{world, {1, "auth", ""}, world, {1, "auth", "x"}, bob, {1, "auth", ""}}, c)
	if want := []ACL{world, eve, bob, eve, bob, bob}; code != CodeOK || !slices.Equal(got, want) {
		t.Errorf("%v %v, want %v", got, code, want)
	}
	long := make([]ACL, 3*fewEntries)
	for i := range long {
		long[i] = ACL{int32(i % (2 * fewEntries)), "world", "anyone"}
	}
	if got, code = plain.normalizeACL(long, ""); code != CodeOK || !slices.Equal(got, long[:2*fewEntries]) {
		t.Errorf("%v %v", got, code)
	}
}

// TestDescendants counts around names that sort between a node's children and its grandchildren, in a tree of several
// levels, and compares count with a walk over every pair of bounds.
func TestDescendants(t *testing.T) {
	h := newHistory(NewTree(nil))
	for _, p := range []string{"/a", "/a!b", "/a!b/c", "/a/b", "/a/b/c", "/a/b/c/d", "/a0", "/a0/b", "/ab", "/ab/c"} {
		h.do(t, &Request{Op: OpCreate, Path: p, ACL: OpenACL()})
	}
	fill(t, h, 10_000, func(i int) string { return fmt.Sprintf("/a/b/n%05d", i) })
	v := h.tree.View()
	r := v.As("")
	for path, want := range map[string]int32{
		"/": 10_013, "": 10_014, "/a": 10_003, "/a/b": 10_002, "/a/b/c": 1, "/a/b/c/d": 0, "/a!b": 1, "/a0": 1, "/ab": 1, "/zookeeper": 2,
	} {
		if got, err := r.Descendants(path); err != nil || got != want {
			t.Errorf("%q: %d %v, want %d", path, got, err, want)
		}
	}
	if _, err := r.Descendants("/none"); err != ErrNoNode {
		t.Error(err)
	}
	bounds := []string{"", "\x00", "/", "/a", "/a\x00", "/a/b\x00n00000", "/a/b\x00n00063", "/a/b\x00n00064", "/a/b\x00n05000x",
		"/a/b\x00n09999", "/a/b\x01", "/b", "\xff"}
	for _, from := range bounds {
		for _, to := range bounds {
			want := 0
			v.nodes.ascend("", func(rec string) bool {
				if k := recKey(rec); k >= from && k < to {
					want++
				}
				return true
			})
			if got := v.nodes.count(from, to); got != want {
				t.Errorf("count from %q to %q: %d, want %d", from, to, got, want)
			}
		}
	}
	if n := testing.AllocsPerRun(10, func() { _, _ = r.Descendants("/a") }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestEphemeralsWithPrefix(t *testing.T) {
	h := newHistory(NewTree(nil))
	h.do(t, &Request{Op: OpCreateSession, Session: 9})
	for _, p := range []string{"/p", "/pp", "/q"} {
		h.do(t, &Request{Op: OpCreate, Path: p, ACL: OpenACL()})
	}
	all := []string{"/ephemeral", "/p/e", "/pp/e", "/q/e"}
	for _, p := range all {
		h.do(t, &Request{Op: OpCreate, Session: 9, Path: p, Flags: FlagEphemeral, ACL: OpenACL()})
	}
	for prefix, want := range map[string][]string{
		"": all, "/": all, " / ": all, " \t": all, "/p": {"/p/e", "/pp/e"}, "/p/": {"/p/e"}, "/p/e": {"/p/e"}, "/p/ex": nil, "p": nil,
		"/ephemeral/more": nil, "/e": {"/ephemeral"},
	} {
		if got := h.tree.View().EphemeralsWithPrefix(9, prefix, nil); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", prefix, got, want)
		}
	}
}

// TestAccessAllocations: the checks of the usual lists allocate nothing, neither in reads nor in requests.
func TestAccessAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	h := newHistory(NewTree(nil))
	list := []ACL{{PermRead, "world", "anyone"}, {PermAll, "ip", "10.0.0.0/8"}, {PermAll, "ip", "2001:db8::/32"}, {PermAll, "digest", "bob:h"}}
	h.do(t, &Request{Op: OpCreate, Path: "/p", ACL: list})
	who := credentials("ip", "192.168.1.1", "digest", "ann:h", "digest", "bob:h")
	v := h.tree.View()
	if n := testing.AllocsPerRun(100, func() {
		if _, _, err := v.As(who).Get("/p"); err != nil {
			t.Fatal(err)
		}
		if l, _ := v.Access("/p"); !l.Allows(who, PermAdmin) || l.Allows("", PermAdmin) {
			t.Fatal("bob, and bob only")
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
	measure := func(path string, list []ACL) float64 {
		h.do(t, &Request{Op: OpCreate, Path: path, ACL: list})
		r := Request{Op: OpSetData, Session: 5, Local: true, Auth: who, Path: path, Data: []byte("x"), Version: -1}
		dst := make([]byte, 0, 1<<10)
		return testing.AllocsPerRun(100, func() {
			z := h.last.Zxid + 1
			if head, err := DecodeTxnHeader(h.prep.Prepare(dst[:0], z, TxnHeader{}, &r)); err != nil || head.Err != CodeOK {
				t.Fatal(head, err)
			}
			h.prep.Undo()
		})
	}
	if open, listed := measure("/open", OpenACL()), measure("/listed", list); listed > open {
		t.Errorf("a setData under a list allocates %v times, under the open one %v", listed, open)
	}
}

// FuzzCredentials: whatever another member sends as credentials, they decode to something, and what decodes whole can
// be built again.
func FuzzCredentials(f *testing.F) {
	f.Add("")
	f.Add(string(AllCredentials))
	f.Add(string(credentials("ip", "::1", "digest", "a:b")))
	f.Add("\x02ip\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01x")
	f.Fuzz(func(t *testing.T, s string) {
		c := Credentials(s)
		ids := c.Identities()
		super := false
		var again Credentials
		for _, id := range ids {
			super = super || id.Scheme == SchemeSuper
			again = again.With(id)
		}
		if c.Valid() && c.Super() != super {
			t.Fatalf("super %v of %v", c.Super(), ids)
		}
		if !slices.Equal(again.Identities(), slices.Compact(slices.Clone(ids))) && len(again.Identities()) > len(ids) {
			t.Fatalf("%v becomes %v", ids, again.Identities())
		}
		for _, id := range ids {
			if l := EncodeACL([]ACL{{PermRead, id.Scheme, id.ID}}); id.Scheme != "ip" && id.Scheme != "world" && !l.Allows(c, PermRead) {
				t.Fatalf("%v does not match itself", id)
			}
		}
		if (AccessList("\x00")).Allows(c, PermAll) != c.Super() {
			t.Fatal("an empty list")
		}
	})
}

// FuzzAccessList: no list panics or lets somebody pass whom its entries do not name, and decoding is the inverse of
// encoding.
func FuzzAccessList(f *testing.F) {
	f.Add(encodedOpenACL, "")
	f.Add(encodedReadACL, string(AllCredentials))
	f.Add(string(EncodeACL([]ACL{{-1, "digest", "a:b"}, {31, "ip", "10.0.0.0/8"}})), string(credentials("ip", "10.1.1.1")))
	f.Add("\xff\xff\xff\xff\x0f\x02", "")
	f.Fuzz(func(t *testing.T, s, who string) {
		l, c := AccessList(s), Credentials(who)
		list, err := l.Entries()
		if err == nil && s != "" && string(appendACL(nil, list)) != s {
			t.Fatalf("%q decodes to %v", s, list)
		}
		if err == nil && l.Allows(c, PermWrite) != modelAllows(list, c, PermWrite) && !slices.ContainsFunc(list, unusual) && c.Valid() {
			t.Fatalf("%v for %v: %v", list, c.Identities(), l.Allows(c, PermWrite))
		}
	})
}

// unusual entries are those for which the model has no rule.
func unusual(a ACL) bool {
	return a.Scheme == "ip" || a.Scheme == "sasl" || a.Scheme == "world" && a.ID != "anyone"
}
