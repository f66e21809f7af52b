package sim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/datadriven"

	"kvd/ensemble/replica"
	"kvd/kv"
	"kvd/zab"
	"kvd/zab/quorum"
)

// script runs one file of the catalogue.
type script struct {
	s        *Sim
	mutation string // overrides that of the file
	settled  bool
	outside  bool // names tests elsewhere
	ops      map[string]*Op
	clients  map[string]*Client
	syncs    map[string]string // outcome of a sync-read by name
	rules    map[string][]int
	arrived  []arrival // since the last mark
	lives    []uint64  // by id-1, at the last mark
	epochs   int       // established, at the last mark
	events   map[string]int
	story    story
	sweep    *sweep
}

type arrival struct {
	from, to quorum.MemberID
	kind     string
	text     string
	zxid     kv.Zxid
}

// wrong is a mistake in a script, unmet an expectation that does not hold.
type (
	wrong struct{ text string }
	unmet struct{ text string }
)

func (e *wrong) Error() string { return e.text }
func (e *unmet) Error() string { return e.text }

func bad(format string, args ...any) { panic(&wrong{fmt.Sprintf(format, args...)}) }

// paragraph carries out the lines of one paragraph and returns its part of the trace.
func (x *script) paragraph(text string) (out string, err error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if first := strings.Fields(lines[0]); len(first) > 0 && first[0] == "sweep" {
		return x.runSweep(lines[0], lines[1:])
	}
	if err := x.lines(lines); err != nil {
		return "", err
	}
	if out = x.story.tell(x); out == "" {
		out = "ok\n"
	}
	return out, nil
}

func (x *script) lines(lines []string) (err error) {
	for _, l := range lines {
		if l = strings.TrimSpace(l); l == "" || l[0] == '#' {
			continue
		}
		if err := x.line(l); err != nil {
			return fmt.Errorf("%s: %w", l, err)
		}
	}
	return nil
}

func (x *script) line(l string) (err error) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case *wrong:
			err = e
		case *unmet:
			err = e
		default:
			panic(e)
		}
		if x.s != nil && x.s.failure != nil {
			err = x.s.failure
		}
	}()
	cmd, args, err := datadriven.ParseLine(l)
	if err != nil {
		return err
	}
	a := &arguments{all: args, used: make([]bool, len(args))}
	do, ok := verbs[cmd]
	switch {
	case !ok:
		bad("unknown verb")
	case x.s == nil && cmd != "ensemble" && cmd != "test":
		bad("no ensemble yet")
	}
	if cmd != "expect" && cmd != "keep" && cmd != "settle" && cmd != "mark" && cmd != "show" && cmd != "test" && cmd != "ensemble" {
		x.settled = false
	}
	do(x, a)
	a.done()
	return nil
}

// all carries out a whole file, whose golden outputs are ignored.
func (x *script) all(text string) error {
	for _, p := range paragraphs(text) {
		if _, err := x.paragraph(p); err != nil {
			return err
		}
	}
	return x.end()
}

// paragraphs cuts a script into what stands before each ---- line.
func paragraphs(text string) (out []string) {
	var now []string
	golden := false
	for _, l := range strings.Split(text, "\n") {
		switch {
		case golden:
			golden = strings.TrimSpace(l) != ""
		case l == "----":
			out = append(out, strings.Join(now, "\n"))
			now, golden = nil, true
		case len(now) == 0 && (strings.HasPrefix(l, "#") || strings.TrimSpace(l) == ""):
		default:
			now = append(now, l)
		}
	}
	return out
}

// end demands that the last ensemble has settled.
func (x *script) end() error {
	switch {
	case x.s == nil && x.outside:
		return nil
	case x.s == nil:
		return &wrong{"nothing happens"}
	case !x.settled:
		return &unmet{"the ensemble does not end with settle"}
	}
	return nil
}

