package zab

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"kvd/kv"
	"kvd/zab/quorum"
)

// TestScripts runs the golden scripts of testdata: one claim a file. The output is everything that was delivered,
// written and decided; a violated safety predicate is printed as VIOLATION and never part of an accepted file.
// Regenerate with -rewrite and review the difference like code.
//
// Verbs:
//
//	add voters=3 [observers=1] [rollover=N] [stage=BYTES] [batch=BYTES] [window=ENTRIES] [tail=BYTES] [init=T] [sync=T] [mutation=NAME]
//	given ID log=(1:1-5, 2:1) [accepted=E] [current=E] [base=Z] [logstart=Z] [unknown] [dirty]
//	                              a base is committed unless dirty says that it never was
//	elect ID by=(ID, ...)         ID leads, the others follow it; nothing is delivered yet
//	lead ID / follow ID leader=ID one member's decision only
//	look ID ...                   give up the role
//	dial ID                       ID's pending dial is answered
//	deliver A->B [n=N] [to=KIND]  N messages, or all, or up to and including the first of that kind
//	drop A->B [n=N]               lose messages
//	break A B                     the link ends at both sides; what is on it is lost
//	block A->B / unblock A->B     stabilize delivers nothing there
//	hold ID / release ID          the disk completes nothing in stabilize
//	persist ID [n=N]              complete the oldest N writes, or all
//	propose ID VALUE ...
//	sync ID id=N
//	tick [n=N] [ids=(ID, ...)]
//	snapshot ID [keep=N]          own snapshot of what is applied
//	crash ID ... / restart ID ...
//	resign ID
//	stabilize [quiet]
//	state
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 10 {
		t.Fatalf("scripts: %v %v", files, err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			s := &script{t: t}
			datadriven.RunTest(t, f, s.run)
			if s.c != nil && s.c.violation != "" {
				t.Errorf("%s: %s", f, s.c.violation)
			}
		})
	}
}

type script struct {
	t   *testing.T
	c   *cluster
	out strings.Builder
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	s.out.Reset()
	s.command(d)
	if s.c != nil && s.c.violation != "" {
		fmt.Fprintf(&s.out, "VIOLATION %s\n", s.c.violation)
	}
	if s.out.Len() == 0 {
		return "ok"
	}
	return s.out.String()
}

func (s *script) id(v string) quorum.MemberID {
	n, err := strconv.Atoi(v)
	if err != nil {
		s.t.Fatalf("member id %q: %v", v, err)
	}
	return quorum.MemberID(n)
}

func (s *script) node(v string) *testNode {
	n := s.c.nodes[s.id(v)]
	if n == nil {
		s.t.Fatalf("no member %s", v)
	}
	return n
}

// bare returns the arguments without values.
func bare(d *datadriven.TestData) []string {
	var out []string
	for _, a := range d.CmdArgs {
		if len(a.Vals) == 0 {
			out = append(out, a.Key)
		}
	}
	return out
}

func (s *script) num(d *datadriven.TestData, key string, def int) int {
	for _, a := range d.CmdArgs {
		if a.Key == key && len(a.Vals) == 1 {
			n, err := strconv.Atoi(a.Vals[0])
			if err != nil {
				d.Fatalf(s.t, "%s: %v", key, err)
			}
			return n
		}
	}
	return def
}

func (s *script) str(d *datadriven.TestData, key string) string {
	for _, a := range d.CmdArgs {
		if a.Key == key && len(a.Vals) == 1 {
			return a.Vals[0]
		}
	}
	return ""
}

func (s *script) ids(d *datadriven.TestData, key string) []quorum.MemberID {
	var out []quorum.MemberID
	for _, a := range d.CmdArgs {
		if a.Key == key {
			for _, v := range a.Vals {
				out = append(out, s.id(v))
			}
		}
	}
	return out
}

func (s *script) zxid(v string) kv.Zxid {
	e, c, _ := strings.Cut(v, ":")
	a, err1 := strconv.Atoi(e)
	b, err2 := strconv.Atoi(c)
	if err1 != nil || err2 != nil {
		s.t.Fatalf("zxid %q", v)
	}
	return kv.MakeZxid(kv.Epoch(a), uint32(b))
}

