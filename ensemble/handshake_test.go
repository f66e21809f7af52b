package ensemble

import (
	"context"
	"fmt"
	"testing"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// What a member answers to a handshake, on a leader and on a follower alike (zookeeper-protocol 1.2, 1.3, 15).
func TestHandshakesOnEveryMember(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tr := startTrio(t, nil)
	leader := tr.serving(ctx, 0, 1, 2)
	for name, at := range map[string]int{"leader": leader, "follower": (leader + 1) % 3} {
		t.Run(name, func(t *testing.T) {
			addr := tr.peers[at].ClientAddr
			live := dialRaw(t, addr)
			s := live.session()
			over := dialRaw(t, addr)
			dead := over.session()
			over.send(request(1, wire.OpCloseSession, nil))
			over.wantReply(1, kv.CodeOK)
			over.wantClosed()

			t.Run("new", func(t *testing.T) {
				for what, q := range map[string]wire.ConnectRequest{
					"null password":        {TimeoutMs: 10_000},
					"empty password":       {TimeoutMs: 10_000, Password: []byte{}},
					"long password":        {TimeoutMs: 10_000, Password: make([]byte, 40)},
					"protocol version":     {TimeoutMs: 10_000, ProtocolVersion: 5, Password: make([]byte, 16)},
					"negative zxid seen":   {TimeoutMs: 10_000, LastZxidSeen: -1, Password: make([]byte, 16)},
					"read-only is allowed": {TimeoutMs: 10_000, Password: make([]byte, 16), HasReadOnly: true, ReadOnly: true},
				} {
					got := dialRaw(t, addr).connect(q)
					if got.Session == 0 || got.TimeoutMs != 10_000 || got.ReadOnly || got.HasReadOnly != q.HasReadOnly || got.ProtocolVersion != 0 {
						t.Errorf("%s: %+v", what, got)
					}
				}
				r := dialRaw(t, addr)
				r.send(frame(append(record(ptr(connectRequest())), 1, 2, 3))) // bytes after the record
				if n := len(r.next()); n != 37 {
					t.Errorf("answer of %d bytes", n)
				}
				for ask, want := range map[int32]int32{-1 << 31: 4000, 0: 4000, 3999: 4000, 4001: 4001, 1<<31 - 1: 40_000} {
					if got := dialRaw(t, addr).connect(wire.ConnectRequest{TimeoutMs: ask, Password: make([]byte, 16)}); got.TimeoutMs != want {
						t.Errorf("asked %d, got %d, want %d", ask, got.TimeoutMs, want)
					}
				}
			})
			t.Run("refused", func(t *testing.T) {
				resume := func(id kv.SessionID, password []byte) wire.ConnectRequest {
					return wire.ConnectRequest{TimeoutMs: 10_000, Session: id, Password: password, HasReadOnly: true}
				}
				for what, q := range map[string]wire.ConnectRequest{
					"null password":        resume(s.Session, nil),
					"empty password":       resume(s.Session, []byte{}),
					"short password":       resume(s.Session, s.Password[:15]),
					"long password":        resume(s.Session, append(s.Password[:], 0)),
					"zero password":        resume(s.Session, make([]byte, 16)),
					"closed session":       resume(dead.Session, dead.Password[:]),
					"unknown session":      resume(0x1234, s.Password[:]),
					"id of no session":     resume(-1<<63, s.Password[:]),
					"negative session":     resume(-5, s.Password[:]),
					"another's password":   resume(s.Session, dead.Password[:]),
					"its id, plus one bit": resume(s.Session^1<<40, s.Password[:]),
					// Of another history, as that of a program that ran on while kvd took ZooKeeper's place.
					"closed session, has seen more":  {TimeoutMs: 10_000, LastZxidSeen: 1 << 60, Session: dead.Session, Password: dead.Password[:], HasReadOnly: true},
					"unknown session, has seen more": {TimeoutMs: 10_000, LastZxidSeen: 1 << 60, Session: 0x1234, Password: s.Password[:], HasReadOnly: true},
				} {
					r := dialRaw(t, addr)
					if got := r.connect(q); got != (wire.ConnectResponse{HasReadOnly: true}) {
						t.Errorf("%s: %+v", what, got)
					}
					r.wantClosed()
				}
			})
			t.Run("not answered", func(t *testing.T) {
				ahead := int64(tr.members[at].Status().Applied) + 1<<20
				for what, q := range map[string]wire.ConnectRequest{
					"new, has seen more":                 {TimeoutMs: 10_000, LastZxidSeen: ahead, Password: make([]byte, 16)},
					"resume, has seen more":              {TimeoutMs: 10_000, LastZxidSeen: ahead, Session: s.Session, Password: s.Password[:]},
					"wrong password, has seen more":      {TimeoutMs: 10_000, LastZxidSeen: ahead, Session: s.Session, Password: make([]byte, 16)},
					"unknown, short, has seen more":      {TimeoutMs: 10_000, LastZxidSeen: ahead, Session: 0x1234, Password: make([]byte, 15)},
					"read-only, has seen more than this": {TimeoutMs: 10_000, LastZxidSeen: ahead, Password: make([]byte, 16), HasReadOnly: true, ReadOnly: true},
				} {
					r := dialRaw(t, addr)
					r.send(frame(record(&q)))
					if b, err := r.fr.Next(); err == nil {
						t.Errorf("%s: answered %x", what, b)
					}
				}
			})
			// None of it touched the living session or its connection.
			live.send(createRequest(1, "/alive-"+name, kv.FlagEphemeral))
			live.wantReply(1, kv.CodeOK)

			// Everything may stand behind the handshake of a resume, in one segment.
			second := dialRaw(t, addr)
			b := frame(record(ptr(resumeRequest(s))))
			b = append(b, request(1, wire.OpExists, record(&wire.PathWatchRequest{Path: "/alive-" + name}))...)
			b = append(b, createRequest(2, "/more-"+name, kv.FlagEphemeral)...)
			b = append(b, request(3, wire.OpCloseSession, nil)...)
			second.send(b)
			second.next()
			for xid := range int32(3) {
				second.wantReply(xid+1, kv.CodeOK)
			}
			second.wantClosed()
			live.wantClosed()
			if n := tr.members[at].tree.View().EphemeralCount(); n != 0 {
				t.Errorf("%d ephemerals", n)
			}
		})
	}
}

// Ids are unique over members and runs, also if the clock of a member goes back between two runs, and never look like
// the owner of a container or of a node with a time to live.
func TestSessionIDs(t *testing.T) {
	start := time.UnixMilli(1_800_000_000_000)
	seen := map[kv.SessionID]string{}
	tree := kv.NewTree(nil)
	prep := kv.NewPreparer(tree.View, kv.PreparerOptions{})
	zxid := kv.MakeZxid(1, 0)
	chain := kv.ChainSeed()
	for run, now := range []time.Time{start, start.Add(time.Minute), start, start.Add(-time.Hour), start.Add(time.Millisecond)} {
		for _, member := range []MemberID{1, 2, 128, 254, 255} {
			ids := newSessionIDs(member, now)
			ids.skip(tree.View())
			for range 10 {
				id := ids.new()
				if who, ok := seen[id]; ok {
					t.Fatalf("run %d of member %d hands out %v, as did %s", run, member, id, who)
				}
				seen[id] = fmt.Sprintf("run %d of member %d", run, member)
				if uint64(id)>>56 != uint64(member)%255 || kv.Owner(id).Ephemeral() != id || !ids.handedOut(id) || ids.handedOut(id+1) {
					t.Fatalf("id %v of member %d", id, member)
				}
				zxid++
				payload := prep.Prepare(nil, zxid, kv.TxnHeader{}, &kv.Request{Op: kv.OpCreateSession, Session: id, Timeout: 4000})
				chain = kv.ChainDigest(chain, zxid, payload)
				if err := tree.Apply([]kv.Entry{{Zxid: zxid, Payload: payload, Chain: chain}}, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if n := tree.View().SessionCount(); n != len(seen) {
		t.Errorf("%d sessions of %d ids", n, len(seen))
	}
}
