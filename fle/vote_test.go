package fle

import (
	"testing"

	"kvd/kv"
)

// The order of votes is a table: epoch, then zxid, then id; and exactly one of two different votes wins.
func TestVoteOrder(t *testing.T) {
	v := func(id uint8, e kv.Epoch, z kv.Zxid) Vote { return Vote{Leader: memberOf(id), Epoch: e, Zxid: z} }
	z := kv.MakeZxid
	for _, c := range []struct {
		name          string
		better, worse Vote
		byZxid        bool // the mutation agrees
	}{
		{"epoch decides", v(1, 2, z(1, 5)), v(1, 1, z(1, 5)), false},
		{"epoch before zxid (ZK-1082)", v(1, 2, z(1, 5)), v(2, 1, z(1, 900)), false},
		{"epoch before id", v(1, 2, z(1, 5)), v(3, 1, z(1, 5)), false},
		{"zxid decides", v(1, 2, z(2, 6)), v(1, 2, z(2, 5)), true},
		{"zxid before id", v(1, 2, z(2, 6)), v(3, 2, z(2, 5)), true},
		{"zxid is unsigned 64 bit", v(1, 1, z(0x80000000, 1)), v(3, 1, z(0x7fffffff, kv.MaxCounter)), true},
		{"id decides", v(3, 2, z(2, 5)), v(2, 2, z(2, 5)), true},
		{"anybody beats nobody", v(1, 0, 0), Vote{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !c.better.Beats(c.worse) || c.worse.Beats(c.better) {
				t.Errorf("%s against %s: got %v and %v, want true and false", c.better, c.worse, c.better.Beats(c.worse), c.worse.Beats(c.better))
			}
			if c.better.Beats(c.better) {
				t.Errorf("%s beats itself", c.better)
			}
			m := Mutations{VotesByZxidOnly: true}
			if got := m.beats(c.better, c.worse); got != c.byZxid {
				t.Errorf("by zxid only: got %v, want %v", got, c.byZxid)
			}
		})
	}
}
