package kv

import (
	"errors"
	"fmt"
)

// Code is a result code with ZooKeeper's numbers (KeeperException.Code). Part of the client protocol and of the
// transaction format. The zero value is success.
type Code int32

// The codes a server sends.
const (
	CodeOK                      Code = 0
	CodeSystemError             Code = -1
	CodeRuntimeInconsistency    Code = -2
	CodeMarshallingError        Code = -5
	CodeUnimplemented           Code = -6
	CodeBadArguments            Code = -8
	CodeUnknownSession          Code = -12
	CodeNewConfigNoQuorum       Code = -13
	CodeReconfigInProgress      Code = -14
	CodeNoNode                  Code = -101
	CodeNoAuth                  Code = -102
	CodeBadVersion              Code = -103
	CodeNoChildrenForEphemerals Code = -108
	CodeNodeExists              Code = -110
	CodeNotEmpty                Code = -111
	CodeSessionExpired          Code = -112
	CodeInvalidACL              Code = -114
	CodeAuthFailed              Code = -115
	CodeSessionMoved            Code = -118
	CodeNotReadOnly             Code = -119
	CodeEphemeralOnLocalSession Code = -120
	CodeNoWatcher               Code = -121
	CodeReconfigDisabled        Code = -123
	CodeSaslAuthRequired        Code = -124
	CodeQuotaExceeded           Code = -125
	CodeThrottled               Code = -127
)

// The sentinels, one for each code. They are outcomes: normal results, the same on every member.
var (
	ErrSystemError             = errors.New("system error")
	ErrRuntimeInconsistency    = errors.New("not attempted, an earlier operation failed")
	ErrMarshalling             = errors.New("malformed request")
	ErrUnimplemented           = errors.New("unimplemented")
	ErrBadArguments            = errors.New("bad arguments")
	ErrUnknownSession          = errors.New("unknown session")
	ErrNewConfigNoQuorum       = errors.New("no quorum of the new configuration is connected")
	ErrReconfigInProgress      = errors.New("reconfiguration in progress")
	ErrNoNode                  = errors.New("no such node")
	ErrNoAuth                  = errors.New("not authorized")
	ErrBadVersion              = errors.New("wrong version")
	ErrNoChildrenForEphemerals = errors.New("an ephemeral node has no children")
	ErrNodeExists              = errors.New("node exists")
	ErrNotEmpty                = errors.New("node has children")
	ErrSessionExpired          = errors.New("session expired")
	ErrInvalidACL              = errors.New("invalid ACL")
	ErrAuthFailed              = errors.New("authentication failed")
	ErrSessionMoved            = errors.New("session moved to another server")
	ErrNotReadOnly             = errors.New("not a read-only call")
	ErrEphemeralOnLocalSession = errors.New("ephemeral node on a local session")
	ErrNoWatcher               = errors.New("no such watcher")
	ErrReconfigDisabled        = errors.New("reconfiguration is disabled")
	ErrSaslAuthRequired        = errors.New("session closed, authentication required")
	ErrQuotaExceeded           = errors.New("quota exceeded")
	ErrThrottled               = errors.New("throttled")
)

// ErrBrokenPromise is matched by errors that mean this member's state cannot be trusted any more: a gap in the
// history, a digest that does not match, a transaction that does not fit the tree. The member must stop.
var ErrBrokenPromise = errors.New("broken promise")

// codeTable is the one place where codes, names and sentinels meet.
var codeTable = []struct {
	code Code
	name string // as in ZooKeeper's KeeperException.Code, for logs
	err  error
}{
	{CodeSystemError, "SystemError", ErrSystemError},
	{CodeRuntimeInconsistency, "RuntimeInconsistency", ErrRuntimeInconsistency},
	{CodeMarshallingError, "MarshallingError", ErrMarshalling},
	{CodeUnimplemented, "Unimplemented", ErrUnimplemented},
	{CodeBadArguments, "BadArguments", ErrBadArguments},
	{CodeUnknownSession, "UnknownSession", ErrUnknownSession},
	{CodeNewConfigNoQuorum, "NewConfigNoQuorum", ErrNewConfigNoQuorum},
	{CodeReconfigInProgress, "ReconfigInProgress", ErrReconfigInProgress},
	{CodeNoNode, "NoNode", ErrNoNode},
	{CodeNoAuth, "NoAuth", ErrNoAuth},
	{CodeBadVersion, "BadVersion", ErrBadVersion},
	{CodeNoChildrenForEphemerals, "NoChildrenForEphemerals", ErrNoChildrenForEphemerals},
	{CodeNodeExists, "NodeExists", ErrNodeExists},
	{CodeNotEmpty, "NotEmpty", ErrNotEmpty},
	{CodeSessionExpired, "SessionExpired", ErrSessionExpired},
	{CodeInvalidACL, "InvalidACL", ErrInvalidACL},
	{CodeAuthFailed, "AuthFailed", ErrAuthFailed},
	{CodeSessionMoved, "SessionMoved", ErrSessionMoved},
	{CodeNotReadOnly, "NotReadOnly", ErrNotReadOnly},
	{CodeEphemeralOnLocalSession, "EphemeralOnLocalSession", ErrEphemeralOnLocalSession},
	{CodeNoWatcher, "NoWatcher", ErrNoWatcher},
	{CodeReconfigDisabled, "ReconfigDisabled", ErrReconfigDisabled},
	{CodeSaslAuthRequired, "SessionClosedRequireSaslAuth", ErrSaslAuthRequired},
	{CodeQuotaExceeded, "QuotaExceeded", ErrQuotaExceeded},
	{CodeThrottled, "ThrottledOp", ErrThrottled},
}

// String returns ZooKeeper's name of the code.
func (c Code) String() string {
	if c == CodeOK {
		return "OK"
	}
	for i := range codeTable {
		if codeTable[i].code == c {
			return codeTable[i].name
		}
	}
	return fmt.Sprintf("Code(%d)", int32(c))
}

// Err returns the sentinel of the code, nil for CodeOK. A code that is not in the table gives an error that
// matches no sentinel.
func (c Code) Err() error {
	if c == CodeOK {
		return nil
	}
	for i := range codeTable {
		if codeTable[i].code == c {
			return codeTable[i].err
		}
	}
	return fmt.Errorf("result code %d", int32(c))
}

// CodeOf returns the code of an error of this package, CodeOK for nil and CodeSystemError for any other error.
func CodeOf(err error) Code {
	if err == nil {
		return CodeOK
	}
	for i := range codeTable {
		if errors.Is(err, codeTable[i].err) {
			return codeTable[i].code
		}
	}
	return CodeSystemError
}

// broken builds an error that matches ErrBrokenPromise.
func broken(z Zxid, format string, args ...any) error {
	return fmt.Errorf("%w at zxid %v: %w", ErrBrokenPromise, z, fmt.Errorf(format, args...))
}
