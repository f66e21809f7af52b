package snapshot

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cespare/xxhash/v2"
)

// readBytes is the size of the sequential reads that hash a file.
const readBytes = 256 << 10

// hashFile reads all of r from its start by ordinary reads and returns length and xxhash64 (seed 0).
func hashFile(r io.ReaderAt) (bytes int64, hash uint64, err error) {
	var d xxhash.Digest
	d.Reset()
	buf := make([]byte, readBytes)
	for {
		n, err := r.ReadAt(buf, bytes)
		_, _ = d.Write(buf[:n])
		bytes += int64(n)
		if errors.Is(err, io.EOF) {
			return bytes, d.Sum64(), nil
		}
		if err != nil {
			return bytes, 0, err
		}
	}
}

// check compares what r holds with what f says. The error is a *DamageError.
func (f File) check(r io.ReaderAt) error {
	bytes, hash, err := hashFile(r)
	switch {
	case err != nil:
		return &DamageError{File: f.Name, Offset: bytes, Err: err}
	case bytes != f.Bytes:
		return &DamageError{File: f.Name, Offset: min(bytes, f.Bytes), Err: fmt.Errorf("%d bytes, %d were written", bytes, f.Bytes)}
	case hash != f.Hash:
		return &DamageError{File: f.Name, Offset: -1, Err: fmt.Errorf("the bytes hash to %016x, %016x were written", hash, f.Hash)}
	}
	return nil
}

// Verify implements Store.
func (d *Dir) Verify(p Point) error {
	if err := p.Validate(); err != nil {
		return err
	}
	for _, f := range p.Files {
		if err := d.verifyFile(f); err != nil {
			return err
		}
	}
	return nil
}

func (d *Dir) verifyFile(f File) error {
	file, err := os.Open(d.join(f.Name))
	if err != nil {
		return &DamageError{File: f.Name, Offset: -1, Err: err}
	}
	defer file.Close()
	return f.check(file)
}
