package main

import (
	"os"
	"os/signal"
	"syscall"
)

// stopSignals delivers SIGTERM and SIGINT. The first asks for an orderly stop, the second for an immediate one.
func stopSignals() (ch <-chan os.Signal, stop func()) {
	c := make(chan os.Signal, 2)
	signal.Notify(c, syscall.SIGTERM, syscall.SIGINT)
	return c, func() { signal.Stop(c) }
}
