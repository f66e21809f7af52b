package ensemble

import (
	"crypto/rand"
	"sync"
	"time"

	"kvd/kv"
)

// sessionTable knows which connection of this member a session is attached to. Sessions themselves are
// replicated state; expiry is the leader's.
type sessionTable struct {
	mu    sync.Mutex
	conns map[kv.SessionID]*conn
}

func newSessionTable() *sessionTable { return &sessionTable{conns: make(map[kv.SessionID]*conn)} }

// attach makes c the connection of a session and returns the one it replaces, which the caller closes.
func (t *sessionTable) attach(id kv.SessionID, c *conn) (old *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old = t.conns[id]
	t.conns[id] = c
	if old == c {
		return nil
	}
	return old
}

// detach forgets c if it is still the session's connection.
func (t *sessionTable) detach(id kv.SessionID, c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conns[id] == c {
		delete(t.conns, id)
	}
}

// get returns the session's connection, nil if it has none here.
func (t *sessionTable) get(id kv.SessionID) *conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.conns[id]
}

// sessionIDs hands out ids as ZooKeeper does: the member in the high byte, then a clock, counting up.
type sessionIDs struct {
	mu          sync.Mutex
	first, next int64
}

// newSessionIDs starts the ids of a run. The clock part moves by 2^24 a millisecond divided by 2^8, so a run
// starts above every id that an earlier run can have handed out (65,536 new sessions a millisecond).
func newSessionIDs(member MemberID, now time.Time) *sessionIDs {
	if member == 255 {
		member = 0 // its own byte marks nodes with a time to live, and nobody has number 0
	}
	first := int64(uint64(member)<<56 | uint64(now.UnixMilli()<<24)>>8)
	return &sessionIDs{first: first, next: first}
}

// skip starts above the ids that this member's earlier runs have handed out, as far as sessions of theirs are left: its
// clock may have gone back.
func (g *sessionIDs) skip(v *kv.View) {
	g.mu.Lock()
	defer g.mu.Unlock()
	v.Sessions(func(s kv.Session) bool {
		if id := int64(s.ID); uint64(id)>>56 == uint64(g.first)>>56 && id >= g.next {
			g.first, g.next = id+1, id+1
		}
		return true
	})
}

// handedOut reports whether new has returned id in this run.
func (g *sessionIDs) handedOut(id kv.SessionID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return int64(id) >= g.first && int64(id) < g.next
}

func (g *sessionIDs) new() kv.SessionID {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := g.next
	g.next++
	return kv.SessionID(id)
}

// newPassword draws a session's password. It is replicated with the session, so any member can check it.
func newPassword() (p [16]byte) {
	_, _ = rand.Read(p[:]) // never fails
	return p
}
