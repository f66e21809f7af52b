package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"

	"kvd/kv"
)

// diskCategory labels this package's own small files in Pebble's statistics.
const diskCategory vfs.DiskWriteCategory = "kvd-wal"

const (
	identityMagic  = "kvdident"              // part of the format
	identityBytes  = 8 + 8 + 4 + 16 + 8      // magic, checksum, version, cluster id, member id. Part of the format.
	identitySeed   = 0x6b76642d6964656e      // "kvd-iden", part of the format
	watermarkMagic = "kvdacked"              // part of the format
	watermarkSeed  = 0x6b76642d61636b64      // "kvd-ackd", part of the format
	slotBytes      = 8 + 8 + 4 + 8 + 8 + 8   // magic, checksum, version, generation, zxid, meta version. Part of the format.
	slotStride     = 4096                    // one slot per page, so that a torn write meets one of them. Part of the format.
	watermarkBytes = slotStride + slotStride // the file never changes its length
)

func encodeIdentity(id Identity) []byte {
	b := make([]byte, identityBytes)
	copy(b, identityMagic)
	binary.BigEndian.PutUint32(b[16:], FormatVersion)
	copy(b[20:36], id.ClusterID[:])
	binary.BigEndian.PutUint64(b[36:], id.Member)
	binary.BigEndian.PutUint64(b[8:], seededSum(identitySeed, b[16:]))
	return b
}

func decodeIdentity(b []byte) (Identity, error) {
	if len(b) < 20 || string(b[:8]) != identityMagic {
		return Identity{}, fmt.Errorf("%w: %d bytes without the magic %q", ErrDamaged, len(b), identityMagic)
	}
	if got, want := seededSum(identitySeed, b[16:]), binary.BigEndian.Uint64(b[8:]); got != want {
		return Identity{}, fmt.Errorf("%w: checksum is %016x, stored %016x", ErrDamaged, got, want)
	}
	if v := binary.BigEndian.Uint32(b[16:]); v > FormatVersion {
		return Identity{}, fmt.Errorf("%w: version %d, this program knows up to %d", ErrNewerFormat, v, FormatVersion)
	}
	if len(b) != identityBytes {
		return Identity{}, fmt.Errorf("%w: %d bytes instead of %d", ErrDamaged, len(b), identityBytes)
	}
	var id Identity
	copy(id.ClusterID[:], b[20:36])
	id.Member = binary.BigEndian.Uint64(b[36:])
	return id, nil
}

// readIdentity returns found=false if there is no file. A damaged one is an error with ErrDamaged.
func readIdentity(fs vfs.FS, path string) (id Identity, found bool, err error) {
	b, err := readSmallFile(fs, path, 4096)
	if isNotExist(err) {
		return Identity{}, false, nil
	}
	if err == nil {
		id, err = decodeIdentity(b)
	}
	if err != nil {
		return Identity{}, true, fmt.Errorf("identity file %s: %w", path, err)
	}
	return id, true, nil
}

// writeFileAtomically makes path hold b or what it held before, whatever crash comes.
func writeFileAtomically(fs vfs.FS, path string, b []byte) error {
	tmp := path + ".tmp"
	f, err := fs.Create(tmp, diskCategory)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fs.Rename(tmp, path); err != nil {
		return err
	}
	return syncDir(fs, fs.PathDir(path))
}

