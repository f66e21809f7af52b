package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// waitLimit only ends what hangs.
const waitLimit = 60 * time.Second

// failure is what a check panics with.
type failure string

func fail(format string, args ...any) {
	stack := strings.Split(string(debug.Stack()), "\n")
	where := ""
	for _, line := range stack { // the first line of a check itself
		if strings.Contains(line, ".go:") && !strings.Contains(line, "/stage.go:") && !strings.Contains(line, "/runtime/") {
			where = strings.Fields(line[strings.LastIndex(line, "/")+1:])[0]
			break
		}
	}
	panic(failure(where + ": " + fmt.Sprintf(format, args...)))
}

// caught runs f and returns the failure it ended with, if any.
func caught(f func()) (detail string) {
	defer func() {
		if r := recover(); r != nil {
			known, ok := r.(failure)
			if !ok {
				detail = fmt.Sprintf("%v\n%s", r, debug.Stack())
				return
			}
			detail = string(known)
		}
	}()
	f()
	return ""
}

// together runs all at the same time and fails with the first failure.
func together(fs ...func()) {
	details := make([]string, len(fs))
	var wg sync.WaitGroup
	for i, f := range fs {
		wg.Go(func() { details[i] = caught(f) })
	}
	wg.Wait()
	for _, d := range details {
		if d != "" {
			panic(failure(d))
		}
	}
}

func ok(err error) {
	if err != nil {
		fail("%v", err)
	}
}

func same[T comparable](what string, got, want T) {
	if got != want {
		fail("%s is %v, want %v", what, got, want)
	}
}

func is(got, want error) {
	if !errors.Is(got, want) {
		fail("error %v, want %v", got, want)
	}
}

func wait(what string, condition func() bool) {
	for end := time.Now().Add(waitLimit); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			fail("waited in vain: %s", what)
		}
	}
}

// lost: the connection was lost; the request may have been executed. What the client's write fails with, it returns.
func lost(err error) bool {
	var network *net.OpError
	return errors.Is(err, zk.ErrConnectionClosed) || errors.As(err, &network)
}

// unsent: there was no connection for the request.
func unsent(err error) bool { return errors.Is(err, zk.ErrNoServer) }

// again repeats what may be repeated until a connection lasts, and returns every other error.
func again(request func() error) (err error) {
	for end := time.Now().Add(waitLimit); time.Now().Before(end); {
		if err = request(); !lost(err) && !unsent(err) {
			return err
		}
	}
	return err
}

var (
	controlMu sync.Mutex
	control   net.Conn
	answers   *bufio.Reader
)

// stage gives a command (see stage_test.go).
func stage(format string, args ...any) string {
	controlMu.Lock()
	defer controlMu.Unlock()
	var err error
	if control == nil {
		control, err = net.Dial("tcp", os.Getenv("KVD_CONTROL"))
		ok(err)
		answers = bufio.NewReader(control)
	}
	_, err = fmt.Fprintf(control, format+"\n", args...)
	ok(err)
	line, err := answers.ReadString('\n')
	ok(err)
	answer, good := strings.CutPrefix(strings.TrimSpace(line), "ok")
	if !good {
		fail("stage: "+format+": %s", append(args, line)...)
	}
	return strings.TrimSpace(answer)
}

func leader() int {
	n, err := strconv.Atoi(stage("leader"))
	ok(err)
	return n
}

var servers = strings.Split(os.Getenv("KVD_SERVERS"), ",")

// inOrder is a HostProvider that does not shuffle.
type inOrder struct {
	mu      sync.Mutex
	servers []string
	next    int
	failed  int // since the last connection
}

func (p *inOrder) Init([]string) error { return nil }
func (p *inOrder) Len() int            { return len(p.servers) }

func (p *inOrder) Next() (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	server := p.servers[p.next%len(p.servers)]
	around := p.failed > 0 && p.failed%len(p.servers) == 0
	p.next++
	p.failed++
	return server, around
}

