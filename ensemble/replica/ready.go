package replica

import (
	"errors"

	"kvd/kv"
	"kvd/zab"
	"kvd/zab/quorum"
)

// Clock is what the shell knows about time when it ticks.
type Clock struct {
	// WallMs is the wall clock in milliseconds since 1970. It stamps transactions and decides nothing.
	WallMs int64
	// Gap says that the shell's loop woke late by more than a tick: the process was paused. The shell delivers
	// everything it had already received before it ticks, and ticks once, however long the pause was.
	Gap bool
}

// Kinds of payload on an election connection. Part of the format.
const (
	KindNotification byte = 0 // fle.Notification
	KindIdentity     byte = 1 // identity hello
)

// Operation codes with a meaning of their own here; all others are the client protocol's.
const (
	OpCreateSession int32 = -10 // Body: AppendCreateSession
	OpCloseSession  int32 = -11 // Body: empty
)

// ClientOp is one write of a client on its way to the leader.
type ClientOp struct {
	// Request is the origin's token: strictly increasing within a run, not reused by later runs (start each run
	// at a new random multiple of 2^32), never zero. It comes back in kv.TxnHeader.Request.
	Request uint64
	// Conn is the client connection that the operation came on: unique within a run, not forwarded. Of one
	// connection's operations those that are executed are a prefix, in the order of Submit.
	Conn    uint64
	Session kv.SessionID
	Op      int32
	// Body is the request record as received. The replica keeps it; the caller must not touch it again.
	Body []byte
	// Auth holds the identities of the client's connection when it sent the operation.
	Auth kv.Credentials
	// Local: the session is known to the origin alone and not part of the replicated state (zookeeper-protocol 7.2).
	Local bool
}

// Outcome says what is known about an operation that will get no result through this path.
type Outcome uint8

// The outcomes.
const (
	// NotSent: certainly not executed, now or later.
	NotSent Outcome = iota + 1
	// Unknown: it was sent or proposed; it may or may not be executed, at most once.
	Unknown
)

// Failed reports an operation without a result. Reports of one connection come in submission order.
type Failed struct {
	Request uint64
	Session kv.SessionID
	Outcome Outcome
}

// Claim orders the connections that a session has had: the greater is the newer one. It is the epoch in which the
// connection was accepted in the upper half, and a number that its leader counted in the lower; 0 in the lower half is
// the connection that the session began on. A new leader learns from it who spoke for a session last.
type Claim uint64

// BirthClaim is the claim of the connection on which a session was created by the transaction z.
func BirthClaim(z kv.Zxid) Claim { return Claim(z.Epoch()) << 32 }

// Birth reports whether the claim is of a connection on which its session was created.
func (c Claim) Birth() bool { return uint32(c) == 0 }

// Validity is the leader's answer about a session.
type Validity uint8

// The answers.
const (
	// NoAnswer: no leader could be asked. The client should try again; its session may well be alive.
	NoAnswer Validity = iota + 1
	// Valid: the session lives and belongs to this member now, with the given time-out.
	Valid
	// Gone: the session is closed, closing, or was never there. The client must be told "expired".
	Gone
	// WrongPassword: the session exists and the password is not its own. Nothing was changed.
	WrongPassword
)

// Revalidated answers Revalidate.
type Revalidated struct {
	Request   uint64
	Session   kv.SessionID
	Validity  Validity
	TimeoutMs int32
	Claim     Claim // of the connection, for Touch
	// Fresh is the zxid of the state that answered: a member whose tree is older may not know the session yet.
	Fresh kv.Zxid
}

// ElectionSend is a payload for one peer's election connection: newest wins per peer and kind.
type ElectionSend struct {
	To      quorum.MemberID
	Kind    byte
	Payload []byte
}

// IdentityWrite asks the shell to make the cluster id durable, first in the log store, then in the identity file.
// Answered by IdentityPersisted; nothing announces the id before that.
type IdentityWrite struct {
	ClusterID [16]byte
	// Trusted goes into the log store's same batch: the member has nothing to forget.
	Trusted bool
}

// Serving says what clients of this member may expect. It is set in Ready when it changed.
type Serving struct {
	Role   zab.Role
	Leader quorum.MemberID // 0: none known
	Epoch  kv.Epoch
	// Open: a leader is established and this member follows it up to date (or is it). While it is false no
	// client may be answered from this member (P15), new sessions and writes wait in the queue.
	Open bool
	// Since is the zxid up to which the member must have applied before it answers reads in this term.
	Since kv.Zxid
}

// Ready is everything a step produced. The order of effects is the order of the fields, the embedded ones
// first (see zab.Ready). Inbound and Reports are always empty here: the replica has consumed them.
// Slices are valid until the next call of Ready. Payloads and bodies in them are shared and immutable.
type Ready struct {
	zab.Ready

	// Identity must be durable before IdentityPersisted is called.
	Identity *IdentityWrite
	// Elections may leave at once.
	Elections []ElectionSend
	// Failed, Revalidated (and the embedded Synced) go to the clients that asked.
	Failed      []Failed
	Revalidated []Revalidated
	Serving     *Serving
	// SnapshotTurn: it is this member's turn to write a snapshot of its own; forget it if none is wanted.
	SnapshotTurn bool
	// Diverged: this member's tree is wrong. It must not be served from any more: the shell ends the member and has it synced
	// as one that may have forgotten something.
	Diverged *zab.Divergence
	// Stopped: Shutdown is complete; nothing more will come.
	Stopped bool
}

// Errors of Submit.
var (
	// ErrBusy: the queue is full. Not sent; the client may try again.
	ErrBusy = errors.New("too many requests are waiting")
	// ErrStopping: the member shuts down. Not sent.
	ErrStopping = errors.New("member is shutting down")
	// ErrTooLarge: the operation alone exceeds what a message may carry. Not sent, and never will be.
	ErrTooLarge = errors.New("request is larger than a message may be")
	// ErrBroken: an earlier operation of the same connection has failed. Not sent.
	ErrBroken = errors.New("an earlier request of the connection has failed")
)
