package zab

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"kvd/zab/quorum"
)

var (
	flagSeed = flag.Int64("seed", -1, "replay one random schedule")
	flagRuns = flag.Int("runs", 0, "number of random schedules; default 3000, with -short 1000")
)

// schedule is one short random run: an arbitrary oracle elects anybody, links break and lose messages, disks
// complete when they like, members crash. Then everything heals and the ensemble must come to agree.
type schedule struct {
	*cluster
	rnd   *rand.Rand
	trace strings.Builder
	value int
	// loseMessages drops single messages in the middle of a link; the protocol must notice.
	loseMessages bool
	faults       int // per thousand steps
	episodes     bool
	lazy         bool // shells answer reads and snapshots late
	quiet        bool // nobody proposes in this episode
	// slowDisk and slowNet stall members for a while, so that histories diverge.
	slowDisk, slowNet map[quorum.MemberID]bool
}

func newSchedule(seed int64, mut Mutations) *schedule {
	rnd := rand.New(rand.NewPCG(uint64(seed), 0x7a6162))
	cfg := testConfig()
	cfg.Mutations = mut
	cfg.InitTicks, cfg.SyncTicks = 8, 6
	voters, observers := 3, rnd.IntN(2)
	if rnd.IntN(3) == 0 {
		voters = 5
	}
	if rnd.IntN(2) == 0 { // staged synchronization, tiny windows and memory
		cfg.StageBytes = 40 * (1 + rnd.IntN(4))
		cfg.WindowEntries = 1 + rnd.IntN(4)
		cfg.MaxBatchBytes = 40 * (1 + rnd.IntN(3))
		cfg.TailBytes = 100
	}
	if rnd.IntN(4) == 0 {
		cfg.RolloverCounter = 4
	}
	s := &schedule{cluster: newCluster(voters, observers, cfg), rnd: rnd, loseMessages: rnd.IntN(4) == 0, faults: 5 + rnd.IntN(50), episodes: rnd.IntN(2) == 0}
	s.log = func(format string, args ...any) { fmt.Fprintf(&s.trace, format+"\n", args...) }
	s.lazy = rnd.IntN(2) == 0
	for _, n := range s.nodes {
		n.lazy = s.lazy
	}
	return s
}

func (s *schedule) pick() *testNode {
	ids := s.members.Members()
	return s.nodes[ids[s.rnd.IntN(len(ids))]]
}

func (s *schedule) step() {
	n := s.pick()
	if s.rnd.IntN(1000) < s.faults {
		s.fault(n)
		return
	}
	if s.rnd.IntN(8) == 0 {
		s.serve(n)
		s.pump(n)
	}
	if o := s.leading(n); o.role.Stage == Broadcast && s.rnd.IntN(20) == 0 {
		s.sync(o)
	}
	if s.episodes && s.rnd.IntN(40) == 0 {
		s.episode()
		return
	}
	if n.p == nil && s.rnd.IntN(6) == 0 {
		s.start(n.id)
		return
	}
	if s.rnd.IntN(40) == 0 {
		s.slowDisk, s.slowNet = map[quorum.MemberID]bool{}, map[quorum.MemberID]bool{}
		for _, id := range s.members.Members() {
			s.slowDisk[id], s.slowNet[id] = s.rnd.IntN(3) == 0, s.rnd.IntN(4) == 0
		}
	}
	switch r := s.rnd.IntN(100); {
	case r < 12:
		s.flow()
	case r < 52:
		if len(s.links) == 0 {
			return
		}
		l := s.links[s.rnd.IntN(len(s.links))]
		to := l.learner
		if s.rnd.IntN(2) == 0 {
			to = l.leader
		}
		if s.slowNet[l.learner] {
			return
		}
		for range 1 + s.rnd.IntN(4) {
			if s.link(l.id) != nil {
				s.deliver(l, to)
			}
		}
		s.settle()
	case r < 72:
		if !s.slowDisk[n.id] {
			s.persist(n, s.rnd.IntN(3))
		}
	case r < 80:
		s.connect(n)
	case r < 90:
		s.propose(s.leading(n))
	case r < 95:
		s.campaign()
	case r < 98:
		for _, id := range s.members.Members() {
			if s.rnd.IntN(4) > 0 {
				s.tick(s.nodes[id])
			}
		}
	default:
		s.takeSnapshot(n, s.rnd.IntN(4))
	}
}

