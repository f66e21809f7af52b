package identity

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"kvd/kv"
	"kvd/zab/quorum"
)

// disk is what survives a crash of a member.
type disk struct {
	cluster  ClusterID
	trusted  bool
	suspect  bool
	accepted kv.Epoch
	last     kv.Zxid
}

// group is several machines, their disks and a network that keeps one hello per direction. A Persist is one
// step of its own, so that a crash can come before and after it.
type group struct {
	testing.TB
	cfg     quorum.Config
	m       map[quorum.MemberID]*Machine // absent: down
	disks   map[quorum.MemberID]*disk
	flight  []Outbound
	writes  map[quorum.MemberID]*Persist
	phases  map[quorum.MemberID]Phase
	events  map[quorum.MemberID][]string
	runs    uint64
	minted  map[ClusterID]bool
	steps   int
	crashAt int // step at which crashID crashes and starts again, 0: never
	crashID quorum.MemberID
	lose    func() bool // the next hello is lost; nil: none is
}

func newGroup(t testing.TB, voters ...quorum.MemberID) *group {
	cfg, err := quorum.NewConfig(1, voters, nil)
	if err != nil {
		t.Fatal(err)
	}
	g := &group{TB: t, cfg: cfg, m: map[quorum.MemberID]*Machine{}, disks: map[quorum.MemberID]*disk{}, writes: map[quorum.MemberID]*Persist{},
		phases: map[quorum.MemberID]Phase{}, events: map[quorum.MemberID][]string{}, minted: map[ClusterID]bool{}}
	for _, id := range voters {
		g.disks[id] = &disk{}
	}
	return g
}

func (g *group) start(id quorum.MemberID, options ...func(*Config)) {
	g.runs++
	d := g.disks[id]
	c := Config{ID: id, Members: g.cfg, Cluster: d.cluster, Trusted: d.trusted, Suspect: d.suspect, Accepted: d.accepted, Last: d.last,
		Run: g.runs, Mint: ClusterID{15: byte(id), 14: byte(g.runs)}}
	for _, o := range options {
		o(&c)
	}
	g.m[id] = New(c)
	g.collect(id)
}

func (g *group) crash(id quorum.MemberID) {
	delete(g.m, id)
	delete(g.writes, id)
	g.flight = slices.DeleteFunc(g.flight, func(o Outbound) bool { return o.To == id || o.Hello.From == id })
}

func (g *group) collect(id quorum.MemberID) {
	rd := g.m[id].Ready()
	for _, o := range rd.Send {
		if o.Hello.Cluster != g.disks[id].cluster {
			g.Fatalf("%d says cluster %s while its disk has %s", id, o.Hello.Cluster, g.disks[id].cluster)
		}
		again, err := DecodeHello(AppendHello(nil, o.Hello))
		if err != nil || again != o.Hello {
			g.Fatalf("hello %+v came back as %+v, %v", o.Hello, again, err)
		}
		g.flight = slices.DeleteFunc(g.flight, func(f Outbound) bool { return f.To == o.To && f.Hello.From == id })
		g.flight = append(g.flight, o)
	}
	if rd.Persist != nil {
		g.writes[id] = rd.Persist
	}
	if rd.Phase != nil {
		g.phases[id] = *rd.Phase
		if *rd.Phase == Voter && (g.disks[id].cluster.IsZero() || !g.disks[id].trusted) {
			g.Fatalf("%d is a voter without a durable, trusted identity", id)
		}
		if *rd.Phase == Joining && g.disks[id].cluster.IsZero() {
			g.Fatalf("%d joins without a durable cluster id", id)
		}
	}
	g.events[id] = append(g.events[id], rd.Events...)
}

// step does one thing and reports whether there was one: a disk completion, a delivery.
func (g *group) step() bool {
	g.steps++
	if g.steps == g.crashAt {
		g.crash(g.crashID)
		g.start(g.crashID)
		return true
	}
	for _, id := range g.cfg.Voters {
		if w := g.writes[id]; w != nil {
			delete(g.writes, id)
			g.disks[id].cluster, g.disks[id].trusted = w.Cluster, w.Trusted
			g.minted[w.Cluster] = true
			g.m[id].Persisted()
			g.collect(id)
			return true
		}
	}
	if len(g.flight) == 0 {
		return false
	}
	o := g.flight[0]
	g.flight = g.flight[1:]
	if m := g.m[o.To]; m != nil && (g.lose == nil || !g.lose()) {
		m.Step(o.Hello)
		g.collect(o.To)
	}
	return true
}

