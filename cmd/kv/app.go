package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"kvd/cmd/internal/cliargs"
	"kvd/kv"
)

const (
	defaultServer         = "127.0.0.1:2181"
	defaultTimeout        = 10 * time.Second
	defaultSessionTimeout = 10 * time.Second
)

// program is one invocation.
type program struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	json   bool // -o json
}

func newProgram(stdin io.Reader, stdout, stderr io.Writer) *program {
	return &program{stdin: stdin, stdout: stdout, stderr: stderr}
}

// main runs the command and returns the exit code.
func (p *program) main(ctx context.Context, args []string) int {
	p.json = asksJSON(args) // also for a line that cannot be read to its end
	code := cliargs.Main(ctx, p.app(), args, exitCode, p.report)
	var sig signalError
	if code != 0 && code != cliargs.ExitUsage && errors.As(context.Cause(ctx), &sig) {
		return 128 + int(sig.sig)
	}
	return code
}

// asksJSON looks for -o json.
func asksJSON(args []string) bool {
	for i, arg := range args {
		if arg == "--" {
			break
		}
		name, value, given := strings.Cut(arg, "=")
		if name != "-o" && name != "-output" && name != "--output" {
			continue
		}
		if !given && i+1 < len(args) {
			value = args[i+1]
		}
		if value == "json" {
			return true
		}
	}
	return false
}

func (p *program) app() *cli.App {
	return &cli.App{
		Name:        "kv",
		Usage:       "read and write the tree of kvd or ZooKeeper servers",
		HideVersion: true,
		Writer:      p.stdout,
		ErrWriter:   p.stderr,
		Description: "Flags may stand anywhere before \"--\". VALUE may be \"-\" for standard input.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "server", EnvVars: []string{"KV_SERVER"}, Value: defaultServer, Usage: "`SERVERS`, as host:port,host:port/chroot"},
			&cli.DurationFlag{Name: "timeout", EnvVars: []string{"KV_TIMEOUT"}, Value: defaultTimeout, Usage: "bounds connecting, and each request"},
			&cli.DurationFlag{Name: "session-timeout", EnvVars: []string{"KV_SESSION_TIMEOUT"}, Value: defaultSessionTimeout, Usage: "asked of the server for ephemeral nodes"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "text", Usage: "text or json"},
		},
		Before: p.before,
		Commands: []*cli.Command{
			{Name: "get", ArgsUsage: "PATH", Usage: "print a node's value", Action: p.get},
			{Name: "set", ArgsUsage: "PATH VALUE", Usage: "set a node's value, creating it and its parents if they are missing", Action: p.set,
				Description: "Parents are created within the chroot of --server. The chroot itself is not: if it is missing, the exit code is 3.", Flags: []cli.Flag{
					&cli.IntFlag{Name: "version", Usage: "only if the node has this version; implies --existing"},
					&cli.BoolFlag{Name: "existing", Usage: "only if the node exists"},
				}},
			{Name: "create", ArgsUsage: "PATH [VALUE]", Usage: "create a node and print its path", Action: p.create, Flags: []cli.Flag{
				&cli.BoolFlag{Name: "ephemeral", Aliases: []string{"e"}, Usage: "removed with the session, which is held until a signal"},
				&cli.BoolFlag{Name: "sequential", Aliases: []string{"s"}, Usage: "append a number that grows with every node created beside it"},
			}},
			{Name: "rm", ArgsUsage: "PATH", Usage: "remove a node", Action: p.rm, Flags: []cli.Flag{
				&cli.BoolFlag{Name: "recursive", Aliases: []string{"r"}, Usage: "with everything below it"},
				&cli.BoolFlag{Name: "force", Aliases: []string{"f"}, Usage: "a missing node is no error"},
				&cli.IntFlag{Name: "version", Usage: "only if the node has this version"},
			}},
			{Name: "ls", ArgsUsage: "[PATH]", Usage: "list a node's children", Action: p.ls, Flags: []cli.Flag{
				&cli.BoolFlag{Name: "recursive", Aliases: []string{"R"}, Usage: "full paths of everything, depth first"},
			}},
			{Name: "stat", ArgsUsage: "PATH", Usage: "print a node's versions, times and sizes", Action: p.stat},
			{Name: "watch", ArgsUsage: "PATH", Usage: "print what happens to a node until interrupted", Action: p.watch, Flags: []cli.Flag{
				&cli.IntFlag{Name: "count", Usage: "end after `N` events"},
			}},
			{Name: "status", Usage: "show every member's role, process, position and health", Action: p.status},
		},
	}
}

// before checks the flags that every command has.
func (p *program) before(c *cli.Context) error {
	output := c.String("output")
	p.json = output == "json"
	if output != "text" && output != "json" {
		return cliargs.Usagef(c, "-o %q: want text or json", output)
	}
	if c.Duration("timeout") <= 0 || c.Duration("session-timeout") <= 0 {
		return cliargs.Usagef(c, "a time-out must be greater than 0")
	}
	return nil
}

// pathArg checks the number of arguments and the first of them, which is a path.
func pathArg(c *cli.Context, least, most int) (string, error) {
	if err := cliargs.NArgs(c, least, most); err != nil {
		return "", err
	}
	path := c.Args().First()
	if path == "" || path[0] != '/' {
		return "", cliargs.Usagef(c, "path %q does not begin with a slash", path)
	}
	if len(path) > 1 && path[len(path)-1] == '/' {
		return "", cliargs.Usagef(c, "path %q ends in a slash", path)
	}
	return path, validPath(c, path)
}

// validPath refuses what no node can be called, for every command alike: to a server such a path is an error in a
// write and a missing node in a read.
func validPath(c *cli.Context, path string) error {
	if kv.ValidatePath(path) != nil {
		return cliargs.Usagef(c, "%q is no path: it has an empty, '.' or '..' component or a character that is not allowed", path)
	}
	return nil
}

// valueArg is the argument at i: itself, or standard input, byte for byte, for a lone "-".
func (p *program) valueArg(c *cli.Context, i int) ([]byte, error) {
	v := c.Args().Get(i)
	if v != "-" {
		return []byte(v), nil
	}
	data, err := io.ReadAll(p.stdin)
	if err != nil {
		return nil, &failure{what: "read the value from standard input", err: err}
	}
	if data == nil {
		data = []byte{}
	}
	return data, nil
}

// isTerminal reports whether w is a terminal (or another character device, where it does no harm).
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
