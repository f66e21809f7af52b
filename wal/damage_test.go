package wal

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"kvd/kv"
)

// rewrite replaces the content of a file, as a fault of the medium would.
func rewrite(t testing.TB, fs vfs.FS, path string, b []byte) {
	t.Helper()
	f, err := fs.Create(path, diskCategory)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(slices.Clone(b)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func readFile(t testing.TB, fs vfs.FS, path string) []byte {
	t.Helper()
	b, err := readSmallFile(fs, path, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sampleDirectory is a member whose history lies partly in tables and partly in the WAL, stopped cleanly or
// killed (the disk as it was, nothing closed).
func sampleDirectory(t testing.TB, killed bool) (*memDisk, *model) {
	t.Helper()
	fs := newMemDisk()
	m, _ := openMember(t, "d", small(fs))
	w := newWorkload(3)
	for range 30 {
		m.do(w.next())
	}
	if err := m.log.db.Flush(); err != nil {
		t.Fatal(err)
	}
	for range 30 {
		m.do(w.next())
	}
	mod := w.states[len(w.states)-1]
	if len(mod.h.all) < 40 {
		t.Fatalf("the sample holds only %d entries", len(mod.h.all))
	}
	if !killed {
		m.close()
		return fs, mod
	}
	left := crash(fs, 100, rand.New(rand.NewPCG(1, 1)))
	m.close()
	return left, mod
}

// heal does what a sync from an established leader does with a suspect member, and checks that it is a voter
// afterwards, also after a restart.
func heal(t testing.TB, fs vfs.FS, m *member, where string) {
	t.Helper()
	st := m.log.State()
	epoch := max(st.Accepted, 40) + 1
	h := newHistory()
	h.next(epoch, 30, 10)
	id := testIdentity
	m.do(Write{Identity: &id})
	m.do(Write{Accepted: &Promise{Epoch: epoch, To: 3}})
	if st := m.log.State(); st.Suspect == "" || st.Trusted {
		t.Fatalf("%s: a promise alone ended suspicion: %+v", where, st)
	}
	// A restart in between must not forget the suspicion.
	m.close()
	m, _ = openMember(t, "d", small(fs))
	if st := m.log.State(); st.Suspect == "" || st.Trusted {
		t.Fatalf("%s: a restart ended suspicion: %+v", where, st)
	}
	z, chain := h.last, h.chain
	m.do(Write{Install: &Install{Zxid: z, Chain: chain, Point: []byte("p")}, Append: h.next(epoch, 20, 100), Current: epoch, Trusted: true})
	h.all = h.all[30:]
	m.mustHold(h)
	m.close()
	m, r := openMember(t, "d", small(fs))
	if st := m.log.State(); r.Suspect != "" || !st.Trusted || st.Member != testIdentity.Member {
		t.Fatalf("%s: after the sync: %v %+v", where, r, st)
	}
	m.mustHold(h)
	m.close()
}

// checkDamaged opens a damaged directory. Sound is allowed only if nothing is missing; a suspect log shows a
// true prefix or nothing; and a sync from the others heals it.
func checkDamaged(t testing.TB, fs *memDisk, mod *model, where string, healIt bool) (suspect bool) {
	t.Helper()
	m, r := openMember(t, "d", small(fs))
	if r.Suspect == "" {
		err := mod.matches(m.log)
		closeErr := m.log.Close()
		if err == nil && closeErr == nil {
			return false
		}
		// The start-up check reads every block that holds something of the history. A block of deleted data or of a
		// table's statistics may be met later; then the log dies, never answers wrongly, and the next start does not
		// believe the store.
		if err != nil && !errors.Is(err, ErrDamaged) || !errors.Is(closeErr, ErrDamaged) || !errors.Is(m.log.Err(), ErrDead) {
			t.Fatalf("%s: opened as sound, but %v; close: %v", where, err, closeErr)
		}
		m, r = openMember(t, "d", small(fs))
		if r.Suspect == "" || !r.Damaged {
			t.Fatalf("%s: the finding was forgotten: %v", where, r)
		}
	}
	st := m.log.State()
	if st.Trusted || st.Suspect != r.Suspect {
		t.Fatalf("%s: report %v, state %+v", where, r, st)
	}
	got, err := readAll(m.log, st.LogStart)
	if err != nil {
		t.Fatalf("%s: %v", where, err)
	}
	for _, e := range got {
		i, ok := slices.BinarySearchFunc(mod.h.all, e.Zxid, func(x kv.Entry, z kv.Zxid) int { return int(int64(x.Zxid) - int64(z)) })
		if !ok || equalEntries([]kv.Entry{e}, mod.h.all[i:i+1]) != nil {
			// Entries that were truncated later may reappear when what truncated them is lost. The member is
			// suspect, so the leader compares and truncates; but they must be contiguous, which Open checked.
			break
		}
	}
	if healIt {
		heal(t, fs, m, where)
	} else {
		m.close()
	}
	return true
}

// S26, S30, S31, S35: bits flip, files are cut, zeroed or gone, at every class of offset of every file. The log
// opens, and is either suspect with the file or key named, or holds everything that was acknowledged.
func TestDamageIsNeverTakenForTheWholeTruth(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed=%v", killed), func(t *testing.T) {
			disk, mod := sampleDirectory(t, killed)
			rng := rand.New(rand.NewPCG(5, 5))
			found, tried := 0, 0
			try := func(path, what string, damage func(fs *memDisk)) {
				fs := crash(disk, 100, rng)
				damage(fs)
				tried++
				if checkDamaged(t, fs, mod, path+" "+what, tried%8 == 0) {
					found++
				}
			}
			names, err := disk.List("d/log")
			if err != nil {
				t.Fatal(err)
			}
			files := []string{"d/identity"}
			for _, n := range names {
				if n != "LOCK" {
					files = append(files, "d/log/"+n)
				}
			}
			perClass := 2
			if *longFlag {
				perClass = 40
			}
			for _, path := range files {
				b := readFile(t, disk, path)
				for _, off := range offsets(rng, len(b), perClass) {
					try(path, fmt.Sprintf("bit flipped at %d of %d", off, len(b)), func(fs *memDisk) {
						c := slices.Clone(b)
						c[off] ^= 1 << rng.IntN(8)
						rewrite(t, fs, path, c)
					})
					try(path, fmt.Sprintf("cut at %d of %d", off, len(b)), func(fs *memDisk) { rewrite(t, fs, path, b[:off]) })
					try(path, fmt.Sprintf("zeroed from %d of %d", off, len(b)), func(fs *memDisk) {
						c := slices.Clone(b)
						clear(c[off:min(len(c), off+512)])
						rewrite(t, fs, path, c)
					})
				}
				try(path, "removed", func(fs *memDisk) {
					if err := fs.Remove(path); err != nil {
						t.Fatal(err)
					}
				})
			}
			try("d/log", "removed", func(fs *memDisk) {
				if err := fs.RemoveAll("d/log"); err != nil {
					t.Fatal(err)
				}
			})
			t.Logf("%d kinds of damage, %d made the log suspect", tried, found)
			if found < tried/4 {
				t.Fatalf("only %d of %d were noticed", found, tried)
			}
		})
	}
}

// offsets picks n offsets of each class: head, tail, anywhere.
func offsets(rng *rand.Rand, size, n int) []int {
	if size == 0 {
		return nil
	}
	o := []int{0, size - 1}
	for range n {
		o = append(o, rng.IntN(min(size, 64)), size-1-rng.IntN(min(size, 64)), rng.IntN(size))
	}
	slices.Sort(o)
	return slices.Compact(o)
}

// S31: a middle range of the log disappears from a store that is otherwise intact. It is found at start, named,
// the evidence is kept, and a sync begins a fresh store.
func TestHoleIsFoundAtStart(t *testing.T) {
	fs := newMemDisk()
	m, _ := openMember(t, "d", small(fs))
	m.form(1)
	h := newHistory()
	m.do(Write{Append: h.next(1, 200, 50)})
	// From the end of one group to the end of a later one.
	if err := m.log.db.DeleteRange(entryKey(h.all[60].Zxid), entryKey(h.all[140].Zxid), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	m.close()
	m, r := openMember(t, "d", small(fs))
	if !r.Damaged || !strings.Contains(r.Suspect, "entries are missing between") || r.VerifiedThrough == 0 || r.VerifiedThrough >= h.last {
		t.Fatalf("report: %v", r)
	}
	if st := m.log.State(); st.Last != 0 || st.Member != testIdentity.Member || st.Trusted {
		t.Fatalf("state: %+v", st)
	}
	heal(t, fs, m, "hole")
	if names, err := fs.List("d"); err != nil || !slices.Contains(names, "log.damaged-1") {
		t.Fatalf("evidence was not kept: %v %v", names, err)
	}
}

// S35: the last acknowledged record is lost as if it were a torn tail. Pebble opens happily; the ack watermark
// knows better.
func TestLostAcknowledgedTailIsNotATornTail(t *testing.T) {
	fs := newMemDisk()
	m, _ := openMember(t, "d", small(fs))
	m.form(1)
	h := newHistory()
	m.do(Write{Append: h.next(1, 5, 50)})
	before := readFile(t, fs, "d/log/"+walName(t, fs))
	m.do(Write{Append: h.next(1, 1, 50)})
	wm := readFile(t, fs, "d/log/"+watermarkName)
	name := walName(t, fs)
	killed := crash(fs, 100, rand.New(rand.NewPCG(1, 1)))
	m.close()

	// The record's bytes never reached the medium.
	rewrite(t, killed, "d/log/"+name, before)
	rewrite(t, killed, "d/log/"+watermarkName, wm)
	m, r := openMember(t, "d", small(killed))
	if r.Suspect == "" || !strings.Contains(r.Suspect, "acknowledged through 1:6, the log ends at 1:5") {
		t.Fatalf("report: %v", r)
	}
	if st := m.log.State(); st.Last != h.all[4].Zxid || st.Trusted {
		t.Fatalf("state: %+v", st)
	}
	heal(t, killed, m, "lost tail")
}

// A lost promise shows as well, although no entry is missing (P2, P12).
func TestLostPromiseIsNoticed(t *testing.T) {
	fs := newMemDisk()
	m, _ := openMember(t, "d", small(fs))
	m.form(1)
	before := readFile(t, fs, "d/log/"+walName(t, fs))
	m.do(Write{Accepted: &Promise{Epoch: 2, To: 8}})
	name := walName(t, fs)
	killed := crash(fs, 100, rand.New(rand.NewPCG(1, 1)))
	m.close()
	rewrite(t, killed, "d/log/"+name, before)
	m, r := openMember(t, "d", small(killed))
	defer m.close()
	if !strings.Contains(r.Suspect, "acknowledged state is missing") {
		t.Fatalf("report: %v", r)
	}
}

// walName returns the newest WAL of the store.
func walName(t testing.TB, fs vfs.FS) string {
	t.Helper()
	names, err := fs.List("d/log")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	newest := ""
	for _, n := range names {
		if strings.HasSuffix(n, ".log") {
			newest = n
		}
	}
	return newest
}

// A legal truncation followed by a power cut that loses the newer watermark must not make the member suspect:
// the generation tells that the old mark speaks of another history.
func TestTruncationAndLostWatermarkIsSound(t *testing.T) {
	fs := newMemDisk()
	m, _ := openMember(t, "d", small(fs))
	m.form(1)
	h := newHistory()
	m.do(Write{Append: h.next(1, 50, 50)})
	old := readFile(t, fs, "d/log/"+watermarkName)
	z := h.all[9].Zxid
	h.truncate(z)
	m.do(Write{Truncate: &z})
	cut := crash(fs, 0, nil)
	m.close()
	rewrite(t, cut, "d/log/"+watermarkName, old)
	m, r := openMember(t, "d", small(cut))
	defer m.close()
	if r.Suspect != "" {
		t.Fatalf("report: %v", r)
	}
	m.mustHold(h)
}

// Rule 8: each way in which the two copies of the identity can disagree.
func TestIdentityFileAndStoreMustAgree(t *testing.T) {
	other := Identity{ClusterID: [16]byte{9}, Member: 2}
	for name, c := range map[string]struct {
		damage  func(t *testing.T, fs vfs.FS)
		suspect string
		last    bool // the history stays visible
	}{
		"file missing": {func(t *testing.T, fs vfs.FS) {
			if err := fs.Remove("d/identity"); err != nil {
				t.Fatal(err)
			}
		}, "identity file d/identity is missing", true},
		"file of another cluster": {func(t *testing.T, fs vfs.FS) { rewrite(t, fs, "d/identity", encodeIdentity(other)) }, "says cluster 09", false},
		"store missing": {func(t *testing.T, fs vfs.FS) {
			if err := fs.RemoveAll("d/log"); err != nil {
				t.Fatal(err)
			}
		}, "knows no identity", false},
	} {
		t.Run(name, func(t *testing.T) {
			fs := newMemDisk()
			m, _ := openMember(t, "d", small(fs))
			m.form(1)
			h := newHistory()
			m.do(Write{Append: h.next(1, 5, 20)})
			m.close()
			c.damage(t, fs)
			m, r := openMember(t, "d", small(fs))
			st := m.log.State()
			if !strings.Contains(r.Suspect, c.suspect) || st.Trusted || st.Blank() {
				t.Fatalf("report %v, state %+v", r, st)
			}
			if (st.Last == h.last) != c.last {
				t.Fatalf("last is %v", st.Last)
			}
			m.log.Submit(Write{}) // nothing to do must not end it either
			heal(t, fs, m, name)
		})
	}
}

// Data of a newer program is refused by name and left alone, whichever record says so.
func TestNewerFormatIsRefused(t *testing.T) {
	newer := func(b []byte, at, sum int, seed uint64) []byte {
		c := slices.Clone(b)
		c[at]++ // the low byte of a version
		s := seededSum(seed, c[sum+8:])
		for i := range 8 {
			c[sum+i] = byte(s >> (56 - 8*i))
		}
		return c
	}
	for name, touch := range map[string]func(t *testing.T, fs vfs.FS){
		"identity": func(t *testing.T, fs vfs.FS) {
			rewrite(t, fs, "d/identity", newer(readFile(t, fs, "d/identity"), 19, 8, identitySeed))
		},
		"watermark": func(t *testing.T, fs vfs.FS) {
			b := readFile(t, fs, "d/log/"+watermarkName)
			for i := range 2 {
				s := newer(b[i*slotStride:i*slotStride+slotBytes], 19, 8, watermarkSeed)
				copy(b[i*slotStride:], s)
			}
			rewrite(t, fs, "d/log/"+watermarkName, b)
		},
		"meta record": func(t *testing.T, fs vfs.FS) {
			db := openRaw(t, fs)
			v, closer, err := db.Get([]byte(metaKey))
			if err != nil {
				t.Fatal(err)
			}
			c := newer(v, 11, 0, metaSeed)
			if err := errors.Join(closer.Close(), db.Set([]byte(metaKey), c, pebble.Sync), db.Close()); err != nil {
				t.Fatal(err)
			}
		},
		"pebble": func(t *testing.T, fs vfs.FS) {
			names, err := fs.List("d/log")
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range names {
				if strings.HasPrefix(n, "marker.format-version.") {
					if err := fs.Rename("d/log/"+n, "d/log/marker.format-version.000900.900"); err != nil {
						t.Fatal(err)
					}
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs := newMemDisk()
			m, _ := openMember(t, "d", small(fs))
			m.form(1)
			m.do(Write{Append: newHistory().next(1, 3, 3)})
			m.close()
			touch(t, fs)
			if _, _, err := Open("d", small(fs)); !errors.Is(err, ErrNewerFormat) {
				t.Fatalf("got %v", err)
			}
			// The refusal released everything: the second attempt says the same, not "in use".
			if _, _, err := Open("d", small(fs)); !errors.Is(err, ErrNewerFormat) {
				t.Fatalf("second attempt: %v", err)
			}
		})
	}
}

func openRaw(t testing.TB, fs vfs.FS) *pebble.DB {
	t.Helper()
	db, err := pebble.Open("d/log", &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest, Logger: recordingLogger{make(chan string, 1)}})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// Two Logs on one directory are refused, also on the real file system.
func TestDirectoryIsLocked(t *testing.T) {
	for name, c := range map[string]struct {
		fs  vfs.FS
		dir string
	}{"mem": {newMemDisk(), "d"}, "os": {nil, t.TempDir()}} {
		t.Run(name, func(t *testing.T) {
			m, _ := openMember(t, c.dir, small(c.fs))
			if _, _, err := Open(c.dir, small(c.fs)); !errors.Is(err, ErrLocked) {
				t.Fatalf("got %v", err)
			}
			m.form(1)
			m.close()
			m, _ = openMember(t, c.dir, small(c.fs))
			m.close()
		})
	}
}

// lateDisk holds up what is opened for reading until open is closed.
type lateDisk struct {
	*memDisk
	open chan struct{}
}

func (d *lateDisk) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	<-d.open
	return d.memDisk.Open(name, opts...)
}

// lineWriter closes heard at the first line with text.
type lineWriter struct {
	text  string
	heard chan struct{}
	once  sync.Once
}

func (w *lineWriter) Write(b []byte) (int, error) {
	if strings.Contains(string(b), w.text) {
		w.once.Do(func() { close(w.heard) })
	}
	return len(b), nil
}

// A start that takes long says what it is doing.
func TestLongExaminationIsSaid(t *testing.T) {
	disk := newMemDisk()
	m, _ := openMember(t, "d", small(disk))
	m.form(1)
	m.close()
	line := &lineWriter{text: "checking the log", heard: make(chan struct{})}
	late := &lateDisk{memDisk: disk, open: line.heard}
	o := small(late)
	o.Logger, o.sayAfter = slog.New(slog.NewTextHandler(line, nil)), time.Millisecond
	m, r := openMember(t, "d", o) // returns only because the line was written
	if r.Suspect != "" {
		t.Error(r)
	}
	m.close()
}
