package zab

import (
	"reflect"
	"testing"
)

// TestMutationsAreCaught switches on one deliberate mistake after the other and demands that the random schedules
// notice: the number of seeds it takes is a measure of the checker (zab-rules d, mutation list).
func TestMutationsAreCaught(t *testing.T) {
	limits := map[string]int64{
		"CountAlreadyPromised": 0, // too rare here (zab-rules d): the directed S07 catches it
		"RecencyByZxidOnly":    12000,
	}
	typ := reflect.TypeFor[Mutations]()
	for i := range typ.NumField() {
		name := typ.Field(i).Name
		t.Run(name, func(t *testing.T) {
			limit, special := limits[name]
			switch {
			case special && limit == 0:
				t.Skip("caught by the directed TestMutationCountAlreadyPromised")
			case special && testing.Short():
				t.Skip("caught by the directed TestMutationRecencyByZxidOnly")
			case !special:
				limit = max(3000, runs())
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
