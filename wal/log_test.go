package wal

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"kvd/kv"
)

// A blank directory becomes a member, everything written is there after a clean restart, on the real file
// system and in memory.
func TestLogKeepsWhatWasWrittenAcrossRestart(t *testing.T) {
	for _, c := range []struct {
		name string
		dir  string
		fs   vfs.FS
	}{{"os", t.TempDir(), nil}, {"mem", "member", newMemDisk()}} {
		t.Run(c.name, func(t *testing.T) {
			m, r := openMember(t, c.dir, small(c.fs))
			if st := m.log.State(); !r.Blank || !st.Blank() || st.Trusted || st.Last != 0 {
				t.Fatalf("fresh log: %+v, %+v", r, st)
			}
			m.form(1)
			h := newHistory()
			for range 10 {
				m.do(Write{Append: h.next(1, 7, 100)})
			}
			m.do(Write{Accepted: &Promise{Epoch: 3, To: 99}})
			m.do(Write{Append: h.next(3, 50, 30), Current: 3})
			m.mustHold(h)
			before := m.log.State()
			m.close()

			m, r = openMember(t, c.dir, small(c.fs))
			defer m.close()
			if r.Blank || r.Suspect != "" || r.VerifiedThrough != h.last || r.Acked != h.last || r.Entries != int64(len(h.all)) {
				t.Fatalf("report: %v", r)
			}
			st := m.log.State()
			if st.Accepted != 3 || st.PromisedTo != 99 || st.Current != 3 || !st.Trusted || st.ClusterID != testIdentity.ClusterID || st.Member != 2 {
				t.Fatalf("state: %+v", st)
			}
			if st.LastChain != before.LastChain || st.Generation != before.Generation {
				t.Fatalf("state %+v, before %+v", st, before)
			}
			m.mustHold(h)
		})
	}
}

// S29: truncation at every position leaves exactly the entries up to it, across groups and epochs, and what
// is appended in the same write follows.
func TestTruncateRemovesExactlyWhatIsAfter(t *testing.T) {
	full := newHistory()
	full.next(1, 20, 60)
	full.next(4, 20, 60)
	points := []kv.Zxid{0}
	for _, e := range full.all {
		points = append(points, e.Zxid)
	}
	for _, p := range points {
		fs := newMemDisk()
		m, _ := openMember(t, "d", small(fs))
		m.form(9)
		h := newHistory()
		h.next(1, 20, 60)
		h.next(4, 20, 60)
		m.do(Write{Append: h.all})
		gen := m.log.State().Generation
		h.truncate(p)
		m.do(Write{Truncate: &p})
		m.mustHold(h)
		if g := m.log.State().Generation; g != gen+1 {
			t.Fatalf("generation is %d after %d", g, gen)
		}
		m.do(Write{Append: h.next(5, 3, 60)})
		q := h.all[len(h.all)-2].Zxid
		h.truncate(q)
		m.do(Write{Truncate: &q, Append: h.next(9, 30, 60), Current: 9})
		m.mustHold(h)
		m.close()
		m, r := openMember(t, "d", small(fs))
		if r.Suspect != "" {
			t.Fatalf("truncated at %v: %v", p, r)
		}
		m.mustHold(h)
		m.close()
	}
}

// A log start within a group leaves the group whole in the store. A truncation to it takes the rest of the group
// out all the same: nothing comes back at a restart or a power cut, and what is appended then is the history.
func TestTruncateToALogStartWithinAGroup(t *testing.T) {
	for name, at := range map[string]int{"the first of the group": 0, "in its middle": 4, "the last but one": 8} {
		t.Run(name, func(t *testing.T) {
			fs := newMemDisk()
			m, _ := openMember(t, "d", Options{FS: fs})
			m.form(1)
			h := newHistory()
			m.do(Write{Append: h.next(1, 3, 20)})
			entries := h.next(1, 10, 20) // one write, one group
			m.do(Write{Append: entries})
			z, chain := entries[at].Zxid, entries[at].Chain
			m.do(Write{Snapshot: &SnapshotPoint{Zxid: z, Chain: chain, Points: [][]byte{{1}}, LogStart: z}})
			m.mustHold(h)
			m.do(Write{Truncate: &z})
			h.truncate(z)
			m.mustHold(h)

			restart := func(disk vfs.FS) *member {
				t.Helper()
				again, r := openMember(t, "d", Options{FS: disk})
				if r.Damaged || r.Suspect != "" {
					t.Fatal(r)
				}
				again.mustHold(h)
				return again
			}
			restart(crash(fs, 0, nil)).close()
			m.close()
			m = restart(fs)
			m.do(Write{Accepted: &Promise{Epoch: 2, To: 7}, Append: h.next(2, 5, 20), Current: 2})
			m.mustHold(h)
			restart(crash(fs, 0, nil)).close()
			m.close()
			restart(fs).close()
		})
	}
}

