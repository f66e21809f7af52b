package explore

import (
	"fmt"
	"strings"

	"kvd/kv"
	"kvd/zab"
)

// The transitions of a world. x and y are positions: of a member, of a link and its direction.
const (
	_         = iota
	doDeliver // link, direction: its oldest message arrives
	doEnd     // link, direction: its end arrives
	doCut     // link, direction: what is on the way is lost; only when nothing more is sent
	doBreak   // link: the network breaks it
	doPersist // member: its oldest write becomes durable
	doConnect // member: its dial succeeds
	doRedial  // member: time passes until it dials again
	doLook    // member: it gives up its role (a time-out, or its election says so)
	doLead    // member: the election says that it leads
	doFollow  // member, member: the election says that the first follows the second
	doWrite   // member: a client writes at this leader
	doCrash   // member: it loses what is not durable
	doStart   // member: it starts again
	doPing    // member: a leader's tick
)

// pack makes an Action: four bits of kind, six of x and of y.
func pack(kind, x, y int) Action { return Action(kind<<12 | x<<6 | y) }

func unpack(a Action) (kind, x, y int) { return int(a >> 12), int(a>>6) & 63, int(a) & 63 }

// Actions implements State.
func (w *world) Actions(dst []Action) []Action {
	for i, l := range w.links {
		for dir := range 2 {
			switch {
			case l.open[dir] && len(l.queue[dir]) > 0:
				dst = append(dst, pack(doDeliver, i, dir))
				if l.ended[dir] {
					dst = append(dst, pack(doCut, i, dir))
				}
			case l.open[dir] && l.ended[dir]:
				dst = append(dst, pack(doEnd, i, dir))
			}
		}
		if w.left.breaks > 0 && !l.ended[0] && !l.ended[1] {
			dst = append(dst, pack(doBreak, i, 0))
		}
	}
	n := len(w.env.members.Voters)
	for i := range n {
		dst = w.memberActions(dst, i, n)
	}
	return dst
}

func (w *world) memberActions(dst []Action, i, n int) []Action {
	m := w.m[i]
	if m.p == nil {
		return append(dst, pack(doStart, i, 0))
	}
	if len(m.queue) > 0 {
		dst = append(dst, pack(doPersist, i, 0))
	}
	if m.dial != nil && w.m[m.dial.Leader-1].p != nil {
		dst = append(dst, pack(doConnect, i, 0))
	}
	g := m.p.Glance()
	if g.Redial {
		dst = append(dst, pack(doRedial, i, 0))
	}
	if g.Role == zab.Looking {
		if w.left.leads > 0 {
			dst = append(dst, pack(doLead, i, 0))
		}
		for k := range n {
			if k != i && w.left.follows > 0 {
				dst = append(dst, pack(doFollow, i, k))
			}
		}
	} else if w.left.looks > 0 {
		dst = append(dst, pack(doLook, i, 0))
	}
	if g.Role == zab.Leading {
		if w.left.writes > 0 && m.p.NextZxid() != 0 {
			dst = append(dst, pack(doWrite, i, 0))
		}
		if w.left.pings > 0 {
			dst = append(dst, pack(doPing, i, 0))
		}
	}
	if w.left.crashes > 0 {
		dst = append(dst, pack(doCrash, i, 0))
	}
	return dst
}

// Describe implements State.
func (w *world) Describe(a Action) string {
	kind, x, y := unpack(a)
	switch kind {
	case doDeliver, doEnd, doCut:
		l := w.links[x]
		head := fmt.Sprintf("%s %s to %d", [...]string{doDeliver: "deliver", doEnd: "end", doCut: "cut"}[kind], w.linkName(x), l.receiver(y)+1)
		if kind != doDeliver {
			return head
		}
		return head + " # " + describeMessage(l.queue[y][0])
	case doBreak:
		return "break " + w.linkName(x)
	case doPersist:
		return fmt.Sprintf("persist %d # %s", x+1, describeWrite(&w.m[x].queue[0]))
	case doFollow:
		return fmt.Sprintf("follow %d %d", x+1, y+1)
	}
	return fmt.Sprintf("%s %d", [...]string{
		doConnect: "connect", doRedial: "redial", doLook: "look", doLead: "lead", doWrite: "write", doCrash: "crash", doStart: "start", doPing: "ping",
	}[kind], x+1)
}

// linkName is learner-leader, with a number behind it for all but the oldest connection of the two.
func (w *world) linkName(i int) string {
	l := w.links[i]
	name := fmt.Sprintf("%d-%d", l.learner+1, l.leader+1)
	nth := 1
	for _, o := range w.links[:i] {
		if o.learner == l.learner && o.leader == l.leader {
			nth++
		}
	}
	if nth > 1 {
		name += fmt.Sprintf(".%d", nth)
	}
	return name
}

func describeMessage(m message) string {
	entries := func(es []kv.Entry) string {
		var zs []string
		for _, e := range es {
			zs = append(zs, e.Zxid.String())
		}
		return strings.Join(zs, " ")
	}
	name := strings.TrimPrefix(fmt.Sprintf("%T", m.Message), "*zab.")
	switch m := m.Message.(type) {
	case nil:
		return "the connection"
	case *zab.FollowerInfo:
		return fmt.Sprintf("%s accepted %d", name, m.Accepted)
	case *zab.LeaderInfo:
		return fmt.Sprintf("%s epoch %d", name, m.Epoch)
	case *zab.AckEpoch:
		s := fmt.Sprintf("%s epoch %d: current %d, last %s", name, m.Epoch, m.Current, m.Last)
		if m.AlreadyPromised {
			s += ", already promised"
		}
		return s
	case *zab.Proposal:
		return fmt.Sprintf("%s %s behind %s, commit %s", name, entries(m.Entries), m.Prev, m.Commit)
	case *zab.Refuse:
		return fmt.Sprintf("%s: %s", name, m.Reason)
	default:
		return name + strings.TrimPrefix(fmt.Sprintf(" %+v", m), " &")
	}
}

func describeWrite(w *zab.Write) string {
	var parts []string
	if w.Promise != nil {
		parts = append(parts, fmt.Sprintf("promise %d", w.Promise.Epoch))
	}
	if w.Truncate != nil {
		parts = append(parts, fmt.Sprintf("truncate to %s", *w.Truncate))
	}
	for _, e := range w.Append {
		parts = append(parts, fmt.Sprintf("append %s", e.Zxid))
	}
	if w.Current != 0 {
		parts = append(parts, fmt.Sprintf("current %d", w.Current))
	}
	return strings.Join(parts, ", ")
}
