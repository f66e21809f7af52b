package ensemble

import (
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"kvd/kv"
	"kvd/kv/wire"
)

// Every operation of zookeeper-protocol 3.1, answered byte for byte. The same steps can be put to a real ZooKeeper: with
// KVD_ZOOKEEPER=host:port (its super digest super:pw, TTL nodes enabled, empty) they are. What 3.8 answers otherwise
// (zookeeper-protocol 15) is in a step's old.

// step is one request and what comes back for it, as render prints it.
type step struct {
	op   wire.Op
	rec  any // wire.Record, or bytes
	want string
	old  string // ZooKeeper 3.8's, if it differs
}

// talker is a raw connection that prints what it hears.
type talker struct {
	*raw
	xid int32
}

// do sends a request and returns the events and the reply that come, or "closed".
func (k *talker) do(op wire.Op, rec any) string {
	k.t.Helper()
	var b []byte
	switch q := rec.(type) {
	case wire.Record:
		b = q.AppendTo(nil)
	case []byte:
		b = q
	case nil:
	default:
		k.t.Fatalf("no record: %T", rec)
	}
	k.xid++
	k.send(request(k.xid, op, b))
	return k.hear(op)
}

// hear returns what comes up to the next reply.
func (k *talker) hear(op wire.Op) string {
	k.t.Helper()
	var all []string
	for {
		f, err := k.fr.Next()
		if err != nil {
			return strings.Join(append(all, "closed"), "; ")
		}
		h, body, err := wire.SplitReply(f)
		if err != nil {
			k.t.Fatal(err)
		}
		if h.Xid == wire.XidEvent {
			var e wire.WatcherEvent
			if err := wire.Decode(body, &e); err != nil || e.State != wire.StateSyncConnected {
				k.t.Fatalf("event %x: %v", body, err)
			}
			text := fmt.Sprintf("%v %s", kv.EventType(e.Type), e.Path)
			if h.Zxid == -1 {
				text += " -1"
			}
			all = append(all, text)
			continue
		}
		if h.Xid != k.xid && op != wire.OpPing {
			k.t.Fatalf("reply to %d, want %d", h.Xid, k.xid)
		}
		text := "OK"
		if h.Err != 0 {
			text = fmt.Sprint(int32(h.Err))
		}
		switch {
		case h.Zxid == 0:
			text += " zxid=0"
		case h.Zxid == -1:
			text += " zxid=-1"
		}
		return strings.Join(append(all, text+render(k.t, op, h.Err, body)), "; ")
	}
}

func stat(s *kv.Stat) string {
	owner := ""
	if s.EphemeralOwner != 0 {
		owner = " ephemeral"
	}
	return fmt.Sprintf(" v%d,%d,%d len=%d kids=%d%s", s.Version, s.Cversion, s.Aversion, s.DataLength, s.NumChildren, owner)
}

func data(b []byte) string {
	if b == nil {
		return " null"
	}
	return fmt.Sprintf(" %q", b)
}

// render prints a reply's record.
func render(t testing.TB, op wire.Op, code kv.Code, body []byte) string {
	t.Helper()
	if code != kv.CodeOK || op.Class() == wire.ClassPing {
		if len(body) > 0 {
			return fmt.Sprintf(" %x", body)
		}
		return ""
	}
	if op == wire.OpMulti || op == wire.OpMultiRead {
		results, err := wire.DecodeMultiResults(body, nil)
		if err != nil || string(wire.AppendMultiResults(nil, results)) != string(body) {
			t.Fatalf("multi result %x: %v", body, err)
		}
		var all []string
		for _, r := range results {
			switch {
			case r.Failed:
				all = append(all, fmt.Sprint(int32(r.Err)))
			case r.Op == wire.OpGetData:
				all = append(all, "4"+data(r.Data))
			case r.Op == wire.OpGetChildren:
				slices.Sort(r.Names)
				all = append(all, fmt.Sprint("8 ", r.Names))
			default:
				all = append(all, fmt.Sprintf("%d %s v%d", r.Op, r.Path, r.Stat.Version))
			}
		}
		return " [" + strings.Join(all, " | ") + "]"
	}
	rec := op.NewResponse()
	if err := wire.Decode(body, rec); err != nil || len(rec.AppendTo(nil)) != len(body) {
		t.Fatalf("%v: reply %x: %v", op, body, err)
	}
	switch r := rec.(type) {
	case *wire.PathResponse:
		return " " + r.Path
	case *wire.CreateResponse:
		return " " + r.Path + stat(&r.Stat)
	case *wire.StatResponse:
		return stat(&r.Stat)
	case *wire.DataResponse:
		return data(r.Data) + stat(&r.Stat)
	case *wire.ACLResponse:
		return fmt.Sprintf(" %v%s", r.ACL, stat(&r.Stat))
	case *wire.NamesResponse:
		slices.Sort(r.Names)
		return fmt.Sprintf(" %v", r.Names)
	case *wire.NamesStatResponse:
		slices.Sort(r.Names)
		return fmt.Sprintf(" %v%s", r.Names, stat(&r.Stat))
	case *wire.NumberResponse:
		return fmt.Sprintf(" %d", r.Number)
	case *wire.WhoAmIResponse:
		slices.SortStableFunc(r.Identities, func(a, b wire.Identity) int { return strings.Compare(a.Scheme+a.User, b.Scheme+b.User) })
		return fmt.Sprintf(" %v", r.Identities)
	case *wire.SyncRecord:
		if r.Null {
			return " null"
		}
		return " " + r.Path
	case *wire.SASLRecord:
		return data(r.Token)
	case *wire.Empty:
		return ""
	}
	t.Fatalf("no rendering of %T", rec)
	return ""
}

