package fle

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"kvd/kv"
	"kvd/zab/quorum"
)

// The golden scripts drive several elections over a network with one slot per direction (newest wins), as
// the transport has. Verbs:
//
//	members voters=(1,2,3) observers=(4)   a new, empty ensemble
//	look ID [epoch=E zxid=E:C] [unknown]   the member begins to look
//	stop ID                                takes no part; its messages in flight are lost, peers see it gone
//	restart ID [epoch=E zxid=E:C]          stop, then look as a new process (round 1)
//	tick IDs [n=N]                         time passes at these members ("all")
//	deliver A->B | A->* | *->B | all       hand over what is in flight
//	stabilize                              deliver until nothing is in flight
//	run N                                  N times: tick everybody, stabilize
//	drop A->B                              lose what is in flight
//	cut A-B | A->B / heal                  messages put into the network from now on are lost
//	gone A B / connected A B               A learns that its connection to B closed / is up
//	established ID epoch=E                 the broadcast reached UPTODATE
//	failed A B                             A could not follow B
//	force ID round=R                       ID believes that it leads (S13)
//	inject TO from=.. state=.. round=.. leader=.. epoch=.. zxid=.. [unknown]
//	state                                  one line per member
type network struct {
	t       *testing.T
	ids     []quorum.MemberID
	members map[quorum.MemberID]*Election
	flight  []Outbound // FIFO; one per (from, to)
	cut     map[[2]quorum.MemberID]bool
	log     strings.Builder
}

func newNetwork(t *testing.T, cfg quorum.Config, mutate func(*Config)) *network {
	n := &network{t: t, ids: cfg.Members(), members: map[quorum.MemberID]*Election{}, cut: map[[2]quorum.MemberID]bool{}}
	for _, id := range n.ids {
		c := Config{ID: id, Members: cfg}
		if mutate != nil {
			mutate(&c)
		}
		n.members[id] = New(c)
	}
	return n
}

// collect handles what a step of id produced, as the shell does.
func (n *network) collect(id quorum.MemberID) {
	rd := n.members[id].Ready()
	byText := map[string][]string{}
	var texts []string
	for _, o := range rd.Send {
		text := o.Notification.String()
		if byText[text] == nil {
			texts = append(texts, text)
		}
		byText[text] = append(byText[text], fmt.Sprint(o.To))
		if n.cut[[2]quorum.MemberID{id, o.To}] {
			continue
		}
		n.flight = slices.DeleteFunc(n.flight, func(f Outbound) bool { return f.To == o.To && f.Notification.From == id })
		n.flight = append(n.flight, o)
	}
	for _, text := range texts {
		fmt.Fprintf(&n.log, "%s -> %s\n", text, strings.Join(byText[text], ","))
	}
	if d := rd.Decision; d != nil {
		fmt.Fprintf(&n.log, "%d settles: %s leader=%d vote=%s round=%d\n", id, d.State, d.Leader, d.Vote, d.Round)
	}
	if rd.Abdicate {
		fmt.Fprintf(&n.log, "%d abdicates\n", id)
	}
}

// deliver hands over what is in flight now and matches; answers stay in flight.
func (n *network) deliver(match func(from, to quorum.MemberID) bool) int {
	batch := n.flight
	n.flight = nil
	count := 0
	for _, o := range batch {
		if !match(o.Notification.From, o.To) {
			n.flight = append(n.flight, o)
			continue
		}
		count++
		// The wire form is part of every script.
		m, err := DecodeNotification(AppendNotification(nil, o.Notification))
		if err != nil || m != o.Notification {
			n.t.Fatalf("notification %v came back as %v, %v", o.Notification, m, err)
		}
		n.members[o.To].Step(m)
		n.collect(o.To)
	}
	return count
}

func everything(quorum.MemberID, quorum.MemberID) bool { return true }

func (n *network) stabilize() {
	for range 1000 {
		if n.deliver(everything) == 0 {
			return
		}
	}
	n.t.Fatal("members answer each other without end")
}

func (n *network) tick(ids []quorum.MemberID) {
	for _, id := range ids {
		n.members[id].Tick()
		n.collect(id)
	}
}

func (n *network) states() string {
	var b strings.Builder
	for _, id := range n.ids {
		s := n.members[id].Status()
		switch {
		case !s.TakingPart:
			fmt.Fprintf(&b, "%d: not taking part\n", id)
		case s.Finalizing:
			fmt.Fprintf(&b, "%d: %s vote=%s round=%d, about to settle\n", id, s.State, s.Vote, s.Round)
		default:
			fmt.Fprintf(&b, "%d: %s vote=%s round=%d\n", id, s.State, s.Vote, s.Round)
		}
	}
	return b.String()
}

func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var n *network
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "members" {
				n = newNetwork(t, scriptMembers(t, d), nil)
				return "ok\n"
			}
			n.t = t
			n.log.Reset()
			n.command(d)
			if n.log.Len() == 0 {
				return "ok\n"
			}
			return n.log.String()
		})
	})
}

