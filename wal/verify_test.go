package wal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"kvd/kv"
)

// running returns a member whose log lies in tables, for the most part, and a trusted history.
func running(t *testing.T, fs vfs.FS) (*member, *history) {
	t.Helper()
	m, _ := openMember(t, "d", small(fs))
	m.form(1)
	h := newHistory()
	for range 12 {
		m.do(Write{Append: h.next(1, 50, 1000)})
	}
	eventually(t, "tables are written", func() bool { return len(tables(t, m.log)) > 0 })
	return m, h
}

// tables are the files of the store's finished tables.
func tables(t testing.TB, l *Log) (names []string) {
	t.Helper()
	found, err := (&verifier{l: l}).list()
	if err != nil {
		t.Fatal(err)
	}
	for n := range found {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// TestVerifySoundLog: nothing is found where nothing is, also beside writers and a purge.
func TestVerifySoundLog(t *testing.T) {
	fs := newMemDisk()
	m, h := running(t, fs)
	defer m.close()
	v, err := m.log.Verify(context.Background(), 1)
	if err != nil || v.Through != h.last || v.Entries != 600 || v.Tables == 0 || v.Bytes < 100_000 {
		t.Fatalf("%+v %v", v, err)
	}
	stop := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		for {
			if _, err := m.log.Verify(context.Background(), 1); err != nil {
				done <- err
				return
			}
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
		}
	}()
	for i := range 30 {
		m.do(Write{Append: h.next(1, 25, 1000)})
		if i%10 == 9 {
			at := h.all[len(h.all)-100]
			m.do(Write{Snapshot: &SnapshotPoint{Zxid: at.Zxid, Chain: at.Chain, Points: [][]byte{{1}}, LogStart: at.Zxid}})
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatalf("beside writers: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := m.log.Verify(ctx, 0.5); !errors.Is(err, context.Canceled) {
		t.Fatalf("a context that has ended: %v", err)
	}
	if err := m.log.Err(); err != nil {
		t.Fatal(err)
	}
}

// TestVerifyFindsDamage: a flipped bit anywhere in a table of a running log, however warm the caches are, ends the log, and
// the next start does not believe it.
func TestVerifyFindsDamage(t *testing.T) {
	const places = 4
	for k := range places {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			t.Parallel() // Pebble looks for the flipped bit, for a second
			fs := newMemDisk()
			m, h := running(t, fs)
			if _, err := readAll(m.log, 0); err != nil { // the caches are warm
				t.Fatal(err)
			}
			path := "d/log/" + tables(t, m.log)[0]
			f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
			if err != nil {
				t.Fatal(err)
			}
			info, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			at := (info.Size() - 1) * int64(k) / (places - 1)
			var b [1]byte
			if _, err := f.ReadAt(b[:], at); err != nil {
				t.Fatal(err)
			}
			b[0] ^= 0x10
			if _, err := f.WriteAt(b[:], at); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := m.log.Verify(context.Background(), 1); !errors.Is(err, ErrDamaged) || !errors.Is(m.log.Err(), ErrDead) {
				t.Fatalf("byte %d of %d: %v; %v", at, info.Size(), err, m.log.Err())
			}
			refusesAfter(t, fs, m, h.last)
		})
	}
}

// TestCondemn: the next start does not believe a log that was condemned, says why, and a sync heals it.
func TestCondemn(t *testing.T) {
	fs := newMemDisk()
	m, h := running(t, fs)
	if err := m.log.Condemn("the tree differs from the others' after 1.200"); !errors.Is(err, ErrDamaged) {
		t.Fatal(err)
	}
	if err := m.log.Condemn("again"); !errors.Is(err, ErrDamaged) {
		t.Fatal(err)
	}
	r := refusesAfter(t, fs, m, h.last)
	if !strings.Contains(r.Suspect, "after 1.200") {
		t.Fatalf("%v", r)
	}
}

// refusesAfter checks that a log that has ended is not believed by the next start, and that a sync heals it.
func refusesAfter(t *testing.T, fs vfs.FS, m *member, last kv.Zxid) Report {
	t.Helper()
	if err := m.log.Close(); !errors.Is(err, ErrDead) {
		t.Fatalf("close: %v", err)
	}
	m, r := openMember(t, "d", small(fs))
	if st := m.log.State(); !r.Damaged || st.Trusted || st.Suspect == "" || st.Last != 0 || last == 0 {
		t.Fatalf("after the restart: %v, %+v", r, st)
	}
	heal(t, fs, m, "verify")
	return r
}
