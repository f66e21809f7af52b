package snapshot

import (
	"context"
	"io"

	"kvd/kv"
)

// Store holds the files of snapshot points. See the package comment for what may run at the same time.
// Errors that are damage match errors.Is(err, ErrDamaged) and can be taken apart as *DamageError.
type Store interface {
	// WriteFull writes src as one full file and returns its point once that is durable. It stops with ctx's cause
	// when ctx ends, leaving nothing behind.
	WriteFull(ctx context.Context, m Meta, src Source) (Point, error)

	// WriteDelta writes changes (deletions as records with a nil Value) as one delta file on top of prev. The
	// returned point has prev's files and the new one. m.Zxid must be greater than prev.Zxid. prev is not read:
	// the caller falls back to WriteFull when prev is not known to be sound.
	WriteDelta(ctx context.Context, m Meta, changes Source, prev Point) (Point, error)

	// Load verifies p and yields its whole content in ascending (table, key) order, deltas merged, no
	// deletions. The record's bytes are valid only during the call. Nothing is yielded before every file's
	// length and hash have been checked.
	Load(p Point, yield func(Record) error) error

	// Verify checks length and hash of every file of p by reading it.
	Verify(p Point) error

	// OpenFile opens a finished file for streaming. It stays readable until closed even if Retain deletes it.
	OpenFile(name string) (FileReader, error)

	// Receive opens the receive area for p, which came from a peer and is validated. Bytes that an
	// earlier, unfinished Receive of the same files left behind are kept; those of other points are deleted.
	Receive(p Point) (Receiver, error)

	// Retain deletes every finished file that none of points references. Files being written or received are
	// left alone; partly received ones are deleted when no Receiver is open and they are not newer than the
	// newest point.
	Retain(points []Point) error
}

// FileReader reads one finished file.
type FileReader interface {
	io.ReaderAt
	io.Closer
}

// Receiver takes the files of one point from a peer. Not safe for concurrent use. Its caller may be fed by a
// hostile peer: every argument is checked, nothing is written outside of the announced lengths.
type Receiver interface {
	// Have returns, per file of the point, how many bytes from its start are held. A finished file that the store
	// already has (same content-derived name, hash checked) counts whole.
	Have() []int64

	// WriteChunk adds the bytes at off of file number file. Chunks of a file must come in order without gaps:
	// off is what Have says. hash is ChunkHash(data). A chunk that does not fit is refused with ErrBadChunk and
	// changes nothing.
	WriteChunk(file int, off int64, data []byte, hash uint64) error

	// Commit checks the hash of every file, makes them durable and gives them their names. On a hash mismatch
	// the file is deleted and the error is a *DamageError: the next attempt fetches it again. The Receiver is
	// closed either way.
	Commit() error

	// Close gives up and keeps what was received for the next attempt. Harmless after Commit.
	Close() error
}

// referenced returns the names of all files of points, and the newest point's zxid.
func referenced(points []Point) (names map[string]bool, newest kv.Zxid) {
	names = map[string]bool{}
	for _, p := range points {
		newest = max(newest, p.Zxid)
		for _, f := range p.Files {
			names[f.Name] = true
		}
	}
	return names, newest
}
