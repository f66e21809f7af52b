//go:build !unix

package ensemble

import "net"

// setBacklog is not possible on this system: its own backlog is used.
func setBacklog(net.Listener, int) error { return nil }
