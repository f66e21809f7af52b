package wal

import (
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Options configure Open. The zero value is ready for use except for Completed.
type Options struct {
	// FS is the file system of everything below the directory, lock file included. Nil: the operating system.
	FS vfs.FS
	// LogDir is the directory of the Pebble store and the ack watermark. Empty: "log" below the member's directory.
	LogDir string
	// Logger gets one line per repair or failure. Nil: discard.
	Logger *slog.Logger
	// Completed is called after each batch with the greatest Seq in it, in order, on the writer goroutine
	// (on a failure: once, on the goroutine that saw it). It must not block and must not call Close.
	Completed func(Completion)
	// CacheBytes is the size of the block cache. Default 2 MiB: the log is read in order, once, through the
	// page cache; only index blocks and the group around a Locate come back.
	CacheBytes int64
	// MemTableBytes is the size of Pebble's write buffer; about two exist. Default 16 MiB.
	MemTableBytes uint64
	// MaxBatchBytes bounds one batch, and so the memory and time one sync may take. Default 4 MiB. A single
	// Write is never split.
	MaxBatchBytes int
	// GroupBytes is the size at which a group of entries (one Pebble key) is full. Default 64 KiB.
	GroupBytes int
	// WatermarkSyncEvery is how often the ack watermark is synced while it changes. Default 1 s.
	WatermarkSyncEvery time.Duration
	// UnsafeNoSync makes every sync a no-op that reports success. It exists so that the power-loss test can
	// show that it notices; it loses acknowledged writes.
	UnsafeNoSync bool

	readOnly bool          // Inspect: nothing is created or repaired
	examined func(*health) // for tests: called when Open has examined the store and is about to serve
	sayAfter time.Duration // of Open, until it says that it is still checking; default sayFirst

	mutations mutations
}

// mutations are deliberate mistakes, for the test that shows that the tests of this package notice them.
type mutations struct {
	// ackUnsynced reports a batch as durable before its sync.
	ackUnsynced bool
	// twoBatches makes a truncation durable before what follows it in the same write (S14).
	twoBatches bool
	// markFirst writes the ack watermark before the batch that it speaks of is durable (S35).
	markFirst bool
	// generationKept leaves the generation of the log as it is when the log is truncated.
	generationKept bool
	// dropOneMore drops the first entry that was to stay when the log start moves (S34).
	dropOneMore bool
}

// ensureDefaults fills zero fields.
func (o *Options) ensureDefaults(dir string) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.LogDir == "" {
		o.LogDir = o.FS.PathJoin(dir, "log")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Completed == nil {
		o.Completed = func(Completion) {}
	}
	if o.sayAfter <= 0 {
		o.sayAfter = sayFirst
	}
	if o.CacheBytes <= 0 {
		o.CacheBytes = 2 << 20
	}
	if o.MemTableBytes == 0 {
		o.MemTableBytes = 16 << 20
	}
	if o.MaxBatchBytes <= 0 {
		o.MaxBatchBytes = 4 << 20
	}
	if o.GroupBytes <= 0 {
		o.GroupBytes = 64 << 10
	}
	if o.WatermarkSyncEvery <= 0 {
		o.WatermarkSyncEvery = time.Second
	}
}
