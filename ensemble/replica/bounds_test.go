package replica

import (
	"math"
	"testing"

	"kvd/kv"
)

// The longest time-out that the protocol can carry is a long one.
func TestLongestTimeout(t *testing.T) {
	s := newSessions(50)
	s.add(1, [16]byte{}, math.MaxInt32, 1)
	s.add(2, [16]byte{}, 100, 1)
	s.heard(touch{2, math.MaxInt32 - 20, 1}, 1)
	for range 3 * wheelSlots {
		if due := s.tick(nil); len(due) > 0 {
			t.Fatalf("expired after %d ticks: %v", s.now, due)
		}
	}
	if n := s.get(1); n.deadline < math.MaxInt32/50 {
		t.Errorf("deadline %d", n.deadline)
	}
}

// A createSession with an id that is in use is its origin's mistake. It changes nothing about the session that has it.
func TestCreateSessionOfAnIDInUse(t *testing.T) {
	l := newLab(t, 3, nil)
	p, q := l.nodes[0], l.nodes[1]
	p.open(1, 100)
	v := p.resume(2, 4000)
	if err := q.r.Submit(ClientOp{Request: 3, Conn: 7, Session: 100, Op: OpCreateSession, Body: AppendCreateSession(nil, 9000, [16]byte{8})}); err != nil {
		t.Fatal(err)
	}
	l.run()
	if got := q.results[len(q.results)-1]; got != kv.CodeSystemError {
		t.Fatalf("created twice: %v", got)
	}
	if s := l.leader().r.lead.sessions.get(100); s.owner != p.id || s.claim != v.Claim || s.timeoutMs != 4000 || s.password != [16]byte{7} {
		t.Errorf("session %+v, claim was %x", s, v.Claim)
	}
	p.submit(on(900, create(10, 100, "/mine")))
	l.run()
	if got := p.results[len(p.results)-1]; got != kv.CodeOK {
		t.Errorf("the owner's write: %v", got)
	}
}

// A client comes back on a new connection of the same member while writes of its old one wait at the leader for room. It is
// told that its session lives when these are decided, and of a state that shows them: what it then does not find will
// not come either.
func TestResumeFollowsTheWritesBeforeIt(t *testing.T) {
	l := newLab(t, 3, func(c *Config) { c.MaxOutstandingEntries = 4; c.SyncTicks, c.StallTicks = 1000, 1000 })
	p := l.nodes[0]
	p.open(1, 100)
	l.hold = true // the disks take their time
	for i := range 12 {
		p.submit(on(500, create(uint64(10+i), 100, "/n"+string(rune('a'+i)))))
	}
	l.run()
	if l.leader().r.lead.remote.len() == 0 {
		t.Fatal("nothing waits at the leader")
	}
	p.r.Cancel(500)
	p.r.Revalidate(600, 50, 100, [16]byte{7}, 4000)
	l.run()
	l.hold = false
	for range 20 {
		for _, nd := range l.nodes {
			nd.r.Persisted(nd.seq)
		}
		l.run()
	}
	if len(p.answers) != 1 || p.answers[0].Validity != Valid {
		t.Fatalf("answers %+v", p.answers)
	}
	last := kv.Zxid(0)
	for i := range 12 {
		_, st, err := p.tree.View().As(kv.AllCredentials).Get("/n" + string(rune('a'+i)))
		if err != nil {
			t.Fatalf("create %d: %v", i, err)
		}
		last = max(last, kv.Zxid(st.Czxid))
	}
	if p.answers[0].Fresh < last {
		t.Errorf("resumed at %v, and a write of the old connection was executed at %v", p.answers[0].Fresh, last)
	}
}

// The leader dies around the tick in which it ends a silent session, before and after its decision is on other disks. The
// session is over everywhere, or it lives everywhere with its full time-out; who asks for it meanwhile hears nothing wrong.
func TestLeaderDiesAsASessionExpires(t *testing.T) {
	const timeoutTicks = 4000 / 50
	for _, held := range []bool{false, true} {
		outcomes := map[int]int{} // by the sessions that are left
		for at := timeoutTicks - 3; at <= timeoutTicks+6; at++ {
			l := newLab(t, 3, func(c *Config) { c.SyncTicks, c.StallTicks = 1000, 1000 })
			nd := l.nodes[0]
			nd.open(1, 100)
			for i := range at {
				l.hold = held && i >= timeoutTicks-3 // the decision is proposed and logged, and acknowledged by nobody
				l.tick(false)
			}
			nd.r.Revalidate(50, 50, 100, [16]byte{7}, 4000)
			l.run()
			told := len(nd.answers)
			leader := l.succeedHeld()
			l.ticks(2)
			left := 0
			for _, m := range l.running() {
				left += m.tree.View().SessionCount()
			}
			if left != 0 && left != 2 {
				t.Fatalf("held %v, tick %d: members disagree", held, at)
			}
			if len(nd.answers) == 0 {
				t.Fatalf("held %v, tick %d: the client hears nothing", held, at)
			}
			v := nd.answers[len(nd.answers)-1]
			for _, a := range nd.answers {
				if a.Validity != NoAnswer && (a.Validity == Gone) != (left == 0) {
					t.Errorf("held %v, tick %d: %d sessions, told %+v before the leader died: %d", held, at, left, a, told)
				}
			}
			outcomes[left]++
			if left == 2 {
				ticks := 0
				for ; ticks < 1000 && leader.tree.View().SessionCount() > 0; ticks++ {
					l.tick(false)
				}
				if v.Validity == Valid && (ticks < timeoutTicks-4 || ticks > timeoutTicks+10) {
					t.Errorf("held %v, tick %d: the session lived %d ticks more", held, at, ticks)
				}
			}
		}
		if outcomes[0] == 0 || outcomes[2] == 0 {
			t.Errorf("held %v: outcomes %v, not all that there are", held, outcomes)
		}
	}
}

// succeedHeld is succeed after a time in which no disk answered: those of the survivors do first.
func (l *lab) succeedHeld() *node {
	l.leader().down = true
	l.hold = false
	for _, nd := range l.running() {
		nd.r.Persisted(nd.seq)
	}
	l.leader().down = false
	return l.succeed()
}

// A client gives up on a member that does not answer and resumes its session at another one. What it had asked the first
// member arrives late and wins. Its pings, all that a holder of a lock sends, keep its session alive all the same, and
// a write shows it that it must come back.
func TestPingsOfTheOlderConnectionCount(t *testing.T) {
	for name, same := range map[string]bool{"two members": false, "one member": true} {
		l := newLab(t, 3, nil)
		slow, quick := l.nodes[0], l.nodes[1]
		if same {
			quick = slow
		}
		slow.open(1, 100)
		at := quick.resume(2, 1000)
		late := slow.resume(3, 3000)
		for range 200 {
			quick.r.Touch(100, at.TimeoutMs, at.Claim)
			l.tick(false)
		}
		if s := l.leader().r.lead.sessions.get(100); s == nil || s.owner != slow.id || s.claim != late.Claim || s.timeoutMs != 3000 {
			t.Fatalf("%s: session %+v", name, s)
		}
		ticks := 0
		for ; ticks < 1000 && l.leader().tree.View().SessionCount() > 0; ticks++ {
			l.tick(false)
		}
		if ticks < 60-4 || ticks > 60+10 {
			t.Errorf("%s: lived for %d ticks in silence", name, ticks)
		}
	}
}
