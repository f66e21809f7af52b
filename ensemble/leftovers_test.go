package ensemble

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// attached is the number of sessions that have a connection here.
func (t *sessionTable) attached() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.conns)
}

// nothingLeft waits until a member holds nothing of any session.
func nothingLeft(t *testing.T, m *Member) {
	t.Helper()
	eventually(t, fmt.Sprintf("member %d holds nothing of any session", m.ID()), func() bool {
		v := m.tree.View()
		st := m.status.Load()
		return m.tree.WatchCount() == 0 && v.EphemeralCount() == 0 && v.SessionCount() == 0 && m.port.connections() == 0 &&
			m.port.sessions.attached() == 0 && m.port.local.count() == 0 && m.intake.outstanding() == 0 &&
			st.Queued == 0 && st.Outstanding == 0 && st.Connections == 0 && st.Status.Role != 0 && st.Sessions == 0
	})
}

// Sessions come and go in every way there is, on all members: closed, cut and expired, moved, replaced by a newer
// connection, refused in the middle, without and with the death of the leader. When the last one is over nothing is
// left: no watch, no ephemeral, no session, no connection, nothing outstanding.
func TestNothingIsLeftOfSessions(t *testing.T) {
	for name, tune := range map[string]func(*Config){
		"global": func(*Config) {},
		"local":  func(c *Config) { c.LocalSessions, c.LocalSessionsUpgrading = true, true },
		"limits": func(c *Config) { c.ThrottleLimit, c.LargeRequestBytes = 8, 64 },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			tr := startTrio(t, func(c *Config) { shortSessions(c); tune(c) })
			leader := tr.serving(ctx, 0, 1, 2)
			rng := rand.New(rand.NewPCG(1, 2))
			for round := range 2 {
				lives := make([]*life, 40)
				for i := range lives {
					lives[i] = begin(t, tr, rng.IntN(3), fmt.Sprintf("/r%d-%d", round, i), i)
				}
				if round == 1 {
					_ = tr.members[leader].Close() // its clients come back to others, or never
					tr.members[leader] = nil
					tr.serving(ctx, (leader+1)%3, (leader+2)%3)
				}
				for i, l := range lives {
					l.end(ctx, tr, i%5)
				}
				for _, m := range tr.members {
					if m != nil {
						nothingLeft(t, m)
					}
				}
			}
		})
	}
}

// life is one session of the test, at home at a member.
type life struct {
	r    *raw
	s    wire.ConnectResponse
	at   int
	path string
	seen kv.Zxid
}

// begin opens a session, creates an ephemeral node, and sets watches of all kinds.
func begin(t *testing.T, tr *trio, at int, path string, n int) *life {
	t.Helper()
	l := &life{r: dialRaw(t, tr.peers[at].ClientAddr), at: at, path: path}
	q := connectRequest()
	q.TimeoutMs = 1000
	l.s = l.r.connect(q)
	if l.s.Session == 0 {
		t.Fatal("no session")
	}
	watch := func(op wire.Op, path string) []byte {
		return request(3, op, record(&wire.PathWatchRequest{Path: path, Watch: true}))
	}
	b := createRequest(1, path, kv.FlagEphemeral)
	b = append(b, watch(wire.OpExists, path+"/none")...)
	b = append(b, watch(wire.OpGetData, path)...)
	b = append(b, watch(wire.OpGetChildren, "/")...)
	b = append(b, request(3, wire.OpAddWatch, record(&wire.PathKindRequest{Path: path, Kind: int32(n % 2)}))...)
	l.r.send(b)
	for range 5 {
		for {
			h, _ := l.r.reply()
			if h.Xid != wire.XidEvent {
				l.seen = max(l.seen, kv.Zxid(h.Zxid))
				break
			}
		}
	}
	return l
}

// end ends a life in one of five ways. The member it lives at may be gone.
func (l *life) end(ctx context.Context, tr *trio, how int) {
	closed := request(9, wire.OpCloseSession, nil)
	elsewhere := (l.at + 1) % 3
	if tr.members[elsewhere] == nil {
		elsewhere = (l.at + 2) % 3
	}
	switch how {
	case 0: // closed in order, in the middle of a pipeline
		_, _ = l.r.nc.Write(append(request(8, wire.OpExists, record(&wire.PathWatchRequest{Path: l.path, Watch: true})), closed...))
	case 1: // cut, and it expires
		_ = l.r.nc.Close()
	case 2: // moved, and closed there; the old connection stays open
		if r := l.resume(ctx, tr, elsewhere); r != nil {
			_, _ = r.nc.Write(closed)
		}
	case 3: // a newer connection at the same member, which is cut with a request under way
		if tr.members[l.at] == nil {
			break
		}
		if r := l.resume(ctx, tr, l.at); r != nil {
			_, _ = r.nc.Write(createRequest(7, l.path+"-late", kv.FlagEphemeral))
			_ = r.nc.Close()
		}
	case 4: // what it sends ends the connection
		_, _ = l.r.nc.Write([]byte{0xff, 0xff, 0xff, 0xff})
	}
}

// resume tries to resume the session at a member; nil if it is over.
func (l *life) resume(ctx context.Context, tr *trio, at int) *raw {
	q := resumeRequest(l.s)
	q.LastZxidSeen = int64(l.seen)
	for ctx.Err() == nil {
		r := dialRaw(tr.t, tr.peers[at].ClientAddr)
		r.send(frame(record(&q)))
		b, err := r.fr.Next()
		if err != nil {
			continue // no answer yet
		}
		var got wire.ConnectResponse
		if err := wire.Decode(b, &got); err != nil || got.Session != 0 && got.Session != l.s.Session {
			tr.t.Fatalf("resumed as %+v %v", got, err)
		}
		if got.Session == 0 {
			return nil
		}
		return r
	}
	return nil
}
