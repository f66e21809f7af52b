// Package snapshot keeps the content of the tree as of one zxid in files that either exist whole or not at
// all. A snapshot is a Point: one full file, or a full file and delta files that each hold what changed and
// what was deleted since the point before. Start with Point (what the log store keeps a reference to),
// Store (where the files live) and its two implementations: Dir, bbolt files in a directory, and Memory, for
// the simulator and the in-memory mode. One conformance suite runs against both.
//
// # Order of effects (zab-rules f, S23)
//
// WriteFull, WriteDelta and Receiver.Commit return a Point only after
//
//	temporary file complete → fsync → rename → fsync of the directory.
//
// No file changes after its rename. Only then may the caller write the batch that references the point in the
// log store, and only when that batch is durable may it call Retain to delete what is no longer referenced. A
// crash between any two steps leaves the previous point in charge; what is left over is removed by OpenDir (temporary
// files) and by the first Retain (files that nothing references).
//
// # Trust
//
// A Point carries the length and the xxhash64 of each file's bytes. Load and Verify check them by ordinary
// sequential reads before bbolt maps the file: bbolt guards its meta pages only, and a truncated or damaged
// mapped file crashes the process or returns wrong bytes. Damage is a *DamageError that names file and offset; the
// caller then falls back to the point before plus the log. The hash protects against faults, not against attackers.
//
// # A file (format 1, see docs/format-snapshot.md)
//
// A bbolt database, page size 4096, with these buckets at the root:
//
//	"meta"     format, kind, zxid, chain, digest, records, deleted, prev-hash, complete
//	           (each a big-endian uint64; "complete" is what is written last: bbolt's meta pages)
//	"records"  table byte + key → value, in key order
//	"deleted"  table byte + key → empty (delta files only)
//
// A file's name is derived from its content: ZXID-HASH.full or ZXID-HASH.delta, both numbers as 16 hex digits.
//
// # Concurrency
//
// A Store may be used from several goroutines, with these limits: one WriteFull or WriteDelta at a time, one open
// Receiver at a time, and Retain only by the goroutine that knows every point that is referenced or about to be.
package snapshot
