// Package explore carries out every behaviour of the protocol within small bounds: the real code of packages zab and
// fle, not a model of it, breadth first, with a set of fingerprints of the states seen. [Run] explores a [Model]; [Zab] is
// the broadcast under an arbitrary election and [Fle] the election alone. Command run prints how far it is.
//
// # What is a state
//
// All members, their disks with the writes in flight, the connections with what is on the way, what of the bounds is
// left, and the ghosts that the properties speak of: the committed sequence, who established which epoch with which
// initial history, which zxid each client write was given. A state is never changed; a transition copies the one or two
// members it touches. Only fingerprints of 64 bits and a tree of paths are kept, about 20 bytes a state. A worker comes back
// to a state by carrying out its path again, which costs little because neighbours in the frontier share most of it. Two of
// n states have the same fingerprint by accident with a chance of about n*n / 2^65: 3 in a million for ten million.
//
// # What the fingerprint forgets, and why that hides nothing
//
//   - Time. Limits of time are out of reach, so a tick only begins a PING round (bounded) or makes a due dial (free). What a
//     time-out would do is a transition of its own that is possible at any time: a member gives up its role, a connection breaks.
//   - Names. Connections are known by the other end and their age among those that are up, sequence numbers and role
//     generations relative to the present: the code compares them for equality only. Member ids are not exchanged: they break ties.
//     Attempts to lead are numbered in the order of the decisions; two states that differ in that order only count twice.
//   - What is overwritten before it is read; see zab.Peer.AppendAbstract, which names each.
//   - Texts for people.
//
// A test takes this at its word: of every state that is reached twice the futures of both are compared.
//
// # Connections
//
// What is sent arrives in order or not at all. When one end closes, crashes, or the network breaks the connection, any
// prefix of what was on the way still arrives, then the end. The opening of a connection travels like a message, so the
// two ends learn of it at different times. One direction holds a bounded number of messages; the states behind are left
// out and counted ("out of bounds").
//
// # What is not covered
//
// Snapshots and staged histories, observers, unknown members, counter rollover, changes of configuration and level, SYNC, forwarded
// requests, dials that fail (a dial waits until its target is up), several writes completed at once, log reads
// that answer late, more than the bounds say. Those are the simulator's (ensemble/sim) and the scripts' of zab and fle.
// Liveness is not checked.
package explore
