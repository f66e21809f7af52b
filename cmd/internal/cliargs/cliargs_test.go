package cliargs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

// call is what the action of a command saw.
type call struct {
	command string
	flags   string
	args    []string
}

// testApp has the shapes of flags and commands that kv and kvd have.
func testApp(got *call) *cli.App {
	action := func(c *cli.Context) error {
		if err := NArgs(c, 1, 2); err != nil {
			return err
		}
		*got = call{c.Command.Name, fmt.Sprintf("version=%d r=%v f=%v server=%s timeout=%s auth=%v o=%s",
			c.Int("version"), c.Bool("recursive"), c.Bool("force"), c.String("server"), c.Duration("timeout"), c.StringSlice("auth"), c.String("output")), c.Args().Slice()}
		return nil
	}
	return &cli.App{
		Name: "kv", Writer: &bytes.Buffer{}, ErrWriter: &bytes.Buffer{}, Version: "v1",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "server"}, &cli.DurationFlag{Name: "timeout"}, &cli.StringSliceFlag{Name: "auth"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}},
		},
		Commands: []*cli.Command{
			{Name: "set", ArgsUsage: "PATH VALUE", Action: action, Flags: []cli.Flag{&cli.IntFlag{Name: "version"}}},
			{Name: "rm", ArgsUsage: "PATH", Action: action, Flags: []cli.Flag{
				&cli.BoolFlag{Name: "recursive", Aliases: []string{"r"}}, &cli.BoolFlag{Name: "force", Aliases: []string{"f"}}, &cli.IntFlag{Name: "version"}}},
			{Name: "context", Subcommands: []*cli.Command{{Name: "use", ArgsUsage: "NAME", Action: action}}},
		},
	}
}

func TestFlagsAnywhere(t *testing.T) {
	for _, c := range []struct {
		line    string // words separated by blanks; _ is an empty word
		command string
		flags   string // substrings, blank separated
		args    []string
	}{
		{"set /a 1 --version 3", "set", "version=3", []string{"/a", "1"}},
		{"set --version 3 /a 1", "set", "version=3", []string{"/a", "1"}},
		{"set /a --version=3 1", "set", "version=3", []string{"/a", "1"}},
		{"--version 3 set /a 1", "", "", nil}, // the program's own --version stands before a command: it takes no value, 3 is no command
		{"set /a 1 --version -1", "set", "version=-1", []string{"/a", "1"}},
		{"set /a -5", "set", "version=0", []string{"/a", "-5"}},
		{"set /a -5 --version 2", "set", "version=2", []string{"/a", "-5"}},
		{"set /a -", "set", "", []string{"/a", "-"}},
		{"set /a --unknown", "set", "", []string{"/a", "--unknown"}},
		{"set -- /a --version", "set", "version=0", []string{"/a", "--version"}},
		{"set --version 2 -- -x -y", "set", "version=2", []string{"-x", "-y"}},
		{"set /a -- -- ", "set", "", []string{"/a", "--"}},
		{"set /a _", "set", "", []string{"/a", ""}},
		{"set /a help", "set", "", []string{"/a", "help"}},
		{"set help", "set", "", []string{"help"}},
		{"set h", "set", "", []string{"h"}},
		{"rm help", "rm", "", []string{"help"}},
		{"rm -rf /a", "rm", "r=true f=true", []string{"/a"}},
		{"rm /a -rf", "rm", "r=true f=true", []string{"/a"}},
		{"rm /a -r --force", "rm", "r=true f=true", []string{"/a"}},
		{"rm /a -r=false -f", "rm", "r=false f=true", []string{"/a"}},
		{"-f rm /a", "rm", "f=true", []string{"/a"}},
		{"-rf rm /a", "rm", "r=true f=true", []string{"/a"}},
		{"--server h:1 set /a 1", "set", "server=h:1", []string{"/a", "1"}},
		{"set /a 1 --server h:1 --timeout 3s", "set", "server=h:1 timeout=3s", []string{"/a", "1"}},
		{"set --server=h:1 /a 1 -o json", "set", "server=h:1 o=json", []string{"/a", "1"}},
		{"--auth a:b set /a 1 --auth c:d", "set", "auth=[a:b c:d]", []string{"/a", "1"}},
		{"-server h:1 set /a 1", "set", "server=h:1", []string{"/a", "1"}},
		{"context use c1 --server x", "use", "server=x", []string{"c1"}},
		{"-- set /a 1", "set", "", []string{"/a", "1"}},
	} {
		t.Run(c.line, func(t *testing.T) {
			var got call
			app := testApp(&got)
			words := append([]string{"kv"}, strings.Fields(c.line)...)
			for i, w := range words {
				if w == "_" {
					words[i] = ""
				}
			}
			code := Main(context.Background(), app, words, func(error) int { return 1 }, nil)
			if c.command == "" {
				if code != ExitUsage {
					t.Errorf("exit code %d, want %d", code, ExitUsage)
				}
				return
			}
			if code != 0 {
				t.Fatalf("exit code %d: %s", code, app.ErrWriter)
			}
			if got.command != c.command || !slices.Equal(got.args, c.args) {
				t.Errorf("got %s %q, want %s %q", got.command, got.args, c.command, c.args)
			}
			for _, f := range strings.Fields(strings.ReplaceAll(c.flags, "[a:b c:d]", "[a:b_c:d]")) {
				if f = strings.ReplaceAll(f, "_", " "); !strings.Contains(got.flags, f) {
					t.Errorf("got flags %s, want %s", got.flags, f)
				}
			}
		})
	}
}

