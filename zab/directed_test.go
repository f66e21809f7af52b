package zab

import (
	"slices"
	"strings"
	"testing"

	"kvd/kv"
	"kvd/zab/quorum"
)

// entriesUpTo is a log 1:1..1:n, the same for everybody.
func entriesUpTo(c *cluster, n int) []kv.Entry {
	var es []kv.Entry
	chain := kv.ChainSeed()
	for i := 1; i <= n; i++ {
		z := kv.MakeZxid(1, uint32(i))
		payload := []byte(z.String())
		chain = kv.ChainDigest(chain, z, payload)
		c.seen[z] = chain
		es = append(es, kv.Entry{Zxid: z, Chain: chain, Payload: payload})
	}
	return es
}

// givenLog restarts members with log 1:1..1:n and both epochs 1.
func givenLog(c *cluster, n int, ids ...quorum.MemberID) {
	for _, id := range ids {
		d := &testDisk{hist: entriesUpTo(c, n)}
		d.st.Last, d.st.LastChain = d.tip(n)
		d.st.Current, d.st.Accepted.Epoch = 1, 1
		c.nodes[id].disk = d
		c.epochs[id] = [2]kv.Epoch{}
		c.start(id)
	}
}

// exchange delivers everything between two members, one direction after the other, n times.
func (c *cluster) exchange(from, to quorum.MemberID) {
	if l := c.between(from, to); l != nil {
		for c.link(l.id) != nil && c.deliver(l, to) {
		}
	}
}

func (c *cluster) leave(id quorum.MemberID) {
	c.nodes[id].do(func(p *Peer) { p.Look("test") })
	c.pump(c.nodes[id])
	c.settle()
}

func (c *cluster) join(id, leader quorum.MemberID) {
	c.nodes[id].decide(leader)
	c.pump(c.nodes[id])
	c.connect(c.nodes[id])
}

// duel is S07 with five members: s1 promises epoch 2 to s3, then tells s2, whose epoch is 2 as well, that it has promised
// already. s2 and s4 hold 1:6, which epoch 2's history, established by s3, lacks.
func duel(mut Mutations) *cluster {
	cfg := testConfig()
	cfg.Mutations = mut
	c := newCluster(5, 0, cfg)
	givenLog(c, 5, 1, 3, 5)
	givenLog(c, 6, 2, 4)
	c.nodes[2].decide(2)
	c.pump(c.nodes[2])
	for _, id := range []quorum.MemberID{1, 4} {
		c.join(id, 2)
		c.exchange(id, 2)
	}
	c.persist(c.nodes[2], 0) // LEADERINFO(2) is on its way to s1 and s4
	c.leave(1)
	c.nodes[3].decide(3)
	c.pump(c.nodes[3])
	for _, id := range []quorum.MemberID{1, 5} {
		c.join(id, 3)
		c.exchange(id, 3)
	}
	c.persist(c.nodes[3], 0)
	c.exchange(3, 1)
	c.persist(c.nodes[1], 0) // promised to s3; its ACKEPOCH is lost
	c.leave(1)
	c.join(1, 2)
	c.exchange(1, 2)
	c.exchange(2, 1)
	c.exchange(1, 2) // already promised
	c.leave(1)
	c.join(1, 3)
	for range 4 {
		for _, id := range []quorum.MemberID{1, 5} {
			c.exchange(id, 3)
			c.exchange(3, id)
			c.persist(c.nodes[id], 0)
		}
		c.persist(c.nodes[3], 0)
	}
	for range 4 {
		c.exchange(2, 4)
		c.persist(c.nodes[4], 0)
		c.exchange(4, 2)
		c.persist(c.nodes[2], 0)
	}
	return c
}

// TestMutationCountAlreadyPromised: the directed duel is clean, and caught if the mark is ignored.
func TestMutationCountAlreadyPromised(t *testing.T) {
	c := duel(Mutations{})
	ok(t, c)
	if est := c.est[2]; est.who != 3 {
		t.Fatalf("epoch 2 is established by %d, want 3", est.who)
	}
	if st := c.nodes[2].p.Status(); st.Role != Leading || st.Stage != Discovery {
		t.Errorf("s2 is %s/%s, want leading/discovery", st.Role, st.Stage)
	}
	if c := duel(Mutations{CountAlreadyPromised: true}); !strings.HasPrefix(c.violation, "P9") {
		t.Errorf("counting it goes unnoticed: %q", c.violation)
	}
}

