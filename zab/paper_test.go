package zab

import (
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"

	"kvd/kv"
	"kvd/zab/quorum"
)

// The tests of this file walk through the statements of "Zab: High-performance broadcast for primary-backup systems"
// (DSN'11), section IV, and the three figures of Medeiros' report, one by one, at a single member that is spoken to by hand.

// lone is member 1 of three, and what it said last.
type lone struct {
	t    *testing.T
	p    *Peer
	disk *testDisk
	rd   Ready
	all  []Write
}

func newLone(t *testing.T, n int, st DurableState) *lone {
	members, err := quorum.NewConfig(1, []quorum.MemberID{1, 2, 3}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(3, 0, testConfig())
	l := &lone{t: t, disk: &testDisk{hist: entriesUpTo(c, n)}}
	l.disk.st = st
	l.disk.st.Last, l.disk.st.LastChain = l.disk.tip(n)
	cfg := testConfig()
	cfg.ID, cfg.Members, cfg.Incarnation = 1, members, func() Incarnation { return 11 }
	if l.p, err = New(cfg, l.disk.st, l.disk); err != nil {
		t.Fatal(err)
	}
	return l
}

// ready collects what the member has to say; nothing becomes durable by itself.
func (l *lone) ready() *lone {
	l.rd = Ready{}
	if l.p.HasReady() {
		l.rd = l.p.Ready()
	}
	l.all = append(l.all, l.rd.Writes...)
	return l
}

// flush makes everything written durable.
func (l *lone) flush() *lone {
	for _, w := range l.all {
		l.disk.write(w, nil)
		l.p.Persisted(w.Seq)
	}
	l.all = nil
	return l.ready()
}

func (l *lone) hear(from quorum.MemberID, m Message) *lone {
	l.p.Step(from, LinkID(from), m)
	return l.ready()
}

// said returns what was sent since the last input, one description a message.
func (l *lone) said() string {
	var s []string
	for _, o := range l.rd.Send {
		s = append(s, fmt.Sprintf("->%d %s", o.To, describe(o.Msg)))
	}
	return strings.Join(s, "; ")
}

func (l *lone) want(said string) {
	l.t.Helper()
	if got := l.said(); got != said {
		l.t.Fatalf("said %q, want %q", got, said)
	}
}

// following is a member whose leader 3 has offered epoch 2.
func following(t *testing.T, n int) *lone {
	l := newLone(t, n, DurableState{Accepted: Promise{Epoch: 1, To: 7}, Current: 1})
	l.p.Follow(3)
	l.ready()
	l.p.LinkUp(3, 3, true)
	return l.ready()
}

func offer(e kv.Epoch) *LeaderInfo {
	v := VersionRange{1, 1}
	return &LeaderInfo{Epoch: e, Incarnation: 33, Levels: Levels{1, 1}, Protocol: v, Format: v}
}

func info(e kv.Epoch) *FollowerInfo {
	v := VersionRange{1, 1}
	return &FollowerInfo{Accepted: e, ConfigVersion: 1, Protocol: v, Format: v}
}

// Step f.1.1: "F sends to L the last promise, CEPOCH(F.p)".
func TestPaperFollowerSendsItsLastPromise(t *testing.T) {
	following(t, 5).want("->3 FollowerInfo accepted=1")
}

// Step l.1.1: "upon receiving CEPOCH messages from a quorum Q, L sends NEWEPOCH(e') such that e' is later than any e received".
func TestPaperNewEpochIsAboveAQuorumsPromises(t *testing.T) {
	l := newLone(t, 5, DurableState{Accepted: Promise{Epoch: 1}, Current: 1})
	l.p.Lead()
	l.ready().want("")
	if len(l.all) != 0 {
		t.Fatal("an epoch is promised before a quorum is known")
	}
	l.p.LinkUp(2, 2, false)
	l.hear(2, info(6)).want("") // the own promise comes first (ZK-1291)
	if len(l.all) != 1 || *l.all[0].Promise != (Promise{Epoch: 7, To: 11}) {
		t.Fatalf("writes %v", l.all)
	}
	l.flush().want("->2 LeaderInfo epoch=7")
}

// Step f.1.2: "upon receiving NEWEPOCH(e') from L, if F.p < e', make F.p <- e' and acknowledge with ACK-E(F.a, h)". The promise is
// durable first, and the acknowledgement tells the durable current epoch and the end of the history.
func TestPaperFollowerPromisesDurably(t *testing.T) {
	l := following(t, 5)
	l.hear(3, offer(2)).want("")
	if len(l.all) != 1 || *l.all[0].Promise != (Promise{Epoch: 2, To: 33}) {
		t.Fatalf("writes %v", l.all)
	}
	l.flush().want("->3 AckEpoch epoch=2 current=1 last=1:5 base=0:0")
}

// Same step, negative: an epoch below the promise is never acknowledged, and the same epoch is acknowledged as "already
// promised" unless it is the same attempt of the same leader.
func TestPaperFollowerPromisesOnce(t *testing.T) {
	l := following(t, 5)
	l.hear(3, offer(0)).want("")
	if l.p.Status().Role != Looking {
		t.Error("stays with a leader of a lower epoch")
	}
	l = following(t, 5)
	l.hear(3, offer(1)).want("->3 AckEpoch epoch=1 current=1 last=1:5 base=0:0 already-promised")
	l = following(t, 5)
	same := offer(1)
	same.Incarnation = 7
	l.hear(3, same).want("->3 AckEpoch epoch=1 current=1 last=1:5 base=0:0")
}

// Step l.1.2: the leader needs acknowledgements of a quorum, and gives up if one of them has a newer history. (The paper lets it
// adopt that history; practice elects the right member instead.)
func TestPaperLeaderNeverLacksWhatAQuorumMemberHas(t *testing.T) {
	for _, tc := range []struct {
		ack  AckEpoch
		role Role
	}{
		{AckEpoch{Epoch: 2, Current: 1, Last: kv.MakeZxid(1, 5)}, Leading},
		{AckEpoch{Epoch: 2, Current: 0, Last: kv.MakeZxid(1, 9)}, Leading},
		{AckEpoch{Epoch: 2, Current: 1, Last: kv.MakeZxid(1, 6)}, Looking},
		{AckEpoch{Epoch: 2, Current: 2, Last: kv.MakeZxid(1, 1)}, Looking},
		{AckEpoch{Epoch: 2, Current: 2, Last: kv.MakeZxid(1, 6), Unknown: true}, Leading},
		{AckEpoch{Epoch: 2, Current: 1, Last: kv.MakeZxid(1, 6), AlreadyPromised: true}, Looking},
	} {
		l := newLone(t, 5, DurableState{Accepted: Promise{Epoch: 1}, Current: 1})
		l.p.Lead()
		l.p.LinkUp(2, 2, false)
		l.hear(2, info(1))
		l.flush()
		l.hear(2, &tc.ack)
		if got := l.p.Status().Role; got != tc.role {
			t.Errorf("after %+v: %s, want %s", tc.ack, got, tc.role)
		}
	}
}

// synced brings a follower to the point where NEWLEADER's batch is written but not durable.
func proving(t *testing.T) *lone {
	l := following(t, 3)
	l.hear(3, offer(2))
	l.flush()
	c := newCluster(3, 0, testConfig())
	es := entriesUpTo(c, 5)
	l.hear(3, &Diff{After: es[2].Zxid})
	l.hear(3, &Proposal{Prev: es[2].Zxid, PrevChain: es[2].Chain, Entries: es[3:]})
	l.hear(3, &NewLeader{Epoch: 2, Last: es[4].Zxid, Chain: es[4].Chain})
	return l
}

// Step f.2.1: "if F.p = e', F executes atomically: F.a <- e', accept each transaction of the initial history; then acknowledge". One
// write, and the acknowledgement when it is durable.
func TestPaperHistoryAndEpochAreAdoptedAtomically(t *testing.T) {
	l := proving(t)
	l.want("")
	if len(l.all) != 1 || l.all[0].Current != 2 || len(l.all[0].Append) != 2 {
		t.Fatalf("writes %v, want one with two entries and the epoch", l.all)
	}
	l.flush().want("->3 AckNewLeader epoch=2 last=1:5")
}

// Same step: "if F.p != e', start a new iteration".
func TestPaperNewLeaderOfAnotherEpochIsLeft(t *testing.T) {
	l := following(t, 3)
	l.hear(3, offer(2))
	l.flush()
	end, chain := l.disk.tip(3)
	l.hear(3, &Diff{After: end})
	l.hear(3, &NewLeader{Epoch: 3, Last: end, Chain: chain})
	if l.p.Status().Role != Looking || len(l.all) != 0 {
		t.Errorf("%s with writes %v", l.p.Status().Role, l.all)
	}
}

// Step f.2.2: "upon COMMIT-LD, F delivers all transactions of the initial history". Not before, whatever it has heard.
func TestPaperFollowerDeliversAfterUpToDate(t *testing.T) {
	l := proving(t)
	l.hear(3, &Commit{Epoch: 2, Zxid: kv.MakeZxid(1, 5)})
	l.flush()
	if len(l.rd.Apply) != 0 {
		t.Fatal("delivers before UPTODATE")
	}
	l.hear(3, &UpToDate{Epoch: 2, Commit: kv.MakeZxid(1, 4)})
	if n := len(l.rd.Apply); n == 0 || l.rd.Apply[n-1].Through != kv.MakeZxid(1, 5) {
		t.Errorf("applies %v, want through 1:5: the earlier COMMIT was remembered", l.rd.Apply)
	}
}

// leading is an established leader of epoch 2 with follower 2 synchronized.
func leading(t *testing.T) *lone {
	l := newLone(t, 5, DurableState{Accepted: Promise{Epoch: 1}, Current: 1})
	l.p.Lead()
	l.p.LinkUp(2, 2, false)
	l.hear(2, info(1))
	l.flush()
	_, chain := l.disk.tip(5)
	l.hear(2, &AckEpoch{Epoch: 2, Current: 1, Last: kv.MakeZxid(1, 5), Chain: chain})
	l.want("->2 Diff after=1:5; ->2 NewLeader epoch=2 last=1:5 commit=0:0")
	return l
}

// Step l.2.2: "upon acknowledgements of NEWLEADER from a quorum, L commits the initial history". Its own counts once its current epoch is
// durable, and nothing is proposed or delivered before.
func TestPaperLeaderIsEstablishedByAQuorum(t *testing.T) {
	l := leading(t)
	if _, err := l.p.Propose(nil); err == nil || len(l.rd.Apply) != 0 {
		t.Fatal("proposes or delivers before it is established")
	}
	l.hear(2, &AckNewLeader{Epoch: 2, Last: kv.MakeZxid(1, 5)}).want("")
	l.flush().want("->2 UpToDate epoch=2 commit=1:5")
	if len(l.rd.Apply) == 0 || l.rd.Role == nil || l.rd.Role.Stage != Broadcast {
		t.Errorf("apply %v, role %v", l.rd.Apply, l.rd.Role)
	}
}

func established(t *testing.T) *lone {
	l := leading(t)
	l.hear(2, &AckNewLeader{Epoch: 2, Last: kv.MakeZxid(1, 5)})
	return l.flush()
}

// Step l.3.1: "L proposes to all followers in increasing order of zxid, such that epoch(z) = e'".
func TestPaperProposalsAreOfTheEpochAndDense(t *testing.T) {
	l := established(t)
	for i := 1; i <= 3; i++ {
		z, err := l.p.Propose([]byte{byte(i)})
		if err != nil || z != kv.MakeZxid(2, uint32(i)) {
			t.Fatalf("%s %v", z, err)
		}
	}
	l.ready().want("->2 Proposal 2:1..2:3 commit=1:5")
}

// Step l.3.2: "upon acknowledgements from a quorum, L sends COMMIT to all followers". The leader's own acknowledgement is its durable
// log; the commit does not wait for it if others make a quorum, its own delivery does.
func TestPaperCommitNeedsAQuorum(t *testing.T) {
	l := established(t)
	if _, err := l.p.Propose(nil); err != nil {
		t.Fatal(err)
	}
	l.ready()
	l.hear(2, &Ack{Epoch: 2, Zxid: kv.MakeZxid(2, 1)}).want("")
	l.flush().want("->2 Commit epoch=2 2:1")
	if len(l.rd.Apply) != 1 || l.rd.Apply[0].Through != kv.MakeZxid(2, 1) {
		t.Errorf("applies %v", l.rd.Apply)
	}
}

// Step f.3.1: "F accepts proposals in the order received, writes them, and acknowledges once durable". Step f.3.2: "F delivers when COMMIT
// arrives, after all earlier ones" - and when its own write is durable.
func TestPaperFollowerAcceptsAcknowledgesDelivers(t *testing.T) {
	l := proving(t)
	l.flush()
	l.hear(3, &UpToDate{Epoch: 2, Commit: kv.MakeZxid(1, 5)})
	prev, chain := kv.MakeZxid(1, 5), l.p.lastChain
	z := kv.MakeZxid(2, 1)
	chain2 := kv.ChainDigest(chain, z, []byte("x"))
	l.hear(3, &Proposal{Prev: prev, PrevChain: chain, Entries: []kv.Entry{{Zxid: z, Chain: chain2, Payload: []byte("x")}}}).want("")
	l.hear(3, &Commit{Epoch: 2, Zxid: z}).want("")
	if len(l.rd.Apply) != 0 {
		t.Fatal("delivers ahead of its disk")
	}
	l.flush().want("->3 Ack epoch=2 2:1")
	if len(l.rd.Apply) != 1 || l.rd.Apply[0].Through != z {
		t.Errorf("applies %v", l.rd.Apply)
	}
}

// Step l.3.3 and l.3.4: "upon CEPOCH from a follower while in phase 3, L sends NEWEPOCH(e') and NEWLEADER; upon its acknowledgement, L sends
// COMMIT-LD and adds it to Q". Outstanding proposals belong to its history.
func TestPaperLateFollowerIsTakenIn(t *testing.T) {
	l := established(t)
	if _, err := l.p.Propose([]byte("x")); err != nil {
		t.Fatal(err)
	}
	l.ready()
	l.p.LinkUp(3, 3, false)
	l.hear(3, info(1)).want("->3 LeaderInfo epoch=2")
	c := newCluster(3, 0, testConfig())
	es := entriesUpTo(c, 5)
	l.hear(3, &AckEpoch{Epoch: 2, Current: 1, Last: es[4].Zxid, Chain: es[4].Chain})
	l.want("->3 Diff after=1:5; ->3 Proposal 2:1..2:1 commit=0:0; ->3 NewLeader epoch=2 last=2:1 commit=1:5")
	// Its ACK(NEWLEADER) covers the proposal: with the leader's own write that is a quorum.
	l.flush()
	l.hear(3, &AckNewLeader{Epoch: 2, Last: kv.MakeZxid(2, 1)}).want("->2 Commit epoch=2 2:1; ->3 UpToDate epoch=2 commit=2:1")
}

// Section III: integrity, total order, agreement, local and global primary order, primary integrity, over three primaries.
func TestPaperBroadcastProperties(t *testing.T) {
	c := newCluster(3, 0, testConfig())
	for round, leader := range []quorum.MemberID{1, 2, 3} {
		var by []quorum.MemberID
		for _, id := range c.members.Voters {
			if id != leader {
				by = append(by, id)
			}
		}
		c.elect(leader, by...)
		c.stabilize()
		// Primary integrity: before it broadcasts it has delivered everything earlier primaries' values that anybody delivered.
		if got := len(c.nodes[leader].applied); got != len(c.g) {
			t.Fatalf("primary %d delivered %d of %d before it broadcasts", leader, got, len(c.g))
		}
		for i := range 5 {
			if err := c.nodes[leader].propose(fmt.Sprintf("%d.%d", round, i)); err != nil {
				t.Fatal(err)
			}
		}
		c.pump(c.nodes[leader])
		if round < 2 {
			c.stabilize()
		}
	}
	c.stabilize()
	ok(t, c)
	var want []string
	for round := range 3 {
		for i := range 5 {
			want = append(want, fmt.Sprintf("%d.%d", round, i))
		}
	}
	for id, n := range c.nodes {
		var got []string
		for _, e := range n.applied {
			got = append(got, string(e.Payload))
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("member %d delivered %v, want %v", id, got, want)
		}
	}
}

// TestCoreImportsNothingImpure: no clock, socket, file, logger or global randomness, and no goroutine (design 2). sync is there for the
// codec's pool only.
func TestCoreImportsNothingImpure(t *testing.T) {
	allowed := map[string]bool{
		"encoding/binary": true, "errors": true, "fmt": true, "maps": true, "slices": true, "sort": true, "sync": true,
		"github.com/hashicorp/go-msgpack/v2/codec": true, "kvd/kv": true, "kvd/zab/quorum": true,
	}
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		n++
		src, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(token.NewFileSet(), f.Name(), src, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, im := range file.Imports {
			if path := strings.Trim(im.Path.Value, `"`); !allowed[path] {
				t.Errorf("%s imports %s", f.Name(), path)
			}
			if im.Path.Value == `"sync"` && f.Name() != "codec.go" {
				t.Errorf("%s imports sync", f.Name())
			}
		}
		for _, line := range strings.Split(string(src), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "go ") {
				t.Errorf("%s starts a goroutine: %s", f.Name(), line)
			}
		}
	}
	if n < 15 {
		t.Errorf("only %d files looked at", n)
	}
}
