package wal

import (
	"fmt"
	"runtime"
	"testing"
)

// trial is a testing.TB that keeps a failure to itself.
type trial struct {
	testing.TB
	failure string
}

func (t *trial) fail(format string, args ...any) {
	if t.failure == "" {
		t.failure = fmt.Sprintf(format, args...)
	}
}

func (t *trial) Helper()             {}
func (t *trial) Logf(string, ...any) {}
func (t *trial) Failed() bool        { return t.failure != "" }
func (t *trial) Error(args ...any)   { t.fail("%s", fmt.Sprint(args...)) }
func (t *trial) Errorf(format string, args ...any) {
	t.fail(format, args...)
}
func (t *trial) Fatal(args ...any) {
	t.fail("%s", fmt.Sprint(args...))
	runtime.Goexit()
}
func (t *trial) Fatalf(format string, args ...any) {
	t.fail(format, args...)
	runtime.Goexit()
}

// try runs a test and returns how it failed, "" if it did not.
func try(t *testing.T, test func(testing.TB)) string {
	tr := &trial{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		test(tr)
	}()
	<-done
	return tr.failure
}

// TestMutantsAreCaught switches each deliberate mistake on and demands that the power cuts notice it.
func TestMutantsAreCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the power cuts many times")
	}
	const budget = 6
	for _, c := range []struct {
		name    string
		mistake mutations
	}{
		{"reported before its sync", mutations{ackUnsynced: true}},
		{"truncation and what follows it in two batches", mutations{twoBatches: true}},
		{"watermark before its batch", mutations{markFirst: true}},
		{"generation kept at a truncation", mutations{generationKept: true}},
		{"one entry too many dropped", mutations{dropOneMore: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= budget; seed++ {
				if failure := try(t, func(t testing.TB) { powerCuts(t, seed, c.mistake) }); failure != "" {
					t.Logf("caught by seed %d: %.200s", seed, failure)
					return
				}
			}
			t.Fatalf("%d seeds did not catch it", budget)
		})
	}
}
