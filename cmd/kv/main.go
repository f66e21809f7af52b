// Command kv reads and writes the tree of kvd or ZooKeeper servers from a shell.
//
//	kv set /app/config hello
//	kv get /app/config
//	kv status
//
// Exit codes: 0 done, 1 failed otherwise, 2 usage, 3 no such node or parent, 4 exists, wrong version or not
// empty, 5 not allowed, 6 no server gave a session in time, 7 outcome unknown (sent, no reply), 8 session
// lost, 128+n signal n.
//
// The files: app.go the flags, conn.go the way to a server, exit.go what is said at the end, output.go how
// values look, and one file per command or pair of commands.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() { os.Exit(run(os.Args)) }

// run ends the context at the first signal; a second one ends the process as if nobody listened.
func run(args []string) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		sig, _ := (<-signals).(syscall.Signal)
		signal.Stop(signals)
		cancel(signalError{sig})
	}()
	return newProgram(os.Stdin, os.Stdout, os.Stderr).main(ctx, args)
}

// signalError is the cause of a context that a signal ended.
type signalError struct{ sig syscall.Signal }

func (e signalError) Error() string { return fmt.Sprintf("ended by signal %d (%v)", int(e.sig), e.sig) }
