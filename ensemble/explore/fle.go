package explore

import (
	"encoding/binary"
	"fmt"

	"github.com/cespare/xxhash/v2"

	"kvd/fle"
	"kvd/kv"
	"kvd/zab/quorum"
)

// Fle is the election alone, three members, from every assignment of candidates: an older or newer current epoch, a shorter or
// longer history. A settled member may look again at any time. Each direction of a connection holds two notifications, one on
// the way and one waiting, which a newer one replaces. A tick of a member resends and ends a finalize wait, so a wait lasts as long
// as the schedule lets it. Connections do not break.
type Fle struct {
	Rounds    int // states with a higher round are left out; 0 is 2
	Mutations fle.Mutations
}

const (
	electors  = 3
	inTransit = 2
)

// String names the bounds.
func (f Fle) String() string {
	return fmt.Sprintf("fle: %d members, 27 assignments of candidates, %d rounds, %d notifications per direction", electors, f.rounds(), inTransit)
}

func (f Fle) rounds() fle.Round {
	if f.Rounds == 0 {
		return 2
	}
	return fle.Round(f.Rounds)
}

// Roots implements Model.
func (f Fle) Roots() ([]State, error) {
	voters := []quorum.MemberID{1, 2, 3}
	cfg, err := quorum.NewConfig(1, voters, nil)
	if err != nil {
		return nil, err
	}
	kinds := []fle.Candidate{{Epoch: 1, Zxid: kv.MakeZxid(1, 1)}, {Epoch: 1, Zxid: kv.MakeZxid(1, 2)}, {Epoch: 2, Zxid: kv.MakeZxid(1, 1)}}
	var roots []State
	for n := range 27 {
		s := &electorate{rounds: f.rounds(), own: [electors]fle.Candidate{kinds[n/9], kinds[n/3%3], kinds[n%3]}}
		for i, id := range voters {
			s.e[i] = fle.New(fle.Config{ID: id, Members: cfg, FinalizeTicks: 1, ResendTicks: 1, ResendMaxTicks: 1, Mutations: f.Mutations})
			s.e[i].Look(s.own[i])
			if err := s.ready(i); err != nil {
				return nil, err
			}
		}
		roots = append(roots, s)
	}
	return roots, nil
}

// electorate is one state of an election.
type electorate struct {
	rounds fle.Round
	own    [electors]fle.Candidate
	e      [electors]*fle.Election
	queue  [electors][electors][]fle.Notification // from, to
	heard  [electors][electors]bool               // by, of: since it began to look
}

const (
	_ = iota
	doNotify
	doTick
	doAgain
)

// Actions implements State.
func (s *electorate) Actions(dst []Action) []Action {
	for from := range electors {
		for to := range electors {
			if len(s.queue[from][to]) > 0 {
				dst = append(dst, pack(doNotify, from, to))
			}
		}
		if s.e[from].Status().State == fle.Looking {
			dst = append(dst, pack(doTick, from, 0))
		} else {
			dst = append(dst, pack(doAgain, from, 0))
		}
	}
	return dst
}

// Next implements State.
func (s *electorate) Next(a Action) (State, error) {
	c := *s
	kind, x, y := unpack(a)
	i := x
	if kind == doNotify {
		i = y
	}
	c.e[i] = c.e[i].Clone()
	switch kind {
	case doNotify:
		n := c.queue[x][y][0]
		c.queue[x][y] = c.queue[x][y][1:]
		c.heard[y][x] = true
		c.e[y].Step(n)
	case doTick:
		c.e[x].Tick()
	case doAgain:
		c.heard[x] = [electors]bool{}
		c.e[x].Look(c.own[x])
	}
	if err := c.ready(i); err != nil {
		return &c, err
	}
	if c.e[i].Status().Round > c.rounds {
		return nil, nil
	}
	return &c, nil
}

// ready sends what member i has to say and checks what it says and decides.
func (s *electorate) ready(i int) error {
	rd := s.e[i].Ready()
	for _, o := range rd.Send {
		n, to := o.Notification, int(o.To)-1
		if n.SenderEpoch != s.own[i].Epoch || n.SenderZxid != s.own[i].Zxid {
			return fmt.Errorf("P21: member %d reports %d/%s, its disk has %d/%s", i+1, n.SenderEpoch, n.SenderZxid, s.own[i].Epoch, s.own[i].Zxid)
		}
		if err := s.honest(i, n.Vote); err != nil {
			return err
		}
		q := s.queue[i][to]
		if len(q) == inTransit {
			q = q[:inTransit-1]
		}
		s.queue[i][to] = append(q[:len(q):len(q)], n)
	}
	d := rd.Decision
	if d == nil {
		return nil
	}
	if err := s.honest(i, d.Vote); err != nil {
		return err
	}
	// Whoever voted for the leader preferred it to itself.
	behind := 0
	for k := range electors {
		if own := s.vote(k); own == d.Vote || d.Vote.Beats(own) {
			behind++
		}
	}
	if behind <= electors/2 {
		return fmt.Errorf("vote order: member %d settles on %s, which only %d members can prefer", i+1, d.Vote, behind)
	}
	if l := int(d.Leader) - 1; l != i && !s.heard[i][l] {
		return fmt.Errorf("S46: member %d settles on %d without having heard it", i+1, d.Leader)
	}
	return nil
}

func (s *electorate) vote(k int) fle.Vote {
	return fle.Vote{Leader: quorum.MemberID(k + 1), Epoch: s.own[k].Epoch, Zxid: s.own[k].Zxid}
}

// honest: a vote, own or relayed, says of its candidate what the candidate's disk holds.
func (s *electorate) honest(i int, v fle.Vote) error {
	if v.Leader < 1 || v.Leader > electors || v != s.vote(int(v.Leader)-1) {
		return fmt.Errorf("P21: member %d votes %s, which is no member's own vote", i+1, v)
	}
	return nil
}

// Fingerprint implements State.
func (s *electorate) Fingerprint() uint64 {
	var b []byte
	for i := range electors {
		b = s.e[i].AppendCanonical(b)
		for k := range electors {
			b = append(b, byte(bit(s.heard[i][k])), byte(len(s.queue[i][k])))
			for _, n := range s.queue[i][k] {
				b = append(b, byte(n.State), byte(n.Vote.Leader)) // the rest of the vote is the candidate's own
				b = binary.LittleEndian.AppendUint64(b, uint64(n.Round))
			}
		}
	}
	return xxhash.Sum64(b)
}

// Describe implements State.
func (s *electorate) Describe(a Action) string {
	switch kind, x, y := unpack(a); kind {
	case doNotify:
		return fmt.Sprintf("deliver %d to %d # %s", x+1, y+1, s.queue[x][y][0])
	case doTick:
		return fmt.Sprintf("tick %d", x+1)
	default:
		return fmt.Sprintf("look %d", x+1)
	}
}
