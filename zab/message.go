package zab

import "kvd/kv"

// LinkID names one connection between a leader and a learner. The shell gives each connection a new id
// (never reused in a run, never zero); every message carries it and a message whose link is not the
// current one of its peer is ignored. Credit (acks, registrations) belongs to a link (zab-rules c).
type LinkID uint64

// Incarnation names one attempt of one member to lead: random in production, unique in every run.
type Incarnation uint64

// VersionRange is the span of protocol or transaction format versions that a member can serve.
type VersionRange struct{ Min, Max uint32 }

// Contains reports whether v lies in the range.
func (r VersionRange) Contains(v uint32) bool { return r.Min <= v && v <= r.Max }

// Levels are the active versions of an ensemble: a replicated value, raised by the leader only when all
// configured voters support it.
type Levels struct{ Protocol, Format uint32 }

// Message is one of the structs below. They travel in FIFO order on a link.
type Message interface{ message() }

// FollowerInfo opens a link: learner to leader (FOLLOWERINFO; OBSERVERINFO when the sender is a
// configured observer, which the leader knows from its configuration).
type FollowerInfo struct {
	Accepted      kv.Epoch
	PromisedTo    Incarnation // to whom Accepted was promised
	ConfigVersion uint64
	Protocol      VersionRange
	Format        VersionRange
}

// LeaderInfo proposes the new epoch (LEADERINFO). During a re-epoch it is sent again on existing links.
type LeaderInfo struct {
	Epoch         kv.Epoch
	Incarnation   Incarnation
	ConfigVersion uint64
	Levels        Levels // active levels; a learner that cannot serve them refuses by name
	// What the leader's binary can serve: a learner that knows of a higher active level refuses it, however far the
	// leader has applied its log.
	Protocol VersionRange
	Format   VersionRange
}

// AckEpoch promises to ack no lower epoch and reports the durable history (ACKEPOCH).
type AckEpoch struct {
	Epoch           kv.Epoch
	Current         kv.Epoch
	Last            kv.Zxid
	Chain           uint64 // digest chain at Last
	Base            kv.Zxid
	AlreadyPromised bool // promised this epoch to another incarnation: may be synced, never counted
	Unknown         bool // may have forgotten something: may be synced, never counted (design rule 8)
}

// Diff starts a synchronization that only adds: entries after After follow as Proposals.
type Diff struct{ After kv.Zxid }

// Trunc tells the learner to drop everything after To; entries after To follow as Proposals.
type Trunc struct {
	To    kv.Zxid
	Chain uint64 // the leader's chain at To; the learner verifies it
}

// Snap announces a snapshot: the shell streams its files on the link right behind this message and the
// learner's shell reports SnapshotReceived; entries after Zxid follow as Proposals.
type Snap struct {
	Zxid  kv.Zxid
	Chain uint64
}

// NeedSnapshot is a learner's refusal of a Trunc or Diff it cannot follow (below its base, or To unknown
// to it, or chain differs).
type NeedSnapshot struct{ Reason string }

// Proposal carries entries in zxid order, to voters and (as INFORM, see Inform) not to observers. Before
// NewLeader they are history, after it live proposals. Prev and PrevChain name the entry before the first.
type Proposal struct {
	Prev      kv.Zxid
	PrevChain uint64
	Entries   []kv.Entry
	Commit    kv.Zxid // the leader's commit point; saves a Commit message under load
}

// Inform carries committed entries to observers (INFORM). An entry already held acts as a commit.
type Inform struct {
	Prev      kv.Zxid
	PrevChain uint64
	Entries   []kv.Entry
}

// NewLeader ends the synced history (NEWLEADER).
type NewLeader struct {
	Epoch  kv.Epoch
	Last   kv.Zxid // end of the history synced before this message
	Chain  uint64
	Commit kv.Zxid
}

// AckNewLeader says that the whole synced history and the current epoch are durable (ACK of NEWLEADER).
type AckNewLeader struct {
	Epoch kv.Epoch
	Last  kv.Zxid
}

