//go:build unix

package ensemble

import (
	"math"
	"syscall"
)

// openFileLimit is how many descriptors this process may open. Go has raised the soft limit to the hard one when
// package os was initialised.
func openFileLimit() int {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil || uint64(r.Cur) > math.MaxInt32 {
		return math.MaxInt32
	}
	return int(r.Cur)
}
