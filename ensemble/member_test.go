package ensemble

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"time"

	"kvd/kv/client"
)

// testLogger writes a member's log to the test's.
func testLogger(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.String("t", a.Value.Time().Format("05.000"))
		}
		return a
	}}))
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestSingleMemberServes(t *testing.T) {
	dir := t.TempDir()

	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	m, err := Start(ctx, Config{DataDir: dir, Logger: testLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.WaitServing(ctx); err != nil {
		t.Fatal(err)
	}
	c, err := m.Client(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	write(t, ctx, c, "/a")
	if err := m.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, ctx context.Context, c *client.Client, path string) {
	t.Helper()
	if _, _, err := c.Create(ctx, path, []byte("x"), 0); err != nil {
		t.Fatal(fmt.Errorf("create %s: %w", path, err))
	}
}

// trio is three members of one test.
type trio struct {
	t       testing.TB
	dirs    [3]string
	members [3]*Member
	peers   []Peer
	tune    func(*Config)
}

// startTrio starts three new members on ports from the kernel.
func startTrio(t testing.TB, tune func(*Config)) *trio {
	t.Helper()
	tr := &trio{t: t, tune: tune}
	for i := range tr.dirs {
		tr.dirs[i] = t.TempDir()

	}
	var ls [3]Listeners
	for i := range ls {
		ls[i] = Listeners{Learner: listen(t), Election: listen(t), Client: []net.Listener{listen(t)}}
		tr.peers = append(tr.peers, Peer{
			ID: MemberID(i + 1), Host: "127.0.0.1", LearnerPort: port(ls[i].Learner), ElectionPort: port(ls[i].Election),
			ClientAddr: ls[i].Client[0].Addr().String(),
		})
	}
	for i := range ls {
		tr.start(i, ls[i])
	}
	t.Cleanup(func() {
		for _, m := range tr.members {
			if m != nil {
				_ = m.Close()
			}
		}
	})
	return tr
}

func port(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

func (tr *trio) start(i int, ls Listeners) {
	tr.t.Helper()
	cfg := Config{ID: MemberID(i + 1), DataDir: tr.dirs[i], Members: tr.peers, Listeners: ls, Logger: testLogger(tr.t)}
	if tr.tune != nil {
		tr.tune(&cfg)
	}
	m, err := Start(tr.t.Context(), cfg)
	if err != nil {
		tr.t.Fatal(err)
	}
	tr.members[i] = m
}

// restart starts a closed member again on its own ports.
func (tr *trio) restart(i int) { tr.start(i, Listeners{}) }

// serving waits until the given members answer clients and returns the leader's index.
func (tr *trio) serving(ctx context.Context, members ...int) int {
	tr.t.Helper()
	for {
		leader, n := -1, 0
		for _, i := range members {
			s := tr.members[i].Status()
			if s.Serving {
				n++
			}
			if s.Serving && s.Leader == s.ID {
				leader = i
			}
		}
		if n == len(members) && leader >= 0 {
			return leader
		}
		select {
		case <-ctx.Done():
			for _, i := range members {
				tr.t.Logf("%+v", tr.members[i].Status())
			}
			tr.t.Fatal("not serving in time")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestThreeMembersElectWriteAndSurviveTheLeader(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tr := startTrio(t, nil)
	leader := tr.serving(ctx, 0, 1, 2)
	follower := (leader + 1) % 3
	c, err := tr.members[follower].Client(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i := range 100 {
		write(t, ctx, c, fmt.Sprintf("/n%d", i))
	}
	if err := tr.members[leader].Close(); err != nil {
		t.Fatal(err)
	}
	other := (leader + 2) % 3
	tr.serving(ctx, follower, other)
	if _, _, err := c.Create(ctx, "/after", nil, 0); err != nil {
		t.Fatalf("write through the survivor: %v", err)
	}
	tr.restart(leader)
	tr.serving(ctx, 0, 1, 2)
	if err := tr.agree(ctx); err != nil {
		t.Fatal(err)
	}
}

// agree waits until all members show the same zxid and digest.
func (tr *trio) agree(ctx context.Context) error {
	for {
		a, b, c := tr.members[0].Status(), tr.members[1].Status(), tr.members[2].Status()
		if a.Applied == b.Applied && b.Applied == c.Applied {
			if a.Digest != b.Digest || b.Digest != c.Digest {
				return fmt.Errorf("digests differ at %v: %x %x %x", a.Applied, a.Digest, b.Digest, c.Digest)
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("applied %v %v %v: %w", a.Applied, b.Applied, c.Applied, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}
