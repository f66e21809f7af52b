// Package loopdisk gives a member a file system of its own, on a loop device, that can be frozen and filled. It needs root, and
// Debian's e2fsprogs and mount.
package loopdisk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// diskBytes is the size of one member's file system.
const diskBytes = 3 << 30

// Disk is one member's file system on a loop device: it can be frozen (every write and sync on it hangs, as on a device
// that does not answer) and filled. All methods are for one goroutine.
type Disk struct {
	mount  string
	image  string
	frozen bool
}

func command(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// New makes an image in dir and mounts it on dir/data, keeping what files dir/data holds.
func New(dir string) (*Disk, error) {
	d := &Disk{mount: filepath.Join(dir, "data"), image: filepath.Join(dir, "disk.img")}
	if err := os.MkdirAll(d.mount, 0o755); err != nil {
		return nil, err
	}
	kept, err := os.ReadDir(d.mount)
	if err != nil {
		return nil, err
	}
	contents := make([][]byte, len(kept))
	for i, f := range kept {
		if contents[i], err = os.ReadFile(filepath.Join(d.mount, f.Name())); err != nil {
			return nil, err
		}
	}
	f, err := os.Create(d.image)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Truncate(diskBytes), f.Close()); err != nil {
		return nil, err
	}
	if err := command("mkfs.ext4", "-q", "-m", "0", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1", d.image); err != nil {
		return nil, err
	}
	if err := command("mount", "-o", "loop,noatime", d.image, d.mount); err != nil {
		return nil, err
	}
	for i, f := range kept {
		if err := os.WriteFile(filepath.Join(d.mount, f.Name()), contents[i], 0o644); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	return d, nil
}

// Freeze lets every write and sync hang until Thaw.
func (d *Disk) Freeze() error {
	d.frozen = true
	return command("fsfreeze", "-f", d.mount)
}

// Thaw ends Freeze; it does nothing if the disk is not frozen.
func (d *Disk) Thaw() error {
	if !d.frozen {
		return nil
	}
	d.frozen = false
	return command("fsfreeze", "-u", d.mount)
}

func (d *Disk) filler() string { return filepath.Join(d.mount, "filler") }

// Fill leaves only so many bytes free.
func (d *Disk) Fill(leave int64) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(d.mount, &st); err != nil {
		return err
	}
	size := int64(st.Bavail)*st.Bsize - leave
	if size <= 0 {
		return nil
	}
	f, err := os.Create(d.filler())
	if err != nil {
		return err
	}
	err = syscall.Fallocate(int(f.Fd()), 0, 0, size)
	if errors.Is(err, syscall.ENOSPC) { // what the extents themselves need, or the member was faster
		err = nil
	}
	return errors.Join(err, f.Close())
}

// Free takes away what Fill made.
func (d *Disk) Free() error {
	if err := os.Remove(d.filler()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Close unmounts. The members must have ended.
func (d *Disk) Close() error {
	return errors.Join(d.Thaw(), command("umount", d.mount), os.Remove(d.image))
}

// PidFile is in the directory of each run and names its process.
const PidFile = "pid"

// Sweep unmounts what runs that no longer live left mounted, and removes their images: those in directories of os.TempDir whose
// names begin with prefix. Members of such a run have died with it.
func Sweep(prefix string) error {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	var errs []error
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		rest, ok := strings.CutPrefix(f[1], filepath.Join(os.TempDir(), prefix))
		if !ok {
			continue
		}
		name, _, _ := strings.Cut(rest, "/")
		run := filepath.Join(os.TempDir(), prefix+name)
		text, err := os.ReadFile(filepath.Join(run, PidFile))
		if pid, perr := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && perr == nil {
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
				continue
			}
		}
		_ = command("fsfreeze", "-u", f[1]) // fails if it is not frozen
		errs = append(errs, command("umount", "-l", f[1]), os.RemoveAll(filepath.Join(filepath.Dir(f[1]), "disk.img")))
	}
	return errors.Join(errs...)
}
