package main

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// requests sends a batch over one connection and compares what comes back, request by request: the events before
// each reply, then the reply.
func (r *runner) requests(s *Step) error {
	sn := r.m.sessions[s.Slot]
	if sn == nil {
		return nil
	}
	c := sn.conn
	if s.Stale {
		c = sn.former
	}
	if c == nil || len(s.Requests) == 0 {
		return nil
	}
	if f := sn.former; f != nil && slices.ContainsFunc(s.Requests, func(q Request) bool { return q.Op == opCloseSession }) {
		// Whether a connection that the session has left is told of its end before it is closed is a matter of time.
		for _, side := range f.sides {
			side.close()
		}
		r.lost(f)
		if s.Stale {
			return nil
		}
	}
	var out [2][]byte
	xs := make([]*exchange, len(s.Requests))
	asked := make([]Request, len(s.Requests))
	for i := range s.Requests {
		q := &s.Requests[i]
		x := &exchange{m: r.m, c: c, req: q, asked: *q, ensemble: r.ensemble(), stale: s.Stale, zxids: r.cmp.zxids}
		x.before = r.cmp.zxids.newestOurs()
		x.since[0], x.since[1] = r.cmp.zxids.resolve(q.Since)
		for _, rule := range rules {
			if rule.ask == nil || r.same && rule.name == "ipv6-acl" {
				continue
			}
			y := *x
			y.req = &x.asked
			if q, ok := rule.ask(&y); ok {
				x.asked = q
				r.hits[rule.name]++
			}
		}
		asked[i] = x.asked
		xs[i] = x
		out[0] = append(out[0], x.asked.encode(x.since[0])...)
		if r.same {
			out[1] = append(out[1], x.asked.encode(x.since[1])...)
		} else {
			out[1] = append(out[1], q.encode(x.since[1])...)
		}
	}
	if s.Split > 0 && s.Split < len(out[0]) && s.Split < len(out[1]) {
		if done, err := r.split(s, c, out); done || err != nil {
			return err
		}
	} else {
		for i := range out {
			c.sides[i].write(out[i])
		}
	}
	for i, side := range r.sides {
		frames, err := r.gather(i, c, xs)
		if err != nil {
			return fmt.Errorf("%s: session %d: %w after %d frames", side.name, c.slot, err, len(frames))
		}
		reqs := s.Requests
		if i == 0 || r.same {
			reqs = asked
		}
		got := receive(frames, reqs)
		if len(got) > 0 && lastWord(&reqs[len(reqs)-1], got[len(got)-1]) {
			// The server closes now, but not at once.
			if err := awaitClose(c.sides[i]); err != nil {
				return r.differ(fmt.Sprintf("session %d, %s", c.slot, side.name), err.Error(), got, "closed", "open")
			}
		}
		side.saw(got)
		c.items[i] = append(c.items[i], got...)
	}
	if r.ensemble() && (c.sides[0].closed || s.Stale) {
		if err := r.barrier(); err != nil {
			return err
		}
	}
	// The other connections' events are needed with their zxids, so everything is fetched first.
	if err := r.fetch(); err != nil {
		return err
	}
	pending := &pendingEvents{theirs: map[*conn][]item{}, ours: map[*conn][]item{}}
	pings := takePings(c, xs)
	for i, x := range xs {
		if x.req.Op == opPing && len(xs) > 1 {
			continue
		}
		if err := r.exchange(x, s.Requests[i], pending); err != nil {
			return err
		}
	}
	if err := r.pings(c, xs, pings); err != nil {
		return err
	}
	return r.events(c, pending)
}

// takePings takes the replies to pings out of a pipeline's answers: kvd sends them out of turn (rule ping-overtakes).
func takePings(c *conn, xs []*exchange) (pings [2][]item) {
	if len(xs) < 2 {
		return pings
	}
	for i := range c.items {
		c.items[i] = slices.DeleteFunc(c.items[i], func(it item) bool {
			if it.what != "reply" || it.xid != -2 {
				return false
			}
			pings[i] = append(pings[i], it)
			return true
		})
	}
	return pings
}