// arguments are those of one line. Each must be used, or the line is wrong.
type arguments struct {
	all  []datadriven.CmdArg
	used []bool
}

func (a *arguments) done() {
	for i, u := range a.used {
		if !u {
			bad("what is %s?", a.all[i].String())
		}
	}
}

// word takes the next argument without a value, "" if there is none.
func (a *arguments) word() string {
	for i, x := range a.all {
		if !a.used[i] && len(x.Vals) == 0 {
			a.used[i] = true
			return x.Key
		}
	}
	return ""
}

func (a *arguments) words() (out []string) {
	for w := a.word(); w != ""; w = a.word() {
		out = append(out, w)
	}
	return out
}

func (a *arguments) flag(name string) bool {
	for i, x := range a.all {
		if !a.used[i] && len(x.Vals) == 0 && x.Key == name {
			a.used[i] = true
			return true
		}
	}
	return false
}

func (a *arguments) vals(key string) []string {
	for i, x := range a.all {
		if x.Key == key && len(x.Vals) > 0 {
			a.used[i] = true
			return x.Vals
		}
	}
	return nil
}

func (a *arguments) str(key, def string) string {
	if v := a.vals(key); len(v) == 1 {
		return v[0]
	}
	return def
}

func number(v string) int {
	n, err := strconv.Atoi(v)
	if err != nil {
		bad("%q is no number", v)
	}
	return n
}

func (a *arguments) num(key string, def int) int {
	if v := a.str(key, ""); v != "" {
		return number(v)
	}
	return def
}

// id reads s3 or 3.
func (x *script) id(v string) quorum.MemberID {
	n, err := strconv.Atoi(strings.TrimPrefix(v, "s"))
	if err != nil || n < 1 || n > len(x.s.members) {
		bad("no member %q", v)
	}
	return quorum.MemberID(n)
}

// ids reads members; all is everybody, up those that run.
func (x *script) ids(vs []string) (out []quorum.MemberID) {
	for _, v := range vs {
		switch v {
		case "all", "up":
			for _, m := range x.s.members {
				if v == "all" || m.Up {
					out = append(out, m.ID)
				}
			}
		default:
			out = append(out, x.id(v))
		}
	}
	if len(out) == 0 {
		bad("no members named")
	}
	return out
}

// zxid reads epoch:counter.
func zxid(v string) kv.Zxid {
	e, c, ok := strings.Cut(v, ":")
	if !ok {
		bad("%q is no zxid", v)
	}
	return kv.MakeZxid(kv.Epoch(number(e)), uint32(number(c)))
}

// direction reads s1->s2, with * for anybody.
func (x *script) direction(v string) (from, to quorum.MemberID) {
	a, b, ok := strings.Cut(v, "->")
	if !ok {
		bad("%q is no direction", v)
	}
	if a != "*" {
		from = x.id(a)
	}
	if b != "*" {
		to = x.id(b)
	}
	return from, to
}

func isDirection(v string) bool { return strings.Contains(v, "->") }

// at returns the client that a write is made by: one named before, or one of its own on a member.
func (x *script) at(v string) *Client {
	if c := x.clients[v]; c != nil {
		return c
	}
	return x.s.At(x.id(v))
}

func (x *script) keep(name string, op *Op) {
	if op == nil {
		return
	}
	if x.ops[name] != nil {
		bad("%s is written already", name)
	}
	x.ops[name] = op
	x.story.ops = append(x.story.ops, name)
}

// submit sends one request of a client and gives it a name.
func (x *script) submit(c *Client, name string, q kv.Request) {
	if x.s.failure != nil {
		return
	}
	if c.member == nil {
		bad("client has no connection")
	}
	m := c.member
	x.keep(name, c.submit(q))
	m.run()
}

var verbs map[string]func(x *script, a *arguments)

