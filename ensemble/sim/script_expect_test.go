package sim

import (
	"fmt"
	"slices"
	"strings"

	"kvd/kv"
	"kvd/zab"
	"kvd/zab/quorum"
)

// condition tells whether what a script expects is so, and if not, what is instead.
type condition func() (holds bool, instead string)

// expect WHAT [within=TICKS] fails the script if WHAT is not so, now or within so many ticks.
func (x *script) expect(a *arguments) {
	ticks := a.num("within", 0)
	c := x.condition(a)
	a.done()
	ok, why := c()
	if !ok && ticks > 0 {
		x.s.Until(ticks, func() bool { ok, why = c(); return ok })
	}
	if x.s.failure == nil && !ok {
		panic(&unmet{fmt.Sprintf("%s; %s", why, x.s.describe())})
	}
}

// keepTrue (keep WHAT ticks=N) fails the script if WHAT is ever not so during the next N ticks.
func (x *script) keepTrue(a *arguments) {
	ticks := a.num("ticks", 0)
	c := x.condition(a)
	a.done()
	ok, why := c()
	if ok {
		x.s.Until(ticks, func() bool { ok, why = c(); return !ok })
	}
	if x.s.failure == nil && !ok {
		panic(&unmet{fmt.Sprintf("%s; %s", why, x.s.describe())})
	}
}

// members makes a condition of one about each of some members.
func (x *script) members(ids []quorum.MemberID, is func(m *Member) bool, not string) condition {
	return func() (bool, string) {
		for _, id := range ids {
			if m := x.s.member(id); !is(m) {
				return false, fmt.Sprintf("s%d is not %s", id, not)
			}
		}
		return true, ""
	}
}

