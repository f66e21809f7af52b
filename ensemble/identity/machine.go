package identity

import (
	"fmt"
	"slices"
	"strings"

	"kvd/kv"
	"kvd/zab/quorum"
)

// Phase is what a member may do about elections.
type Phase uint8

// The phases. A member moves from Waiting to Voter or Joining, from Joining to Voter, and never back.
const (
	// Waiting: forming is not decided, or the cluster to join is not known. The member takes no part in elections.
	Waiting Phase = iota
	// Joining: an ensemble exists, or this member may have forgotten something. Its cluster id is durable. It
	// takes part as unknown: it may follow an established leader, and votes after its NEWLEADER batch.
	Joining
	// Voter: an ordinary member.
	Voter
)

// String names the phase for logs.
func (p Phase) String() string {
	switch p {
	case Waiting:
		return "waiting"
	case Joining:
		return "joining"
	case Voter:
		return "voter"
	}
	return fmt.Sprintf("Phase(%d)", uint8(p))
}

// Config is what a member knows at start.
type Config struct {
	ID      quorum.MemberID
	Members quorum.Config
	// Cluster is the durable cluster id: of the log store, or of the file if only that has one. Zero: none.
	Cluster ClusterID
	// Suspect: identity file and log store do not agree, or the log failed its checks.
	Suspect bool
	// Trusted: the member's history is complete, as far as it can know. False with a Cluster: it joined and
	// its NEWLEADER batch was not durable before the crash.
	Trusted  bool
	Accepted kv.Epoch
	Last     kv.Zxid
	// Bootstrap mints at once if the member is blank.
	Bootstrap bool
	// Run numbers this run: not zero, random or otherwise never used before by this member.
	Run uint64
	// Mint is the id to use if this member is the one that mints: random, not zero.
	Mint ClusterID
	// ResendTicks is the interval between hellos while waiting (0: 4 ticks).
	ResendTicks int
}

// WarnTicks is how long a member waits before a line says what for; RepeatTicks is the time between such lines.
const (
	WarnTicks   = 40
	RepeatTicks = 600
)

// Outbound is a hello for one member. The shell keeps at most one per peer; a newer one replaces it.
type Outbound struct {
	To    quorum.MemberID
	Hello Hello
}

// Persist asks for a durable identity: the log store first (it holds the promises), then the file. Answered
// by Machine.Persisted.
type Persist struct {
	Cluster ClusterID
	// Trusted goes into the same batch: the member has nothing to forget.
	Trusted bool
}

// Ready is what the steps since the last call produced.
type Ready struct {
	Send    []Outbound
	Persist *Persist
	Phase   *Phase   // set when it changed
	Events  []string // lines for people
}

// report is the newest hello of a member that counts.
type report struct {
	valid bool
	hello Hello
}

// Machine is the state machine of one member.
type Machine struct {
	cfg     Config
	cluster ClusterID
	// phase is what was decided. Joining without a durable cluster id is shown as Waiting, see Phase.
	phase Phase
	// persisting is the id whose Persist is not answered yet. Until then hellos say what was durable before:
	// the id is announced only when it cannot be lost any more.
	persisting *Persist
	accepted   kv.Epoch
	last       kv.Zxid

	members []quorum.MemberID
	runs    []uint64 // newest run heard, by position in members; 0: none
	reports []report // that echo this run
	refused []ClusterID
	// For people only: what each said last, whoever it was meant for, and whether it is connected.
	said []report
	up   []bool

	resendLeft int
	warnLeft   int // ticks to the next line about waiting
	pending    []bool
	ask        []bool
	told       Phase // last phase that Ready returned
	toldAny    bool
	events     []string
	persist    *Persist
}

