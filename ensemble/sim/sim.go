package sim

import (
	"bytes"
	"fmt"
	"math/rand/v2"

	"kvd/ensemble/replica"
	"kvd/zab"
	"kvd/zab/quorum"

	"kvd/fle"
	"kvd/kv"
)

// tickMs is the length of a tick in virtual milliseconds, as in production.
const tickMs = 50

// Options describe a simulated ensemble. The zero value of each field takes the default named beside it.
type Options struct {
	Seed      uint64
	Members   int // voters (3)
	Observers int
	Clients   int
	// Tune changes the configuration of each member before it starts.
	Tune func(id quorum.MemberID, c *replica.Config)
	// ElectionLoss: one of so many election messages is lost, one of so many doubled; 0 none.
	ElectionLoss int
	// SnapshotEvery: a member takes a snapshot of its own about every so many applied transactions; 0 never.
	SnapshotEvery int
	// LazyReady: in one of so many cases a member handles its next input before it carries out what the last one
	// produced, as a loop does that drains its inbox; 0 never.
	LazyReady int
	// CodecEvery: one of so many messages is encoded and decoded on its way; 0 none.
	CodecEvery int
	// SlowDisk and SlowApply are upper bounds of a sync and of an apply, ms (10, 5).
	SlowDisk, SlowApply int
	// ThinkMs bounds the time between two acts of a client (60).
	ThinkMs int
	// LocalSessions: sessions of clients begin local.
	LocalSessions bool
	// Fresh: the members start blank and form an ensemble; otherwise they start with an identity and empty logs.
	Fresh bool

	ZabMutations      zab.Mutations
	ElectionMutations fle.Mutations
	ReplicaMutations  replica.Mutations
	ShellMutations    ShellMutations
	TreeMutations     kv.Mutations
	// LoseProposals makes one of so many batches of entries vanish from the middle of its link; see Sim.Lose.
	LoseProposals int
	// Trace keeps a line for everything that happens.
	Trace bool
}

// Sim is one simulated ensemble in one thread: virtual time, one queue of events, one source of randomness.
type Sim struct {
	opt     Options
	rng     *rand.Rand
	now     int64
	seq     uint64
	lives   uint64
	events  queue
	members []*Member
	config  quorum.Config
	clients []*Client

	links    []*link
	nextLink uint64
	cuts     map[[2]quorum.MemberID]bool
	rules    []rule
	held     []Message
	settling bool // faults are over: who stops comes back
	// calm: no random faults of the network, short delays (directed scenarios, healing).
	calm bool

	ghost ghost
	// Steps counts the events that happened.
	Steps int
	// failure is the first broken property; nothing happens after it.
	failure error

	onMessage  func(*Message) // told of every message that arrives, if not nil
	arrived    map[string]int // messages by kind
	happened   map[string]int // what the replicas told, by kind
	trace      bytes.Buffer
	handles    uint64
	incs       uint64
	tokens     uint64
	conns      uint64
	done       int        // operations finished
	snaps      int        // snapshots installed
	syncTicks  int        // of the members, for L4
	recovery   int        // ticks from the end of the faults until everybody served
	wipes      bool       // random schedules destroy disks, one at a time
	faultEvery int        // one fault in so many steps
	clocks     bool       // random schedules move wall clocks
	lows       bool       // random schedules let disks run low
	lrng       *rand.Rand // when they do
	lowSpace   bool       // some disk was low
	frng       *rand.Rand // draws faults, and nothing else
	faults     []Fault    // that were carried out
	wrng       *rand.Rand // draws the watches and multis of clients; nil: they have none
	round      fle.Round  // of scripted elections
	slowStream int        // ticks that a transfer of a snapshot takes
}

// New builds the ensemble. Nothing runs before Step or Run; members are started.
func New(opt Options) *Sim {
	if opt.Members == 0 {
		opt.Members = 3
	}
	if opt.SlowDisk == 0 {
		opt.SlowDisk = 10
	}
	if opt.SlowApply == 0 {
		opt.SlowApply = 5
	}
	s := &Sim{opt: opt, rng: rand.New(rand.NewPCG(opt.Seed, 0x6b7664)), cuts: map[[2]quorum.MemberID]bool{}, arrived: map[string]int{}, happened: map[string]int{}}
	s.ghost.init(s)
	var voters, observers []quorum.MemberID
	for i := range opt.Members + opt.Observers {
		id := quorum.MemberID(i + 1)
		if i < opt.Members {
			voters = append(voters, id)
		} else {
			observers = append(observers, id)
		}
		s.members = append(s.members, newMember(s, id))
	}
	cfg, err := quorum.NewConfig(1, voters, observers)
	if err != nil {
		panic(err)
	}
	s.config = cfg
	for range opt.Clients {
		s.addClient()
	}
	return s
}

