package wire

import "strconv"

// Op is an operation's code in a request header.
type Op int32

// The operations of ZooKeeper's client protocol.
const (
	OpCreate               Op = 1
	OpDelete               Op = 2
	OpExists               Op = 3
	OpGetData              Op = 4
	OpSetData              Op = 5
	OpGetACL               Op = 6
	OpSetACL               Op = 7
	OpGetChildren          Op = 8
	OpSync                 Op = 9
	OpPing                 Op = 11
	OpGetChildren2         Op = 12
	OpCheck                Op = 13
	OpMulti                Op = 14
	OpCreate2              Op = 15
	OpReconfig             Op = 16
	OpCheckWatches         Op = 17
	OpRemoveWatches        Op = 18
	OpCreateContainer      Op = 19
	OpDeleteContainer      Op = 20
	OpCreateTTL            Op = 21
	OpMultiRead            Op = 22
	OpAuth                 Op = 100
	OpSetWatches           Op = 101
	OpSASL                 Op = 102
	OpGetEphemerals        Op = 103
	OpGetAllChildrenNumber Op = 104
	OpSetWatches2          Op = 105
	OpAddWatch             Op = 106
	OpWhoAmI               Op = 107
	OpCreateSession        Op = -10
	OpCloseSession         Op = -11
)

// Class says what a server does with an operation.
type Class uint8

const (
	// ClassUnknown is no operation: answered with error -6 and zxid -1, and the connection is closed.
	ClassUnknown Class = iota
	// ClassRefused exists only inside a server or a multi; from a client it is treated as unknown.
	ClassRefused
	// ClassRead is answered by the member the client is connected to.
	ClassRead
	// ClassWrite goes through the leader and becomes a transaction.
	ClassWrite
	// ClassSync waits for the leader, then is answered locally.
	ClassSync
	// ClassPing only touches the session.
	ClassPing
	// ClassConn changes the connection: authentication.
	ClassConn
)

// opRow is one row of the table of operations.
type opRow struct {
	name     string
	short    string // the four-letter word's "lop" column
	class    Class
	request  func() Record // nil: multi and multiRead, which are no records
	response func() Record
}

func rec[T any, P interface {
	*T
	Record
}]() func() Record {
	return func() Record { return P(new(T)) }
}