// superPassword is the super user's of the tests: super:pw.
func superDigest() string {
	h := sha1.Sum([]byte("super:pw"))
	return "super:" + base64.StdEncoding.EncodeToString(h[:])
}

// peerOrMember returns the address of the server that the steps are put to, and whether it is ZooKeeper 3.8.
func peerOrMember(t *testing.T) (addr string, old bool) {
	if addr := os.Getenv("KVD_ZOOKEEPER"); addr != "" {
		return addr, true
	}
	_, addr = startSingle(t, func(c *Config) { c.ExtendedTypes, c.SuperDigest = true, superDigest() })
	return addr, false
}

func talk(t testing.TB, addr string) *talker {
	t.Helper()
	k := &talker{raw: dialRaw(t, addr)}
	k.session()
	return k
}

func (k *talker) run(t *testing.T, old bool, steps []step) {
	t.Helper()
	for i, s := range steps {
		want := s.want
		if old && s.old != "" {
			want = s.old
		}
		got := k.do(s.op, s.rec)
		if old && !strings.HasPrefix(s.op.String(), "setWatches") { // its events have no zxid
			got = strings.ReplaceAll(got, " -1;", ";")
		}
		if got != want {
			t.Errorf("step %d, %v %+v:\n got %s\nwant %s", i, s.op, s.rec, got, want)
		}
		if strings.HasSuffix(want, "closed") {
			return
		}
	}
}

// Short forms of records.
func rPath(p string) *wire.PathRequest       { return &wire.PathRequest{Path: p} }
func rWatch(p string) *wire.PathWatchRequest { return &wire.PathWatchRequest{Path: p, Watch: true} }
func rRead(p string) *wire.PathWatchRequest  { return &wire.PathWatchRequest{Path: p} }
func rCreate(p, d string, flags int32) *wire.CreateRequest {
	return &wire.CreateRequest{Path: p, Data: []byte(d), ACL: openACL, Flags: flags}
}
func rDelete(p string) *wire.PathVersionRequest {
	return &wire.PathVersionRequest{Path: p, Version: -1}
}
func rKind(p string, k int32) *wire.PathKindRequest { return &wire.PathKindRequest{Path: p, Kind: k} }
func rSet(p, d string) *wire.SetDataRequest {
	return &wire.SetDataRequest{Path: p, Data: []byte(d), Version: -1}
}
func rNull() []byte { return wire.AppendInt32(nil, -1) }

