package fle

import (
	"math/rand/v2"
	"slices"

	"kvd/kv"
	"kvd/zab/quorum"
)

// Config describes one member's election. It is not changed by New.
type Config struct {
	ID      quorum.MemberID
	Members quorum.Config
	// FinalizeTicks is how long a quorum of equal votes waits for a better one; 0 means 4 ticks.
	FinalizeTicks int
	// ResendTicks is the first interval between resends while looking (0: 4 ticks); it doubles up to
	// ResendMaxTicks (0: 40 ticks) and starts again on a new round or a change of connectivity.
	ResendTicks, ResendMaxTicks int
	// Rand seeds the jitter of the resends; nil derives it from ID. It is read by New only.
	Rand *rand.Rand
	// Protocol and Format are reported in notifications.
	Protocol, Format VersionRange
	Mutations        Mutations
}

// peer is what is known about one voter.
type peer struct {
	// ballot is its entry in recvset: its vote in this round, from its own notification.
	ballot struct {
		valid bool
		vote  Vote
	}
	// standing is its entry in outofelection: its newest report if that was FOLLOWING or LEADING.
	standing struct {
		valid bool
		state State
		round Round
		vote  Vote
	}
	// gone: its connection is known to be closed or refused, and nothing came from it since.
	gone bool
	// penalty: in rounds up to this one a relayed vote for it is not adopted (S46).
	penalty Round
	// unheard counts the ticks for which this member voted for it without having its own notification.
	unheard int
	// defected: while this member leads unestablished, the voter was last heard electing or following
	// somebody else (S12).
	defected bool
}

// Election is the state machine of one member. The zero value is not usable; see New.
// A new Election takes no part until Look is called.
type Election struct {
	cfg Config
	rng rand.PCG // by value: Clone copies the stream

	taking bool // taking part; false before the first Look and after Stop
	state  State
	round  Round
	own    Candidate
	// vote is the current vote while LOOKING, the one settled on afterwards.
	// Invariant: names nobody or a voter.
	vote  Vote
	peers []peer // by position in cfg.Members.Voters

	finalizing   bool
	finalizeLeft int // ticks; meaningful while finalizing

	backoff    int // current resend interval before jitter
	resendLeft int // ticks to the next resend

	established kv.Epoch
	incarnation uint64

	members  []quorum.MemberID // all, ascending
	pending  []bool            // by position in members: a notification is due
	decision *Decision
	abdicate bool
	// abdicated: Abdicate was already reported in this term.
	abdicated bool
	send      []Outbound // reused by Ready
}

const (
	defaultFinalizeTicks  = 4
	defaultResendTicks    = 4
	defaultResendMaxTicks = 40
)

// New returns an Election that takes no part yet.
func New(cfg Config) *Election {
	if cfg.FinalizeTicks <= 0 {
		cfg.FinalizeTicks = defaultFinalizeTicks
	}
	if cfg.ResendTicks <= 0 {
		cfg.ResendTicks = defaultResendTicks
	}
	if cfg.ResendMaxTicks < cfg.ResendTicks {
		cfg.ResendMaxTicks = max(defaultResendMaxTicks, cfg.ResendTicks)
	}
	e := &Election{cfg: cfg, members: cfg.Members.Members(), peers: make([]peer, len(cfg.Members.Voters))}
	e.pending = make([]bool, len(e.members))
	if cfg.Rand != nil {
		e.rng.Seed(cfg.Rand.Uint64(), cfg.Rand.Uint64())
	} else {
		e.rng.Seed(uint64(cfg.ID), 0)
	}
	e.cfg.Rand = nil
	return e
}

// Look enters LOOKING in the next round. own must describe what is durable, with no disk write in flight.
// The caller has given up its previous role.
func (e *Election) Look(own Candidate) {
	e.taking, e.state, e.own = true, Looking, own
	e.established, e.incarnation = 0, 0
	e.decision, e.abdicate, e.abdicated = nil, false, false
	for i := range e.peers {
		p := &e.peers[i]
		p.standing.valid, p.defected, p.unheard = false, false, 0
	}
	clear(e.pending)
	e.startRound(e.round + 1)
	e.broadcast()
	e.evaluate()
}