// pings compares them: as many, header only, and each shows a transaction between those before and behind the
// pipeline.
func (r *runner) pings(c *conn, xs []*exchange, pings [2][]item) error {
	if fmt.Sprint(len(pings[0])) != fmt.Sprint(len(pings[1])) {
		return r.differ(fmt.Sprintf("session %d, pings", c.slot), "another number of replies", pings[0], pings[0], pings[1])
	}
	for i, p := range pings[1] {
		want := pings[0][i]
		if !r.cmp.zxids.between(p.zxid, xs[0].before, r.last[1]) {
			return r.differ(fmt.Sprintf("session %d, ping", c.slot), "header zxid", want, want, p)
		}
		if p.zxid != want.zxid {
			r.hits["ping-overtakes"]++
		}
		want.zxid, p.zxid = 0, 0
		if err := r.cmp.item(want, p); err != nil {
			return r.differ(fmt.Sprintf("session %d, ping", c.slot), err.Error(), pings[0][i], want, pings[1][i])
		}
	}
	return nil
}

// lastWord tells whether a server closes the connection after a reply: that of closeSession, an unknown operation's,
// and a refused auth's (protocol 1.1, 1.7, 3.8).
func lastWord(q *Request, reply item) bool {
	switch {
	case reply.what != "reply":
		return false
	case reply.err == -6 && reply.zxid == -1, reply.err == -115:
		return true
	}
	return q.Op == opCloseSession && reply.err == 0
}

// split sends a batch in two pieces. It reports whether nothing is to be expected any more.
func (r *runner) split(s *Step, c *conn, out [2][]byte) (bool, error) {
	for i := range out {
		c.sides[i].write(out[i][:s.Split])
	}
	for i, side := range r.sides {
		for _, o := range r.m.conns {
			if o != c {
				o.sides[i].sendFence()
			}
		}
		for _, o := range r.m.conns {
			if o == c {
				continue
			}
			frames, z, err := o.sides[i].awaitFence(patience)
			if err != nil {
				return false, err
			}
			side.highest = max(side.highest, z)
			o.items[i] = append(o.items[i], receive(frames, nil)...)
		}
	}
	if s.Half {
		for _, side := range c.sides {
			side.close()
		}
		r.lost(c)
		return true, nil
	}
	for i := range out {
		c.sides[i].write(out[i][s.Split:])
	}
	return false, nil
}

// gather reads the replies of a batch. A follower of ZooKeeper may hold an answer: another request at that member
// releases it, a sync only a write.
func (r *runner) gather(i int, c *conn, xs []*exchange) ([][]byte, error) {
	if !r.ensemble() || i == 1 && !r.same {
		return c.sides[i].collect(len(xs), patience)
	}
	hasSync := slices.ContainsFunc(xs, func(x *exchange) bool { return x.req.Op == opSync })
	side := r.sides[i]
	var all [][]byte
	for try := 1; ; try++ {
		replies := 0
		for _, b := range all {
			if !isEvent(b) {
				replies++
			}
		}
		frames, err := c.sides[i].collect(len(xs)-replies, 150*time.Millisecond)
		all = append(all, frames...)
		if err == nil || !errors.Is(err, errSilent) || try > 130 {
			return all, err
		}
		q := Request{Op: opExists, Path: ptr("/-barrier-")}
		if hasSync {
			q = Request{Op: opDelete, Path: ptr("/-barrier-/x"), Version: -1}
		}
		a, err := side.admins[c.member%len(side.admins)].do(q)
		if err != nil {
			return all, err
		}
		for _, x := range xs {
			if hasSync && x.req.Op == opSync && i == 0 {
				x.nudges = append(x.nudges, a.zxid)
			}
		}
	}
}

