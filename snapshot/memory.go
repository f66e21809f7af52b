package snapshot

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"

	"github.com/cespare/xxhash/v2"
)

// Memory is a Store without files, for the simulator and the in-memory mode. What a crash leaves is explicit:
// everything is lost that the last Sync did not cover. In the simulator a point counts as durable when its Sync
// has been called, where Dir's writes return only then. It is deterministic: equal calls give equal files.
type Memory struct {
	mu         sync.Mutex
	files      map[string][]byte // finished files; contents are never changed in place; under mu, as all below
	parts      map[string][]byte // being received
	safeFiles  map[string][]byte // what Crash goes back to
	safeParts  map[string][]byte
	receiving  bool
	generation int // raised by Crash: receivers from before are dead
}

var _ Store = (*Memory)(nil)

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{files: map[string][]byte{}, parts: map[string][]byte{}, safeFiles: map[string][]byte{}, safeParts: map[string][]byte{}}
}

// Sync makes everything that is there now survive a Crash.
func (s *Memory) Sync() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.safeFiles, s.safeParts = maps.Clone(s.files), clonedParts(s.parts)
}

// Crash goes back to the last Sync. Open Receivers answer with an error from now on.
func (s *Memory) Crash() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files, s.parts = maps.Clone(s.safeFiles), clonedParts(s.safeParts)
	s.receiving = false
	s.generation++
}

// clonedParts copies the contents too: parts grow in place.
func clonedParts(m map[string][]byte) map[string][]byte {
	out := make(map[string][]byte, len(m))
	for name, b := range m {
		out[name] = slices.Clone(b)
	}
	return out
}

// Clone returns an independent copy without open Receivers.
func (s *Memory) Clone() *Memory {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Memory{files: maps.Clone(s.files), parts: clonedParts(s.parts), safeFiles: maps.Clone(s.safeFiles), safeParts: clonedParts(s.safeParts)}
}

// Names returns the finished files, sorted.
func (s *Memory) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.files))
}

// Remove deletes a file behind the store's back, durably: a fault to inject.
func (s *Memory) Remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.files, name)
	delete(s.safeFiles, name)
}

// Flip inverts the lowest bit of the byte at off of a file, durably: a fault to inject. An offset beyond the
// end does nothing.
func (s *Memory) Flip(name string, off int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, files := range []map[string][]byte{s.files, s.safeFiles} {
		if b, ok := files[name]; ok && off >= 0 && off < int64(len(b)) {
			b = slices.Clone(b)
			b[off] ^= 1
			files[name] = b
		}
	}
}

// A file of Memory: this head, then records of
//
//	table 1, deleted 1 (0 or 1), key length uint32, value length uint32, key, value
const memoryHeadBytes = 8 + 1 + 5*8

var memoryMagic = []byte("kvdsnap\x01")

func appendMemoryHead(dst []byte, m Meta, delta bool, prevHash uint64) []byte {
	dst = append(dst, memoryMagic...)
	if delta {
		dst = append(dst, 1)
	} else {
		dst = append(dst, 0)
	}
	for _, v := range []uint64{uint64(m.Zxid), m.Chain, m.Digest, prevHash, 0} { // the last is reserved
		dst = binary.BigEndian.AppendUint64(dst, v)
	}
	return dst
}

// WriteFull implements Store.
func (s *Memory) WriteFull(ctx context.Context, m Meta, src Source) (Point, error) {
	f, err := s.write(ctx, m, src, nil)
	if err != nil {
		return Point{}, err
	}
	return Point{Meta: m, Files: []File{f}}, nil
}

// WriteDelta implements Store.
func (s *Memory) WriteDelta(ctx context.Context, m Meta, changes Source, prev Point) (Point, error) {
	if err := checkDelta(m, prev); err != nil {
		return Point{}, err
	}
	f, err := s.write(ctx, m, changes, &prev.Files[len(prev.Files)-1])
	if err != nil {
		return Point{}, err
	}
	return Point{Meta: m, Files: append(slices.Clone(prev.Files), f)}, nil
}

func (s *Memory) write(ctx context.Context, m Meta, src Source, prev *File) (File, error) {
	var prevHash uint64
	if prev != nil {
		prevHash = prev.Hash
	}
	data := appendMemoryHead(nil, m, prev != nil, prevHash)
	var last []byte
	err := src.Records(func(r Record) error {
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("snapshot: %w", err)
		}
		key := append([]byte{r.Table}, r.Key...)
		if last != nil && bytes.Compare(key, last) <= 0 {
			return orderError(r, last)
		}
		last = key
		deleted := byte(0)
		if r.Value == nil {
			if prev == nil {
				return deletionError(r)
			}
			deleted = 1
		}
		data = append(data, r.Table, deleted)
		data = binary.BigEndian.AppendUint32(data, uint32(len(r.Key)))
		data = binary.BigEndian.AppendUint32(data, uint32(len(r.Value)))
		data = append(append(data, r.Key...), r.Value...)
		return nil
	})
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return File{}, err
	}
	hash := xxhash.Sum64(data)
	f := File{Name: fileName(m.Zxid, hash, prev != nil), Bytes: int64(len(data)), Hash: hash, Delta: prev != nil}
	s.mu.Lock()
	s.files[f.Name] = data
	s.mu.Unlock()
	return f, nil
}

func (s *Memory) file(name string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, ok := s.files[name]
	if !ok {
		return nil, &DamageError{File: name, Offset: -1, Err: errMissing}
	}
	return data, nil
}

var errMissing = errors.New("there is no such file")

// Verify implements Store.
func (s *Memory) Verify(p Point) error {
	if err := p.Validate(); err != nil {
		return err
	}
	for _, f := range p.Files {
		data, err := s.file(f.Name)
		if err != nil {
			return err
		}
		if err := f.check(bytes.NewReader(data)); err != nil {
			return err
		}
	}
	return nil
}

