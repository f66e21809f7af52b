package replica

import (
	"slices"

	"kvd/kv"
	"kvd/zab/quorum"
)

// wheelSlots is the number of slots of the expiry wheel, one per tick. A session whose deadline lies further
// away waits in the furthest slot and is looked at again when that comes due.
const wheelSlots = 1024

// session is what the leader knows about a live session beyond the replicated state.
type session struct {
	id       kv.SessionID
	password [16]byte
	// owner is the member whose client spoke last for it; 0 until one did in this term.
	owner quorum.MemberID
	// claim is the newest one that this leader gave out or heard of; 0 until then.
	claim     Claim
	timeoutMs int32
	// spurned are members that a write was refused to because the session had moved. Nothing that came on the same
	// connection may be executed after that, whoever turns out to be the owner: only a new one makes it good.
	spurned []quorum.MemberID
	// deadline is the tick from which on the session is overdue. Moving it costs nothing: the wheel finds
	// out when the old slot comes due.
	deadline int64
	// at is the tick whose slot holds the session; entries left behind in other slots are skipped.
	at int64
}

// sessions holds the deadlines of all live sessions on the established leader, and thereby the overlay of
// sessions in flight: a session is added when its createSession is proposed and removed when its closeSession is.
// It decides nothing: due yields the sessions whose closeSession should be proposed.
type sessions struct {
	tickMs int32
	now    int64 // ticks of the leader's own loop since this term's establishment
	all    map[kv.SessionID]*session
	wheel  [wheelSlots][]*session
	// held stops expiry (not the clock): set after a gap until a quorum PING round begun afterwards completed.
	held bool
}

func newSessions(tickMs int) *sessions {
	return &sessions{tickMs: int32(tickMs), all: make(map[kv.SessionID]*session)}
}

// add starts a session's full time-out now. Adding a session that is there is a touch.
func (s *sessions) add(id kv.SessionID, password [16]byte, timeoutMs int32, owner quorum.MemberID) {
	if old := s.all[id]; old != nil {
		s.touch(id, 0, owner)
		return
	}
	n := &session{id: id, password: password, owner: owner, timeoutMs: timeoutMs}
	s.all[id] = n
	n.deadline = s.deadline(n)
	s.place(n)
}

// remove forgets a session. Its place in the wheel is cleaned up when the slot comes due.
func (s *sessions) remove(id kv.SessionID) { delete(s.all, id) }

func (s *sessions) get(id kv.SessionID) *session { return s.all[id] }

// touch gives the session its full time-out again. A time-out of 0 leaves the agreed one; a shorter deadline than the
// one it had can only come from a shorter time-out, agreed on resume.
func (s *sessions) touch(id kv.SessionID, timeoutMs int32, owner quorum.MemberID) bool {
	n := s.all[id]
	if n == nil {
		return false
	}
	if timeoutMs > 0 && timeoutMs != n.timeoutMs {
		shorter := timeoutMs < n.timeoutMs
		n.timeoutMs = timeoutMs
		if shorter {
			n.deadline = s.deadline(n)
			s.place(n) // the old slot finds it placed elsewhere, or due, and skips it
		}
	}
	n.deadline = s.deadline(n)
	if owner != 0 {
		n.owner = owner
	}
	return true
}

// heard is a touch that a member recorded for a client on one of its connections. One of a connection that the session
// has left since moves nothing back, and does not change what was agreed; but the client lives, so its session does: the
// newer connection may be one that it had given up before the leader heard of it. One of a newer connection than
// this leader knew of, which an earlier leader accepted, says who the owner is, also against a write that slipped in
// before.
func (s *sessions) heard(t touch, at quorum.MemberID) {
	n := s.all[t.session]
	switch {
	case n == nil:
	case t.claim < n.claim || t.claim == n.claim && n.owner != 0 && n.owner != at:
		s.touch(t.session, 0, 0)
	default:
		n.claim = t.claim
		s.touch(t.session, t.timeoutMs, at)
	}
}

// claimed says that a connection at a member was accepted for the session.
func (s *sessions) claimed(id kv.SessionID, c Claim, at quorum.MemberID) {
	if n := s.all[id]; n != nil {
		n.claim = c
		n.spurned = slices.DeleteFunc(n.spurned, func(id quorum.MemberID) bool { return id == at })
	}
}

// writes reports whether a member may write for the session, and remembers if it may not.
func (n *session) writes(from quorum.MemberID) bool {
	switch {
	case slices.Contains(n.spurned, from):
		return false
	case n.owner == 0:
		n.owner = from
	case n.owner != from:
		n.spurned = append(n.spurned, from)
		return false
	}
	return true
}

// deadline rounds up, so that a session never gets less than its time-out.
func (s *sessions) deadline(n *session) int64 {
	return s.now + 1 + (int64(n.timeoutMs)+int64(s.tickMs)-1)/int64(s.tickMs)
}

// overdue reports whether a session that tick found due has not been heard of since: a due one's deadline is the next tick, a touch moves it
// at least one further.
func (s *sessions) overdue(id kv.SessionID) bool {
	n := s.all[id]
	return n != nil && n.deadline <= s.now+1
}

func (s *sessions) place(n *session) {
	n.at = min(n.deadline, s.now+wheelSlots-1)
	slot := &s.wheel[n.at%wheelSlots]
	*slot = append(*slot, n)
}

// tick advances the clock by one and appends the sessions that are due to dst, in order of their ids (the
// order must not depend on anything but the history). The caller proposes their end and then removes them;
// until it does they are due again at the next tick.
func (s *sessions) tick(dst []kv.SessionID) []kv.SessionID {
	s.now++
	slot := &s.wheel[s.now%wheelSlots]
	list := *slot
	from := len(dst)
	for _, n := range list {
		if s.all[n.id] != n || n.at != s.now {
			continue // removed, replaced or placed elsewhere
		}
		if n.deadline <= s.now {
			if !s.held {
				dst = append(dst, n.id)
			}
			n.deadline = s.now + 1
		}
		s.place(n) // never into this slot: it comes due again only after wheelSlots ticks
	}
	clear(list)
	*slot = list[:0]
	slices.Sort(dst[from:])
	return dst
}
