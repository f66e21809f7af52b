package ensemble

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// beyondBacklog is how long a connection that the kernel does not complete is waited for.
const beyondBacklog = 300 * time.Millisecond

// The kernel completes as many connections as the backlog says while nobody accepts, and no more.
func TestListenBacklog(t *testing.T) {
	if b, err := os.ReadFile("/proc/sys/net/ipv4/tcp_abort_on_overflow"); err != nil || strings.TrimSpace(string(b)) != "0" {
		t.Skip("overflowing connections are not silent here")
	}
	l := listen(t)
	defer func() { _ = l.Close() }()
	const backlog = 2
	if err := setBacklog(l, backlog); err != nil {
		t.Fatal(err)
	}
	accepted := 0
	for range backlog + 1 { // the kernel completes one more than it was told
		c, err := net.DialTimeout("tcp", l.Addr().String(), rawLimit)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		accepted++
	}
	c, err := net.DialTimeout("tcp", l.Addr().String(), beyondBacklog)
	if err == nil {
		_ = c.Close()
		t.Errorf("connection %d of a backlog of %d was completed", accepted+1, backlog)
	}
}