// UpToDate lets a learner serve clients (UPTODATE).
type UpToDate struct {
	Epoch  kv.Epoch
	Commit kv.Zxid
}

// Ack says that everything up to Zxid of this epoch is durable and identical to the leader's. Cumulative.
type Ack struct {
	Epoch kv.Epoch
	Zxid  kv.Zxid
}

// Commit moves the commit point (COMMIT). Cumulative: everything up to Zxid is committed.
type Commit struct {
	Epoch kv.Epoch
	Zxid  kv.Zxid
}

// Ping is sent by the leader every PingTicks.
type Ping struct {
	Epoch  kv.Epoch
	Probe  uint64 // grows with each round; a reply confirms that its sender followed this leader then
	Commit kv.Zxid
	// SnapshotTurn grants the receiver leave to write its own snapshot now (design 5: members take turns).
	SnapshotTurn bool
	// Full: the voters whose disks have room are no quorum, and the leader refuses what adds data (Peer.Full).
	Full bool
	// DigestAt asks for the digest of the tree right after that transaction, 0 for none.
	DigestAt kv.Zxid
	// DivergedAt, if not 0, says that the receiver's tree was another one there than that of a quorum; DivergedAfter is where
	// they were last known to agree, 0 if that is not known.
	DivergedAt, DivergedAfter kv.Zxid
}

// PingReply answers a Ping.
type PingReply struct {
	Epoch          kv.Epoch
	Probe          uint64
	Applied        kv.Zxid
	OldestWriteMs  uint32 // age of the oldest unfinished disk write, ms
	FreeDisk       uint64 // bytes free where the log lies
	LowDisk        bool   // that is below the member's low mark
	WantSnapshot   bool   // would like the snapshot turn
	SnapshotActive bool   // is writing one
	// DigestAt and Digest answer Ping.DigestAt; 0 if the member does not know.
	DigestAt kv.Zxid
	Digest   uint64
	Touched  []byte // session touch table, opaque here (encoded by the replica)
}

// Request carries an opaque batch from a learner to the leader (REQUEST, REVALIDATE: the replica's codec).
type Request struct{ Payload []byte }

// Reply carries an opaque answer from the leader to a learner.
type Reply struct{ Payload []byte }

// SyncRequest asks for a confirmed read point (SYNC). Answered by SyncReply after a quorum PING round
// that began after it was received (S36), or by the end of the link.
type SyncRequest struct{ ID uint64 }

// SyncReply carries the commit point that the quorum round confirmed.
type SyncReply struct {
	ID   uint64
	Zxid kv.Zxid
}

// Received opens the sender's window while its history is still being streamed: everything up to Zxid has
// been taken in. It is flow control only and proves nothing (an Ack would, and may not leave before NEWLEADER
// is durable, P10).
type Received struct {
	Epoch kv.Epoch
	Zxid  kv.Zxid
}

// Resign is the last word of a leader that gives up, on purpose or not; learners elect at once.
type Resign struct{ Epoch kv.Epoch }

// Refuse tells the other side why its link is being closed (version, membership), by name.
type Refuse struct {
	Reason string
	// NotLeading: the sender follows somebody else; the learner's election was a mistake, and no misconfiguration.
	NotLeading bool
}

func (*FollowerInfo) message() {}
func (*LeaderInfo) message()   {}
func (*AckEpoch) message()     {}
func (*Diff) message()         {}
func (*Trunc) message()        {}
func (*Snap) message()         {}
func (*NeedSnapshot) message() {}
func (*Proposal) message()     {}
func (*Inform) message()       {}
func (*NewLeader) message()    {}
func (*AckNewLeader) message() {}
func (*UpToDate) message()     {}
func (*Ack) message()          {}
func (*Commit) message()       {}
func (*Ping) message()         {}
func (*PingReply) message()    {}
func (*Request) message()      {}
func (*Reply) message()        {}
func (*SyncRequest) message()  {}
func (*SyncReply) message()    {}
func (*Received) message()     {}
func (*Resign) message()       {}
func (*Refuse) message()       {}
