package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"

	"github.com/urfave/cli/v2"

	"kvd/cmd/internal/cliargs"
	"kvd/ensemble"
	"kvd/ensemble/zoocfg"
	"kvd/wal"
)

// Exit codes.
const (
	exitFailed  = 1
	exitRefused = 2
)

func main() {
	os.Exit(cliargs.Main(context.Background(), newApp(os.Stdout, os.Stderr), os.Args, exitCode, nil))
}

func newApp(stdout, stderr io.Writer) *cli.App {
	return &cli.App{
		Name:        "kvd",
		Usage:       "a replicated tree of small values that ZooKeeper's clients can talk to",
		HideVersion: true,
		Writer:      stdout,
		ErrWriter:   stderr,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "log-level", Value: "info", Usage: "`LEVEL` of the log on stderr: debug, info, warn or error", EnvVars: []string{"KVD_LOG_LEVEL"}},
		},
		Commands: []*cli.Command{serveCommand(), devCommand(), inspectCommand(), recoverCommand()},
	}
}

// exitCode: what was refused before anything was touched is 2, a failure is 1.
func exitCode(err error) int {
	var settings *zoocfg.Error
	var config *ensemble.ConfigError
	var directory *ensemble.DirectoryError
	var child *childError
	var address *net.OpError
	switch {
	case errors.As(err, &settings), errors.As(err, &config), errors.As(err, &directory):
		return exitRefused
	case errors.Is(err, wal.ErrNewerFormat), errors.Is(err, wal.ErrLocked), errors.Is(err, errNothingThere),
		errors.Is(err, wal.ErrNotAccepted), errors.Is(err, errNotConfirmed), errors.Is(err, ensemble.ErrNeedsRecovery):
		return exitRefused
	case errors.As(err, &address) && address.Op == "listen": // before any member is started
		return exitRefused
	case errors.As(err, &child):
		return child.code
	}
	return exitFailed
}

// newLogger writes text to stderr.
func newLogger(c *cli.Context) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.String("log-level"))); err != nil {
		return nil, cliargs.Usagef(c, "--log-level: %q is none of debug, info, warn and error", c.String("log-level"))
	}
	return slog.New(slog.NewTextHandler(c.App.ErrWriter, &slog.HandlerOptions{Level: level})), nil
}

// printReady prints the one line of stdout.
func printReady(w io.Writer, addrs string) {
	_, _ = fmt.Fprintf(w, "ready %s\n", addrs) // nobody may be reading
}