func (g *group) stabilize() {
	for range 2000 {
		if !g.step() {
			return
		}
	}
	g.Fatal("members answer each other without end")
}

func (g *group) run(ticks int) {
	g.stabilize()
	for range ticks {
		for _, id := range g.cfg.Voters {
			if m := g.m[id]; m != nil {
				m.Tick()
				g.collect(id)
			}
		}
		g.stabilize()
	}
}

func (g *group) told(id quorum.MemberID, text string) bool {
	return slices.ContainsFunc(g.events[id], func(e string) bool { return strings.Contains(e, text) })
}

func (g *group) want(phases map[quorum.MemberID]Phase) {
	g.Helper()
	for id, want := range phases {
		if got := g.m[id].Phase(); got != want || g.phases[id] != want {
			g.Errorf("%d is %s (told %s), want %s; events %q", id, got, g.phases[id], want, g.events[id])
		}
	}
}

// Three blank voters: the highest mints, the others adopt, without a tick on a perfect network.
func TestForming(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	for id := range g.disks {
		g.start(id)
	}
	g.stabilize()
	g.want(map[quorum.MemberID]Phase{1: Voter, 2: Voter, 3: Voter})
	if g.disks[1].cluster.IsZero() || g.disks[1].cluster != g.disks[2].cluster || g.disks[2].cluster != g.disks[3].cluster {
		t.Errorf("ids %s %s %s", g.disks[1].cluster, g.disks[2].cluster, g.disks[3].cluster)
	}
	if !g.told(3, "minting cluster id") || g.told(1, "minting") || !g.told(1, "adopting cluster id") {
		t.Errorf("events %v", g.events)
	}
	if len(g.flight) != 0 || g.m[3].WaitingFor() != "" {
		t.Errorf("still talking or waiting: %v, %q", g.flight, g.m[3].WaitingFor())
	}
}

// Nobody mints or adopts before every voter was heard. After a while one line names those not heard, and it comes
// again rarely.
func TestWaitsForEveryVoter(t *testing.T) {
	for _, missing := range []quorum.MemberID{1, 2, 3} {
		g := newGroup(t, 1, 2, 3)
		for id := range g.disks {
			if id != missing {
				g.start(id)
			}
		}
		line := fmt.Sprintf("waiting: not heard from voters %d", missing)
		for _, step := range []struct{ ticks, lines int }{{WarnTicks - 1, 0}, {1, 1}, {RepeatTicks - 1, 1}, {1, 2}} {
			g.run(step.ticks)
			for id := range g.m {
				g.want(map[quorum.MemberID]Phase{id: Waiting})
				if n := strings.Count(strings.Join(g.events[id], "\n"), "waiting:"); n != step.lines || n > 0 && !g.told(id, line) {
					t.Errorf("%d told %q, want %d times %q", id, g.events[id], step.lines, line)
				}
			}
		}
		g.start(missing)
		g.run(5)
		g.want(map[quorum.MemberID]Phase{1: Voter, 2: Voter, 3: Voter})
	}
}

// What a member without a leader says: who is not connected, who cannot be counted, who is a stranger; and it hears
// when a peer has its history again.
func TestQuorumNamesWhatIsMissing(t *testing.T) {
	g := newGroup(t, 1, 2, 3, 4)
	for _, id := range []quorum.MemberID{1, 2} {
		*g.disks[id] = disk{cluster: ClusterID{4}, trusted: true, accepted: 3, last: kv.MakeZxid(3, 1)}
	}
	*g.disks[3] = disk{} // wiped
	*g.disks[4] = disk{cluster: ClusterID{5}, trusted: true}
	want := func(id quorum.MemberID, text string) {
		t.Helper()
		if got := g.m[id].Quorum(); got != text {
			t.Errorf("%d says %q, want %q", id, got, text)
		}
	}
	const forgot = "blank or without part of their history, which a leader has to bring back first: "
	g.start(1)
	want(1, "1 of 4 voters can be counted, 3 are needed; not connected: 2, 3, 4")
	for _, id := range []quorum.MemberID{2, 3, 4} {
		g.start(id)
		g.m[1].PeerConnected(id)
		g.m[id].PeerConnected(1)
		g.collect(1)
		g.collect(id)
		g.stabilize()
	}
	g.want(map[quorum.MemberID]Phase{3: Joining})
	want(1, "2 of 4 voters can be counted, 3 are needed; of another cluster: 4; "+forgot+"3")
	want(3, "1 of 4 voters can be counted, 3 are needed; not connected: 2, 4; "+forgot+"3 (this member)")
	g.disks[3].trusted = true
	g.m[3].Joined()
	g.collect(3)
	g.stabilize()
	g.m[1].PeerGone(4)
	want(1, "3 of 4 voters can be counted, 3 are needed; not connected: 4")
}

