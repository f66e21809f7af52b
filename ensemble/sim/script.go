package sim

import (
	"context"
	"fmt"

	"kvd/fle"
	"kvd/kv"
	"kvd/snapshot"
	"kvd/zab"
	"kvd/zab/quorum"

	"kvd/ensemble/replica"
)

// The verbs of zab-rules e that set the scene and drive it: given, elect, w, read, sync. The others are methods beside
// what they act on: Crash, CrashAt, Start, Pause, Resume, Cut, Isolate, Heal, Hold, Release, Drop, DiskHang, DiskFail, Run,
// Until.

// NewScript returns an ensemble for a directed scenario: no random faults, short delays, everything traced, and timers as
// the random schedules have them.
func NewScript(opt Options) *Sim {
	opt.Trace = true
	tune := opt.Tune
	opt.Tune = func(id quorum.MemberID, c *replica.Config) {
		c.InitTicks, c.SyncTicks, c.PingTicks = scriptInitTicks, scriptSyncTicks, 2
		if tune != nil {
			tune(id, c)
		}
	}
	s := New(opt)
	s.calm = true
	return s
}

const (
	scriptInitTicks = 20
	scriptSyncTicks = 10
)

// Span is a run of entries in a Disk: epoch, and the counters 1 to Last.
type Span struct {
	Epoch kv.Epoch
	Last  uint32
}

// Disk is what Given puts on a disk.
type Disk struct {
	Accepted, Current kv.Epoch
	Log               []Span
	// Base, if not 0, makes the entries up to it a snapshot.
	Base kv.Zxid
}

// Given sets the durable state of a member that is down. Equal zxids get equal entries everywhere; they change nothing in
// the tree.
func (s *Sim) Given(d Disk, ids ...quorum.MemberID) {
	for _, id := range ids {
		m := s.member(id)
		if m.Up {
			panic("sim: given for a running member")
		}
		c := emptyContent()
		c.accepted, c.current = zab.Promise{Epoch: d.Accepted}, d.Current
		tree := kv.NewTree(nil)
		for _, sp := range d.Log {
			for n := uint32(1); n <= sp.Last; n++ {
				_, chain := c.last()
				e := givenEntry(kv.MakeZxid(sp.Epoch, n), chain)
				c.entries = append(c.entries, e)
				if err := tree.Apply([]kv.Entry{e}, nil); err != nil {
					panic(err)
				}
				if e.Zxid == d.Base {
					v := tree.View()
					p, err := m.disk.store.WriteFull(context.Background(), snapshot.Meta{Zxid: v.Zxid(), Chain: v.Chain(), Digest: v.Digest()}, records(v.Records))
					if err != nil {
						panic(err)
					}
					m.disk.store.Sync()
					c.points = []point{{e.Zxid, e.Chain, p}}
					c.base, c.baseChain, c.logStart, c.logStartChain = e.Zxid, e.Chain, e.Zxid, e.Chain
					c.entries = nil
				}
			}
		}
		m.disk.content = c
		s.ghost.given(m)
	}
}

// givenEntry is a refused transaction of the leader's own: it takes its place in the history and changes nothing.
func givenEntry(z kv.Zxid, prev uint64) kv.Entry {
	payload := kv.NewPreparer(kv.NewView, kv.PreparerOptions{}).PrepareError(nil, z, kv.TxnHeader{Kind: kv.OpSetData, Time: int64(z)}, kv.CodeNoNode)
	return kv.Entry{Zxid: z, Chain: kv.ChainDigest(prev, z, payload), Payload: payload}
}

// GivenCommitted says that what member id's disk holds up to z was committed before the scenario began.
func (s *Sim) GivenCommitted(id quorum.MemberID, z kv.Zxid) {
	g, m := &s.ghost, s.member(id)
	for i := range m.disk.entries {
		if e := &m.disk.entries[i]; e.Zxid <= z {
			g.pos[e.Zxid] = len(g.g)
			g.g = append(g.g, committed{e.Zxid, e.Chain})
		}
	}
	for _, o := range s.members {
		g.of(o).match = g.matching(&o.disk.content, 0, nil)
	}
	g.checkQuorums()
}