func TestEveryOperation(t *testing.T) {
	addr, old := peerOrMember(t)
	k := talk(t, addr)
	k.run(t, old, []step{
		{op: wire.OpCreate, rec: rCreate("/o", "d", 0), want: "OK /o"},
		{op: wire.OpCreate2, rec: rCreate("/o/a", "abc", 0), want: "OK /o/a v0,0,0 len=3 kids=0"},
		{op: wire.OpCreateContainer, rec: rCreate("/o/c", "", 4), want: "OK /o/c v0,0,0 len=0 kids=0"},
		{op: wire.OpCreateTTL, rec: &wire.CreateTTLRequest{CreateRequest: *rCreate("/o/t", "", 5), TTL: 100000}, want: "OK /o/t v0,0,0 len=0 kids=0"},
		{op: wire.OpCreateTTL, rec: &wire.CreateTTLRequest{CreateRequest: *rCreate("/o/s-", "", 6), TTL: 100000}, want: "OK /o/s-0000000003 v0,0,0 len=0 kids=0"},
		{op: wire.OpCreate2, rec: rCreate("/o/e", "", 1), want: "OK /o/e v0,0,0 len=0 kids=0 ephemeral"},
		{op: wire.OpCreate, rec: &wire.CreateRequest{Path: "/o/n", ACL: openACL}, want: "OK /o/n"},
		{op: wire.OpCreate, rec: rCreate("/o/x", "", 7), want: "-8"},
		{op: wire.OpCreate, rec: rCreate("/o/x", "", 5), want: "-8"},
		{op: wire.OpCreate, rec: &wire.CreateRequest{Path: "/o/x"}, want: "-114"},
		{op: wire.OpGetData, rec: rRead("/o/n"), want: "OK null v0,0,0 len=0 kids=0"},
		{op: wire.OpGetData, rec: rRead("/o/c"), want: `OK "" v0,0,0 len=0 kids=0`},
		{op: wire.OpGetData, rec: rRead("/o/a"), want: `OK "abc" v0,0,0 len=3 kids=0`},
		{op: wire.OpGetData, rec: rRead(""), want: `OK "" v0,0,0 len=0 kids=2`},
		{op: wire.OpGetData, rec: rRead("abc"), want: "-101"},
		{op: wire.OpGetData, rec: rNull(), want: "-5"},
		{op: wire.OpExists, rec: rRead("/o"), want: "OK v0,6,0 len=1 kids=6"},
		{op: wire.OpExists, rec: rRead("/none"), want: "-101"},
		{op: wire.OpExists, rec: rRead("/a\x00"), want: "-8"},
		{op: wire.OpExists, rec: rNull(), want: "-5"},
		{op: wire.OpGetChildren, rec: rRead("/o"), want: "OK [a c e n s-0000000003 t]"},
		{op: wire.OpGetChildren2, rec: rRead("/o"), want: "OK [a c e n s-0000000003 t] v0,6,0 len=1 kids=6"},
		{op: wire.OpGetChildren, rec: rRead("/o/a"), want: "OK []"},
		{op: wire.OpGetChildren2, rec: rRead("/none"), want: "-101"},
		{op: wire.OpGetChildren, rec: rNull(), want: "-5"},
		{op: wire.OpSetData, rec: rSet("/o/a", "x"), want: "OK v1,0,0 len=1 kids=0"},
		{op: wire.OpSetData, rec: &wire.SetDataRequest{Path: "/o/a", Version: 5}, want: "-103"},
		{op: wire.OpSetData, rec: &wire.SetDataRequest{Path: "/o/a", Version: 1}, want: "OK v2,0,0 len=0 kids=0"},
		{op: wire.OpGetData, rec: rRead("/o/a"), want: "OK null v2,0,0 len=0 kids=0"},
		{op: wire.OpGetACL, rec: rPath("/o/a"), want: "OK [{31 world anyone}] v2,0,0 len=0 kids=0"},
		{op: wire.OpGetACL, rec: rPath("/none"), want: "-101"},
		{op: wire.OpGetACL, rec: rNull(), want: "-5"},
		{op: wire.OpSetACL, rec: &wire.SetACLRequest{Path: "/o/a", ACL: []kv.ACL{{Perms: 31, Scheme: "world", ID: "anyone"}, {Perms: 1, Scheme: "ip", ID: "127.0.0.1"}}, Version: 0}, want: "OK v2,0,1 len=0 kids=0"},
		{op: wire.OpSetACL, rec: &wire.SetACLRequest{Path: "/o/a", ACL: openACL, Version: 0}, want: "-103"},
		{op: wire.OpSetACL, rec: &wire.SetACLRequest{Path: "/none", ACL: nil, Version: 0}, want: "-114"},
		{op: wire.OpGetACL, rec: rPath("/o/a"), want: "OK [{31 world anyone} {1 ip 127.0.0.1}] v2,0,1 len=0 kids=0"},
		{op: wire.OpGetAllChildrenNumber, rec: rPath("/o"), want: "OK 6"},
		{op: wire.OpGetAllChildrenNumber, rec: rPath("/none"), want: "-101"},
		{op: wire.OpGetEphemerals, rec: rNull(), want: "OK [/o/e]"},
		{op: wire.OpGetEphemerals, rec: &wire.SyncRecord{Path: " "}, want: "OK [/o/e]"},
		{op: wire.OpGetEphemerals, rec: &wire.SyncRecord{Path: "/"}, want: "OK [/o/e]"},
		{op: wire.OpGetEphemerals, rec: &wire.SyncRecord{Path: "/o/"}, want: "OK [/o/e]"},
		{op: wire.OpGetEphemerals, rec: &wire.SyncRecord{Path: "/p"}, want: "OK []"},
		{op: wire.OpSync, rec: &wire.SyncRecord{Path: "any thing"}, want: "OK any thing"},
		{op: wire.OpSync, rec: rNull(), want: "OK null"},
		{op: wire.OpWhoAmI, want: "OK [{ip 127.0.0.1}]"},
		{op: wire.OpPing, want: "OK"},
		{op: wire.OpDelete, rec: rDelete("/o"), want: "-111"},
		{op: wire.OpDelete, rec: &wire.PathVersionRequest{Path: "/o", Version: 3}, want: "-103"},
		{op: wire.OpDelete, rec: rDelete("/o/n"), want: "OK"},
		{op: wire.OpDelete, rec: rDelete("/"), want: "-8"},
		{op: wire.OpReconfig, rec: &wire.ReconfigRequest{ConfigID: -1}, want: "-123"},
		{op: wire.OpReconfig, rec: []byte{1}, want: "-5"},
		{op: wire.OpMulti, rec: wire.AppendMultiEnd(nil), want: "OK []"},
		{op: wire.OpMultiRead, rec: wire.AppendMultiEnd(nil), want: "OK []"},
		{op: wire.OpSASL, rec: &wire.SASLRecord{Token: []byte{}}, want: "OK zxid=0 null"},
		{op: wire.OpSASL, rec: &wire.SASLRecord{Token: []byte("t")}, want: "OK zxid=0 null"},
		{op: wire.OpCloseSession, want: "OK"},
	})
	if _, err := k.fr.Next(); err == nil {
		t.Error("the connection is open after closeSession")
	}
}

