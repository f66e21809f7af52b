package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// difference is what a sequence found: two answers that should be one.
type difference struct {
	step   int // index
	where  string
	reason string
	theirs string // ZooKeeper's answer, decoded
	want   string // what the rules make of it
	ours   string
	// model is set when ZooKeeper did not do what the model says: the tester is wrong, or ZooKeeper is.
	model bool
}

func (d *difference) Error() string {
	return fmt.Sprintf("step %d: %s: %s\n    ZooKeeper: %s\n    expected:  %s\n    kvd:       %s", d.step, d.where, d.reason, d.theirs, d.want, d.ours)
}

// pair is both sides. Side 0 is ZooKeeper.
type pair struct {
	sides [2]*side
	// same: both sides are ZooKeeper. No rule applies; it shows that the tester itself is deterministic.
	same bool
	hits map[string]int // how often each rule decided
}

func (p *pair) ensemble() bool { return len(p.sides[0].addrs) > 1 }

// runner runs one sequence.
type runner struct {
	*pair
	m     *model
	cmp   *comparer
	seed  uint64
	step  int
	trace func(string)
	// last are the zxids that the fences of this step showed; fetched tells that they were sent.
	last    [2]int64
	fetched bool
}

func newRunner(p *pair, seed uint64) *runner {
	now := time.Now().UnixMilli()
	r := &runner{pair: p, m: newModel(), seed: seed, trace: func(string) {}}
	r.m.hits = p.hits
	r.m.new.note = func(rule string) { p.hits[rule]++ }
	r.cmp = &comparer{zxids: newZxids(), times: times{}, sessions: map[int64]int64{}, from: now - 60_000, to: now + 3_600_000}
	for i, s := range p.sides {
		r.cmp.env[i] = strings.NewReplacer(s.env...)
	}
	return r
}

func (r *runner) top() string { return fmt.Sprintf("/s%d", r.seed) }

// both asks both admins the same and compares the answers.
func (r *runner) both(q Request) ([2]item, error) {
	var a [2]item
	for i, s := range r.sides {
		var err error
		if a[i], err = s.do(q); err != nil {
			return a, err
		}
		s.highest = max(s.highest, a[i].zxid)
		for _, z := range s.nudges {
			if i == 0 {
				r.cmp.zxids.ghost(z)
			}
		}
		s.nudges = nil
	}
	return a, nil
}

