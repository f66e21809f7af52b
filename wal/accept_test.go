package wal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"kvd/kv"
)

// lostTail is a member of epoch 1 whose acknowledged entries after the 60th never reached the medium, and the history
// that was acknowledged.
func lostTail(t testing.TB) (*memDisk, *history) {
	t.Helper()
	fs := newMemDisk()
	m, _ := openMember(t, "d", small(fs))
	m.form(1)
	h := newHistory()
	for range 3 {
		m.do(Write{Append: h.next(1, 20, 50)})
	}
	before := readFile(t, fs, "d/log/"+walName(t, fs))
	m.do(Write{Append: h.next(1, 10, 50)})
	name := walName(t, fs)
	killed := crash(fs, 100, rand.New(rand.NewPCG(1, 1)))
	m.close()
	rewrite(t, killed, "d/log/"+name, before)
	return crash(killed, 100, rand.New(rand.NewPCG(2, 2))), h
}

// mustVote opens the directory and checks that the member votes and holds exactly h.
func mustVote(t testing.TB, fs vfs.FS, h *history, accepted kv.Epoch, where string) {
	t.Helper()
	m, r := openMember(t, "d", small(fs))
	defer m.close()
	st := m.log.State()
	if r.Suspect != "" || !st.Trusted || st.Suspect != "" || st.Member != testIdentity.Member || st.Accepted != accepted || st.PromisedTo != 0 || st.Current != 1 {
		t.Fatalf("%s: %v %+v", where, r, st)
	}
	m.mustHold(h)
}

// A suspect log is accepted through a chosen entry: the member votes on exactly that history, no epoch that it may have
// promised and forgotten can be promised again, and what was given up is still there.
func TestAcceptKeepsAPrefixAndGivesTheRestUp(t *testing.T) {
	for _, c := range []struct {
		name    string
		through kv.Zxid
		want    []string
	}{
		{"all that is readable", kv.MakeZxid(1, 60), []string{"given up: 10 entries that were acknowledged and cannot be read, after 1:60 through 1:70", "through 1:60"}},
		{"less", kv.MakeZxid(1, 41), []string{"given up: 19 readable entries, 1:42 to 1:60", "given up: 10 entries that were acknowledged"}},
		{"nothing", 0, []string{"given up: 60 readable entries, 1:1 to 1:60"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs, h := lostTail(t)
			planned, err := PlanAccept("d", small(fs), c.through)
			if err != nil {
				t.Fatal(err)
			}
			if st, r, err := Inspect("d", small(fs)); err != nil || r.Suspect == "" || st.Trusted || st.Accepted != 1 {
				t.Fatalf("planning changed the directory: %v %+v", r, st)
			}
			done, err := Accept("d", small(fs), c.through)
			if err != nil {
				t.Fatal(err)
			}
			if planned.String() != done.String() {
				t.Errorf("planned:\n%sdone:\n%s", &planned, &done)
			}
			for _, want := range c.want {
				if !strings.Contains(done.String(), want) {
					t.Errorf("no %q in\n%s", want, &done)
				}
			}
			note := readFile(t, fs, done.Aside+".txt")
			if !strings.HasPrefix(string(note), done.String()) {
				t.Errorf("the note says %s", note)
			}
			// What was given up is still there.
			o := small(fs)
			o.LogDir = done.Aside
			if st, r, err := Inspect("d", o); err != nil || r.VerifiedThrough != kv.MakeZxid(1, 60) || st.Last != kv.MakeZxid(1, 60) {
				t.Errorf("kept aside: %v %+v %v", r, st, err)
			}
			kept := h.clone()
			kept.truncate(c.through)
			mustVote(t, fs, kept, 1+RecoveryEpochs, "accepted")
			if _, err := Accept("d", small(fs), c.through); !errors.Is(err, ErrNotAccepted) {
				t.Errorf("again: %v", err)
			}
			// It goes on like any other.
			m, _ := openMember(t, "d", small(fs))
			m.do(Write{Accepted: &Promise{Epoch: 5 + RecoveryEpochs}})
			m.do(Write{Append: kept.next(5+RecoveryEpochs, 30, 40), Current: 5 + RecoveryEpochs})
			m.close()
			m, _ = openMember(t, "d", small(fs))
			m.mustHold(kept)
			m.close()
		})
	}
}

