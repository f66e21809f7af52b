package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvd/integration/cluster"
	"kvd/kv"
	"kvd/kv/wire"
)

// stormSessions is how many clients lose their leader at once.
const stormSessions = 10_000

// Time-outs of the clients that stay and of those that fall silent. Nobody is to expire that does not fall silent, on a slow machine either:
// the second is only ever given to who is about to be silent. (A new leader knows the first of all of them, which is in the tree.)
const (
	stormStayMs   = 20_000
	stormSilentMs = 4_000
)

// crowd is many sessions, each with one ephemeral node and one watch, without anything of a client library that would be in the way:
// a goroutine each, which reconnects at once, with setWatches, to whichever server answers.
type crowd struct {
	ctx     context.Context
	servers []string
	all     []*member
	wg      sync.WaitGroup
	born    atomic.Int64 // have their session, node and watch
	gone    atomic.Int64 // were told that their session has ended
	returns atomic.Int64 // resumed sessions
	events  atomic.Int64
	why     atomic.Value // string: the first thing that should not happen
}

// member of a crowd. All but conn and what is atomic belongs to its goroutine.
type member struct {
	n        int
	session  kv.SessionID
	password [wire.PasswordBytes]byte
	zxid     kv.Zxid
	told     atomic.Int64 // events of the watched node
	watching bool
	ready    bool

	mu        sync.Mutex
	conn      net.Conn
	timeoutMs int32
	silent    bool
}

// stormFlag is what everybody watches.
const stormFlag = "/flag"

func newCrowd(ctx context.Context, c *cluster.Cluster, n int) *crowd {
	w := &crowd{ctx: ctx}
	for _, m := range c.Members {
		w.servers = append(w.servers, m.Client)
	}
	for i := range n {
		w.all = append(w.all, &member{n: i, timeoutMs: stormStayMs})
	}
	return w
}

func (w *crowd) path(m *member) string { return fmt.Sprintf("/s/%05d", m.n) }

// gather starts everybody, each at the server of its turn, and keeps them alive until ctx ends.
func (w *crowd) gather() {
	for _, m := range w.all {
		w.wg.Go(func() { w.live(m) })
	}
	w.wg.Go(func() {
		ping := frameOf((&wire.RequestHeader{Xid: wire.XidPing, Op: wire.OpPing}).AppendTo(nil))
		for {
			select {
			case <-w.ctx.Done():
				for _, m := range w.all {
					m.hangUp(false)
				}
				return
			case <-time.After(time.Second):
			}
			for _, m := range w.all {
				m.mu.Lock()
				if m.conn != nil {
					_, _ = m.conn.Write(ping) // its reader sees what is wrong
				}
				m.mu.Unlock()
			}
		}
	})
}

func (w *crowd) fault(format string, args ...any) {
	w.why.CompareAndSwap(nil, fmt.Sprintf(format, args...))
}

// hangUp ends the connection; a silent member does not come back.
func (m *member) hangUp(silent bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.silent = m.silent || silent
	if m.conn != nil {
		_ = m.conn.Close()
		m.conn = nil
	}
}

// live connects again and again.
func (w *crowd) live(m *member) {
	server := m.n % len(w.servers)
	for w.ctx.Err() == nil {
		m.mu.Lock()
		silent := m.silent
		m.mu.Unlock()
		if silent || w.once(m, w.servers[server]) {
			return
		}
		server = rand.IntN(len(w.servers))
		select {
		case <-w.ctx.Done():
		case <-time.After(time.Duration(5+rand.IntN(50)) * time.Millisecond):
		}
	}
}