// pendingEvents are the events of a batch for connections other than the one that sent it.
type pendingEvents struct {
	theirs, ours map[*conn][]item
	unordered    bool // raised by a closed session, in any order
}

// until takes the items of a side up to and including the next reply.
func (c *conn) until(side int) (events []item, reply *item) {
	for k, it := range c.items[side] {
		if it.what == "reply" {
			events = c.items[side][:k]
			c.items[side] = c.items[side][k+1:]
			return events, &it
		}
	}
	events = c.items[side]
	c.items[side] = nil
	return events, nil
}

// eventItems are events as they are expected, with the header zxid of either release.
func eventItems(events []event, zxid int64) []item {
	var out []item
	for _, e := range events {
		out = append(out, eventItem(e.typ, e.path, zxid))
	}
	return out
}

// exchange compares one request's events and reply.
func (r *runner) exchange(x *exchange, q Request, pending *pendingEvents) error {
	c := x.c
	where := fmt.Sprintf("session %d, %v", c.slot, q)
	theirEvents, theirs := c.until(0)
	ourEvents, ours := c.until(1)
	if theirs != nil && ours == nil && x.movedWrite(theirs) && len(theirEvents) == 0 && len(ourEvents) == 0 && !r.same {
		if err := awaitClose(c.sides[1]); err != nil {
			return r.differ(where, err.Error(), theirs, "closed", "open")
		}
		c.sides[0].close()
		r.hits["moved-session-write"]++
		return nil
	}
	if theirs == nil {
		// Closed without an answer.
		if len(theirEvents) > 0 {
			return r.wrongModel(where, "events, then no reply", theirEvents, "nothing")
		}
		if ours != nil {
			return r.differ(where, "an answer of kvd only", "closed without an answer", "closed without an answer", *ours)
		}
		if len(ourEvents) > 0 {
			return r.differ(where, "events of kvd only", "closed", "closed", ourEvents)
		}
		return nil
	}
	x.zk, x.want = *theirs, theirs.clone()
	if n := x.m.lookup(x.req.path()); n != nil {
		x.mayRead = c.may(permRead, n.acl)
	} else {
		x.mayRead = true
	}
	if r.same {
		if err := r.sameZxids(x); err != nil {
			return err
		}
	} else {
		for _, rule := range rules {
			if rule.apply != nil && rule.apply(x) {
				r.hits[rule.name]++
			}
		}
	}
	changes := r.m.apply(c, &x.asked, theirs)
	old, now := r.m.old.raise(changes), r.m.new.raise(changes)
	if r.same {
		now = old
	} else if x.zk.err == -5 && x.req.NullList {
		r.hits["null-list-in-set-watches"]++
	}
	zxid := theirs.zxid
	old[c] = append(old[c], r.m.register(r.m.old, c, x.req, x.zk.err, x.since[0])...)
	atOnce := r.m.register(r.m.new, c, x.req, x.want.err, x.since[0])
	unordered := x.req.Op == opCloseSession
	theirWant := eventItems(old[c], -1)
	for i := range theirWant {
		f := &theirWant[i].fields[2]
		f.text = javaText(f.text)
	}
	var ourWant []item
	if r.same {
		ourWant = theirWant
	} else {
		ourWant = append(eventItems(now[c], zxid), eventItems(atOnce, -1)...)
		if len(now[c]) > 0 {
			r.hits["event-zxid"]++
		}
	}
	if err := r.sameEvents(fmt.Sprintf("%s\n    before %v", where, theirs), theirEvents, theirWant, ourEvents, ourWant, unordered); err != nil {
		return err
	}
	pending.unordered = pending.unordered || unordered
	for _, o := range r.m.conns {
		if o == c {
			continue
		}
		pending.theirs[o] = append(pending.theirs[o], eventItems(old[o], -1)...)
		if r.same {
			pending.ours[o] = append(pending.ours[o], eventItems(now[o], -1)...)
		} else {
			pending.ours[o] = append(pending.ours[o], eventItems(now[o], zxid)...)
		}
	}
	if ours == nil {
		return r.differ(where, "no answer of kvd", theirs, x.want, "closed")
	}
	r.sortGroups(x, ours)
	if err := r.cmp.item(x.want, *ours); err != nil {
		return r.differ(where, err.Error(), theirs, x.want, ours)
	}
	if x.closes && !r.same {
		if err := awaitClose(c.sides[1]); err != nil {
			return r.differ(where, err.Error(), theirs, "closed", "open")
		}
		c.sides[0].close()
	}
	return nil
}

