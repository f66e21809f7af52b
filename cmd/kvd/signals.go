package main

import (
	"context"
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

// untilSignal runs start, whose context ends with the first signal. It returns that signal, nil if none came meanwhile.
func untilSignal(ctx context.Context, signals <-chan os.Signal, start func(context.Context) error) (s os.Signal, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	started, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case s = <-signals:
			cancel()
		case <-started:
		}
	}()
	err = start(ctx)
	close(started)
	<-watched
	return s, err
}