// StartAll starts every member that is down.
func (s *Sim) StartAll() {
	for _, m := range s.members {
		if !m.Up {
			s.Start(m.ID)
		}
	}
}

// Member returns member id.
func (s *Sim) Member(id quorum.MemberID) *Member { return s.member(id) }

func (s *Sim) member(id quorum.MemberID) *Member { return s.members[id-1] }

// between returns a random number in [lo, hi).
func (s *Sim) between(lo, hi int64) int64 {
	if hi <= lo {
		return lo
	}
	return lo + s.rng.Int64N(hi-lo)
}

// after schedules do in d milliseconds, in the present life of m if m is not nil.
func (s *Sim) after(d int64, m *Member, name string, do func()) {
	life := uint64(0)
	if m != nil {
		life = m.life
	}
	s.afterLife(d, m, life, name, do)
}

func (s *Sim) afterLife(d int64, m *Member, life uint64, name string, do func()) {
	s.seq++
	s.events.push(event{at: s.now + max(0, d), seq: s.seq, m: m, life: life, name: name, do: do})
}

// Step lets the next event happen and checks every property. It reports false when nothing is left or a property
// broke.
func (s *Sim) Step() bool {
	for s.failure == nil && len(s.events.h) > 0 {
		e := s.events.pop()
		s.now = max(s.now, e.at)
		m := e.m
		if m != nil && (!m.Up || m.life != e.life) {
			continue // of a life that is over
		}
		if m != nil && m.paused {
			m.deferred = append(m.deferred, e)
			continue
		}
		s.Steps++
		if s.opt.Trace {
			id := quorum.MemberID(0)
			if m != nil {
				id = m.ID
			}
			fmt.Fprintf(&s.trace, "%d %d %s\n", s.now, id, e.name)
		}
		e.do()
		switch {
		case m == nil || !m.Up:
		case s.opt.LazyReady > 0 && !s.calm && s.rng.IntN(s.opt.LazyReady) == 0:
			s.after(s.between(0, 3), m, "loop", func() {}) // the loop turns once more, with what came meanwhile
		default:
			m.run()
		}
		return s.failure == nil
	}
	return false
}

// Run lets virtual time pass. It reports false when a property broke.
func (s *Sim) Run(ticks int) bool {
	end := s.now + int64(ticks)*tickMs
	for s.failure == nil && len(s.events.h) > 0 && s.events.h[0].at <= end {
		s.Step()
	}
	s.now = max(s.now, end)
	return s.failure == nil
}

// Until runs until cond holds, for at most the given ticks. It reports whether cond holds.
func (s *Sim) Until(ticks int, cond func() bool) bool {
	end := s.now + int64(ticks)*tickMs
	for !cond() {
		if s.failure != nil || len(s.events.h) == 0 || s.events.h[0].at > end {
			return false
		}
		s.Step()
	}
	return true
}

// Err returns the first broken property.
func (s *Sim) Err() error { return s.failure }

// Now is the virtual time in milliseconds.
func (s *Sim) Now() int64 { return s.now }

// Trace returns the lines kept so far.
func (s *Sim) Trace() []byte { return s.trace.Bytes() }

func (s *Sim) logf(format string, args ...any) {
	if s.opt.Trace {
		fmt.Fprintf(&s.trace, "  "+format+"\n", args...)
	}
}

// fail records a broken property by its name in zab-rules d.
func (s *Sim) fail(property string, format string, args ...any) {
	if s.failure == nil {
		s.failure = &Violation{Property: property, Text: fmt.Sprintf(format, args...), Step: s.Steps, At: s.now}
		s.logf("VIOLATION %v", s.failure)
	}
}

// Violation is a broken property.
type Violation struct {
	Property string // P1..P22, C1..C4, L1..L5 of zab-rules d; "stop" for a member that stopped itself, "panic"
	Text     string
	Step     int
	At       int64
}

func (v *Violation) Error() string {
	return fmt.Sprintf("%s at step %d, %d ms: %s", v.Property, v.Step, v.At, v.Text)
}

// Leader returns the established leader of the highest epoch, nil if there is none.
func (s *Sim) Leader() *Member {
	var best *Member
	for _, m := range s.members {
		if m.Up && m.role.Role == zab.Leading && m.role.Stage == zab.Broadcast && (best == nil || m.role.Epoch > best.role.Epoch) {
			best = m
		}
	}
	return best
}
