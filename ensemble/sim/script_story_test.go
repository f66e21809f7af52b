package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"kvd/kv"
	"kvd/zab/quorum"
)

// story is the trace of a script: what changed in a paragraph. It tells states, not times, so that it changes only when what
// happens changes.
type story struct {
	show     []string // kinds of messages to tell, with their order
	messages []string
	synced   map[quorum.MemberID][]string // how each member was synchronized in this paragraph
	epochs   int
	last     map[quorum.MemberID]string
	ops      []string
	syncs    []string
	told     map[string]string
}

func (y *story) message(m *Message, a arrival) {
	if slices.Contains(y.show, m.Kind) {
		t := fmt.Sprintf("s%d->s%d %s", m.From, m.To, m.Kind)
		if a.zxid != 0 {
			t += " " + a.zxid.String()
		}
		y.messages = append(y.messages, t)
	}
	switch m.Kind {
	case "DIFF", "TRUNC", "SNAP", "NEEDSNAPSHOT":
		id, t := m.To, m.Kind
		if t == "NEEDSNAPSHOT" {
			id, t = m.From, "refused"
		} else {
			t += " " + a.zxid.String()
		}
		if y.synced == nil {
			y.synced = map[quorum.MemberID][]string{}
		}
		y.synced[id] = append(y.synced[id], t)
	}
}

// tell returns what changed since it was asked last.
func (y *story) tell(x *script) string {
	if x.s == nil {
		return ""
	}
	var b strings.Builder
	g := &x.s.ghost
	for _, m := range y.messages {
		fmt.Fprintln(&b, m)
	}
	for ; y.epochs < len(g.epochs); y.epochs++ {
		e := g.epochs[y.epochs]
		if h := g.est[e]; h.inc != 0 {
			fmt.Fprintf(&b, "s%d is established in epoch %d with %v\n", h.by, e, h.last)
		}
	}
	if y.last == nil {
		y.last = map[quorum.MemberID]string{}
		for _, m := range x.s.members {
			y.last[m.ID] = "down"
		}
	}
	for _, m := range x.s.members {
		now := state(m)
		if now != y.last[m.ID] || len(y.synced[m.ID]) > 0 {
			fmt.Fprintf(&b, "s%d %s", m.ID, now)
			if how := y.synced[m.ID]; len(how) > 0 {
				fmt.Fprintf(&b, " (by %s)", strings.Join(slices.Compact(how), ", "))
			}
			b.WriteByte('\n')
		}
		y.last[m.ID] = now
	}
	y.messages, y.synced = nil, nil
	if y.told == nil {
		y.told = map[string]string{}
	}
	var run fates
	report := func(name, now string) {
		if y.told[name] != now && !run.takes(name, now) {
			b.WriteString(run.String())
			run = fates{first: name, last: name, from: now, to: now}
		}
		y.told[name] = now
	}
	for _, n := range y.ops {
		report(n, outcome(x.ops[n]))
	}
	for _, n := range y.syncs {
		report("sync-read "+n, x.syncs[n])
	}
	b.WriteString(run.String())
	return b.String()
}

// fates are those of operations with consecutive names, which shared one: a1..a9: ok at 2:5 to 2:13.
type fates struct{ first, last, from, to string }

// takes adds one more operation if it is the next of the same kind.
func (f *fates) takes(name, now string) bool {
	stem := strings.TrimRight(f.last, "0123456789")
	n, err := strconv.Atoi(f.last[len(stem):])
	if err != nil || name != stem+strconv.Itoa(n+1) {
		return false
	}
	const ok = "ok at "
	if f.to != now && !(strings.HasPrefix(f.to, ok) && strings.HasPrefix(now, ok)) {
		return false
	}
	f.last, f.to = name, now
	return true
}

func (f *fates) String() string {
	switch {
	case f.first == "":
		return ""
	case f.first == f.last:
		return f.first + ": " + f.from + "\n"
	case f.from == f.to:
		return f.first + ".." + f.last + ": " + f.from + "\n"
	}
	return f.first + ".." + f.last + ": " + f.from + " to " + strings.TrimPrefix(f.to, "ok at ") + "\n"
}

func state(m *Member) string {
	d := &m.disk.content
	disk := fmt.Sprintf("holds %v", d.lastZxid())
	if d.base != 0 {
		disk += fmt.Sprintf(" on %v", d.base)
	}
	disk += fmt.Sprintf(", epoch %d", d.current)
	if d.accepted.Epoch != d.current {
		disk += fmt.Sprintf(" promised %d", d.accepted.Epoch)
	}
	if d.unknown {
		disk += ", unknown"
	}
	switch {
	case !m.Up:
		return "down; " + disk
	case m.role.Leader == 0 || roleName(m) == "looking":
		return "looking; " + disk
	}
	how := roleName(m)
	if how != "leading" {
		how += fmt.Sprintf(" s%d", m.role.Leader)
	}
	if !m.serving.Open {
		how += ", closed"
	}
	return how + "; " + disk
}

func outcome(op *Op) string {
	switch {
	case op == nil:
		return "none"
	case op.Outcome == Pending:
		return "pending"
	case op.Outcome == Unknown:
		return "unknown"
	case op.Outcome == NotSent:
		return "refused"
	case op.Code != kv.CodeOK:
		return fmt.Sprintf("%v", op.Code)
	}
	return "ok at " + op.Zxid.String()
}
