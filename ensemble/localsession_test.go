package ensemble

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

func localOnly(c *Config)      { c.LocalSessions = true }
func localUpgrading(c *Config) { c.LocalSessions, c.LocalSessionsUpgrading = true, true }

// connectRequest asks for a new session of 10 s.
func connectRequest() wire.ConnectRequest {
	return wire.ConnectRequest{TimeoutMs: 10_000, Password: make([]byte, 16), HasReadOnly: true}
}

// resumeRequest asks for s again.
func resumeRequest(s wire.ConnectResponse) wire.ConnectRequest {
	return wire.ConnectRequest{TimeoutMs: s.TimeoutMs, Session: s.Session, Password: s.Password[:], HasReadOnly: true}
}

func askExists(r *raw, xid int32, path string) (wire.ReplyHeader, []byte) {
	r.t.Helper()
	r.send(request(xid, wire.OpExists, record(&wire.PathWatchRequest{Path: path})))
	return r.reply()
}

// A local session costs no transaction, neither its beginning nor its end; it writes like any other.
func TestLocalSessionCostsNoTransaction(t *testing.T) {
	m, addr := startSingle(t, localOnly)
	before := m.Status().Applied
	r := dialRaw(t, addr)
	s := r.session()
	if byte(uint64(s.Session)>>56) != 1 {
		t.Errorf("session %v of member 1", s.Session)
	}
	if _, body := askExists(r, 1, "/"); len(body) == 0 {
		t.Error("no answer to a read")
	}
	if got := m.Status(); got.Applied != before || got.Sessions != 0 || m.port.local.count() != 1 {
		t.Errorf("zxid %v after %v, %d global and %d local sessions", got.Applied, before, got.Sessions, m.port.local.count())
	}
	r.send(createRequest(2, "/a", kv.FlagPersistent))
	h, _ := r.wantReply(2, kv.CodeOK)
	if kv.Zxid(h.Zxid).Counter() != 1 {
		t.Errorf("the first write is %v", kv.Zxid(h.Zxid))
	}
	// The end follows the writes before it.
	r.send(append(createRequest(3, "/b", kv.FlagPersistent), request(4, wire.OpCloseSession, nil)...))
	r.wantReply(3, kv.CodeOK)
	end, _ := r.wantReply(4, kv.CodeOK)
	r.wantClosed()
	if end.Zxid != h.Zxid+1 || m.port.local.count() != 0 {
		t.Errorf("closed at %v, the write before was %v; %d sessions are left", kv.Zxid(end.Zxid), kv.Zxid(h.Zxid+1), m.port.local.count())
	}
	again := dialRaw(t, addr)
	if got := again.connect(resumeRequest(s)); got.Session != 0 || got.TimeoutMs != 0 {
		t.Errorf("a closed local session is resumed: %+v", got)
	}
	again.wantClosed()
}

// It is resumed where it was made and nowhere else; who does not know the password changes nothing.
func TestLocalSessionBelongsToItsMember(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tr := startTrio(t, localOnly)
	leader := tr.serving(ctx, 0, 1, 2)
	a, b := (leader+1)%3, (leader+2)%3
	first := dialRaw(t, tr.peers[a].ClientAddr)
	s := first.session()

	bad := dialRaw(t, tr.peers[a].ClientAddr)
	wrong := resumeRequest(s)
	wrong.Password = make([]byte, 16)
	if got := bad.connect(wrong); got.Session != 0 {
		t.Fatal("wrong password accepted")
	}
	bad.wantClosed()
	for _, at := range []int{b, leader} {
		other := dialRaw(t, tr.peers[at].ClientAddr)
		if got := other.connect(resumeRequest(s)); got.Session != 0 || got.TimeoutMs != 0 {
			t.Errorf("member %d resumes a local session of member %d: %+v", at+1, a+1, got)
		}
		other.wantClosed()
	}
	first.send(createRequest(1, "/still", kv.FlagPersistent))
	first.wantReply(1, kv.CodeOK)

	second := dialRaw(t, tr.peers[a].ClientAddr)
	q := resumeRequest(s)
	q.TimeoutMs = 7000
	if got := second.connect(q); got.Session != s.Session || got.TimeoutMs != 7000 || got.Password != s.Password {
		t.Fatalf("resumed as %+v", got)
	}
	first.wantClosed()
	second.send(createRequest(1, "/again", kv.FlagPersistent))
	second.wantReply(1, kv.CodeOK)
	if n := tr.members[leader].Status().Sessions; n != 0 {
		t.Errorf("%d global sessions", n)
	}
}

