package snapshot

import (
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// ErrDamaged matches every error that means "these bytes are not what was written": wrong length, wrong hash, missing
// file, unreadable content. The caller falls back to the point before and the log.
var ErrDamaged = errors.New("snapshot damaged")

// ErrBadChunk matches the refusal of a received chunk: wrong hash, wrong place, too long.
var ErrBadChunk = errors.New("bad snapshot chunk")

// ErrOrder means that a Source yielded its records out of order, a key twice, or a deletion in a full snapshot:
// a bug in the source.
var ErrOrder = errors.New("snapshot records out of order")

// DamageError says which file is damaged and where it was noticed.
type DamageError struct {
	File   string
	Offset int64 // byte offset at which the damage was noticed; -1: only known to be somewhere in the file
	Err    error
}

// Error names file, offset and cause.
func (e *DamageError) Error() string {
	if e.Offset < 0 {
		return fmt.Sprintf("snapshot file %s: %v", e.File, e.Err)
	}
	return fmt.Sprintf("snapshot file %s, offset %d: %v", e.File, e.Offset, e.Err)
}

// Unwrap returns the cause.
func (e *DamageError) Unwrap() error { return e.Err }

// Is makes every DamageError match ErrDamaged.
func (e *DamageError) Is(target error) bool { return target == ErrDamaged }

// ChunkHash is the hash that goes with a streamed chunk: xxhash64, seed 0. Part of the peer protocol.
func ChunkHash(data []byte) uint64 { return xxhash.Sum64(data) }

func orderError(r Record, last []byte) error {
	return fmt.Errorf("%w: table %d key %.64q after table %d key %.64q", ErrOrder, r.Table, r.Key, last[0], last[1:])
}

func deletionError(r Record) error {
	return fmt.Errorf("%w: table %d key %.64q: a deletion in a full snapshot", ErrOrder, r.Table, r.Key)
}

func missingBytes(f File, have int64) error {
	return fmt.Errorf("snapshot: %s: %d of %d bytes received", f.Name, have, f.Bytes)
}
