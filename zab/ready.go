package zab

import (
	"kvd/kv"
	"kvd/zab/quorum"
)

// Role is what a member is doing.
type Role uint8

// The roles. Looking is the zero value: a member that knows no leader.
const (
	Looking Role = iota
	Following
	Leading
	Observing
)

// String names the role in the protocol's words.
func (r Role) String() string {
	return [...]string{"looking", "following", "leading", "observing"}[r]
}

// Promise is a durable accepted epoch together with the incarnation it was promised to.
type Promise struct {
	Epoch kv.Epoch
	To    Incarnation
}

// SnapshotRef names a received snapshot. Handle is the shell's own key for the files; the core only hands
// it back in Write.Install and Ready.Restore.
type SnapshotRef struct {
	Zxid   kv.Zxid
	Chain  uint64
	Handle uint64
}

// DurableState is what a member's disk holds at start, after all checks.
type DurableState struct {
	Accepted      Promise
	Current       kv.Epoch
	Base          kv.Zxid // newest snapshot point; 0 if none
	BaseChain     uint64
	LogStart      kv.Zxid // zxid before the first retained entry, <= Base (or 0)
	LogStartChain uint64
	Last          kv.Zxid // last durable entry, or Base
	LastChain     uint64
	// Unknown: the member may have forgotten something (design rule 8, suspect or blank-but-formed):
	// neither its votes nor its epoch acks count until its NEWLEADER batch is durable.
	Unknown bool
	// Sole: the operator said that the other voters lost what they held (kvd recover --sole-survivor). The member may lead
	// with epoch acks of members that are Unknown, and bring them up to date; see Write.ClearSole.
	Sole bool
}

// Write is one atomic, synced batch for the log store. Writes are executed strictly in the order they are
// handed out and completed in that order by Peer.Persisted(Seq). The parts apply in field order.
// Truncate + Append + CurrentEpoch in one Write is what makes a half-adopted history impossible (design rule 2).
type Write struct {
	Seq      uint64
	Promise  *Promise     // accepted epoch
	Install  *SnapshotRef // base := logStart := this snapshot, the whole log is dropped, older snapshots forgotten
	Truncate *kv.Zxid     // drop every entry after this one
	Append   []kv.Entry   // contiguous to what is there
	Current  kv.Epoch     // 0: unchanged
	// Trusted clears the durable "unknown" mark: this batch makes the member a voter again.
	Trusted bool
	// ClearSole takes the mark of a sole survivor away.
	ClearSole bool
}

// Outbound is a message for one link.
type Outbound struct {
	To   quorum.MemberID
	Link LinkID
	// Msg may be shared between several Outbounds (one Proposal to all followers): the shell encodes it once.
	Msg Message
}

// ReadLog asks the shell to read entries that are no longer in memory: (After, ...], about MaxBytes of
// payload, never beyond Through. Answered by Peer.LogRead.
type ReadLog struct {
	To       quorum.MemberID
	Link     LinkID
	After    kv.Zxid
	Through  kv.Zxid
	MaxBytes int
}

// SendSnapshot asks the shell to stream its newest snapshot point on a link. The shell answers
// SnapshotChosen (the core then emits the Snap message), streams the files, and reports SnapshotSent.
// Until then the core puts only Pings and Replies on that link.
type SendSnapshot struct {
	To   quorum.MemberID
	Link LinkID
}

// Apply tells the applier what has become applicable: entries in zxid order, committed and locally durable.
// If Entries is nil the range (After, Through] must be read from the log store.
type Apply struct {
	After   kv.Zxid
	Through kv.Zxid
	Entries []kv.Entry
}

// Synced answers Peer.Sync.
type Synced struct {
	ID   uint64
	Zxid kv.Zxid // a read at an applied zxid >= this one is fresh
	OK   bool    // false: the role or link ended first; the outcome is "not confirmed"
}

// Inbound is an opaque payload from the other side of a link (Request at the leader, Reply at a learner).
type Inbound struct {
	From    quorum.MemberID
	Link    LinkID
	Payload []byte
}

// PeerReport is what a PING reply said, for the replica (touches, disk health, snapshot turns).
type PeerReport struct {
	From  quorum.MemberID
	Reply *PingReply
}

// Ready is everything a step produced. The order of effects is the order of the fields:
//
//  1. Writes go to the log writer's queue, in order. Nothing in Send depends on them being durable: a message
//     that promises durability (LEADERINFO, ACKEPOCH, ACK, ACK of NEWLEADER) is only created when Persisted
//     has reported the write, so "ack before sync" cannot be expressed by the shell.
//  2. Send may leave at once, in order per link.
//  3. CloseLinks, then Connect.
//  4. Restore, then Apply go to the applier's queue, in order. They speak only of committed and durable entries.
//  5. The rest is information.
//
// Empty fields mean nothing to do. Slices are valid until the next call of Peer.Ready.
type Ready struct {
	Writes     []Write
	Send       []Outbound
	CloseLinks []CloseLink
	Connect    *Connect
	Snapshots  []SendSnapshot
	Reads      []ReadLog
	Restore    *SnapshotRef // load this installed snapshot into the tree before applying further
	Apply      []Apply
	Synced     []Synced
	Inbound    []Inbound
	Reports    []PeerReport
	// SnapshotTurn: the leader's PING granted this learner leave to write its own snapshot now.
	SnapshotTurn bool
	// Diverged: the leader says that this member's tree is wrong.
	Diverged *Divergence
	// Role is set when the role or its stage changed.
	Role   *RoleChange
	Events []Event // for logs, counters and golden files
}

// CloseLink asks the shell to close a link after what was sent on it has been flushed.
type CloseLink struct {
	Peer   quorum.MemberID
	Link   LinkID
	Reason string
}

// Connect asks the shell to dial the leader's learner port and report LinkUp.
// Attempt numbers requests; a newer one replaces an older one.
type Connect struct {
	Leader  quorum.MemberID
	Attempt uint64
}

// Stage refines Role.
type Stage uint8

// The stages of a term.
const (
	Discovery Stage = iota // phase 1
	Synchronization
	Broadcast // leader: established; learner: UPTODATE received
)

// String names the stage in the protocol's words.
func (s Stage) String() string {
	return [...]string{"discovery", "synchronization", "broadcast"}[s]
}

// RoleChange reports a new role or stage. A change to Looking starts an election.
type RoleChange struct {
	Role   Role
	Stage  Stage
	Leader quorum.MemberID
	Epoch  kv.Epoch
	Reason string // why, when it went back to Looking: one log line for the person on call
}

// Event is one protocol transition worth a log line or a golden file line. It never carries traffic.
type Event struct {
	Kind string // constant
	Text string // key=value pairs
}