// Without the option to upgrade, a local session gets no ephemeral node, alone or in a multi.
func TestLocalSessionWithoutUpgradeHasNoEphemerals(t *testing.T) {
	m, addr := startSingle(t, localOnly)
	r := dialRaw(t, addr)
	r.session()
	for xid, flags := range map[int32]int32{1: kv.FlagEphemeral, 2: kv.FlagEphemeralSequential} {
		r.send(createRequest(xid, "/e", flags))
		r.wantReply(xid, kv.CodeEphemeralOnLocalSession)
	}
	r.send(request(3, wire.OpMulti, ephemeralMulti("/m", "/e")))
	_, body := r.wantReply(3, kv.CodeOK)
	res, err := wire.DecodeMultiResults(body, nil)
	if err != nil || len(res) != 2 || res[0].Err != kv.CodeOK || res[1].Err != kv.CodeEphemeralOnLocalSession {
		t.Errorf("multi: %+v %v", res, err)
	}
	if h, _ := askExists(r, 4, "/m"); h.Err != kv.CodeNoNode {
		t.Errorf("half a multi was carried out: %v", h.Err)
	}
	if n := m.Status().Sessions; n != 0 {
		t.Errorf("%d global sessions", n)
	}
}

// ephemeralMulti creates a persistent and an ephemeral node.
func ephemeralMulti(plain, ephemeral string) []byte {
	b := wire.AppendMultiOp(nil, wire.OpCreate, &wire.CreateRequest{Path: plain, ACL: openACL})
	b = wire.AppendMultiOp(b, wire.OpCreate, &wire.CreateRequest{Path: ephemeral, ACL: openACL, Flags: kv.FlagEphemeral})
	return wire.AppendMultiEnd(b)
}

// The first ephemeral node makes a session global, with the id and the password it has: in order, in the middle of a
// pipeline, on a follower too. From then on it lives by the leader, moves, and is closed by a transaction.
func TestFirstEphemeralMakesALocalSessionGlobal(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tr := startTrio(t, localUpgrading)
	leader := tr.serving(ctx, 0, 1, 2)
	for name, at := range map[string]int{"leader": leader, "follower": (leader + 1) % 3} {
		other := (leader + 2) % 3
		first := []byte(nil)
		switch name {
		case "leader":
			first = createRequest(2, "/e-"+name, kv.FlagEphemeral)
		default:
			first = request(2, wire.OpMulti, ephemeralMulti("/m-"+name, "/e-"+name))
		}
		r := dialRaw(t, tr.peers[at].ClientAddr)
		s := r.session()
		b := append(createRequest(1, "/p-"+name, kv.FlagPersistent), first...)
		b = append(b, request(3, wire.OpExists, record(&wire.PathWatchRequest{Path: "/e-" + name}))...)
		b = append(b, createRequest(4, "/f-"+name, kv.FlagEphemeral)...)
		r.send(b)
		r.wantReply(1, kv.CodeOK)
		r.wantReply(2, kv.CodeOK)
		_, body := r.wantReply(3, kv.CodeOK)
		h, _ := r.wantReply(4, kv.CodeOK)
		var st wire.StatResponse
		if err := wire.Decode(body, &st); err != nil || st.Stat.EphemeralOwner != s.Session {
			t.Fatalf("%s: owner %v, session %v (%v)", name, st.Stat.EphemeralOwner, s.Session, err)
		}
		if n := tr.members[at].port.local.count(); n != 0 {
			t.Errorf("%s: %d sessions are still local", name, n)
		}
		moved := tr.resumeAt(ctx, other, s, kv.Zxid(h.Zxid))
		if h, _ := askExists(moved, 5, "/e-"+name); h.Err != kv.CodeOK {
			t.Errorf("%s: the ephemeral after the move: %v", name, h.Err)
		}
		moved.send(request(6, wire.OpCloseSession, nil))
		moved.wantReply(6, kv.CodeOK)
		moved.wantClosed()
		if s := tr.members[other].Status(); s.Sessions != 0 {
			t.Errorf("%s: %d sessions after the end", name, s.Sessions)
		}
	}
}

// resumeAt resumes a session at a member, as soon as that has seen what the client has.
func (tr *trio) resumeAt(ctx context.Context, at int, s wire.ConnectResponse, seen kv.Zxid) *raw {
	tr.t.Helper()
	q := resumeRequest(s)
	q.LastZxidSeen = int64(seen)
	for {
		r := dialRaw(tr.t, tr.peers[at].ClientAddr)
		r.send(frame(record(&q)))
		if b, err := r.fr.Next(); err == nil {
			var got wire.ConnectResponse
			if err := wire.Decode(b, &got); err != nil || got.Session != s.Session || got.Password != s.Password {
				tr.t.Fatalf("resumed as %+v (%v), session %v", got, err, s.Session)
			}
			return r
		}
		if ctx.Err() != nil {
			tr.t.Fatal("the session is not resumed")
		}
	}
}

