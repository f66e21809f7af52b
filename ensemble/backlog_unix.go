//go:build unix

package ensemble

import (
	"errors"
	"net"
	"syscall"
)

// setBacklog changes the listen backlog of a TCP listener.
func setBacklog(l net.Listener, n int) error {
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) { set = syscall.Listen(int(fd), n) }) // on a listening socket it changes just that
	return errors.Join(err, set)
}
