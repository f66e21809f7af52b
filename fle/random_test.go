package fle

import (
	"bytes"
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"kvd/kv"
	"kvd/zab/quorum"
)

var seedFlag = flag.Uint64("seed", 0, "run only this seed of the random tests")

// world is several elections on a bad network, with a stand-in for the broadcast that does what it does about
// elections: a leader without a quorum of connected followers gives up after initTicks, a follower whose leader
// does not lead, or cannot be reached, gives up after a few ticks and says so.
type world struct {
	*testing.T
	rng   *rand.Rand
	cfg   quorum.Config
	e     map[quorum.MemberID]*Election
	own   map[quorum.MemberID]Candidate
	up    map[quorum.MemberID]bool
	cut   map[[2]quorum.MemberID]bool
	loss  float64
	now   int
	wire  []packet
	role  map[quorum.MemberID]*term
	trace bytes.Buffer
	// split counts, per round, the ticks for which two leaders had a quorum of settled members each.
	split map[Round]int
}

type packet struct {
	due int
	to  quorum.MemberID
	n   Notification
}

type term struct {
	d           Decision
	lonely      int // ticks without what the role needs
	established bool
}

const initTicks = 20

func newWorld(t *testing.T, seed uint64, voters int, mutations Mutations) *world {
	w := &world{T: t, rng: rand.New(rand.NewPCG(seed, 1)), e: map[quorum.MemberID]*Election{}, own: map[quorum.MemberID]Candidate{},
		up: map[quorum.MemberID]bool{}, cut: map[[2]quorum.MemberID]bool{}, role: map[quorum.MemberID]*term{}, split: map[Round]int{}}
	var ids []quorum.MemberID
	for i := range voters {
		ids = append(ids, quorum.MemberID(i+1))
	}
	w.cfg = must(quorum.NewConfig(1, ids, nil))(t)
	for _, id := range ids {
		w.own[id] = Candidate{Epoch: kv.Epoch(w.rng.IntN(3)), Zxid: kv.MakeZxid(1, uint32(w.rng.IntN(3)))}
		w.start(id, mutations)
	}
	return w
}

func (w *world) start(id quorum.MemberID, m Mutations) {
	w.e[id] = New(Config{ID: id, Members: w.cfg, Rand: w.rng, Mutations: m})
	w.up[id] = true
	w.look(id)
}

func (w *world) look(id quorum.MemberID) {
	fmt.Fprintf(&w.trace, "t=%d %d looks\n", w.now, id)
	w.role[id] = nil
	w.e[id].Look(w.own[id])
	w.collect(id)
}

func (w *world) crash(id quorum.MemberID) {
	fmt.Fprintf(&w.trace, "t=%d %d crashes\n", w.now, id)
	w.up[id], w.role[id] = false, nil
	for _, other := range w.cfg.Voters {
		if other != id && w.up[other] && w.rng.IntN(2) == 0 {
			w.e[other].PeerGone(id)
			w.collect(other)
		}
	}
}

func (w *world) collect(id quorum.MemberID) {
	rd := w.e[id].Ready()
	for _, o := range rd.Send {
		copies := 1
		if w.loss > 0 && w.rng.IntN(10) == 0 {
			copies = 2
		}
		for range copies {
			if w.rng.Float64() >= w.loss {
				w.wire = append(w.wire, packet{w.now + w.rng.IntN(1+int(w.loss*20)), o.To, o.Notification})
			}
		}
	}
	if rd.Decision != nil {
		w.role[id] = &term{d: *rd.Decision}
		fmt.Fprintf(&w.trace, "t=%d %d settles on %d round %d\n", w.now, id, rd.Decision.Leader, rd.Decision.Round)
	}
	if rd.Abdicate {
		fmt.Fprintf(&w.trace, "t=%d %d abdicates\n", w.now, id)
		w.look(id)
	}
}

// linked reports whether both could hold a learner link.
func (w *world) linked(a, b quorum.MemberID) bool {
	return w.up[a] && w.up[b] && !w.cut[[2]quorum.MemberID{a, b}] && !w.cut[[2]quorum.MemberID{b, a}]
}

// follows reports whether m has a live link to leader l, which leads.
func (w *world) follows(m, l quorum.MemberID) bool {
	rm, rl := w.role[m], w.role[l]
	return rl != nil && rl.d.State == Leading && (m == l || rm != nil && rm.d.Leader == l && w.linked(m, l))
}

