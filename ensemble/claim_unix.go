//go:build unix

package ensemble

import "golang.org/x/sys/unix"

// writable asks the kernel whether this process may read a directory and make files in it.
func writable(dir string) error {
	return unix.Faccessat(unix.AT_FDCWD, dir, unix.R_OK|unix.W_OK|unix.X_OK, unix.AT_EACCESS)
}
