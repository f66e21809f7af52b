package wal

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"kvd/kv"
)

// dirBytes sums the sizes of the files of dir.
func dirBytes(t testing.TB, fs vfs.FS, dir string) int64 {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	var n int64
	for _, name := range names {
		if info, err := fs.Stat(fs.PathJoin(dir, name)); err == nil && !info.IsDir() {
			n += info.Size()
		}
	}
	return n
}

// After a purge an idle member's directory shrinks by itself, and what is kept stays readable.
func TestPurgeFreesSpaceOnAnIdleMember(t *testing.T) {
	dir := t.TempDir()
	o := Options{MemTableBytes: 1 << 20, MaxBatchBytes: 256 << 10}
	m, _ := openMember(t, dir, o)
	defer m.close()
	m.form(1)
	h := newHistory()
	for range 200 { // 20 MB
		m.submit(Write{Append: h.next(1, 100, 1000)})
	}
	m.do(Write{})
	logDir := vfs.Default.PathJoin(dir, "log")
	full := dirBytes(t, vfs.Default, logDir)
	if full < 19<<20 {
		t.Fatalf("only %d bytes were written", full)
	}
	start := m.log.LogStartFor(h.last, 2000, 1<<40)
	if start == 0 || start > h.all[len(h.all)-2000].Zxid {
		t.Fatalf("LogStartFor chose %v", start)
	}
	m.do(Write{Snapshot: &SnapshotPoint{Zxid: h.last, Chain: h.chain, LogStart: start}})
	eventually(t, "the directory shrinks to a third", func() bool { return dirBytes(t, vfs.Default, logDir) < full/3 })
	m.mustHold(h)
}

// Under sustained writes with a snapshot point every few megabytes the directory stays bounded.
func TestPurgeBoundsTheDirectoryUnderSustainedWrites(t *testing.T) {
	fs := vfs.NewMem()
	m, _ := openMember(t, "d", Options{FS: fs, MemTableBytes: 1 << 20, MaxBatchBytes: 256 << 10})
	defer m.close()
	m.form(1)
	h := newHistory()
	var peak int64
	for round := range 45 { // 2 MB each, 90 MB in all
		for range 20 {
			m.submit(Write{Append: h.next(1, 100, 1000)})
		}
		m.do(Write{Snapshot: &SnapshotPoint{Zxid: h.last, Chain: h.chain, LogStart: m.log.LogStartFor(h.last, 3000, 1<<40)}})
		if round > 5 {
			peak = max(peak, dirBytes(t, fs, "d/log"))
		}
		// The model keeps what the log keeps.
		if keep := 8000; len(h.all) > keep {
			h.all = append([]kv.Entry(nil), h.all[len(h.all)-keep:]...)
		}
	}
	if st := m.log.State(); st.LogStart <= h.all[0].Zxid {
		t.Fatalf("nothing was purged: %+v", st)
	}
	t.Logf("at most %d bytes", peak)
	if peak > 45<<20 {
		t.Fatalf("the directory grew to %d bytes", peak)
	}
	m.mustHold(h)
}