// begin makes the top node, and brings the built-in nodes to a state that is the same on both sides but for counters.
func (r *runner) begin() error {
	r.cmp.base = [2]map[string]int64{{}, {}}
	for _, s := range r.sides { // the tester's own sessions must not expire unused
		for _, a := range s.admins {
			if _, err := a.do(Request{Op: opPing}); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	openList := []ACL{{31, ptr("world"), ptr("anyone")}}
	for _, p := range []string{"/zookeeper/quota", "/zookeeper", "/"} {
		mark := strings.TrimSuffix(p, "/") + "/begin"
		for _, q := range []Request{
			{Op: opSetACL, Path: ptr(p), ACL: openList, Version: -1}, {Op: opSetData, Path: ptr(p), Data: []byte{}, Version: -1},
			{Op: opCreate, Path: ptr(mark), ACL: openList}, {Op: opDelete, Path: ptr(mark), Version: -1},
		} {
			a, err := r.both(q)
			if err != nil {
				return err
			}
			if a[0].err != a[1].err || a[0].err != 0 {
				return fmt.Errorf("begin: %v: %v and %v", q, a[0], a[1])
			}
			if err := r.cmp.zxids.pair(a[0].zxid, a[1].zxid); err != nil {
				return fmt.Errorf("begin: %v: %w", q, err)
			}
		}
	}
	a, err := r.both(Request{Op: opCreate, Path: ptr(r.top()), ACL: openList})
	if err != nil {
		return err
	}
	if a[0].err != 0 || a[1].err != 0 {
		return fmt.Errorf("begin: create %s: %v and %v", r.top(), a[0], a[1])
	}
	if err := r.cmp.zxids.pair(a[0].zxid, a[1].zxid); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	r.m.nodes[r.top()] = &node{acl: open, owner: -1, mzxid: a[0].zxid, pzxid: a[0].zxid}
	for _, p := range []string{"/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"} {
		a, err := r.both(Request{Op: opGetData, Path: ptr(p)})
		if err != nil {
			return err
		}
		for i := range a {
			for _, f := range a[i].fields {
				if f.kind == kindVersion {
					r.cmp.base[i][f.text] = f.num
				}
			}
		}
		if err := r.cmp.item(a[0], a[1]); err != nil {
			return &difference{where: "the beginning: " + p, reason: err.Error(), theirs: a[0].String(), want: a[0].String(), ours: a[1].String()}
		}
		r.m.nodes[p].mzxid, r.m.nodes[p].pzxid = a[0].get("mzxid").num, a[0].get("pzxid").num
	}
	return r.settle()
}

// end closes every session, and removes what the sequence has left.
func (r *runner) end() error {
	for i, s := range r.sides {
		for _, c := range r.m.conns {
			if !c.dead && c.sides[i] != nil {
				c.sides[i].close()
			}
		}
		for _, sn := range r.m.sessions {
			if !sn.alive {
				continue
			}
			c, err := dialRaw(s.addrs[0])
			if err != nil {
				return err
			}
			if b, err := c.handshake(connectRecord(&Connect{Timeout: 300_000}, 0, sn.ids[i], sn.password[i])); err == nil && decodeConnect(b).fields != nil {
				q := Request{Op: opCloseSession, Xid: 1}
				c.write(q.encode(0))
				_, _ = c.frame(patience)
			}
			c.close()
		}
		for _, p := range []string{"/", "/zookeeper", "/zookeeper/quota"} {
			a, err := s.do(Request{Op: opGetChildren, Path: ptr(p)})
			if err != nil {
				return err
			}
			for _, f := range a.fields[min(1, len(a.fields)):] {
				child := strings.TrimSuffix(p, "/") + "/" + f.text
				if !builtin[child] {
					if err := s.removeAll(child); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

func (s *side) removeAll(path string) error {
	a, err := s.do(Request{Op: opGetChildren, Path: ptr(path)})
	if err != nil {
		return err
	}
	for _, f := range a.fields[min(1, len(a.fields)):] {
		if err := s.removeAll(path + "/" + f.text); err != nil {
			return err
		}
	}
	_, err = s.do(Request{Op: opDelete, Path: ptr(path), Version: -1})
	return err
}

// differ makes a difference of this step.
func (r *runner) differ(where, reason string, theirs, want, ours any) error {
	return &difference{step: r.step, where: where, reason: reason, theirs: fmt.Sprint(theirs), want: fmt.Sprint(want), ours: fmt.Sprint(ours)}
}

func (r *runner) wrongModel(where, reason string, theirs, want any) error {
	return &difference{step: r.step, where: where, reason: reason, theirs: fmt.Sprint(theirs), want: fmt.Sprint(want), ours: "-", model: true}
}

// receive sorts frames into replies, by the requests they answer, and events.
func receive(frames [][]byte, reqs []Request) []item {
	var items []item
	n := 0
	// Pings may be answered out of turn; their replies are all alike.
	var ping *Request
	if len(reqs) > 1 {
		reqs = slices.DeleteFunc(slices.Clone(reqs), func(q Request) bool {
			if q.Op == opPing {
				ping = &q
			}
			return q.Op == opPing
		})
	}
	for _, b := range frames {
		switch {
		case isEvent(b):
			items = append(items, decodeEvent(b))
		case ping != nil && decodeReply(ping, b).xid == -2:
			items = append(items, decodeReply(ping, b))
		case n < len(reqs):
			items = append(items, decodeReply(&reqs[n], b))
			n++
		default:
			items = append(items, item{what: "reply", rest: b})
		}
	}
	return items
}

func (s *side) saw(items []item) {
	for _, i := range items {
		s.highest = max(s.highest, i.zxid)
	}
}

// settle fences every connection and compares the zxids that the fences show.
func (r *runner) settle() error {
	if !r.fetched {
		if err := r.fetch(); err != nil {
			return err
		}
	}
	r.fetched = false
	if r.last[0] > 0 && r.last[1] > 0 {
		if err := r.cmp.zxids.pair(r.last[0], r.last[1]); err != nil {
			return r.differ("a read after the step", "header zxid: "+err.Error(), "-", "-", "-")
		}
	}
	return nil
}

// fetch fences every connection on both sides until each shows the newest zxid of its side. What came before the
// fence's answers is put into the connections' items.
func (r *runner) fetch() error {
	r.fetched = true
	var last [2]int64
	nudged := false
	for i, s := range r.sides {
		behind := slices.Clone(r.m.conns)
		for round := 0; len(behind) > 0; round++ {
			if round > 20_000 {
				return fmt.Errorf("%s: a member stays behind zxid 0x%x", s.name, s.highest)
			}
			for _, c := range behind {
				c.sides[i].sendFence()
			}
			var again []*conn
			for _, c := range behind {
				frames, z, err := c.sides[i].awaitFence(r.fenceWait())
				for nudges := 0; errors.Is(err, errSilent) && r.ensemble() && nudges < 50; nudges++ {
					// A follower of ZooKeeper may hold a read, like a sync, till the next commit (protocol 15).
					if err := r.barrier(); err != nil {
						return err
					}
					nudged = true
					var more [][]byte
					more, z, err = c.sides[i].awaitFence(r.fenceWait())
					frames = append(frames, more...)
				}
				if err != nil {
					return fmt.Errorf("%s, session %d: %w", s.name, c.slot, err)
				}
				got := receive(frames, nil)
				s.saw(got)
				c.items[i] = append(c.items[i], got...)
				s.highest = max(s.highest, z)
				if c.sides[i].closed {
					continue
				}
				if r.ensemble() && z < s.highest {
					again = append(again, c)
				}
				last[i] = max(last[i], z)
			}
			// Those fenced before the newest zxid was known are asked again.
			if r.ensemble() && round == 0 {
				again = slices.Clone(behind)
			}
			behind = slices.DeleteFunc(again, func(c *conn) bool { return c.sides[i].closed })
		}
	}
	r.last = last
	if nudged {
		return r.fetch()
	}
	return nil
}

// fenceWait is how long a fence may take before a write is made to release it.
func (r *runner) fenceWait() time.Duration {
	if r.ensemble() {
		return 400 * time.Millisecond
	}
	return patience
}

// barrier brings every member of both sides to one write.
func (r *runner) barrier() error {
	a, err := r.both(Request{Op: opDelete, Path: ptr("/-barrier-/x"), Version: -1})
	if err != nil {
		return err
	}
	if err := r.cmp.zxids.pair(a[0].zxid, a[1].zxid); err != nil {
		return r.differ("a refused write after the step", "header zxid: "+err.Error(), a[0], a[0], a[1])
	}
	return nil
}

// run does one step and compares everything that it raised.
func (r *runner) run(s *Step) error {
	var err error
	switch s.Kind {
	case "connect":
		err = r.connect(s)
	case "requests":
		err = r.requests(s)
	case "cut":
		if sn := r.m.sessions[s.Slot]; sn != nil && sn.conn != nil {
			for _, c := range sn.conn.sides {
				c.close()
			}
			r.lost(sn.conn)
		}
	case "raw":
		err = r.raw(s)
	case "word":
		err = r.word(s)
	default:
		err = fmt.Errorf("unknown step %q", s.Kind)
	}
	if err != nil {
		return err
	}
	if err := r.settle(); err != nil {
		return err
	}
	return r.ended()
}

// lost forgets a connection that is gone on both sides.
func (r *runner) lost(c *conn) {
	c.dead = true
	r.m.old.forget(c)
	r.m.new.forget(c)
	r.m.conns = slices.DeleteFunc(r.m.conns, func(x *conn) bool { return x == c })
	if sn := r.m.sessions[c.slot]; sn != nil {
		if sn.conn == c {
			sn.conn = nil
		}
		if sn.former == c {
			sn.former = nil
		}
	}
}

// ended checks that nothing unexpected came, and that the same connections were closed by both.
func (r *runner) ended() error {
	for _, c := range slices.Clone(r.m.conns) {
		who := fmt.Sprintf("session %d", c.slot)
		for i := range c.items {
			if len(c.items[i]) > 0 {
				it := c.items[i][0]
				c.items = [2][]item{}
				if i == 0 {
					return r.wrongModel(who, "unexpected of ZooKeeper", it, "nothing")
				}
				return r.differ(who, "unexpected", "nothing", "nothing", it)
			}
		}
		if c.sides[0].closed != c.sides[1].closed {
			return r.differ(who, "closed by one only", fmt.Sprintf("closed=%v", c.sides[0].closed), fmt.Sprintf("closed=%v", c.sides[0].closed), fmt.Sprintf("closed=%v", c.sides[1].closed))
		}
		if c.sides[0].closed {
			r.lost(c)
		}
	}
	return nil
}

// awaitClose reads until the server closes.
func awaitClose(c *raw) error {
	for {
		if _, err := c.frame(patience); err != nil {
			if errors.Is(err, errSilent) {
				return errors.New("not closed by the server")
			}
			return nil
		}
	}
}