// sameZxids registers the ghosts of a run of ZooKeeper against itself: there are none, both cost the same, but for the
// writes that release a sync.
func (r *runner) sameZxids(x *exchange) error {
	for _, a := range x.nudges {
		r.cmp.zxids.ghost(a)
	}
	return nil
}

// sameEvents compares the events of one connection with what the model expects of each side.
func (r *runner) sameEvents(where string, theirs, theirWant, ours, ourWant []item, unordered bool) error {
	if unordered {
		for _, l := range []*[]item{&theirs, &theirWant, &ours, &ourWant} {
			*l = slices.SortedFunc(slices.Values(*l), func(a, b item) int {
				return compareStrings(fmt.Sprint(a.fields), fmt.Sprint(b.fields))
			})
		}
	}
	if fmt.Sprint(theirs) != fmt.Sprint(theirWant) {
		return r.wrongModel(where, "events of ZooKeeper that the model does not expect", theirs, theirWant)
	}
	if len(ours) != len(ourWant) {
		return r.differ(where, fmt.Sprintf("%d events for %d", len(ours), len(ourWant)), theirs, ourWant, ours)
	}
	for i := range ours {
		if err := r.cmp.item(ourWant[i], ours[i]); err != nil {
			return r.differ(where, "event: "+err.Error(), theirs, ourWant, ours)
		}
	}
	if !r.same && len(theirs) != len(ours) {
		r.hits["one-shot-beside-persistent"]++
	}
	return nil
}

func compareStrings(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// events compares what the other connections got.
func (r *runner) events(sender *conn, pending *pendingEvents) error {
	for _, o := range r.m.conns {
		if o == sender {
			continue
		}
		theirs, ours := o.items[0], o.items[1]
		o.items = [2][]item{}
		if err := r.sameEvents(fmt.Sprintf("session %d watching", o.slot), theirs, pending.theirs[o], ours, pending.ours[o], pending.unordered); err != nil {
			return err
		}
	}
	return nil
}

// sortGroups sorts, in both answers of a getACL, the entries that one `auth` entry became: a set (protocol 9.4).
func (r *runner) sortGroups(x *exchange, ours *item) {
	if x.req.Op != opGetACL || x.zk.err != 0 || ours.err != 0 || len(ours.fields) != len(x.want.fields) {
		return
	}
	n := x.m.lookup(x.req.path())
	if n == nil || len(n.acl)*3+1 > len(x.want.fields) {
		return
	}
	for from := 0; from < len(n.acl); {
		to := from + 1
		for to < len(n.acl) && n.acl[from].group != 0 && n.acl[to].group == n.acl[from].group {
			to++
		}
		if to-from > 1 {
			sortEntries(x.want.fields[1+3*from : 1+3*to])
			sortEntries(ours.fields[1+3*from : 1+3*to])
		}
		from = to
	}
}

// sortEntries sorts triples of perms, scheme and id by their values; the names stay in place.
func sortEntries(f []field) {
	n := len(f) / 3
	for i := range n {
		for j := i + 1; j < n; j++ {
			if f[3*j+2].text < f[3*i+2].text {
				for k := range 3 {
					a, b := &f[3*i+k], &f[3*j+k]
					a.num, b.num = b.num, a.num
					a.text, b.text = b.text, a.text
				}
			}
		}
	}
}