func TestMultiFraming(t *testing.T) {
	addr, old := peerOrMember(t)
	k := talk(t, addr)
	multi := func(add ...any) (b []byte) {
		for i := 0; i < len(add); i += 2 {
			b = wire.AppendMultiOp(b, add[i].(wire.Op), add[i+1].(wire.Record))
		}
		return wire.AppendMultiEnd(b)
	}
	k.run(t, old, []step{
		{op: wire.OpMulti, rec: multi(
			wire.OpCreate, rCreate("/m", "1", 0), wire.OpCreate2, rCreate("/m/a", "2", 0),
			wire.OpCreateContainer, rCreate("/m/c", "", 4), wire.OpCreateTTL, &wire.CreateTTLRequest{CreateRequest: *rCreate("/m/t", "", 5), TTL: 99999},
			wire.OpSetData, rSet("/m/a", "3"), wire.OpCheck, &wire.PathVersionRequest{Path: "/m/a", Version: 1}, wire.OpDelete, rDelete("/m/c"),
		), want: "OK [1 /m v0 | 15 /m/a v0 | 15 /m/c v0 | 15 /m/t v0 | 5  v1 | 13  v0 | 2  v0]",
			old: "OK [1 /m v0 | 1 /m/a v0 | 15 /m/c v0 | 15 /m/t v0 | 5  v1 | 13  v0 | 2  v0]"},
		{op: wire.OpMulti, rec: multi(wire.OpSetData, rSet("/m", "x"), wire.OpDelete, rDelete("/none"), wire.OpSetData, rSet("/m", "y"), wire.OpCheck, rDelete("/m")),
			want: "OK [0 | -101 | -2 | -2]"},
		{op: wire.OpGetData, rec: rRead("/m"), want: `OK "1" v0,4,0 len=1 kids=2`},
		{op: wire.OpMulti, rec: multi(wire.OpSetACL, &wire.SetACLRequest{Path: "/m", ACL: openACL}), want: "-5"},
		{op: wire.OpMulti, rec: multi(wire.OpGetData, rRead("/m")), want: "-5"},
		{op: wire.OpMulti, rec: multi(wire.OpCreate, rCreate("/m/7", "", 7)), want: "-5", old: "OK [-8]"},
		{op: wire.OpMulti, rec: multi(wire.OpCreate, rCreate("/m/5", "", 5)), want: "-5"},
		{op: wire.OpMulti, rec: multi(wire.OpCreate, rCreate("/m/4", "", 4), wire.OpCreateContainer, rCreate("/m/0", "", 0), wire.OpDelete, rDelete("/m/4"), wire.OpDelete, rDelete("/m/0")),
			want: "OK [15 /m/4 v0 | 1 /m/0 v0 | 2  v0 | 2  v0]"},
		{op: wire.OpMulti, rec: multi(wire.OpCreateTTL, &wire.CreateTTLRequest{CreateRequest: *rCreate("/m/6", "", 0), TTL: -1}, wire.OpDelete, rDelete("/m/6")),
			want: "OK [1 /m/6 v0 | 2  v0]"},
		{op: wire.OpMulti, rec: wire.AppendMultiOp(nil, wire.OpDelete, rDelete("/m/a")), want: "-5"},
		{op: wire.OpMultiRead, rec: multi(wire.OpGetData, rRead("/m"), wire.OpGetChildren, rRead("/m"), wire.OpGetData, rRead("/none"), wire.OpGetData, rRead("/m/a")),
			want: `OK [4 "1" | 8 [a t] | -101 | 4 "3"]`},
		{op: wire.OpMultiRead, rec: multi(wire.OpGetData, rRead("/m"), wire.OpExists, rRead("/m")), want: "-5"},
		{op: wire.OpMultiRead, rec: multi(wire.OpDelete, rDelete("/m")), want: "-5 ffffffff01ffffffff"},
		{op: wire.OpMultiRead, rec: []byte{0}, want: "-5"},
		{op: wire.OpExists, rec: rRead("/m"), want: "OK v0,10,0 len=1 kids=2"},
		{op: wire.OpMulti, rec: multi(wire.OpDelete, rDelete("/m/a"), wire.OpDelete, rDelete("/m/t"), wire.OpDelete, rDelete("/m")), want: "OK [2  v0 | 2  v0 | 2  v0]"},
	})
}

