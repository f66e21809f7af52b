package wal

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"kvd/kv"
)

// Goroutines of closed logs must end. Dead logs are abandoned with theirs on purpose, so the tests of failures
// run as they are and this looks only at what a clean life leaves behind.
func TestCloseLeavesNoGoroutine(t *testing.T) {
	before := ownGoroutines()
	for range 3 {
		fs := newMemDisk()
		m, _ := openMember(t, "d", small(fs))
		m.form(1)
		h := newHistory()
		m.do(Write{Append: h.next(1, 10, 10)})
		m.do(Write{Snapshot: &SnapshotPoint{Zxid: h.last, Chain: h.chain, LogStart: h.last}})
		m.close()
		rewrite(t, fs, "d/identity", nil)
		m, _ = openMember(t, "d", small(fs))
		m.close()
	}
	eventually(t, "goroutines end", func() bool { return ownGoroutines() <= before })
}

func ownGoroutines() int {
	buf := make([]byte, 1<<20)
	n := 0
	for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		// Parked by other tests of this binary: their logs are dead.
		if (strings.Contains(g, "kvd/wal.") || strings.Contains(g, "pebble")) && !strings.Contains(g, "testing.tRunner") && !strings.Contains(g, "select (no cases)") {
			n++
		}
	}
	return n
}

// Readers run while the log grows, is truncated and purged: what they get is contiguous and carries a right
// chain, and the errors are the documented ones.
func TestReadersSeeContiguousHistoryWhileItChanges(t *testing.T) {
	m, _ := openMember(t, "d", small(newMemDisk()))
	defer m.close()
	w := newWorkload(11)
	m.do(w.next())
	m.do(w.next())
	var stop atomic.Bool
	var wg sync.WaitGroup
	errs := make(chan error, 4)
	for range 3 {
		wg.Go(func() {
			for !stop.Load() {
				st := m.log.State()
				got, err := m.log.Read(st.LogStart, ^kv.Zxid(0)-1, 4096, nil)
				if err != nil && !errors.Is(err, ErrCompacted) && !errors.Is(err, ErrNotFound) {
					errs <- err
					return
				}
				prev, chain := st.LogStart, st.LogStartChain
				for _, e := range got {
					if chain = kv.ChainDigest(chain, e.Zxid, e.Payload); chain != e.Chain || !e.Zxid.Follows(prev) {
						errs <- fmt.Errorf("%v after %v", e.Zxid, prev)
						return
					}
					prev = e.Zxid
				}
				if at, _, ok := m.log.Locate(st.Last); ok && at > st.Last {
					errs <- fmt.Errorf("Locate(%v) = %v", st.Last, at)
					return
				}
				m.log.OldestWrite()
				m.log.Stats()
				m.log.BytesAfter(st.Base)
				m.log.LogStartFor(st.Base, 10, 1000)
			}
		})
	}
	for range 300 {
		m.submit(w.next())
	}
	m.do(Write{})
	stop.Store(true)
	wg.Wait()
	select {
	case err := <-errs:
		t.Fatal(err)
	default:
	}
}

// Close executes what was submitted before it; nothing is executed after it.
func TestCloseExecutesWhatWasSubmitted(t *testing.T) {
	fs := newMemDisk()
	m, _ := openMember(t, "d", small(fs))
	m.form(1)
	h := newHistory()
	for range 50 {
		m.submit(Write{Append: h.next(1, 5, 100)})
	}
	m.close()
	if err := m.wait(m.seq); err != nil {
		t.Fatal(err)
	}
	var refused error
	m.log.Submit(Write{Append: h.clone().next(1, 1, 1), Done: func(err error) { refused = err }})
	if !errors.Is(refused, ErrClosed) {
		t.Fatalf("a write after Close: %v", refused)
	}
	if _, err := m.log.Read(0, h.last, 100, nil); !errors.Is(err, ErrClosed) {
		t.Fatalf("a read after Close: %v", err)
	}
	if err := m.log.Close(); !errors.Is(err, ErrClosed) {
		t.Fatalf("a second Close: %v", err)
	}
	m, _ = openMember(t, "d", small(fs))
	defer m.close()
	m.mustHold(h)
}

