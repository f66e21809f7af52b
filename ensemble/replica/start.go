package replica

import (
	"errors"

	"kvd/kv"
	"kvd/zab"
)

// Identity is what the member's disk said about who it is (design rule 8). Whether the member is trusted is said by
// Start.Durable.Unknown: false only for a member whose history is complete as far as it can know.
type Identity struct {
	// ClusterID is zero for a blank member: neither the identity file nor the log store knows one.
	ClusterID [16]byte
	// Suspect: identity file and log store do not agree, or the log fails its checks. Start.Durable.Unknown is then set.
	Suspect bool
	// Bootstrap lets a blank member mint at once (--bootstrap).
	Bootstrap bool
	// Run numbers this run: not zero, and never used before by this member. Random in production.
	Run uint64
	// Mint is the cluster id to use if this member is the one that mints: random, not zero.
	Mint [16]byte
}

// Start is what a member finds on its disk.
type Start struct {
	Durable  zab.DurableState
	Identity Identity
	// Applied is the zxid of the tree that the shell loaded (newest snapshot; the log above it is applied as it commits).
	Applied kv.Zxid
	// View returns the newest applied state. The leader prepares against it.
	View func() *kv.View
	// Digests are those of the tree that View shows, for the comparison between members; nil: it is not done.
	Digests Digests
	// History is the durable log's index.
	History zab.History
}

// Digests is what a tree remembers of its digests. *kv.Tree is one.
type Digests interface {
	// DigestAt is the digest right after a transaction, if it is remembered.
	DigestAt(kv.Zxid) (digest uint64, ok bool)
	// NewestDigest is the newest one that all members remember, the zero value if there is none yet.
	NewestDigest() kv.DigestAt
}

func (s Start) validate() error {
	switch {
	case s.View == nil || s.History == nil:
		return errors.New("a member needs View and History")
	case s.Identity.Run == 0 || s.Identity.Mint == [16]byte{}:
		return errors.New("a member needs Identity.Run and Identity.Mint, also if it knows who it is")
	}
	return nil
}