// pipe parses A->B and returns the link between them and the receiver.
func (s *script) pipe(v string) (*testLink, direction) {
	a, b, ok := strings.Cut(v, "->")
	if !ok {
		s.t.Fatalf("%q is not A->B", v)
	}
	d := direction{s.id(a), s.id(b)}
	return s.c.between(d.from, d.to), d
}

func (s *script) command(d *datadriven.TestData) {
	c := s.c
	args := bare(d)
	switch d.Cmd {
	case "add":
		s.add(d)
	case "given":
		s.given(d, s.node(args[0]), slices.Contains(args, "unknown"))
	case "elect":
		c.elect(s.id(args[0]), s.ids(d, "by")...)
	case "lead":
		n := s.node(args[0])
		n.decide(n.id)
		c.pump(n)
	case "follow":
		n := s.node(args[0])
		n.decide(s.id(s.str(d, "leader")))
		c.pump(n)
	case "look":
		for _, v := range args {
			s.node(v).do(func(p *Peer) { p.Look("script") })
			c.pump(s.node(v))
		}
	case "dial":
		c.connect(s.node(args[0]))
	case "deliver", "drop":
		s.deliver(d, args[0])
	case "break":
		c.breakLink(c.between(s.id(args[0]), s.id(args[1])))
	case "block", "unblock":
		_, dir := s.pipe(args[0])
		c.blocked[dir] = d.Cmd == "block"
	case "hold", "release":
		s.node(args[0]).held = d.Cmd == "hold"
	case "persist":
		c.persist(s.node(args[0]), s.num(d, "n", 0))
	case "propose":
		n := s.node(args[0])
		for _, v := range args[1:] {
			z := n.p.NextZxid()
			if err := n.propose(v); err != nil {
				fmt.Fprintf(&s.out, "%s: %v\n", v, err)
			} else {
				fmt.Fprintf(&s.out, "%s = %s\n", v, z)
			}
		}
		c.pump(n)
	case "sync":
		n := s.node(args[0])
		n.do(func(p *Peer) { p.Sync(uint64(s.num(d, "id", 1))) })
		c.pump(n)
	case "tick":
		ids := s.ids(d, "ids")
		if len(ids) == 0 {
			ids = c.members.Members()
		}
		for range s.num(d, "n", 1) {
			for _, id := range ids {
				c.tick(c.nodes[id])
			}
		}
	case "snapshot":
		c.takeSnapshot(s.node(args[0]), s.num(d, "keep", 0))
	case "crash", "restart":
		for _, v := range args {
			if d.Cmd == "crash" {
				c.crash(s.id(v))
			} else {
				c.start(s.id(v))
			}
		}
	case "resign":
		n := s.node(args[0])
		n.do((*Peer).Resign)
		c.pump(n)
	case "stabilize":
		c.verbose = !slices.Contains(args, "quiet")
		c.stabilize()
		c.verbose = true
	case "state":
		s.state()
	default:
		d.Fatalf(s.t, "unknown verb %q", d.Cmd)
	}
}

func (s *script) add(d *datadriven.TestData) {
	cfg := testConfig()
	cfg.InitTicks, cfg.SyncTicks = s.num(d, "init", 20), s.num(d, "sync", 10)
	cfg.RolloverCounter = uint32(s.num(d, "rollover", 0))
	cfg.StageBytes, cfg.WindowEntries = s.num(d, "stage", 0), s.num(d, "window", 0)
	cfg.TailBytes, cfg.MaxBatchBytes = s.num(d, "tail", 0), s.num(d, "batch", 0)
	s.c = newCluster(s.num(d, "voters", 3), s.num(d, "observers", 0), cfg)
	s.c.verbose = true
	s.c.log = func(format string, args ...any) { fmt.Fprintf(&s.out, format+"\n", args...) }
}