func (x *script) condition(a *arguments) condition {
	s := x.s
	what := a.word()
	switch what {
	case "leader": // sK ...|none [epoch=E]: one of these leads, established; or nobody
		return x.leader(a)
	case "role": // sK ... looking|leading|following|observing
		ws := a.words()
		want := ws[len(ws)-1]
		if !slices.Contains([]string{"looking", "leading", "following", "observing"}, want) {
			bad("no role %s", want)
		}
		return x.members(x.ids(ws[:len(ws)-1]), func(m *Member) bool { return m.Up && roleName(m) == want }, want)
	case "up", "down": // sK ...
		return x.members(x.ids(a.words()), func(m *Member) bool { return m.Up == (what == "up") }, what)
	case "open", "closed": // sK ...: serves clients, or not
		return x.members(x.ids(a.words()), func(m *Member) bool { return (m.Up && m.serving.Open) == (what == "open") }, what)
	case "restarted", "running": // sK ...: started since the mark, or the same process as then
		return x.members(x.ids(a.words()), func(m *Member) bool { return (m.life != x.lives[m.ID-1]) == (what == "restarted") }, what)
	case "electing", "quiet": // sK ...: takes part in the election, or looks and does not vote
		return x.members(x.ids(a.words()), func(m *Member) bool {
			return m.Up && m.role.Role == zab.Looking && m.rep.Status().Electing == (what == "electing")
		}, what)
	case "busy": // sK ...: writes wait for its disk
		return x.members(x.ids(a.words()), func(m *Member) bool { return m.Up && len(m.disk.writes) > 0 }, what)
	case "established": // N|sK|none [epoch=E]: N epochs since the mark, or sK as the leader of E
		return x.established(a)
	case "committed", "uncommitted": // Z ...
		zs := a.words()
		return func() (bool, string) {
			for _, v := range zs {
				if _, ok := s.ghost.pos[zxid(v)]; ok != (what == "committed") {
					return false, v + " is not " + what
				}
			}
			return len(zs) > 0, "nothing named"
		}
	case "holds", "lacks": // sK ...|all Z ...: on disk, that entry which the scenario calls Z
		ids, zs := x.idsAnd(a.words())
		return x.members(ids, func(m *Member) bool {
			for _, v := range zs {
				if z := zxid(v); m.disk.holds(z, s.ghost.chains[z]) != (what == "holds") {
					return false
				}
			}
			return len(zs) > 0
		}, fmt.Sprintf("with %v as expected (%s)", zs, what))
	case "applied": // sK ... Z: at least that far
		ids, zs := x.idsAnd(a.words())
		if len(zs) != 1 {
			bad("applied MEMBER ... ZXID")
		}
		return x.members(ids, func(m *Member) bool { return m.Up && m.tree.View().Zxid() >= zxid(zs[0]) }, "that far")
	case "disk": // sK ... [accepted=E] [current=E] [last=Z] [base=Z] [unknown|trusted]
		return x.disks(a)
	case "has", "lacks-node": // sK ... NAME ...: in the tree
		ids, names := x.idsAnd(a.words())
		names = spans(names)
		return x.members(ids, func(m *Member) bool {
			for _, n := range names {
				if !m.Up || s.Has(m.ID, n) != (what == "has") {
					return false
				}
			}
			return len(names) > 0
		}, fmt.Sprintf("as expected about %v (%s)", names, what))
	case "everywhere", "nowhere": // NAME ...: in the tree of all that run
		names := spans(a.words())
		return x.members(x.ids([]string{"up"}), func(m *Member) bool {
			for _, n := range names {
				if s.Has(m.ID, n) != (what == "everywhere") {
					return false
				}
			}
			return len(names) > 0
		}, fmt.Sprintf("as expected about %v (%s)", names, what))
	case "ok", "unknown", "refused", "pending", "not-ok", "answered": // OP ...: what its client was told
		return x.told(what, spans(a.words()))
	case "code": // OP CODE
		name, want := a.word(), a.word()
		return func() (bool, string) {
			op := x.ops[name]
			if op == nil || op.Outcome != OK {
				return false, name + " is not answered"
			}
			return fmt.Sprint(op.Code) == want || fmt.Sprint(int32(op.Code)) == want, fmt.Sprintf("%s: %d %v", name, int32(op.Code), op.Code)
		}
	case "sync-read": // NAME found|missing|refused|waiting ...: one of these
		name, wants := a.word(), a.words()
		return func() (bool, string) {
			return slices.Contains(wants, x.syncs[name]), fmt.Sprintf("sync-read %s: %q", name, x.syncs[name])
		}
	case "session": // CLIENT ready|away|resuming|opening|gone
		name, want := a.word(), a.word()
		return func() (bool, string) {
			c := x.clients[name]
			if c == nil {
				bad("no client %s", name)
			}
			got := []string{away: "away", opening: "opening", resuming: "resuming", ready: "ready"}[c.state]
			if c.session == 0 {
				got = "gone"
			}
			return got == want, fmt.Sprintf("%s is %s", name, got)
		}
	case "arrived": // KIND [s1->s2 ...] [n=N]: since the mark; at least once, or exactly N times
		return x.arrivals(a)
	case "order": // s1->s2 KIND KIND: since the mark the first arrived, and before the second
		from, to := x.direction(a.word())
		first, second := a.word(), a.word()
		return func() (bool, string) {
			i, j := x.first(from, to, first), x.first(from, to, second)
			return i >= 0 && (j < 0 || i < j), fmt.Sprintf("%s is message %d, %s message %d", first, i, second, j)
		}
	case "row": // sK DIFF|TRUNC|SNAP|none [at=Z]: how it was synchronized last, since the mark
		return x.row(a)
	case "event": // KIND [n=N]: told by replicas since the mark; at least once, or exactly N times
		kind, n := a.word(), a.num("n", -1)
		return func() (bool, string) {
			got := s.happened[kind] - x.events[kind]
			return n < 0 && got > 0 || got == n, fmt.Sprintf("%s happened %d times", kind, got)
		}
	case "equal": // sK ...: all that run, or these, have applied the same and have the same tree
		ws := a.words()
		if len(ws) == 0 {
			ws = []string{"up"}
		}
		ids := x.ids(ws)
		return x.members(ids, func(m *Member) bool {
			v, w := m.tree.View(), s.member(ids[0]).tree.View()
			return v.Zxid() == w.Zxid() && v.Chain() == w.Chain() && v.Digest() == w.Digest()
		}, "equal")
	case "recovered": // one leader, and everybody follows it up to date
		return func() (bool, string) { return s.recovered(), "not recovered" }
	}
	if c := x.wildCondition(what, a); c != nil {
		return c
	}
	bad("expect what?")
	return nil
}

// idsAnd cuts words into members and the rest.
func (x *script) idsAnd(ws []string) (ids []quorum.MemberID, rest []string) {
	n := 0
	for n < len(ws) && (ws[n] == "all" || ws[n] == "up" || len(ws[n]) == 2 && ws[n][0] == 's') {
		n++
	}
	return x.ids(ws[:n]), ws[n:]
}

func roleName(m *Member) string {
	switch m.role.Role {
	case zab.Leading:
		return "leading"
	case zab.Following:
		return "following"
	case zab.Observing:
		return "observing"
	}
	return "looking"
}

