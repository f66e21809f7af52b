package cliargs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v2"
)

// ExitUsage is the exit code of a wrong command line.
const ExitUsage = 2

// Main runs app on args (os.Args form) and returns the exit code: 0 without an error, ExitUsage for wrong
// usage, and what code says for any other error. Errors, a *UsageError among them, are printed on app.ErrWriter
// (default stderr) by report; if it is nil or returns false, as "NAME: message", for wrong usage with a usage line
// behind it. Main never ends the process.
func Main(ctx context.Context, app *cli.App, args []string, code func(error) int, report func(io.Writer, error) bool) int {
	if app.ErrWriter == nil {
		app.ErrWriter = os.Stderr
	}
	overrideLibrary(app)
	ordered, err := Reorder(app, args)
	if err == nil {
		err = app.RunContext(ctx, ordered)
	}
	if err == nil {
		return 0
	}
	done := report != nil && report(app.ErrWriter, err)
	var usage *UsageError
	if errors.As(err, &usage) {
		if !done {
			_, _ = fmt.Fprintf(app.ErrWriter, "%s: %s\n%s", app.Name, usage.Msg, usageText(app, usage.Command))
		}
		return ExitUsage
	}
	if !done {
		_, _ = fmt.Fprintf(app.ErrWriter, "%s: %v\n", app.Name, err)
	}
	return code(err)
}

// overrideLibrary takes the decisions about exit codes and usage texts away from the library.
func overrideLibrary(app *cli.App) {
	app.ExitErrHandler = func(*cli.Context, error) {}
	app.OnUsageError = usageFromLibrary
	app.CommandNotFound = nil
	var walk func([]*cli.Command)
	walk = func(commands []*cli.Command) {
		for _, c := range commands {
			if c.Name == "help" { // the library's own, which contains itself
				continue
			}
			c.OnUsageError = usageFromLibrary
			walk(c.Subcommands)
		}
	}
	walk(app.Commands)
}

func usageFromLibrary(c *cli.Context, err error, _ bool) error {
	return &UsageError{Command: commandPath(c), Msg: strings.TrimPrefix(err.Error(), "flag provided but not defined: ")}
}

// NArgs checks the number of arguments of a command; most < 0 means any number. It names what is missing
// or surplus.
func NArgs(c *cli.Context, least, most int) error {
	n := c.Args().Len()
	switch {
	case n < least && c.Command.ArgsUsage != "":
		return Usagef(c, "missing argument: %s wants %s", c.Command.Name, c.Command.ArgsUsage)
	case n < least:
		return Usagef(c, "%s wants at least %d arguments", c.Command.Name, least)
	case most >= 0 && n > most:
		return Usagef(c, "surplus argument %q", c.Args().Get(most))
	}
	return nil
}

// Usagef returns a *UsageError about the command of c.
func Usagef(c *cli.Context, format string, args ...any) error {
	return &UsageError{Command: commandPath(c), Msg: fmt.Sprintf(format, args...)}
}

func commandPath(c *cli.Context) string {
	var names []string
	for _, x := range c.Lineage() {
		if x.Command != nil && x.Command.Name != "" && x.Command.Name != c.App.Name {
			names = append([]string{x.Command.Name}, names...)
		}
	}
	return strings.Join(names, " ")
}

// usageText is short: one line for a command, the list of commands for the program.
func usageText(app *cli.App, command string) string {
	commands := app.Commands
	var found *cli.Command
	for _, name := range strings.Fields(command) {
		found = nil
		for _, c := range commands {
			if c.HasName(name) {
				found = c
				commands = c.Subcommands
			}
		}
	}
	var b strings.Builder
	if found == nil || hasChildren(found) && found.Action == nil {
		prefix := strings.TrimSpace(app.Name + " " + command)
		for i, c := range commands {
			if c.Hidden || c.Name == "help" {
				continue
			}
			lead := "       "
			if i == 0 {
				lead = "usage: "
			}
			fmt.Fprintf(&b, "%s%s %s\n", lead, prefix, strings.TrimSpace(c.Name+" "+c.ArgsUsage))
		}
		fmt.Fprintf(&b, "'%s --help' says more\n", prefix)
		return b.String()
	}
	fmt.Fprintf(&b, "usage: %s %s [flags] %s\n", app.Name, command, found.ArgsUsage)
	fmt.Fprintf(&b, "'%s %s --help' lists the flags\n", app.Name, command)
	return b.String()
}