// Wrong usage is 2 with the reason and a usage line on stderr, nothing on stdout, and no action runs.
func TestUsageErrors(t *testing.T) {
	for line, want := range map[string]string{
		"":                           "no command given",
		"--server h:1":               "no command given",
		"--recursive":                "no command given",
		"sett /a 1":                  `unknown command "sett" (did you mean "set"?)`,
		"nonsense":                   `unknown command "nonsense"; there are set, rm, context`,
		"set":                        "missing argument: set wants PATH VALUE",
		"set /a 1 2":                 `surplus argument "2"`,
		"set /a 1 --versin 3":        `surplus argument "--versin"`,
		"set --versin 3 /a":          "unknown flag --versin",
		"set -x /a 1":                "unknown flag -x",
		"--nonsense set /a 1":        "unknown flag --nonsense",
		"-rf set /a 1":               "unknown flag -r",
		"--recursive set /a 1":       "unknown flag --recursive",
		"set /a 1 --version":         "flag --version needs a value",
		"set /a --version -- 1":      "flag --version needs a value",
		"set /a 1 --version many":    "invalid value",
		"set /a 1 --timeout soon":    "invalid value",
		"rm -rx /a":                  "unknown flag -rx",
		"context":                    "context needs one of the commands use",
		"context used x":             `unknown command "used" (did you mean "use"?)`,
		"context use":                "missing argument: use wants NAME",
		"rm --recursive=perhaps /ab": "invalid boolean value",
	} {
		t.Run(line, func(t *testing.T) {
			var got call
			app := testApp(&got)
			code := Main(context.Background(), app, append([]string{"kv"}, strings.Fields(line)...), func(error) int { return 1 }, nil)
			text := app.ErrWriter.(*bytes.Buffer).String()
			if code != ExitUsage || !strings.Contains(text, want) || !strings.Contains(text, "usage: kv") {
				t.Errorf("exit code %d, stderr %q; want %d, %q and a usage line", code, text, ExitUsage, want)
			}
			if got.command != "" {
				t.Errorf("%s ran", got.command)
			}
			if out := app.Writer.(*bytes.Buffer).String(); out != "" {
				t.Errorf("stdout: %q", out)
			}
		})
	}
}

func TestHelpAndVersion(t *testing.T) {
	for _, line := range []string{"--help", "-h", "help", "help set", "set --help", "set /a 1 -h", "--version", "-v", "context --help", "context use --help"} {
		var got call
		app := testApp(&got)
		code := Main(context.Background(), app, append([]string{"kv"}, strings.Fields(line)...), func(error) int { return 1 }, nil)
		if out := app.Writer.(*bytes.Buffer).String(); code != 0 || out == "" || got.command != "" {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q, ran %q", line, code, out, app.ErrWriter, got.command)
		}
	}
}

// Other errors go through code and report, also those for which the library has an exit code of its own.
func TestOtherErrors(t *testing.T) {
	broken := cli.Exit("it broke", 77)
	app := &cli.App{Name: "kv", ErrWriter: &bytes.Buffer{}, Commands: []*cli.Command{{Name: "x", Action: func(*cli.Context) error { return broken }}}}
	code := Main(context.Background(), app, []string{"kv", "x"}, func(err error) int {
		if !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
		return 5
	}, nil)
	if text := app.ErrWriter.(*bytes.Buffer).String(); code != 5 || text != "kv: it broke\n" {
		t.Errorf("exit code %d, stderr %q", code, text)
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"set", "set", 0}, {"sett", "set", 1}, {"tickTime", "tickTimes", 1}, {"kitten", "sitting", 3}} {
		if got := Distance(c.a, c.b); got != c.want || Distance(c.b, c.a) != c.want {
			t.Errorf("%s %s: got %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