func (n *network) command(d *datadriven.TestData) {
	arg := func(i int) string {
		if i >= len(d.CmdArgs) {
			d.Fatalf(n.t, "%s wants more arguments", d.Cmd)
		}
		return d.CmdArgs[i].Key
	}
	switch d.Cmd {
	case "look":
		id := memberID(n.t, arg(0))
		n.members[id].Look(Candidate{Epoch: kv.Epoch(scriptNumber(n.t, d, "epoch")), Zxid: scriptZxid(n.t, d, "zxid"), Unknown: d.HasArg("unknown")})
		n.collect(id)
	case "stop", "restart":
		id := memberID(n.t, arg(0))
		n.members[id].Stop()
		n.flight = slices.DeleteFunc(n.flight, func(o Outbound) bool { return o.To == id || o.Notification.From == id })
		for _, other := range n.ids {
			if other != id {
				n.members[other].PeerGone(id)
				n.collect(other)
			}
		}
		if d.Cmd == "restart" {
			n.members[id] = New(n.members[id].cfg)
			n.members[id].Look(Candidate{Epoch: kv.Epoch(scriptNumber(n.t, d, "epoch")), Zxid: scriptZxid(n.t, d, "zxid")})
			n.collect(id)
		}
	case "tick":
		ids := n.ids
		if arg(0) != "all" {
			ids = nil
			for _, s := range strings.Split(arg(0), ",") {
				ids = append(ids, memberID(n.t, s))
			}
		}
		for range max(1, scriptNumber(n.t, d, "n")) {
			n.tick(ids)
		}
	case "deliver":
		n.deliver(scriptLink(n.t, arg(0)))
	case "stabilize":
		n.stabilize()
	case "run":
		for range int(must(strconv.Atoi(arg(0)))(n.t)) {
			n.tick(n.ids)
			n.stabilize()
		}
	case "drop":
		match := scriptLink(n.t, arg(0))
		n.flight = slices.DeleteFunc(n.flight, func(o Outbound) bool { return match(o.Notification.From, o.To) })
	case "cut":
		for _, a := range d.CmdArgs {
			n.cutLink(a.Key)
		}
	case "heal":
		clear(n.cut)
	case "gone":
		n.members[memberID(n.t, arg(0))].PeerGone(memberID(n.t, arg(1)))
		n.collect(memberID(n.t, arg(0)))
	case "connected":
		n.members[memberID(n.t, arg(0))].PeerConnected(memberID(n.t, arg(1)))
		n.collect(memberID(n.t, arg(0)))
	case "established":
		id := memberID(n.t, arg(0))
		n.members[id].SetEstablished(kv.Epoch(scriptNumber(n.t, d, "epoch")), 7)
		n.collect(id)
	case "failed":
		n.members[memberID(n.t, arg(0))].AttemptFailed(memberID(n.t, arg(1)))
	case "followed":
		n.members[memberID(n.t, arg(0))].Followed(memberID(n.t, arg(1)))
	case "force":
		id := memberID(n.t, arg(0))
		e := n.members[id]
		e.taking, e.state, e.round, e.decision = true, Leading, Round(scriptNumber(n.t, d, "round")), nil
		e.vote = Vote{Leader: id}
		clear(e.pending)
	case "inject":
		to := memberID(n.t, arg(0))
		var state string
		d.ScanArgs(n.t, "state", &state)
		i := slices.IndexFunc([]State{Looking, Following, Leading, Observing}, func(s State) bool { return s.String() == state })
		n.members[to].Step(Notification{
			From: quorum.MemberID(scriptNumber(n.t, d, "from")), State: State(i), Round: Round(scriptNumber(n.t, d, "round")),
			Vote:    Vote{quorum.MemberID(scriptNumber(n.t, d, "leader")), kv.Epoch(scriptNumber(n.t, d, "epoch")), scriptZxid(n.t, d, "zxid")},
			Unknown: d.HasArg("unknown"),
		})
		n.collect(to)
	case "state":
		n.log.WriteString(n.states())
	default:
		d.Fatalf(n.t, "unknown verb %q", d.Cmd)
	}
}

func (n *network) cutLink(s string) {
	if a, b, ok := strings.Cut(s, "->"); ok {
		n.cut[[2]quorum.MemberID{memberID(n.t, a), memberID(n.t, b)}] = true
		return
	}
	a, b, _ := strings.Cut(s, "-")
	x, y := memberID(n.t, a), memberID(n.t, b)
	n.cut[[2]quorum.MemberID{x, y}], n.cut[[2]quorum.MemberID{y, x}] = true, true
}

func scriptMembers(t *testing.T, d *datadriven.TestData) quorum.Config {
	list := func(key string) []quorum.MemberID {
		var ids []quorum.MemberID
		for _, a := range d.CmdArgs {
			if a.Key == key {
				for _, v := range a.Vals {
					ids = append(ids, memberID(t, v))
				}
			}
		}
		return ids
	}
	return must(quorum.NewConfig(1, list("voters"), list("observers")))(t)
}

func scriptNumber(t *testing.T, d *datadriven.TestData, key string) int {
	if !d.HasArg(key) {
		return 0
	}
	var v int
	d.ScanArgs(t, key, &v)
	return v
}

func scriptZxid(t *testing.T, d *datadriven.TestData, key string) kv.Zxid {
	if !d.HasArg(key) {
		return 0
	}
	var s string
	d.ScanArgs(t, key, &s)
	e, c, ok := strings.Cut(s, ":")
	if !ok {
		t.Fatalf("zxid %q is not EPOCH:COUNTER", s)
	}
	return kv.MakeZxid(kv.Epoch(must(strconv.Atoi(e))(t)), uint32(must(strconv.Atoi(c))(t)))
}

func scriptLink(t *testing.T, s string) func(from, to quorum.MemberID) bool {
	if s == "all" {
		return everything
	}
	a, b, ok := strings.Cut(s, "->")
	if !ok {
		t.Fatalf("link %q is not A->B", s)
	}
	return func(from, to quorum.MemberID) bool {
		return (a == "*" || memberID(t, a) == from) && (b == "*" || memberID(t, b) == to)
	}
}

func memberID(t *testing.T, s string) quorum.MemberID {
	return quorum.MemberID(must(strconv.ParseUint(s, 10, 8))(t))
}

// must returns a function that fails the test if err is set.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