// makeDir creates dir and its parents durably. Without the syncs a power cut after the first acknowledged
// writes can remove the whole directory, and the member would come back blank.
func makeDir(fs vfs.FS, dir string) error {
	parent := fs.PathDir(dir)
	if _, err := fs.Stat(dir); err == nil {
		// An earlier start may have been killed between the two. A parent that cannot be opened was not made by it.
		if d, err := fs.OpenDir(parent); err == nil {
			return errors.Join(d.Sync(), d.Close())
		}
		return nil
	} else if !isNotExist(err) {
		return err
	}
	if parent != dir {
		if err := makeDir(fs, parent); err != nil {
			return err
		}
	}
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return syncDir(fs, parent)
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func readSmallFile(fs vfs.FS, path string, maxBytes int64) (b []byte, err error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(io.LimitReader(f, maxBytes))
}

// mark is what the ack watermark says: in this generation everything up to zxid was reported durable, and
// so was version meta of the meta record (the promised epochs).
type mark struct {
	generation uint64
	zxid       kv.Zxid
	meta       uint64
}

// less orders marks by age. Within a generation neither zxid nor meta falls, and meta never falls.
func (m mark) less(n mark) bool {
	if m.generation != n.generation {
		return m.generation < n.generation
	}
	return m.zxid < n.zxid || m.zxid == n.zxid && m.meta < n.meta
}

// watermark is the preallocated file with two alternating slots (zab-rules f). It is written by the writer
// goroutine and synced by the syncer; the file supports both at once.
//
// Why it exists: after a crash Pebble stops at the first bad record of its newest WAL and opens happily, so
// a flipped bit in an acknowledged record looks like a torn write (measured on Pebble 2.1.7). The watermark
// is the independent witness.
type watermark struct {
	file vfs.File
	slot int // slot that holds the newest mark; the next write goes to the other
	last mark
	buf  [slotBytes]byte
}

func encodeSlot(dst []byte, m mark) {
	copy(dst, watermarkMagic)
	binary.BigEndian.PutUint32(dst[16:], FormatVersion)
	binary.BigEndian.PutUint64(dst[20:], m.generation)
	binary.BigEndian.PutUint64(dst[28:], uint64(m.zxid))
	binary.BigEndian.PutUint64(dst[36:], m.meta)
	binary.BigEndian.PutUint64(dst[8:], seededSum(watermarkSeed, dst[16:slotBytes]))
}

// decodeSlot returns ok=false for a slot that was never written (all zero). A bad checksum is ErrDamaged.
func decodeSlot(b []byte) (m mark, ok bool, err error) {
	b = b[:slotBytes]
	if allZero(b) {
		return mark{}, false, nil
	}
	if string(b[:8]) != watermarkMagic || seededSum(watermarkSeed, b[16:]) != binary.BigEndian.Uint64(b[8:]) {
		return mark{}, false, ErrDamaged
	}
	if v := binary.BigEndian.Uint32(b[16:]); v > FormatVersion {
		return mark{}, false, fmt.Errorf("%w: version %d, this program knows up to %d", ErrNewerFormat, v, FormatVersion)
	}
	return mark{
		generation: binary.BigEndian.Uint64(b[20:]),
		zxid:       kv.Zxid(binary.BigEndian.Uint64(b[28:])),
		meta:       binary.BigEndian.Uint64(b[36:]),
	}, true, nil
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// createWatermark preallocates the file; it is durable when the directory is synced afterwards.
func createWatermark(fs vfs.FS, path string) (err error) {
	f, err := fs.Create(path, diskCategory)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, watermarkBytes))
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// openWatermark reads the newest mark and opens the file for writing. One unreadable slot is what a power
// cut during its write leaves, and the other one counts; two are damage.
func openWatermark(fs vfs.FS, path string, readOnly bool) (*watermark, error) {
	b, err := readSmallFile(fs, path, watermarkBytes+1)
	if err != nil {
		return nil, fmt.Errorf("ack watermark %s: %w", path, err)
	}
	if len(b) != watermarkBytes {
		return nil, fmt.Errorf("ack watermark %s: %w: %d bytes instead of %d", path, ErrDamaged, len(b), watermarkBytes)
	}
	w := &watermark{slot: 1}
	bad := 0
	for i := range 2 {
		m, ok, err := decodeSlot(b[i*slotStride:])
		switch {
		case errors.Is(err, ErrNewerFormat):
			return nil, fmt.Errorf("ack watermark %s: %w", path, err)
		case err != nil:
			bad++
		case ok && !m.less(w.last):
			w.last, w.slot = m, i
		}
	}
	if bad == 2 {
		return nil, fmt.Errorf("ack watermark %s, offsets 0 and %d: %w: bad checksums", path, slotStride, ErrDamaged)
	}
	if readOnly {
		w.file, err = fs.Open(path)
	} else {
		w.file, err = fs.OpenReadWrite(path, diskCategory)
	}
	if err != nil {
		return nil, fmt.Errorf("ack watermark %s: %w", path, err)
	}
	return w, nil
}

// write records m in the slot that does not hold the newest mark. It reports whether anything was written.
func (w *watermark) write(m mark) (bool, error) {
	if m == w.last {
		return false, nil
	}
	encodeSlot(w.buf[:], m)
	if _, err := w.file.WriteAt(w.buf[:], int64((1-w.slot)*slotStride)); err != nil {
		return false, err
	}
	w.slot, w.last = 1-w.slot, m
	return true, nil
}
