package wal

import "errors"

// The sentinels of this package. Match with errors.Is.
var (
	// ErrClosed: the log was closed; the write was not executed.
	ErrClosed = errors.New("wal: log is closed")
	// ErrDead wraps every error of a log whose disk failed. It is final: what was not completed before may
	// or may not be on disk, and only a fresh Open tells.
	ErrDead = errors.New("wal: log is dead after a failed write")
	// ErrCompacted: the entries asked for begin before the first retained one.
	ErrCompacted = errors.New("wal: entries are no longer in the log")
	// ErrNotFound: the zxid named as the position after which to read is not in this history.
	ErrNotFound = errors.New("wal: no such entry")
	// ErrBroken: a write would have broken a promise of the log (a hole, a wrong chain value, an epoch that
	// falls, a truncation below the base). Nothing of it is executed and the log is dead.
	ErrBroken = errors.New("wal: write breaks an invariant of the log")
	// ErrNewerFormat: the directory was written by a newer version of this program. Nothing was touched.
	ErrNewerFormat = errors.New("wal: directory has a newer format")
	// ErrLocked: another process, or another Log of this one, has the directory open.
	ErrLocked = errors.New("wal: directory is in use")
	// ErrDamaged marks stored bytes that are not what was written. Open never returns it: damage makes a
	// log suspect (State.Suspect). Read returns it when damage shows up later.
	ErrDamaged = errors.New("wal: stored data is damaged")
)
