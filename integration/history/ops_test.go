package history

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"kvd/kv"
)

// store is a correct group under concurrent clients: every operation takes effect at one point between its call and its
// return.
type store struct {
	rng  *rand.Rand
	s    state
	at   [MaxKeys]kv.Zxid
	zxid kv.Zxid
	ops  []Op
	keys int
	free []int64 // per client: when it may call next
}

// synthetic makes n operations of several clients, with conditions that fail and outcomes that stay unknown.
func synthetic(seed uint64, n, unknown int) *store {
	st := &store{rng: rand.New(rand.NewPCG(seed, 0)), keys: 1 + 2*int(seed%2), zxid: 1 << 32, free: make([]int64, 6)}
	for i := range n {
		st.operate(uint64(i+1), int64(i+1)*100, unknown > 0 && i%(n/unknown+1) == n/unknown)
	}
	return st
}

// operate takes effect at time at.
func (st *store) operate(value uint64, at int64, unknown bool) {
	client := st.rng.IntN(len(st.free))
	for st.free[client] >= at {
		client = (client + 1) % len(st.free)
	}
	o := Op{Group: 7, Session: uint32(client), Kind: Write, Outcome: OK, Expected: AnyVersion, Value: value}
	o.Invoke = max(st.free[client]+1, at-st.rng.Int64N(400))
	o.Return = at + 1 + st.rng.Int64N(400)
	if client == len(st.free)-1 { // one client is always free
		o.Return = at + 1
	}
	st.free[client] = o.Return
	first := st.rng.IntN(st.keys)
	o.Mask = 1 << first
	if st.rng.IntN(2) == 0 {
		o.Kind, o.Value, o.Versions[first], o.Mzxid, o.Zxid = SyncRead, st.s.value[first], st.s.version[first], st.at[first], st.zxid
		st.ops = append(st.ops, o)
		return
	}
	if st.keys > 1 && st.rng.IntN(2) == 0 {
		o.Mask |= 0b100
	}
	if st.rng.IntN(3) == 0 {
		o.Expected = st.s.version[o.First()] - st.rng.Int32N(2)
	}
	if applies := o.Expected == AnyVersion || o.Expected == st.s.version[o.First()]; !applies {
		o.Outcome, o.Mismatch = Failed, true
		if o.Expected < 0 {
			o.Expected = 1 << 20
		}
	} else if !unknown || st.rng.IntN(2) == 0 {
		st.zxid++
		for i := range MaxKeys {
			if o.Has(i) {
				st.s.value[i] = value
				st.s.version[i]++
				st.at[i], o.Versions[i] = st.zxid, st.s.version[i]
			}
		}
		o.Mzxid, o.Zxid = st.zxid, st.zxid
	}
	if unknown {
		o.Outcome, o.Mismatch, o.Versions, o.Mzxid, o.Zxid = Unknown, false, [MaxKeys]int32{}, 0, 0
	}
	st.ops = append(st.ops, o)
}

func (st *store) final() map[Key]Final {
	final := map[Key]Final{}
	for i := range st.keys {
		final[Key{7, i}] = Final{Value: st.s.value[i], Version: st.s.version[i], Mzxid: st.at[i]}
	}
	return final
}

// What a correct store answers passes both checks, with several clients, failed conditions and unknown outcomes, up to the
// size at which a group is retired.
func TestCorrectHistoriesPass(t *testing.T) {
	for seed := range uint64(40) {
		st := synthetic(seed, retireOps, retireUnknown)
		if errs := Ordered(st.ops, st.final()); len(errs) > 0 {
			t.Fatalf("seed %d: order: %v", seed, errs)
		}
		if v := Linearizable(st.ops, time.Minute); !v.OK() || v.Groups != 1 || v.Ops != retireOps {
			t.Fatalf("seed %d: %v", seed, v)
		}
	}
}

// pick returns a random operation that suits.
func pick(t *testing.T, st *store, suits func(i int) bool) int {
	t.Helper()
	var all []int
	for i := range st.ops {
		if suits(i) {
			all = append(all, i)
		}
	}
	if len(all) == 0 {
		t.Fatal("no operation suits: the history is too short")
	}
	return all[st.rng.IntN(len(all))]
}