func TestAloneFormsAtOnce(t *testing.T) {
	g := newGroup(t, 7)
	g.start(7)
	if g.writes[7] == nil {
		t.Fatal("nothing to persist after the first step")
	}
	g.stabilize()
	g.want(map[quorum.MemberID]Phase{7: Voter})
}

// --bootstrap mints at once, whatever the id; the others adopt when all were heard; a second one is refused by name.
func TestBootstrap(t *testing.T) {
	bootstrap := func(c *Config) { c.Bootstrap = true }
	g := newGroup(t, 1, 2, 3)
	g.start(1, bootstrap)
	g.run(1)
	g.want(map[quorum.MemberID]Phase{1: Voter})
	g.start(2)
	g.run(10)
	g.want(map[quorum.MemberID]Phase{2: Waiting})
	g.start(3)
	g.run(10)
	g.want(map[quorum.MemberID]Phase{2: Voter, 3: Voter})
	if g.disks[3].cluster != g.disks[1].cluster {
		t.Errorf("3 minted %s, 1 had minted %s", g.disks[3].cluster, g.disks[1].cluster)
	}
	g.crash(1)
	g.start(1, bootstrap)
	if !g.told(1, "--bootstrap has no effect") {
		t.Errorf("events %q", g.events[1])
	}

	g = newGroup(t, 1, 2, 3)
	g.start(1, bootstrap)
	g.start(2, bootstrap)
	g.start(3)
	g.run(50)
	g.want(map[quorum.MemberID]Phase{1: Voter, 2: Voter, 3: Waiting})
	if !g.told(1, "refused member 2: it belongs to cluster "+g.disks[2].cluster.String()) || !g.told(2, "refused member 1") {
		t.Errorf("the two minters told %q and %q", g.events[1], g.events[2])
	}
	if !g.told(3, "several cluster ids were minted") {
		t.Errorf("the bystander told %q", g.events[3])
	}
}

// Every crash point of forming, for every member: the others and the restarted one end with one id, no person needed.
func TestFormingCrashPoints(t *testing.T) {
	length := func() int {
		g := newGroup(t, 1, 2, 3)
		for _, id := range g.cfg.Voters {
			g.start(id)
		}
		g.stabilize()
		return g.steps
	}()
	tried := 0
	for at := 1; at <= length+1; at++ {
		for _, id := range []quorum.MemberID{1, 2, 3} {
			for _, lose := range []uint64{0, 1, 2, 3} {
				tried++
				g := newGroup(t, 1, 2, 3)
				g.crashAt, g.crashID = at, id
				if rng := rand.New(rand.NewPCG(uint64(at), lose)); lose > 0 {
					g.lose = func() bool { return rng.Uint64N(4) < lose }
				}
				for _, m := range g.cfg.Voters {
					g.start(m)
				}
				g.run(600)
				g.want(map[quorum.MemberID]Phase{1: Voter, 2: Voter, 3: Voter})
				if len(g.minted) != 1 {
					t.Errorf("crash of %d at step %d: ids %v became durable", id, at, g.minted)
				}
				if t.Failed() {
					t.Fatalf("crash of %d at step %d, losing %d of 4", id, at, lose)
				}
			}
		}
	}
	if tried < 100 {
		t.Errorf("only %d crash points", tried)
	}
}

