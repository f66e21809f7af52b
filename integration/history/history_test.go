package history_test

import (
	"strings"
	"testing"

	. "kvd/integration/history"
)

// Each case takes a sound recording with its final tree, spoils one thing and names what the checker must say.
func TestCheckFindsEachContradiction(t *testing.T) {
	cases := []struct {
		name  string
		spoil func(r *Recorder, nodes map[string]Node)
		want  string // "" means no complaint
	}{
		{"sound", func(*Recorder, map[string]Node) {}, ""},
		{"unknown applied", func(r *Recorder, n map[string]Node) {
			r.Set(Set{Path: "/k", Value: "c", Expected: 2, Outcome: Unknown})
			n["/k"] = Node{Value: "c", Version: 3}
		}, ""},
		{"unknown not applied", func(r *Recorder, n map[string]Node) {
			r.Set(Set{Path: "/k", Value: "c", Expected: 2, Outcome: Unknown})
		}, ""},
		{"last set lost", func(_ *Recorder, n map[string]Node) { n["/k"] = Node{Value: "a", Version: 1} }, "LOST: \"b\""},
		{"set overwritten at its version", func(_ *Recorder, n map[string]Node) { n["/k"] = Node{Value: "a", Version: 2} }, "made version 1 but is there at version 2"},
		{"node gone", func(_ *Recorder, n map[string]Node) { delete(n, "/k") }, "is gone"},
		{"a write nobody made", func(_ *Recorder, n map[string]Node) { n["/k"] = Node{Value: "b", Version: 3} }, "version 3 was made by no write"},
		{"refused set is there", func(r *Recorder, n map[string]Node) {
			r.Set(Set{Path: "/k", Value: "x", Expected: 2, Outcome: Failed})
			n["/k"] = Node{Value: "x", Version: 3}
		}, "although its write was refused"},
		{"one version acknowledged twice", func(r *Recorder, _ map[string]Node) {
			r.Set(Set{Path: "/k", Value: "y", Expected: 1, Version: 2, Outcome: OK})
		}, "version 2 was acknowledged to"},
		{"create lost", func(_ *Recorder, n map[string]Node) { delete(n, "/s/w-0000000000") }, "LOST: create of /s/w-0000000000"},
		{"create repeated", func(_ *Recorder, n map[string]Node) { n["/s/w-0000000009"] = Node{Value: "s0", Version: 0} }, "applied twice"},
		{"unknown create repeated", func(r *Recorder, n map[string]Node) {
			r.Create(Create{Prefix: "/s/w-", Value: "s8", Outcome: Unknown})
			n["/s/w-0000000008"] = Node{Value: "s8", Version: 0}
			n["/s/w-0000000009"] = Node{Value: "s8", Version: 0}
		}, "applied twice"},
		{"refused create is there", func(r *Recorder, n map[string]Node) {
			r.Create(Create{Prefix: "/s/w-", Value: "s8", Outcome: Failed})
			n["/s/w-0000000008"] = Node{Value: "s8", Version: 0}
		}, "although its create was refused"},
		{"stranger", func(_ *Recorder, n map[string]Node) { n["/s/w-0000000009"] = Node{Value: "?", Version: 0} }, "no create sent"},
		{"other content", func(_ *Recorder, n map[string]Node) { n["/s/w-0000000000"] = Node{Value: "s1", Version: 0} }, "holds \"s1\""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := NewRecorder()
			r.Set(Set{Path: "/k", Value: "a", Expected: 0, Version: 1, Outcome: OK})
			r.Set(Set{Path: "/k", Value: "z", Expected: 0, Outcome: Failed})
			r.Set(Set{Path: "/k", Value: "b", Expected: 1, Version: 2, Outcome: OK})
			r.Create(Create{Prefix: "/s/w-", Value: "s0", Path: "/s/w-0000000000", Outcome: OK})
			r.Create(Create{Prefix: "/s/w-", Value: "s1", Path: "/s/w-0000000001", Outcome: OK})
			nodes := map[string]Node{"/k": {Value: "b", Version: 2}, "/s/w-0000000000": {Value: "s0", Version: 0}, "/s/w-0000000001": {Value: "s1", Version: 0}, "/s": {Value: "", Version: 0}}
			c.spoil(r, nodes)
			var all []string
			for _, err := range r.Check(nodes) {
				all = append(all, err.Error())
			}
			got := strings.Join(all, "\n")
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