// TestPlantedMistakes spoils correct histories in every way that a broken store could; each is found, and by the
// checker that it is for.
func TestPlantedMistakes(t *testing.T) {
	// acked returns the newest acknowledged write of key k that returned before op i was called.
	acked := func(st *store, i, k int) int {
		best := -1
		for j, o := range st.ops {
			if o.Kind == Write && o.Outcome == OK && o.Has(k) && o.Return < st.ops[i].Invoke && (best < 0 || o.Versions[k] > st.ops[best].Versions[k]) {
				best = j
			}
		}
		return best
	}
	read := func(st *store) func(int) bool {
		return func(i int) bool {
			o := &st.ops[i]
			return o.Kind == SyncRead && o.Value != 0 && acked(st, i, o.First()) >= 0
		}
	}
	cases := []struct {
		name   string
		spoil  func(t *testing.T, st *store)
		order  string // what Ordered says; empty: not its business
		linear bool   // whether porcupine must find it
	}{
		{"stale read behind a sync", func(t *testing.T, st *store) {
			i := pick(t, st, read(st))
			o := &st.ops[i]
			k := o.First()
			w := st.ops[acked(st, i, k)]
			// What the key held before that write.
			old, found := Op{}, false
			for _, p := range st.ops {
				if p.Kind == Write && p.Outcome == OK && p.Has(k) && p.Versions[k] < w.Versions[k] && p.Versions[k] > old.Versions[k] {
					old, found = p, true
				}
			}
			o.Value, o.Versions[k], o.Mzxid = 0, 0, 0
			if found {
				o.Value, o.Versions[k], o.Mzxid = old.Value, old.Versions[k], old.Mzxid
			}
		}, "STALE", true},
		{"the server lagged behind the sync", func(t *testing.T, st *store) {
			i := pick(t, st, read(st))
			st.ops[i].Zxid = st.ops[acked(st, i, st.ops[i].First())].Mzxid - 1
		}, "STALE", false},
		{"lost write", func(t *testing.T, st *store) {
			// The last acknowledged write was undone: nobody sees it, the final tree neither.
			final := 0
			for i, o := range st.ops {
				if o.Kind == Write && o.Outcome == OK && (st.ops[final].Kind != Write || o.Mzxid > st.ops[final].Mzxid) {
					final = i
				}
			}
			w := st.ops[final]
			for k := range st.keys {
				if w.Has(k) {
					st.s.version[k] = w.Versions[k] - 1
				}
			}
			st.ops = slices.DeleteFunc(st.ops, func(o Op) bool { return o.Kind == SyncRead && o.Value == w.Value })
			st.zxid += 100
			for k := range st.keys { // a read at the end
				o := Op{Group: 7, Session: 99, Kind: SyncRead, Outcome: OK, Mask: 1 << k, Invoke: 1 << 40, Return: 1<<40 + 1, Zxid: st.zxid}
				best := Op{}
				for _, p := range st.ops {
					if p.Kind == Write && p.Outcome == OK && p.Has(k) && p.Value != w.Value && p.Versions[k] > best.Versions[k] {
						best = p
					}
				}
				o.Value, o.Versions[k], o.Mzxid = best.Value, best.Versions[k], best.Mzxid
				st.s.value[k], st.s.version[k], st.at[k] = best.Value, best.Versions[k], best.Mzxid
				st.ops = append(st.ops, o)
			}
		}, "LOST", true},
		{"lost group", func(_ *testing.T, st *store) { st.keys = 0 }, "LOST", false},
		{"refused write is seen", func(t *testing.T, st *store) {
			i := pick(t, st, read(st))
			w := slices.IndexFunc(st.ops, func(o Op) bool { return o.Value == st.ops[i].Value && o.Kind == Write })
			st.ops[w].Outcome, st.ops[w].Mismatch = Failed, false
		}, "refused", true},
		{"applied twice", func(t *testing.T, st *store) {
			i := pick(t, st, func(i int) bool { return st.ops[i].Kind == Write && st.ops[i].Outcome == OK })
			k := st.ops[i].First()
			for j := range st.ops {
				if o := &st.ops[j]; o.Has(k) && o.Outcome == OK && o.Versions[k] > st.ops[i].Versions[k] {
					o.Versions[k]++
				}
			}
			for j := range st.ops { // unknown writes could explain it
				if st.ops[j].Outcome == Unknown {
					st.ops[j].Outcome = Failed
				}
			}
			st.s.version[k]++
		}, "acknowledged or unknown", true},
		{"a condition that held was refused", func(_ *testing.T, st *store) {
			*st = *synthetic(st.rng.Uint64(), 200, 0) // an unknown write could explain it
			st.ops = append(st.ops, Op{
				Group: 7, Session: 99, Kind: Write, Outcome: Failed, Mismatch: true, Mask: 1, Expected: st.s.version[0], Value: 1 << 40,
				Invoke: 1 << 41, Return: 1<<41 + 1,
			})
		}, "", true},
		{"zxid against real time", func(t *testing.T, st *store) {
			i := pick(t, st, func(i int) bool {
				o := &st.ops[i]
				return o.Kind == Write && o.Outcome == OK && acked(st, i, o.First()) >= 0
			})
			st.ops[i].Mzxid = 1<<32 - 1
		}, "although", false},
		{"session goes back", func(t *testing.T, st *store) {
			i := pick(t, st, func(i int) bool {
				return slices.ContainsFunc(st.ops[:i], func(o Op) bool { return o.Session == st.ops[i].Session && o.Zxid > 1<<32+1 }) && st.ops[i].Zxid != 0
			})
			st.ops[i].Zxid = 1
		}, "went back", false},
		{"one zxid for two writes", func(t *testing.T, st *store) {
			i := pick(t, st, func(i int) bool { return st.ops[i].Kind == Write && st.ops[i].Outcome == OK })
			j := pick(t, st, func(j int) bool { return st.ops[j].Kind == Write && st.ops[j].Outcome == OK && j != i })
			st.ops[i].Mzxid = st.ops[j].Mzxid
		}, "two writes", false},
		{"half of a transaction", func(t *testing.T, st *store) {
			i := pick(t, st, func(i int) bool {
				o := &st.ops[i]
				return o.Kind == SyncRead && o.Value != 0 && slices.ContainsFunc(st.ops, func(w Op) bool { return w.Kind == Write && w.Value == o.Value && w.Outcome == OK })
			})
			w := slices.IndexFunc(st.ops, func(w Op) bool { return w.Kind == Write && w.Value == st.ops[i].Value })
			st.ops[w].Mask &^= st.ops[i].Mask
		}, "never written", true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(10) {
				st := synthetic(seed, 200, 4)
				c.spoil(t, st)
				text := fmt.Sprint(Ordered(st.ops, st.final()))
				if !strings.Contains(text, c.order) || c.order == "" && text != "[]" {
					t.Errorf("seed %d: order check says %.500s, want %q", seed, text, c.order)
				}
				if v := Linearizable(st.ops, time.Minute); c.linear && len(v.Illegal) != 1 {
					t.Errorf("seed %d: porcupine says %v", seed, v)
				}
			}
		})
	}
}

