package kv

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// Entry is one transaction in a history. Payload is opaque to everybody but this package; it is
// shared read-only by log, senders and applier once proposed.
type Entry struct {
	Zxid Zxid
	// Chain is the digest of the whole history up to and including this entry:
	// ChainDigest(previous entry's Chain, Zxid, Payload). Equal zxid with unequal Chain in two
	// logs means corruption or a bug (zab-rules c, phase 1).
	Chain   uint64
	Payload []byte
}

// chainSeed starts the digest chain of an empty history. Part of the format.
const chainSeed uint64 = 0x6b76642d636861 // "kvd-cha"

// ChainSeed is the chain value of the empty history (Zxid 0). Part of the format.
func ChainSeed() uint64 { return chainSeed }

// ChainDigest extends a digest chain by one entry: xxhash64 over the previous value, the zxid (both
// big-endian) and the payload. It protects against faults, not against attackers. Part of the format.
func ChainDigest(prev uint64, z Zxid, payload []byte) uint64 {
	var head [16]byte
	binary.BigEndian.PutUint64(head[:8], prev)
	binary.BigEndian.PutUint64(head[8:], uint64(z))
	var d xxhash.Digest
	d.Reset()
	_, _ = d.Write(head[:])
	_, _ = d.Write(payload)
	return d.Sum64()
}
