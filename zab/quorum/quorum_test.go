package quorum

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func config(t testing.TB, voters, observers []MemberID) Config {
	t.Helper()
	c, err := NewConfig(7, voters, observers)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestNewConfig(t *testing.T) {
	in := []MemberID{3, 1, 2}
	c := config(t, in, []MemberID{255, 9})
	if !slices.Equal(c.Voters, []MemberID{1, 2, 3}) || !slices.Equal(c.Observers, []MemberID{9, 255}) {
		t.Errorf("lists are not sorted: %v", c)
	}
	if !slices.Equal(in, []MemberID{3, 1, 2}) {
		t.Errorf("the caller's list was changed to %v", in)
	}
	if got := c.Members(); !slices.Equal(got, []MemberID{1, 2, 3, 9, 255}) {
		t.Errorf("Members: got %v", got)
	}
	if got, want := c.String(), "v7 voters [1 2 3] observers [9 255]"; got != want {
		t.Errorf("String: got %q, want %q", got, want)
	}
	for _, id := range []MemberID{0, 1, 3, 4, 9, 255} {
		voter, observer := id == 1 || id == 3, id == 9 || id == 255
		if c.IsVoter(id) != voter || c.IsObserver(id) != observer || c.IsMember(id) != (voter || observer) {
			t.Errorf("%d: voter %v observer %v member %v", id, c.IsVoter(id), c.IsObserver(id), c.IsMember(id))
		}
	}
	for name, lists := range map[string][2][]MemberID{
		"no voter":               {nil, {1}},
		"zero":                   {{0, 1}, nil},
		"above 255":              {{1, 256}, nil},
		"twice":                  {{1, 1}, nil},
		"voter and observer":     {{1, 2}, {2}},
		"zero among observers":   {{1}, {0}},
		"twice among observers":  {{1}, {2, 2}},
		"above 255, as observer": {{1}, {1 << 40}},
	} {
		if c, err := NewConfig(1, lists[0], lists[1]); err == nil {
			t.Errorf("%s: accepted as %v", name, c)
		}
	}
}

func TestMajority(t *testing.T) {
	for n, want := range map[int]int{1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 4} {
		if got := config(t, firstMembers(n), nil).Majority(); got != want {
			t.Errorf("%d voters: got %d, want %d", n, got, want)
		}
	}
}

// Any two quorums intersect, over all pairs of subsets: the one fact that every argument of the protocol uses.
// And observers and strangers never make a set a quorum.
func TestQuorumsIntersect(t *testing.T) {
	for n := 1; n <= 6; n++ {
		c := config(t, firstMembers(n), []MemberID{100, 101, 102, 103, 104, 105})
		quorums := 0
		for a := range 1 << n {
			in := func(set int) func(MemberID) bool {
				return func(id MemberID) bool { return id > 6 || set&(1<<(id-1)) != 0 }
			}
			if !c.HasQuorum(in(a)) {
				continue
			}
			quorums++
			for b := range 1 << n {
				if c.HasQuorum(in(b)) && a&b == 0 {
					t.Fatalf("%d voters: %b and %b are disjoint quorums", n, a, b)
				}
			}
		}
		if quorums == 0 || c.HasQuorum(func(id MemberID) bool { return id > 6 }) {
			t.Errorf("%d voters: %d quorums, observers alone: %v", n, quorums, c.HasQuorum(func(id MemberID) bool { return id > 6 }))
		}
	}
}

// QuorumValue against its definition: a quorum has at least v, and no quorum has more.
func TestQuorumValue(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		c := config(t, firstMembers(1+rng.IntN(17)), []MemberID{200})
		values := map[MemberID]uint64{200: ^uint64(0)}
		for _, id := range c.Voters {
			values[id] = rng.Uint64N(6)
			if rng.IntN(8) == 0 {
				values[id] = ^uint64(0)
			}
		}
		got := c.QuorumValue(func(id MemberID) uint64 { return values[id] })
		if !c.HasQuorum(func(id MemberID) bool { return values[id] >= got }) {
			t.Fatalf("%v: %d is not held by a quorum", values, got)
		}
		if got != ^uint64(0) && c.HasQuorum(func(id MemberID) bool { return values[id] > got }) {
			t.Fatalf("%v: a quorum has more than %d", values, got)
		}
	}
}

// QuorumValue runs for every ack of the broadcast.
func TestQuorumValueDoesNotAllocate(t *testing.T) {
	c := config(t, firstMembers(15), nil)
	match := make([]uint64, 16)
	var sum uint64
	if n := testing.AllocsPerRun(100, func() { sum += c.QuorumValue(func(id MemberID) uint64 { return match[id] }) }); n != 0 {
		t.Errorf("%v allocations for 15 voters, want 0", n)
	}
}

func firstMembers(n int) []MemberID {
	var ids []MemberID
	for i := range n {
		ids = append(ids, MemberID(i+1))
	}
	return ids
}

func BenchmarkQuorumValue(b *testing.B) {
	c := config(b, firstMembers(5), nil)
	match := []uint64{0, 9, 4, 7, 1, 8}
	b.ReportAllocs()
	for b.Loop() {
		c.QuorumValue(func(id MemberID) uint64 { return match[id] })
	}
}
