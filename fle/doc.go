// Package fle is Fast Leader Election: members exchange votes until a quorum agrees on who should lead,
// then each settles on leading, following or observing. It is a liveness oracle and nothing more: whoever
// it elects, phase 1 of the broadcast (package zab) decides whether that member may lead, so a wrong
// election costs time and never data (zab-rules, idea 1).
//
// Start with [Election] (the state machine of one member), [Notification] (what travels) and [Ready] (what a
// step produced). The package is pure: no goroutine, clock, socket, file or logger. Messages, connection
// changes and ticks go in; notifications to send and a decision come out. An Election is not safe for
// concurrent use; the member loop owns it.
//
//	e := fle.New(fle.Config{ID: 1, Members: members})
//	e.Look(fle.Candidate{Epoch: currentEpoch, Zxid: lastDurable})
//	for { // after every Step, Tick, PeerConnected, ...
//		rd := e.Ready()
//		send(rd.Send)
//		if rd.Decision != nil { lead or follow }
//	}
//
// # Notifications are state reports
//
// A notification says what its sender thinks now. A newer one replaces an older one, so the queue to each
// peer needs room for one, and Ready builds the notification from the state at that moment. Loss,
// duplication and reordering across connections cost at most a resend interval.
//
// # Departures from ZooKeeper's FastLeaderElection
//
//   - Everything received during the finalize wait is processed; ZooKeeper throws away what is not a better
//     vote. The wait ends at once when nobody who is connected disagrees.
//   - A member settles on leader X only after X's own notification of the round (S46), and a candidate that
//     cannot be heard or followed is passed over for a few rounds.
//   - A prospective leader whose electors moved on gives up at once (S12, ZK-3109).
//   - A member answers the first notification of a peer in a round, and a worse vote in the same round: the
//     peer may have been settled when this member told everybody.
//   - Resends are not postponed by traffic from others, are capped at seconds, and are jittered.
//   - A member that may have forgotten something ("unknown") votes for nobody and is not counted.
//
// References: Medeiros, "ZooKeeper's atomic broadcast protocol: theory and practice", section 3.1;
// org.apache.zookeeper.server.quorum.FastLeaderElection. Tickets ZK-n and scenarios Snn are cited at the branch.
package fle