// S27. An ensemble with a history; 1 is wiped; whoever of the others answers, 1 does not become a voter by itself.
func TestWipedMemberJoins(t *testing.T) {
	history := func() *group {
		g := newGroup(t, 1, 2, 3)
		for id, d := range g.disks {
			*d = disk{cluster: ClusterID{1}, trusted: true, accepted: 1, last: kv.MakeZxid(1, 6)}
			_ = id
		}
		*g.disks[1] = disk{}
		return g
	}
	for name, up := range map[string][]quorum.MemberID{"nobody up": nil, "2 up": {2}, "3 up": {3}, "both up": {2, 3}} {
		t.Run(name, func(t *testing.T) {
			g := history()
			g.start(1)
			for _, id := range up {
				g.start(id)
			}
			g.run(60)
			if len(up) == 0 {
				g.want(map[quorum.MemberID]Phase{1: Waiting})
				return
			}
			g.want(map[quorum.MemberID]Phase{1: Joining})
			if g.disks[1].cluster != (ClusterID{1}) || g.disks[1].trusted {
				t.Errorf("disk of 1: %+v", g.disks[1])
			}
			// A crash in between: it still joins, even alone.
			g.crash(1)
			g.start(1)
			g.want(map[quorum.MemberID]Phase{1: Joining})
			g.m[1].Joined()
			g.disks[1].trusted = true
			g.collect(1)
			g.want(map[quorum.MemberID]Phase{1: Voter})
		})
	}
	// Two wiped of three, with the highest id blank: they must not form over the one that remembers.
	g := history()
	*g.disks[3] = disk{}
	for _, id := range g.cfg.Voters {
		g.start(id)
	}
	g.run(60)
	g.want(map[quorum.MemberID]Phase{1: Joining, 2: Voter, 3: Joining})
	// And while it is down they wait.
	g = history()
	*g.disks[3] = disk{}
	g.start(1)
	g.start(3)
	g.run(60)
	g.want(map[quorum.MemberID]Phase{1: Waiting, 3: Waiting})
}

// A hello from before the wipe, re-sent by the transport, does not count as heard in this run. Without the echo
// rule 1 would adopt here and vote, although it may have promised.
func TestOldHelloDoesNotCount(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	g.start(1)
	old := Hello{From: 2, Run: 77, Echo: 0, Cluster: ClusterID{9}} // of an earlier run of 1: says fresh
	for range 3 {
		g.m[1].Step(old)
		g.m[1].Step(Hello{From: 3, Run: 78, Echo: 12345, Cluster: ClusterID{9}})
	}
	g.collect(1)
	g.want(map[quorum.MemberID]Phase{1: Waiting})
	if g.writes[1] != nil {
		t.Fatalf("adopted %v from hellos of an earlier run", g.writes[1])
	}
	g.m[1].Step(Hello{From: 2, Run: 77, Echo: 1, Cluster: ClusterID{9}})
	g.m[1].Step(Hello{From: 3, Run: 78, Echo: 1, Cluster: ClusterID{9}})
	g.collect(1)
	if g.writes[1] == nil || !g.writes[1].Trusted {
		t.Fatal("did not adopt from hellos of this run")
	}
	// A peer that restarts must be heard again.
	g = newGroup(t, 1, 2, 3)
	g.start(3)
	g.m[3].Step(Hello{From: 1, Run: 5, Echo: 1})
	g.m[3].Step(Hello{From: 1, Run: 6, Echo: 0})
	g.m[3].Step(Hello{From: 2, Run: 7, Echo: 1})
	g.collect(3)
	if g.writes[3] != nil {
		t.Fatal("minted on the word of a peer's earlier run")
	}
}

// Suspect members form nothing and keep others from forming over them; a healthy ensemble takes them in.
func TestSuspect(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	g.disks[2].suspect = true
	for _, id := range g.cfg.Voters {
		g.start(id)
	}
	g.run(60)
	g.want(map[quorum.MemberID]Phase{1: Waiting, 2: Waiting, 3: Waiting}) // 2 does not even know its cluster
	if !g.told(3, "voters 2 may have lost a history") || !g.told(2, "no member that knows the cluster id was heard") {
		t.Errorf("events %q and %q", g.events[3], g.events[2])
	}

	g = newGroup(t, 1, 2, 3)
	for _, id := range []quorum.MemberID{1, 3} {
		*g.disks[id] = disk{cluster: ClusterID{4}, trusted: true, accepted: 3, last: kv.MakeZxid(3, 1)}
	}
	*g.disks[2] = disk{suspect: true}
	for _, id := range g.cfg.Voters {
		g.start(id)
	}
	g.run(20)
	g.want(map[quorum.MemberID]Phase{1: Voter, 2: Joining, 3: Voter})

	g = newGroup(t, 1, 2, 3)
	*g.disks[2] = disk{suspect: true, cluster: ClusterID{4}, accepted: 3} // its file still knows the id
	g.start(2)
	g.want(map[quorum.MemberID]Phase{2: Joining})
}

