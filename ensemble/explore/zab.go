package explore

import (
	"fmt"
	"slices"

	"kvd/kv"
	"kvd/zab"
	"kvd/zab/quorum"
)

// Zab is the broadcast under an arbitrary election: any member may at any point be told to lead or to follow anybody,
// within the bounds. Its zero bounds allow nothing.
type Zab struct {
	Members int // voters, at most 5; 0 is 3
	// What may happen, in any order and at any time.
	Writes  int // client writes at an established leader
	Leads   int // decisions that a member leads
	Follows int // decisions that a member follows another
	Looks   int // members that give up their role by themselves: a time-out, or an election that others began
	Crashes int // crashes; starting again is free
	Breaks  int // connections broken by the network, both ways
	Pings   int // ticks of a leader, each of which begins a PING round
	// Queue is how many messages one direction of a connection may hold; states beyond are left out. 0 is 3.
	// Last words (RESIGN, REFUSE), which are the end of a connection, do not count.
	Queue int
	// Blank starts with empty disks and everybody looking; else member n, the highest, leads epoch 1 and all others follow it.
	Blank bool
	// Outcomes leaves out the properties that see a mistake when it is made (P2, P10 to P12, P21, protocol errors), so that only
	// what came of it counts. It shows that the others would notice too.
	Outcomes  bool
	Mutations zab.Mutations
}

const maxMembers = 5

// String names the bounds.
func (z Zab) String() string {
	z = z.withDefaults()
	start := "start established"
	if z.Blank {
		start = "start blank"
	}
	return fmt.Sprintf("zab: %d members, %s, %d writes, %d leads, %d follows, %d looks, %d crashes, %d breaks, %d pings, %d messages per direction of a link",
		z.Members, start, z.Writes, z.Leads, z.Follows, z.Looks, z.Crashes, z.Breaks, z.Pings, z.Queue)
}

func (z Zab) withDefaults() Zab {
	if z.Members == 0 {
		z.Members = 3
	}
	if z.Queue == 0 {
		z.Queue = 3
	}
	return z
}

// unreachable is a limit of ticks that no exploration comes to.
const unreachable = 1 << 30

// Roots implements Model.
func (z Zab) Roots() ([]State, error) {
	z = z.withDefaults()
	if z.Members < 1 || z.Members > maxMembers {
		return nil, fmt.Errorf("explore: %d members, 1 to %d are possible", z.Members, maxMembers)
	}
	var voters []quorum.MemberID
	for i := range z.Members {
		voters = append(voters, quorum.MemberID(i+1))
	}
	cfg, err := quorum.NewConfig(1, voters, nil)
	if err != nil {
		return nil, err
	}
	env := &zabEnv{bounds: z, members: cfg}
	w := &world{env: env}
	w.left = budgets{leads: 1, follows: int8(z.Members - 1)}
	for i := range voters {
		m := &member{id: voters[i], disk: &disk{}}
		w.m[i] = m
		if err := w.start(m); err != nil {
			return nil, err
		}
	}
	if !z.Blank {
		if w, err = w.established(); err != nil {
			return nil, err
		}
	}
	w.left = budgets{
		writes: int8(z.Writes), leads: int8(z.Leads), follows: int8(z.Follows), looks: int8(z.Looks), crashes: int8(z.Crashes), breaks: int8(z.Breaks), pings: int8(z.Pings),
	}
	w.leads = 1
	return []State{w}, nil
}

// zabEnv is what all states of one worker share. The members' configurations have a function that looks into it.
type zabEnv struct {
	bounds  Zab
	members quorum.Config
	inc     zab.Incarnation // of the member that is running
	buf     []byte          // of Fingerprint
}

func (v *zabEnv) config(id quorum.MemberID) zab.Config {
	return zab.Config{
		ID: id, Members: v.members, Incarnation: func() zab.Incarnation { return v.inc },
		InitTicks: unreachable, SyncTicks: unreachable, StallTicks: unreachable, PingTicks: 1, Mutations: v.bounds.Mutations,
	}
}

// budgets are what may still happen.
type budgets struct{ writes, leads, follows, looks, crashes, breaks, pings int8 }

// world is one state: members with their disks, connections, and the ghosts that the properties speak of.
type world struct {
	env   *zabEnv
	m     [maxMembers]*member
	links []*link // by learner, leader and age
	left  budgets
	// leads numbers attempts to lead. It is as good as a function of left.leads, so it is in no fingerprint.
	leads zab.Incarnation
	// nextLink names connections: names are for the machine only, see member.names.
	nextLink zab.LinkID
	ghosts

	owned   uint8 // members that are copies of this step's own
	outside bool  // the step leaves the bounds
	broken  error
}

// member is one process and its disk. It is not changed once its step is over.
type member struct {
	id    quorum.MemberID
	p     *zab.Peer // nil: down
	disk  *disk
	queue []zab.Write // handed to the disk and not durable, oldest first
	dial  *zab.Connect
	inc   zab.Incarnation // for the next attempt to lead
	// names are the connections that are up at this member, by other end and age. A name's position in it is what the
	// fingerprint knows.
	names   []zab.LinkID
	applied int // length of A(m): it is a prefix of the committed sequence (P6)
	sum     [2]uint64
	summed  bool
}

// disk is what survives a crash. Without snapshots, the log is the whole history.
type disk struct {
	st   zab.DurableState
	hist []kv.Entry
}