// A silent local session is over after its time-out, its socket is closed without a packet, and nothing is left.
func TestSilentLocalSessionExpires(t *testing.T) {
	m, addr := startSingle(t, func(c *Config) { shortSessions(c); c.LocalSessions = true })
	before := m.Status().Applied
	quiet, lively := dialRaw(t, addr), dialRaw(t, addr)
	q := connectRequest()
	q.TimeoutMs = 300
	s := quiet.connect(q)
	lively.connect(q)
	for m.port.local.count() == 2 {
		lively.send(request(wire.XidPing, wire.OpPing, nil))
		lively.wantReply(wire.XidPing, kv.CodeOK)
	}
	quiet.wantClosed()
	lively.send(request(wire.XidPing, wire.OpPing, nil))
	lively.wantReply(wire.XidPing, kv.CodeOK)
	again := dialRaw(t, addr)
	if got := again.connect(resumeRequest(s)); got.Session != 0 {
		t.Error("an expired local session is resumed")
	}
	if now := m.Status().Applied; now != before {
		t.Errorf("expiry wrote %v", now)
	}
}

// The table alone: what is being made global is not expired under the leader's eyes, and comes back if that failed.
func TestLocalSessionTable(t *testing.T) {
	l := newLocalSessions()
	pw := [16]byte{1}
	l.add(&localSession{id: 7, password: pw, timeoutMs: 1000}, 100)
	if _, k := l.resume(8, pw[:], 1000, 100); k != notHere {
		t.Errorf("unknown id: %d", k)
	}
	if _, k := l.resume(7, pw[:15], 5000, 100); k != wrongHere {
		t.Errorf("short password: %d", k)
	}
	if _, k := l.resume(7, nil, 5000, 100); k != wrongHere {
		t.Errorf("null password: %d", k)
	}
	if due := l.expire(100+20, portServing); len(due) != 0 {
		t.Error("a second has 20 ticks, and one more is its due")
	}
	s, k := l.resume(7, pw[:], 2000, 110)
	if k != knownHere || s.timeoutMs != 2000 {
		t.Fatalf("%d %+v", k, s)
	}
	if due := l.expire(110+40, portServing); len(due) != 0 {
		t.Error("expired before the time-out of its resume")
	}
	l.upgrade(s)
	if _, k := l.resume(7, pw[:], 2000, 120); k != doubtful {
		t.Errorf("upgrading: %d", k)
	}
	if !l.stillLocal(s, 1000, 200) {
		t.Error("gone")
	}
	if _, k := l.resume(7, pw[:], 1000, 200); k != knownHere {
		t.Errorf("after a lost upgrade: %d", k)
	}
	l.upgrade(s)
	if due := l.expire(10_000, portServing); len(due) != 0 || l.count() != 0 {
		t.Errorf("the leader ends what is being made global: due %v, left %d", due, l.count())
	}
	if l.stillLocal(s, 1000, 10_000) {
		t.Error("a forgotten session came back")
	}
	l.add(&localSession{id: 9, timeoutMs: 100, readOnly: true}, 0)
	l.add(&localSession{id: 10, timeoutMs: 100}, 0)
	l.restart(5000)
	if due := l.expire(6000, portReadOnly); len(due) != 1 || due[0] != 9 {
		t.Errorf("in read-only mode %v are due", due)
	}
	l.add(&localSession{id: 9, timeoutMs: 100, readOnly: true}, 0)
	if l.endReadOnly(); l.count() != 1 || len(l.expire(5002, portServing)) != 0 || len(l.expire(5003, portServing)) != 1 {
		t.Error("restart or the end of read-only mode")
	}
}

// Which writes make a session global.
func TestNeedsGlobal(t *testing.T) {
	create := func(flags int32) []byte {
		return record(&wire.CreateRequest{Path: "/a", ACL: openACL, Flags: flags})
	}
	for _, c := range []struct {
		name string
		op   wire.Op
		body []byte
		want bool
	}{
		{"create", wire.OpCreate, create(kv.FlagEphemeral), true},
		{"create2 sequential", wire.OpCreate2, create(kv.FlagEphemeralSequential), true},
		{"persistent", wire.OpCreate, create(kv.FlagPersistent), false},
		{"container flag", wire.OpCreate, create(kv.FlagContainer), false},
		{"container", wire.OpCreateContainer, create(kv.FlagEphemeral), false},
		{"ttl", wire.OpCreateTTL, binary.BigEndian.AppendUint64(create(kv.FlagEphemeral), 5), false},
		{"multi", wire.OpMulti, ephemeralMulti("/a", "/b"), true},
		{"empty multi", wire.OpMulti, wire.AppendMultiEnd(nil), false},
		{"cut", wire.OpCreate, create(kv.FlagEphemeral)[:9], false},
		{"cut multi", wire.OpMulti, ephemeralMulti("/a", "/b")[:80], false},
		{"setData", wire.OpSetData, create(kv.FlagEphemeral), false},
	} {
		if got := needsGlobal(c.op, c.body); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
