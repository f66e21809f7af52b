package zab

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"kvd/kv"
	"kvd/zab/quorum"
)

// up returns a serving ensemble led by the highest voter.
func up(t *testing.T, voters, observers int, cfg Config) *cluster {
	t.Helper()
	c := newCluster(voters, observers, cfg)
	var by []quorum.MemberID
	for _, id := range c.members.Members() {
		if id != quorum.MemberID(voters) {
			by = append(by, id)
		}
	}
	c.elect(quorum.MemberID(voters), by...)
	c.stabilize()
	ok(t, c)
	return c
}

// tickAll ticks everybody n times, everything that is not blocked or held moving in between.
func (c *cluster) tickAll(n int) {
	for range n {
		for _, id := range c.members.Members() {
			c.tick(c.nodes[id])
		}
		c.stabilize()
	}
}

func TestProposeIsBounded(t *testing.T) {
	cfg := testConfig()
	cfg.MaxOutstandingEntries, cfg.MaxOutstandingBytes, cfg.MaxPayloadBytes = 5, 1000, 600
	c := up(t, 3, 0, cfg)
	lead := c.nodes[3]
	c.nodes[1].held, c.nodes[2].held = true, true
	for i := range 5 {
		if err := lead.propose(fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := lead.propose("one more"); !errors.Is(err, ErrBusy) {
		t.Errorf("beyond the count: %v, want ErrBusy", err)
	}
	c.nodes[1].held = false
	c.pump(lead)
	c.stabilize()
	if err := lead.propose(strings.Repeat("x", 600)); err != nil {
		t.Errorf("after the commit: %v", err)
	}
	c.pump(lead)
	c.nodes[1].held = true
	if err := lead.propose(strings.Repeat("x", 600)); err != nil {
		t.Errorf("one below the byte bound may exceed it: %v", err)
	}
	if err := lead.propose("y"); !errors.Is(err, ErrBusy) {
		t.Errorf("beyond the bytes: %v, want ErrBusy", err)
	}
	if err := lead.propose(strings.Repeat("x", 601)); !errors.Is(err, ErrBusy) && !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	c.nodes[1].held = false
	c.pump(lead)
	c.stabilize()
	if err := lead.propose(strings.Repeat("x", 601)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v, want ErrTooLarge", err)
	}
	if err := c.nodes[1].propose("z"); !errors.Is(err, ErrNotLeader) {
		t.Errorf("at a follower: %v, want ErrNotLeader", err)
	}
	st := lead.p.Status()
	if st.OutstandingCount != 0 || st.OutstandingBytes != 0 {
		t.Errorf("%d entries, %d bytes outstanding after all is committed", st.OutstandingCount, st.OutstandingBytes)
	}
}

// TestSlowApplierIsBounded: what is committed faster than it is applied waits in the log, not in the applier's queue
// (design rule 9), and goes on as soon as the applier reports.
func TestSlowApplierIsBounded(t *testing.T) {
	const bound, each, batches = 16, 5, 200
	for _, who := range []quorum.MemberID{1, 3} { // a follower, the leader
		for _, tail := range []int{1 << 20, 1000} { // what waits stays in memory, or does not
			h := newHotPath(t)
			slow := h.peers[who]
			slow.cfg.MaxOutstandingEntries, slow.cfg.TailBytes = bound, tail
			h.held[who] = true
			for range batches {
				h.batch(t, each)
			}
			entries := func() (n int) {
				for _, a := range h.waiting[who] {
					n += len(a.Entries)
				}
				return n
			}
			if n := entries(); n > bound || n <= bound-each || len(h.waiting[who]) < 2 {
				t.Errorf("member %d: %d entries in %d pieces wait for its applier, bound %d", who, n, len(h.waiting[who]), bound)
			}
			if got := h.peers[1].Status().Committed; got.Counter() != each*batches {
				t.Errorf("member %d's applier held back the commits: %s", who, got)
			}
			// Piece by piece everything comes, in order, and never more at once.
			at, pieces := kv.Zxid(0), 0
			for len(h.waiting[who]) > 0 {
				a := h.waiting[who][0]
				h.waiting[who] = h.waiting[who][1:]
				if a.After != at && at != 0 {
					t.Fatalf("member %d: (%s, %s] after %s", who, a.After, a.Through, at)
				}
				at, pieces = a.Through, pieces+1
				slow.Applied(at)
				h.run()
				if n := entries(); n > bound {
					t.Fatalf("member %d: %d entries wait for its applier, bound %d", who, n, bound)
				}
			}
			if want := slow.Status().Committed; at != want || slow.Status().Applied != want || slow.handed.entries != 0 || slow.handed.bytes != 0 {
				t.Errorf("member %d: applied %s of %s in %d pieces, %+v left", who, at, want, pieces, slow.handed)
			}
		}
	}
}

// TestSlowApplierIsBoundedInBytes: large entries are held back by their size.
func TestSlowApplierIsBoundedInBytes(t *testing.T) {
	h := newHotPath(t)
	h.peers[1].cfg.MaxOutstandingBytes = 1000
	h.held[1] = true
	for range 50 {
		h.batch(t, 4)
	}
	n := 0
	for _, a := range h.waiting[1] {
		for i := range a.Entries {
			n += entryBytes(&a.Entries[i])
		}
	}
	if n < 500 || n > 1000+entryBytes(&h.waiting[1][0].Entries[0]) {
		t.Errorf("%d bytes wait for the applier, bound 1000", n)
	}
}

// TestSlowLearnerLagsAndOthersGoOn: memory for one learner is its window; the quorum does not wait for it (L6, S56).
func TestSlowLearnerLagsAndOthersGoOn(t *testing.T) {
	cfg := testConfig()
	cfg.WindowEntries, cfg.TailBytes = 10, 2000
	cfg.SyncTicks = 1000
	c := up(t, 3, 0, cfg)
	c.nodes[1].held = true
	for range 1500 {
		if err := c.nodes[3].propose("v"); err != nil {
			t.Fatal(err)
		}
		c.pump(c.nodes[3])
		c.stabilize()
	}
	ok(t, c)
	if n := len(c.nodes[2].applied); n != 1500 {
		t.Errorf("the other follower applied %d of 1500", n)
	}
	pr := c.nodes[3].p.leader.find(1)
	if pr.window.entries > 10 {
		t.Errorf("%d entries on the way to the slow one, window 10", pr.window.entries)
	}
	if z, needed := c.nodes[3].p.OldestNeeded(); !needed || z != pr.cursor {
		t.Errorf("oldest needed %s,%t, want the slow one's cursor %s", z, needed, pr.cursor)
	}
	if b := c.nodes[3].p.tail.bytes; b > 2000+chunkEntries*entryBytes(&kv.Entry{Payload: []byte("v")}) {
		t.Errorf("%d bytes in memory, limit 2000 and one chunk", b)
	}
	c.nodes[1].held = false
	c.stabilize()
	ok(t, c)
	if n := len(c.nodes[1].applied); n != 1500 {
		t.Errorf("the slow one applied %d of 1500", n)
	}
}

// TestUnackedProposalClosesLink: a learner whose disk hangs, but which answers pings, loses its link after the stall limit;
// the leader goes on (zab-rules c, timeouts).
func TestUnackedProposalClosesLink(t *testing.T) {
	c := up(t, 3, 0, testConfig())
	c.nodes[1].held = true
	if err := c.nodes[3].propose("a"); err != nil {
		t.Fatal(err)
	}
	c.pump(c.nodes[3])
	c.tickAll(5 * testConfig().SyncTicks)
	if c.nodes[3].p.leader.find(1) == nil {
		t.Fatal("the link was closed before the stall limit")
	}
	c.tickAll(1)
	ok(t, c)
	if c.nodes[3].p.leader.find(1) != nil || c.nodes[1].role.Role != Looking {
		t.Errorf("the link is still up; member 1 is %s", c.nodes[1].role.Role)
	}
	if c.nodes[3].role.Role != Leading || len(c.nodes[2].applied) != 1 {
		t.Errorf("the leader is %s, member 2 applied %d", c.nodes[3].role.Role, len(c.nodes[2].applied))
	}
}

// TestSilentLeaderIsLeft: a follower that hears nothing leaves within the sync limit and one tick (L4).
func TestSilentLeaderIsLeft(t *testing.T) {
	c := up(t, 3, 0, testConfig())
	for range testConfig().SyncTicks {
		c.tick(c.nodes[1])
	}
	if c.nodes[1].role.Role != Following {
		t.Fatalf("left early: %q", c.nodes[1].role.Reason)
	}
	c.tick(c.nodes[1])
	if c.nodes[1].role.Role != Looking {
		t.Error("still follows")
	}
}

// TestIdleEnsembleStaysUp: pings keep everybody, and nothing is written.
func TestIdleEnsembleStaysUp(t *testing.T) {
	c := up(t, 3, 1, testConfig())
	seq := c.nodes[3].p.nextSeq
	c.tickAll(200)
	ok(t, c)
	for _, n := range c.nodes {
		if n.role.Stage != Broadcast {
			t.Errorf("member %d is %s: %q", n.id, n.role.Role, n.role.Reason)
		}
	}
	if c.nodes[3].p.nextSeq != seq {
		t.Error("an idle leader writes")
	}
}

// TestLeaderWithHungDiskResigns: an own write older than the stall limit ends the reign (S43).
func TestLeaderWithHungDiskResigns(t *testing.T) {
	c := up(t, 3, 0, testConfig())
	c.nodes[3].held = true
	if err := c.nodes[3].propose("a"); err != nil {
		t.Fatal(err)
	}
	c.pump(c.nodes[3])
	c.tickAll(5 * testConfig().SyncTicks)
	if c.nodes[3].role.Role != Leading || len(c.nodes[3].applied) != 0 || len(c.nodes[1].applied) != 1 {
		t.Fatalf("leader %s applied %d, follower applied %d", c.nodes[3].role.Role, len(c.nodes[3].applied), len(c.nodes[1].applied))
	}
	c.tickAll(1)
	if c.nodes[3].role.Role != Looking || c.nodes[3].p.Drained() {
		t.Errorf("leader is %s, drained %t", c.nodes[3].role.Role, c.nodes[3].p.Drained())
	}
	// It takes no part before the disk has answered.
	c.nodes[3].decide(2)
	c.pump(c.nodes[3])
	if c.nodes[3].dial != nil {
		t.Error("dials with a write in flight")
	}
	c.nodes[3].held = false
	c.persist(c.nodes[3], 0)
	if c.nodes[3].dial == nil {
		t.Error("does not dial once drained")
	}
	ok(t, c)
}

// TestHungDiskRule is design rule 10: resign early only if a quorum made of others reports disks that are well.
func TestHungDiskRule(t *testing.T) {
	for _, tc := range []struct {
		name         string
		own, a, b    uint32
		wantStepDown bool
	}{
		{"others well", 1500, 10, 20, true},
		{"below the limit", 999, 0, 0, false},
		{"everybody stalls", 1500, 800, 900, false},
		{"one of two well is no quorum of others", 1500, 10, 900, false},
		{"just under half", 2000, 999, 999, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := up(t, 3, 0, testConfig())
			c.nodes[1].p.SetDisk(tc.a, 1)
			c.nodes[2].p.SetDisk(tc.b, 1)
			c.tickAll(4)
			c.nodes[3].p.SetDisk(tc.own, 1)
			c.tick(c.nodes[3])
			if got := c.nodes[3].role.Role == Looking; got != tc.wantStepDown {
				t.Errorf("stepped down: %t, want %t (%s)", got, tc.wantStepDown, c.nodes[3].role.Reason)
			}
		})
	}
}

// TestLongSyncIsBoundedByProgress: a synchronization that takes many init limits succeeds as long as it moves, and fails
// when it stops (ZK-1697, S55).
func TestLongSyncIsBoundedByProgress(t *testing.T) {
	cfg := testConfig()
	cfg.InitTicks, cfg.MaxBatchBytes, cfg.WindowEntries, cfg.StageBytes = 5, 60, 2, 100
	c := newCluster(3, 0, cfg)
	givenLog(c, 60, 2, 3)
	c.elect(3, 2)
	c.stabilize()
	c.join(1, 3)
	ticks := 0
	for ; c.nodes[1].role.Stage != Broadcast && ticks < 400; ticks++ {
		if c.nodes[1].role.Role == Looking {
			t.Fatalf("tick %d: left: %s", ticks, c.nodes[1].role.Reason)
		}
		for _, id := range c.members.Members() { // one message each way and one write a tick, for member 1
			c.tick(c.nodes[id])
		}
		c.blocked = map[direction]bool{{1, 3}: true, {3, 1}: true}
		c.nodes[1].held = true
		c.stabilize()
		for range 2 {
			c.deliver(c.between(1, 3), 1)
		}
		c.deliver(c.between(1, 3), 3)
		c.persist(c.nodes[1], 1)
		c.settle()
	}
	ok(t, c)
	if ticks < 4*cfg.InitTicks {
		t.Errorf("took only %d ticks: shows nothing", ticks)
	}
	if c.nodes[1].role.Stage != Broadcast {
		t.Errorf("not synchronized after %d ticks", ticks)
	}
}

// TestUpToDateOnlyWhenCloseBehind: a learner that has acked NEWLEADER but lags by more than half a window is not released to
// clients (zab-rules g 4, ZK-3500).
func TestUpToDateOnlyWhenCloseBehind(t *testing.T) {
	cfg := testConfig()
	cfg.WindowEntries = 8
	c := up(t, 3, 0, cfg)
	c.crash(1)
	c.start(1)
	c.nodes[1].held = true
	c.join(1, 3)
	for range 3 {
		c.stabilize()
	}
	for range 30 {
		if err := c.nodes[3].propose("v"); err != nil {
			t.Fatal(err)
		}
	}
	c.pump(c.nodes[3])
	c.stabilize()
	c.persist(c.nodes[1], 1)
	c.stabilize()
	pr := c.nodes[3].p.leader.find(1)
	if pr.stage != linkLive || pr.upToDate {
		t.Fatalf("stage %s, up to date %t, lag %d", pr.stage, pr.upToDate, 30)
	}
	c.nodes[1].held = false
	c.stabilize()
	ok(t, c)
	if !pr.upToDate || c.nodes[1].role.Stage != Broadcast || len(c.nodes[1].applied) != 30 {
		t.Errorf("up to date %t, stage %s, applied %d", pr.upToDate, c.nodes[1].role.Stage, len(c.nodes[1].applied))
	}
}

// TestUnknownMembersAreRefusedByName (S53; design 8).
func TestUnknownMembersAreRefusedByName(t *testing.T) {
	c := up(t, 3, 0, testConfig())
	p := c.nodes[3].p
	for _, id := range []quorum.MemberID{9, 3} {
		p.LinkUp(id, 77, false)
		rd := p.Ready()
		m, is := rd.Send[0].Msg.(*Refuse)
		if !is || !strings.Contains(m.Reason, fmt.Sprintf("member %d is not in configuration v1", id)) || len(rd.CloseLinks) != 1 {
			t.Errorf("member %d: %v %v", id, rd.Send, rd.CloseLinks)
		}
	}
}

// TestFollowerIsNoLeader: who dials a member that follows somebody else is told so and elects again at once.
func TestFollowerIsNoLeader(t *testing.T) {
	c := up(t, 3, 0, testConfig())
	c.leave(1)
	c.join(1, 2)
	c.stabilize()
	if c.nodes[1].role.Role != Looking || c.nodes[2].role.Role != Following {
		t.Errorf("member 1 is %s, member 2 %s", c.nodes[1].role.Role, c.nodes[2].role.Role)
	}
}

// TestEarlyLearnerIsParked: a learner that finished the election earlier than its leader keeps its link.
func TestEarlyLearnerIsParked(t *testing.T) {
	c := newCluster(3, 0, testConfig())
	c.join(1, 3)
	c.stabilize()
	if c.between(1, 3) == nil || c.nodes[1].role.Role != Following {
		t.Fatal("the link did not survive")
	}
	link := c.between(1, 3).id
	c.nodes[3].decide(3)
	c.stabilize()
	ok(t, c)
	if c.nodes[1].role.Stage != Broadcast || c.between(1, 3).id != link {
		t.Errorf("stage %s on link %d, want broadcast on %d", c.nodes[1].role.Stage, c.between(1, 3).id, link)
	}
}

// TestRequestsAndReplies: opaque payloads travel only in broadcast, in order, and replies only on the link they belong to.
func TestRequestsAndReplies(t *testing.T) {
	c := newCluster(3, 0, testConfig())
	if c.nodes[1].p.SendRequest([]byte("early")) {
		t.Error("a looking member sends a request")
	}
	c = up(t, 3, 0, testConfig())
	for _, v := range []string{"a", "b"} {
		if !c.nodes[1].p.SendRequest([]byte(v)) {
			t.Fatal("not sent")
		}
	}
	c.pump(c.nodes[1])
	c.stabilize()
	in := c.nodes[3].inbound
	if len(in) != 2 || string(in[0].Payload)+string(in[1].Payload) != "ab" || in[0].From != 1 {
		t.Fatalf("the leader got %v", in)
	}
	c.nodes[3].p.SendReply(1, in[0].Link+1000, []byte("wrong link"))
	c.nodes[3].p.SendReply(1, in[0].Link, []byte("c"))
	c.pump(c.nodes[3])
	c.stabilize()
	if got := c.nodes[1].inbound; len(got) != 1 || string(got[0].Payload) != "c" {
		t.Errorf("the learner got %v", got)
	}
}

// TestPingCarriesReports: disk ages, free space, snapshot wishes and touches arrive; a granted turn goes back.
func TestPingCarriesReports(t *testing.T) {
	c := up(t, 3, 0, testConfig())
	p := c.nodes[1].p
	p.SetDisk(7, 8)
	p.SetSnapshotState(true, false)
	p.SetTouches(func() []byte { return []byte("touched") })
	lead := c.nodes[3].p
	lead.GrantSnapshotTurn(1)
	for range testConfig().PingTicks {
		lead.Tick()
	}
	rd := lead.Ready()
	for _, o := range rd.Send {
		if o.To == 1 {
			p.Step(3, o.Link, o.Msg)
		}
	}
	out := p.Ready()
	if !out.SnapshotTurn {
		t.Error("the turn did not arrive")
	}
	for _, o := range out.Send {
		lead.Step(1, o.Link, o.Msg)
	}
	rd = lead.Ready()
	if len(rd.Reports) != 1 {
		t.Fatalf("%d reports", len(rd.Reports))
	}
	r := rd.Reports[0].Reply
	if r.OldestWriteMs != 7 || r.FreeDisk != 8 || !r.WantSnapshot || string(r.Touched) != "touched" {
		t.Errorf("report %+v", r)
	}
}

// TestProtocolErrorsCloseTheLinkOnly: a learner that misbehaves loses its link; the leader goes on (zab-rules c).
func TestProtocolErrorsCloseTheLinkOnly(t *testing.T) {
	for _, m := range []Message{
		&Ack{Epoch: 1, Zxid: kv.MakeZxid(1, 99)}, &AckNewLeader{Epoch: 1, Last: kv.MakeZxid(1, 99)}, &AckNewLeader{Epoch: 1},
		&FollowerInfo{Accepted: 1, Protocol: VersionRange{1, 1}, Format: VersionRange{1, 1}}, &AckEpoch{Epoch: 1}, &PingReply{Epoch: 1, Probe: 1000},
		&LeaderInfo{Epoch: 9}, &Diff{}, &Trunc{}, &Snap{}, &Proposal{}, &Inform{}, &NewLeader{}, &UpToDate{}, &Commit{}, &Ping{}, &Reply{}, &SyncReply{},
		&Resign{}, &Refuse{Reason: "no"}, &NeedSnapshot{},
	} {
		t.Run(strings.TrimPrefix(fmt.Sprintf("%T", m), "*zab."), func(t *testing.T) {
			c := up(t, 3, 0, testConfig())
			link := c.between(1, 3).id
			c.nodes[3].do(func(p *Peer) { p.Step(1, link, m) })
			c.pump(c.nodes[3])
			c.stabilize()
			ok(t, c)
			if c.nodes[1].role.Role != Looking || c.nodes[3].role.Role != Leading {
				t.Errorf("member 1 is %s, the leader %s", c.nodes[1].role.Role, c.nodes[3].role.Role)
			}
			// Old news is ignored: another link, an older epoch.
			c.nodes[3].do(func(p *Peer) { p.Step(2, 4711, m) })
			c.nodes[3].do(func(p *Peer) { p.Step(2, c.between(2, 3).id, &Ack{Epoch: 0, Zxid: 5}) })
			c.stabilize()
			if c.nodes[2].role.Stage != Broadcast {
				t.Errorf("member 2 is %s", c.nodes[2].role.Reason)
			}
		})
	}
}

// TestObserverIsCountedNowhere lets an observer claim everything (S54).
func TestObserverIsCountedNowhere(t *testing.T) {
	c := newCluster(3, 2, testConfig())
	c.crash(1)
	c.crash(2)
	c.elect(3, 4, 5)
	c.stabilize()
	if st := c.nodes[3].p.Status(); st.Stage != Discovery || st.Epoch != 0 {
		t.Fatalf("two observers made a quorum: %s epoch %d", st.Stage, st.Epoch)
	}
	c = up(t, 3, 2, testConfig())
	c.nodes[1].held, c.nodes[2].held = true, true
	if err := c.nodes[3].propose("a"); err != nil {
		t.Fatal(err)
	}
	c.pump(c.nodes[3])
	for _, id := range []quorum.MemberID{4, 5} {
		l := c.between(id, 3).id
		c.nodes[3].do(func(p *Peer) { p.Step(id, l, &Ack{Epoch: 1, Zxid: kv.MakeZxid(1, 1)}) })
	}
	c.stabilize()
	if len(c.g) != 0 {
		t.Error("an observer's ack committed an entry")
	}
	// Only observers are heard: the leader steps down.
	c.blocked = map[direction]bool{{1, 3}: true, {2, 3}: true}
	c.nodes[3].held = false
	c.tickAll(testConfig().SyncTicks + 1)
	if c.nodes[3].role.Role != Looking {
		t.Error("observers keep a leader in office")
	}
}

// TestNoUnknownMemberInQuorum: what may have forgotten is counted neither in discovery nor in synchronization of a
// prospective leader, and syncing it does not need its vote (design rule 8, S27).
func TestUnknownMemberBecomesVoter(t *testing.T) {
	c := up(t, 3, 0, testConfig())
	if err := c.nodes[3].propose("a"); err != nil {
		t.Fatal(err)
	}
	c.pump(c.nodes[3])
	c.stabilize()
	c.crash(1)
	c.nodes[1].disk = &testDisk{st: DurableState{Unknown: true}}
	c.epochs[1] = [2]kv.Epoch{}
	c.start(1)
	c.join(1, 3)
	c.nodes[1].held = true
	for range 3 {
		c.stabilize()
	}
	c.persist(c.nodes[1], 1)
	c.stabilize()
	if pr := c.nodes[3].p.leader.find(1); pr.counted() {
		t.Error("counted before its batch is durable")
	}
	c.nodes[1].held = false
	c.stabilize()
	ok(t, c)
	if pr := c.nodes[3].p.leader.find(1); !pr.counted() || c.nodes[1].disk.st.Unknown {
		t.Error("not a voter after its batch")
	}
}

// TestSyncPoints: S36 at a single member, and what fails.
func TestSyncPoints(t *testing.T) {
	c := up(t, 1, 0, testConfig())
	n := c.nodes[1]
	n.p.Sync(1)
	c.pump(n)
	if len(n.synced) != 1 || !n.synced[0].OK {
		t.Errorf("a single member: %v", n.synced)
	}
	c = up(t, 3, 0, testConfig())
	c.blocked = map[direction]bool{{3, 1}: true}
	c.nodes[1].p.Sync(7)
	c.pump(c.nodes[1])
	c.stabilize()
	c.breakLink(c.between(1, 3))
	if s := c.nodes[1].synced; len(s) != 1 || s[0].OK || s[0].ID != 7 {
		t.Errorf("after the link broke: %v, want sync 7 not confirmed", s)
	}
	c.nodes[1].p.Sync(8)
	c.pump(c.nodes[1])
	if s := c.nodes[1].synced; len(s) != 2 || s[1].OK {
		t.Errorf("while looking: %v", s)
	}
}

// TestConfigReportsEverythingAtOnce and refuses durable states that no run leaves.
func TestConfigReportsEverythingAtOnce(t *testing.T) {
	_, err := New(Config{ID: 9, InitTicks: -1, RolloverCounter: 1, Protocol: VersionRange{1, 1}, Levels: Levels{2, 0}}, DurableState{}, nil)
	for _, want := range []string{"member 9", "Incarnation", "InitTicks", "RolloverCounter", "protocol level 2"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not mention %q: %v", want, err)
		}
	}
	c := newCluster(1, 0, testConfig())
	for _, st := range []DurableState{
		{Accepted: Promise{Epoch: 1}, Current: 2},
		{Accepted: Promise{Epoch: 1}, Current: 1, Last: kv.MakeZxid(2, 1)},
		{Accepted: Promise{Epoch: 1}, Base: kv.MakeZxid(1, 2), Last: kv.MakeZxid(1, 1)},
		{Accepted: Promise{Epoch: 1}, LogStart: kv.MakeZxid(1, 1)},
	} {
		if _, err := New(c.nodes[1].cfg, st, c.nodes[1].disk); err == nil {
			t.Errorf("%+v is accepted", st)
		}
	}
}

