package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

const (
	lockDir   = "/lock"
	protected = "/protected"
)

// inside is what a lock protects outside of the ensemble: who holds it.
type inside struct {
	mu     sync.Mutex
	node   string // the holder's
	newest int64  // token
}

// enter takes the place of whoever is there only if his node has gone, as after the end of his session. Tokens ascend.
func (in *inside) enter(s *session, node string, token int64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.node != "" {
		if there, _ := s.has(in.node); there {
			fail("%s and %s hold the lock", in.node, node)
		}
	}
	if token <= in.newest {
		fail("token %x after %x", token, in.newest)
	}
	in.node, in.newest = node, token
}

func (in *inside) leave(node string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.node == node {
		in.node = ""
	}
}

// acquire takes the client's Lock, as an application does that can live with a lost connection: the recipe gives up with
// an error and may leave a node behind, so after an error the session's nodes go. It may also wait for a node that its
// own first attempt left (the answer was lost, and the list that it looked in did not have the node yet), so a session
// that has two nodes while it waits is given up for a new one, which is returned.
func acquire(s *session) (holder *session, l *zk.Lock, node string, token int64) {
	for end := time.Now().Add(checkLimit); time.Now().Before(end); {
		l := zk.NewLock(s.Conn, lockDir, open)
		done := make(chan error, 1)
		go func() { done <- l.Lock() }()
		var err error
		for waits := true; waits; {
			select {
			case err = <-done:
				waits = false
			case <-time.After(300 * time.Millisecond):
				if nodes, _, _ := mine(s); len(nodes) > 1 {
					wait("a session to close", func() bool { return s.State() == zk.StateHasSession })
					s.end()
					<-done
					s, waits, err = connect(), false, zk.ErrConnectionClosed
				}
			}
		}
		switch {
		case lost(err) || unsent(err):
			sweep(s)
			continue
		case err != nil:
			fail("Lock: %v", err)
		}
		if _, node, token := mine(s); node != "" {
			return s, l, node, token
		}
		if s.count(zk.StateExpired) == 0 {
			fail("the lock is held by a session that has not the first node")
		}
	}
	fail("no lock")
	return nil, nil, "", 0
}

// mine are the lock nodes of a session, and which of them is the first of all.
func mine(s *session) (nodes []string, head string, token int64) {
	s.catchUp()
	var names []string
	ok(again(func() (err error) { names, _, err = s.Children(lockDir); return err }))
	slices.SortFunc(names, func(a, b string) int { return seq(a) - seq(b) })
	for i, n := range names {
		path := lockDir + "/" + n
		there, stat, err := false, (*zk.Stat)(nil), error(nil)
		ok(again(func() error { there, stat, err = s.Exists(path); return err }))
		if there && stat.EphemeralOwner == s.SessionID() {
			nodes = append(nodes, path)
			if i == 0 {
				head, token = path, stat.Czxid
			}
		}
	}
	return nodes, head, token
}

func seq(name string) int {
	n, err := strconv.Atoi(name[len(name)-10:])
	ok(err)
	return n
}

func sweep(s *session) {
	nodes, _, _ := mine(s)
	for _, n := range nodes {
		if err := again(func() error { return s.Delete(n, -1) }); err != nil && !errors.Is(err, zk.ErrNoNode) {
			fail("delete %s: %v", n, err)
		}
	}
}

func release(s *session, l *zk.Lock) {
	err := again(l.Unlock)
	if err != nil && !errors.Is(err, zk.ErrNoNode) { // deleted by an Unlock whose answer was lost
		fail("Unlock: %v", err)
	}
	sweep(s) // of a create whose answer was lost
}

// value is what the lock protects inside of the ensemble: a number, and the token of who wrote it.
type value struct {
	n     int
	token int64
}

func read(s *session) (v value) {
	s.catchUp()
	var data []byte
	ok(again(func() (err error) { data, _, err = s.Get(protected); return err }))
	_, err := fmt.Sscanf(string(data), "%d %x", &v.n, &v.token)
	ok(err)
	return v
}