// Load implements Store.
func (s *Memory) Load(p Point, yield func(Record) error) error {
	if err := s.Verify(p); err != nil {
		return err
	}
	var runs []*run
	for i, f := range p.Files {
		data, err := s.file(f.Name)
		if err != nil {
			return err
		}
		z, _, _, _ := parseFileName(f.Name)
		m, prevHash := Meta{Zxid: z}, uint64(0)
		if i > 0 {
			prevHash = p.Files[i-1].Hash
		}
		if i == len(p.Files)-1 {
			m = p.Meta
		} else if len(data) >= memoryHeadBytes { // chain and digest of earlier points are not in p
			m.Chain, m.Digest = binary.BigEndian.Uint64(data[17:]), binary.BigEndian.Uint64(data[25:])
		}
		if want := appendMemoryHead(nil, m, f.Delta, prevHash); !bytes.HasPrefix(data, want) {
			return &DamageError{File: f.Name, Offset: 0, Err: errors.New("the head does not go with the point")}
		}
		runs = append(runs, memoryRun(f.Name, i, data))
	}
	return merge(runs, yield)
}

func memoryRun(name string, rank int, data []byte) *run {
	r := &run{file: name, rank: rank}
	off := memoryHeadBytes
	r.next = func() error {
		if off == len(data) {
			r.key = nil
			return nil
		}
		rest := data[off:]
		if len(rest) < 10 {
			return &DamageError{File: name, Offset: int64(off), Err: io.ErrUnexpectedEOF}
		}
		keyLen, valueLen := int64(binary.BigEndian.Uint32(rest[2:])), int64(binary.BigEndian.Uint32(rest[6:]))
		if keyLen+valueLen > int64(len(rest)-10) || rest[1] > 1 {
			return &DamageError{File: name, Offset: int64(off), Err: errors.New("impossible record")}
		}
		r.deleted = rest[1] == 1
		r.key = append(append(make([]byte, 0, 1+keyLen), rest[0]), rest[10:10+keyLen]...)
		r.value = rest[10+keyLen : 10+keyLen+valueLen : 10+keyLen+valueLen]
		off += 10 + int(keyLen+valueLen)
		return nil
	}
	return r
}

// OpenFile implements Store.
func (s *Memory) OpenFile(name string) (FileReader, error) {
	data, err := s.file(name)
	if err != nil {
		return nil, err
	}
	return memoryFile{bytes.NewReader(data)}, nil
}

type memoryFile struct{ *bytes.Reader }

func (memoryFile) Close() error { return nil }

// Retain implements Store.
func (s *Memory) Retain(points []Point) error {
	keep, newest := referenced(points)
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.files, func(name string, _ []byte) bool { return !keep[name] })
	maps.DeleteFunc(s.parts, func(name string, _ []byte) bool {
		z, _, _, _ := parseFileName(name)
		return !s.receiving && z <= newest
	})
	return nil
}

// Receive implements Store.
func (s *Memory) Receive(p Point) (Receiver, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	have := make([]int64, len(p.Files))
	done := make([]bool, len(p.Files))
	for i, f := range p.Files {
		if data, err := s.file(f.Name); err == nil && f.check(bytes.NewReader(data)) == nil {
			have[i], done[i] = f.Bytes, true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.receiving {
		return nil, fmt.Errorf("%w: a snapshot is being received", ErrBusy)
	}
	s.receiving = true
	maps.DeleteFunc(s.parts, func(name string, _ []byte) bool {
		return !slices.ContainsFunc(p.Files, func(f File) bool { return f.Name == name })
	})
	for i, f := range p.Files {
		if !done[i] {
			have[i] = int64(len(s.parts[f.Name]))
		}
	}
	return &memoryReceiver{s: s, p: p, have: have, done: done, generation: s.generation}, nil
}

type memoryReceiver struct {
	s          *Memory
	p          Point
	have       []int64
	done       []bool
	generation int
	closed     bool
}

// Have implements Receiver.
func (r *memoryReceiver) Have() []int64 { return slices.Clone(r.have) }

func (r *memoryReceiver) usableLocked() error {
	if r.closed || r.generation != r.s.generation {
		return errReceiverClosed
	}
	return nil
}

// WriteChunk implements Receiver.
func (r *memoryReceiver) WriteChunk(file int, off int64, data []byte, hash uint64) error {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if err := r.usableLocked(); err != nil {
		return err
	}
	if err := checkChunk(r.p, r.have, file, off, data, hash); err != nil {
		return err
	}
	if len(data) > 0 {
		name := r.p.Files[file].Name
		r.s.parts[name] = append(r.s.parts[name], data...)
		r.have[file] += int64(len(data))
	}
	return nil
}

// Commit implements Receiver.
func (r *memoryReceiver) Commit() error {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if err := r.usableLocked(); err != nil {
		return err
	}
	r.closeLocked()
	for i, f := range r.p.Files {
		if r.have[i] != f.Bytes {
			return missingBytes(f, r.have[i])
		}
	}
	for i, f := range r.p.Files {
		if r.done[i] {
			continue
		}
		data := r.s.parts[f.Name]
		delete(r.s.parts, f.Name)
		if err := f.check(bytes.NewReader(data)); err != nil {
			return err
		}
		r.s.files[f.Name] = data
	}
	return nil
}

// Close implements Receiver.
func (r *memoryReceiver) Close() error {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	r.closeLocked()
	return nil
}

func (r *memoryReceiver) closeLocked() {
	if !r.closed && r.generation == r.s.generation {
		r.s.receiving = false
	}
	r.closed = true
}