// TestHostileMessagesNeverPanic throws random messages at members in every stage; safety must hold at the others.
func TestHostileMessagesNeverPanic(t *testing.T) {
	for seed := range int64(300) {
		s := newSchedule(seed, Mutations{})
		for range 300 {
			s.step()
			n := s.pick()
			if n.p == nil || len(s.links) == 0 || s.rnd.IntN(10) != 0 {
				continue
			}
			p := n.p.Clone(n.disk) // the lie is told to a copy: what it breaks is not the protocol's fault
			l := s.links[s.rnd.IntN(len(s.links))]
			all := allMessages()
			z := func() kv.Zxid { return kv.MakeZxid(kv.Epoch(s.rnd.IntN(4)), uint32(s.rnd.IntN(6))) }
			e := kv.Epoch(s.rnd.IntN(5))
			all = append(all, &Proposal{Prev: z(), Entries: []kv.Entry{{Zxid: z()}, {Zxid: z()}}, Commit: z()}, &Commit{Epoch: e, Zxid: z()}, &Ack{Epoch: e, Zxid: z()},
				&AckEpoch{Epoch: e, Last: z(), Base: z(), Current: e}, &Trunc{To: z()}, &Diff{After: z()}, &Snap{Zxid: z()}, &NewLeader{Epoch: e, Last: z()},
				&AckNewLeader{Epoch: e, Last: z()}, &LeaderInfo{Epoch: e, Levels: Levels{1, 1}, Protocol: VersionRange{1, 1}, Format: VersionRange{1, 1}},
				&FollowerInfo{Accepted: maxEpoch, Protocol: VersionRange{1, 1}, Format: VersionRange{1, 1}}, &UpToDate{Epoch: e, Commit: z()})
			for range 10 {
				p.Step(l.other(n.id), l.id, all[s.rnd.IntN(len(all))])
				for rounds := 0; p.HasReady(); rounds++ {
					if rounds > 20 {
						t.Fatalf("seed %d: Ready has no end", seed)
					}
					rd := p.Ready()
					if len(rd.Apply) > 1000 {
						t.Fatalf("seed %d: %d ranges to apply", seed, len(rd.Apply))
					}
					if k := len(rd.Writes); k > 0 && s.rnd.IntN(2) == 0 {
						p.Persisted(rd.Writes[k-1].Seq)
					}
				}
				p.Tick()
				p.SnapshotChosen(l.id, z(), 1, s.rnd.IntN(2) == 0)
				p.SnapshotReceived(l.id, SnapshotRef{Zxid: z()}, s.rnd.IntN(2) == 0)
				p.LogRead(l.id, z(), nil, nil)
			}
		}
		ok(t, s.cluster)
	}
}

