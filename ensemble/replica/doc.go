// Package replica is one member of an ensemble without goroutines, sockets, files and clock. It joins the
// election (fle), the broadcast (zab), the forming of a new ensemble (ensemble/identity), client writes on
// their way to the leader and the leader's session deadlines into one deterministic state machine.
//
// Start with [New], [Replica.Ready] and [Ready]: everything that happened goes in through a method, everything
// to be done comes out of Ready, and the order of effects is the order of Ready's fields. Two shells drive it
// with the same code: package ensemble (wal, snapshot files, TCP, client port) and package ensemble/sim
// (seeded simulator). Not safe for concurrent use: one loop owns it.
//
//	inputs     Tick SetClock                                     time: ticks of the shell's own loop, wall ms
//	           ElectionUp ElectionDown ElectionMessage           election connections, payloads by kind
//	           LinkUp LinkDown ConnectFailed PeerMessage         leader-learner links
//	           Persisted IdentityPersisted SetDisk               the disk
//	           Applied                                           the applier
//	           LogRead SnapshotChosen SnapshotSent SnapshotProgress SnapshotReceived SnapshotTaken SetSnapshot
//	           Submit Cancel Revalidate SyncRead Touch Shutdown  clients
//	outputs    HasReady Ready
//	questions  Status Durable OldestNeeded
//
// # The shell's loop
//
//	for in := range inbox {          // take everything that has gathered, then
//		route(in)                    // call the input methods
//		for r.HasReady() {
//			carryOut(r.Ready())
//		}
//	}
//
// All operations submitted between two calls of Ready travel together: one proposal, one log write, one
// message. A shell that drains its inbox before it calls Ready therefore batches by construction.
//
// # A client write
//
// Submit puts an operation into a bounded queue. With an established leader the queue is drained in order: at
// the leader each operation is decoded, prepared (kv.Preparer) and proposed; elsewhere it is forwarded in
// batches on the link. From then on it is outstanding, and one of two things happens:
//
//   - its transaction is applied by the own applier: kv.TxnHeader has Origin equal to the own id and Request
//     equal to the token. The applier answers the client and reports the newest such token to Applied.
//   - the role or the link ends first: Ready.Failed says Unknown. The transaction may be applied later; the
//     client must be told "outcome unknown" (its connection is closed), never "failed".
//
// Operations that were not sent stay queued for the next leader. Results arrive in submission order, so the
// outstanding operations are a FIFO, matched by token.
//
// # Connections
//
// A later write of a client must not overtake an earlier one, so of each connection ([ClientOp].Conn) a prefix is
// executed: when one operation is refused, reported Unknown or given up, what is queued behind it is reported NotSent
// and what is submitted after it is refused, until the shell confirms with Cancel that the connection has ended.
// The shell ends a connection at its first failure, and says Cancel once for every connection that ever submitted,
// after its last Submit. Cancel also drops what has not been sent: the client may write elsewhere by now.
// Order between connections of one session is the leader's: it takes operations from the member that asked last.
// A question about a session is answered when every operation that came to the leader before it is decided: with the
// zxid of the answer the client sees all that its session has done, and what it does not see never happens.
//
// # Sessions
//
// Sessions are replicated state; their deadlines exist on the established leader only. Every session gets a
// full time-out at establishment. Members report the sessions they heard from (Touch) in PING replies, with the time-out
// agreed and the [Claim] of the connection; when a term opens they report all that are attached to them. So the next
// leader learns time-outs that were agreed on resume, and who spoke for a session last. An
// expiry is a proposed closeSession, never a local decision. After a pause of the leader's own loop no session
// expires before a quorum PING round begun after the pause has completed (design rule 10).
//
// An operation marked Local belongs to a session that only its origin knows: the leader checks nothing about it.
//
// # Removals
//
// The established leader removes containers that lost their last child and nodes whose time to live is over, every
// Config.ContainerTicks, a few a tick (reaper.go).
package replica