// A write that would break the log's invariants kills it and leaves nothing behind.
func TestBrokenPromisesAreRefused(t *testing.T) {
	h := newHistory()
	good := h.next(2, 5, 20)
	later := h.clone().next(2, 2, 20)
	wrongChain := later[0]
	wrongChain.Chain++
	z := func(e kv.Epoch, c uint32) *kv.Zxid { z := kv.MakeZxid(e, c); return &z }
	for name, w := range map[string]Write{
		"hole":                       {Append: later[1:]},
		"wrong chain":                {Append: []kv.Entry{wrongChain}},
		"again":                      {Append: good[4:]},
		"epoch beyond the promise":   {Append: h.clone().next(3, 1, 20)},
		"accepted epoch falls":       {Accepted: &Promise{Epoch: 1}},
		"current beyond accepted":    {Current: 3},
		"current epoch falls":        {Current: 1},
		"truncate beyond the end":    {Truncate: z(2, 6)},
		"truncate to a non-entry":    {Truncate: z(1, 1)},
		"snapshot beyond the end":    {Snapshot: &SnapshotPoint{Zxid: *z(2, 6)}},
		"snapshot with wrong chain":  {Snapshot: &SnapshotPoint{Zxid: *z(2, 3), Chain: 1}},
		"log start after snapshot":   {Snapshot: &SnapshotPoint{Zxid: *z(2, 3), Chain: good[2].Chain, LogStart: *z(2, 4)}},
		"other identity":             {Identity: &Identity{Member: 9}},
		"install beyond the promise": {Install: &Install{Zxid: *z(3, 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			fs := newMemDisk()
			m, _ := openMember(t, "d", small(fs))
			m.form(2)
			m.do(Write{Append: good})
			if err := m.wait(m.submit(w)); !errors.Is(err, ErrBroken) || !errors.Is(err, ErrDead) {
				t.Fatalf("got %v", err)
			}
			if err := m.wait(m.submit(Write{Append: later})); err == nil {
				t.Fatal("a write succeeded after the failure")
			}
			if err := m.log.Close(); !errors.Is(err, ErrBroken) {
				t.Fatalf("close: %v", err)
			}
			m, r := openMember(t, "d", small(fs))
			defer m.close()
			if r.Suspect != "" || r.VerifiedThrough != good[4].Zxid {
				t.Fatalf("after reopen: %v", r)
			}
			m.do(Write{Append: later})
		})
	}
}

// Locate agrees with a search of the history at every zxid around every entry.
func TestLocateFindsTheGreatestPointAtOrBefore(t *testing.T) {
	m, _ := openMember(t, "d", small(newMemDisk()))
	defer m.close()
	m.form(8)
	h := newHistory()
	m.do(Write{Append: h.next(1, 30, 40)})
	m.do(Write{Append: h.next(5, 30, 40)})
	start := h.all[10]
	check := func() {
		t.Helper()
		st := m.log.State()
		for _, e := range h.all {
			for _, z := range []kv.Zxid{e.Zxid - 1, e.Zxid, e.Zxid + 1, e.Zxid + 1000} {
				wantAt, wantChain, wantOK := st.LogStart, st.LogStartChain, z >= st.LogStart
				for _, x := range h.all {
					if x.Zxid <= z && x.Zxid > st.LogStart {
						wantAt, wantChain = x.Zxid, x.Chain
					}
				}
				at, chain, ok := m.log.Locate(z)
				if ok != wantOK || ok && (at != wantAt || chain != wantChain) {
					t.Fatalf("Locate(%v) = %v %x %v, want %v %x %v", z, at, chain, ok, wantAt, wantChain, wantOK)
				}
			}
		}
	}
	check()
	m.do(Write{Snapshot: &SnapshotPoint{Zxid: h.all[40].Zxid, Chain: h.all[40].Chain, LogStart: start.Zxid}})
	check()
	if st := m.log.State(); st.LogStartChain != start.Chain || st.Base != h.all[40].Zxid {
		t.Fatalf("state %+v", st)
	}
}

// Read returns every suffix, whatever the position inside a group, and tells compacted from unknown.
func TestReadFromEveryPosition(t *testing.T) {
	m, _ := openMember(t, "d", small(newMemDisk()))
	defer m.close()
	m.form(8)
	h := newHistory()
	m.do(Write{Append: h.next(1, 40, 50)})
	m.do(Write{Append: h.next(3, 40, 50)})
	for i := -1; i < len(h.all); i++ {
		after := kv.Zxid(0)
		if i >= 0 {
			after = h.all[i].Zxid
		}
		got, err := m.log.Read(after, ^kv.Zxid(0), 1<<20, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := equalEntries(got, h.all[i+1:]); err != nil {
			t.Fatalf("after %v: %v", after, err)
		}
		got, err = m.log.Read(after, ^kv.Zxid(0), 1, nil)
		if err != nil || len(got) != min(1, len(h.all)-i-1) {
			t.Fatalf("after %v, 1 byte: %d entries, %v", after, len(got), err)
		}
	}
	if _, err := m.log.Read(kv.MakeZxid(2, 1), ^kv.Zxid(0), 100, nil); !errors.Is(err, ErrNotFound) {
		t.Fatalf("unknown position: %v", err)
	}
	if _, err := m.log.Read(kv.MakeZxid(9, 1), ^kv.Zxid(0), 100, nil); !errors.Is(err, ErrNotFound) {
		t.Fatalf("position beyond the end: %v", err)
	}
	if got, err := m.log.Read(0, h.all[7].Zxid, 1<<20, nil); err != nil || len(got) != 8 {
		t.Fatalf("through: %d entries, %v", len(got), err)
	}
	m.do(Write{Snapshot: &SnapshotPoint{Zxid: h.all[60].Zxid, Chain: h.all[60].Chain, LogStart: h.all[33].Zxid}})
	if _, err := m.log.Read(h.all[32].Zxid, ^kv.Zxid(0), 100, nil); !errors.Is(err, ErrCompacted) {
		t.Fatalf("before the log start: %v", err)
	}
	m.mustHold(h)
}