// add reads the number, lets something happen, and writes the number plus one, whatever its version: only the lock
// keeps additions from being lost. It is false if the lock was lost before.
func add(s *session, node string, token int64, happens func()) bool {
	old := read(s)
	if old.token >= token {
		fail("token %x is not above %x, which wrote before", token, old.token)
	}
	happens()
	want := value{old.n + 1, token}
	for {
		_, err := s.Multi(
			&zk.CheckVersionRequest{Path: node, Version: 0},
			&zk.SetDataRequest{Path: protected, Data: fmt.Appendf(nil, "%d %x", want.n, want.token), Version: -1})
		switch {
		case err == nil:
			return true
		case errors.Is(err, zk.ErrNoNode):
			return false
		case !lost(err) && !unsent(err):
			fail("multi: %v", err)
		}
		switch have := read(s); have {
		case want:
			return true
		case old:
		default:
			if there, _ := s.has(node); there {
				fail("%v became %v while %s held the lock", old, have, node)
			}
			return false
		}
	}
}

func prepare() *session {
	s := connect()
	s.make(lockDir, "", zk.FlagPersistent)
	s.make(protected, "0 0", zk.FlagPersistent)
	return s
}

func lockUnderFaults() {
	const holders, additions = 3, 6
	final := prepare()
	in := &inside{}
	var mu sync.Mutex
	acquired, died := 0, 0
	happens := func(s *session) func() {
		return func() {
			mu.Lock()
			acquired++
			k := acquired
			mu.Unlock()
			switch { // the holder does it, between reading and writing
			case k == 9:
				died = leader()
				stage("kill %d", died)
			case k == 14:
				stage("start %d", died)
			case k%4 == 1:
				stage("cut all")
			case k%4 == 2:
				stage("cutafter %d up 40", s.member())
			case k%4 == 3:
				stage("cutafter %d down 30", s.member())
			}
		}
	}
	var contenders []func()
	for range holders {
		s := connect()
		contenders = append(contenders, func() {
			defer func() { s.end() }() // one that failed holds up nobody
			for done := 0; done < additions; {
				var l *zk.Lock
				var node string
				var token int64
				s, l, node, token = acquire(s)
				in.enter(s, node, token)
				if add(s, node, token, happens(s)) {
					done++
				}
				in.leave(node)
				release(s, l)
			}
		})
	}
	together(contenders...)
	same("the number", read(final).n, holders*additions)
	nodes, _, err := final.Children(lockDir)
	ok(err)
	same("nodes left", len(nodes), 0)
	ok(final.Delete(protected, -1))
	ok(final.Delete(lockDir, -1))
}

func lockExpires() {
	final := prepare()
	a, b := connectFor(6*time.Second, 3), connect(1, 2)
	b.catchUp()
	_, la, nodeA, tokenA := acquire(a)
	is(la.Lock(), zk.ErrDeadlock)
	in := &inside{}
	in.enter(a, nodeA, tokenA)
	id := a.SessionID()
	var lb *zk.Lock
	var nodeB string
	var tokenB int64
	together(func() { // waits while a is cut off
		b, lb, nodeB, tokenB = acquire(b)
		in.enter(b, nodeB, tokenB)
	}, func() {
		wait("b to queue", func() bool { nodes, _, err := final.Children(lockDir); ok(err); return len(nodes) == 2 })
		written := add(a, nodeA, tokenA, func() {})
		same("the holder may write", written, true)
		stage("refuse 3")
		stage("cut 3")
	})
	if !add(b, nodeB, tokenB, func() {}) {
		fail("the holder may not write")
	}
	stage("accept 3")
	a.connected(2)
	same("times expired", a.count(zk.StateExpired), 1)
	if a.SessionID() == id {
		fail("the session %x is there again", id)
	}
	a.catchUp()
	_, err := a.Multi(&zk.CheckVersionRequest{Path: nodeA, Version: 0}, &zk.SetDataRequest{Path: protected, Data: []byte("late"), Version: -1})
	is(err, zk.ErrNoNode)
	is(la.Unlock(), zk.ErrNoNode)
	same("what the lock protects", read(final), value{2, tokenB})
	release(b, lb)
	is(lb.Unlock(), zk.ErrNotLocked)
}