// New returns the machine of a member at start. Its first Ready has the first phase.
func New(cfg Config) *Machine {
	if cfg.ResendTicks <= 0 {
		cfg.ResendTicks = 4
	}
	if cfg.Run == 0 || cfg.Mint.IsZero() {
		panic("identity: Config needs a Run and a Mint")
	}
	all := cfg.Members.Members()
	m := &Machine{cfg: cfg, cluster: cfg.Cluster, accepted: cfg.Accepted, last: cfg.Last, members: all,
		runs: make([]uint64, len(all)), reports: make([]report, len(all)), refused: make([]ClusterID, len(all)),
		pending: make([]bool, len(all)), ask: make([]bool, len(all)), resendLeft: cfg.ResendTicks, warnLeft: WarnTicks,
		said: make([]report, len(all)), up: make([]bool, len(all))}
	switch {
	case cfg.Suspect, !cfg.Cluster.IsZero() && !cfg.Trusted:
		m.phase = Joining
	case !cfg.Cluster.IsZero():
		m.phase = Voter
	case !cfg.Members.IsVoter(cfg.ID):
		m.phase = Joining // an observer is never counted, so it has nothing to form
	default:
		m.phase = Waiting
		if cfg.Bootstrap {
			m.event("minting cluster id %s at once, as asked by --bootstrap", cfg.Mint)
			m.adopt(cfg.Mint)
		}
		m.decide()
	}
	if cfg.Bootstrap && !cfg.Cluster.IsZero() {
		m.event("--bootstrap has no effect: this member belongs to cluster %s", cfg.Cluster)
	}
	m.sayAll(m.Phase() == Waiting)
	return m
}

// Phase returns the present phase. Who does not know which cluster to join waits: a history adopted before the
// id is durable would belong to nobody after a crash.
func (m *Machine) Phase() Phase {
	if m.phase == Joining && m.cluster.IsZero() {
		return Waiting
	}
	return m.phase
}

// Cluster returns the durable cluster id, zero if there is none.
func (m *Machine) Cluster() ClusterID { return m.cluster }

// WaitingFor says what forming waits for, empty when it does not wait.
func (m *Machine) WaitingFor() string {
	if m.Phase() != Waiting || m.persisting != nil {
		return ""
	}
	return m.describeWait()
}

// SetDurable tells what is durable now. Hellos speak of it.
func (m *Machine) SetDurable(accepted kv.Epoch, last kv.Zxid) { m.accepted, m.last = accepted, last }

// Joined says that the NEWLEADER batch of a joining member is durable: it is a voter from now on, and says so.
func (m *Machine) Joined() {
	if m.Phase() == Joining {
		m.phase = Voter
		m.sayAll(false)
	}
}

// Persisted says that the identity handed out is durable.
func (m *Machine) Persisted() {
	p := m.persisting
	if p == nil {
		return
	}
	m.persisting, m.cluster = nil, p.Cluster
	if p.Trusted {
		m.phase = Voter
	}
	m.sayAll(false)
}

// PeerConnected says that the election connection to id is up. It gets one hello, which asks for an answer if
// this member needs it.
func (m *Machine) PeerConnected(id quorum.MemberID) {
	if i, ok := m.position(id); ok {
		m.up[i] = true
		m.say(i, m.Phase() == Waiting)
	}
}

// PeerGone says that the election connection to id is closed or refused.
func (m *Machine) PeerGone(id quorum.MemberID) {
	if i, ok := m.position(id); ok {
		m.up[i] = false
	}
}

// Step processes one hello.
func (m *Machine) Step(h Hello) {
	i, ok := m.position(h.From)
	if !ok || h.From == m.cfg.ID {
		return
	}
	m.said[i] = report{true, h}
	newRun := m.runs[i] != h.Run
	m.runs[i] = h.Run
	if newRun {
		m.reports[i].valid = false // what it was in an earlier run says nothing
	}
	if m.foreign(i, h) {
		return
	}
	if h.Echo == m.cfg.Run {
		m.reports[i] = report{true, h}
	}
	switch {
	case m.phase == Waiting:
		m.decide()
	case m.phase == Joining && m.cluster.IsZero():
		m.learnCluster()
	}
	if h.Ask || newRun && m.Phase() == Waiting {
		// The answer asks only while the peer's report is missing: two sides that always asked would not stop.
		m.say(i, m.Phase() == Waiting && !m.reports[i].valid)
	}
}

// Tick moves the timers by one tick: repeated hellos and the line about waiting.
func (m *Machine) Tick() {
	if m.Phase() != Waiting {
		return
	}
	m.resendLeft--
	if m.resendLeft <= 0 {
		m.resendLeft = m.cfg.ResendTicks
		m.sayAll(true)
	}
	if m.persisting != nil {
		return
	}
	if m.warnLeft--; m.warnLeft <= 0 {
		m.warnLeft = RepeatTicks
		m.event("waiting: %s", m.describeWait())
	}
}

