package sim

import (
	"fmt"
	"slices"

	"kvd/ensemble/replica"
	"kvd/fle"
	"kvd/kv"
	"kvd/zab"
	"kvd/zab/quorum"
)

// Verbs for what no member does by itself, and for many sessions at once.

func init() { // behind the one of script_verbs_test.go, which makes the map
	for name, do := range map[string]func(x *script, a *arguments){
		"run-ms": func(x *script, a *arguments) {
			end := x.s.now + int64(number(a.word()))
			for x.s.failure == nil && len(x.s.events.h) > 0 && x.s.events.h[0].at <= end {
				x.s.Step()
			}
			x.s.now = max(x.s.now, end)
		},
		"inject": (*script).inject, "forge": (*script).forge, "configure": (*script).configure, "slow-snapshots": func(x *script, a *arguments) {
			x.s.SlowStreams(a.num("ticks", 0))
		},
		"sessions": (*script).sessions, "open": (*script).open, "silence-all": func(x *script, _ *arguments) {
			for _, c := range x.s.clients {
				c.stopped = true
			}
		},
		"speak-all": (*script).speakAll,
		"rejoin":    (*script).rejoin,
	} {
		if verbs[name] != nil {
			panic("two verbs " + name)
		}
		verbs[name] = do
	}
}

// sender reads s9->s1: the sender need not exist.
func (x *script) sender(v string) (from, to quorum.MemberID) {
	var f, t int
	if _, err := fmt.Sscanf(v, "s%d->s%d", &f, &t); err != nil {
		bad("%q is no direction", v)
	}
	return quorum.MemberID(f), x.id(fmt.Sprint(t))
}

// inject s9->s1 garbage | vote=sL [state=looking|following|leading|observing] [round=N] [zxid=Z] [epoch=E]: bytes as if they
// had come on the election connection from a member that may not even exist. garbage is everything from 0 to 39 bytes
// of a notification and of noise, with wild lengths inside, and every kind that there is not.
func (x *script) inject(a *arguments) {
	from, to := x.sender(a.word())
	if a.flag("garbage") {
		x.garbage(from, to)
		return
	}
	states := []string{fle.Looking: "looking", fle.Following: "following", fle.Leading: "leading", fle.Observing: "observing"}
	state := slices.Index(states, a.str("state", "looking"))
	if state < 0 {
		bad("no such state")
	}
	var leader int
	if _, err := fmt.Sscanf(a.str("vote", "s0"), "s%d", &leader); err != nil {
		bad("vote=sN")
	}
	z, e := zxid(a.str("zxid", "1:5")), kv.Epoch(a.num("epoch", 1))
	n := fle.Notification{
		From: from, State: fle.State(state), Round: fle.Round(a.num("round", 1)), ConfigVersion: 1, SenderEpoch: e, SenderZxid: z,
		Vote: fle.Vote{Leader: quorum.MemberID(leader), Epoch: e, Zxid: z},
	}
	x.s.Inject(from, to, replica.KindNotification, fle.AppendNotification(nil, n))
}

func (x *script) garbage(from, to quorum.MemberID) {
	good := fle.AppendNotification(nil, fle.Notification{From: from, State: fle.Looking, Round: 1, ConfigVersion: 1, Vote: fle.Vote{Leader: from, Epoch: 1, Zxid: kv.MakeZxid(1, 5)}})
	inject := func(kind byte, b []byte) { x.s.Inject(from, to, kind, b) }
	for n := range 40 {
		for _, fill := range []byte{0, 1, 0x7f, 0x80, 0xc1, 0xdd, 0xdf, 0xff} { // msgpack's arrays, maps and texts of every length, too
			b := make([]byte, n)
			for i := range b {
				b[i] = fill
			}
			inject(replica.KindNotification, b)
		}
		if n < len(good) {
			inject(replica.KindNotification, good[:n])
			for _, flip := range []byte{0xff, 0x80, 0xdf} {
				b := slices.Clone(good)
				b[n] = flip
				inject(replica.KindNotification, b[:len(b)-1])
			}
		}
	}
	for kind := byte(0); kind < 255; kind++ {
		if kind != replica.KindNotification && kind != replica.KindIdentity {
			inject(kind, good)
		}
	}
}

// forge s4->s3 ACK|ACKEPOCH|ACKNEWLEADER [zxid=Z] [epoch=E]: a message on the link that s4 never sent.
func (x *script) forge(a *arguments) {
	from, to := x.direction(a.word())
	kind, z, e := a.word(), zxid(a.str("zxid", "0:0")), kv.Epoch(a.num("epoch", 0))
	var m zab.Message
	switch kind {
	case "ACK":
		m = &zab.Ack{Epoch: e, Zxid: z}
	case "ACKEPOCH":
		m = &zab.AckEpoch{Epoch: e, Current: e, Last: z}
	case "ACKNEWLEADER":
		m = &zab.AckNewLeader{Epoch: e, Last: z}
	default:
		bad("cannot forge %s", kind)
	}
	if !x.s.Forge(from, to, m) {
		panic(&unmet{"there is no link"})
	}
}