func (s *schedule) fault(n *testNode) {
	switch s.rnd.IntN(12) {
	case 10:
		if o := s.leading(n); o.p != nil {
			o.do((*Peer).Resign)
			s.pump(o)
		}
	case 11: // an observer loses its disk
		if s.members.IsObserver(n.id) {
			if n.p != nil {
				s.crash(n.id)
			}
			n.disk = &testDisk{}
			delete(s.epochs, n.id)
			s.start(n.id)
			n.lazy = s.lazy
		}
	case 8, 9: // power fails in the middle of what the disk was doing
		if n.p != nil && len(n.queue) > 1 {
			s.persist(n, 1+s.rnd.IntN(len(n.queue)-1))
			s.crash(n.id)
			if s.rnd.IntN(2) == 0 {
				s.start(n.id)
			}
		}
	case 6, 7:
		if o := s.leading(n); o.p != nil {
			s.crash(o.id)
			if s.rnd.IntN(2) == 0 {
				s.start(o.id)
			}
		}
	case 0, 1: // often the learner is back at once
		if len(s.links) > 0 {
			l := s.links[s.rnd.IntN(len(s.links))]
			s.breakLink(l)
			if o := s.nodes[l.learner]; o.p != nil && o.p.role == Looking && s.rnd.IntN(2) == 0 {
				o.decide(l.leader)
				s.pump(o)
			}
		}
	case 2:
		if n.p != nil {
			s.crash(n.id)
		}
	case 3:
		if n.p != nil {
			n.do(func(p *Peer) { p.Look("oracle") })
			s.pump(n)
		}
	case 4: // a message lost in the middle of a link, which TCP never does
		if len(s.links) == 0 || !s.loseMessages {
			return
		}
		l := s.links[s.rnd.IntN(len(s.links))]
		if q := l.queue[l.learner]; len(q) > 0 && q[0].files == nil {
			if _, snap := q[0].msg.(*Snap); !snap {
				l.queue[l.learner] = q[1:]
			}
		}
	case 5: // power cut of everybody
		if s.rnd.IntN(4) == 0 {
			for _, id := range s.members.Members() {
				if s.nodes[id].p != nil {
					s.crash(id)
				}
			}
		}
	}
}

// episode ends the reign at hand, and gives one to anybody with anybody's support: epochs change fast, and histories
// that should be gone come back.
func (s *schedule) episode() {
	leader := s.members.Voters[s.rnd.IntN(len(s.members.Voters))]
	keepDown := s.rnd.IntN(3) == 0
	apart := quorum.MemberID(0)
	if o := s.reigning(); o != nil && s.rnd.IntN(3) > 0 { // the one that leaves keeps a tail that few have seen
		s.quiet = false
		s.propose(o)
		s.persist(o, 0)
		apart = o.id
		if o.id == leader {
			leader = s.members.Voters[s.rnd.IntN(len(s.members.Voters))]
		}
	}
	s.quiet = s.rnd.IntN(3) == 0
	for _, id := range s.members.Members() {
		n := s.nodes[id]
		if n.p != nil && s.rnd.IntN(3) == 0 {
			s.crash(id)
		}
		if n.p == nil {
			if keepDown && id != leader && s.rnd.IntN(2) == 0 {
				continue
			}
			s.start(id)
		}
		n.do(func(p *Peer) { p.Look("episode") })
		s.pump(n)
		if id == leader || id != apart && s.rnd.IntN(4) > 0 {
			n.decide(leader)
		}
		s.pump(n)
		if !s.slowDisk[id] {
			s.persist(n, 0)
		}
	}
	for _, id := range s.members.Members() {
		s.connect(s.nodes[id])
	}
}

// flow lets everything move a little, except for those that stall at the moment.
func (s *schedule) flow() {
	for _, id := range s.members.Members() {
		n := s.nodes[id]
		s.connect(n)
		if !s.slowDisk[id] {
			s.persist(n, 0)
		}
	}
	for _, l := range slices.Clone(s.links) {
		for _, to := range []quorum.MemberID{l.leader, l.learner} {
			for range 2 {
				if s.link(l.id) != nil && !s.slowNet[l.learner] {
					s.deliver(l, to)
				}
			}
		}
	}
	s.settle()
}

// reigning returns an established leader, or nil.
func (s *schedule) reigning() *testNode {
	for _, id := range s.members.Voters {
		if o := s.nodes[id]; o.p != nil && o.role.Role == Leading && o.role.Stage == Broadcast {
			return o
		}
	}
	return nil
}

// leading prefers a member that leads.
func (s *schedule) leading(n *testNode) *testNode {
	for _, id := range s.members.Voters {
		if o := s.nodes[id]; o.p != nil && o.role.Role == Leading && s.rnd.IntN(2) == 0 {
			return o
		}
	}
	return n
}

// campaign is the election oracle: it names anybody, often one that should not lead, and tells only some.
func (s *schedule) campaign() {
	leader := s.members.Voters[s.rnd.IntN(len(s.members.Voters))]
	if s.rnd.IntN(3) > 0 { // join one that leads
		leader = s.leading(s.nodes[leader]).id
	}
	for _, id := range s.members.Members() {
		n := s.nodes[id]
		if n.p == nil || n.p.role != Looking || s.rnd.IntN(5) == 0 {
			continue
		}
		n.decide(leader)
		s.pump(n)
	}
}

