package explore

import (
	"strings"
	"testing"

	"kvd/fle"
)

// TestFleWithinOneRound explores elections of one round, all of them if they are few.
func TestFleWithinOneRound(t *testing.T) {
	r, err := Run(Fle{Rounds: 1}, Options{Workers: 2, States: 30_000})
	if err != nil {
		t.Fatal(err)
	}
	if r.Violation != nil {
		t.Fatalf("%v\n%s", r.Violation.Err, strings.Join(r.Violation.Script, "\n"))
	}
	t.Log(r.Progress)
	if !r.Exhausted && r.States < 30_000 {
		t.Errorf("%d states", r.States)
	}
}

// TestFleMutant: votes by zxid only settle on a member with a longer history of an older epoch.
func TestFleMutant(t *testing.T) {
	checkFound(t, Fle{Rounds: 1, Mutations: fle.Mutations{VotesByZxidOnly: true}}, "vote order")
}

// TestFleEqualFingerprintsHaveEqualFutures is the same for elections.
func TestFleEqualFingerprintsHaveEqualFutures(t *testing.T) {
	checkFutures(t, Fle{}, 1_000)
}
