//go:build !linux

package transport

import (
	"net"
	"time"
)

// tune makes the kernel notice a peer that vanished without a word.
func tune(c net.Conn) {
	if tc, ok := c.(*net.TCPConn); ok {
		_ = tc.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 3 * time.Second, Interval: time.Second, Count: 3})
	}
}
