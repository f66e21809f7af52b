package load

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// What a driver process says on its standard output, a line each; the result follows as JSON. Whoever started it takes its
// figures of the servers when it reads the first and the third.
const (
	LineBegin    = "begin"
	LineProgress = "progress" // and the number of operations so far
	LineEnd      = "end"
)

// Args are the arguments that make Drive carry out c.
func (c Config) Args() []string {
	args := []string{
		"-workload", string(c.Workload), "-connections", fmt.Sprint(c.Connections), "-depth", fmt.Sprint(c.Depth), "-size", fmt.Sprint(c.Size),
		"-rate", fmt.Sprint(c.Rate), "-warmup", c.Warmup.String(), "-for", c.For.String(), "-servers", strings.Join(c.Servers, ","),
	}
	if c.LeaderOnly {
		args = append(args, "-leader")
	}
	return args
}

// lines is the Marker of a driver process.
type lines struct{ w *bufio.Writer }

func (l lines) say(format string, args ...any) {
	_, _ = fmt.Fprintf(l.w, format+"\n", args...) // Flush says what went wrong
	_ = l.w.Flush()
}
func (l lines) Begin() { l.say(LineBegin) }
func (l lines) End()   { l.say(LineEnd) }

// Drive is the whole of a driver process: it reads Config.Args, runs the measurement and writes lines and result to out.
func Drive(ctx context.Context, s Store, args []string, out io.Writer) error {
	var c Config
	fs := flag.NewFlagSet("drive", flag.ContinueOnError)
	fs.SetOutput(os.Stderr)
	workload, servers := fs.String("workload", string(Set), ""), fs.String("servers", "", "")
	fs.IntVar(&c.Connections, "connections", 16, "")
	fs.IntVar(&c.Depth, "depth", 16, "")
	fs.IntVar(&c.Size, "size", 128, "")
	fs.Float64Var(&c.Rate, "rate", 0, "")
	fs.DurationVar(&c.Warmup, "warmup", 3*time.Second, "")
	fs.DurationVar(&c.For, "for", 10*time.Second, "")
	fs.BoolVar(&c.LeaderOnly, "leader", false, "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	c.Workload, c.Servers = Workload(*workload), strings.Split(*servers, ",")
	l := lines{bufio.NewWriter(out)}
	r, err := Run(ctx, s, c, l, func(n int64) { l.say("%s %d", LineProgress, n) })
	if err != nil {
		return err
	}
	if err := json.NewEncoder(l.w).Encode(r); err != nil {
		return err
	}
	if err := l.w.Flush(); err != nil {
		return err
	}
	return s.Close()
}