// Elect drives votes so that the members in by choose leader: each of them hears from all the others in by that they vote
// for it, and no real notification arrives meanwhile. It reports whether all of them left LOOKING.
func (s *Sim) Elect(leader quorum.MemberID, by ...quorum.MemberID) bool {
	s.logf("elect %d by %v", leader, by)
	quiet := s.Drop(func(m *Message) bool {
		return m.kind == replica.KindNotification && m.Zab == nil && m.files == nil && m.link == nil
	})
	defer s.Release(quiet)
	s.round += 1000
	for range 3 { // a quorum of equal votes, then the finalize wait
		for _, id := range by {
			m := s.member(id)
			if m.role.Role != zab.Looking {
				continue
			}
			last, _ := s.member(leader).disk.last()
			vote := fle.Vote{Leader: leader, Epoch: s.member(leader).disk.current, Zxid: last}
			if id != leader {
				vote.Epoch = 1 << 30 // better than anybody's own
			}
			for _, from := range by {
				if from != id {
					b := fle.AppendNotification(nil, fle.Notification{From: from, State: fle.Looking, Round: s.round, Vote: vote, ConfigVersion: 1})
					m.rep.ElectionMessage(from, replica.KindNotification, b)
				}
			}
			m.run()
		}
		if s.Until(8, func() bool { return s.decided(by) }) {
			return true
		}
	}
	return false
}

func (s *Sim) decided(ids []quorum.MemberID) bool {
	for _, id := range ids {
		if s.member(id).role.Role == zab.Looking {
			return false
		}
	}
	return true
}

// At returns a client with a session on member id, which must serve. It makes no operations of its own.
func (s *Sim) At(id quorum.MemberID) *Client {
	for _, c := range s.clients {
		if c.quiet && c.member == s.member(id) && c.state == ready {
			return c
		}
	}
	c := &Client{sim: s, ID: len(s.clients) + 1, timeoutMs: sessionMs, quiet: true}
	s.clients = append(s.clients, c)
	c.connectTo(s.member(id))
	if !s.Until(100, func() bool { return c.state == ready }) {
		s.fail("script", "no session on member %d: %s", id, s.describe())
	}
	s.after(20, nil, "client", c.keepAlive)
	return c
}

func (c *Client) keepAlive() {
	if c.stopped {
		return
	}
	if m := c.member; c.state == ready && m.Up && !m.paused {
		m.touched(c)
		m.rep.Touch(c.session, c.timeoutMs, c.claim)
		m.run()
	}
	c.sim.after(200, nil, "client", c.keepAlive)
}

// W begins a client write through a member: the node /v is created. Its Outcome changes as the scenario goes on.
func (s *Sim) W(via quorum.MemberID, v string) *Op {
	c := s.At(via)
	if s.failure != nil {
		return &Op{}
	}
	op := c.submit(kv.Request{Op: kv.OpCreate, Path: "/" + v, Data: []byte(v), ACL: kv.OpenACL()})
	s.member(via).run()
	return op
}

// OK runs until the operation is answered, and reports whether it was with success.
func (s *Sim) OK(op *Op) bool {
	return s.Until(200, func() bool { return op.Outcome != Pending }) && op.Outcome == OK && op.Code == kv.CodeOK
}

// SyncRead does a sync and a read of /v at a member. answered is false if the sync was not confirmed within the given ticks.
func (s *Sim) SyncRead(c *Client, v string, ticks int) (found, answered bool) {
	finished := false
	c.syncRead(func(view *kv.View, ok bool) {
		finished = true
		if ok {
			_, err := view.Exists("/" + v)
			found, answered = err == nil, true
		}
	})
	c.member.run()
	s.Until(ticks, func() bool { return finished })
	return found, answered
}

// Has reports whether a member's tree has /v.
func (s *Sim) Has(id quorum.MemberID, v string) bool {
	_, err := s.member(id).tree.View().Exists("/" + v)
	return err == nil
}

// Established runs until a leader of an epoch above after is established.
func (s *Sim) Established(ticks int, after kv.Epoch) *Member {
	s.Until(ticks, func() bool { l := s.Leader(); return l != nil && l.role.Epoch > after })
	if l := s.Leader(); l != nil && l.role.Epoch > after {
		return l
	}
	return nil
}

// Last returns the end of a member's durable history.
func (m *Member) Last() kv.Zxid { z, _ := m.disk.last(); return z }

// Role returns what the member is doing.
func (m *Member) Role() zab.RoleChange { return m.role }

// String names the state for test logs.
func (m *Member) String() string {
	return fmt.Sprintf("member %d (%v %v, epoch %d; %s)", m.ID, m.role.Role, m.role.Stage, m.role.Epoch, describe(&m.disk.content))
}
