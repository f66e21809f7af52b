package snapshot

import (
	"unsafe"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// releaseMapped takes what this process has touched of the first fileBytes of db's mapping out of its resident
// memory. The bytes stay in the page cache and the mapping is shared and only read through, so the next access
// just maps the page again, even through slices that bbolt has handed out. Without this a whole file counts as
// the member's memory while it is read or written. fileBytes must not exceed the mapping: bbolt maps at least
// the file.
func releaseMapped(db *bolt.DB, fileBytes int64) {
	data := db.Info().Data
	if data == 0 || fileBytes < pageBytes {
		return
	}
	mapped := unsafe.Slice(*(**byte)(unsafe.Pointer(&data)), fileBytes/pageBytes*pageBytes) // bbolt hands out the address as a number
	_ = unix.Madvise(mapped, unix.MADV_DONTNEED)
}
