package replica

import (
	"fmt"
	"slices"
	"testing"

	"kvd/kv"
	"kvd/kv/wire"
)

// reaping is a leader that looks every 4 ticks and may remove a great many.
func reaping(c *Config) {
	c.Preparer.ExtendedTypes = true
	c.ContainerTicks, c.ContainerMaxPerMinute = 4, 1_000_000
}

func write(token uint64, id kv.SessionID, q kv.Request) ClientOp {
	if q.ACL == nil {
		q.ACL = kv.OpenACL()
	}
	return ClientOp{Request: token, Conn: uint64(id), Session: id, Op: int32(q.Op), Body: wire.AppendRequest(nil, &q)}
}

func container(path string) kv.Request {
	return kv.Request{Op: kv.OpCreateContainer, Path: path, Flags: kv.FlagContainer, TTL: -1}
}

func withTTL(path string, ms int64) kv.Request {
	return kv.Request{Op: kv.OpCreateTTL, Path: path, Flags: kv.FlagTTL, TTL: ms}
}

func plain(path string) kv.Request { return kv.Request{Op: kv.OpCreate, Path: path} }

func removal(path string) kv.Request { return kv.Request{Op: kv.OpDelete, Path: path, Version: -1} }

func data(path string) kv.Request { return kv.Request{Op: kv.OpSetData, Path: path, Version: -1} }

// writes submits requests that must be done, from the given token on.
func (nd *node) writes(token uint64, id kv.SessionID, qs ...kv.Request) {
	nd.lab.t.Helper()
	before := len(nd.results)
	for i, q := range qs {
		nd.submit(write(token+uint64(i), id, q))
	}
	nd.lab.run()
	if got := nd.results[before:]; len(got) != len(qs) || slices.ContainsFunc(got, func(c kv.Code) bool { return c != kv.CodeOK }) {
		nd.lab.t.Fatalf("results %v", got)
	}
}

func (l *lab) ticks(n int) {
	for range n {
		l.tick(false)
	}
}

// Containers that lost their last child and nodes whose time is over go, from all members; nothing else does.
func TestReaperRemovesWhatIsOver(t *testing.T) {
	l := newLab(t, 3, reaping)
	nd := l.nodes[0]
	nd.open(1, 100)
	nd.writes(2, 100,
		container("/empty"), plain("/empty/c"), removal("/empty/c"),
		container("/full"), plain("/full/c"),
		container("/unused"),
		withTTL("/short", 400), withTTL("/long", 1_000_000),
		withTTL("/parent", 400), plain("/parent/c"),
		plain("/ordinary"), plain("/ordinary/c"), removal("/ordinary/c"),
	)
	l.ticks(8)
	nd.writes(30, 100, data("/short")) // renewed at 400 ms of age
	l.ticks(6)
	if !nd.has("/short") {
		t.Error("a renewed node is gone")
	}
	l.ticks(20)
	for path, want := range map[string]bool{
		"/empty": false, "/full": true, "/unused": true, "/short": false, "/long": true, "/parent": true, "/ordinary": true,
	} {
		for _, m := range l.nodes {
			if m.has(path) != want {
				t.Errorf("member %d: %s is there: %v, want %v", m.id, path, !want, want)
			}
		}
	}
	// What loses its last child later goes later.
	nd.writes(40, 100, removal("/full/c"), removal("/parent/c"))
	l.ticks(8)
	if nd.has("/full") || nd.has("/parent") {
		t.Error("left behind when their children went")
	}
	if got := l.leader().r.Status().Reaped; got != 4 {
		t.Errorf("%d removals counted", got)
	}
}

func TestReaperRemovesNeverUsedContainersIfAsked(t *testing.T) {
	l := newLab(t, 1, func(c *Config) { reaping(c); c.ContainerNeverUsedMs = 500 })
	nd := l.leader()
	nd.open(1, 100)
	nd.writes(2, 100, container("/unused"))
	l.ticks(9)
	if !nd.has("/unused") {
		t.Fatal("gone before its time")
	}
	l.ticks(8)
	if nd.has("/unused") {
		t.Error("left behind")
	}
}