func TestAuthentication(t *testing.T) {
	addr, old := peerOrMember(t)
	auth := func(scheme, data string) *wire.AuthRequest {
		return &wire.AuthRequest{Scheme: scheme, Auth: []byte(data)}
	}
	digest := []kv.ACL{{Perms: 31, Scheme: "digest", ID: "u:Jq7wMyA/w2Vd5WIDAKdu4OIIFEQ="}}
	nobody := []kv.ACL{{Perms: 0, Scheme: "world", ID: "anyone"}}

	k := talk(t, addr)
	k.run(t, old, []step{
		{op: wire.OpCreate, rec: &wire.CreateRequest{Path: "/auth", ACL: []kv.ACL{{Perms: 31, Scheme: "auth"}}}, want: "-114"},
		{op: wire.OpAuth, rec: auth("digest", "u:p"), want: "OK zxid=0"},
		{op: wire.OpAuth, rec: auth("digest", "nocolon"), want: "OK zxid=0"},
		{op: wire.OpAuth, rec: auth("digest", ""), want: "OK zxid=0"},
		{op: wire.OpAuth, rec: auth("digest", "u:q"), want: "OK zxid=0"},
		{op: wire.OpAuth, rec: auth("digest", "u:p"), want: "OK zxid=0"},
		{op: wire.OpAuth, rec: auth("ip", "1.2.3.4"), want: "OK zxid=0"},
		{op: wire.OpWhoAmI, want: "OK [{digest } {digest nocolon} {digest u} {digest u} {ip 127.0.0.1}]"},
		{op: wire.OpCreate, rec: &wire.CreateRequest{Path: "/auth", ACL: digest}, want: "OK /auth"},
		{op: wire.OpCreate, rec: &wire.CreateRequest{Path: "/auth/none", ACL: nobody}, want: "OK /auth/none"},
		{op: wire.OpGetACL, rec: rPath("/auth"), want: "OK [{31 digest u:Jq7wMyA/w2Vd5WIDAKdu4OIIFEQ=}] v0,1,0 len=0 kids=1"},
		{op: wire.OpGetChildren, rec: rRead("/auth"), want: "OK [none]"},
	})
	other := talk(t, addr)
	other.run(t, old, []step{
		{op: wire.OpGetData, rec: rWatch("/auth"), want: "-102"},
		{op: wire.OpGetChildren, rec: rWatch("/auth"), want: "-102"},
		{op: wire.OpGetChildren2, rec: rWatch("/auth"), want: "-102"},
		{op: wire.OpGetAllChildrenNumber, rec: rPath("/auth"), want: "-102"},
		{op: wire.OpGetACL, rec: rPath("/auth"), want: "-102"},
		{op: wire.OpExists, rec: rRead("/auth"), want: "-102", old: "OK v0,1,0 len=0 kids=1"},
		{op: wire.OpSetData, rec: rSet("/auth", ""), want: "-102"},
		{op: wire.OpCreate, rec: rCreate("/auth/x", "", 0), want: "-102"},
		{op: wire.OpDelete, rec: rDelete("/auth/none"), want: "-102"},
		{op: wire.OpDelete, rec: rDelete("/auth/missing"), want: "-102"},
		{op: wire.OpSetACL, rec: &wire.SetACLRequest{Path: "/auth", ACL: openACL, Version: -1}, want: "-102"},
		{op: wire.OpMultiRead, rec: wire.AppendMultiRead(nil, []wire.ReadOp{{Op: wire.OpGetData, PathWatchRequest: *rRead("/auth")}, {Op: wire.OpGetChildren, PathWatchRequest: *rRead("/zookeeper")}}),
			want: "OK [-102 | 8 [config quota]]"},
		{op: wire.OpCheckWatches, rec: rKind("/auth", 3), want: "-121"},
		{op: wire.OpAuth, rec: auth("digest", "super:pw"), want: "OK zxid=0"},
		{op: wire.OpWhoAmI, want: "OK [{digest super} {ip 127.0.0.1} {super }]"},
		{op: wire.OpGetData, rec: rRead("/auth/none"), want: "OK null v0,0,0 len=0 kids=0"},
		{op: wire.OpSetACL, rec: &wire.SetACLRequest{Path: "/auth/none", ACL: digest, Version: -1}, want: "OK v0,0,1 len=0 kids=0"},
		{op: wire.OpDelete, rec: rDelete("/auth/none"), want: "OK"},
		{op: wire.OpDelete, rec: rDelete("/auth"), want: "OK"},
	})
	for _, q := range []*wire.AuthRequest{auth("world", "anyone"), auth("auth", ""), auth("super", "super:pw"), auth("", ""), auth("x509", "x"), auth("sasl", "x"), auth("Digest", "u:p"), {Scheme: "digest"}} {
		talk(t, addr).run(t, old, []step{{op: wire.OpAuth, rec: q, want: "-115 zxid=0"}})
	}
	closing := talk(t, addr)
	if got := closing.do(wire.OpAuth, auth("nosuch", "")); got != "-115 zxid=0" {
		t.Errorf("unknown scheme: %s", got)
	}
	if _, err := closing.fr.Next(); err == nil {
		t.Error("the connection is open after a refused auth packet")
	}
	talk(t, addr).run(t, old, []step{{op: wire.OpAuth, rec: []byte{1}, want: "closed"}})
	talk(t, addr).run(t, old, []step{{op: wire.OpAuth, rec: wire.AppendInt32(wire.AppendInt32(nil, 0), -1), want: "closed"}})
	talk(t, addr).run(t, old, []step{{op: wire.OpSASL, rec: &wire.SASLRecord{}, want: "closed"}})
	talk(t, addr).run(t, old, []step{{op: wire.OpSASL, rec: []byte{0}, want: "closed"}})
}