// once is one connection. It reports whether the session is over.
func (w *crowd) once(m *member, server string) (over bool) {
	nc, err := net.DialTimeout("tcp", server, time.Minute)
	if err != nil {
		return false
	}
	defer func() { _ = nc.Close() }()
	m.mu.Lock()
	timeout := m.timeoutMs
	m.mu.Unlock()
	q := wire.ConnectRequest{LastZxidSeen: int64(m.zxid), TimeoutMs: timeout, Session: m.session, Password: m.password[:], HasReadOnly: true}
	if _, err := nc.Write(frameOf(q.AppendTo(nil))); err != nil {
		return false
	}
	fr := wire.NewFrameReader(nc, 1<<20)
	frame, err := fr.Next()
	if err != nil {
		return false
	}
	var resp wire.ConnectResponse
	if err := wire.Decode(frame, &resp); err != nil {
		w.fault("member %d: %v", m.n, err)
		return true
	}
	if resp.TimeoutMs <= 0 {
		w.gone.Add(1)
		return true
	}
	if m.session != 0 && resp.Session != m.session {
		w.fault("member %d resumes %v and gets %v", m.n, m.session, resp.Session)
		return true
	}
	if m.session != 0 {
		w.returns.Add(1)
	}
	m.session = resp.Session
	m.password = resp.Password

	var b []byte
	if m.watching {
		rearm := wire.SetWatchesRequest{Relative: int64(m.zxid), Data: []string{stormFlag}}
		b = append(b, requestOf(wire.XidSetWatches, wire.OpSetWatches, &rearm)...)
	}
	if !m.ready {
		b = append(b, requestOf(1, wire.OpCreate, &wire.CreateRequest{Path: w.path(m), ACL: kv.OpenACL(), Flags: kv.FlagEphemeral})...)
		b = append(b, requestOf(2, wire.OpGetData, &wire.PathWatchRequest{Path: stormFlag, Watch: true})...)
	}
	m.mu.Lock()
	if m.silent || w.ctx.Err() != nil {
		m.mu.Unlock()
		return true
	}
	m.conn = nc
	_, _ = nc.Write(b)
	m.mu.Unlock()
	for {
		frame, err := fr.Next()
		if err != nil {
			break
		}
		h, _, err := wire.SplitReply(frame)
		if err != nil {
			w.fault("member %d: %v", m.n, err)
			break
		}
		m.zxid = max(m.zxid, kv.Zxid(h.Zxid))
		switch h.Xid {
		case wire.XidEvent:
			m.told.Add(1)
			m.watching = false
			w.events.Add(1)
		case 1:
			if h.Err != kv.CodeOK && h.Err != kv.CodeNodeExists { // it may have been made, and its answer lost
				w.fault("member %d makes its node: %v", m.n, h.Err)
			}
		case 2:
			m.ready, m.watching = true, true
			w.born.Add(1)
		}
	}
	m.mu.Lock()
	m.conn = nil
	m.mu.Unlock()
	return false
}

func frameOf(body []byte) []byte {
	b, mark := wire.BeginFrame(nil)
	return wire.EndFrame(append(b, body...), mark)
}

func requestOf(xid int32, op wire.Op, rec wire.Record) []byte {
	return frameOf(rec.AppendTo((&wire.RequestHeader{Xid: xid, Op: op}).AppendTo(nil)))
}

// connected is how many have a connection.
func (w *crowd) connected() (n int64) {
	for _, m := range w.all {
		m.mu.Lock()
		if m.conn != nil {
			n++
		}
		m.mu.Unlock()
	}
	return n
}

