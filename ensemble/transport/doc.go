// Package transport carries messages between members over TCP: votes on one connection per pair, and the
// broadcast's messages and snapshots on links between a leader and its learners. It knows who may talk, keeps
// every queue bounded, and never lets one peer delay another. It takes no decision of the protocol.
//
// Start with Transport (New, Start, Close), Handler (what it reports) and Options.
//
// # Connections
//
// Each member has two listeners. On the election port there is exactly one connection per pair of members: the
// one that the larger id dialled (zab-rules b, Transport). The smaller id only knocks: while it has no
// connection it dials, says who it is, is told "I will dial you" and closes; the larger drops a connection the
// smaller no longer has and dials at once. Both retry with back-off. On the learner port a learner dials the
// leader it was told to follow; the link lives until one side closes it. Every dial resolves the name anew and
// has its own goroutine and its own time-out.
//
// # Bytes
//
// A connection starts with a fixed-size hello and a fixed-size-bounded answer (handshake.go); whoever is not a
// configured member, has my id, belongs to another cluster or speaks no common version is refused by name.
// After that: frames.
//
//	+----------------+---------+----------------------+
//	| length, uint32 | kind, 1 | body, length-1 bytes |   all numbers big-endian
//	+----------------+---------+----------------------+
//
// The limit of a frame is checked before anything is allocated. Learner links carry zab messages (msgpack, see
// zab.AppendMessage), a goodbye with a reason, and the frames of a snapshot stream (stream.go). Election connections
// carry notifications and identity messages.
//
// # Queues (design rule 9)
//
//	where                        bound                        when full
//	election, to one peer        1 payload per kind           the newer replaces the older
//	link, to one peer            Limits.MaxQueueBytes/Frames  the link is closed with a reason
//	snapshot chunks on a link    Limits.StreamWindowBytes     the streaming goroutine waits for the receiver
//	handshakes in progress       Limits.MaxHandshakes         the new connection is closed
//
// What a handler queues is its own business: its methods are called on the goroutine that read the message and
// must not block.
//
// # Goroutines
//
//	goroutine               one per          owns                        stopped by
//	acceptor                listener         the listener                Close (closes the listener)
//	election dialer         other member     back-off, dial, handshake   Close (context)
//	reader                  connection       the read side, all Handler  the connection's end; Close closes it
//	                                         calls for the connection
//	writer                  connection       the write side              the reader, when it ends
//	learner dialer          Connect          one dial                    a newer Connect, Close
//	snapshot sender         StreamSnapshot   open files                  the link's end, Close
//	snapshot receiver       stream received  the snapshot.Receiver       the link's end, Close
//
// All of them are counted in one WaitGroup; Close returns when it is zero. No lock is held across a read, a
// write or a dial.
package transport
