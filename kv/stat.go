package kv

// Stat is what a client learns about a node besides its data. Field names are ZooKeeper's.
type Stat struct {
	Czxid, Mzxid   Zxid
	Ctime, Mtime   int64 // milliseconds since the Unix epoch, by the clock of the leader that proposed the change
	Version        int32
	Cversion       int32 // creates + deletes of children; not the counter behind sequence numbers
	Aversion       int32
	EphemeralOwner SessionID // zero unless the node is ephemeral
	DataLength     int32
	NumChildren    int32
	Pzxid          Zxid // last creation or deletion of a child
}

// Owner is the stored form of a node's kind (zookeeper-protocol 4.8): zero for a persistent node, the session
// for an ephemeral one, and two reserved ranges for containers and nodes with a time to live (container.go).
type Owner int64

// visibleCversion is Stat.cversion: creations plus deletions, from the counter of creations and the present
// number of children (zookeeper-protocol 3.3.1).
func visibleCversion(creates, children int32) int32 { return 2*creates - children }

// nextVersion is the version after v. A wrap never produces -1, which means "any version" in a request.
func nextVersion(v int32) int32 {
	v++ // wraps at the end of the range, like Java's int
	if v == -1 {
		return 0
	}
	return v
}