func (w *world) tick() {
	w.now++
	// Deliver what is due, in random order.
	var due []packet
	w.wire = slices.DeleteFunc(w.wire, func(p packet) bool {
		if p.due <= w.now {
			due = append(due, p)
			return true
		}
		return false
	})
	w.rng.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
	for _, p := range due {
		if w.up[p.to] && !w.cut[[2]quorum.MemberID{p.n.From, p.to}] {
			w.e[p.to].Step(p.n)
			w.collect(p.to)
		}
	}
	for _, id := range w.cfg.Voters {
		if w.up[id] {
			w.e[id].Tick()
			w.collect(id)
			w.broadcast(id)
		}
	}
	w.check()
}

// broadcast is the stand-in for zab at member id.
func (w *world) broadcast(id quorum.MemberID) {
	r := w.role[id]
	if r == nil {
		return
	}
	if r.d.State == Leading {
		if w.cfg.HasQuorum(func(m quorum.MemberID) bool { return w.follows(m, id) }) {
			r.lonely = 0
			if !r.established {
				r.established = true
				w.e[id].SetEstablished(w.e[id].vote.Epoch, 1)
			}
		} else if r.lonely++; r.lonely > initTicks {
			w.look(id)
		}
		return
	}
	if w.follows(id, r.d.Leader) {
		r.lonely = 0
		if w.role[r.d.Leader].established && !r.established {
			r.established = true
			w.e[id].SetEstablished(w.e[r.d.Leader].vote.Epoch, 1)
		}
		return
	}
	if r.lonely++; r.lonely > 5 {
		if !r.established {
			w.e[id].AttemptFailed(r.d.Leader)
		}
		w.look(id)
	}
}

func (w *world) check() {
	quorums := map[Round]int{}
	for _, l := range w.cfg.Voters {
		r := w.role[l]
		if r == nil || r.d.State != Leading {
			continue
		}
		if w.cfg.HasQuorum(func(m quorum.MemberID) bool {
			rm := w.role[m]
			return rm != nil && rm.d.Leader == l && rm.d.Round == r.d.Round
		}) {
			quorums[r.d.Round]++
		}
	}
	for round, n := range quorums {
		if n < 2 {
			delete(w.split, round)
			continue
		}
		if w.split[round]++; w.split[round] > 2*initTicks {
			w.Fatalf("two leaders, each with a quorum, in round %d for %d ticks\n%s", round, w.split[round], w.trace.String())
		}
	}
}

// settled returns the leader on which all members that are up agree, with a quorum behind it.
func (w *world) settled() (quorum.MemberID, bool) {
	var leader quorum.MemberID
	for _, id := range w.cfg.Voters {
		r := w.role[id]
		if !w.up[id] {
			continue
		}
		if r == nil || !r.established || !w.follows(id, r.d.Leader) || leader != 0 && r.d.Leader != leader {
			return 0, false
		}
		leader = r.d.Leader
	}
	return leader, true
}

// run disturbs a world for a while, heals it, and demands one lasting leader. It returns the trace.
func run(t *testing.T, seed uint64, voters int) string {
	w := newWorld(t, seed, voters, Mutations{})
	w.loss = w.rng.Float64() * 0.6
	for range 300 {
		w.tick()
		id := w.cfg.Voters[w.rng.IntN(voters)]
		other := w.cfg.Voters[w.rng.IntN(voters)]
		switch w.rng.IntN(40) {
		case 0:
			if w.up[id] {
				w.crash(id)
			}
		case 1, 2:
			if !w.up[id] {
				w.start(id, Mutations{})
			}
		case 3, 4:
			w.cut[[2]quorum.MemberID{id, other}] = true // one way
		case 5:
			clear(w.cut)
		case 6:
			if w.up[id] && w.role[id] != nil {
				w.look(id)
			}
		}
	}
	// Heal. A minority may stay down.
	clear(w.cut)
	w.loss = 0
	down := 0
	for _, id := range w.cfg.Voters {
		if !w.up[id] {
			if down++; down > (voters-1)/2 {
				w.start(id, Mutations{})
			}
		}
	}
	// L1 with the initLimit of the stand-in and the resend cap: several failed attempts fit into this.
	const bound = 10 * (initTicks + defaultResendMaxTicks)
	for range bound {
		if _, ok := w.settled(); ok {
			break
		}
		w.tick()
	}
	leader, ok := w.settled()
	if !ok {
		t.Fatalf("no leader %d ticks after healing\n%s", bound, w.trace.String())
	}
	for range 3 * initTicks { // and it lasts
		w.tick()
		if l, ok := w.settled(); !ok || l != leader {
			t.Fatalf("leader %d did not last\n%s", leader, w.trace.String())
		}
	}
	return w.trace.String()
}

