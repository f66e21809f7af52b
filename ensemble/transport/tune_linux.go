package transport

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// tune makes the kernel notice a peer that vanished without a word: keep-alive probes while idle, and a limit on how
// long sent bytes may stay unconfirmed. zab's pings find the rest; this covers the election connections.
func tune(c net.Conn) {
	tc, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	_ = tc.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 3 * time.Second, Interval: time.Second, Count: 3})
	raw, err := tc.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
	})
}

// userTimeout is well above any healthy round trip and below what people notice as "still listed as connected".
const userTimeout = 10 * time.Second
