package history

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// state is what a group holds.
type state struct {
	value   [MaxKeys]uint64
	version [MaxKeys]int32
}

// model is the sequential behaviour of one group of keys. The input of an operation is its *Op, which holds the
// output as well.
var model = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(s, input, _ any) (bool, any) {
		ok, next := step(s.(state), input.(*Op))
		return ok, next
	},
	DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", *input.(*Op)) },
}

func step(s state, o *Op) (bool, state) {
	first := o.First()
	if o.Kind == SyncRead {
		return s.value[first] == o.Value && s.version[first] == o.Versions[first], s
	}
	applies := o.Expected == AnyVersion || s.version[first] == o.Expected
	switch {
	case o.Outcome == Failed: // only those with Mismatch are here
		return !applies, s
	case !applies:
		return o.Outcome == Unknown, s
	}
	for i := range MaxKeys {
		if !o.Has(i) {
			continue
		}
		s.value[i] = o.Value
		s.version[i]++
		if o.Outcome == OK && s.version[i] != o.Versions[i] {
			return false, s
		}
	}
	return true, s
}

// Verdict is the result of checking all groups.
type Verdict struct {
	Groups  int // histories checked
	Ops     int // operations in them
	Illegal []uint32
	Unknown []uint32 // groups whose check did not end in its time: a failure as well
	Slowest time.Duration
}

// OK reports whether every history was proved linearizable.
func (v Verdict) OK() bool { return len(v.Illegal) == 0 && len(v.Unknown) == 0 }

// String is the verdict in a few words.
func (v Verdict) String() string {
	if v.OK() {
		return fmt.Sprintf("porcupine ok (%d operations in %d histories, slowest %v)", v.Ops, v.Groups, v.Slowest.Round(time.Millisecond))
	}
	return fmt.Sprintf("porcupine FAILED (%d histories not linearizable, %d undecided, of %d)", len(v.Illegal), len(v.Unknown), v.Groups)
}

// Linearizable checks each group's history by itself, for at most limit each: acknowledged writes, refused
// conditions and reads behind a sync must fit one order that respects real time; a write of unknown outcome may
// have happened at any time behind its call, or never; what a write failed with otherwise did not happen.
func Linearizable(ops []Op, limit time.Duration) Verdict {
	groups := map[uint32][]porcupine.Operation{}
	for i := range ops {
		o := &ops[i]
		if o.Outcome == Failed && !o.Mismatch || o.Kind == SyncRead && o.Outcome != OK {
			continue
		}
		groups[o.Group] = append(groups[o.Group], porcupine.Operation{ClientId: i, Input: o, Call: o.Invoke, Output: o, Return: o.end()})
	}
	v := Verdict{Groups: len(groups)}
	work := make(chan uint32)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for id := range work {
				start := time.Now()
				result := porcupine.CheckOperationsTimeout(model, groups[id], limit)
				took := time.Since(start)
				mu.Lock()
				v.Ops += len(groups[id])
				v.Slowest = max(v.Slowest, took)
				switch result {
				case porcupine.Illegal:
					v.Illegal = append(v.Illegal, id)
				case porcupine.Unknown:
					v.Unknown = append(v.Unknown, id)
				}
				mu.Unlock()
			}
		})
	}
	for id := range groups {
		work <- id
	}
	close(work)
	wg.Wait()
	slices.Sort(v.Illegal)
	slices.Sort(v.Unknown)
	return v
}