// Stop leaves the election: nothing is sent, answered or decided until the next Look. The round is kept.
func (e *Election) Stop() {
	e.taking, e.decision, e.abdicate, e.finalizing = false, nil, false, false
	clear(e.pending)
}

// SetEstablished says that the settled leader (or this member as leader) is established in epoch and this
// member is synced with it. Notifications report it from now on (ZK-1732), and a member that was unknown
// is trusted again.
func (e *Election) SetEstablished(epoch kv.Epoch, incarnation uint64) {
	if !e.taking || e.state == Looking {
		return
	}
	e.established, e.incarnation = epoch, incarnation
	e.vote.Epoch = epoch
	e.own.Unknown, e.own.Sole = false, false
	e.abdicate = false
}

// LeadAlone ends the election of a LOOKING member that is a sole survivor, in its own favour: no votes are asked for. It
// has no effect on another member. Safety is phase 1's business, as for every leader.
func (e *Election) LeadAlone() {
	if !e.looking() || !e.own.Sole || !e.votes() {
		return
	}
	e.settle(Vote{Leader: e.cfg.ID, Epoch: e.own.Epoch, Zxid: e.own.Zxid})
	e.broadcast()
}

// Followed says that voter id's learner link to this leader is up: whatever it said before, it follows now.
func (e *Election) Followed(id quorum.MemberID) {
	if i, ok := e.voter(id); ok {
		e.peers[i].defected = false
	}
}

// AttemptFailed says that following leader came to nothing. Votes for it that others relay are not adopted
// for a few rounds, unless its own notification arrives (S46). Call it before Look.
func (e *Election) AttemptFailed(leader quorum.MemberID) {
	if i, ok := e.voter(leader); ok && leader != e.cfg.ID {
		e.penalise(i)
	}
}

// PeerConnected says that the election connection to id is up. It gets the latest state once.
func (e *Election) PeerConnected(id quorum.MemberID) {
	if i, ok := e.voter(id); ok {
		e.peers[i].gone = false
	}
	if e.taking {
		e.notify(id)
		e.resetBackoff()
	}
}

// PeerGone says that the election connection to id was closed or refused. Until something comes from it
// again, nobody waits for its vote and its old reports of a standing leader are void.
func (e *Election) PeerGone(id quorum.MemberID) {
	i, ok := e.voter(id)
	if !ok || id == e.cfg.ID {
		return
	}
	e.peers[i].gone = true
	e.peers[i].standing.valid = false
	if e.looking() {
		e.resetBackoff()
		e.evaluate()
	}
}

// Step processes one notification. What is not from a member, or makes no sense, is ignored.
func (e *Election) Step(n Notification) {
	if !e.taking || n.From == e.cfg.ID || n.Round > maxRound || n.State > Observing || !n.coherent() {
		return
	}
	i, ok := e.voter(n.From)
	if !ok {
		// Not a voter: answered in any state, never counted (S54). Observers do not answer each other.
		if e.cfg.Members.IsObserver(n.From) {
			e.answer(n.From)
		}
		return
	}
	if e.cfg.Mutations.DeafWhileFinalizing && e.finalizing && (n.State != Looking || n.Round != e.round || !e.better(n.Vote)) {
		return
	}
	p := &e.peers[i]
	p.gone, p.penalty, p.unheard = false, 0, 0
	switch {
	case e.state != Looking:
		e.stepSettled(p, n)
	case n.State == Looking:
		e.stepLooking(p, n)
	case n.State == Observing:
		e.answer(n.From) // a voter that was told it is an observer: its configuration differs (S53)
	default:
		e.stepStanding(p, n)
	}
	e.evaluate()
}

