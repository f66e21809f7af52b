package snapshot

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/hashicorp/go-msgpack/v2/codec"

	"kvd/kv"
)

// pointVersion is the version of the encoded Point. Part of the format.
const pointVersion = 1

// MaxPointBytes bounds an encoded Point, and with it what a peer can make us decode.
const MaxPointBytes = 16 << 10

// MaxFiles bounds the files of one point: a full one and its deltas. NeedFull asks for a new full file before.
const MaxFiles = 64

// MaxFileBytes bounds one file (1 TiB): a larger length in a Point is nonsense.
const MaxFileBytes = 1 << 40

// Record is one record of the tree's content: what kv.View emits and kv.Builder takes. In a delta a nil Value
// means "deleted"; everywhere else Value is the content and may be empty.
type Record struct {
	Table      uint8
	Key, Value []byte
}

// Source yields records in ascending order of (table, key), each key once. A record's bytes need to be valid only
// during yield. An error of yield must be returned as it is.
type Source interface {
	Records(yield func(Record) error) error
}

// SourceFunc lets a function be a Source.
type SourceFunc func(yield func(Record) error) error

// Records calls f.
func (f SourceFunc) Records(yield func(Record) error) error { return f(yield) }

// Meta names the state a snapshot holds: the zxid, the log's digest chain there, and the digest of the tree.
type Meta struct {
	Zxid   kv.Zxid
	Chain  uint64
	Digest uint64
}

// File is one file of a point. Name is derived from the other values and the file's zxid. The order of the
// fields is part of the format.
type File struct {
	Name  string
	Bytes int64
	Hash  uint64 // xxhash64 (seed 0) of all bytes of the file
	Delta bool
}

// Point is a snapshot: a full file, then deltas, oldest first. The last file is the one written at Zxid.
// The zero Point is no snapshot.
type Point struct {
	Meta
	Files []File
}

// IsZero reports whether p is no snapshot at all.
func (p Point) IsZero() bool { return len(p.Files) == 0 }

// FullBytes is the size of the point's full file.
func (p Point) FullBytes() int64 {
	if p.IsZero() {
		return 0
	}
	return p.Files[0].Bytes
}

// DeltaBytes is the size of the point's delta files together.
func (p Point) DeltaBytes() int64 {
	var n int64
	for _, f := range p.Files {
		if f.Delta {
			n += f.Bytes
		}
	}
	return n
}

// TotalBytes is the size of all files of the point.
func (p Point) TotalBytes() int64 { return p.FullBytes() + p.DeltaBytes() }

// Equal reports whether p and q name the same files and state.
func (p Point) Equal(q Point) bool {
	if p.Meta != q.Meta || len(p.Files) != len(q.Files) {
		return false
	}
	for i := range p.Files {
		if p.Files[i] != q.Files[i] {
			return false
		}
	}
	return true
}

// fileName is the content-derived name of a finished file. Part of the format.
func fileName(z kv.Zxid, hash uint64, delta bool) string {
	kind := "full"
	if delta {
		kind = "delta"
	}
	return fmt.Sprintf("%016x-%016x.%s", uint64(z), hash, kind)
}

// parseFileName is the inverse of fileName; ok is false for every name that fileName does not produce.
func parseFileName(name string) (z kv.Zxid, hash uint64, delta, ok bool) {
	switch {
	case len(name) == 33+len(".full") && name[33:] == ".full":
	case len(name) == 33+len(".delta") && name[33:] == ".delta":
		delta = true
	default:
		return 0, 0, false, false
	}
	if name[16] != '-' {
		return 0, 0, false, false
	}
	var num [2]uint64
	for i, part := range []string{name[:16], name[17:33]} {
		var raw [8]byte
		if _, err := hex.Decode(raw[:], []byte(part)); err != nil {
			return 0, 0, false, false
		}
		for _, b := range raw {
			num[i] = num[i]<<8 | uint64(b)
		}
	}
	z, hash = kv.Zxid(num[0]), num[1]
	return z, hash, delta, fileName(z, hash, delta) == name // upper-case digits are not ours
}