func init() { // verbs mentions expect, which mentions verbs
	verbs = map[string]func(x *script, a *arguments){
		"ensemble": (*script).ensemble, "given": (*script).given, "committed": (*script).committed, "begun": (*script).begun,
		"start": (*script).start, "crash": (*script).crash, "wipe": (*script).wipe, "crash-at": (*script).crashAt, "swept": (*script).swept,
		"elect": func(x *script, a *arguments) {
			if by := x.ids(a.vals("by")); !x.s.Elect(x.id(a.word()), by...) && !a.flag("maybe") {
				panic(&unmet{"not elected"})
			}
			a.flag("maybe")
		},
		"pause":  each((*Sim).Pause),
		"resume": each((*Sim).Resume),
		"shutdown": each(func(s *Sim, id quorum.MemberID) {
			s.member(id).rep.Shutdown()
			s.member(id).run()
		}),
		"snapshot":      each((*Sim).TakeSnapshot),
		"hold-apply":    each((*Sim).HoldApply),
		"release-apply": each((*Sim).ReleaseApply),
		"isolate":       each((*Sim).Isolate),
		"dirty": each(func(s *Sim, id quorum.MemberID) { // its snapshot was never committed
			gm := s.ghost.of(s.member(id))
			gm.dirty = !gm.dirty
		}),
		"clock": func(x *script, a *arguments) { x.s.Clock(x.id(a.word()), int64(a.num("ms", 0))) },
		"cut":   (*script).cut, "heal": (*script).heal,
		"reset": func(x *script, a *arguments) {
			for _, v := range a.words() {
				p, q := x.pair(v)
				x.s.DropLinks(p, q)
			}
		},
		"hold": func(x *script, a *arguments) { x.filter(a, (*Sim).Hold) },
		"drop": func(x *script, a *arguments) { x.filter(a, (*Sim).Drop) },
		"lose": func(x *script, a *arguments) { x.filter(a, (*Sim).Lose) },
		"release": func(x *script, a *arguments) {
			name := a.word()
			if name == "" {
				name = "*"
			}
			n := 0
			for k, ids := range x.rules {
				if k == name || name == "*" {
					for _, id := range ids {
						x.s.Release(id)
						n++
					}
					delete(x.rules, k)
				}
			}
			if n == 0 {
				bad("nothing is held under the name %s", name)
			}
		},
		"disk":   (*script).disk,
		"damage": func(x *script, a *arguments) { x.s.Damage(x.id(a.word()), zxid(a.str("from", "0:0"))) },
		"run": func(x *script, a *arguments) {
			x.s.Run(number(a.word()))
		},
		"settle": func(x *script, _ *arguments) { x.s.Settle(); x.settled = true },
		"mark":   func(x *script, _ *arguments) { x.mark() },
		"show": func(x *script, a *arguments) {
			x.story.show = a.words()
		},
		"expect": (*script).expect, "keep": (*script).keepTrue,
		"client": (*script).client, "write": (*script).write, "set": (*script).set, "ephemeral": (*script).ephemeral, "delete": (*script).remove,
		"close": func(x *script, a *arguments) {
			x.submit(x.at(a.word()), a.str("as", "close"), kv.Request{Op: kv.OpCloseSession})
		},
		"hang-up": func(x *script, a *arguments) { x.at(a.word()).hangUp() },
		"connect": func(x *script, a *arguments) {
			c := x.at(a.word())
			c.connectTo(x.s.member(x.id(a.str("to", a.word()))))
		},
		"silence":   func(x *script, a *arguments) { x.at(a.word()).stopped = true },
		"sync-read": (*script).syncRead, "read": (*script).read,
		"storm": (*script).storm,
		"test":  (*script).test,
	}
}

func each(do func(*Sim, quorum.MemberID)) func(*script, *arguments) {
	return func(x *script, a *arguments) {
		for _, id := range x.ids(a.words()) {
			do(x.s, id)
		}
	}
}