// Random faults on a lossy, reordering, one-way-cut network, then healing: one leader within a bound, and never
// two leaders with a quorum each in one round for long. Seeded; each schedule is run twice and must repeat itself.
func TestConvergence(t *testing.T) {
	seeds := 300
	if testing.Short() {
		seeds = 60
	}
	for _, voters := range []int{3, 5} {
		t.Run(fmt.Sprint(voters), func(t *testing.T) {
			for s := range seeds {
				seed := uint64(s)
				if *seedFlag != 0 {
					seed = *seedFlag
				}
				ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
					defer func() {
						if t.Failed() {
							t.Logf("replay: go test ./fle -run 'TestConvergence/%d' -seed=%d", voters, seed)
						}
					}()
					first := run(t, seed, voters)
					if s%10 == 0 && run(t, seed, voters) != first {
						t.Error("the same seed gave two different histories")
					}
				})
				if !ok || *seedFlag != 0 {
					return
				}
			}
		})
	}
}

// A network in which nobody disturbs elects the best vote, for every assignment of a few histories to three
// members, whatever the order of starting. With the votes-by-zxid mistake it does not, so the test can fail.
func TestBestVoteWins(t *testing.T) {
	histories := []Candidate{{Epoch: 1, Zxid: kv.MakeZxid(1, 5)}, {Epoch: 1, Zxid: kv.MakeZxid(1, 9)}, {Epoch: 2, Zxid: kv.MakeZxid(1, 5)}}
	wrong := func(m Mutations) (n int) {
		for i := range 27 * 6 {
			cfg := must(quorum.NewConfig(1, []quorum.MemberID{1, 2, 3}, nil))(t)
			net := newNetwork(t, cfg, func(c *Config) { c.Mutations = m })
			order := [][]quorum.MemberID{{1, 2, 3}, {1, 3, 2}, {2, 1, 3}, {2, 3, 1}, {3, 1, 2}, {3, 2, 1}}[i/27]
			var best Vote
			for j, id := range order {
				own := histories[[]int{i % 3, i / 3 % 3, i / 9 % 3}[j]]
				if v := (Vote{id, own.Epoch, own.Zxid}); v.Beats(best) {
					best = v
				}
				net.members[id].Look(own)
				net.collect(id)
			}
			net.stabilize()
			for _, id := range cfg.Voters {
				if s := net.members[id].Status(); s.State == Looking || s.Vote != best {
					n++
					break
				}
			}
		}
		return n
	}
	if n := wrong(Mutations{}); n != 0 {
		t.Errorf("%d elections ended with another than the best vote", n)
	}
	if n := wrong(Mutations{VotesByZxidOnly: true}); n == 0 {
		t.Error("votes by zxid only went unnoticed")
	}
}

// A clone goes the same way as its original and shares nothing with it; the canonical form tells states apart.
func TestCloneAndCanonical(t *testing.T) {
	cfg := must(quorum.NewConfig(1, []quorum.MemberID{1, 2, 3}, nil))(t)
	inputs := []func(*Election){
		func(e *Election) { e.Look(Candidate{Epoch: 1, Zxid: kv.MakeZxid(1, 5)}) },
		func(e *Election) { e.Step(Notification{From: 3, Round: 2, Vote: Vote{3, 1, kv.MakeZxid(1, 9)}}) },
		func(e *Election) { e.Tick() },
		func(e *Election) { e.PeerGone(2) },
		func(e *Election) { e.Ready() },
		func(e *Election) { e.SetEstablished(2, 9) },
		func(e *Election) { e.AttemptFailed(2) },
		func(e *Election) { e.Stop() },
	}
	e := New(Config{ID: 1, Members: cfg})
	for i, in := range inputs {
		before := e.AppendCanonical(nil)
		c := e.Clone()
		if !bytes.Equal(c.AppendCanonical(nil), before) {
			t.Fatalf("input %d: the clone differs at once", i)
		}
		in(e)
		if !bytes.Equal(c.AppendCanonical(nil), before) {
			t.Errorf("input %d: changed the clone", i)
		}
		if bytes.Equal(e.AppendCanonical(nil), before) {
			t.Errorf("input %d: left no mark in the canonical form", i)
		}
		in(c)
		if !bytes.Equal(e.AppendCanonical(nil), c.AppendCanonical(nil)) {
			t.Errorf("input %d: clone and original went different ways", i)
		}
	}
}

// The core imports nothing with a clock, a socket or a file (style 2.1).
func TestPure(t *testing.T) {
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		checked++
		parsed, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, im := range parsed.Imports {
			path, _ := strconv.Unquote(im.Path.Value)
			for _, bad := range []string{"net", "os", "time", "context", "log", "sync", "kvd/ensemble", "kvd/wal"} {
				if path == bad || strings.HasPrefix(path, bad+"/") {
					t.Errorf("%s imports %s", f.Name(), path)
				}
			}
		}
	}
	if checked < 5 {
		t.Errorf("checked only %d files", checked)
	}
}
