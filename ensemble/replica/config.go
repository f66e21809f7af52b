package replica

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"kvd/fle"
	"kvd/kv"
	"kvd/zab"
	"kvd/zab/quorum"
)

// Config describes one member. Zero numbers take the defaults named beside them; the shell decides how long
// a tick is.
type Config struct {
	ID      quorum.MemberID
	Members quorum.Config
	// Rand feeds jitter of the election; the shell seeds it. Incarnation returns a new unique value for each
	// attempt to lead.
	Rand        *rand.Rand
	Incarnation func() zab.Incarnation

	// TickMs is the length of a tick in milliseconds (50). Only session time-outs use it.
	TickMs int

	// Limits of the broadcast; see zab.Config, which also has their defaults.
	InitTicks, SyncTicks, StallTicks, PingTicks int
	TailBytes, WindowBytes, WindowEntries       int
	MaxOutstandingBytes, MaxOutstandingEntries  int
	MaxBatchBytes, MaxPayloadBytes, StageBytes  int
	HangMs                                      uint32
	DiffShare                                   int
	RolloverCounter                             uint32
	// Timers of the election; see fle.Config.
	FinalizeTicks, ResendTicks, ResendMaxTicks int
	// Protocol and Format are the versions that this binary can serve (1-1).
	Protocol, Format zab.VersionRange

	// MinSessionTimeoutMs and MaxSessionTimeoutMs clamp what clients ask for (100, 3,600,000).
	MinSessionTimeoutMs, MaxSessionTimeoutMs int32
	// MaxQueuedOps and MaxQueuedBytes bound own operations that wait for a leader or for room (65,536, 64 MiB).
	// When full, Submit refuses.
	MaxQueuedOps, MaxQueuedBytes int
	// MaxForwardedOps and MaxForwardedBytes bound own operations outstanding at the leader, this member or another (16,384, 16 MiB),
	// and thereby what a leader holds for one link. When full, operations wait in the queue.
	MaxForwardedOps, MaxForwardedBytes int
	// Preparer has the settings by which this member decides requests while it leads.
	Preparer kv.PreparerOptions

	// ContainerTicks is how often the leader looks for containers and nodes with a time to live to remove, 0 never;
	// ContainerMaxPerMinute (10,000) how many it removes. A container that never had a child goes when it has not been
	// written for ContainerNeverUsedMs, 0 never.
	ContainerTicks, ContainerMaxPerMinute int
	ContainerNeverUsedMs                  int64

	// AuditTicks is how often a leader has the members compare their trees (20).
	AuditTicks int
	// QueueTicks: a waiting operation older than this is reported NotSent (200).
	QueueTicks int
	// ShutdownTicks: outstanding operations get this long to finish (40).
	ShutdownTicks int

	ZabMutations      zab.Mutations // deliberate mistakes for tests of the simulator; zero = none
	ElectionMutations fle.Mutations
	Mutations         Mutations
}

// Mutations are deliberate mistakes of the replica itself, for tests of the simulator; zero = none.
type Mutations struct {
	// SendBehindFailure leaves in the queue what waits behind a lost operation of its connection.
	SendBehindFailure bool
	// ReapBlindly removes what the leader's look found reapable without looking again.
	ReapBlindly bool

	// The following are noticed by the catalogue's scripts in ensemble/sim, each by that of its scenario.

	// ExpireAfterGap: a leader that slept expires sessions before a quorum has answered it (S43).
	ExpireAfterGap bool
	// CloseListsNodes: the transaction that ends a session has room for all paths that it removes (S40).
	CloseListsNodes bool
	// DeafAfterMalformed: after a malformed notification no other one is read (S50, ZK-3769).
	DeafAfterMalformed bool
	// WallClockExpiry: deadlines of sessions follow the wall clock (S57).
	WallClockExpiry bool
	// WriteAfterClose: a session takes writes until its end is applied, not until it is proposed (S58).
	WriteAfterClose bool
	// ValidityFromTree: whether a session exists is answered from the applied tree alone (S59).
	ValidityFromTree bool
	// VoteUndrained: an election begins although writes of the previous role are still on their way to the disk (S20).
	VoteUndrained bool

	// The following are noticed by random schedules too.

	// AnyPassword lets a session be resumed with any password.
	AnyPassword bool
	// ResumeUnasked has a member that follows answer a resume from its own tree instead of asking the leader.
	ResumeUnasked bool
	// KeepMoved takes writes of a session from a member that it has left.
	KeepMoved bool
	// NoFullTimeout has a new leader end sessions that it has not heard of by its second tick (S57).
	NoFullTimeout bool
}

func orDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func (c Config) withDefaults() Config {
	one := zab.VersionRange{Min: 1, Max: 1}
	orDefault(&c.TickMs, 50)
	orDefault(&c.Protocol, one)
	orDefault(&c.Format, one)
	orDefault(&c.SyncTicks, 20)
	orDefault(&c.PingTicks, max(1, c.SyncTicks/4))
	orDefault(&c.MaxBatchBytes, 1<<20)
	orDefault(&c.MaxPayloadBytes, 16<<20)
	orDefault(&c.MinSessionTimeoutMs, 100)
	orDefault(&c.MaxSessionTimeoutMs, 3_600_000)
	orDefault(&c.MaxQueuedOps, 65_536)
	orDefault(&c.MaxQueuedBytes, 64<<20)
	orDefault(&c.MaxForwardedOps, 16_384)
	orDefault(&c.MaxForwardedBytes, 16<<20)
	orDefault(&c.ContainerMaxPerMinute, 10_000)
	orDefault(&c.AuditTicks, 20)
	orDefault(&c.QueueTicks, 200)
	orDefault(&c.ShutdownTicks, 40)
	return c
}

// validate reports everything that is wrong at once; zab checks its own part.
func (c Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.TickMs < 1 {
		bad("TickMs is %d, must be positive", c.TickMs)
	}
	if c.MinSessionTimeoutMs < 1 || c.MinSessionTimeoutMs > c.MaxSessionTimeoutMs {
		bad("session time-outs from %d to %d ms make no range", c.MinSessionTimeoutMs, c.MaxSessionTimeoutMs)
	}
	if c.ContainerTicks < 0 || c.ContainerNeverUsedMs < 0 {
		bad("ContainerTicks %d or ContainerNeverUsedMs %d is negative", c.ContainerTicks, c.ContainerNeverUsedMs)
	}
	for _, f := range []struct {
		name string
		v    int
	}{
		{"MaxQueuedOps", c.MaxQueuedOps}, {"MaxQueuedBytes", c.MaxQueuedBytes}, {"MaxForwardedOps", c.MaxForwardedOps},
		{"MaxForwardedBytes", c.MaxForwardedBytes}, {"QueueTicks", c.QueueTicks}, {"ContainerMaxPerMinute", c.ContainerMaxPerMinute}, {"ShutdownTicks", c.ShutdownTicks},
	} {
		if f.v < 1 {
			bad("%s is %d, must be positive", f.name, f.v)
		}
	}
	return errors.Join(errs...)
}

// maxOpBytes is the size up to which an operation is taken: its transaction must fit into one payload, and a
// transaction is at most a little larger than the request it was made from, plus names that the tree knows.
func (c Config) maxOpBytes() int { return min(c.MaxPayloadBytes/2, c.MaxForwardedBytes) }