// ensemble [voters=3] [observers=0] [seed=0] [clients=0] [think=MS] [blank|empty] [tune=(FIELD:N[@sK], ...)] [mutation=NAME]
// begins a new ensemble; whatever ran before must have settled. Its members are down and hold the committed 1:1 to 1:5 of
// epoch 1; blank members have never been anything, empty ones belong to the ensemble and hold nothing. tune sets a
// number of replica.Config, of one member if @sK is behind it.
func (x *script) ensemble(a *arguments) {
	if x.s != nil && !x.settled {
		panic(&unmet{"the ensemble before this one does not end with settle"})
	}
	tune := a.vals("tune")
	opt := Options{
		Members: a.num("voters", 3), Observers: a.num("observers", 0), Clients: a.num("clients", 0), ThinkMs: a.num("think", 0),
		Seed: uint64(a.num("seed", 0)), Fresh: a.flag("blank"),
	}
	if x.sweep != nil {
		opt.Seed += x.sweep.seed
	}
	name := a.str("mutation", "")
	if x.mutation != "" {
		name = x.mutation
	}
	var rm replica.Mutations
	if name != "" && !setField(&opt.ZabMutations, name) && !setField(&opt.ElectionMutations, name) && !setField(&rm, name) && !setField(&opt.ShellMutations, name) {
		bad("no mutation %s", name)
	}
	if name == "RecencyByZxidOnly" {
		opt.ElectionMutations.VotesByZxidOnly = true // one mistake in two places
	}
	opt.Tune = func(id quorum.MemberID, c *replica.Config) {
		c.Mutations = rm
		c.Preparer.Mutations.IgnoreInFlight = rm.WriteAfterClose // the preparer would notice
		for _, v := range tune {
			x.tune(v, id, c)
		}
	}
	var old []string
	if x.s != nil {
		old = x.story.show
	}
	x.s = NewScript(opt)
	x.settled = false
	x.ops, x.clients, x.syncs, x.rules = map[string]*Op{}, map[string]*Client{}, map[string]string{}, map[string][]int{}
	x.story = story{show: old}
	if !opt.Fresh && !a.flag("empty") {
		for _, m := range x.s.members {
			x.s.Given(Disk{Accepted: 1, Current: 1, Log: []Span{{1, 5}}}, m.ID)
		}
		x.s.GivenCommitted(1, kv.MakeZxid(1, 5))
	}
	x.mark()
	x.s.onMessage = func(m *Message) {
		a := arrival{m.From, m.To, m.Kind, "", zxidOf(m.Zab)}
		x.arrived = append(x.arrived, a)
		x.story.message(m, a)
	}
}

func (x *script) tune(v string, id quorum.MemberID, c *replica.Config) {
	v, only, has := strings.Cut(v, "@")
	if has && strings.TrimPrefix(only, "s") != strconv.Itoa(int(id)) {
		return
	}
	name, n, _ := strings.Cut(v, ":")
	f := reflect.ValueOf(c).Elem().FieldByName(name)
	switch {
	case !f.IsValid():
		bad("no setting %s", name)
	case f.CanInt():
		f.SetInt(int64(number(n)))
	case f.CanUint():
		f.SetUint(uint64(number(n)))
	default:
		bad("%s is no number", name)
	}
}

func setField(p any, name string) bool {
	f := reflect.ValueOf(p).Elem().FieldByName(name)
	if f.IsValid() {
		f.SetBool(true)
	}
	return f.IsValid()
}

func (x *script) mark() {
	x.arrived, x.lives = nil, nil
	for _, m := range x.s.members {
		x.lives = append(x.lives, m.life)
	}
	x.epochs = len(x.s.ghost.epochs)
	x.events = map[string]int{}
	for k, n := range x.s.happened {
		x.events[k] = n
	}
}