// TestEventsTellTheStory: role changes carry reasons, and traffic makes no events.
func TestEventsTellTheStory(t *testing.T) {
	c := up(t, 3, 0, testConfig())
	n := len(c.nodes[3].events)
	for range 20 {
		if err := c.nodes[3].propose("v"); err != nil {
			t.Fatal(err)
		}
		c.pump(c.nodes[3])
		c.stabilize()
		c.tickAll(1)
	}
	if got := c.nodes[3].events[n:]; len(got) != 0 {
		t.Errorf("traffic made events: %v", got)
	}
	if !slices.ContainsFunc(c.nodes[3].events, func(e string) bool { return strings.Contains(e, `reason="established"`) }) {
		t.Errorf("no event tells of the establishment: %v", c.nodes[3].events)
	}
}

// TestBrokenLinksAreDialledAtGrowingDistances: a link that breaks before broadcast is dialled again at once, as the promise
// may still count; if that goes on the leader is spared (each attempt may cost it a whole history).
func TestBrokenLinksAreDialledAtGrowingDistances(t *testing.T) {
	cfg := testConfig()
	cfg.ID, cfg.SyncTicks = 1, 40
	members, err := quorum.NewConfig(1, []quorum.MemberID{1, 2, 3}, nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Members, cfg.Incarnation = members, func() Incarnation { return 1 }
	p, err := New(cfg, DurableState{}, emptyHistory{})
	if err != nil {
		t.Fatal(err)
	}
	p.Follow(3)
	var at []int
	for tick, link := 0, LinkID(1); tick < 60; tick++ {
		for p.HasReady() {
			if p.Ready().Connect == nil {
				continue
			}
			at = append(at, tick)
			p.LinkUp(3, link, true)
			p.Step(3, link, &Ping{}) // the leader is alive
			p.LinkDown(3, link)
			link++
		}
		p.Tick()
	}
	if want := []int{0, 1, 2, 5, 12, 22, 32, 42, 52}; !slices.Equal(at, want) {
		t.Errorf("dialled at the ticks %v, want %v", at, want)
	}
}
