// Package kv is the tree: what a node is, what each operation does to it, and how that is written down. It knows
// no network, no disk, no clock and no other member. Start with Tree, Preparer and View.
//
// # The two doors
//
// A change enters twice. Preparer.Prepare, on the leader, decides a Request: it makes ZooKeeper's checks in
// ZooKeeper's order, against the newest View and everything that has been prepared but not applied yet (the
// overlay), and writes the outcome down as a transaction that holds all that was decided: final paths, versions,
// owners, the parent's counter of created children, the time. A request that is refused becomes a transaction too, one
// that changes nothing and carries the reason; it keeps its place in the order, and its reply is as linearizable as
// that of a success. Tree.Apply, on every member, carries out what was decided. It has no clock, draws no random
// numbers, iterates no map, and cannot fail for a reason that differs between members: if a transaction does not fit
// the tree, follows a gap, or breaks the digest chain, a promise is broken (ErrBrokenPromise) and the member must stop.
//
// Closing a session is decided in the same way but lists nothing: it removes the ephemeral nodes the session has at
// that point of the history, however many, at one zxid. Prepare knows the same list from view and overlay.
//
//	tree := kv.NewTree(nil)
//	prep := kv.NewPreparer(tree.View, kv.PreparerOptions{})
//	payload := prep.Prepare(nil, z, kv.TxnHeader{Time: now}, &request) // leader
//	err := tree.Apply([]kv.Entry{{z, kv.ChainDigest(tree.View().Chain(), z, payload), payload}}, sink) // everywhere
//
// # Ownership
//
//   - A Preparer belongs to one goroutine, the member's loop. It reads views and never waits for the applier.
//   - Tree.Apply and Tree.Reset belong to one goroutine, the applier.
//   - View and everything read from it may be used anywhere, by anyone, for any time. Data, names and keys that a View
//     hands out are its own memory: read-only, and kept alive as long as they are held.
//   - A payload belongs to the entry and is shared by log, senders and applier; nobody writes to it. The tree copies what
//     it stores. Result.Path aliases the payload.
//   - Reads go to an immutable root through an atomic pointer. They take no lock and never block the applier. Reads that
//     set a watch lock one of 256 stripes; Apply holds the stripes of the touched paths only while it takes the watches
//     that fire out of them (see Tree.publish).
//
// # The structure, and why
//
// Each table of a View is a persistent B+tree of records. A record is one string: key length, key, value. It holds no
// pointers, so a million nodes are a million small objects that the garbage collector marks and does not scan. An edit
// copies the nodes on the path to a change, once in a batch: copies carry the edit's owner and are changed in place by
// the rest of the batch. Publishing a view ends the ownership. The key of a node is its path with the last slash
// replaced by NUL, so the children of a node are neighbours, in order of their names.
//
// What children change about their parent (pzxid, counters) is a record of its own, so that a create below a node with a
// megabyte of data does not write the megabyte. Nodes that never had children have no such record.
//
// Measured (Xeon, 2 cores, busy; BenchmarkBytesPerNode, BenchmarkSetData, BenchmarkGet, BenchmarkWideNode): a node of
// 100 bytes takes 149 bytes of heap, everything included. By fan-out, setData through both doors in a batch of 32 among
// 100,000 nodes in random order, a read among them, listing 100,000 children, heap of a node after random inserts:
//
//	 16   4.5 µs   1.29 µs   4.5 ms   162 B
//	 32   4.6 µs   0.90 µs   1.4 ms   152 B
//	 64   4.4 µs   0.91 µs   1.1 ms   149 B
//	128   5.9 µs   1.42 µs   1.1 ms   147 B
//
// Among 100 nodes a setData takes 1.7 µs and two allocations, its payload and its record.
//
// # Watches
//
// A watch belongs to a Watcher, a path and a mode: one-shot in ZooKeeper's data or child table, persistent, or
// recursive. The modes live side by side. Events are queued before the change can be read. Each carries a zxid by which
// it is ordered among answers: after the one that set the watch, before any from a view that shows the change. One
// change gives a watcher one event for each row of zookeeper-protocol 6.2, however many of its watches match, and none
// if it may not read the node whose watch fires: that is decided by the access list of the moment of the change.
//
// The tables are made for a million watches of a thousand connections. Watchers are numbers; a stripe is an
// open-addressed table of the paths that fall to it, their texts one after the other in one buffer, and for each path
// one watcher or a set of them. A watcher has a list of the hashes of its paths, by which its watches are found when it
// leaves. Measured (BenchmarkMemoryPerWatch, BenchmarkStorm): a watch on a path of 18 bytes that nobody else watches
// takes 50 bytes of heap, one more watcher of the same path 13, nearly all of it without pointers; to set a watch
// takes about 1 µs, to remove one 0.2 µs. Recursive watches are also in a table of their own, in which a change looks up
// the paths above it: nothing while that table is empty.
//
// Publishing a batch has two halves. Under the locks of the touched stripes the watches are taken from the tables, and
// the front view, with which those who set a watch compare what they answered, becomes the new one. Without those locks
// the events are queued; then readers see the new view. Setting a watch therefore never waits for a storm, except if the
// very node has changed since the answer. The applier pays 0.1 to 0.2 µs for each watcher that an event goes to, plus
// what Watcher.Event takes. A batch that nobody watches pays, as it did for one-shots alone, a hash and a look into an
// empty table for each path, and two uncontended locks (BenchmarkPublish).
//
// # Records
//
// View.Records emits the whole content, View.Diff what changed since another view, and a Builder makes a View of them:
// this is what snapshots store. Version 1 (RecordFormat, itself the record "format" of TableMeta):
//
//	table  key                                value
//	1      path, last slash as NUL; root "/"  flags 1 byte | czxid uvarint | ctime varint | [mzxid-czxid uvarint |
//	                                          mtime-ctime varint | version varint] | [owner 8 bytes] |
//	                                          [aversion varint] | [ACL number uvarint] | data
//	2      the same                           pzxid uvarint | creates varint | children varint
//	3      session id, 8 bytes                timeout in ms varint | password 16 bytes
//	4      ACL number, 4 bytes                count uvarint | { perms varint | scheme string | id string }
//	5      "format", "levels", "next-acl"     1 uvarint; protocol uvarint | format uvarint; uvarint
//
// Numbers in keys are big-endian. Flags say which bracketed parts are there: 1 changes, 4 owner, 8 aversion, 16 ACL
// number; 2 means that table 2 has a record, 32 that the data is null. An absent ACL number is 1, world:anyone with all
// permissions; 2 is world:anyone read-only; these two have no record. uvarint and varint are encoding/binary's, in
// their shortest form; a string is a uvarint length and bytes. The owner is encoded as zookeeper-protocol 4.8 has it.
//
// The digest of a view is the sum modulo 2^64 of xxhash64, seeded with 0x6b76642d74726565 plus the table's number, over
// key length (uvarint), key and value of every record.
//
// # Transactions
//
// Version 1 (TxnFormat, the first byte); see appendTxnHeader and appendTxnOp for the layout. Decoding is the inverse of
// encoding for every input that decodes.
//
// # Who may do what
//
// A node's access control list is stored once, encoded (AccessList), and named by number; the open list has no record and
// costs a compare. A Request carries the Credentials of its connection, and Prepare asks the list of the node that
// ZooKeeper asks, in its place of the order, as that list will be when everything in flight is applied: a setACL counts
// for the requests right behind it. Session 0, the leader itself, is not asked. Reads go through View.As(credentials).
// Apply knows nothing of permissions.
//
// # What removes itself
//
// Containers and nodes with a time to live are nodes whose owner is of a reserved form. An index, derived like that of
// the ephemeral nodes, lists them, so View.Reapable costs what their number does. The leader asks it, and proposes
// OpDeleteContainer for each; Prepare checks the rule again, against what is in flight, with the transaction's clock.
//
// # Quotas
//
// See quota.go. Usage is text in a node that Apply rewrites in place, so it needs no record of its own, survives
// snapshots, and is equal on all members. While no path has a quota it costs one compare for each change. Making a stats
// node counts the nodes below its path, once, on every member: 0.3 s for a million nodes (BenchmarkUsage). Hard limits are
// the leader's: quotaflight.go.
//
// # Departures from ZooKeeper
//
// Paths are at most MaxPathBytes long. A version that would wrap to -1 becomes 0, as from 3.10 on. An event carries the
// zxid of its change, as in 3.9. An "auth" entry expands in the order in which the identities were added. createTTL with
// a mode that has no time to live is refused in every case (ZooKeeper may die of it). Hard limits count what is in
// flight; quota text that cannot be read, and a quota of the root, are ignored (ZooKeeper refuses everything, or dies).
// Only paths below /zookeeper/quota are quota nodes, not every path that begins with these letters.
//
// References: zookeeper-protocol 3.2-3.6 (operations), 4, 5, 6 (watches), 7.1 (sessions); design 3 (rules 3 and 4) and 4.
package kv