// Validate checks that p could have been made by a Store: names agree with content, the first file is the only
// full one, zxids do not fall, the last is the point's own, and lengths are possible. It accepts nothing that
// could lead outside of a store's directory. The error says what is wrong.
func (p Point) Validate() error {
	if len(p.Files) == 0 {
		return errors.New("snapshot point without files")
	}
	if len(p.Files) > MaxFiles {
		return fmt.Errorf("snapshot point with %d files, limit %d", len(p.Files), MaxFiles)
	}
	var last kv.Zxid
	for i, f := range p.Files {
		z, hash, delta, ok := parseFileName(f.Name)
		switch {
		case !ok:
			return fmt.Errorf("snapshot file %d has an impossible name %.80q", i, f.Name)
		case hash != f.Hash || delta != f.Delta:
			return fmt.Errorf("snapshot file %s: name disagrees with hash %016x, delta %v", f.Name, f.Hash, f.Delta)
		case delta != (i > 0):
			return fmt.Errorf("snapshot file %s: file %d of a point is full if and only if it is the first", f.Name, i)
		case f.Bytes <= 0 || f.Bytes > MaxFileBytes:
			return fmt.Errorf("snapshot file %s: impossible length %d", f.Name, f.Bytes)
		case i > 0 && z <= last:
			return fmt.Errorf("snapshot file %s: not after %s", f.Name, last)
		}
		last = z
	}
	if last != p.Zxid {
		return fmt.Errorf("snapshot point %s ends with a file of %s", p.Zxid, last)
	}
	return nil
}

// The msgpack shape of a Point: structs, this one and File, as arrays of their fields in order. Part of the format.
type pointRecord struct {
	Version uint32
	Zxid    uint64
	Chain   uint64
	Digest  uint64
	Files   []File
}

func pointHandle() *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{WriteExt: true} // distinguish strings from bytes, as current msgpack does
	h.StructToArray = true
	h.MaxInitLen = MaxFiles
	return h
}

// AppendTo appends p's encoding (msgpack, versioned) to dst. p must be valid.
func (p Point) AppendTo(dst []byte) []byte {
	rec := pointRecord{Version: pointVersion, Zxid: uint64(p.Zxid), Chain: p.Chain, Digest: p.Digest, Files: p.Files}
	var out []byte
	if err := codec.NewEncoderBytes(&out, pointHandle()).Encode(&rec); err != nil {
		panic(fmt.Sprintf("snapshot: encoding a point into memory: %v", err)) // cannot happen: no writer, plain types
	}
	return append(dst, out...)
}

// DecodePoint is the inverse of AppendTo. It accepts only what AppendTo produces for a valid point, never more than
// MaxPointBytes, and refuses a newer version by name.
func DecodePoint(b []byte) (Point, error) {
	if len(b) > MaxPointBytes {
		return Point{}, fmt.Errorf("snapshot point of %d bytes, limit %d", len(b), MaxPointBytes)
	}
	if len(b) < 2 || b[0]>>4 != 0x9 { // fixarray, then the version
		return Point{}, errors.New("snapshot point: not one of ours")
	}
	if b[1] != pointVersion {
		return Point{}, fmt.Errorf("snapshot point: version byte %d, this build reads %d", b[1], pointVersion)
	}
	var rec pointRecord
	if err := codec.NewDecoderBytes(b, pointHandle()).Decode(&rec); err != nil {
		return Point{}, fmt.Errorf("snapshot point: %w", err)
	}
	p := Point{Meta: Meta{Zxid: kv.Zxid(rec.Zxid), Chain: rec.Chain, Digest: rec.Digest}, Files: rec.Files}
	if err := p.Validate(); err != nil {
		return Point{}, err
	}
	if !bytes.Equal(p.AppendTo(nil), b) {
		return Point{}, errors.New("snapshot point: not in canonical form")
	}
	return p, nil
}
