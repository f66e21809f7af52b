package sim

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"

	"kvd/ensemble/replica"
	"kvd/fle"
	"kvd/kv"
	"kvd/zab"
	"kvd/zab/quorum"
)

// Schedule describes one random history: everything in it follows from Seed.
type Schedule struct {
	Seed  uint64
	Steps int // events before the healing (500)
	// Members fixes the number of voters; 0 chooses, mostly 3 or 5.
	Members           int
	ZabMutations      zab.Mutations
	ElectionMutations fle.Mutations
	ReplicaMutations  replica.Mutations
	ShellMutations    ShellMutations
	TreeMutations     kv.Mutations
	LoseProposals     int
	Trace             bool
	// Scripted: what goes wrong is Faults, and nothing else; otherwise it is drawn.
	Scripted bool
	Faults   []Fault
	// Plain: clients set no watches and send no multis, as in schedules kept from the time before they did.
	Plain bool
}

// Result is what came of a schedule.
type Result struct {
	Seed      uint64
	Err       error // the first broken property
	Members   int   // voters
	Steps     int
	Committed int // length of G
	Epochs    int // established
	Ops       int // operations that clients finished
	Snaps     int // snapshots installed
	// Recovery is how many ticks it took from the end of the faults until everybody served.
	Recovery int
	// Messages counts what arrived, by kind.
	Messages map[string]int
	// Events counts what the replicas told, by kind.
	Events map[string]int
	Trace  []byte
	// Faults are those that were carried out: with Schedule.Scripted they make the same history again.
	Faults []Fault
}

// Run carries out one schedule: random work under random faults, every property checked after every step, then all
// faults end and the ensemble has to recover (L1, L2, L5), and everybody has to agree (C4).
func Run(c Schedule) (res Result) {
	s := NewRandom(c)
	res.Seed = c.Seed
	defer func() {
		if p := recover(); p != nil {
			s.fail("panic", "%v\n%s", p, debug.Stack())
		}
		res.Err, res.Steps, res.Committed, res.Epochs, res.Ops = s.failure, s.Steps, len(s.ghost.g), len(s.ghost.epochs), s.done
		res.Snaps, res.Trace, res.Messages = s.snaps, s.trace.Bytes(), s.arrived
		res.Members = len(s.config.Voters)
		res.Events, res.Recovery, res.Faults = s.happened, s.recovery, s.faults
	}()
	steps := c.Steps
	if steps == 0 {
		steps = 500
	}
	// The ensemble gets a little time to elect before trouble begins, most of the time.
	warm := s.frng.IntN(120)
	for next := c.Faults; s.Steps < steps; {
		for ; len(next) > 0 && next[0].At <= s.Steps && s.failure == nil; next = next[1:] {
			s.do(next[0])
		}
		if !s.Step() {
			break
		}
		if !c.Scripted && s.Steps >= warm && s.frng.IntN(s.faultEvery) == 0 {
			s.draw()
		}
		if !c.Scripted && s.Steps >= warm && s.lows {
			s.drawLow()
		}
	}
	if s.failure == nil {
		s.Settle()
	}
	return res
}

// NewRandom builds the ensemble of a schedule, with settings drawn from its seed.
func NewRandom(c Schedule) *Sim {
	r := rand.New(rand.NewPCG(c.Seed, 0x7365742d7570))
	pick := func(vs ...int) int { return vs[r.IntN(len(vs))] }
	opt := Options{
		Seed: c.Seed, Members: c.Members, Clients: pick(1, 2, 3), Trace: c.Trace,
		ElectionLoss: pick(0, 0, 40, 10), SnapshotEvery: pick(0, 3, 8, 20), LazyReady: pick(0, 0, 8, 3),
		CodecEvery: pick(0, 0, 0, 2), SlowDisk: pick(3, 10, 40), SlowApply: pick(1, 5, 30),
		ShellMutations: c.ShellMutations, TreeMutations: c.TreeMutations, ZabMutations: c.ZabMutations, ElectionMutations: c.ElectionMutations, LoseProposals: c.LoseProposals,
		Fresh: r.IntN(10) == 0,
	}
	opt.LocalSessions = r.IntN(4) == 0
	if n := pick(3, 3, 3, 3, 3, 3, 5, 5, 1, 2, 4, 7); opt.Members == 0 {
		opt.Members = n
	}
	opt.Observers = pick(0, 0, 0, 1)
	window, tail, batch, stage, outstanding := pick(0, 0, 4, 16), pick(0, 0, 64, 600), pick(0, 0, 100), pick(0, 0, 200), pick(0, 0, 8)
	rollover := uint32(pick(0, 0, 0, 15, 40))
	if rollover > 0 { // a re-epoch begins every synchronization anew: one that takes longer than an epoch never ends
		window, tail, batch = 0, 0, 0
	}
	mutations := c.ReplicaMutations
	patience, queued := pick(60, 60, 4), pick(0, 0, 3)
	opt.Tune = func(_ quorum.MemberID, c *replica.Config) {
		c.InitTicks, c.SyncTicks, c.PingTicks = 20, 10, 2
		c.WindowEntries, c.TailBytes, c.MaxBatchBytes, c.StageBytes, c.MaxOutstandingEntries = window, tail, batch, stage, outstanding
		c.RolloverCounter, c.AuditTicks = rollover, 2
		c.QueueTicks, c.MaxQueuedOps = patience, queued
		c.Mutations = mutations
		if outstanding > 0 {
			c.MaxForwardedOps = 4
		}
	}
	s := New(opt)
	s.faultEvery = pick(8, 15, 30, 60, 150, 400)
	s.wipes = pick(0, 0, 0, 0, 1) == 1
	s.clocks = pick(0, 0, 0, 1) == 1
	if c.LoseProposals > 0 {
		s.Lose(func(m *Message) bool {
			p, ok := m.Zab.(*zab.Proposal)
			return ok && len(p.Entries) > 0 && s.rng.IntN(c.LoseProposals) == 0
		})
	}
	s.frng = rand.New(rand.NewPCG(c.Seed, 0x6661756c7473))
	s.lrng = rand.New(rand.NewPCG(c.Seed, 0x6c6f77))
	s.lows = s.lrng.IntN(8) == 0
	if !c.Plain {
		s.wrng = rand.New(rand.NewPCG(c.Seed, 0x7761746368))
	}
	s.StartAll()
	return s
}