// A history that cannot be decided in its time is a failure, not a pass.
func TestUndecidedIsAFailure(t *testing.T) {
	var ops []Op
	for i := range 26 { // all at once, and nothing fits the read in the end: every order is tried
		ops = append(ops, Op{Group: 1, Kind: Write, Outcome: Unknown, Mask: 1, Expected: AnyVersion, Value: uint64(i + 1), Invoke: 1})
	}
	ops = append(ops, Op{Group: 1, Kind: SyncRead, Outcome: OK, Mask: 1, Value: 99, Versions: [MaxKeys]int32{13}, Invoke: 5, Return: 6})
	v := Linearizable(ops, 50*time.Millisecond)
	if v.OK() || len(v.Unknown) != 1 {
		t.Errorf("got %v", v)
	}
}

func TestExclusive(t *testing.T) {
	good := []Hold{
		{Lock: 1, Session: 1, Token: 10, Asked: 100, Granted: 110, Confirmed: 15, GivenUp: 200, Gone: 20, Contact: 200, Timeout: 50},
		{Lock: 1, Session: 2, Token: 21, Asked: 150, Granted: 210, Confirmed: 22, Contact: 220, Timeout: 50},
		{Lock: 1, Session: 3, Token: 30, Asked: 260, Granted: 280, GivenUp: 290, Contact: 280, Timeout: 50},
		{Lock: 1, Session: 1, Token: 40, Asked: 285, Granted: 300, GivenUp: 310, Gone: 41, Contact: 310, Timeout: 50},
		{Lock: 2, Session: 9, Token: 12, Asked: 100, Granted: 120, Contact: 120, Timeout: 50},
	}
	if errs := Exclusive(good); errs != nil {
		t.Fatal(errs)
	}
	cases := []struct {
		name  string
		spoil func(h []Hold)
		want  string
	}{
		{"confirmed behind the next holder's token", func(h []Hold) { h[0].Confirmed = 21 }, "got it at"},
		{"released behind the next grant", func(h []Hold) { h[0].Gone = 25 }, "had got it"},
		{"granted before it was given up", func(h []Hold) { h[1].Granted = 190 }, "before session"},
		{"expired early", func(h []Hold) { h[1].Contact = 240 }, "expired early"},
		{"one token twice", func(h []Hold) { h[1].Token = 10 }, "was given to sessions"},
		{"token against real time", func(h []Hold) { h[2].Asked = 305 }, "was asked for after"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h := slices.Clone(good)
			c.spoil(h)
			if got := fmt.Sprint(Exclusive(h)); !strings.Contains(got, c.want) {
				t.Errorf("got %s, want %q", got, c.want)
			}
		})
	}
}
