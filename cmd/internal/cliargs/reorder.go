package cliargs

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"
)

// UsageError is a command line that cannot be meant. Main prints it with the usage line of the command and
// exits with 2.
type UsageError struct {
	// Command is the path of the command as typed, without the program: "set", "context use", or "".
	Command string
	Msg     string
}

func (e *UsageError) Error() string { return e.Msg }

// Reorder returns args (with the program's name first, like os.Args) such that the library reads them as
// meant: program flags, command, command flags, "--", arguments. It fails with a *UsageError for an unknown
// command or flag, a flag without its value, or no command. It calls app.Setup.
func Reorder(app *cli.App, args []string) ([]string, error) {
	argumentsAreNotHelp(app.Commands)
	app.Setup()
	if len(args) == 0 {
		args = []string{app.Name}
	}
	l := &line{app: app, global: flagTable(app.Flags), commands: app.Commands}
	if err := l.scan(args[1:]); err != nil {
		return nil, err
	}
	if err := l.placeEarly(); err != nil {
		return nil, err
	}
	if len(l.path) == 0 && !l.asksHelp(l.globalArgs) {
		return nil, l.usage("no command given")
	}
	if n := len(l.path); n > 0 && hasChildren(l.path[n-1]) && l.path[n-1].Action == nil && !l.asksHelp(l.local) {
		return nil, l.usage("%s needs one of the commands %s", l.pathText(), commandNames(l.path[n-1].Subcommands))
	}
	out := append([]string{args[0]}, l.globalArgs...)
	for _, c := range l.path {
		out = append(out, c.Name)
	}
	out = append(out, l.local...)
	if len(l.arguments) > 0 && !l.asksHelp(l.local) { // the library takes an argument beside --help for a topic
		out = append(append(out, "--"), l.arguments...)
	}
	return out, nil
}

// argumentsAreNotHelp keeps the library from reading the argument of "kv get help" as a request for help.
// --help and "kv help get" remain.
func argumentsAreNotHelp(commands []*cli.Command) {
	for _, c := range commands {
		if c.Name == "help" {
			continue
		}
		if len(c.Subcommands) == 0 {
			c.HideHelpCommand = true
		}
		argumentsAreNotHelp(c.Subcommands)
	}
}

// line is a command line being sorted.
type line struct {
	app      *cli.App
	global   map[string]cli.Flag
	commands []*cli.Command // that may be named next; nil when the next word is an argument

	path       []*cli.Command
	localFlags map[string]cli.Flag // of the innermost command
	globalArgs []string
	local      []string
	arguments  []string
	// early holds flags that no table knew before a command was named: they belong to the command.
	early [][]string
}

func (l *line) scan(words []string) error {
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		switch {
		case word == "--":
			for len(words) > 0 && len(l.path) == 0 { // the command itself may still be missing
				if err := l.word(words[0]); err != nil {
					return err
				}
				words = words[1:]
			}
			l.arguments = append(l.arguments, words...)
			return nil
		case word == "-" || !strings.HasPrefix(word, "-"):
			if err := l.word(word); err != nil {
				return err
			}
		default:
			used, err := l.flag(word, words)
			if err != nil {
				return err
			}
			words = words[used:]
		}
	}
	return nil
}

// word is a command name or an argument.
func (l *line) word(w string) error {
	if l.commands == nil || len(l.arguments) > 0 {
		l.arguments = append(l.arguments, w)
		return nil
	}
	for _, c := range l.commands {
		if c.HasName(w) {
			l.path = append(l.path, c)
			// A command in the middle keeps no flags of its own here; neither kvd nor kv has such.
			l.localFlags = flagTable(c.Flags)
			l.commands = nil
			if hasChildren(c) {
				l.commands = c.Subcommands
			}
			return nil
		}
	}
	if n := len(l.path); n > 0 && l.path[n-1].Action != nil {
		l.arguments = append(l.arguments, w)
		return nil
	}
	return l.usage("unknown command %q%s; there are %s", w, nearest(w, l.commands), commandNames(l.commands))
}

// flag sorts one token that begins with a dash and returns how many of the words behind it belong to it.
func (l *line) flag(word string, rest []string) (int, error) {
	name, _, hasValue := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(word, "-"), "-"), "=")
	dst, f := l.find(name)
	if f == nil && len(l.path) == 0 {
		if f = l.findEarly(name); f != nil {
			dst = nil
		}
	}
	if f == nil {
		if expanded := l.cluster(word); expanded != nil {
			used := 0
			for i, short := range expanded {
				n, err := l.flag(short, rest)
				if err != nil {
					return 0, err
				}
				if i == len(expanded)-1 {
					used = n
				}
			}
			return used, nil
		}
		if len(l.arguments) > 0 {
			l.arguments = append(l.arguments, word)
			return 0, nil
		}
		return 0, l.usage("unknown flag %s", word)
	}
	tokens := []string{word}
	used := 0
	if takesValue(f) && !hasValue {
		if len(rest) == 0 || rest[0] == "--" {
			return 0, l.usage("flag %s needs a value", word)
		}
		tokens = append(tokens, rest[0])
		used = 1
	}
	if dst == nil {
		l.early = append(l.early, tokens)
	} else {
		*dst = append(*dst, tokens...)
	}
	return used, nil
}

