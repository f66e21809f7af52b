package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kvd/kv"
	"kvd/kv/client"
	"kvd/kv/client/clienttest"
	"kvd/kv/wire"
)

// TestMain fails if a client or server left a goroutine behind.
func TestMain(m *testing.M) {
	if os.Getenv(asEcho) != "" {
		echo()
		return
	}
	before := runtime.NumGoroutine()
	code := m.Run()
	if code == 0 {
		deadline := time.Now().Add(time.Minute)
		for runtime.NumGoroutine() > before && time.Now().Before(deadline) {
			runtime.Gosched()
		}
		if n := runtime.NumGoroutine(); n > before {
			buf := make([]byte, 1<<20)
			fmt.Fprintf(os.Stderr, "%d goroutines before, %d after:\n%s\n", before, n, buf[:runtime.Stack(buf, true)])
			code = 1
		}
	}
	os.Exit(code)
}

func context10(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func startServer(t testing.TB) (*clienttest.Server, string) {
	t.Helper()
	s := clienttest.NewServer()
	t.Cleanup(s.Close)
	addr, err := s.Listen()
	if err != nil {
		t.Fatal(err)
	}
	return s, addr
}

func dial(t testing.TB, servers string, opts ...client.Option) *client.Client {
	t.Helper()
	c, err := client.Dial(context10(t), servers, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// The server of clienttest passes the suite that the real ones pass.
func TestConformance(t *testing.T) {
	_, addr := startServer(t)
	clienttest.Conformance(t, addr)
}

func TestErrorsNameTheCall(t *testing.T) {
	s, addr := startServer(t)
	c, ctx := dial(t, addr), context10(t)
	_, _, err := c.Get(ctx, "/none")
	var e *client.Error
	if !errors.Is(err, kv.ErrNoNode) || !errors.As(err, &e) || e.Op != wire.OpGetData || e.Path != "/none" || err.Error() != `getData "/none": no such node` {
		t.Errorf("%v", err)
	}
	for _, p := range []string{"", "a"} {
		before := s.Requests(wire.OpGetData)
		if _, _, err := c.Get(ctx, p); !errors.Is(err, kv.ErrBadArguments) || s.Requests(wire.OpGetData) != before {
			t.Errorf("path %q: %v", p, err)
		}
	}
	if _, err := c.Set(ctx, "/none", make([]byte, 1<<20), -1); !errors.Is(err, client.ErrTooLarge) {
		t.Errorf("a megabyte: %v", err)
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := c.Set(done, "/none", nil, -1); !errors.Is(err, client.ErrUnavailable) || !errors.Is(err, context.Canceled) || errors.Is(err, client.ErrUnknownOutcome) {
		t.Errorf("ended context: %v", err)
	}
}

// hookOnce applies an action to the first request of an operation.
func hookOnce(op wire.Op, a clienttest.Action) clienttest.Hook {
	used := false
	return func(h wire.RequestHeader, _ []byte) clienttest.Action {
		if h.Op != op || used {
			return clienttest.Answer
		}
		used = true
		return a
	}
}

// What a broken connection means for a call: reads are repeated, writes that were sent are not.
func TestBrokenConnections(t *testing.T) {
	for _, c := range []struct {
		name         string
		op           wire.Op
		action       clienttest.Action
		want         error // nil: the call succeeds in the end
		sent         int
		wantVersions int32 // of the node afterwards
	}{
		{"read, cut before the reply", wire.OpGetData, clienttest.Drop, nil, 2, 0},
		{"read, cut after it was done", wire.OpGetData, clienttest.DropAfter, nil, 2, 0},
		{"read, answered out of order", wire.OpGetData, clienttest.WrongXid, nil, 2, 0},
		{"read, reply is garbage", wire.OpGetData, clienttest.Garble, client.ErrUnavailable, 1, 0},
		{"write, cut before it was done", wire.OpSetData, clienttest.Drop, client.ErrUnknownOutcome, 1, 0},
		{"write, cut after it was done", wire.OpSetData, clienttest.DropAfter, client.ErrUnknownOutcome, 1, 1},
		{"write, answered out of order", wire.OpSetData, clienttest.WrongXid, client.ErrUnknownOutcome, 1, 1},
		{"write, reply is garbage", wire.OpSetData, clienttest.Garble, client.ErrUnknownOutcome, 1, 1},
		{"write, refused by a reply", wire.OpSetData, clienttest.OtherError, kv.ErrUnimplemented, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, addr := startServer(t)
			cl, ctx := dial(t, addr), context10(t)
			if _, _, err := cl.Create(ctx, "/a", []byte("x"), 0); err != nil {
				t.Fatal(err)
			}
			session := cl.Session()
			s.SetHook(hookOnce(c.op, c.action))
			var err error
			if c.op == wire.OpSetData {
				_, err = cl.Set(ctx, "/a", []byte("y"), -1)
			} else {
				_, _, err = cl.Get(ctx, "/a")
			}
			if !errors.Is(err, c.want) {
				t.Fatalf("error %v, want %v", err, c.want)
			}
			if n := s.Requests(c.op); n != c.sent {
				t.Errorf("sent %d times, want %d", n, c.sent)
			}
			stat, err := cl.Exists(ctx, "/a")
			if err != nil || stat.Version != c.wantVersions {
				t.Errorf("afterwards: version %d, %v", stat.Version, err)
			}
			if cl.Session() != session {
				t.Error("the session was not resumed")
			}
		})
	}
}

// Calls submitted while there is no server wait for one, in order.
func TestUnsentCallsWait(t *testing.T) {
	s, addr := startServer(t)
	states := make(chan client.SessionEvent, 16)
	c, ctx := dial(t, addr, client.WithStateFunc(func(ev client.SessionEvent) { states <- ev })), context10(t)
	if ev := <-states; ev.State != client.StateConnected || ev.Session != c.Session() || ev.Server != addr {
		t.Fatalf("%+v", ev)
	}
	if _, _, err := c.Create(ctx, "/a", nil, 0); err != nil {
		t.Fatal(err)
	}
	s.Refuse(true)
	s.CutAll()
	if ev := <-states; ev.State != client.StateDisconnected || ev.Err == nil {
		t.Fatalf("%+v", ev)
	}
	var wg sync.WaitGroup
	var versions []int32
	for range 20 {
		wg.Add(1)
		call := &client.Call{Op: wire.OpSetData, Path: "/a", Version: wire.AnyVersion}
		call.Done = func(call *client.Call) {
			if call.Err != nil {
				t.Error(call.Err)
			}
			versions = append(versions, call.Stat.Version)
			wg.Done()
		}
		if err := c.Do(call); err != nil {
			t.Fatal(err)
		}
	}
	fast := &client.Call{Op: wire.OpGetData, Path: "/a", FailFast: true, Done: func(*client.Call) { t.Error("done") }}
	if err := c.Do(fast); !errors.Is(err, client.ErrUnavailable) {
		t.Errorf("a call that must not wait: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	if _, err := c.Set(short, "/a", []byte("never"), -1); !errors.Is(err, client.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, client.ErrUnknownOutcome) {
		t.Errorf("a write that was never sent: %v", err)
	}
	s.Refuse(false)
	wg.Wait()
	for i, v := range versions {
		if v != int32(i+1) {
			t.Fatalf("versions %v", versions)
		}
	}
	if ev := <-states; ev.State != client.StateConnected {
		t.Errorf("%+v", ev)
	}
	if data, stat, err := c.Get(ctx, "/a"); err != nil || stat.Version != 20 || string(data) == "never" {
		t.Errorf("%q %+v %v", data, stat, err)
	}
}

func TestContextEndsACall(t *testing.T) {
	s, addr := startServer(t)
	c, ctx := dial(t, addr), context10(t)
	s.SetHook(func(h wire.RequestHeader, _ []byte) clienttest.Action {
		if h.Op == wire.OpCloseSession {
			return clienttest.Answer
		}
		return clienttest.Swallow
	})
	short, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	if _, err := c.Set(short, "/a", nil, -1); !errors.Is(err, client.ErrUnknownOutcome) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("write: %v", err)
	}
	if _, err := c.Exists(short, "/a"); !errors.Is(err, client.ErrUnavailable) || errors.Is(err, client.ErrUnknownOutcome) {
		t.Errorf("read: %v", err)
	}
}

func TestSessionExpires(t *testing.T) {
	s, addr := startServer(t)
	var last atomic.Int32
	c, ctx := dial(t, addr, client.WithStateFunc(func(ev client.SessionEvent) { last.Store(int32(ev.State)) })), context10(t)
	other := dial(t, addr)
	if _, _, err := c.Create(ctx, "/e", nil, kv.FlagEphemeral); err != nil {
		t.Fatal(err)
	}
	s.Expire(c.Session())
	<-c.Done()
	if !errors.Is(c.Err(), client.ErrSessionExpired) || client.State(last.Load()) != client.StateExpired {
		t.Errorf("%v, state %d", c.Err(), last.Load())
	}
	if _, err := c.Exists(ctx, "/e"); !errors.Is(err, client.ErrSessionExpired) {
		t.Error(err)
	}
	if _, err := other.Exists(ctx, "/e"); !errors.Is(err, kv.ErrNoNode) {
		t.Error(err)
	}
}

func TestCloseAndCut(t *testing.T) {
	s, addr := startServer(t)
	ctx := context10(t)
	c := dial(t, addr)
	if _, _, err := c.Create(ctx, "/e", nil, kv.FlagEphemeral); err != nil {
		t.Fatal(err)
	}
	c.Close()
	c.Close()
	if !errors.Is(c.Err(), client.ErrClosed) || len(s.Sessions()) != 0 {
		t.Errorf("%v, sessions %v", c.Err(), s.Sessions())
	}
	if _, err := c.Exists(ctx, "/e"); !errors.Is(err, client.ErrClosed) {
		t.Error(err)
	}
	c = dial(t, addr)
	id := c.Session()
	c.Cut()
	if !slices.Equal(s.Sessions(), []kv.SessionID{id}) {
		t.Errorf("sessions after a cut: %v", s.Sessions())
	}
	// A server that is gone does not hold Close up, nor do its waiting calls.
	c = dial(t, addr)
	s.Refuse(true)
	s.CutAll()
	failed := make(chan error, 1)
	for c.Server() != "" {
		runtime.Gosched()
	}
	if err := c.Do(&client.Call{Op: wire.OpDelete, Path: "/x", Done: func(call *client.Call) { failed <- call.Err }}); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if err := <-failed; !errors.Is(err, client.ErrClosed) {
		t.Error(err)
	}
	s.Refuse(false)
}

func TestWatches(t *testing.T) {
	s, addr := startServer(t)
	if _, _, err := dial(t, addr).Create(context10(t), "/base", nil, 0); err != nil {
		t.Fatal(err)
	}
	c, other, ctx := dial(t, addr+"/base"), dial(t, addr+"/base"), context10(t)
	_, created, err := c.ExistsWatch(ctx, "/a")
	if !errors.Is(err, kv.ErrNoNode) || created == nil {
		t.Fatal(err)
	}
	if _, _, w, err := c.GetWatch(ctx, "/a"); !errors.Is(err, kv.ErrNoNode) || w != nil {
		t.Fatal("a failed get leaves a watch", err)
	}
	expect := func(ch <-chan client.Event, typ client.EventType, path string) {
		t.Helper()
		select {
		case ev := <-ch:
			if ev.Type != typ || ev.Path != path {
				t.Errorf("event %v %q, want %v %q", ev.Type, ev.Path, typ, path)
			}
			if (ev.Zxid == 0) != (typ == client.EventLost) {
				t.Errorf("event %v with zxid %v", ev.Type, ev.Zxid)
			}
			if _, more := <-ch; more {
				t.Error("a second event")
			}
		case <-ctx.Done():
			t.Fatalf("no event %v", typ)
		}
	}
	_, stat, err := other.Create(ctx, "/a", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	expect(created, client.EventCreated, "/a")
	_, got, changed, err := c.GetWatch(ctx, "/a")
	if err != nil || got != stat {
		t.Fatal(err)
	}
	_, _, again, _ := c.GetWatch(ctx, "/a")
	_, _, children, _ := c.ChildrenWatch(ctx, "/")
	if _, err := other.Set(ctx, "/a", nil, -1); err != nil {
		t.Fatal(err)
	}
	expect(changed, client.EventDataChanged, "/a")
	expect(again, client.EventDataChanged, "/a")
	_, deleted, _ := c.ExistsWatch(ctx, "/a")
	_, _, childless, _ := c.ChildrenWatch(ctx, "/a")
	if err := other.Delete(ctx, "/a", -1); err != nil {
		t.Fatal(err)
	}
	expect(deleted, client.EventDeleted, "/a")
	expect(childless, client.EventDeleted, "/a")
	expect(children, client.EventChildrenChanged, "/")
	_, _, lost, _ := c.ChildrenWatch(ctx, "/")
	s.CutAll() // the next connection has it again
	if _, err := c.Exists(ctx, "/"); err != nil {
		t.Fatal(err)
	}
	if len(lost) > 0 {
		t.Errorf("a cut ends a watch: %+v", <-lost)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	expect(lost, client.EventLost, "/")
}

// With virtual time: an idle session is kept by pings, a silent server is left.
func TestPingsAndSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := clienttest.NewServer()
		defer s.Close()
		var dials atomic.Int32
		pipe := func(context.Context, string) (io.ReadWriteCloser, error) {
			dials.Add(1)
			return s.Pipe(), nil
		}
		c, err := client.Dial(t.Context(), "in-memory", client.WithDialer(pipe), client.WithSessionTimeout(6*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		time.Sleep(time.Minute)
		if n := s.Requests(wire.OpPing); n < 30 || n > 61 || dials.Load() != 1 {
			t.Errorf("%d pings in a minute, %d connections", n, dials.Load())
		}
		// From here on the first connection hears nothing any more, not even answers to pings.
		s.SetHook(func(wire.RequestHeader, []byte) clienttest.Action {
			if dials.Load() < 2 {
				return clienttest.Swallow
			}
			return clienttest.Answer
		})
		begin := time.Now()
		if _, err := c.Exists(t.Context(), "/"); err != nil {
			t.Error(err)
		}
		if dials.Load() < 2 {
			t.Error("a silent server was not left")
		}
		// Noticed after two thirds of the time-out, looked for every sixth of it.
		if d := time.Since(begin); d < 3*time.Second || d > 6*time.Second {
			t.Errorf("the read took %v", d)
		}
	})
}

// A server that takes the connection and does not answer the handshake costs the connect time-out, no more.
func TestHandshakeTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := clienttest.NewServer()
		defer s.Close()
		var black []io.Closer
		dialer := func(_ context.Context, addr string) (io.ReadWriteCloser, error) {
			if strings.HasPrefix(addr, "good") {
				return s.Pipe(), nil
			}
			a, b := io.Pipe()
			_, w := io.Pipe()
			black = append(black, b, w)
			return struct {
				io.Reader
				io.Writer
				io.Closer
			}{a, io.Discard, a}, nil
		}
		begin := time.Now()
		c, err := client.Dial(t.Context(), "black1,black2,good", client.WithDialer(dialer), client.WithConnectTimeout(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d > 2*time.Second {
			t.Errorf("dialling took %v", d)
		}
		c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err = client.Dial(ctx, "black1,black2", client.WithDialer(dialer), client.WithConnectTimeout(time.Second))
		var de *client.DialError
		if !errors.Is(err, client.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &de) || len(de.Servers) != 2 {
			t.Errorf("%v", err)
		}
	})
}

func TestDialError(t *testing.T) {
	s, addr := startServer(t)
	s.Refuse(true)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := client.Dial(ctx, addr+",127.0.0.1:1")
	if !errors.Is(err, client.ErrUnavailable) || !strings.Contains(err.Error(), addr+": closed without an answer") || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("%v", err)
	}
}

func TestLimits(t *testing.T) {
	s, addr := startServer(t)
	c, ctx := dial(t, addr, client.WithLimits(4, 1000), client.WithMaxFrame(900, 2000)), context10(t)
	s.SetHook(func(h wire.RequestHeader, _ []byte) clienttest.Action {
		if h.Op == wire.OpExists {
			return clienttest.Swallow
		}
		return clienttest.Answer
	})
	for i := range 5 {
		err := c.Do(&client.Call{Op: wire.OpExists, Path: "/", Done: func(*client.Call) {}})
		if (err != nil) != (i == 4) || err != nil && (!errors.Is(err, client.ErrBusy) || !errors.Is(err, client.ErrUnavailable)) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	big := &client.Call{Op: wire.OpSetData, Path: "/", Data: make([]byte, 900), Done: func(*client.Call) {}}
	if err := c.Do(big); !errors.Is(err, client.ErrTooLarge) {
		t.Error(err)
	}

	c = dial(t, addr, client.WithMaxFrame(900, 2000))
	for i := range 100 {
		if _, _, err := c.Create(ctx, fmt.Sprintf("/node-with-a-long-name-%d", i), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := c.Children(ctx, "/"); !errors.Is(err, client.ErrTooLarge) {
		t.Errorf("a reply beyond the limit: %v", err)
	}
	if _, _, err := c.Get(ctx, "/"); err != nil {
		t.Errorf("the session after it: %v", err)
	}
}

// Many goroutines, connections cut all the time: what was acknowledged is there, nothing is there twice.
func TestCutsUnderLoad(t *testing.T) {
	s, addr := startServer(t)
	c, ctx := dial(t, addr, client.WithBackoff(time.Millisecond, 5*time.Millisecond)), context10(t)
	for i := range 8 {
		if _, _, err := c.Create(ctx, fmt.Sprintf("/n%d", i), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	var ok, unknown [8]int32
	var wg, cutter sync.WaitGroup
	stop := make(chan struct{})
	cutter.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(i%5) * time.Millisecond):
				s.CutAll()
			}
		}
	})
	for i := range 8 {
		wg.Go(func() {
			for range 400 {
				_, err := c.Set(ctx, fmt.Sprintf("/n%d", i), []byte("x"), -1)
				switch {
				case err == nil:
					ok[i]++
				case errors.Is(err, client.ErrUnknownOutcome):
					unknown[i]++
				default:
					t.Error(err)
					return
				}
				if _, _, err := c.Get(ctx, fmt.Sprintf("/n%d", i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	cutter.Wait()
	var unknowns int32
	for i := range 8 {
		stat, err := c.Exists(ctx, fmt.Sprintf("/n%d", i))
		if err != nil || stat.Version < ok[i] || stat.Version > ok[i]+unknown[i] {
			t.Errorf("node %d: version %d with %d ok and %d unknown, %v", i, stat.Version, ok[i], unknown[i], err)
		}
		unknowns += unknown[i]
	}
	if unknowns == 0 {
		t.Log("no write was cut; the test saw only whole connections")
	}
}

// Callers that give up at any moment leave the queues in order.
func TestAbandonedCalls(t *testing.T) {
	_, addr := startServer(t)
	c, ctx := dial(t, addr), context10(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 300 {
				short, cancel := context.WithTimeout(ctx, time.Duration((i*j)%7)*20*time.Microsecond)
				_, _, err := c.Get(short, "/")
				if err != nil && !errors.Is(err, client.ErrUnavailable) {
					t.Error(err)
				}
				cancel()
				if _, err := c.Exists(ctx, "/zookeeper"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestParseServers(t *testing.T) {
	for _, c := range []struct {
		in     string
		addrs  []string
		chroot string
		bad    bool
	}{
		{in: "h1:1", addrs: []string{"h1:1"}},
		{in: "h1,h2:5", addrs: []string{"h1:2181", "h2:5"}},
		{in: " h1:1 , h2:2 ,", addrs: []string{"h1:1", "h2:2"}},
		{in: "[::1]:5,[::2],::3/app", addrs: []string{"[::1]:5", "[::2]:2181", "[::3]:2181"}, chroot: "/app"},
		{in: "h:1/", addrs: []string{"h:1"}},
		{in: "h:1/a/b", addrs: []string{"h:1"}, chroot: "/a/b"},
		{in: "h:1/a/", bad: true},
		{in: "h:1/a//b", bad: true},
		{in: "", bad: true},
		{in: ",", bad: true},
		{in: "/app", bad: true},
		{in: "a:b:c", bad: true},
		{in: ":2181", bad: true},
	} {
		addrs, chroot, err := client.ParseServers(c.in)
		if (err != nil) != c.bad || !slices.Equal(addrs, c.addrs) || chroot != c.chroot {
			t.Errorf("%q: %v %q %v", c.in, addrs, chroot, err)
		}
	}
}
