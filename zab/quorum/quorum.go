// Package quorum is arithmetic on sets of members: who is configured, who votes, and whether a set of
// voters is a quorum. It is a leaf: the election, the broadcast and everything above share it.
package quorum

import (
	"fmt"
	"slices"
	"strings"
)

// MemberID names a configured member. Zero is no member. ZooKeeper's ids run from 1 to 255 and kvd
// keeps to that range (the id is the high byte of the session ids a member hands out).
type MemberID uint64

// Config is one version of the membership: data that is handed in and carried in messages, so that it
// can be changed at run time later. Both lists are sorted and disjoint. A Config is immutable.
type Config struct {
	Version   uint64
	Voters    []MemberID
	Observers []MemberID
}

// NewConfig returns a Config with sorted copies of the lists.
// It fails if an id is zero, above 255 or listed twice, or if there is no voter.
func NewConfig(version uint64, voters, observers []MemberID) (Config, error) {
	c := Config{Version: version, Voters: slices.Sorted(slices.Values(voters)), Observers: slices.Sorted(slices.Values(observers))}
	seen := map[MemberID]bool{}
	for _, id := range append(slices.Clone(c.Voters), c.Observers...) {
		if id == 0 || id > 255 {
			return Config{}, fmt.Errorf("member id %d is outside 1..255", id)
		}
		if seen[id] {
			return Config{}, fmt.Errorf("member id %d is configured twice", id)
		}
		seen[id] = true
	}
	if len(c.Voters) == 0 {
		return Config{}, fmt.Errorf("no voting member is configured")
	}
	return c, nil
}

// IsVoter reports whether id takes part in quorums.
func (c Config) IsVoter(id MemberID) bool { _, ok := slices.BinarySearch(c.Voters, id); return ok }

// IsObserver reports whether id is a configured non-voting member.
func (c Config) IsObserver(id MemberID) bool {
	_, ok := slices.BinarySearch(c.Observers, id)
	return ok
}

// IsMember reports whether id is configured at all.
func (c Config) IsMember(id MemberID) bool { return c.IsVoter(id) || c.IsObserver(id) }

// Members returns all configured ids in ascending order, in a new slice.
func (c Config) Members() []MemberID {
	all := append(slices.Clone(c.Voters), c.Observers...)
	slices.Sort(all)
	return all
}

// Majority is the number of voters that makes a quorum.
func (c Config) Majority() int { return len(c.Voters)/2 + 1 }

// HasQuorum reports whether the voters for which in returns true are a quorum. Observers and strangers
// never count.
func (c Config) HasQuorum(in func(MemberID) bool) bool {
	n := 0
	for _, id := range c.Voters {
		if in(id) {
			n++
		}
	}
	return n >= c.Majority()
}

// QuorumValue returns the largest v such that a quorum of voters has value(id) >= v: the point up to
// which a quorum agrees, for match points and probe numbers alike. It does not allocate for up to 15 voters.
func (c Config) QuorumValue(value func(MemberID) uint64) uint64 {
	var buf [15]uint64
	vals := buf[:0]
	for _, id := range c.Voters {
		v := value(id)
		i := len(vals)
		vals = append(vals, v)
		for i > 0 && vals[i-1] < v { // insertion sort, descending
			vals[i] = vals[i-1]
			i--
		}
		vals[i] = v
	}
	return vals[c.Majority()-1]
}

// String lists the voters, then the observers.
func (c Config) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "v%d voters %v", c.Version, c.Voters)
	if len(c.Observers) > 0 {
		fmt.Fprintf(&b, " observers %v", c.Observers)
	}
	return b.String()
}
