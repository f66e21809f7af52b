package wal

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/cespare/xxhash/v2"

	"kvd/kv"
)

// groupVersion is the format version of a stored group. Part of the format.
const groupVersion = 1

// groupHeaderBytes is checksum, version, previous zxid, previous chain and entry count. Part of the format.
const groupHeaderBytes = 8 + 1 + 8 + 8 + 4

// groupSeed keeps group checksums apart from every other use of xxhash64 here. Part of the format.
const groupSeed uint64 = 0x6b76642d67727031 // "kvd-grp1"

// group is the decoded value of one Pebble key: a run of consecutive entries.
//
// The first zxid is the key; the others follow from the per-entry epoch step, so a hole inside a group
// cannot be expressed. prev and prevChain name the entry before the group, so a hole between two groups,
// or a group that was lost, shows when the second is read (S31).
type group struct {
	first     kv.Zxid
	prev      kv.Zxid
	prevChain uint64
	count     int
	body      []byte // the packed entries
}

// entryBytes is what one entry takes in a group. step is its epoch minus that of the entry before.
func entryBytes(step uint32, payload int) int {
	return uvarintBytes(uint64(step)) + 8 + uvarintBytes(uint64(payload)) + payload
}

func uvarintBytes(v uint64) int {
	n := 1
	for v >= 0x80 {
		v >>= 7
		n++
	}
	return n
}

// groupBytes is the length of the value that encodeGroup writes for entries.
func groupBytes(prev kv.Zxid, entries []kv.Entry) int {
	n := groupHeaderBytes
	for i := range entries {
		n += entryBytes(uint32(entries[i].Zxid.Epoch()-prev.Epoch()), len(entries[i].Payload))
		prev = entries[i].Zxid
	}
	return n
}

// encodeGroup fills dst, which is exactly groupBytes long. The entries follow prev and each other.
func encodeGroup(dst []byte, prev kv.Zxid, prevChain uint64, entries []kv.Entry) {
	dst[8] = groupVersion
	binary.BigEndian.PutUint64(dst[9:], uint64(prev))
	binary.BigEndian.PutUint64(dst[17:], prevChain)
	binary.BigEndian.PutUint32(dst[25:], uint32(len(entries)))
	n := groupHeaderBytes
	for i := range entries {
		e := &entries[i]
		n += binary.PutUvarint(dst[n:], uint64(e.Zxid.Epoch()-prev.Epoch()))
		binary.BigEndian.PutUint64(dst[n:], e.Chain)
		n += 8
		n += binary.PutUvarint(dst[n:], uint64(len(e.Payload)))
		n += copy(dst[n:], e.Payload)
		prev = e.Zxid
	}
	binary.BigEndian.PutUint64(dst, groupChecksum(entries[0].Zxid, dst[8:]))
}

// groupChecksum covers the key as well, so that a value under a wrong key is damage.
func groupChecksum(first kv.Zxid, rest []byte) uint64 {
	var head [8]byte
	binary.BigEndian.PutUint64(head[:], uint64(first))
	var d xxhash.Digest
	d.ResetWithSeed(groupSeed)
	_, _ = d.Write(head[:])
	_, _ = d.Write(rest)
	return d.Sum64()
}

// decodeGroup checks version, checksum and lengths. The result aliases v.
func decodeGroup(first kv.Zxid, v []byte) (group, error) {
	if len(v) < groupHeaderBytes {
		return group{}, fmt.Errorf("%w: group %v has %d bytes", ErrDamaged, first, len(v))
	}
	// The checksum covers the version: a flipped bit there is damage, not a newer format.
	if got, want := groupChecksum(first, v[8:]), binary.BigEndian.Uint64(v); got != want {
		return group{}, fmt.Errorf("%w: group %v: checksum is %016x, stored %016x", ErrDamaged, first, got, want)
	}
	switch {
	case v[8] > groupVersion:
		return group{}, fmt.Errorf("%w: group %v has version %d, this program knows up to %d", ErrNewerFormat, first, v[8], groupVersion)
	case v[8] != groupVersion:
		return group{}, fmt.Errorf("%w: group %v has version %d", ErrDamaged, first, v[8])
	}
	g := group{
		first:     first,
		prev:      kv.Zxid(binary.BigEndian.Uint64(v[9:])),
		prevChain: binary.BigEndian.Uint64(v[17:]),
		body:      v[groupHeaderBytes:],
	}
	count := binary.BigEndian.Uint32(v[25:])
	// An entry takes at least 10 bytes, so this also bounds what a reader may allocate.
	if count == 0 || int64(count)*10 > int64(len(g.body)) {
		return group{}, fmt.Errorf("%w: group %v: %d entries in %d bytes", ErrDamaged, first, count, len(g.body))
	}
	g.count = int(count)
	return g, nil
}

// groupReader walks the entries of a group in order.
type groupReader struct {
	g    *group
	at   int // next byte of body
	left int
	prev kv.Zxid
}

func (g *group) reader() groupReader { return groupReader{g: g, left: g.count, prev: g.prev} }

// next decodes one entry; its payload aliases the group. ok is false at the end. An error means damage
// that the checksum did not see (a bug of the writer) and ends the walk.
func (r *groupReader) next() (e kv.Entry, ok bool, err error) {
	if r.left == 0 {
		if r.at != len(r.g.body) {
			return e, false, r.damage("bytes after the last entry")
		}
		return e, false, nil
	}
	b := r.g.body[r.at:]
	step, n := binary.Uvarint(b)
	if n <= 0 || step > uint64(math.MaxUint32)-uint64(r.prev.Epoch()) || n != uvarintBytes(step) {
		return e, false, r.damage("bad epoch step")
	}
	b = b[n:]
	if len(b) < 9 {
		return e, false, r.damage("entry is cut")
	}
	e.Chain = binary.BigEndian.Uint64(b)
	b = b[8:]
	size, m := binary.Uvarint(b)
	if m <= 0 || size > uint64(len(b)-m) || m != uvarintBytes(size) {
		return e, false, r.damage("bad payload length")
	}
	e.Payload = b[m : m+int(size) : m+int(size)]
	switch {
	case step > 0:
		e.Zxid = kv.MakeZxid(r.prev.Epoch()+kv.Epoch(step), 1)
	case r.prev.Counter() == kv.MaxCounter:
		return e, false, r.damage("counter overflow")
	default:
		e.Zxid = r.prev + 1
	}
	if !e.Zxid.Follows(r.prev) || (r.left == r.g.count && e.Zxid != r.g.first) {
		return e, false, r.damage("entry does not follow")
	}
	r.prev = e.Zxid
	r.left--
	r.at += n + 8 + m + int(size)
	return e, true, nil
}

func (r *groupReader) damage(what string) error {
	return fmt.Errorf("%w: group %v, entry %d, offset %d: %s", ErrDamaged, r.g.first, r.g.count-r.left, groupHeaderBytes+r.at, what)
}

// find returns the last entry with zxid <= z. ok is false if the group begins after z.
func (g *group) find(z kv.Zxid) (e kv.Entry, ok bool, err error) {
	r := g.reader()
	for {
		next, more, err := r.next()
		if err != nil {
			return kv.Entry{}, false, err
		}
		if !more || next.Zxid > z {
			return e, ok, nil
		}
		e, ok = next, true
	}
}
