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

// recomputeStep is how many records Recompute hashes between two calls of pause.
const recomputeStep = 4096

// Recompute hashes the whole content again and returns what Digest says of a view that is what was put together. The walk is
// interrupted by pause, which may be nil, every few thousand records; its error ends it. Any goroutine.
func (v *View) Recompute(pause func() error) (digest uint64, err error) {
	n := 0
	for table := TableNode; table <= TableMeta && err == nil; table++ {
		v.table(table).ascend("", func(rec string) bool {
			digest += recordDigest(table, rec)
			if n++; n%recomputeStep == 0 && pause != nil {
				err = pause()
			}
			return err == nil
		})
	}
	return digest, err
}