// given sets the durable state of a member and restarts it. Entries are the same wherever they have the same zxid and
// the same predecessors.
func (s *script) given(d *datadriven.TestData, n *testNode, unknown bool) {
	disk := &testDisk{}
	chain := kv.ChainSeed()
	for _, a := range d.CmdArgs {
		if a.Key != "log" {
			continue
		}
		for _, v := range a.Vals {
			from, to, span := strings.Cut(v, "-")
			z := s.zxid(from)
			end := z
			if span {
				n, err := strconv.Atoi(to)
				if err != nil {
					d.Fatalf(s.t, "log %q", v)
				}
				end = kv.MakeZxid(z.Epoch(), uint32(n))
			}
			for ; z <= end; z++ {
				payload := []byte(z.String())
				chain = kv.ChainDigest(chain, z, payload)
				disk.hist = append(disk.hist, kv.Entry{Zxid: z, Chain: chain, Payload: payload})
				s.c.seen[z] = chain
			}
		}
	}
	st := &disk.st
	st.Last, st.LastChain = disk.tip(len(disk.hist))
	st.Current = kv.Epoch(s.num(d, "current", int(st.Last.Epoch())))
	st.Accepted.Epoch = kv.Epoch(s.num(d, "accepted", int(st.Current)))
	st.Unknown = unknown
	if v := s.str(d, "base"); v != "" {
		k := disk.index(s.zxid(v))
		st.Base, st.BaseChain = disk.tip(k)
		disk.snap = slices.Clone(disk.hist[:k])
		st.LogStart, st.LogStartChain = st.Base, st.BaseChain
	}
	if v := s.str(d, "logstart"); v != "" {
		st.LogStart, st.LogStartChain = disk.tip(disk.index(s.zxid(v)))
	}
	if slices.Contains(bare(d), "dirty") {
		disk.dirty = true
	} else if len(disk.snap) > len(s.c.g) {
		s.c.g = slices.Clone(disk.snap)
	}
	n.disk = disk
	s.c.epochs[n.id] = [2]kv.Epoch{}
	s.c.start(n.id)
}

func (s *script) deliver(d *datadriven.TestData, pipe string) {
	l, dir := s.pipe(pipe)
	if l == nil {
		fmt.Fprintf(&s.out, "no link %s\n", pipe)
		return
	}
	n := s.num(d, "n", len(l.queue[dir.to]))
	if d.Cmd == "drop" {
		for range n {
			fmt.Fprintf(&s.out, "lost %d->%d %s\n", dir.from, dir.to, describe(l.queue[dir.to][0].msg))
			l.queue[dir.to] = l.queue[dir.to][1:]
		}
		return
	}
	kind := s.str(d, "to")
	for i := 0; kind != "" || i < n; i++ {
		if len(l.queue[dir.to]) == 0 {
			if kind != "" {
				fmt.Fprintf(&s.out, "no %s on %s\n", kind, pipe)
			}
			return
		}
		it := l.queue[dir.to][0]
		s.c.deliver(l, dir.to)
		if kind != "" && it.msg != nil && strings.HasPrefix(describe(it.msg), kind+" ") {
			return
		}
	}
}

// state prints one line per member and one for what is committed.
func (s *script) state() {
	for _, id := range s.c.members.Members() {
		n := s.c.nodes[id]
		d := n.disk.st
		if n.p == nil {
			fmt.Fprintf(&s.out, "%d: down                                  accepted=%d current=%d last=%s base=%s\n", id, d.Accepted.Epoch, d.Current, d.Last, d.Base)
			continue
		}
		st := n.p.Status()
		line := fmt.Sprintf("%d: %s/%s leader=%d epoch=%d", id, st.Role, st.Stage, st.Leader, st.Epoch)
		applied := kv.Zxid(0)
		if len(n.applied) > 0 {
			applied = n.applied[len(n.applied)-1].Zxid
		}
		fmt.Fprintf(&s.out, "%-42s accepted=%d current=%d last=%s base=%s applied=%s", line, d.Accepted.Epoch, d.Current, d.Last, d.Base, applied)
		if d.Unknown {
			s.out.WriteString(" unknown")
		}
		for _, y := range n.synced {
			fmt.Fprintf(&s.out, " sync(%d)=%s,%t", y.ID, y.Zxid, y.OK)
		}
		s.out.WriteByte('\n')
	}
	var g kv.Zxid
	if len(s.c.g) > 0 {
		g = s.c.g[len(s.c.g)-1].Zxid
	}
	fmt.Fprintf(&s.out, "committed: %d entries, last %s\n", len(s.c.g), g)
}
