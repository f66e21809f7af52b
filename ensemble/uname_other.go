//go:build !linux

package ensemble

func osVersion() string { return "<NA>" }

// openDescriptors is not known on this system.
func openDescriptors() (int, bool) { return 0, false }