// given sK ... log=(E:LAST, ...) [accepted=E] [current=E] [base=Z] [unknown] sets what members that are down hold: in each
// named epoch the entries 1 to LAST.
func (x *script) given(a *arguments) {
	d := Disk{}
	for _, v := range a.vals("log") {
		z := zxid(v)
		d.Log = append(d.Log, Span{z.Epoch(), z.Counter()})
	}
	if n := len(d.Log); n > 0 {
		d.Current = d.Log[n-1].Epoch
	}
	d.Current = kv.Epoch(a.num("current", int(d.Current)))
	d.Accepted = kv.Epoch(a.num("accepted", int(d.Current)))
	if v := a.str("base", ""); v != "" {
		d.Base = zxid(v)
	}
	unknown := a.flag("unknown")
	ids := x.ids(a.words())
	x.s.Given(d, ids...)
	for _, id := range ids {
		m, g := x.s.member(id), &x.s.ghost
		m.disk.unknown, m.suspect = unknown, unknown
		g.of(m).match = g.matching(&m.disk.content, 0, nil)
		if unknown {
			x.s.ghost.lossy = true
		}
	}
}

// committed Z on=sK says that what sK holds up to Z was committed before the scenario began, and nothing else.
func (x *script) committed(a *arguments) {
	x.s.ghost.reset()
	if z := zxid(a.word()); z != 0 {
		x.s.GivenCommitted(x.id(a.str("on", "s1")), z)
	}
}

// begun epoch=E by=sK last=Z says that sK was established in E, with a history that ended with Z, before the scenario began.
func (x *script) begun(a *arguments) {
	e, z := kv.Epoch(a.num("epoch", 0)), zxid(a.str("last", "0:0"))
	x.s.ghost.est[e] = established{by: x.id(a.str("by", "s1")), last: z, chain: x.s.ghost.chains[z]}
	x.s.ghost.epochs = append(x.s.ghost.epochs, e)
	x.epochs = len(x.s.ghost.epochs)
}

// start sK ...|all [refused=TEXT]
func (x *script) start(a *arguments) {
	refused := a.str("refused", "")
	for _, id := range x.ids(a.words()) {
		switch err := x.s.TryStart(id); {
		case err != nil && (refused == "" || !strings.Contains(err.Error(), refused)):
			panic(&unmet{fmt.Sprintf("s%d refuses to start: %v", id, err)})
		case err == nil && refused != "":
			panic(&unmet{fmt.Sprintf("s%d is not refused", id)})
		}
	}
}

// crash sK ...|all [keep=N]: unfinished writes are lost, but for the first N.
func (x *script) crash(a *arguments) {
	n := a.num("keep", 0)
	for _, id := range x.ids(a.words()) {
		x.s.CrashLosing(id, n)
	}
}

// wipe sK ... [identity=kept]
func (x *script) wipe(a *arguments) {
	kept := a.str("identity", "") == "kept"
	for _, id := range x.ids(a.words()) {
		x.s.Wipe(id, kept)
	}
}

var pointNames = []string{BeforeSend: "before-send", AfterSend: "after-send", BeforePersist: "before-persist", AfterPersist: "after-persist"}

func pointOf(v string) Point {
	i := slices.Index(pointNames, v)
	if i < 0 {
		bad("no crash point %q", v)
	}
	return Point(i)
}

// crash-at sK POINT [KIND] [n=1]: sK ends at the n-th time it comes to that point (of a message of that kind).
func (x *script) crashAt(a *arguments) {
	id, at, kind, n := x.id(a.word()), pointOf(a.word()), a.word(), a.num("n", 1)
	x.s.CrashAt(id, func(p Point, m *Message) bool {
		if p != at || kind != "" && (m == nil || m.Kind != kind) {
			return false
		}
		n--
		return n <= 0
	})
}

// pair reads s1-s2 or s1->s2.
func (x *script) pair(v string) (a, b quorum.MemberID) {
	p, q, ok := strings.Cut(strings.Replace(v, "->", "-", 1), "-")
	if !ok {
		bad("%q are not two members", v)
	}
	return x.id(p), x.id(q)
}

