package zab

import (
	"reflect"
	"testing"
)

// TestMutationsAreCaught switches on one deliberate mistake after the other and demands that the random schedules
// notice: the number of seeds it takes is a measure of the checker (zab-rules d, mutation list).
func TestMutationsAreCaught(t *testing.T) {
	const limit = int64(3000)
	typ := reflect.TypeFor[Mutations]()
	first, _ := typ.FieldByName("SyncWithoutRound")
	for i := range first.Index[0] { // those from there on have scripts in ensemble/sim
		name := typ.Field(i).Name
		t.Run(name, func(t *testing.T) {
			if name == "CountAlreadyPromised" {
				t.Skip("too rare here (zab-rules d); TestMutationCountAlreadyPromised is the directed duel")
			}
			var m Mutations
			reflect.ValueOf(&m).Elem().Field(i).SetBool(true)
			for seed := range limit {
				if s := runSchedule(seed, m, false); s.violation != "" {
					t.Logf("seed %d: %s", seed, s.violation)
					return
				}
			}
			t.Errorf("not noticed in %d runs", limit)
		})
	}
}