// configure sK voters=(1, 2) [observers=(4)] [version=N]: its own configuration from its next start on.
func (x *script) configure(a *arguments) {
	id := x.id(a.word())
	read := func(key string) (out []quorum.MemberID) {
		for _, v := range a.vals(key) {
			out = append(out, quorum.MemberID(number(v)))
		}
		return out
	}
	if err := x.s.Configure(id, uint64(a.num("version", 1)), read("voters"), read("observers")); err != nil {
		bad("%v", err)
	}
}

// sessions N at=sK [timeout=MS] [alive]: N clients with a session each, at once; alive ones ping until silence-all.
func (x *script) sessions(a *arguments) {
	n, m, alive := number(a.word()), x.s.member(x.id(a.str("at", "s1"))), a.flag("alive")
	var made []*Client
	for range n {
		c := &Client{sim: x.s, ID: len(x.s.clients) + 1, timeoutMs: int32(a.num("timeout", sessionMs)), quiet: true}
		x.s.clients = append(x.s.clients, c)
		c.connectTo(m)
		made = append(made, c)
	}
	open := func() bool { return !slices.ContainsFunc(made, func(c *Client) bool { return c.state != ready }) }
	if !x.s.Until(100, open) {
		panic(&unmet{"not all sessions were opened"})
	}
	for _, c := range made {
		if alive {
			x.s.after(20, nil, "client", c.keepAlive)
		}
	}
}

// speak-all [but=NAME]: all that silence-all silenced speak again, but for one.
func (x *script) speakAll(a *arguments) {
	but := x.clients[a.str("but", "")]
	for _, c := range x.s.clients {
		if c != but {
			c.stopped = false
			x.s.after(20, nil, "client", c.keepAlive)
		}
	}
}

// open NAME at=sK: a client asks for a session and does not wait for it. With the id that it has asked for it can connect
// elsewhere, as one could that has got its answer while the member was dying.
func (x *script) open(a *arguments) {
	name := a.word()
	c := &Client{sim: x.s, ID: len(x.s.clients) + 1, timeoutMs: sessionMs, quiet: true}
	x.clients[name] = c
	x.s.clients = append(x.s.clients, c)
	c.connectTo(x.s.member(x.id(a.str("at", "s1"))))
	c.asked = c.session
	x.s.after(20, nil, "client", c.keepAlive)
}

// rejoin NAME at=sK: a client whose connection ended comes back with the session that it asked for first.
func (x *script) rejoin(a *arguments) {
	c := x.clients[a.word()]
	if c == nil || c.asked == 0 {
		bad("no client that was opened")
	}
	if c.member != nil {
		c.hangUp()
	}
	c.session = c.asked
	c.connectTo(x.s.member(x.id(a.str("at", "s1"))))
}

// wildCondition knows what script_expect_test.go does not.
func (x *script) wildCondition(what string, a *arguments) condition {
	s := x.s
	switch what {
	case "in-transit": // s3->s1 most=N: so many entries are on their way at most
		from, to := x.direction(a.word())
		most := a.num("most", 0)
		return func() (bool, string) {
			n, _ := s.InTransit(from, to)
			return n <= most, fmt.Sprintf("%d entries are on their way", n)
		}
	case "live-sessions": // N sK ...: in the tree
		n := number(a.word())
		ids := x.ids(a.words())
		return func() (bool, string) {
			for _, id := range ids {
				if got := s.member(id).tree.View().SessionCount(); got != n {
					return false, fmt.Sprintf("s%d knows %d sessions", id, got)
				}
			}
			return true, ""
		}
	case "follows": // sK LEADER ...|none: whom it follows, if anybody
		id, leaders := x.id(a.word()), a.words()
		return func() (bool, string) {
			l := s.member(id).role.Leader
			if l == 0 || l == id {
				return slices.Contains(leaders, "none"), fmt.Sprintf("s%d follows nobody", id)
			}
			return slices.Contains(leaders, fmt.Sprintf("s%d", l)), fmt.Sprintf("s%d follows s%d", id, l)
		}
	case "known", "unheard-of": // CLIENT sK ...: the session that a client asked for is in the tree
		c, ids := x.clients[a.word()], x.ids(a.words())
		if c == nil {
			bad("no such client")
		}
		return x.members(ids, func(m *Member) bool {
			_, ok := m.tree.View().Session(c.asked)
			return ok == (what == "known")
		}, what)
	case "outstanding": // sK most=N: proposals that are not committed
		id, most := x.id(a.word()), a.num("most", 0)
		return func() (bool, string) {
			n := s.member(id).rep.Status().OutstandingCount
			return n <= most, fmt.Sprintf("%d are outstanding", n)
		}
	}
	return nil
}
