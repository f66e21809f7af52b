package main

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

// disk is one member's file system on a loop device: it can be frozen (every write and sync on it hangs, as on a device
// that does not answer) and filled. All methods are for one goroutine.
type disk struct {
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

// newDisk makes an image in dir and mounts it on dir/data.
func newDisk(dir string) (*disk, error) {
	d := &disk{mount: filepath.Join(dir, "data"), image: filepath.Join(dir, "disk.img")}
	if err := os.MkdirAll(d.mount, 0o755); err != nil {
		return nil, err
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
	return d, command("mount", "-o", "loop,noatime", d.image, d.mount)
}

func (d *disk) freeze() error {
	d.frozen = true
	return command("fsfreeze", "-f", d.mount)
}

func (d *disk) thaw() error {
	if !d.frozen {
		return nil
	}
	d.frozen = false
	return command("fsfreeze", "-u", d.mount)
}

func (d *disk) filler() string { return filepath.Join(d.mount, "filler") }

// fill leaves only so many bytes free.
func (d *disk) fill(leave int64) error {
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

func (d *disk) free() error {
	if err := os.Remove(d.filler()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// close unmounts. The members must have ended.
func (d *disk) close() error {
	return errors.Join(d.thaw(), command("umount", d.mount), os.Remove(d.image))
}

// dirPrefix begins the names of all runs' directories; pidFile in them names the process.
const (
	dirPrefix = "kvd-chaos-"
	pidFile   = "pid"
)

// sweepDisks unmounts what runs that no longer live left mounted, and removes their images. Members of such a run have died
// with it.
func sweepDisks() error {
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
		rest, ok := strings.CutPrefix(f[1], filepath.Join(os.TempDir(), dirPrefix))
		if !ok {
			continue
		}
		name, _, _ := strings.Cut(rest, "/")
		run := filepath.Join(os.TempDir(), dirPrefix+name)
		text, err := os.ReadFile(filepath.Join(run, pidFile))
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
