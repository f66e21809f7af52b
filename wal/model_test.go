package wal

import (
	"fmt"
	"math/rand/v2"

	"kvd/kv"
)

// model is what a log should hold after each write of a workload. It knows nothing of groups, keys or batches.
type model struct {
	h        *history
	accepted kv.Epoch
	current  kv.Epoch
	base     kv.Zxid
	logStart kv.Zxid
	trusted  bool
	member   uint64
	points   int
}

func (m *model) clone() *model {
	c := *m
	c.h = m.h.clone()
	return &c
}

func (m *model) chainAt(z kv.Zxid) uint64 {
	for _, e := range m.h.all {
		if e.Zxid == z {
			return e.Chain
		}
	}
	return kv.ChainSeed()
}

// workload draws legal writes. states[k] is the model after write number k (1-based); states[0] is blank.
type workload struct {
	rng    *rand.Rand
	scale  int // payload sizes are multiplied by it
	states []*model
}

func newWorkload(seed uint64) *workload {
	return &workload{
		scale:  1,
		rng:    rand.New(rand.NewPCG(seed, 17)),
		states: []*model{{h: newHistory()}},
	}
}

func (w *workload) next() Write {
	m := w.states[len(w.states)-1].clone()
	wr := w.draw(m)
	w.states = append(w.states, m)
	return wr
}

func (w *workload) draw(m *model) Write {
	switch {
	case m.member == 0:
		id := testIdentity
		m.member, m.trusted = id.Member, true
		return Write{Identity: &id, Trusted: true}
	case m.accepted == 0:
		m.accepted = 1
		return Write{Accepted: &Promise{Epoch: 1, To: 5}}
	}
	size := func() int { return 8 + w.rng.IntN(300*w.scale) }
	switch p := w.rng.IntN(100); {
	case p < 60:
		return Write{Append: m.h.next(m.accepted, 1+w.rng.IntN(12), size())}
	case p < 66: // an entry that is larger than a group
		return Write{Append: m.h.next(m.accepted, 1, 3000)}
	case p < 76:
		m.accepted += kv.Epoch(1 + w.rng.IntN(3))
		return Write{Accepted: &Promise{Epoch: m.accepted, To: uint64(w.rng.IntN(1000))}}
	case p < 86: // sync by TRUNC: drop a tail, adopt the leader's history and its epoch in one write
		z := m.base
		if w.rng.IntN(3) > 0 { // else to the base, which may be the log start
			for _, e := range m.h.all {
				if e.Zxid > m.base && w.rng.IntN(3) > 0 {
					z = e.Zxid
				}
			}
		}
		m.h.truncate(z)
		m.current = m.accepted
		return Write{Truncate: &z, Append: m.h.next(m.accepted, w.rng.IntN(20), size()), Current: m.current, Trusted: true}
	case p < 96: // own snapshot
		if len(m.h.all) == 0 {
			return Write{Current: m.setCurrent()}
		}
		var at kv.Zxid
		for _, e := range m.h.all {
			if e.Zxid >= m.base && (at == 0 || w.rng.IntN(4) > 0) {
				at = e.Zxid
			}
		}
		if at == 0 {
			return Write{Current: m.setCurrent()}
		}
		start := m.logStart
		for _, e := range m.h.all {
			if e.Zxid > start && e.Zxid <= at && w.rng.IntN(2) > 0 {
				start = e.Zxid
			}
		}
		if w.rng.IntN(3) == 0 {
			start = at
		}
		m.base, m.logStart, m.points = at, start, 2
		return Write{Snapshot: &SnapshotPoint{Zxid: at, Chain: m.chainAt(at), LogStart: start,
			Points: [][]byte{[]byte("older"), []byte(at.String())}}}
	default: // sync by SNAP: another history, ahead of this one
		m.accepted++
		m.h.next(m.accepted, 5+w.rng.IntN(20), 20) // the snapshot contains them, the log never does
		z, chain := m.h.last, m.h.chain
		m.base, m.logStart, m.current, m.points = z, z, m.accepted, 1
		return Write{Accepted: &Promise{Epoch: m.accepted, To: 1}, Install: &Install{Zxid: z, Chain: chain, Point: []byte(z.String())},
			Append: m.h.next(m.accepted, w.rng.IntN(9), size()), Current: m.current, Trusted: true}
	}
}

func (m *model) setCurrent() kv.Epoch {
	m.current = m.accepted
	return m.current
}

// matches reports how the log differs from the model, nil if it does not.
func (m *model) matches(l *Log) error {
	st := l.State()
	if st.Accepted != m.accepted || st.Current != m.current || st.Base != m.base || st.LogStart != m.logStart ||
		st.Last != m.h.last || st.LastChain != m.h.chain || st.Trusted != m.trusted || st.Member != m.member || len(st.Points) != m.points {
		return fmt.Errorf("state is %+v, want accepted %d current %d base %v logStart %v last %v", st, m.accepted, m.current, m.base, m.logStart, m.h.last)
	}
	if st.BaseChain != m.chainAt(m.base) || st.LogStartChain != m.chainAt(m.logStart) {
		return fmt.Errorf("chain at base or log start is wrong: %+v", st)
	}
	got, err := readAll(l, m.logStart)
	if err != nil {
		return err
	}
	want := m.h.all
	for len(want) > 0 && want[0].Zxid <= m.logStart {
		want = want[1:]
	}
	return equalEntries(got, want)
}

// prefix returns the k in [from, to] whose model equals the log.
func (w *workload) prefix(l *Log, from, to uint64) (uint64, error) {
	var last error
	for k := to; ; k-- {
		if last = w.states[k].matches(l); last == nil {
			return k, nil
		}
		if k <= from {
			st := l.State()
			return 0, fmt.Errorf("the log holds no prefix of the writes %d..%d: %w (state %+v)", from, to, last, st)
		}
	}
}
