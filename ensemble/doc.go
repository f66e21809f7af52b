// Package ensemble runs one member of a replicated tree: it puts the protocol cores, the disk, the network
// and the clients together, and can be embedded in any Go program.
//
// Start with [Config] and [Start] (or [Run], which starts, waits and shuts down). A started [Member] hands
// out in-process clients with [Member.Client], reports itself with [Member.Status] and ends with
// [Member.Shutdown] (hand over, drain) or [Member.Close] (cut). Many members may live in one process: the
// package keeps no global state, never exits the process and logs only to the logger it was given.
//
// # How a member is built
//
// All protocol state lives in one [kvd/ensemble/replica.Replica], a pure state machine. One goroutine, the
// loop (loop.go), owns it: it feeds the replica ticks, messages, disk completions and client requests, and
// carries out what the replica asks for (carryout.go). Everything the loop talks to is asynchronous and
// bounded, so it never blocks: the log writer (wal), the applier (applier.go: the only writer of kv.Tree),
// the snapshotter (snapshotter.go), the transport, and the client connections (conn.go).
// docs/goroutines.md lists every goroutine, docs/write-path.md follows one write through them.
//
// # Ownership
//
// A frame read from a client belongs to the connection until its body is handed to the replica, which owns
// it from then on. Payloads of proposed entries are shared read-only by log, senders and applier. A view of
// the tree is immutable.
package ensemble