// settleTicks is the time within which an ensemble without faults has to recover: election, retries of dials that were
// swallowed, synchronization and the time-outs of what is left over (B1, B2, B3 of zab-rules d together).
const settleTicks = 200

// Settle ends all faults and demands what liveness promises.
func (s *Sim) Settle() {
	s.logf("settle")
	for _, m := range s.members {
		m.crashAt = nil
		s.DiskOK(m.ID)
		s.releaseIfHeld(m.ID)
		s.Resume(m.ID)
	}
	for i := range s.rules {
		if !s.rules[i].lose {
			s.rules[i].match = nil
		}
	}
	s.Heal()
	s.SlowStreams(0)
	s.calm, s.settling = true, true
	s.StartAll()
	began := s.now
	ok := s.Until(settleTicks, s.recovered)
	s.recovery = int((s.now - began) / tickMs)
	if !ok {
		if s.failure == nil {
			s.fail("L1", "%d ticks after the last fault: %s", settleTicks, s.describe())
		}
		return
	}
	for _, c := range s.clients {
		c.stopped = true
	}
	idle := func() bool {
		for _, c := range s.clients {
			if len(c.pending) > 0 {
				return false
			}
		}
		return s.recovered() && s.level() && s.reaped() && s.unspoiled()
	}
	if !s.Until(settleTicks, idle) {
		if s.failure == nil {
			s.fail("L5", "%d ticks after the last operation: %s", settleTicks, s.describe())
		}
		return
	}
	for _, m := range s.members {
		s.ghost.compareTree(m)
	}
	s.unwatched()
	s.ghost.account()
}

// recovered: one established leader, and everybody follows it up to date.
func (s *Sim) recovered() bool {
	l := s.Leader()
	if l == nil {
		return false
	}
	for _, m := range s.members {
		if !m.Up || !m.serving.Open || m.role.Epoch != l.role.Epoch || m.disk.unknown {
			return false
		}
	}
	return true
}

// unspoiled: nobody has a tree that differs. Whoever had one was found out and synced again, if there is a tree at all.
func (s *Sim) unspoiled() bool {
	if s.ghost.last() == 0 {
		return true
	}
	for _, m := range s.members {
		if m.spoiled != 0 {
			return false
		}
	}
	return true
}

// reaped: nothing that is to be removed is left.
func (s *Sim) reaped() bool {
	left := false
	if s.happened["fault:clock"] > 0 {
		return true // a time to live goes by the clocks of leaders, and they jumped
	}
	s.Leader().tree.View().Reapable(wallEpoch+s.now, 0, func(string) bool { left = true; return false })
	return !left
}

// level: everybody has applied everything.
func (s *Sim) level() bool {
	last := s.ghost.last()
	for _, m := range s.members {
		if m.tree.View().Zxid() != last {
			return false
		}
		if end, _ := m.handed.last(); end != last {
			return false
		}
	}
	return true
}

func (s *Sim) describe() string {
	text := fmt.Sprintf("G ends at %v", s.ghost.last())
	for _, m := range s.members {
		if !m.Up {
			text += fmt.Sprintf("; %d down", m.ID)
			continue
		}
		st := m.rep.Status()
		text += fmt.Sprintf("; %d %v %v leader=%d epoch=%d open=%v last=%v committed=%v applied=%v electing=%v forming=%q queued=%d outstanding=%d",
			m.ID, st.Role, st.Stage, st.Leader, st.Epoch, m.serving.Open, st.Last, st.Committed, m.tree.View().Zxid(), st.Electing, st.Forming, st.Queued, st.Outstanding)
	}
	for _, c := range s.clients {
		text += fmt.Sprintf("; client %d state=%d pending=%d", c.ID, c.state, len(c.pending))
	}
	return text
}