// find looks a flag up in the command, then in the program.
func (l *line) find(name string) (*[]string, cli.Flag) {
	if f := l.localFlags[name]; f != nil {
		return &l.local, f
	}
	if len(l.path) > 0 && isHelp(name) { // help is about the command that was named
		if f := l.global[name]; f != nil {
			return &l.local, f
		}
	}
	if f := l.global[name]; f != nil {
		return &l.globalArgs, f
	}
	return nil, nil
}

// findEarly looks a flag up in all commands, for one that stands before its command. Commands that disagree on
// whether it takes a value make it unknown.
func (l *line) findEarly(name string) cli.Flag {
	var found cli.Flag
	agree := true
	var walk func([]*cli.Command)
	walk = func(commands []*cli.Command) {
		for _, c := range commands {
			if c.Name == "help" { // the library's own, which contains itself
				continue
			}
			if f := flagTable(c.Flags)[name]; f != nil {
				agree = agree && (found == nil || takesValue(found) == takesValue(f))
				found = f
			}
			walk(c.Subcommands)
		}
	}
	walk(l.commands)
	if !agree {
		return nil
	}
	return found
}

// placeEarly gives the flags that stood before the command to it.
func (l *line) placeEarly() error {
	for _, tokens := range l.early {
		name, _, _ := strings.Cut(strings.TrimLeft(tokens[0], "-"), "=")
		if l.localFlags[name] == nil {
			if len(l.path) == 0 {
				return l.usage("no command given")
			}
			return l.usage("unknown flag %s", tokens[0])
		}
		l.local = append(l.local, tokens...)
	}
	return nil
}

// cluster splits "-rf" into "-r" and "-f" if each letter is a known flag and only the last takes a value.
func (l *line) cluster(word string) []string {
	letters := strings.TrimPrefix(word, "-")
	if len(letters) < 2 || strings.HasPrefix(letters, "-") {
		return nil
	}
	var out []string
	for i, r := range letters {
		_, f := l.find(string(r))
		if f == nil && len(l.path) == 0 {
			f = l.findEarly(string(r))
		}
		if f == nil || takesValue(f) && i != len(letters)-1 {
			return nil
		}
		out = append(out, "-"+string(r))
	}
	return out
}

// asksHelp reports whether one of the flags answers by itself: help, or the program's version.
func (l *line) asksHelp(flags []string) bool {
	for _, f := range flags {
		name := strings.TrimLeft(f, "-")
		if isHelp(name) {
			return true
		}
		if v, ok := cli.VersionFlag.(*cli.BoolFlag); ok && !l.app.HideVersion && len(l.path) == 0 {
			for _, n := range v.Names() {
				if name == n {
					return true
				}
			}
		}
	}
	return false
}

func (l *line) usage(format string, args ...any) error {
	return &UsageError{Command: l.pathText(), Msg: fmt.Sprintf(format, args...)}
}

func (l *line) pathText() string {
	var names []string
	for _, c := range l.path {
		names = append(names, c.Name)
	}
	return strings.Join(names, " ")
}

func flagTable(flags []cli.Flag) map[string]cli.Flag {
	table := map[string]cli.Flag{}
	for _, f := range flags {
		for _, n := range f.Names() {
			table[n] = f
		}
	}
	return table
}

func takesValue(f cli.Flag) bool {
	d, ok := f.(cli.DocGenerationFlag)
	return !ok || d.TakesValue()
}

func isHelp(name string) bool {
	if cli.HelpFlag == nil {
		return false
	}
	for _, n := range cli.HelpFlag.Names() {
		if n == name {
			return true
		}
	}
	return false
}

// hasChildren reports whether c has commands of its own; the library adds "help" to some.
func hasChildren(c *cli.Command) bool {
	for _, s := range c.Subcommands {
		if s.Name != "help" {
			return true
		}
	}
	return false
}

func commandNames(commands []*cli.Command) string {
	var names []string
	for _, c := range commands {
		if !c.Hidden && c.Name != "help" {
			names = append(names, c.Name)
		}
	}
	return strings.Join(names, ", ")
}

// nearest suggests a command that starts like w or is one edit away.
func nearest(w string, commands []*cli.Command) string {
	best, bestDist := "", 3
	for _, c := range commands {
		for _, n := range c.Names() {
			if d := Distance(w, n); d < bestDist && d < len(n) {
				best, bestDist = n, d
			}
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", best)
}

// Distance is the edit distance between two words: insertions, deletions, replacements.
func Distance(a, b string) int {
	prev := make([]int, len(b)+1)
	cur := make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := range len(a) {
		cur[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			cur[j+1] = min(prev[j+1]+1, cur[j]+1, prev[j]+cost)
		}
		prev, cur = cur, prev
	}
	return prev[len(b)]
}
