package kv

import (
	"fmt"
	"math"
)

// Epoch numbers the reign of one leader. Zero means "before any leader".
type Epoch uint32

// Zxid identifies one transaction: the epoch of the leader that proposed it in the high 32 bits,
// its counter in the low 32. Compare with the ordinary operators (unsigned). The first transaction
// of an epoch has counter 1; counter 0 is never a transaction, and Zxid 0 means "nothing at all".
type Zxid uint64

// MaxCounter is the largest counter a Zxid can carry. Leaders start a new epoch well before it.
const MaxCounter = math.MaxUint32

// MakeZxid combines an epoch and a counter.
func MakeZxid(e Epoch, counter uint32) Zxid { return Zxid(uint64(e)<<32 | uint64(counter)) }

// Epoch returns the epoch half.
func (z Zxid) Epoch() Epoch { return Epoch(z >> 32) }

// Counter returns the counter half.
func (z Zxid) Counter() uint32 { return uint32(z) }

// String prints epoch:counter in decimal, the form used in logs and golden files.
func (z Zxid) String() string { return fmt.Sprintf("%d:%d", z.Epoch(), z.Counter()) }

// Follows reports whether z may stand directly after prev in a history: the next counter of the same
// epoch, or counter 1 of a higher epoch (zab-rules P4). Epochs may be skipped, counters may not.
func (z Zxid) Follows(prev Zxid) bool {
	if z.Epoch() == prev.Epoch() {
		return prev.Counter() != MaxCounter && z.Counter() == prev.Counter()+1 && z.Epoch() != 0
	}
	return z.Epoch() > prev.Epoch() && z.Counter() == 1
}

// SessionID names a client session. Zero is no session.
type SessionID int64

// String prints the id as ZooKeeper's tools do.
func (s SessionID) String() string { return fmt.Sprintf("0x%x", uint64(s)) }