// cut s1->s2 ... | s1-s2 ...
func (x *script) cut(a *arguments) {
	for _, v := range a.words() {
		p, q := x.pair(v)
		x.s.Cut(p, q)
		if !isDirection(v) {
			x.s.Cut(q, p)
		}
	}
}

// heal [s1-s2 ...]
func (x *script) heal(a *arguments) {
	vs := a.words()
	if len(vs) == 0 {
		x.s.Heal()
	}
	for _, v := range vs {
		p, q := x.pair(v)
		x.s.HealPair(p, q)
	}
}

// filter reads KIND ... [s1->s2 ...] [n=N] [as=NAME]: messages of these kinds in these directions, the first N of them; without
// a kind all on links, without a direction everywhere. The rule is released by its name, without one by its first
// kind, or *.
func (x *script) filter(a *arguments, make func(*Sim, func(*Message) bool) int) {
	n := a.num("n", 1<<30)
	name := a.str("as", "")
	var kinds []string
	var dirs [][2]quorum.MemberID
	for _, w := range a.words() {
		if isDirection(w) {
			from, to := x.direction(w)
			dirs = append(dirs, [2]quorum.MemberID{from, to})
			continue
		}
		if name == "" {
			name = w
		}
		kinds = append(kinds, w)
	}
	id := make(x.s, func(m *Message) bool {
		if kinds == nil && m.Zab == nil && m.files == nil || kinds != nil && !slices.Contains(kinds, m.Kind) {
			return false
		}
		if dirs != nil && !slices.ContainsFunc(dirs, func(d [2]quorum.MemberID) bool {
			return (d[0] == 0 || d[0] == m.From) && (d[1] == 0 || d[1] == m.To)
		}) {
			return false
		}
		n--
		return n >= 0
	})
	x.rules[name] = append(x.rules[name], id)
}

// disk sK ... hang|fail|full|low|ok
func (x *script) disk(a *arguments) {
	ws := a.words()
	if len(ws) < 2 {
		bad("disk MEMBER ... MODE")
	}
	do := map[string]func(*Sim, quorum.MemberID){"hang": (*Sim).DiskHang, "fail": (*Sim).DiskFail, "full": (*Sim).DiskFull, "low": (*Sim).DiskLow, "ok": (*Sim).DiskOK}[ws[len(ws)-1]]
	if do == nil {
		bad("no mode %s", ws[len(ws)-1])
	}
	for _, id := range x.ids(ws[:len(ws)-1]) {
		do(x.s, id)
	}
}

// client NAME at=sK [timeout=MS]: a client with a session of its own, which is kept alive until silence.
func (x *script) client(a *arguments) {
	name := a.word()
	c := &Client{sim: x.s, ID: len(x.s.clients) + 1, timeoutMs: int32(a.num("timeout", sessionMs)), quiet: true}
	x.clients[name] = c
	x.s.clients = append(x.s.clients, c)
	m := x.s.member(x.id(a.str("at", "s1")))
	if !m.Up || !m.serving.Open {
		bad("s%d does not serve", m.ID)
	}
	c.connectTo(m)
	x.s.after(20, nil, "client", c.keepAlive)
	if !a.flag("opening") && !x.s.Until(100, func() bool { return c.state == ready }) {
		panic(&unmet{"no session"})
	}
}

// write WHERE NAME ...: a client of its own on member WHERE, or the client of that name, creates /NAME.
func (x *script) write(a *arguments) {
	c := x.at(a.word())
	for _, n := range a.words() {
		for _, name := range span(n) {
			x.submit(c, name, kv.Request{Op: kv.OpCreate, Path: "/" + name, Data: []byte(name), ACL: kv.OpenACL()})
		}
	}
}

