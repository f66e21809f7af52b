package kv

import "fmt"

// Op is an operation code with ZooKeeper's numbers; the negative ones never come from a client. Part of the
// client protocol and of the transaction format.
type Op int32

// The operations that change the tree.
const (
	OpCreate          Op = 1
	OpDelete          Op = 2
	OpSetData         Op = 5
	OpSetACL          Op = 7
	OpCheck           Op = 13 // only inside OpMulti
	OpMulti           Op = 14
	OpCreate2         Op = 15
	OpCreateContainer Op = 19
	OpDeleteContainer Op = 20
	OpCreateTTL       Op = 21
	OpCreateSession   Op = -10
	OpCloseSession    Op = -11
	// OpSetLevels and OpSetConfig are this project's own, asked for by the leader alone and never sent by clients.
	OpSetLevels Op = -100
	OpSetConfig Op = -101
)

// String names the operation.
func (o Op) String() string {
	switch o {
	case OpCreate:
		return "create"
	case OpDelete:
		return "delete"
	case OpSetData:
		return "setData"
	case OpSetACL:
		return "setACL"
	case OpCheck:
		return "check"
	case OpMulti:
		return "multi"
	case OpCreate2:
		return "create2"
	case OpCreateContainer:
		return "createContainer"
	case OpDeleteContainer:
		return "deleteContainer"
	case OpCreateTTL:
		return "createTTL"
	case OpCreateSession:
		return "createSession"
	case OpCloseSession:
		return "closeSession"
	case OpSetLevels:
		return "setLevels"
	case OpSetConfig:
		return "setConfig"
	}
	return fmt.Sprintf("op(%d)", int32(o))
}

// Create flags (enumerated values, not a bit set; zookeeper-protocol 4.3).
const (
	FlagPersistent          int32 = 0
	FlagEphemeral           int32 = 1
	FlagSequential          int32 = 2
	FlagEphemeralSequential int32 = 3
	FlagContainer           int32 = 4 // through OpCreate and OpCreate2: a plain persistent node
	FlagTTL                 int32 = 5
	FlagSequentialTTL       int32 = 6
	maxCreateFlag                 = FlagSequentialTTL
	anyVersion              int32 = -1
)

// Levels are the replicated, active versions of the peer protocol and of the transaction format: what every
// member of the ensemble understands. They only ever rise.
type Levels struct {
	Protocol uint32
	Format   uint32
}

// Request is one operation that changes the tree, as a client asked for it. Which fields count depends on Op.
type Request struct {
	Op      Op
	Session SessionID // who asks; the session to make or close for the session operations; 0 for the leader's own
	Path    string
	Data    []byte // nil is ZooKeeper's null, which is stored as such
	ACL     []ACL
	Flags   int32
	TTL     int64 // milliseconds; of OpCreateTTL the time to live, of OpDeleteContainer View.Reapable's neverUsed
	Version int32 // expected version, -1 for any
	Ops     []Request

	Auth  Credentials // of the connection; not looked at for session 0, the leader itself
	Local bool        // the session is known to its member only (zookeeper-protocol 7.2)

	Timeout  int32 // milliseconds; OpCreateSession
	Password [16]byte
	Levels   Levels // OpSetLevels
}

// AddsData reports whether carrying r out makes the tree larger, or keeps it as large at the price of a larger log: what is
// refused while disk space is short (design 8). Deletions, checks and the ends of sessions are not among it.
func (r *Request) AddsData() bool {
	switch r.Op {
	case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL, OpSetData, OpSetACL:
		return true
	}
	for i := range r.Ops {
		if r.Ops[i].AddsData() {
			return true
		}
	}
	return false
}

// Session is the replicated part of a client session.
type Session struct {
	ID       SessionID
	Timeout  int32 // milliseconds
	Password [16]byte
}
