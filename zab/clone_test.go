package zab

import (
	"bytes"
	"reflect"
	"testing"
)

// TestCloneContinuesLikeTheOriginal gives members a twin at a random step and both the same inputs from there on: every
// state must have the same canonical form, and every Ready with it.
func TestCloneContinuesLikeTheOriginal(t *testing.T) {
	clones := 0
	for seed := range int64(150) {
		s := newSchedule(seed, Mutations{})
		for i := 0; i < 400 && s.violation == ""; i++ {
			s.step()
			if n := s.pick(); n.p != nil && s.rnd.IntN(20) == 0 {
				n.twin = n.p.Clone(n.disk)
				s.checkTwin(n)
				clones++
			}
		}
		if s.violation == "" {
			s.heal()
		}
		if s.violation != "" {
			t.Fatalf("seed %d: %s", seed, s.violation)
		}
	}
	if clones < 1000 {
		t.Errorf("only %d clones", clones)
	}
}

// TestCloneIsIndependent: what happens to the original after the copy does not show in the copy.
func TestCloneIsIndependent(t *testing.T) {
	h := newHotPath(t)
	h.batch(t, 10)
	p := h.peers[3]
	if _, err := p.Propose(h.payload); err != nil {
		t.Fatal(err)
	}
	q := p.Clone(emptyHistory{})
	before := q.AppendCanonical(nil)
	if !bytes.Equal(before, p.AppendCanonical(nil)) {
		t.Fatal("the copy differs at once")
	}
	h.batch(t, 10)
	p.Look("gone")
	if !bytes.Equal(before, q.AppendCanonical(nil)) {
		t.Error("the copy changed with the original")
	}
	if rd := q.Ready(); len(rd.Writes) != 1 || len(rd.Writes[0].Append) != 1 {
		t.Errorf("the copy's write became %v", rd.Writes)
	}
}

// TestEqualRunsHaveEqualForms: two members with the same inputs have the same canonical form, and different ones differ.
func TestEqualRunsHaveEqualForms(t *testing.T) {
	forms := map[string]int64{}
	for seed := range int64(40) {
		a, b := runSchedule(seed, Mutations{}, false), runSchedule(seed, Mutations{}, false)
		var forma, formb []byte
		for _, id := range a.members.Members() {
			forma, formb = a.nodes[id].p.AppendCanonical(forma), b.nodes[id].p.AppendCanonical(formb)
		}
		if !bytes.Equal(forma, formb) {
			t.Fatalf("seed %d: equal runs, different forms", seed)
		}
		if other, ok := forms[string(forma)]; ok {
			t.Errorf("seeds %d and %d have the same form", seed, other)
		}
		forms[string(forma)] = seed
	}
}

// TestCanonicalFormKnowsEveryField pins the number of fields: whoever adds one has to decide whether it belongs into
// AppendCanonical and AppendAbstract, and whether Clone must copy it.
func TestCanonicalFormKnowsEveryField(t *testing.T) {
	for _, tc := range []struct {
		v    any
		want int
	}{
		{Peer{}, 29}, {leader{}, 27}, {progress{}, 29}, {learner{}, 27}, {inflightWrite{}, 13}, {Ready{}, 15}, {Write{}, 8},
		{DurableState{}, 10}, {tail{}, 6}, {window{}, 3}, {sentBatch{}, 4}, {syncWait{}, 5}, {parkedLink{}, 3}, {syncPlan{}, 5},
	} {
		if got := reflect.TypeOf(tc.v).NumField(); got != tc.want {
			t.Errorf("%T has %d fields, the canonical form was written for %d", tc.v, got, tc.want)
		}
	}
}