// span reads a1..a9.
func span(v string) (out []string) {
	from, to, ok := strings.Cut(v, "..")
	if !ok {
		return []string{v}
	}
	stem := strings.TrimRight(from, "0123456789")
	for i := number(from[len(stem):]); i <= number(strings.TrimPrefix(to, stem)); i++ {
		out = append(out, stem+strconv.Itoa(i))
	}
	return out
}

func spans(vs []string) (out []string) {
	for _, v := range vs {
		out = append(out, span(v)...)
	}
	return out
}

// set WHERE NAME as=OP [data=TEXT]
func (x *script) set(a *arguments) {
	c, name := x.at(a.word()), a.word()
	x.submit(c, a.str("as", name), kv.Request{Op: kv.OpSetData, Path: "/" + name, Data: []byte(a.str("data", "set")), Version: -1})
}

// delete WHERE NAME as=OP
func (x *script) remove(a *arguments) {
	c, name := x.at(a.word()), a.word()
	x.submit(c, a.str("as", name), kv.Request{Op: kv.OpDelete, Path: "/" + name, Version: -1})
}

// ephemeral WHERE NAME ...
func (x *script) ephemeral(a *arguments) {
	c := x.at(a.word())
	for _, name := range spans(a.words()) {
		x.submit(c, name, kv.Request{Op: kv.OpCreate, Path: "/" + name, ACL: kv.OpenACL(), Flags: kv.FlagEphemeral})
	}
}

// sync-read WHERE NAME [as=NAME]: sync, then a read of /NAME. Its outcome is found, missing or refused.
func (x *script) syncRead(a *arguments) {
	c, name := x.at(a.word()), a.word()
	as := a.str("as", name)
	x.syncs[as] = "waiting"
	x.story.syncs = append(x.story.syncs, as)
	if c.member == nil {
		x.syncs[as] = "refused"
		return
	}
	m := c.member
	c.syncRead(func(v *kv.View, ok bool) {
		x.syncs[as] = "refused"
		if ok {
			x.syncs[as] = "missing"
			if _, err := v.Exists("/" + name); err == nil {
				x.syncs[as] = "found"
			}
		}
	})
	m.run()
}

// read WHERE NAME found|missing: an ordinary read, at once, checked by C2.
func (x *script) read(a *arguments) {
	c, name, want := x.at(a.word()), a.word(), a.word()
	if c.member == nil || !c.member.ready() {
		panic(&unmet{"the member does not serve reads"})
	}
	c.read()
	_, err := c.member.tree.View().Exists("/" + name)
	if got := map[bool]string{true: "found", false: "missing"}[err == nil]; got != want {
		panic(&unmet{fmt.Sprintf("/%s is %s", name, got)})
	}
}

// storm writes=N [every=TICKS]: N writes of the ensemble's own clients, while random members crash and start.
func (x *script) storm(a *arguments) {
	s, n, every := x.s, a.num("writes", 200), a.num("every", 10)
	for done, began := s.done, s.now; s.done < done+n && s.failure == nil; {
		if s.now-began > 300_000 {
			panic(&unmet{fmt.Sprintf("%d operations are over after five minutes", s.done-done)})
		}
		for _, m := range s.members {
			switch s.rng.IntN(4) {
			case 0:
				s.Crash(m.ID)
			case 1, 2:
				s.Start(m.ID)
			}
		}
		s.Run(s.rng.IntN(2*every) + 1)
	}
}

var testFunc = `(?m)^func %s\(\w+ \*testing\.[TF]\)`

// test ./PACKAGE NAME: what the simulator cannot show is shown by that test, which must exist.
func (x *script) test(a *arguments) {
	pkg, name := a.word(), a.word()
	files, err := filepath.Glob(filepath.Join("../..", pkg, "*_test.go"))
	if err != nil {
		bad("%v", err)
	}
	re := regexp.MustCompile(fmt.Sprintf(testFunc, regexp.QuoteMeta(name)))
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil && re.Match(text) {
			x.outside = true
			return
		}
	}
	panic(&unmet{fmt.Sprintf("%s has no test %s", pkg, name)})
}