// Locate implements zab.History.
func (d *disk) Locate(z kv.Zxid) (kv.Zxid, uint64, bool) {
	at, chain := d.tip(index(d.hist, z))
	return at, chain, true
}

func (d *disk) tip(n int) (kv.Zxid, uint64) {
	if n == 0 {
		return 0, kv.ChainSeed()
	}
	return d.hist[n-1].Zxid, d.hist[n-1].Chain
}

// index is the number of entries at or below z.
func index(hist []kv.Entry, z kv.Zxid) int {
	n := len(hist)
	for n > 0 && hist[n-1].Zxid > z {
		n--
	}
	return n
}

// written is hist behind w.
func written(hist []kv.Entry, w *zab.Write) []kv.Entry {
	if w.Truncate != nil {
		hist = hist[:index(hist, *w.Truncate)]
	}
	return append(hist[:len(hist):len(hist)], w.Append...)
}

// write makes w durable: all of it, in field order.
func (d *disk) write(w *zab.Write) {
	if w.Promise != nil {
		d.st.Accepted = *w.Promise
	}
	d.hist = written(d.hist, w)
	if w.Current != 0 {
		d.st.Current = w.Current
	}
	d.st.Last, d.st.LastChain = d.tip(len(d.hist))
}

// shadow is the history with what is on its way to the disk.
func (m *member) shadow() []kv.Entry {
	h := m.disk.hist
	for i := range m.queue {
		h = written(h, &m.queue[i])
	}
	return h
}

// The two directions of a link, and the end that receives in each.
const (
	toLeader  = 0
	toLearner = 1
)

// link is one connection. What is sent is received in order or not at all: a link that is broken, or whose sender is
// gone, still delivers any part of what was on the way, from the oldest on, and then its end.
type link struct {
	id              zab.LinkID
	learner, leader int          // positions in world.m
	queue           [2][]message // by direction
	ended           [2]bool      // nothing more is sent in this direction
	open            [2]bool      // the end that receives in this direction has not closed it
}

// message is what travels; a nil one is the opening of the connection at the leader.
type message struct{ zab.Message }

func (l *link) receiver(dir int) int {
	if dir == toLeader {
		return l.leader
	}
	return l.learner
}

// find returns the position of a connection, -1 if it is gone.
func (w *world) find(id zab.LinkID) int {
	return slices.IndexFunc(w.links, func(l *link) bool { return l.id == id })
}

// change returns a copy of link i that this step may change.
func (w *world) change(i int) *link {
	c := *w.links[i]
	w.links = slices.Clone(w.links)
	w.links[i] = &c
	return &c
}

func (w *world) drop(i int) {
	w.links = slices.Delete(slices.Clone(w.links), i, i+1)
}

// own returns member i for this step to change.
func (w *world) own(i int) *member {
	if w.owned&(1<<i) != 0 {
		return w.m[i]
	}
	w.owned |= 1 << i
	c := *w.m[i]
	d := *c.disk
	c.disk, c.summed = &d, false
	c.queue = slices.Clip(c.queue)
	if c.p != nil {
		c.p = c.p.Clone(c.disk)
	}
	w.m[i] = &c
	return &c
}

// start lets a member's process begin with what is on its disk.
func (w *world) start(m *member) error {
	p, err := zab.New(w.env.config(m.id), m.disk.st, m.disk)
	if err != nil {
		return fmt.Errorf("P1: member %d cannot start: %w", m.id, err)
	}
	m.p, m.queue, m.dial, m.names, m.applied = p, nil, nil, nil, 0
	return nil
}

// named notes that link id is up at member i, other end and age deciding its place.
func (w *world) named(m *member, i int, id zab.LinkID) {
	m.names = append(slices.Clone(m.names), id)
	other := func(id zab.LinkID) int {
		l := w.links[w.find(id)]
		if l.learner == i {
			return 2 * l.leader
		}
		return 2*l.learner + 1
	}
	slices.SortFunc(m.names, func(a, b zab.LinkID) int {
		if d := other(a) - other(b); d != 0 {
			return d
		}
		return int(a) - int(b)
	})
}

func (m *member) unnamed(id zab.LinkID) {
	m.names = slices.DeleteFunc(slices.Clone(m.names), func(x zab.LinkID) bool { return x == id })
}

// established brings a blank world to the point where the highest member leads epoch 1 and all others serve.
func (w *world) established() (*world, error) {
	n := len(w.env.members.Voters)
	oracle := []Action{pack(doLead, n-1, 0)}
	for i := range n - 1 {
		oracle = append(oracle, pack(doFollow, i, n-1))
	}
	step := func(a Action) error {
		s, err := w.Next(a)
		if err != nil {
			return err
		}
		if s == nil {
			return fmt.Errorf("explore: the first election leaves the bounds")
		}
		w = s.(*world)
		return nil
	}
	for _, a := range oracle {
		if err := step(a); err != nil {
			return nil, err
		}
	}
	for {
		var quiet Action
		for _, a := range w.Actions(nil) {
			switch kind, _, _ := unpack(a); kind {
			case doDeliver, doPersist, doConnect:
				quiet = a
			}
		}
		if quiet == 0 {
			break
		}
		if err := step(quiet); err != nil {
			return nil, err
		}
	}
	for i := range n {
		if g := w.m[i].p.Glance(); g.Stage != zab.Broadcast {
			return nil, fmt.Errorf("explore: member %d is %s, %s after the first election", w.m[i].id, g.Role, g.Stage)
		}
	}
	return w, nil
}