func (p *inOrder) Connected() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = 0
}

// session is a connection and what the client told of it.
type session struct {
	*zk.Conn
	mu     sync.Mutex
	states []zk.State
	closed bool
}

var (
	sessionsMu sync.Mutex
	sessions   []*session // of the present check
)

// start connects to members in this order, to all if none is named, and does not wait.
func start(timeout time.Duration, addrs ...string) *session {
	s := &session{}
	c, _, err := zk.Connect(addrs, timeout, zk.WithLogInfo(false), zk.WithLogger(silent{}),
		zk.WithHostProvider(&inOrder{servers: addrs}),
		zk.WithEventCallback(func(e zk.Event) {
			if e.Type == zk.EventSession {
				s.mu.Lock()
				s.states = append(s.states, e.State)
				s.mu.Unlock()
			}
		}))
	ok(err)
	s.Conn = c
	sessionsMu.Lock()
	sessions = append(sessions, s)
	sessionsMu.Unlock()
	return s
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// connect opens a session through the proxies of these members, tried in this order, or of all.
func connect(members ...int) *session { return connectFor(20*time.Second, members...) }

func connectFor(timeout time.Duration, members ...int) *session {
	addrs := servers
	if len(members) > 0 {
		addrs = nil
		for _, n := range members {
			addrs = append(addrs, servers[n-1])
		}
	}
	s := start(timeout, addrs...)
	s.connected(1)
	return s
}

// count is how often the client told this state.
func (s *session) count(state zk.State) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, have := range s.states {
		if have == state {
			n++
		}
	}
	return n
}

// connected waits until the client has had its session for the nth time.
func (s *session) connected(nth int) {
	wait(fmt.Sprintf("connection %d of a session", nth), func() bool {
		return s.count(zk.StateHasSession) >= nth && s.State() == zk.StateHasSession
	})
}

// member is the one that the session is connected to.
func (s *session) member() int { return slices.Index(servers, s.Server()) + 1 }

// end closes the session, once.
func (s *session) end() {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if !closed {
		s.Close()
	}
}

// catchUp makes reads on this connection see everything acknowledged before.
func (s *session) catchUp() {
	ok(again(func() error { _, err := s.Sync("/"); return err }))
}

// finish heals the stage and closes the sessions of a check; a close that no member hears would leave its session to
// the time-out.
func finish() {
	stage("heal")
	sessionsMu.Lock()
	all := sessions
	sessions = nil
	sessionsMu.Unlock()
	for _, s := range all {
		if !s.closed {
			wait("a session to close", func() bool { return s.State() == zk.StateHasSession })
			s.end()
		}
	}
}

// make creates an ordinary node.
func (s *session) make(path, data string, flags int32) string {
	name, err := s.Create(path, []byte(data), flags, open)
	if err != nil {
		fail("create %s: %v", path, err)
	}
	return name
}

// has asks a caught-up connection whether a node exists.
func (s *session) has(path string) (bool, *zk.Stat) {
	s.catchUp()
	var there bool
	var stat *zk.Stat
	ok(again(func() (err error) { there, stat, err = s.Exists(path); return err }))
	return there, stat
}

// expect waits for the event of a watch.
func expect(ch <-chan zk.Event, event zk.EventType, path string) {
	select {
	case e := <-ch:
		if e.Type != event || e.Path != path || e.Err != nil {
			fail("event %v on %q (%v), want %v on %q", e.Type, e.Path, e.Err, event, path)
		}
	case <-time.After(waitLimit):
		fail("no event %v on %s", event, path)
	}
}

// quiet fails if a watch has fired.
func quiet(ch <-chan zk.Event) {
	select {
	case e := <-ch:
		fail("event %v on %q (%v), want none", e.Type, e.Path, e.Err)
	default:
	}
}

var open = zk.WorldACL(zk.PermAll)