func TestWatchOperations(t *testing.T) {
	addr, old := peerOrMember(t)
	w, k := talk(t, addr), talk(t, addr)
	k.run(t, old, []step{
		{op: wire.OpCreate, rec: rCreate("/w", "", 0), want: "OK /w"},
		{op: wire.OpCreate, rec: rCreate("/w/a", "", 0), want: "OK /w/a"},
	})
	w.run(t, old, []step{
		{op: wire.OpAddWatch, rec: rKind("/w", 2), want: "-5"},
		{op: wire.OpAddWatch, rec: rKind("/w", -1), want: "-5"},
		{op: wire.OpAddWatch, rec: []byte{0}, want: "-5"},
		{op: wire.OpAddWatch, rec: append(rNull(), 0, 0, 0, 0), want: "-5", old: "OK 0"},
		{op: wire.OpAddWatch, rec: append(rNull(), 0, 0, 0, 1), want: "-5"},
		{op: wire.OpCheckWatches, rec: append(rNull(), 0, 0, 0, 3), want: "-5"},
		{op: wire.OpRemoveWatches, rec: append(rNull(), 0, 0, 0, 3), want: "-5"},
		{op: wire.OpGetAllChildrenNumber, rec: rNull(), want: "-5"},
		{op: wire.OpSetWatches, rec: append(wire.AppendInt64(nil, 0), 0, 0, 0, 1, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0), want: "-5"},
		{op: wire.OpCheckWatches, rec: rKind("/w", 3), want: "-121"},
		{op: wire.OpCheckWatches, rec: rKind("/w", 0), want: "-5"},
		{op: wire.OpCheckWatches, rec: rKind("/w", 6), want: "-5"},
		{op: wire.OpRemoveWatches, rec: rKind("/w", 9), want: "-5"},
		{op: wire.OpRemoveWatches, rec: rKind("/w", 1), want: "-121"},
		{op: wire.OpGetChildren, rec: rWatch("/w"), want: "OK [a]"},
		{op: wire.OpCheckWatches, rec: rKind("/w", 1), want: "OK"},
		{op: wire.OpCheckWatches, rec: rKind("/w", 2), want: "-121"},
		{op: wire.OpRemoveWatches, rec: rKind("/w", 1), want: "OK"},
		{op: wire.OpRemoveWatches, rec: rKind("/w", 1), want: "-121"},
		{op: wire.OpExists, rec: rWatch("/w/new"), want: "-101"},
		{op: wire.OpCheckWatches, rec: rKind("/w/new", 2), want: "OK"},
		{op: wire.OpGetData, rec: rWatch("/w/none"), want: "-101"},
		{op: wire.OpCheckWatches, rec: rKind("/w/none", 3), want: "-121"},
		{op: wire.OpRemoveWatches, rec: rKind("/w/new", 3), want: "OK"},
		// All modes on one path.
		{op: wire.OpAddWatch, rec: rKind("/w", 0), want: "OK 0"},
		{op: wire.OpCheckWatches, rec: rKind("/w", 4), want: "OK", old: "-5"},
		{op: wire.OpCheckWatches, rec: rKind("/w", 5), want: "-121", old: "-5"},
		{op: wire.OpCheckWatches, rec: rKind("/w", 2), want: "-121", old: "OK"},
		{op: wire.OpCheckWatches, rec: rKind("/w", 3), want: "OK"},
		{op: wire.OpCreate, rec: rCreate("/w/b", "", 0), want: "NodeChildrenChanged /w; OK /w/b"},
		{op: wire.OpSetData, rec: rSet("/w", "1"), want: "NodeDataChanged /w; OK v1,2,0 len=1 kids=2"},
		{op: wire.OpSetData, rec: rSet("/w", "2"), want: "NodeDataChanged /w; OK v2,2,0 len=1 kids=2"},
		{op: wire.OpSetData, rec: rSet("/w/b", "2"), want: "OK v1,0,0 len=1 kids=0"},
		{op: wire.OpRemoveWatches, rec: rKind("/w", 3), want: "OK"},
		{op: wire.OpAddWatch, rec: rKind("/w", 1), want: "OK 0"},
		{op: wire.OpSetData, rec: rSet("/w/b", "3"), want: "NodeDataChanged /w/b; OK v2,0,0 len=1 kids=0"},
		{op: wire.OpCreate, rec: rCreate("/w/b/c", "", 0), want: "NodeCreated /w/b/c; OK /w/b/c"},
		{op: wire.OpDelete, rec: rDelete("/w/b/c"), want: "NodeDeleted /w/b/c; OK"},
		{op: wire.OpDelete, rec: rDelete("/w/b"), want: "NodeDeleted /w/b; OK"},
		{op: wire.OpRemoveWatches, rec: rKind("/w", 5), want: "OK", old: "-5"},
		{op: wire.OpRemoveWatches, rec: rKind("/w", 3), want: "-121", old: "OK"},
		// Own ephemerals before the answer to the end of the session.
		{op: wire.OpCreate, rec: rCreate("/w/e", "", 1), want: "OK /w/e"},
		{op: wire.OpExists, rec: rWatch("/w/e"), want: "OK v0,0,0 len=0 kids=0 ephemeral"},
		{op: wire.OpGetChildren, rec: rWatch("/w"), want: "OK [a e]"},
		{op: wire.OpCloseSession, want: "NodeDeleted /w/e; NodeChildrenChanged /w; OK"},
	})
	// What a client sends that comes back.
	h, _ := func() (wire.ReplyHeader, []byte) {
		k.xid++
		k.send(request(k.xid, wire.OpExists, record(rRead("/"))))
		return k.reply()
	}()
	k.run(t, old, []step{
		{op: wire.OpSetData, rec: rSet("/w/a", "new"), want: "OK v1,0,0 len=3 kids=0"},
		{op: wire.OpCreate, rec: rCreate("/w/d", "", 0), want: "OK /w/d"},
	})
	sw := wire.SetWatchesRequest{
		Relative: h.Zxid,
		Data:     []string{"/gone", "/w/a", "/w"}, Exist: []string{"/w/d", "/w/later"}, Child: []string{"/gone2", "/w", "/w/a"},
	}
	w = talk(t, addr)
	const told = "NodeDeleted /gone -1; NodeDataChanged /w/a -1; NodeCreated /w/d -1; NodeDeleted /gone2 -1; NodeChildrenChanged /w -1; OK"
	w.run(t, old, []step{
		{op: wire.OpSetWatches, rec: &sw, want: told},
		{op: wire.OpCheckWatches, rec: rKind("/w", 2), want: "OK"},
		{op: wire.OpCheckWatches, rec: rKind("/w", 1), want: "-121"},
		{op: wire.OpCheckWatches, rec: rKind("/w/a", 1), want: "OK"},
		{op: wire.OpCheckWatches, rec: rKind("/w/a", 2), want: "-121"},
		{op: wire.OpCheckWatches, rec: rKind("/w/later", 2), want: "OK"},
		{op: wire.OpCreate, rec: rCreate("/w/later", "", 0), want: "NodeCreated /w/later; OK /w/later"},
		{op: wire.OpSetWatches2, rec: &wire.SetWatches2Request{SetWatchesRequest: sw, Persistent: []string{"/w/a"}, Recursive: []string{"/w/d", "/"}}, want: strings.Replace(told, "/w/d -1", "/w/d -1; NodeCreated /w/later -1", 1)},
		{op: wire.OpCreate, rec: rCreate("/w/d/x", "", 0), want: "NodeCreated /w/d/x; OK /w/d/x"},
		{op: wire.OpSetWatches, rec: wire.AppendInt32(wire.AppendInt64(nil, 0), -1), want: "-5"},
		{op: wire.OpSetWatches, rec: []byte{1, 2}, want: "-5"},
		{op: wire.OpSetWatches2, rec: &sw, want: "-5"},
		{op: wire.OpDelete, rec: rDelete("/w/d/x"), want: "NodeDeleted /w/d/x; OK"},
		{op: wire.OpDelete, rec: rDelete("/w/d"), want: "NodeDeleted /w/d; OK"},
	})
	_ = w.nc.Close()
	for _, p := range []string{"/w/later", "/w/a", "/w"} {
		k.run(t, old, []step{{op: wire.OpDelete, rec: rDelete(p), want: "OK"}})
	}
}