func (x *script) leader(a *arguments) condition {
	epoch := kv.Epoch(a.num("epoch", 0))
	var ids []quorum.MemberID
	if ws := a.words(); !slices.Equal(ws, []string{"none"}) {
		ids = x.ids(ws)
	}
	return func() (bool, string) {
		l := x.s.Leader()
		switch {
		case l == nil:
			return ids == nil, "nobody leads"
		case !slices.Contains(ids, l.ID), epoch != 0 && l.role.Epoch != epoch:
			return false, fmt.Sprintf("s%d leads epoch %d", l.ID, l.role.Epoch)
		}
		return true, ""
	}
}

func (x *script) established(a *arguments) condition {
	g, w, epoch := &x.s.ghost, a.word(), kv.Epoch(a.num("epoch", 0))
	switch {
	case w == "none":
		w = "0"
	case strings.HasPrefix(w, "s"):
		id := x.id(w)
		return func() (bool, string) {
			for _, e := range g.epochs[x.epochs:] {
				if g.est[e].by == id && (epoch == 0 || epoch == e) {
					return true, ""
				}
			}
			return false, fmt.Sprintf("established: %v", g.epochs[x.epochs:])
		}
	}
	n := number(w)
	return func() (bool, string) {
		return len(g.epochs)-x.epochs == n, fmt.Sprintf("established: %v", g.epochs[x.epochs:])
	}
}

func (x *script) disks(a *arguments) condition {
	accepted, current := a.num("accepted", -1), a.num("current", -1)
	last, base := a.str("last", ""), a.str("base", "")
	unknown, trusted := a.flag("unknown"), a.flag("trusted")
	ids := x.ids(a.words())
	return func() (bool, string) {
		for _, id := range ids {
			d := &x.s.member(id).disk.content
			if accepted >= 0 && d.accepted.Epoch != kv.Epoch(accepted) || current >= 0 && d.current != kv.Epoch(current) ||
				last != "" && d.lastZxid() != zxid(last) || base != "" && d.base != zxid(base) || unknown && !d.unknown || trusted && d.unknown {
				return false, fmt.Sprintf("s%d holds %s", id, describe(d))
			}
		}
		return true, ""
	}
}

func (x *script) told(what string, names []string) condition {
	return func() (bool, string) {
		for _, n := range names {
			op := x.ops[n]
			if op == nil {
				bad("no operation %s", n)
			}
			fine := op.Outcome == OK && op.Code == kv.CodeOK
			is := map[string]bool{
				"ok": fine, "unknown": op.Outcome == Unknown, "refused": op.Outcome == NotSent, "pending": op.Outcome == Pending,
				"not-ok": !fine, "answered": op.Outcome != Pending,
			}[what]
			if !is {
				return false, fmt.Sprintf("%s: %s", n, outcome(op))
			}
		}
		return len(names) > 0, "nothing named"
	}
}

func (x *script) arrivals(a *arguments) condition {
	n, kind := a.num("n", -1), a.word()
	dirs := a.words()
	return func() (bool, string) {
		got := 0
		for _, m := range x.arrived {
			if m.kind != kind {
				continue
			}
			hit := len(dirs) == 0
			for _, d := range dirs {
				from, to := x.direction(d)
				hit = hit || (from == 0 || from == m.from) && (to == 0 || to == m.to)
			}
			if hit {
				got++
			}
		}
		return n < 0 && got > 0 || got == n, fmt.Sprintf("%d %s arrived", got, kind)
	}
}

// first is the place of the first message of a kind among those that arrived since the mark, -1 if there is none.
func (x *script) first(from, to quorum.MemberID, kind string) int {
	return slices.IndexFunc(x.arrived, func(m arrival) bool {
		return m.kind == kind && (from == 0 || from == m.from) && (to == 0 || to == m.to)
	})
}

func (x *script) row(a *arguments) condition {
	id, want, at := x.id(a.word()), a.word(), a.str("at", "")
	return func() (bool, string) {
		got, text := "none", "none"
		var z kv.Zxid
		for _, m := range x.arrived {
			if m.to == id && (m.kind == "DIFF" || m.kind == "TRUNC" || m.kind == "SNAP") {
				got, z = m.kind, m.zxid
				text = fmt.Sprintf("%s %v", got, z)
			}
		}
		return got == want && (at == "" || zxid(at) == z), fmt.Sprintf("s%d was synchronized by %s", id, text)
	}
}
