package zab

import (
	"errors"
	"fmt"

	"kvd/kv"
	"kvd/zab/quorum"
)

// Errors of Propose.
var (
	// ErrNotLeader: this member does not lead, or is not established yet. Nothing was proposed.
	ErrNotLeader = errors.New("not the established leader")
	// ErrBusy: a bound on outstanding proposals is reached, an epoch change is running, or the leader is
	// handing over. Nothing was proposed; the caller keeps the request and tries again later.
	ErrBusy = errors.New("the leader takes no proposals right now")
	// ErrTooLarge: the payload exceeds Config.MaxPayloadBytes; it could not be shipped in one frame.
	ErrTooLarge = errors.New("the payload exceeds the proposal limit")
)

// Config is what a Peer needs to know. Zero fields take the defaults named at each.
type Config struct {
	ID      quorum.MemberID
	Members quorum.Config
	// Incarnation returns a new value for each attempt to lead: unique in every run of every member,
	// never zero. Random in production, a counter in tests.
	Incarnation func() Incarnation

	// InitTicks bounds, in ticks without progress, discovery and synchronization; default 40.
	InitTicks int
	// SyncTicks bounds silence: a leader's without a quorum, a learner's without its leader; default 20.
	SyncTicks int
	// StallTicks bounds what waits for a disk: the leader's own unfinished write, a learner's oldest unacked
	// proposal; at least SyncTicks, default 5 times that.
	StallTicks int
	// PingTicks is the distance of PING rounds; default a quarter of SyncTicks, at least 1.
	PingTicks int

	TailBytes     int // recent entries kept in memory; default 16 MiB
	WindowBytes   int // unacked payload bytes per link; default 8 MiB
	WindowEntries int // unacked entries per link; default 16384
	// Uncommitted at the leader, and likewise handed to the applier and not applied yet.
	MaxOutstandingBytes   int // of payload; default 32 MiB
	MaxOutstandingEntries int // default 32768
	MaxBatchBytes         int // payload bytes in one message; default 1 MiB
	MaxPayloadBytes       int // one payload; default 16 MiB
	// StageBytes: a learner writes a longer history in stages, each but the last with the old current
	// epoch (zab-rules c, phase 2, and f); default 8 MiB.
	StageBytes int
	// HangMs: a leader whose own oldest write is older resigns if the others are well (design rule 10);
	// default 1000.
	HangMs uint32
	// DiffShare is row 8 of the synchronization table: SNAP instead of a DIFF of more than DiffShare percent
	// of the snapshot's bytes. 0 never does. It needs a History that is also a SyncCosts.
	DiffShare int

	Protocol, Format VersionRange // what this binary can serve
	Levels           Levels       // active levels; later changes arrive by SetLevels

	// RolloverCounter: the leader starts a new epoch over its existing links when the counter would reach
	// this value (zab-rules c, counter rollover); default 2^32 - 2^16.
	RolloverCounter uint32

	// Mutations are deliberate mistakes for tests; the zero value has none.
	Mutations Mutations
}

// History is the leader's synchronous view of its own durable log, and the learner's when it verifies a
// TRUNC. Locate must be cheap (an index look-up).
type History interface {
	// Locate returns the greatest durable entry (or base, or log start) at or below z with its digest
	// chain; ok is false if z lies below the log start.
	Locate(z kv.Zxid) (at kv.Zxid, chain uint64, ok bool)
}

// SyncCosts is optionally implemented by a History, for row 8 of the synchronization table.
type SyncCosts interface {
	// DiffBytes estimates the bytes of the entries after z, SnapshotBytes those of the newest snapshot.
	DiffBytes(after kv.Zxid) int64
	SnapshotBytes() int64
}

func defaultInt(p *int, v int) {
	if *p == 0 {
		*p = v
	}
}