// TestStorms: what ten thousand sessions do when their leader dies must not cost any of them its session, nor a watch its event, nor
// keep a session that has fallen silent.
func TestStorms(t *testing.T) {
	notNow(t)
	c, ctx := startCluster(t, 3, "maxClientCnxns=0", "4lw.commands.whitelist=*")
	setup := dial(t, ctx, c.Servers())
	for _, path := range []string{"/s", stormFlag} {
		if _, _, err := setup.Create(ctx, path, nil, kv.FlagPersistent, kv.OpenACL()...); err != nil {
			t.Fatal(err)
		}
	}
	live, end := context.WithCancel(ctx)
	w := newCrowd(live, c, stormSessions)
	defer w.wg.Wait()
	defer end()
	w.gather()
	count := func(what string, n *atomic.Int64, want int64) {
		t.Helper()
		eventually(t, ctx, what, func() error {
			if why := w.why.Load(); why != nil {
				t.Fatal(why)
			}
			if got := n.Load(); got != want {
				return fmt.Errorf("%d of %d", got, want)
			}
			return nil
		})
	}
	everybody := func(want int64) {
		t.Helper()
		eventually(t, ctx, "everybody is connected", func() error {
			if n := w.connected(); n != want {
				return fmt.Errorf("%d of %d are, %d were told that their session has ended", n, want, w.gone.Load())
			}
			return nil
		})
		if n := w.gone.Load(); n != 0 {
			t.Fatalf("%d sessions have ended", n)
		}
	}
	children := func(want int32) {
		t.Helper()
		for _, m := range c.Members {
			k := dial(t, ctx, m.Client)
			eventually(t, ctx, fmt.Sprintf("nodes at member %d", m.ID), func() error {
				stat, err := k.Exists(ctx, "/s")
				if err == nil && stat.NumChildren != want {
					err = fmt.Errorf("%d, want %d", stat.NumChildren, want)
				}
				return err
			})
		}
	}
	kill := func() *cluster.Member {
		t.Helper()
		leader, err := c.Leader(ctx)
		if err != nil {
			t.Fatal(err)
		}
		leader.Kill()
		return leader
	}
	again := func(m *cluster.Member) {
		t.Helper()
		if err := startMember(ctx, m); err != nil {
			t.Fatal(err)
		}
	}
	count("everybody has a session, a node and a watch", &w.born, stormSessions)
	everybody(stormSessions)
	children(stormSessions)

	// A third of all sessions come to the other two members at once, and each of them brings its watch.
	began := time.Now()
	dead := kill()
	eventually(t, ctx, "the dead leader's clients have been elsewhere", func() error {
		if n := w.returns.Load(); n < stormSessions/3 {
			return fmt.Errorf("%d of %d", n, stormSessions/3)
		}
		return nil
	})
	everybody(stormSessions)
	// Each has brought its watch.
	eventually(t, ctx, "all watches are set again", func() error {
		sum := 0
		for _, m := range c.Members {
			if m == dead {
				continue
			}
			n, err := mntrValue(ctx, m, "zk_watch_count")
			if err != nil {
				return err
			}
			sum += n
		}
		if sum != stormSessions {
			return fmt.Errorf("%d of %d", sum, stormSessions)
		}
		return nil
	})
	t.Logf("reconnect storm: %d sessions resumed, all are connected %v after the leader's death", w.returns.Load(), time.Since(began).Round(time.Millisecond))
	again(dead)
	children(stormSessions)
	sameTree(t, ctx, c)

	// One change for ten thousand watches, and the leader dies while they are told. Each hears of it once: at once, or when it is back.
	began = time.Now()
	returned := w.returns.Load()
	if _, err := setup.Set(ctx, stormFlag, []byte("up"), wire.AnyVersion); err != nil {
		t.Fatal(err)
	}
	dead = kill()
	count("everybody has its event", &w.events, stormSessions)
	eventually(t, ctx, "the dead leader's clients have been elsewhere", func() error {
		if n := w.returns.Load() - returned; n < stormSessions/4 { // the member that came back last has none, the other two have all
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	everybody(stormSessions)
	t.Logf("watch storm: %d events, and all are connected %v after the change and the leader's death", w.events.Load(), time.Since(began).Round(time.Millisecond))
	again(dead)
	sameTree(t, ctx, c)
	for _, m := range w.all {
		if n := m.told.Load(); n != 1 {
			t.Fatalf("session %d was told %d times", m.n, n)
		}
	}
	for _, m := range c.Members {
		eventually(t, ctx, "no watch is left", func() error { return mntrIs(ctx, m, "zk_watch_count", "0") })
	}

	// Half of them ask for a short time-out and fall silent, in two waves. The leader dies while it ends those of the first; the next one, which gives
	// everybody a full time-out again, goes on with it. The other half does not notice.
	returned = w.returns.Load()
	for _, m := range w.all[:stormSessions/2] {
		m.mu.Lock()
		m.timeoutMs = stormSilentMs
		m.mu.Unlock()
		m.hangUp(false)
	}
	eventually(t, ctx, "half are back with a short time-out", func() error {
		if n := w.returns.Load() - returned; n < stormSessions/2 {
			return fmt.Errorf("%d of %d", n, stormSessions/2)
		}
		return nil
	})
	began = time.Now()
	for _, m := range w.all[:stormSessions/4] {
		m.hangUp(true)
	}
	eventually(t, ctx, "the first of the silent ones expires", func() error {
		stat, err := setup.Exists(ctx, "/s")
		if err == nil && stat.NumChildren == stormSessions {
			err = errors.New("none has")
		}
		return err
	})
	for _, m := range w.all[stormSessions/4 : stormSessions/2] { // these are the next leader's
		m.hangUp(true)
	}
	dead = kill()
	again(dead)
	children(stormSessions / 2)
	everybody(stormSessions / 2)
	names, _, err := setup.Children(ctx, "/s")
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range names { // sorted
		if want := fmt.Sprintf("%05d", stormSessions/2+i); name != want {
			t.Fatalf("node %s is left, want %s", name, want)
		}
	}
	t.Logf("expiry storm: %d sessions have ended, the others are connected %v after they fell silent", stormSessions/2, time.Since(began).Round(time.Millisecond))
	for _, m := range c.Members {
		eventually(t, ctx, "ephemerals", func() error { return mntrIs(ctx, m, "zk_ephemerals_count", fmt.Sprint(stormSessions/2)) })
	}
	sameTree(t, ctx, c)
	if n := w.gone.Load(); n != 0 {
		t.Errorf("%d sessions have ended that were alive", n)
	}
}