// S43, first half: a hanging sync is visible in OldestWrite, completes nothing, and everything that gathers
// meanwhile becomes one batch.
func TestHangingSyncShowsInOldestWrite(t *testing.T) {
	var hang atomic.Bool
	hung, release := make(chan struct{}, 1), make(chan struct{})
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if hang.Load() && strings.HasSuffix(op.Path, ".log") && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) {
			signal(hung)
			<-release
		}
		return nil
	}))
	m, _ := openMember(t, "d", small(fs))
	defer m.close()
	m.form(1)
	h := newHistory()
	if age := m.log.OldestWrite(); age != 0 {
		t.Fatalf("idle, but the oldest write is %v old", age)
	}
	hang.Store(true)
	first := m.submit(Write{Append: h.next(1, 1, 10)})
	<-hung
	batches := m.log.Stats().Batches
	var last uint64
	for range 100 {
		last = m.submit(Write{Append: h.next(1, 1, 10)})
	}
	age := m.log.OldestWrite()
	eventually(t, "the oldest write ages", func() bool { return m.log.OldestWrite() > age+5*time.Millisecond })
	m.mu.Lock()
	if m.completed >= first {
		t.Error("a write completed before its sync")
	}
	m.mu.Unlock()
	if q := m.log.Stats().Queued; q != 101 {
		t.Errorf("%d writes are queued", q)
	}
	hang.Store(false)
	close(release)
	if err := m.wait(last); err != nil {
		t.Fatal(err)
	}
	if n := m.log.Stats().Batches - batches; n != 2 {
		t.Errorf("101 writes took %d batches, want 2", n)
	}
}

// Inspect shows what Open would show and changes nothing.
func TestInspectChangesNothing(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := Inspect(dir+"/missing", Options{}); err == nil {
		t.Fatal("a missing directory was inspected")
	}
	if _, r, err := Inspect(dir, Options{}); err != nil || !r.Blank {
		t.Fatalf("empty directory: %v %v", r, err)
	}
	m, _ := openMember(t, dir, small(nil))
	m.form(1)
	h := newHistory()
	m.do(Write{Append: h.next(1, 20, 100)})
	if _, _, err := Inspect(dir, Options{}); !errors.Is(err, ErrLocked) {
		t.Fatalf("a running member was inspected: %v", err)
	}
	want := m.log.State()
	m.close()
	listing := func() string {
		var b strings.Builder
		for _, d := range []string{dir, dir + "/log"} {
			entries, err := os.ReadDir(d)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				i, err := e.Info()
				if err != nil {
					t.Fatal(err)
				}
				if !strings.EqualFold(e.Name(), "lock") && !e.IsDir() {
					fmt.Fprintln(&b, e.Name(), i.Size(), i.ModTime())
				}
			}
		}
		return b.String()
	}
	before := listing()
	st, r, err := Inspect(dir, Options{})
	if err != nil || r.Suspect != "" || r.VerifiedThrough != h.last || st.Last != want.Last || st.LastChain != want.LastChain || !st.Trusted {
		t.Fatalf("%v %v %+v", err, r, st)
	}
	if after := listing(); after != before {
		t.Fatalf("changed from\n%s\nto\n%s", before, after)
	}
	if err := os.Remove(dir + "/identity"); err != nil {
		t.Fatal(err)
	}
	if st, r, err = Inspect(dir, Options{}); err != nil || !strings.Contains(r.Suspect, "identity") || st.Trusted {
		t.Fatalf("%v %v %+v", err, r, st)
	}
	if err := os.RemoveAll(dir + "/log"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Inspect(dir, Options{}); err != nil {
		t.Fatal(err)
	}
}