func (n *testNode) propose(v string) (err error) {
	n.do(func(p *Peer) { _, err = p.Propose([]byte(v)) })
	return err
}

func (s *schedule) propose(n *testNode) {
	if n.p == nil || s.quiet {
		return
	}
	for range 1 + s.rnd.IntN(3) {
		s.value++
		if err := n.propose(fmt.Sprint(s.value)); err != nil {
			break
		}
	}
	s.pump(n)
}

// heal restarts everybody, elects the member with the newest history and demands agreement.
func (s *schedule) heal() {
	s.slowDisk, s.slowNet = nil, nil
	for _, id := range s.members.Members() {
		if s.nodes[id].p == nil {
			s.start(id)
		}
		s.nodes[id].do(func(p *Peer) { p.Look("heal") })
		s.pump(s.nodes[id])
	}
	s.stabilize()
	best := s.nodes[s.members.Voters[0]]
	for _, id := range s.members.Voters {
		n := s.nodes[id]
		a, b := recency{n.disk.st.Current, n.disk.st.Last}, recency{best.disk.st.Current, best.disk.st.Last}
		if a.greater(b) || !b.greater(a) && n.id > best.id {
			best = n
		}
	}
	best.decide(best.id)
	s.pump(best)
	for _, id := range s.members.Members() {
		if id != best.id {
			s.nodes[id].decide(best.id)
			s.pump(s.nodes[id])
		}
	}
	s.stabilize()
	for range 60 { // members that had promised more, dials that were refused, one round of pings
		for _, id := range s.members.Members() {
			s.tick(s.nodes[id])
		}
		s.stabilize()
	}
	for range 3 {
		s.value++
		if err := best.propose(fmt.Sprint(s.value)); err != nil {
			s.pump(best)
			s.stabilize() // a counter rollover
			if err := best.propose(fmt.Sprint(s.value)); err != nil {
				s.fail("liveness: leader %d: %v (%s)", best.id, err, best.role.Reason)
			}
		}
		s.stabilize()
	}
	for _, id := range s.members.Members() {
		n := s.nodes[id]
		if n.role.Stage != Broadcast || len(n.applied) != len(s.g) || len(s.g) == 0 {
			s.fail("liveness: member %d is %s/%s (%s) with %d applied of %d", id, n.role.Role, n.role.Stage, n.role.Reason, len(n.applied), len(s.g))
		}
	}
}

func runSchedule(seed int64, mut Mutations, verbose bool) *schedule {
	s := newSchedule(seed, mut)
	s.verbose = verbose
	steps := 300 + s.rnd.IntN(700)
	for i := 0; i < steps && s.violation == ""; i++ {
		s.step()
	}
	if s.violation == "" && mut == (Mutations{}) {
		s.heal()
	}
	return s
}

func runs() int64 {
	switch {
	case *flagRuns > 0:
		return int64(*flagRuns)
	case testing.Short():
		return 1000
	}
	return 3000
}

// TestRandomSchedules checks P1-P5, P7-P14, P16, P21 and P22 on every step of thousands of short runs, and that each
// run ends in agreement once the faults stop.
func TestRandomSchedules(t *testing.T) {
	seeds := slices.Collect(func(yield func(int64) bool) {
		if *flagSeed >= 0 {
			yield(*flagSeed)
			return
		}
		for i := range runs() {
			if !yield(i) {
				return
			}
		}
	})
	committed := 0
	covered := map[string]int{}
	for _, seed := range seeds {
		s := runSchedule(seed, Mutations{}, false)
		committed += len(s.g)
		for k, n := range s.covered {
			covered[k] += n
		}
		if s.violation != "" {
			again := runSchedule(seed, Mutations{}, true)
			t.Fatalf("seed %d: %s\nreplay: go test ./zab -run '^%s$' -seed=%d\n%s", seed, s.violation, t.Name(), seed, again.trace.String())
		}
	}
	if committed < 5*len(seeds) && len(seeds) > 1 {
		t.Errorf("%d entries committed in %d runs: the schedules do too little", committed, len(seeds))
	}
	for _, k := range []string{"row 1", "row 2", "row 3", "row 4", "row 5", "install", "truncation", "staged truncation", "abdicate", "re-epoch", "sync confirmed true", "sync confirmed false"} {
		if covered[k] < 5 && len(seeds) > 1 {
			t.Errorf("%s happened %d times: the schedules do too little", k, covered[k])
		}
	}
	t.Logf("%d runs, %d entries committed, %v", len(seeds), committed, covered)
}

// TestScheduleIsDeterministic runs one schedule twice and compares everything that was said.
func TestScheduleIsDeterministic(t *testing.T) {
	for seed := range int64(20) {
		a, b := runSchedule(seed, Mutations{}, true), runSchedule(seed, Mutations{}, true)
		if a.trace.String() != b.trace.String() {
			t.Fatalf("seed %d: two runs differ", seed)
		}
	}
}