// Ready returns and clears what is to be done.
func (m *Machine) Ready() Ready {
	var rd Ready
	for i, due := range m.pending {
		if due {
			h := Hello{From: m.cfg.ID, Run: m.cfg.Run, Echo: m.runs[i], Ask: m.ask[i], Cluster: m.cluster, Suspect: m.phase == Joining,
				Accepted: m.accepted, Last: m.last}
			rd.Send = append(rd.Send, Outbound{To: m.members[i], Hello: h})
			m.pending[i], m.ask[i] = false, false
		}
	}
	rd.Persist, m.persist = m.persist, nil
	if p := m.Phase(); p != m.told || !m.toldAny {
		rd.Phase, m.told, m.toldAny = &p, p, true
	}
	rd.Events, m.events = m.events, nil
	return rd
}

// decide applies the rule at a blank voter.
func (m *Machine) decide() {
	if m.persisting != nil {
		return
	}
	var ids []ClusterID
	complete, allBlank := true, true
	for i, id := range m.members {
		if id == m.cfg.ID {
			continue
		}
		r := &m.reports[i]
		voter := m.cfg.Members.IsVoter(id)
		if !r.valid {
			complete = complete && !voter
			continue
		}
		h := &r.hello
		if !h.fresh() && !h.Cluster.IsZero() { // it has promised or logged something: the ensemble exists
			m.event("member %d belongs to cluster %s and has a history: joining it", id, h.Cluster)
			m.phase = Joining
			m.learnCluster()
			return
		}
		if !voter {
			continue
		}
		switch {
		case h.blank():
		case h.Suspect || h.Cluster.IsZero():
			complete = false // it may have forgotten something: only a person can tell (kvd recover)
		default:
			allBlank = false
			if !slices.Contains(ids, h.Cluster) {
				ids = append(ids, h.Cluster)
			}
		}
	}
	switch {
	case !complete:
	case len(ids) == 1:
		m.event("every voter was heard: adopting cluster id %s", ids[0])
		m.adopt(ids[0])
	case allBlank && m.cfg.ID == m.cfg.Members.Voters[len(m.cfg.Members.Voters)-1]:
		m.event("every voter is blank: minting cluster id %s", m.cfg.Mint)
		m.adopt(m.cfg.Mint)
	}
}

// adopt makes id durable; the member is an ordinary voter after that.
func (m *Machine) adopt(id ClusterID) {
	m.persisting = &Persist{Cluster: id, Trusted: true}
	m.persist = m.persisting
}

// learnCluster gives a joining member without an id the one of the ensemble that exists, if all that were heard
// agree on it. It is durable without being trusted: after a crash the member joins again.
func (m *Machine) learnCluster() {
	if m.persisting != nil || !m.cluster.IsZero() {
		return
	}
	var ids []ClusterID
	for i := range m.reports {
		h := &m.reports[i].hello
		if m.reports[i].valid && !h.Cluster.IsZero() && !h.Suspect && !slices.Contains(ids, h.Cluster) {
			ids = append(ids, h.Cluster)
		}
	}
	if len(ids) == 1 {
		m.persisting = &Persist{Cluster: ids[0]}
		m.persist = m.persisting
	}
}

// foreign refuses a hello of another cluster, telling it once per peer and id.
func (m *Machine) foreign(i int, h Hello) bool {
	if m.cluster.IsZero() || h.Cluster.IsZero() || h.Cluster == m.cluster {
		return false
	}
	m.reports[i].valid = false
	if m.refused[i] != h.Cluster {
		m.refused[i] = h.Cluster
		m.event("refused member %d: it belongs to cluster %s, this member to %s", h.From, h.Cluster, m.cluster)
	}
	return true
}

