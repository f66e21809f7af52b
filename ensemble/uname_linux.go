package ensemble

import (
	"os"
	"strings"
)

// osVersion is the kernel's release.
func osVersion() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "<NA>"
	}
	return strings.TrimSpace(string(b))
}

// openDescriptors counts this process's open descriptors; false if that is not known.
func openDescriptors() (int, bool) {
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		return 0, false
	}
	defer func() { _ = d.Close() }() // opened for reading
	names, err := d.Readdirnames(-1)
	return max(len(names)-1, 0), err == nil // without the one of the directory itself
}
