package sim

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestKeptSchedules runs every schedule that once broke a property, cut down to the faults that it took.
func TestKeptSchedules(t *testing.T) {
	files, err := filepath.Glob("testdata/schedules/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%v %v", files, err)
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		c, err := ParseSchedule(f)
		_ = f.Close()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if r := Run(c); r.Err != nil {
			t.Errorf("%s: %v\nreplay: go run ./ensemble/sim/run -script ensemble/sim/%s -trace", name, r.Err, name)
		}
	}
}

// TestScriptedIsTheSame: a schedule and the list of faults that it drew make the same history, also by way of a file.
func TestScriptedIsTheSame(t *testing.T) {
	for seed := uint64(1); seed <= 20; seed++ {
		a := Run(Schedule{Seed: seed, Steps: 400, Trace: true})
		var file bytes.Buffer
		c := Schedule{Seed: seed, Steps: 400, Faults: a.Faults}
		if _, err := c.WriteTo(&file); err != nil {
			t.Fatal(err)
		}
		d, err := ParseSchedule(&file)
		if err != nil {
			t.Fatal(err)
		}
		d.Trace = true
		b := Run(d)
		if !slices.Equal(a.Faults, b.Faults) || !bytes.Equal(a.Trace, b.Trace) {
			t.Fatalf("seed %d: drawn and scripted differ from byte %d on", seed, firstDifference(a.Trace, b.Trace))
		}
	}
}

func TestParseScheduleRefuses(t *testing.T) {
	for _, text := range []string{"at 5 nothing 1 0 0 0", "at x crash 1 0 0 0", "schedule seed=x", "crash 1"} {
		if _, err := ParseSchedule(strings.NewReader("schedule seed=1 steps=2 members=3\n" + text + "\n")); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestShrink: a mistake that a random schedule finds among dozens of faults comes down to a handful, each of them needed.
func TestShrink(t *testing.T) {
	for _, m := range Mutants() {
		if m.Name != "registration kept across links" && m.Name != "truncation against the committed part" {
			continue
		}
		_, found := m.Hunt(1, 500)
		if found == nil {
			t.Fatalf("%s: not found", m.Name)
		}
		c := Schedule{Seed: found.Seed, Steps: 500}
		m.Apply(&c)
		short, r := Shrink(c, *found, 2000)
		t.Logf("%s: %d faults, cut down to %v", m.Name, len(found.Faults), short.Faults)
		if r.Err == nil || property(r.Err) != property(found.Err) {
			t.Fatalf("%s: found %v, cut down to %v", m.Name, found.Err, r.Err)
		}
		if len(short.Faults) > 8 {
			t.Errorf("%s: %d faults are left: %v", m.Name, len(short.Faults), short.Faults)
		}
		for i := range short.Faults {
			d := short
			d.Faults = slices.Delete(slices.Clone(short.Faults), i, i+1)
			if again := Run(d); again.Err != nil && property(again.Err) == property(r.Err) {
				t.Errorf("%s: %v is not needed", m.Name, short.Faults[i])
			}
		}
	}
}

// TestCoverage: random schedules meet every fault and every way that the protocol can go.
func TestCoverage(t *testing.T) {
	seen := map[string]int{}
	seeds := uint64(700)
	if testing.Short() {
		t.Skip("needs many schedules to meet everything")
	}
	for seed := uint64(1); seed <= seeds; seed++ {
		r := Run(Schedule{Seed: seed, Steps: 500})
		if r.Err != nil {
			t.Fatalf("seed %d: %v", seed, r.Err)
		}
		for k, n := range r.Events {
			seen[k] += n
		}
		for k, n := range r.Messages {
			seen["message:"+k] += n
		}
	}
	want := []string{"abdicate", "re-epoch", "session-expired", "removed-by-leader", "diverged", "row:1 DIFF", "row:4 SNAP", "row:5 TRUNC",
		"multi:done", "multi:refused", "watch:event", "watch:armed-again", "watch:caught-up",
		"message:SNAP", "message:TRUNC", "message:RESIGN", "message:INFORM", "message:REFUSE", "message:SYNCREPLY"}
	for verb := range faultVerbs {
		want = append(want, "fault:"+verb)
	}
	slices.Sort(want)
	for _, k := range want {
		if seen[k] == 0 {
			t.Errorf("%s never happened in %d schedules", k, seeds)
		}
	}
	if t.Failed() {
		t.Logf("%v", seen)
	}
}