// staleWithLargerZxid is S04: epoch 2 is established without a write; s4, which slept, has a larger zxid of epoch 1.
func staleWithLargerZxid(mut Mutations) *cluster {
	cfg := testConfig()
	cfg.Mutations = mut
	c := newCluster(5, 0, cfg)
	givenLog(c, 5, 1, 2, 3, 5)
	givenLog(c, 6, 4)
	c.crash(4)
	c.crash(5)
	c.elect(3, 1, 2)
	c.stabilize()
	c.crash(3)
	c.start(4)
	c.elect(4, 1, 2)
	c.stabilize()
	return c
}

// TestMutationRecencyByZxidOnly: current epoch comes before zxid (ZK-1082).
func TestMutationRecencyByZxidOnly(t *testing.T) {
	c := staleWithLargerZxid(Mutations{})
	ok(t, c)
	if c.nodes[4].role.Role != Looking {
		t.Errorf("s4 is %s, want looking", c.nodes[4].role.Role)
	}
	for _, mut := range []Mutations{{RecencyByZxidOnly: true}, {RecencyCheckSkipped: true}} {
		if c := staleWithLargerZxid(mut); !strings.HasPrefix(c.violation, "P9") {
			t.Errorf("%+v goes unnoticed: %q", mut, c.violation)
		}
	}
}

// TestMutationCurrentEpochBeforeHistory is S14: power fails between the two writes that should be one.
func TestMutationCurrentEpochBeforeHistory(t *testing.T) {
	run := func(mut Mutations) *cluster {
		cfg := testConfig()
		cfg.Mutations = mut
		c := newCluster(3, 0, cfg)
		givenLog(c, 5, 1)
		givenLog(c, 6, 2, 3)
		c.g = entriesUpTo(c, 6) // s2 and s3 have committed it
		c.crash(2)
		c.nodes[1].held = true
		c.elect(3, 1)
		c.stabilize()
		c.persist(c.nodes[1], 0)
		c.stabilize()
		c.persist(c.nodes[1], 1)
		c.crash(1)
		c.crash(3)
		c.start(1)
		c.start(2)
		c.nodes[1].held = false
		c.elect(1, 2)
		c.stabilize()
		return c
	}
	ok(t, run(Mutations{}))
	if c := run(Mutations{CurrentEpochBeforeHistory: true}); c.violation == "" {
		t.Error("goes unnoticed")
	}
}

// TestMutationAckNewLeaderBeforeBatch is S15 with P11 left out of the checks: the loss itself must show.
func TestMutationAckNewLeaderBeforeBatch(t *testing.T) {
	run := func(mut Mutations) *cluster {
		cfg := testConfig()
		cfg.Mutations = mut
		c := newCluster(3, 0, cfg)
		givenLog(c, 5, 1, 2)
		givenLog(c, 6, 3)
		c.crash(2)
		c.elect(3, 1)
		c.nodes[1].held = true
		c.stabilize()
		c.persist(c.nodes[1], 1) // the promise
		c.stabilize()            // NEWLEADER's batch hangs
		if strings.HasPrefix(c.violation, "P11") {
			c.violation = ""
		}
		c.stabilize()
		c.check()
		return c
	}
	c := run(Mutations{})
	ok(t, c)
	if c.nodes[3].p.Status().Established {
		t.Error("established without the batch")
	}
	if c := run(Mutations{AckNewLeaderBeforeBatch: true}); !strings.HasPrefix(c.violation, "P8") {
		t.Errorf("goes unnoticed: %q", c.violation)
	}
}