// stepLooking: this member and the sender are both LOOKING.
func (e *Election) stepLooking(p *peer, n Notification) {
	p.standing.valid = false // a newer report replaces an older one
	if n.Unknown || n.Vote.Leader == 0 {
		e.answer(n.From) // it has no vote; it may learn of a standing leader from us
		return
	}
	if _, ok := e.voter(n.Vote.Leader); !ok {
		return // S53
	}
	if !e.votes() {
		// Not in any tally: keep up with the round for the first join rule, and say nothing. An answer to an
		// answer would never end.
		if n.Round > e.round {
			e.startRound(n.Round)
		}
		return
	}
	switch {
	case n.Round > e.round:
		e.startRound(n.Round) // compares with the own initial vote below, not with the one of the old round
		e.record(p, n.Vote)
		if e.adoptable(n) && e.better(n.Vote) {
			e.setVote(n.Vote)
		}
		e.broadcast()
	case n.Round < e.round:
		e.answer(n.From) // not counted; it will catch up
	default:
		first := !p.ballot.valid
		e.record(p, n.Vote)
		switch {
		case e.adoptable(n) && e.better(n.Vote):
			e.setVote(n.Vote)
			e.broadcast()
		case first || e.cfg.Mutations.beats(e.vote, n.Vote):
			e.answer(n.From) // it may have been settled, or in another round, when we told everybody
		}
	}
}

// stepStanding: the sender follows or leads, an ensemble may already exist. The two join rules (zab-rules b).
func (e *Election) stepStanding(p *peer, n Notification) {
	if _, ok := e.voter(n.Vote.Leader); !ok {
		return
	}
	p.standing.valid, p.standing.state, p.standing.round, p.standing.vote = true, n.State, n.Round, n.Vote
	sameRound := n.Round == e.round
	if sameRound && !n.Unknown {
		e.record(p, n.Vote)
	}
	if !e.leaderCheck(n) {
		return
	}
	byRound := sameRound && e.quorum(func(i int, id quorum.MemberID) bool {
		if id == e.cfg.ID {
			return e.vote.Leader == n.Vote.Leader
		}
		return e.peers[i].ballot.valid && e.peers[i].ballot.vote.Leader == n.Vote.Leader
	})
	// Neither zxid nor round is compared: they differ between members that joined at different times (ZK-1805).
	byStanding := e.quorum(func(i int, _ quorum.MemberID) bool {
		s := &e.peers[i].standing
		if e.cfg.Mutations.JoinComparesVotes && (s.vote != n.Vote || s.round != n.Round) {
			return false
		}
		return s.valid && s.vote.Leader == n.Vote.Leader && s.vote.Epoch == n.Vote.Epoch
	})
	alone := n.Sole && n.State == Leading // the leader check says that it is the leader's own message
	if byRound || byStanding || alone {
		e.round = n.Round
		e.settle(n.Vote)
	}
}

// leaderCheck: a leader that is somebody else must have said so itself; that it is me must be news of this round.
func (e *Election) leaderCheck(n Notification) bool {
	if n.Vote.Leader == e.cfg.ID {
		return n.Round == e.round && e.votes()
	}
	i, _ := e.voter(n.Vote.Leader)
	s := &e.peers[i].standing
	return s.valid && s.state == Leading
}

// stepSettled answers those who look, and lets a prospective leader notice that its electors moved on (S12).
func (e *Election) stepSettled(p *peer, n Notification) {
	if n.State == Looking || n.State == Observing {
		e.answer(n.From)
	}
	if e.cfg.Mutations.LaggardDeposes && e.state == Leading && n.State == Looking && n.Round > e.round {
		e.abdicate = true
	}
	if e.state != Leading || e.established != 0 {
		return // once established, the broadcast's own quorum check decides; flapping laggards do not (S51)
	}
	if n.State == Looking {
		p.defected = n.Round > e.round && !n.Unknown
	} else {
		p.defected = n.Round >= e.round && n.Vote.Leader != e.cfg.ID
	}
	left := e.quorum(func(i int, id quorum.MemberID) bool { return id == e.cfg.ID || !e.peers[i].defected })
	if !left && !e.abdicated && !e.cfg.Mutations.NeverAbdicate {
		e.abdicate, e.abdicated = true, true
	}
}

