// Package zab agrees on one order of transactions: discovery, synchronization and broadcast of the Zab
// protocol (Junqueira, Reed, Serafini, DSN'11) with the rules that practice added to it.
//
// Start with Peer (one member), Ready (everything a step produced, in the order of its effects) and
// Write (one atomic synced batch). A Peer is a pure state machine: no goroutine, clock, socket or file. It is not
// safe for concurrent use; the member's loop owns it, feeds it messages, ticks and disk completions, and after
// each input carries out what Ready returns:
//
//	p, err := zab.New(cfg, durableState, history)
//	p.Lead() // or p.Follow(leader): what the election decided
//	for in := range inputs {
//		feed(p, in) // Step, Tick, Persisted, LinkUp, ...
//		for p.HasReady() {
//			carryOut(p.Ready())
//		}
//	}
//
// A learner here is any member that synchronizes from the leader, voting (a follower) or not (an observer). Raft
// literature uses the word for the non-voter only.
//
// # Where to read
//
// discovery.go is phase 1 at both sides, sync.go the synchronization table, leader.go and follower.go the two
// roles, adopt.go how a learner takes over the leader's history, broadcast.go the hot path (propose, stream, ack, commit), progress.go one learner as the leader sees it,
// reepoch.go the change of epoch over existing links, tail.go the entries in memory.
//
// # Pull-shaped streams
//
// The leader keeps one cursor and one window per link. History, NEWLEADER at its place, and live proposals come
// from that one cursor, so an entry cannot be sent twice, skipped, or sent on the strength of an earlier link's
// registration. A slow learner lags; it never queues.
//
// # Durability
//
// A message that promises durability is created when Persisted reports the write it speaks of, never before.
// The shell therefore sends everything in Ready.Send at once and cannot ack before the sync.
// Invariant everywhere: applied <= min(committed, persisted).
//
// # Where this departs from the papers and from ZooKeeper
//
// The accepted epoch is kept with the incarnation it was promised to, so that a lost ACKEPOCH costs nothing (S09).
// A learner with a higher promise makes the leader take a higher epoch over its existing links instead of being
// locked out (S62). The same mechanism handles counter exhaustion without an election (S39). Acks are
// cumulative. Learners apply only what they hold durably. SYNC is confirmed by a quorum round begun after it
// arrived (S36). Received is a message the papers do not have: flow control of a history in transit.
package zab