// TestRollingUpgrade: an older member serves beside newer ones while the old level is active, upgrades and goes back; once
// the level is raised it is refused by name at both sides and counted nowhere.
func TestRollingUpgrade(t *testing.T) {
	older, newer := VersionRange{1, 1}, VersionRange{1, 2}
	c := newCluster(3, 0, testConfig())
	run := func(leader quorum.MemberID, versions ...VersionRange) {
		t.Helper()
		for i, v := range versions {
			id := quorum.MemberID(i + 1)
			c.crash(id)
			c.nodes[id].cfg.Protocol, c.nodes[id].cfg.Format = v, v
			c.start(id)
		}
		var by []quorum.MemberID
		for _, id := range c.members.Voters {
			if id != leader {
				by = append(by, id)
			}
		}
		c.elect(leader, by...)
		c.stabilize()
		if err := c.nodes[leader].propose("x"); err != nil {
			t.Fatal(err)
		}
		c.pump(c.nodes[leader])
		c.stabilize()
		ok(t, c)
		for _, n := range c.nodes {
			if len(n.applied) != len(c.g) {
				t.Fatalf("member %d applied %d of %d", n.id, len(n.applied), len(c.g))
			}
		}
	}
	want := func(leader quorum.MemberID, level uint32) {
		t.Helper()
		st := c.nodes[leader].p.Status()
		if !st.AllVoters || st.Supported != (Levels{level, level}) {
			t.Errorf("supported %+v all=%t, want %d", st.Supported, st.AllVoters, level)
		}
	}
	run(3, older, older, older)
	want(3, 1)
	run(3, newer, older, older) // a new follower under an old leader
	want(3, 1)
	run(1, newer, older, newer) // a new leader with an old follower
	want(1, 1)
	run(1, newer, newer, newer)
	want(1, 2)
	run(2, older, newer, newer) // and back
	want(2, 1)
	run(3, newer, newer, newer)
	want(3, 2)

	// A voter that is away says nothing about what it can serve when it returns.
	c.crash(1)
	if st := c.nodes[3].p.Status(); st.AllVoters || st.Supported != (Levels{1, 1}) {
		t.Errorf("supported %+v all=%t with a voter away", st.Supported, st.AllVoters)
	}

	// The level is raised; the old binary comes back. It knows level 1 from its own disk.
	raised := Levels{2, 2}
	for _, id := range []quorum.MemberID{2, 3} {
		c.nodes[id].cfg.Levels = raised
		c.nodes[id].do(func(p *Peer) { p.SetLevels(raised) })
		c.pump(c.nodes[id])
	}
	c.nodes[1].cfg.Protocol, c.nodes[1].cfg.Format = older, older
	c.start(1)
	c.join(1, 3)
	c.stabilize()
	ok(t, c)
	if c.nodes[1].role.Role != Looking || !strings.Contains(c.nodes[1].role.Reason, "member 1: active protocol level 2 is outside the supported 1-1") {
		t.Errorf("the old member is %s: %q", c.nodes[1].role.Role, c.nodes[1].role.Reason)
	}
	if !slices.ContainsFunc(c.nodes[3].events, func(e string) bool {
		return strings.HasPrefix(e, "refused peer=1") && strings.Contains(e, "level 2")
	}) {
		t.Error("the leader did not refuse it by name")
	}
	// An old leader cannot take a new one's place either: its learners refuse it.
	c.nodes[1].cfg.Levels = Levels{1, 1}
	c.elect(1, 2, 3)
	c.stabilize()
	if c.nodes[1].p.Status().Established {
		t.Error("a leader that cannot serve the active level is established")
	}
	// A learner refuses a leader whose level it cannot serve, by name.
	p, err := New(func() Config { v := c.nodes[1].cfg; return v }(), c.nodes[1].disk.st, c.nodes[1].disk)
	if err != nil {
		t.Fatal(err)
	}
	p.Follow(3)
	p.LinkUp(3, 99, true)
	p.Ready()
	p.Step(3, 99, &LeaderInfo{Epoch: 50, Incarnation: 1, Levels: raised})
	rd := p.Ready()
	if m, isRefuse := rd.Send[len(rd.Send)-1].Msg.(*Refuse); !isRefuse || !strings.Contains(m.Reason, "member 1") || len(rd.CloseLinks) != 1 {
		t.Errorf("sent %v, closed %v", rd.Send, rd.CloseLinks)
	}
	if _, err := New(func() Config { v := c.nodes[1].cfg; v.Levels = raised; return v }(), c.nodes[1].disk.st, c.nodes[1].disk); err == nil {
		t.Error("a member starts below the active level of its own tree")
	}
}