// What cannot be accepted is refused, with a reason, and nothing changes.
func TestAcceptRefuses(t *testing.T) {
	refused := func(t *testing.T, fs vfs.FS, z kv.Zxid, want string) {
		t.Helper()
		if _, err := Accept("d", small(fs), z); !errors.Is(err, ErrNotAccepted) || !strings.Contains(err.Error(), want) {
			t.Fatalf("got %v, want %q", err, want)
		}
		if names, err := fs.List("d"); err != nil || strings.Contains(fmt.Sprint(names), "log.") {
			t.Fatalf("something was left: %v %v", names, err)
		}
	}
	fs, _ := lostTail(t)
	refused(t, fs, kv.MakeZxid(1, 61), "beyond the verified history, which ends at 1:60")
	refused(t, fs, kv.MakeZxid(0, 7), "no entry of this log")

	sound := newMemDisk()
	m, _ := openMember(t, "d", small(sound))
	m.form(1)
	h := newHistory()
	m.do(Write{Append: h.next(1, 9, 9)})
	refusedLocked := func() error { _, err := Accept("d", small(sound), h.last); return err }
	if err := refusedLocked(); !errors.Is(err, ErrLocked) {
		t.Fatalf("in use: %v", err)
	}
	z := h.all[5].Zxid
	m.do(Write{Snapshot: &SnapshotPoint{Zxid: z, Chain: h.all[5].Chain, Points: [][]byte{[]byte("p")}}})
	m.close()
	refused(t, sound, h.last, "sound")

	if err := sound.Remove("d/identity"); err != nil {
		t.Fatal(err)
	}
	refused(t, sound, h.all[4].Zxid, "below the base 1:6")
	if _, err := Accept("d", small(sound), h.last); err != nil {
		t.Fatal(err)
	}
	mustVote(t, sound, h, 1+RecoveryEpochs, "identity file restored")

	// Nothing verifiable: the store has gone, and nothing waits in its place.
	if err := errors.Join(sound.RemoveAll("d/log"), sound.RemoveAll("d/log.given-up-1"), sound.Remove("d/log.given-up-1.txt")); err != nil {
		t.Fatal(err)
	}
	refused(t, sound, h.last, "missing")
}

// A hole in the middle of the log: what is before it can be accepted.
func TestAcceptBeforeAHole(t *testing.T) {
	fs := newMemDisk()
	m, _ := openMember(t, "d", small(fs))
	m.form(1)
	h := newHistory()
	m.do(Write{Append: h.next(1, 200, 50)})
	if err := m.log.db.DeleteRange(entryKey(h.all[60].Zxid), entryKey(h.all[140].Zxid), nil); err != nil {
		t.Fatal(err)
	}
	m.close()
	_, r, err := Inspect("d", small(fs))
	if err != nil || !r.Damaged {
		t.Fatal(r, err)
	}
	done, err := Accept("d", small(fs), r.VerifiedThrough)
	if err != nil {
		t.Fatal(err)
	}
	h.truncate(r.VerifiedThrough)
	mustVote(t, fs, h, 1+RecoveryEpochs, done.String())
}