// Whoever is late to a forming that went on without it joins instead of adopting.
func TestLateAdopterJoins(t *testing.T) {
	g := newGroup(t, 1, 2, 3)
	for _, id := range []quorum.MemberID{2, 3} {
		*g.disks[id] = disk{cluster: ClusterID{4}, trusted: true}
	}
	g.disks[3].accepted = 1 // 2 and 3 have begun an epoch
	for _, id := range g.cfg.Voters {
		g.start(id)
	}
	g.run(10)
	g.want(map[quorum.MemberID]Phase{1: Joining})

	// SetDurable is what tells it, also when the member has not restarted.
	g = newGroup(t, 1, 2, 3)
	for _, id := range []quorum.MemberID{2, 3} {
		*g.disks[id] = disk{cluster: ClusterID{4}, trusted: true}
		g.start(id)
	}
	g.m[2].SetDurable(1, 0)
	g.start(1)
	g.run(10)
	g.want(map[quorum.MemberID]Phase{1: Joining})
}

func TestObserver(t *testing.T) {
	cfg, err := quorum.NewConfig(1, []quorum.MemberID{1}, []quorum.MemberID{2})
	if err != nil {
		t.Fatal(err)
	}
	g := newGroup(t, 1)
	g.cfg, g.disks[2] = cfg, &disk{}
	g.start(2)
	if g.phases[2] != Waiting {
		t.Errorf("told %s before any member was heard", g.phases[2])
	}
	g.start(1) // forms without the observer
	g.run(10)
	g.want(map[quorum.MemberID]Phase{1: Voter})
	for range 10 {
		g.m[2].Tick()
		g.collect(2)
		g.stabilize()
		if w := g.writes[2]; w != nil {
			if w.Trusted || w.Cluster != g.disks[1].cluster {
				t.Fatalf("the observer persists %+v", w)
			}
			g.disks[2].cluster = w.Cluster
			g.m[2].Persisted()
			g.collect(2)
			g.want(map[quorum.MemberID]Phase{2: Joining})
			return
		}
	}
	t.Fatal("the observer learned no cluster id")
}

func TestStrangersAndSelfAreIgnored(t *testing.T) {
	g := newGroup(t, 1, 2)
	g.start(2)
	g.m[2].Step(Hello{From: 9, Run: 1, Echo: 1, Ask: true})
	g.m[2].Step(Hello{From: 2, Run: 1, Echo: 1, Ask: true})
	g.collect(2)
	g.want(map[quorum.MemberID]Phase{2: Waiting})
	for _, o := range g.flight {
		if o.To != 1 {
			t.Errorf("answered %d", o.To)
		}
	}
}

// Random loss, crashes and wipes while an ensemble forms and works. At every step: a member whose disk was wiped
// after it had promised is no voter until its NEWLEADER batch, and all voters that ever promised share one id.
func TestRandom(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 3))
		g := newGroup(t, 1, 2, 3)
		promised := map[quorum.MemberID]bool{} // since its last wipe it forgot a promise
		for _, id := range g.cfg.Voters {
			g.start(id)
		}
		wiped := false
		for range 300 {
			id := g.cfg.Voters[rng.IntN(3)]
			switch d := g.disks[id]; rng.IntN(20) {
			case 0:
				g.crash(id)
				g.start(id)
			case 1: // two trusted voters begin an epoch
				other := g.cfg.Voters[rng.IntN(3)]
				o := g.disks[other]
				if other != id && d.trusted && o.trusted && g.m[id].Phase() == Voter && g.m[other].Phase() == Voter {
					d.accepted++ // the leader first (P12)
					g.m[id].SetDurable(d.accepted, d.last)
					o.accepted = d.accepted
					g.m[other].SetDurable(o.accepted, o.last)
				}
			case 2:
				if !wiped && d.accepted > 0 { // one wipe in a schedule: a minority
					wiped, promised[id] = true, true
					g.crash(id)
					*d = disk{}
					g.start(id)
				}
			case 3, 4:
				if m := g.m[id]; m != nil {
					m.Tick()
					g.collect(id)
				}
			case 5:
				if len(g.flight) > 0 {
					g.flight = g.flight[1:]
				}
			default:
				g.step()
			}
			for id := range promised {
				if g.m[id].Phase() == Voter {
					t.Fatalf("seed %d: %d forgot a promise and votes", seed, id)
				}
			}
			if len(g.minted) > 1 {
				t.Fatalf("seed %d: ids %v", seed, g.minted)
			}
		}
	}
}