// sweep repeats the lines below it, from a new ensemble each time, and crashes a member at every point of its work in turn:
//
//	sweep sK [points=(before-send, after-send, before-persist, after-persist)]
//	ensemble ...
//	swept run=100 [or=open]        here and for that many ticks at most the crash happens
//	...
//	settle
//
// or with every one of some seeds:
//
//	sweep seeds=20
type sweep struct {
	id      quorum.MemberID
	at      Point
	n       int
	seed    uint64
	crashed bool
	armed   bool
}

func (x *script) runSweep(head string, body []string) (out string, err error) {
	defer func() {
		x.sweep = nil
		switch e := recover().(type) {
		case nil:
		case *wrong:
			err = e
		default:
			panic(e)
		}
	}()
	_, args, err := datadriven.ParseLine(head)
	if err != nil {
		return "", err
	}
	a := &arguments{all: args, used: make([]bool, len(args))}
	if n := a.num("seeds", 0); n > 0 {
		for i := range n {
			x.sweep = &sweep{seed: uint64(i)}
			if err := x.lines(body); err != nil {
				return "", fmt.Errorf("seed %d: %w", i, err)
			}
			if !x.settled {
				return "", &unmet{"does not end with settle"}
			}
		}
		return fmt.Sprintf("%d seeds\n", n), nil
	}
	member := a.word()
	points := a.vals("points")
	if points == nil {
		points = pointNames
	}
	a.done()
	for _, p := range points {
		for n := 0; ; n++ {
			x.sweep = &sweep{at: pointOf(p), n: n}
			x.sweep.id = quorum.MemberID(number(strings.TrimPrefix(member, "s")))
			err := x.lines(body)
			switch {
			case err != nil:
				return "", fmt.Errorf("crash %d %s: %w", n+1, p, err)
			case !x.settled:
				return "", &unmet{"does not end with settle"}
			case !x.sweep.armed:
				return "", &wrong{"nothing is swept"}
			case n == 0 && !x.sweep.crashed:
				return "", &unmet{"never comes to " + p}
			case n > 200:
				return "", errors.New("more than 200 crash points")
			}
			if !x.sweep.crashed {
				out += fmt.Sprintf("s%d crashed %s: %s\n", x.sweep.id, p, times(n))
				break
			}
		}
	}
	return out, nil
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// swept run=TICKS: the member of the sweep ends at its next chance; the lines before have set the scene. It returns when it
// has, when everybody serves, or when the time is over.
func (x *script) swept(a *arguments) {
	w, s := x.sweep, x.s
	if w == nil {
		bad("only in a sweep")
	}
	m, n := s.member(w.id), w.n
	w.armed = true
	s.CrashAt(w.id, func(p Point, _ *Message) bool {
		if p != w.at {
			return false
		}
		n--
		return n < 0
	})
	life := m.life
	s.Until(a.num("run", 100), func() bool { return !m.Up || m.life != life || s.recovered() || m.serving.Open })
	w.crashed = !m.Up
	m.crashAt = nil
}

func zxidOf(m zab.Message) kv.Zxid {
	switch z := m.(type) {
	case *zab.AckEpoch:
		return z.Last
	case *zab.Diff:
		return z.After
	case *zab.Trunc:
		return z.To
	case *zab.Snap:
		return z.Zxid
	case *zab.Proposal:
		if n := len(z.Entries); n > 0 {
			return z.Entries[n-1].Zxid
		}
	case *zab.Inform:
		if n := len(z.Entries); n > 0 {
			return z.Entries[n-1].Zxid
		}
	case *zab.NewLeader:
		return z.Last
	case *zab.AckNewLeader:
		return z.Last
	case *zab.UpToDate:
		return z.Commit
	case *zab.Ack:
		return z.Zxid
	case *zab.Commit:
		return z.Zxid
	}
	return 0
}