// aclBytes encodes a list whose strings may be null ("-").
func aclBytes(entries ...string) []byte {
	b := wire.AppendInt32(nil, int32(len(entries)/2))
	text := func(s string) {
		if s == "-" {
			b = append(b, rNull()...)
		} else {
			b = wire.AppendString(b, s)
		}
	}
	for i := 0; i < len(entries); i += 2 {
		b = wire.AppendInt32(b, 31)
		text(entries[i])
		text(entries[i+1])
	}
	return b
}

// Null strings are refused where ZooKeeper's checks come to them.
func TestNullsInRequests(t *testing.T) {
	addr, old := peerOrMember(t)
	k := talk(t, addr)
	open := aclBytes("world", "anyone")
	join := func(parts ...[]byte) []byte { return slices.Concat(parts...) }
	num := func(n int32) []byte { return wire.AppendInt32(nil, n) }
	str := func(s string) []byte { return wire.AppendString(nil, s) }
	one := func(op wire.Op, rec []byte) []byte {
		return wire.AppendMultiEnd(append((&wire.MultiHeader{Op: op, Err: -1}).AppendTo(nil), rec...))
	}
	k.run(t, old, []step{
		{op: wire.OpSetData, rec: join(rNull(), rNull(), num(-1)), want: "-8"},
		{op: wire.OpSetACL, rec: join(rNull(), open, num(-1)), want: "-8"},
		{op: wire.OpDelete, rec: join(rNull(), num(-1)), want: "-5"},
		{op: wire.OpCreate, rec: join(rNull(), rNull(), open, num(0)), want: "-5"},
		{op: wire.OpCreate2, rec: join(rNull(), rNull(), open, num(100)), want: "-8"},
		{op: wire.OpCreateTTL, rec: join(rNull(), rNull(), open, num(4), wire.AppendInt64(nil, 99)), want: "-8"},
		{op: wire.OpCreateTTL, rec: join(rNull(), rNull(), open, num(5), wire.AppendInt64(nil, 99)), want: "-5"},
		{op: wire.OpCreate, rec: join(str("/nu"), rNull(), aclBytes("-", "anyone"), num(0)), want: "-114"},
		{op: wire.OpCreate, rec: join(str("/nu"), rNull(), aclBytes("-", "-"), num(0)), want: "-114"},
		{op: wire.OpCreate, rec: join(str("/nu"), rNull(), aclBytes("world", "-"), num(0)), want: "-5"},
		{op: wire.OpCreate, rec: join(str("/nu"), rNull(), aclBytes("digest", "-"), num(0)), want: "-5"},
		{op: wire.OpCreate, rec: join(str("/nu"), rNull(), aclBytes("ip", "-"), num(0)), want: "-5"},
		{op: wire.OpCreate, rec: join(str("/nu"), rNull(), aclBytes("nosuch", "-"), num(0)), want: "-114"},
		{op: wire.OpCreate, rec: join(str("/nu"), rNull(), aclBytes("nosuch", "x", "world", "-"), num(0)), want: "-114"},
		{op: wire.OpCreate, rec: join(str("/nu"), rNull(), aclBytes("world", "anyone", "world", "-"), num(0)), want: "-5"},
		{op: wire.OpCreate, rec: join(str("/nu"), rNull(), aclBytes("auth", "-"), num(0)), want: "-114"},
		{op: wire.OpCreate, rec: join(str("/nu"), rNull(), aclBytes("world", "-"), num(100)), want: "-8"},
		{op: wire.OpSetACL, rec: join(str("/none"), aclBytes("world", "-"), num(-1)), want: "-5"},
		{op: wire.OpSetACL, rec: join(str("/none"), rNull(), num(-1)), want: "-114"},
		{op: wire.OpMulti, rec: one(wire.OpCreate, join(str("/nu"), rNull(), aclBytes("-", "anyone"), num(0))), want: "OK [-114]"},
		{op: wire.OpMultiRead, rec: wire.AppendMultiEnd(wire.AppendMultiOp(wire.AppendMultiOp(nil, wire.OpDelete, rDelete("/m")), wire.OpGetData, rRead("/"))), want: "-5"},
		{op: wire.OpMultiRead, rec: wire.AppendMultiEnd(wire.AppendMultiOp(wire.AppendMultiOp(nil, wire.OpDelete, rDelete("/m")), wire.OpSetData, rSet("/", ""))), want: "-5 ffffffff01ffffffff"},
		{op: wire.OpSetWatches, rec: &wire.SetWatchesRequest{Relative: -1, Data: []string{"/zookeeper/config"}, Exist: []string{}, Child: []string{"/zookeeper"}},
			want: "NodeDataChanged /zookeeper/config -1; NodeChildrenChanged /zookeeper -1; OK"},
		{op: wire.OpAuth, rec: &wire.AuthRequest{Scheme: "digest", Auth: []byte("u:p")}, want: "OK zxid=0"},
		{op: wire.OpCreate, rec: join(str("/nu"), rNull(), aclBytes("auth", "-"), num(0)), want: "OK /nu"},
		{op: wire.OpDelete, rec: rDelete("/nu"), want: "OK"},
	})
	if old {
		return // an ensemble of 3.8 hangs after these
	}
	k.run(t, old, []step{
		{op: wire.OpMulti, rec: one(wire.OpDelete, join(rNull(), num(-1))), want: "-5"},
		{op: wire.OpMulti, rec: one(wire.OpSetData, join(rNull(), rNull(), num(-1))), want: "-5"},
		{op: wire.OpMulti, rec: one(wire.OpCreate, join(str("/nu"), rNull(), aclBytes("world", "-"), num(0))), want: "-5"},
	})
}
