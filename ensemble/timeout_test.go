package ensemble

import (
	"context"
	"testing"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// A session that was resumed with a longer time-out keeps it when the leader dies, whether its client is connected and
// silent or away at that moment.
func TestLongerTimeoutSurvivesTheLeader(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tr := startTrio(t, func(c *Config) { shortSessions(c); c.MaxSessionTimeout = 30 * time.Second })
	leader := tr.serving(ctx, 0, 1, 2)
	at, other := (leader+1)%3, (leader+2)%3
	begin := func() (*raw, wire.ConnectResponse) {
		r := dialRaw(t, tr.peers[at].ClientAddr)
		q := connectRequest()
		q.TimeoutMs = 500
		s := r.connect(q)
		again := dialRaw(t, tr.peers[at].ClientAddr)
		longer := resumeRequest(s)
		longer.TimeoutMs = 30_000
		if got := again.connect(longer); got.Session != s.Session || got.TimeoutMs != 30_000 {
			t.Fatalf("resumed as %+v", got)
		}
		return again, s
	}
	silent, s1 := begin()
	away, s2 := begin()
	_ = away.nc.Close()
	eventually(t, "the connection is gone", func() bool { return tr.members[at].port.sessions.get(s2.Session) == nil })

	_ = tr.members[leader].Close()
	tr.members[leader] = nil
	tr.serving(ctx, at, other)
	clock := tr.members[at].port.clock
	for began := clock.now(); clock.now()-began < 3*timeoutTicks(500); {
		time.Sleep(20 * time.Millisecond) // nobody says anything
	}
	v := tr.members[at].tree.View()
	for what, s := range map[string]wire.ConnectResponse{"of the silent client": s1, "of the client that was away": s2} {
		if _, open := v.Session(s.Session); !open {
			t.Errorf("the session %s has expired", what)
		}
	}
	silent.send(createRequest(1, "/alive", kv.FlagEphemeral))
	silent.wantReply(1, kv.CodeOK)
	back := tr.resumeAt(ctx, other, s2, 0)
	back.send(createRequest(1, "/back", kv.FlagEphemeral))
	back.wantReply(1, kv.CodeOK)
	// Afterwards nothing is remembered.
	for _, r := range []*raw{silent, back} {
		r.send(request(2, wire.OpCloseSession, nil))
		r.wantReply(2, kv.CodeOK)
	}
}
