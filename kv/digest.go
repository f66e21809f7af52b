package kv

import "github.com/cespare/xxhash/v2"

// digestSeed, plus the table's number, seeds the hash of every record. Part of the format.
const digestSeed uint64 = 0x6b76642d74726565 // "kvd-tree"

// recordDigest is one record's share of a view's digest. The digest is the sum, modulo 2^64, over all records of
// all tables: it depends on the content alone, and a change costs the hash of the old record and of the new one.
// It protects against faults, not against attackers. Part of the format.
func recordDigest(table uint8, rec string) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(digestSeed + uint64(table))
	_, _ = d.WriteString(rec)
	return d.Sum64()
}