// A power cut at every operation of a recovery, keeping none, some or all of what was not synced, and a start or another
// recovery after it: the log is the old one, suspect, or the new one, whole; and the recovery can be finished.
func TestAcceptIsInterruptedAnywhere(t *testing.T) {
	const through = 41
	z := kv.MakeZxid(1, through)
	var begun, finished, resumed int
	run := func(n int64, percent int, start bool) (total int64) {
		fs, h := lostTail(t)
		f := &failer{n: n, forever: n > 0}
		_, err := Accept("d", small(errorfs.Wrap(fs, f)), z)
		if n == 0 {
			if err != nil {
				t.Fatal(err)
			}
			return f.ops.Load()
		}
		where := fmt.Sprintf("operation %d, %d%% of the unsynced kept, start=%v", n, percent, start)
		if err == nil {
			t.Fatalf("%s: no error", where)
		}
		cut := crash(fs, percent, rand.New(rand.NewPCG(uint64(n), uint64(percent))))
		if start {
			m, r := openMember(t, "d", small(cut))
			st := m.log.State()
			switch {
			case st.Trusted && (st.Last != z || r.Suspect != ""):
				t.Fatalf("%s: votes on something else: %v", where, r)
			case st.Trusted:
				finished++
			case r.Suspect == "" || st.Last != kv.MakeZxid(1, 60) && st.Last != z:
				t.Fatalf("%s: neither the old log nor the new one: %v %+v", where, r, st)
			default:
				begun++
			}
			m.close()
			if names, err := cut.List("d"); err != nil || strings.Contains(fmt.Sprint(names), "log"+recoveredSuffix+" ") {
				t.Fatalf("%s: the start left a store that waits: %v %v", where, names, err)
			}
		}
		a, err := Accept("d", small(cut), z)
		switch {
		case errors.Is(err, ErrNotAccepted) && strings.Contains(err.Error(), "sound"):
		case err != nil:
			t.Fatalf("%s: again: %v", where, err)
		case a.Finished:
			resumed++
		}
		h.truncate(z)
		m, r := openMember(t, "d", small(cut))
		if st := m.log.State(); !st.Trusted || r.Suspect != "" || st.Accepted < 1+RecoveryEpochs {
			t.Fatalf("%s: after the second run: %v %+v", where, r, st)
		}
		m.mustHold(h)
		m.close()
		kept := 0
		names, err := cut.List("d")
		for _, name := range names {
			o := small(cut)
			o.LogDir = "d/" + name
			if strings.HasPrefix(name, "log"+givenUpSuffix) && !strings.HasSuffix(name, ".txt") {
				if st, _, err := Inspect("d", o); err == nil && st.Last == kv.MakeZxid(1, 60) {
					kept++
				}
			}
		}
		if err != nil || kept == 0 { // two, if the cut left the directory under its old and its new name
			t.Fatalf("%s: %d whole copies of what was given up in %v\n%s", where, kept, names, a.String())
		}
		return 0
	}
	total := run(0, 0, false)
	stride := int64(1)
	if !*longFlag {
		stride = 3
	}
	for n := int64(1); n <= total; n += stride {
		if n > total-25 { // the exchange
			stride = 1
		}
		run(n, []int{0, 50, 100}[n%3], n%2 == 0)
		if stride == 1 {
			run(n, []int{0, 50, 100}[(n+1)%3], n%2 == 1)
		}
	}
	t.Logf("%d operations; starts found the old log %d times and the new one %d times; %d exchanges were finished by the second run", total, begun, finished, resumed)
	if begun == 0 || finished == 0 || resumed == 0 {
		t.Error("some state was never met")
	}
}

// The mark of a sole survivor is one batch with the raised epoch, is set once, and goes with a write. Who is suspect or
// blank cannot have it.
func TestMarkSole(t *testing.T) {
	fs, h := lostTail(t)
	if _, _, err := MarkSole("d", small(fs)); !errors.Is(err, ErrNotAccepted) || !strings.Contains(err.Error(), "--accept-up-to 1:60") {
		t.Fatalf("suspect: %v", err)
	}
	if _, err := Accept("d", small(fs), kv.MakeZxid(1, 60)); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		st, marked, err := MarkSole("d", small(fs))
		if err != nil || marked != (i == 0) || !st.Sole || st.Accepted != 1+2*RecoveryEpochs {
			t.Fatalf("run %d: %v %+v %v", i, marked, st, err)
		}
	}
	h.truncate(kv.MakeZxid(1, 60))
	m, r := openMember(t, "d", small(fs))
	if st := m.log.State(); !st.Sole || !st.Trusted || r.Suspect != "" {
		t.Fatalf("%v %+v", r, st)
	}
	m.mustHold(h)
	no := false
	m.do(Write{Sole: &no})
	m.close()
	if st, _, err := Inspect("d", small(fs)); err != nil || st.Sole {
		t.Fatalf("%+v %v", st, err)
	}
	blank := newMemDisk()
	m, _ = openMember(t, "d", small(blank))
	m.close()
	if _, _, err := MarkSole("d", small(blank)); !errors.Is(err, ErrNotAccepted) || !strings.Contains(err.Error(), "blank") {
		t.Fatalf("blank: %v", err)
	}
}
