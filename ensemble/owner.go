package ensemble

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"

	"kvd/wal"
)

// DirectoryError refuses a data directory that says it belongs to another member. A member that went on with it would
// vote with the other's promises and forget its own: acknowledged writes would be lost (design rule 8).
type DirectoryError struct {
	Dir        string   // the directory whose record says so
	Witness    string   // which record: identity file or log store
	Member     MemberID // whose it is
	Cluster    [16]byte
	Configured MemberID // who wanted to start on it
}

// Error names both members and the witness.
func (e *DirectoryError) Error() string {
	return fmt.Sprintf("data directory refused: the %s in %s says that it belongs to member %d of cluster %x, and this member is configured as %d; nothing was changed",
		e.Witness, e.Dir, e.Member, e.Cluster, e.Configured)
}

// Both witnesses are read through wal.Inspect, each with the other one out of sight. The file alone costs nothing;
// the store alone costs a walk through the log, which is why it is asked only when the file cannot answer or the two
// were found to differ.

// refuseForeignDirectory checks whose directory this is, before anything is opened for writing.
func refuseForeignDirectory(cfg *Config) error {
	if !exists(cfg.FS, cfg.FS.PathJoin(cfg.DataDir, identityFile)) {
		return refuseForeignStore(cfg)
	}
	state, _, err := wal.Inspect(cfg.DataDir, wal.Options{FS: cfg.FS, LogDir: cfg.FS.PathJoin(cfg.DataDir, "no-log")})
	if err != nil {
		return err
	}
	if state.Member == 0 { // the file is damaged
		return refuseForeignStore(cfg)
	}
	return cfg.refuseOwner("identity file", cfg.DataDir, &state)
}

// refuseForeignStore asks the log store whose it is.
func refuseForeignStore(cfg *Config) error {
	if !exists(cfg.FS, cfg.DataDir) || !exists(cfg.FS, cfg.LogDir) {
		return nil
	}
	hidden := withoutFile{cfg.FS, cfg.FS.PathJoin(cfg.DataDir, identityFile)}
	state, _, err := wal.Inspect(cfg.DataDir, wal.Options{FS: hidden, LogDir: cfg.LogDir})
	if err != nil {
		return err
	}
	return cfg.refuseOwner("log store", cfg.LogDir, &state)
}

func (c *Config) refuseOwner(witness, dir string, s *wal.State) error {
	if s.Member == 0 || s.Member == uint64(c.ID) {
		return nil
	}
	return &DirectoryError{Dir: dir, Witness: witness, Member: MemberID(s.Member), Cluster: s.ClusterID, Configured: c.ID}
}

// identityFile is the name of wal's identity file. Part of the format.
const identityFile = "identity"

// exists reports whether path is there. One that cannot be looked at is: whoever opens it will say what is wrong.
func exists(f vfs.FS, path string) bool {
	_, err := f.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// withoutFile is a file system in which one file cannot be found.
type withoutFile struct {
	vfs.FS
	path string
}

// Open implements vfs.FS.
func (w withoutFile) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if name == w.path {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return w.FS.Open(name, opts...)
}
