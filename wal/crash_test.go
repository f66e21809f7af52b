package wal

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

var (
	seedFlag = flag.Uint64("seed", 0, "run the randomized tests of this package with this seed only")
	longFlag = flag.Bool("long", false, "more seeds and every crash point")
)

func seeds(few, many uint64) []uint64 {
	n := few
	if *longFlag {
		n = many
	}
	if *seedFlag != 0 {
		return []uint64{*seedFlag}
	}
	var s []uint64
	for i := range n {
		s = append(s, i+1)
	}
	return s
}

func replayHint(t *testing.T, seed uint64) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("replay: go test ./wal -run '^%s$' -long=%v -seed=%d", strings.SplitN(t.Name(), "/", 2)[0], *longFlag, seed)
		}
	})
}

// cut is a power cut: the disk at the moment before one file operation, and what had been completed by then.
type cut struct {
	op        int
	desc      string
	fs        *memDisk
	completed uint64
	percent   int
}

// isWriteOp reports whether op changes the disk.
func isWriteOp(op errorfs.Op) bool {
	switch op.Kind {
	case errorfs.OpCreate, errorfs.OpLink, errorfs.OpRemove, errorfs.OpRemoveAll, errorfs.OpRename, errorfs.OpReuseForWrite,
		errorfs.OpMkdirAll, errorfs.OpFileWrite, errorfs.OpFileWriteAt, errorfs.OpFileSync,
		errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
		return true
	}
	return false
}

// S11, S14, S23, S34: a random history of appends, promises, truncations, installs and snapshot points is cut
// before file operations of every kind, with none, half or all of the unsynced data kept. What reopens is
// sound and equals the model after some prefix of the writes that contains everything completed before the cut.
func TestPowerCutAtFileOperations(t *testing.T) {
	for _, seed := range seeds(2, 40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			replayHint(t, seed)
			powerCuts(t, seed, mutations{})
		})
	}
}

// powerCuts runs the random history of a seed and cuts it.
func powerCuts(t testing.TB, seed uint64, mistake mutations) {
	rng := rand.New(rand.NewPCG(seed, 1))
	disk := newMemDisk()
	var mu sync.Mutex
	var cuts []cut
	ops := 0
	m := newMember(t)
	var completed func() uint64 = func() uint64 {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.completed
	}
	stride := 2
	if *longFlag {
		stride = 1
	} else if raceDetector {
		stride = 10
	}
	inj := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !isWriteOp(op) {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		ops++
		if ops%stride == 0 {
			c := cut{op: ops, desc: fmt.Sprint(op.Kind, " ", op.Path), completed: completed(), percent: []int{0, 50, 100}[rng.IntN(3)]}
			c.fs = crash(disk, c.percent, rng)
			cuts = append(cuts, c)
		}
		return nil
	})
	o := small(errorfs.Wrap(disk, inj))
	o.mutations = mistake
	o.Completed = m.onCompleted
	l, _, err := Open("d", o)
	if err != nil {
		t.Fatal(err)
	}
	m.log = l
	w := newWorkload(seed)
	if seed%2 == 0 {
		w.scale = 20 // write buffers and WALs change
	}
	for range 120 {
		seq := m.submit(w.next())
		if w.rng.IntN(4) == 0 {
			if err := m.wait(seq); err != nil {
				t.Fatal(err)
			}
		}
	}
	m.do(Write{})
	w.states = append(w.states, w.states[len(w.states)-1])
	m.close()
	mu.Lock()
	all := cuts
	mu.Unlock()
	t.Logf("%d operations, %d cuts", ops, len(all))
	for _, c := range all {
		checkCut(t, w, c, m.seq, rng)
	}
}

func checkCut(t testing.TB, w *workload, c cut, submitted uint64, rng *rand.Rand) {
	t.Helper()
	where := fmt.Sprintf("cut before operation %d (%s), %d%% kept, %d completed", c.op, c.desc, c.percent, c.completed)
	m, r := openMember(t, "d", small(c.fs))
	if r.Suspect != "" {
		t.Fatalf("%s: %v", where, r)
	}
	k, err := w.prefix(m.log, c.completed, submitted)
	if err != nil {
		t.Fatalf("%s: %v", where, err)
	}
	// It goes on from there, also after a second cut right away.
	st := m.log.State()
	if rng.IntN(2) == 0 {
		h := w.states[k].h.clone()
		if st.Accepted > 0 {
			m.do(Write{Append: h.next(st.Accepted, 3, 50)})
		}
		again := crash(c.fs, 0, nil)
		m2, r2 := openMember(t, "d", small(again))
		if r2.Suspect != "" || m2.log.State().Last != h.last {
			t.Fatalf("%s: second cut: %v", where, r2)
		}
		m2.close()
	}
	m.close()
}