// describeWait names what keeps a blank voter from forming.
func (m *Machine) describeWait() string {
	var silent, suspect, minter []string
	ids := map[ClusterID][]string{}
	var order []ClusterID
	for i, id := range m.members {
		if id == m.cfg.ID || !m.cfg.Members.IsVoter(id) {
			continue
		}
		r, text := &m.reports[i], fmt.Sprint(uint64(id))
		switch {
		case !r.valid:
			silent = append(silent, text)
		case r.hello.blank():
		case r.hello.Suspect || r.hello.Cluster.IsZero():
			suspect = append(suspect, text)
		default:
			if ids[r.hello.Cluster] == nil {
				order = append(order, r.hello.Cluster)
			}
			ids[r.hello.Cluster] = append(ids[r.hello.Cluster], text)
		}
	}
	highest := m.cfg.Members.Voters[len(m.cfg.Members.Voters)-1]
	if len(silent)+len(suspect) == 0 && len(ids) == 0 && highest != m.cfg.ID {
		minter = append(minter, fmt.Sprintf("voter %d has to mint the cluster id and has not yet", highest))
	}
	if m.phase == Joining && len(ids) == 0 {
		return "no member that knows the cluster id was heard"
	}
	var parts []string
	if len(silent) > 0 {
		parts = append(parts, "not heard from voters "+strings.Join(silent, ", "))
	}
	if len(suspect) > 0 {
		parts = append(parts, "voters "+strings.Join(suspect, ", ")+" may have lost a history, which only `kvd recover` can settle")
	}
	if len(ids) > 1 {
		var texts []string
		for _, c := range order {
			texts = append(texts, fmt.Sprintf("voters %s say %s", strings.Join(ids[c], ", "), c))
		}
		parts = append(parts, "several cluster ids were minted ("+strings.Join(texts, "; ")+")")
	}
	return strings.Join(append(parts, minter...), "; ")
}

// Connected is how many voters are connected, this member included if it is one.
func (m *Machine) Connected() int {
	n := 0
	for i, id := range m.members {
		if m.cfg.Members.IsVoter(id) && (id == m.cfg.ID || m.up[i]) {
			n++
		}
	}
	return n
}

// Quorum says how many voters count here and which do not, and why: what a member that finds no leader lacks.
func (m *Machine) Quorum() string {
	var silent, foreign, forgetful []string
	count := 0
	for i, id := range m.members {
		if !m.cfg.Members.IsVoter(id) {
			continue
		}
		text, h := fmt.Sprint(uint64(id)), &m.said[i].hello
		switch {
		case id == m.cfg.ID && m.Phase() == Voter:
			count++
		case id == m.cfg.ID:
			forgetful = append(forgetful, text+" (this member)")
		case !m.up[i]:
			silent = append(silent, text)
		case m.said[i].valid && !h.Cluster.IsZero() && h.Cluster != m.cluster:
			foreign = append(foreign, text)
		case m.said[i].valid && (h.Suspect || h.Cluster.IsZero()):
			forgetful = append(forgetful, text)
		default:
			count++
		}
	}
	text := fmt.Sprintf("%d of %d voters can be counted, %d are needed", count, len(m.cfg.Members.Voters), m.cfg.Members.Majority())
	for _, part := range []struct {
		voters []string
		why    string
	}{
		{silent, "not connected"}, {foreign, "of another cluster"},
		{forgetful, "blank or without part of their history, which a leader has to bring back first"},
	} {
		if len(part.voters) > 0 {
			text += fmt.Sprintf("; %s: %s", part.why, strings.Join(part.voters, ", "))
		}
	}
	if count+len(silent)+len(foreign) < m.cfg.Members.Majority() {
		// Waiting does not help: whoever might still come is counted here.
		text += "; they cannot become a quorum by themselves: stop the voter that holds the most and run `kvd recover DIR --sole-survivor` on its directory"
	}
	return text
}

func (m *Machine) event(format string, args ...any) {
	m.events = append(m.events, fmt.Sprintf(format, args...))
}

func (m *Machine) say(i int, ask bool) {
	m.pending[i] = true
	m.ask[i] = m.ask[i] || ask
}

func (m *Machine) sayAll(ask bool) {
	for i, id := range m.members {
		if id != m.cfg.ID {
			m.say(i, ask)
		}
	}
}

func (m *Machine) position(id quorum.MemberID) (int, bool) { return slices.BinarySearch(m.members, id) }