// evaluate runs the quorum test of a LOOKING voter: start, keep, cancel or end the finalize wait.
func (e *Election) evaluate() {
	if !e.looking() || e.vote.Leader == 0 {
		return
	}
	agree := func(i int, id quorum.MemberID) bool {
		return id == e.cfg.ID || e.peers[i].ballot.valid && e.peers[i].ballot.vote == e.vote
	}
	if !e.heard(e.vote.Leader) || !e.quorum(agree) {
		e.finalizing = false
		return
	}
	if !e.finalizing {
		e.finalizing, e.finalizeLeft = true, e.cfg.FinalizeTicks
	}
	for i, id := range e.cfg.Members.Voters {
		if !agree(i, id) && !e.peers[i].gone {
			return
		}
	}
	e.settle(e.vote) // nobody who could object is left
}

// settle ends the election with v.
func (e *Election) settle(v Vote) {
	e.vote, e.finalizing = v, false
	switch {
	case v.Leader == e.cfg.ID:
		e.state = Leading
	case e.cfg.Members.IsObserver(e.cfg.ID):
		e.state = Observing
	default:
		e.state = Following
	}
	for i := range e.peers {
		e.peers[i].defected, e.peers[i].unheard = false, 0
	}
	e.decision = &Decision{State: e.state, Leader: v.Leader, Vote: v, Round: e.round}
}

// startRound enters round r with an empty recvset and the own initial vote.
func (e *Election) startRound(r Round) {
	e.round = r
	for i := range e.peers {
		e.peers[i].ballot.valid = false
	}
	e.finalizing = false
	e.vote = Vote{}
	if e.votes() {
		e.vote = Vote{Leader: e.cfg.ID, Epoch: e.own.Epoch, Zxid: e.own.Zxid}
	}
	e.resetBackoff()
}

func (e *Election) setVote(v Vote) {
	e.vote, e.finalizing = v, false
}

func (e *Election) record(p *peer, v Vote) { p.ballot.valid, p.ballot.vote = true, v }

func (e *Election) better(v Vote) bool { return e.cfg.Mutations.beats(v, e.vote) }

// adoptable reports whether n's vote may become ours: it is the candidate's own message, or the candidate is
// not under a penalty, or was heard in this round (S46).
func (e *Election) adoptable(n Notification) bool {
	i, _ := e.voter(n.Vote.Leader)
	return n.Vote.Leader == n.From || n.Vote.Leader == e.cfg.ID || e.round > e.peers[i].penalty || e.heard(n.Vote.Leader)
}

// heard reports whether id's own notification of this round was received and its connection is not known
// to have ended since.
func (e *Election) heard(id quorum.MemberID) bool {
	if id == e.cfg.ID {
		return true
	}
	i, ok := e.voter(id)
	if e.cfg.Mutations.FollowUnheard {
		return ok
	}
	return ok && e.peers[i].ballot.valid && !e.peers[i].gone
}

// penalise: relayed votes for voter i are not adopted for a few rounds. As many as there are voters, because
// each of them may open one round when it loses patience with the same candidate.
func (e *Election) penalise(i int) {
	e.peers[i].penalty = e.round + Round(len(e.peers)) + 2
	e.peers[i].unheard = 0
}

// votes reports whether this member has a vote of its own.
func (e *Election) votes() bool { return e.cfg.Members.IsVoter(e.cfg.ID) && !e.own.Unknown }

func (e *Election) looking() bool { return e.taking && e.state == Looking }

func (e *Election) voter(id quorum.MemberID) (int, bool) {
	return slices.BinarySearch(e.cfg.Members.Voters, id)
}

// quorum is Config.HasQuorum with the position at hand.
func (e *Election) quorum(in func(i int, id quorum.MemberID) bool) bool {
	i := -1
	return e.cfg.Members.HasQuorum(func(id quorum.MemberID) bool { i++; return in(i, id) })
}