var opTable = map[Op]opRow{
	OpCreate:               {"create", "CREA", ClassWrite, rec[CreateRequest](), rec[PathResponse]()},
	OpDelete:               {"delete", "DELE", ClassWrite, rec[PathVersionRequest](), rec[Empty]()},
	OpExists:               {"exists", "EXIS", ClassRead, rec[PathWatchRequest](), rec[StatResponse]()},
	OpGetData:              {"getData", "GETD", ClassRead, rec[PathWatchRequest](), rec[DataResponse]()},
	OpSetData:              {"setData", "SETD", ClassWrite, rec[SetDataRequest](), rec[StatResponse]()},
	OpGetACL:               {"getACL", "GETA", ClassRead, rec[PathRequest](), rec[ACLResponse]()},
	OpSetACL:               {"setACL", "SETA", ClassWrite, rec[SetACLRequest](), rec[StatResponse]()},
	OpGetChildren:          {"getChildren", "GETC", ClassRead, rec[PathWatchRequest](), rec[NamesResponse]()},
	OpSync:                 {"sync", "SYNC", ClassSync, rec[SyncRecord](), rec[SyncRecord]()},
	OpPing:                 {"ping", "PING", ClassPing, rec[Empty](), rec[Empty]()},
	OpGetChildren2:         {"getChildren2", "GETC", ClassRead, rec[PathWatchRequest](), rec[NamesStatResponse]()},
	OpCheck:                {"check", "CHEC", ClassRefused, rec[PathVersionRequest](), rec[Empty]()},
	OpMulti:                {"multi", "MULT", ClassWrite, nil, nil},
	OpCreate2:              {"create2", "CREA", ClassWrite, rec[CreateRequest](), rec[CreateResponse]()},
	OpReconfig:             {"reconfig", "RECO", ClassWrite, rec[ReconfigRequest](), rec[DataResponse]()},
	OpCheckWatches:         {"checkWatches", "CHKW", ClassRead, rec[PathKindRequest](), rec[Empty]()},
	OpRemoveWatches:        {"removeWatches", "REMW", ClassRead, rec[PathKindRequest](), rec[Empty]()},
	OpCreateContainer:      {"createContainer", "CREA", ClassWrite, rec[CreateRequest](), rec[CreateResponse]()},
	OpDeleteContainer:      {"deleteContainer", "DELE", ClassRefused, rec[PathRequest](), rec[Empty]()},
	OpCreateTTL:            {"createTTL", "CREA", ClassWrite, rec[CreateTTLRequest](), rec[CreateResponse]()},
	OpMultiRead:            {"multiRead", "MLTR", ClassRead, nil, nil},
	OpAuth:                 {"auth", "NA", ClassConn, rec[AuthRequest](), rec[Empty]()},
	OpSetWatches:           {"setWatches", "SETW", ClassRead, rec[SetWatchesRequest](), rec[Empty]()},
	OpSASL:                 {"sasl", "NA", ClassConn, rec[SASLRecord](), rec[SASLRecord]()},
	OpGetEphemerals:        {"getEphemerals", "GETE", ClassRead, rec[SyncRecord](), rec[NamesResponse]()},
	OpGetAllChildrenNumber: {"getAllChildrenNumber", "GETACN", ClassRead, rec[PathRequest](), rec[NumberResponse]()},
	OpSetWatches2:          {"setWatches2", "STW2", ClassRead, rec[SetWatches2Request](), rec[Empty]()},
	OpAddWatch:             {"addWatch", "ADDW", ClassRead, rec[PathKindRequest](), rec[NumberResponse]()},
	OpWhoAmI:               {"whoAmI", "HOMI", ClassRead, rec[Empty](), rec[WhoAmIResponse]()},
	OpCreateSession:        {"createSession", "SESS", ClassRefused, rec[ConnectRequest](), rec[ConnectResponse]()},
	OpCloseSession:         {"closeSession", "CLOS", ClassWrite, rec[Empty](), rec[Empty]()},
}

// opFast holds the class of the codes -16..127 for the hot path: a map look-up per request would be dearer than
// decoding most records.
var opFast [144]Class

func init() {
	for op, row := range opTable {
		opFast[op+16] = row.class
	}
}

// Class returns what a server does with the operation.
func (op Op) Class() Class {
	if i := int64(op) + 16; i >= 0 && i < int64(len(opFast)) {
		return opFast[i]
	}
	return ClassUnknown
}

// String is the operation's name in the protocol's description.
func (op Op) String() string {
	if row, ok := opTable[op]; ok {
		return row.name
	}
	return "op " + strconv.Itoa(int(op))
}

// Short is the name ZooKeeper's `cons` prints for a connection's last operation.
func (op Op) Short() string {
	if row, ok := opTable[op]; ok {
		return row.short
	}
	return "NA"
}

// NewRequest returns an empty request record of the operation, nil for multi, multiRead and unknown codes.
// It is for tools and tests; servers decode into the concrete type.
func (op Op) NewRequest() Record {
	if row := opTable[op]; row.request != nil {
		return row.request()
	}
	return nil
}

// NewResponse is NewRequest's counterpart for the reply.
func (op Op) NewResponse() Record {
	if row := opTable[op]; row.response != nil {
		return row.response()
	}
	return nil
}

// Special xids. A server only ever compares XidPing and otherwise echoes what it got.
const (
	XidEvent      int32 = -1 // server to client: a watch event
	XidPing       int32 = -2 // both ways
	XidAuth       int32 = -4 // what ZooKeeper's own clients use for auth; some use ordinary ones
	XidSetWatches int32 = -8 // likewise
)

// AnyVersion matches every version in a conditional write.
const AnyVersion int32 = -1

// Event types and the state every event of a server carries.
const (
	EventCreated         int32 = 1
	EventDeleted         int32 = 2
	EventDataChanged     int32 = 3
	EventChildrenChanged int32 = 4

	StateSyncConnected int32 = 3
)