// withDefaults fills zero fields and reports everything wrong at once.
func (c Config) withDefaults() (Config, error) {
	defaultInt(&c.InitTicks, 40)
	defaultInt(&c.SyncTicks, 20)
	defaultInt(&c.StallTicks, 5*c.SyncTicks)
	defaultInt(&c.PingTicks, max(1, c.SyncTicks/4))
	defaultInt(&c.TailBytes, 16<<20)
	defaultInt(&c.WindowBytes, 8<<20)
	defaultInt(&c.WindowEntries, 16384)
	defaultInt(&c.MaxOutstandingBytes, 32<<20)
	defaultInt(&c.MaxOutstandingEntries, 32768)
	defaultInt(&c.MaxBatchBytes, 1<<20)
	defaultInt(&c.MaxPayloadBytes, 16<<20)
	defaultInt(&c.StageBytes, 8<<20)
	if c.HangMs == 0 {
		c.HangMs = 1000
	}
	if c.RolloverCounter == 0 {
		c.RolloverCounter = kv.MaxCounter - 1<<16 + 1
	}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !c.Members.IsMember(c.ID) {
		bad("member %d is not in the configuration (%s)", c.ID, c.Members)
	}
	if c.Incarnation == nil {
		bad("Incarnation is required")
	}
	for _, f := range []struct {
		name string
		v    int
	}{
		{"InitTicks", c.InitTicks}, {"SyncTicks", c.SyncTicks}, {"PingTicks", c.PingTicks}, {"TailBytes", c.TailBytes},
		{"WindowBytes", c.WindowBytes}, {"WindowEntries", c.WindowEntries}, {"MaxOutstandingBytes", c.MaxOutstandingBytes},
		{"MaxOutstandingEntries", c.MaxOutstandingEntries}, {"MaxBatchBytes", c.MaxBatchBytes},
		{"MaxPayloadBytes", c.MaxPayloadBytes}, {"StageBytes", c.StageBytes},
	} {
		if f.v < 1 {
			bad("%s is %d, must be positive", f.name, f.v)
		}
	}
	if c.PingTicks > c.SyncTicks {
		bad("PingTicks %d exceeds SyncTicks %d", c.PingTicks, c.SyncTicks)
	}
	if c.StallTicks < c.SyncTicks {
		bad("StallTicks %d is less than SyncTicks %d", c.StallTicks, c.SyncTicks)
	}
	if c.RolloverCounter < 2 {
		bad("RolloverCounter is %d, must be at least 2", c.RolloverCounter)
	}
	if !c.Protocol.Contains(c.Levels.Protocol) {
		bad("active protocol level %d is outside the supported %s", c.Levels.Protocol, c.Protocol)
	}
	if !c.Format.Contains(c.Levels.Format) {
		bad("active format level %d is outside the supported %s", c.Levels.Format, c.Format)
	}
	return c, errors.Join(errs...)
}

// serves explains why a member with these ranges cannot serve the levels; empty if it can.
func (l Levels) unservedBy(protocol, format VersionRange) string {
	switch {
	case !protocol.Contains(l.Protocol):
		return fmt.Sprintf("active protocol level %d is outside the supported %s", l.Protocol, protocol)
	case !format.Contains(l.Format):
		return fmt.Sprintf("active format level %d is outside the supported %s", l.Format, format)
	}
	return ""
}

// String prints min-max.
func (r VersionRange) String() string { return fmt.Sprintf("%d-%d", r.Min, r.Max) }

// check refuses a durable state that no legal run can leave (zab-rules a, P1). Staged synchronization may
// leave entries of an epoch above the current one, never above the accepted one.
func (st DurableState) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if st.Accepted.Epoch < st.Current {
		bad("accepted epoch %d is below the current epoch %d", st.Accepted.Epoch, st.Current)
	}
	if st.Last.Epoch() > st.Accepted.Epoch {
		bad("last entry %s is of an epoch above the accepted epoch %d", st.Last, st.Accepted.Epoch)
	}
	if st.Base > st.Last {
		bad("base %s is beyond the last entry %s", st.Base, st.Last)
	}
	if st.LogStart > st.Base {
		bad("log start %s is beyond the base %s", st.LogStart, st.Base)
	}
	return errors.Join(errs...)
}
