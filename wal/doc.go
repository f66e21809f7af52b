// Package wal is one member's durable log: transactions by zxid, the promised and the joined epoch, the
// snapshot points, and who the member is. It stands on one Pebble store, makes a step of the protocol one
// synced batch, and notices what it may have lost.
//
// Start with [Log] (Open, Submit, State, Read, Locate, Close), [Write] (one atomic step) and [State].
//
//	l, report, err := wal.Open(dir, wal.Options{Completed: func(c wal.Completion) { loop.persisted(c) }})
//	l.Submit(wal.Write{Seq: 1, Append: entries})         // never blocks; reported by Completed once durable
//	l.Submit(wal.Write{Seq: 2, Truncate: &z, Append: history, Current: e, Trusted: true})
//
// # The rules it keeps
//
// A write is durable when it is reported, never before: only ApplyNoSyncWait with SyncWait commits anything,
// and the ack watermark is written between the sync and the report (zab-rules f).
//
// One write is one batch: truncation, history, epochs and snapshot point of a Write are on disk together or
// not at all (design rule 2). Several writes may share a batch, in order.
//
// A failed write is final (S32, S33). The first failed system call kills the log: everybody who waits is told,
// nothing is reported as done afterwards, no further byte reaches the disk, and the Pebble handle is abandoned,
// because what it does after a failure ranges from retrying to a panic on a goroutine of its own. The process
// lives on; it leaks the handle's memory and goroutines.
//
// History has no holes. Zxids and digest chain are checked when entries are appended and for the whole retained
// log when it is opened (S30, S31).
//
// What may have been forgotten is said. Open returns an error only for what its caller can mend. A missing or
// contradicting identity, damage, or an acknowledged tail that is gone make State.Suspect; the suspicion is
// durable and ends only with a write that is Trusted. Of a store that cannot be used at all the state shows an
// empty history; the first write moves it aside as log.damaged-N and begins a new one. Where nobody can bring back
// what is missing, [Accept] and [MarkSole] are what a person decides.
//
// # On disk
//
//	DIR/lock                   lock file
//	DIR/identity               identity file
//	DIR/log/                   Pebble store; built as log.tmp and renamed, so it is complete or absent
//	DIR/log/ack-watermark      two slots, at 0 and 4096
//	DIR/log/damaged            only after damage was met while running: the reason, as text
//	DIR/log.recovered/         the store that Accept has built, until it takes the place of log/
//	DIR/log.given-up-N[.txt]   the store as it was before that, and what was given up
//
// Integers are big-endian. Every record begins with an xxhash64 over what follows it, and its version is part of
// that, so that a flipped bit is never taken for a newer format. The seeds are ASCII.
//
//	identity file   "kvdident" | sum u64 ("kvd-iden") | version u32 | cluster id [16] | member u64
//	watermark slot  "kvdacked" | sum u64 ("kvd-ackd") | version u32 | generation u64 | zxid u64 | meta version u64
//	key 01 "meta"   sum u64 ("kvd-meta") | version u32 | msgpack map
//	key 02 zxid u64 sum u64 over key and rest ("kvd-grp1") | version u8 | previous zxid u64 | previous chain u64 |
//	                entry count u32 | entries
//	entry           epoch step uvarint | chain u64 | payload length uvarint | payload
//
// A group (key 02) holds a run of consecutive entries; its key is the first zxid, the others follow: step 0 is
// the next counter, step n the first counter of the epoch n higher. docs/format-wal.md has the details.
//
// # References
//
// zab-rules.md a (durable state and its write rules), f (what one batch simplifies, torn against corrupt tails,
// the ack watermark), design.md 5 and 8. The watermark carries the version of the meta record besides
// generation and zxid, so that a lost promise shows as well as a lost entry.
package wal
