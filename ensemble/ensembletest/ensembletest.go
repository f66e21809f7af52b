// Package ensembletest gives tests a running ensemble: real members with real logs on the loopback interface, in
// the test's own process, ready in well under a second.
//
//	e := ensembletest.Start(t, 3)
//	c := e.Client(t, 0)          // in process, of the first member
//	c2, err := client.Dial(ctx, e.Servers())
//
// Everything ends with the test. Members can be closed and restarted one by one.
package ensembletest

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kvd/ensemble"
	"kvd/kv/client"
)

// startLimit bounds how long an ensemble may take to serve before its test fails.
const startLimit = 30 * time.Second

// Ensemble is a running ensemble of a test. Its methods are for the test's goroutine.
type Ensemble struct {
	// Members by index; the member's id is index+1. Nil while closed.
	Members []*ensemble.Member
	Peers   []ensemble.Peer
	dirs    []string
	options []func(*ensemble.Config)
}

// Start starts n members and waits until all of them serve clients. options change each member's configuration.
func Start(t testing.TB, n int, options ...func(*ensemble.Config)) *Ensemble {
	t.Helper()
	e := &Ensemble{Members: make([]*ensemble.Member, n), options: options}
	listeners := make([]ensemble.Listeners, n)
	for i := range n {
		dir := filepath.Join(t.TempDir(), "member")
		e.dirs = append(e.dirs, dir)
		l := ensemble.Listeners{Learner: listen(t), Election: listen(t), Client: []net.Listener{listen(t)}}
		listeners[i] = l
		e.Peers = append(e.Peers, ensemble.Peer{
			ID: ensemble.MemberID(i + 1), Host: "127.0.0.1",
			LearnerPort: port(l.Learner), ElectionPort: port(l.Election), ClientAddr: l.Client[0].Addr().String(),
		})
	}
	t.Cleanup(func() {
		for _, m := range e.Members {
			if m != nil {
				_ = m.Close()
			}
		}
	})
	for i := range n {
		e.start(t, i, listeners[i])
	}
	for i := range n {
		e.WaitServing(t, i)
	}
	return e
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("ensembletest: %v", err)
	}
	return l
}

func port(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

// Config is the configuration of the member of an index, for a test that runs it by itself after CloseMember.
func (e *Ensemble) Config(t testing.TB, i int) ensemble.Config {
	cfg := ensemble.Config{
		ID: e.Peers[i].ID, DataDir: e.dirs[i], Members: e.Peers,
		BallastBytes: -1, // temporary directories are small now and then
		Logger:       slog.New(slog.NewTextHandler(logWriter{t}, nil)),
	}
	for _, o := range e.options {
		o(&cfg)
	}
	return cfg
}

func (e *Ensemble) start(t testing.TB, i int, l ensemble.Listeners) {
	t.Helper()
	cfg := e.Config(t, i)
	cfg.Listeners = l
	m, err := ensemble.Start(context.Background(), cfg)
	if err != nil {
		t.Fatalf("ensembletest: %v", err)
	}
	e.Members[i] = m
}

// CloseMember closes the member of an index as a crash of its process would, except that the disk stays in order.
func (e *Ensemble) CloseMember(t testing.TB, i int) {
	t.Helper()
	if err := e.Members[i].Close(); err != nil {
		t.Errorf("ensembletest: member %d: %v", i+1, err)
	}
	e.Members[i] = nil
}

// RestartMember starts a closed member again on its directory and addresses.
func (e *Ensemble) RestartMember(t testing.TB, i int) {
	t.Helper()
	e.start(t, i, ensemble.Listeners{})
}

// WaitServing waits until the member of an index answers clients.
func (e *Ensemble) WaitServing(t testing.TB, i int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	if err := e.Members[i].WaitServing(ctx); err != nil {
		t.Fatalf("ensembletest: member %d does not serve: %v", i+1, err)
	}
}

// Leader waits until a running member leads and serves, and returns its index.
func (e *Ensemble) Leader(t testing.TB) int {
	t.Helper()
	for deadline := time.Now().Add(startLimit); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		for i, m := range e.Members {
			if m == nil {
				continue
			}
			if s := m.Status(); s.Serving && s.Leader == s.ID {
				return i
			}
		}
	}
	t.Fatal("ensembletest: no leader")
	return -1
}

// Servers lists the client addresses of all members, as client.Dial takes them.
func (e *Ensemble) Servers() string {
	var addrs []string
	for _, p := range e.Peers {
		addrs = append(addrs, p.ClientAddr)
	}
	return strings.Join(addrs, ",")
}

// Client returns an in-process client of the member of an index, closed with the test.
func (e *Ensemble) Client(t testing.TB, i int, opts ...client.Option) *client.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	c, err := e.Members[i].Client(ctx, opts...)
	if err != nil {
		t.Fatalf("ensembletest: client of member %d: %v", i+1, err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// logWriter writes a member's log to the test's.
type logWriter struct{ t testing.TB }

func (w logWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}