// A write that is on its way when the node is found counts, though no tree shows it yet: a renewal, a child, and a new
// node in the place of the old one.
func TestReaperSeesWhatIsInFlight(t *testing.T) {
	for name, late := range map[string][]kv.Request{
		"renewed":  {data("/ttl")},
		"child":    {plain("/ttl/c")},
		"replaced": {removal("/ttl"), withTTL("/ttl", 400)},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 1, func(c *Config) { reaping(c); c.SyncTicks = 1000 })
			nd := l.leader()
			nd.open(1, 100)
			nd.writes(2, 100, withTTL("/ttl", 400))
			l.ticks(8)
			if !nd.has("/ttl") {
				t.Fatal("gone before its time")
			}
			l.hold = true // the disk takes its time: the write is prepared and not applied
			for i, q := range late {
				nd.submit(write(uint64(10+i), 100, q))
			}
			l.run()
			l.ticks(7) // the age of what the tree shows is beyond 400 ms at every look from here on
			l.hold = false
			nd.r.Persisted(nd.seq)
			l.run()
			if !nd.has("/ttl") {
				t.Error("removed though a write of it was in flight")
			}
			for _, c := range nd.results {
				if c != kv.CodeOK {
					t.Errorf("results %v", nd.results)
				}
			}
		})
	}
}

// Removals are paced, however many are due at once.
func TestReaperIsPaced(t *testing.T) {
	l := newLab(t, 1, func(c *Config) { reaping(c); c.ContainerMaxPerMinute = 2400 }) // two in a tick of 50 ms
	nd := l.leader()
	nd.open(1, 100)
	const n = 100
	for i := range n {
		nd.writes(uint64(10+3*i), 100, container(fmt.Sprint("/c", i)), plain(fmt.Sprint("/c", i, "/x")), removal(fmt.Sprint("/c", i, "/x")))
	}
	left := func() (k int) { return nd.tree.View().ContainerCount() }
	last, most, ticks := left(), 0, 0
	for ; left() > 0 && ticks < 1000; ticks++ {
		l.tick(false)
		most = max(most, last-left())
		last = left()
	}
	if left() > 0 || most > 3 || ticks < n/3 || ticks > n {
		t.Errorf("%d left after %d ticks, at most %d in one", left(), ticks, most)
	}
}

// A clock that jumps back ends no life early, and none late by more than the jump: ages are between stamps of
// transactions, which never go back.
func TestReaperAndAClockThatJumps(t *testing.T) {
	l := newLab(t, 1, reaping)
	nd := l.leader()
	nd.open(1, 100)
	nd.writes(2, 100, withTTL("/a", 1000))
	l.wall -= 3_600_000
	nd.writes(3, 100, withTTL("/b", 1000))
	l.ticks(30)
	if !nd.has("/a") || !nd.has("/b") {
		t.Error("removed while the stamps stood still")
	}
	nd.writes(5, 100, data("/b"))
	l.wall += 3_600_000
	l.ticks(12)
	if nd.has("/a") {
		t.Error("left behind")
	}
	l.ticks(20)
	if nd.has("/b") {
		t.Error("left behind")
	}
}

// Only the leader itself asks for a removal: a learner that does is refused, whatever session it names.
func TestNobodyElseReaps(t *testing.T) {
	l := newLab(t, 3, reaping)
	nd := l.nodes[0]
	nd.open(1, 100)
	nd.writes(2, 100, container("/box"))
	for i, s := range []kv.SessionID{0, 100} {
		nd.submit(ClientOp{Request: uint64(10 + i), Conn: uint64(50 + i), Session: s, Op: int32(kv.OpDeleteContainer), Body: []byte("/box")})
	}
	l.run()
	if got := nd.results[len(nd.results)-2:]; !slices.Equal(got, []kv.Code{kv.CodeUnimplemented, kv.CodeUnimplemented}) || !nd.has("/box") {
		t.Errorf("results %v, /box there: %v", got, nd.has("/box"))
	}
}

// A member that is told to stop removes nothing any more.
func TestReaperStopsWithItsMember(t *testing.T) {
	l := newLab(t, 1, reaping)
	nd := l.leader()
	nd.open(1, 100)
	nd.writes(2, 100, withTTL("/ttl", 100))
	nd.r.Shutdown()
	l.ticks(40)
	if !nd.has("/ttl") || !nd.stopped {
		t.Errorf("removed %v, stopped %v", !nd.has("/ttl"), nd.stopped)
	}
}
