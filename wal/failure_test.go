package wal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// failer fails the n-th writing operation, and after it none (once) or all (for ever).
type failer struct {
	n       int64
	forever bool
	ops     atomic.Int64
	hit     atomic.Pointer[errorfs.Op]
}

func (f *failer) MaybeError(op errorfs.Op) error {
	if !isWriteOp(op) {
		return nil
	}
	n := f.ops.Add(1)
	if n == f.n {
		f.hit.Store(&op)
	}
	if n == f.n || f.forever && n > f.n {
		return errInjected
	}
	return nil
}

func (*failer) String() string { return "failer" }

var errInjected = errors.New("injected failure")

// S32, S33: every file operation that changes the disk fails in turn, once or for good. The host lives, no write
// is completed after the failure although later operations succeed, waiters are told, and a reopen shows at
// least everything that was completed: at once (process restart) and after a power cut.
func TestEveryFailedOperationIsFinal(t *testing.T) {
	const writes = 60
	run := func(t *testing.T, seed uint64, f *failer) {
		disk := newMemDisk()
		m := newMember(t)
		o := small(errorfs.Wrap(disk, f))
		o.Completed = m.onCompleted
		w := newWorkload(seed)
		w.scale = 20
		l, _, err := Open("d", o)
		if err == nil {
			m.log = l
			for range writes {
				seq := m.submit(w.next())
				if w.rng.IntN(3) == 0 && m.wait(seq) != nil {
					break
				}
			}
			err = m.wait(m.seq)
			closeErr := l.Close()
			if err == nil {
				err = closeErr
			}
		}
		hit := f.hit.Load()
		if hit == nil {
			if f.n != 0 {
				t.Skip("the run had fewer operations")
			}
			if err != nil {
				t.Fatal(err)
			}
			return
		}
		m.mu.Lock()
		completed, success, told := m.completed, m.successAfterErr, m.err
		m.mu.Unlock()
		where := fmt.Sprintf("operation %d (%v %s) failed, %d of %d completed", f.n, hit.Kind, hit.Path, completed, m.seq)
		if err == nil || !errors.Is(err, errInjected) {
			t.Fatalf("%s: got %v", where, err)
		}
		if success {
			t.Fatalf("%s: a write completed after the failure", where)
		}
		if l != nil {
			if !errors.Is(l.Err(), ErrDead) {
				t.Fatalf("%s: Err is %v", where, l.Err())
			}
			if completed < m.seq && told == nil {
				t.Fatalf("%s: waiters were not told", where)
			}
			refused := false
			l.Submit(Write{Done: func(err error) { refused = err != nil }})
			if !refused {
				t.Fatalf("%s: a write was accepted after the failure", where)
			}
		}
		cut := crash(disk, []int{0, 50, 100}[seed%3], rand.New(rand.NewPCG(seed, 2)))
		for name, fs := range map[string]vfs.FS{"restart": disk, "power cut": cut} {
			m2, r := openMember(t, "d", small(fs))
			if r.Suspect != "" {
				t.Fatalf("%s, %s: %v", where, name, r)
			}
			if _, err := w.prefix(m2.log, completed, m.seq); err != nil {
				t.Fatalf("%s, %s: %v", where, name, err)
			}
			m2.close()
		}
	}
	for _, seed := range seeds(1, 10) {
		counter := &failer{}
		run(t, seed, counter)
		total := counter.ops.Load()
		stride := int64(1)
		if raceDetector {
			stride = max(1, total/25)
		} else if !*longFlag {
			stride = max(1, total/120)
		}
		for n := int64(1) + int64(seed)%stride; n <= total; n += stride {
			t.Run(fmt.Sprintf("seed=%d/op=%d", seed, n), func(t *testing.T) {
				replayHint(t, seed)
				run(t, seed, &failer{n: n, forever: n%2 == 0})
			})
		}
	}
}

// Contract of Pebble 2.1.7, on which the writer relies: a failed WAL sync is returned by SyncWait of every
// batch that waited for it, ApplyNoSyncWait itself does not report it, and Logger.Fatalf is not involved. If a
// new version changes this, read its commit pipeline before touching the version.
func TestPebbleReportsFailedSyncThroughSyncWait(t *testing.T) {
	var failing atomic.Bool
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if failing.Load() && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileWrite) {
			return errInjected
		}
		return nil
	}))
	fatal := make(chan string, 10)
	db, err := pebble.Open("d", &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest, Logger: recordingLogger{fatal}})
	if err != nil {
		t.Fatal(err)
	}
	set := func(key string) *pebble.Batch {
		b := db.NewBatch()
		if err := b.Set([]byte(key), []byte("v"), nil); err != nil {
			t.Fatal(err)
		}
		if err := db.ApplyNoSyncWait(b, pebble.Sync); err != nil {
			t.Fatalf("ApplyNoSyncWait: %v", err)
		}
		return b
	}
	if err := set("before").SyncWait(); err != nil {
		t.Fatal(err)
	}
	failing.Store(true)
	for range 3 {
		if err := set("during").SyncWait(); !errors.Is(err, errInjected) {
			t.Fatalf("SyncWait returned %v", err)
		}
	}
	failing.Store(false)
	if err := set("after").SyncWait(); err == nil {
		t.Fatal("a sync succeeded after a failed one")
	}
	if len(fatal) > 0 {
		t.Fatalf("Fatalf was called: %s", <-fatal)
	}
	// The failed batch is visible in the live store: nothing may be believed of it but a fresh open.
	if _, closer, err := db.Get([]byte("during")); err != nil {
		t.Fatal(err)
	} else if err := closer.Close(); err != nil {
		t.Fatal(err)
	}
}

type recordingLogger struct{ fatal chan string }

func (recordingLogger) Infof(string, ...any)  {}
func (recordingLogger) Errorf(string, ...any) {}
func (l recordingLogger) Fatalf(format string, args ...any) {
	select {
	case l.fatal <- fmt.Sprintf(format, args...):
	default:
	}
}

// A failed operation of Pebble's background work just before the log serves: either Open fails, or Completed is told.
// A log that is dead and has told nobody would leave its member waiting for ever.
func TestFailureJustBeforeServingIsTold(t *testing.T) {
	disk := newMemDisk()
	m, _ := openMember(t, "d", small(disk))
	m.form(1)
	h := newHistory()
	m.do(Write{Append: h.next(1, 3, 50)})
	m.close()
	o := small(disk)
	o.examined = func(h *health) { _ = h.fail(errInjected) }
	if l, _, err := Open("d", o); !errors.Is(err, errInjected) || !errors.Is(err, ErrDead) {
		t.Fatalf("opened: %v, %v", l != nil, err)
	}
	m, r := openMember(t, "d", small(disk)) // its locks were released
	if r.Suspect != "" || m.log.State().Last != h.last {
		t.Errorf("%v", r)
	}
	m.close()
}
