package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"kvd/bench/load"
	"kvd/integration/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) > 1 {
		if helper := helpers[os.Args[1]]; helper != nil {
			if err := helper(ctx, os.Args[2:]); err != nil {
				fmt.Fprintf(os.Stderr, "bench %s: %v\n", os.Args[1], err)
				os.Exit(1)
			}
			return
		}
	}
	app := &cli.App{
		Name:  "bench",
		Usage: "measure kvd on this machine, beside ZooKeeper and etcd",
		Commands: []*cli.Command{
			{Name: "compare", Usage: "start kvd, ZooKeeper and etcd here, give them the same loads in turn, and print the ratios", Flags: compareFlags, Action: compare},
			{Name: "run", Usage: "one load on one system: kvd, zookeeper or etcd, started here or at given addresses", Flags: runFlags, Action: runOne},
			{Name: "plot", Usage: "draw throughput over latency, and cost over size, as SVG", Flags: plotFlags, Action: plot},
			{
				Name:  "targets",
				Usage: "run every speed and memory target; exit 1 if one is missed",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "only", Usage: "comma-separated part: throughput, memory, failover, rolling"},
					&cli.DurationFlag{Name: "seconds", Value: 15 * time.Second, Usage: "length of the throughput run"},
					&cli.IntFlag{Name: "nodes", Value: 1_000_000, Usage: "nodes of the memory run"},
					&cli.IntFlag{Name: "rounds", Value: 10, Usage: "kills of the failover run"},
					&cli.StringFlag{Name: "dir", Usage: "where data goes (default: a temporary directory)"},
				},
				Action: targets,
			},
		},
	}
	if err := app.RunContext(ctx, os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// helpers are the processes that this program starts of itself: a load generator has one of its own, so that its processor time can be told
// from that of the servers.
var helpers = map[string]func(ctx context.Context, args []string) error{
	"drive": func(ctx context.Context, args []string) error {
		return load.Drive(ctx, load.ZooKeeper(), args, os.Stdout)
	},
	"append-loop": func(_ context.Context, args []string) error { return appendLoop(args[0]) },
	"echo-server": func(context.Context, []string) error { return echoServer() },
}

// run is what the parts of one `bench targets` share.
type run struct {
	bins cluster.Binaries
	dir  string
	rep  report
}

func targets(c *cli.Context) error {
	dir := c.String("dir")
	if dir == "" {
		d, err := os.MkdirTemp("", "kvd-bench-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(d) }()
		dir = d
	}
	bins, err := cluster.Build(dir)
	if err != nil {
		return err
	}
	r := &run{bins: bins, dir: dir}
	type part struct {
		name string
		do   func() error
	}
	parts := []part{
		{"throughput", func() error { return r.throughput(c.Context, c.Duration("seconds")) }},
		{"failover", func() error { return r.failover(c.Context, c.Int("rounds")) }},
		{"rolling", func() error { return r.rolling(c.Context) }},
		{"memory", func() error { return r.memory(c.Context, c.Int("nodes")) }},
	}
	only := map[string]bool{}
	for p := range strings.SplitSeq(c.String("only"), ",") {
		if p = strings.TrimSpace(p); p == "" {
			continue
		}
		if !slices.ContainsFunc(parts, func(q part) bool { return q.name == p }) {
			return fmt.Errorf("no part is called %q", p)
		}
		only[p] = true
	}
	var failed error
	for _, p := range parts {
		if len(only) > 0 && !only[p.name] {
			continue
		}
		fmt.Fprintf(os.Stderr, "== %s\n", p.name)
		if err := p.do(); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", p.name, err))
			fmt.Fprintf(os.Stderr, "  %s failed: %v\n", p.name, err)
		}
	}
	fmt.Printf("kvd targets, %s, %s/%s, %d cores, %s\n", time.Now().UTC().Format(time.DateOnly), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())
	if err := r.rep.print(os.Stdout); err != nil {
		return err
	}
	if n := r.rep.missed(); n > 0 {
		failed = errors.Join(failed, fmt.Errorf("%d targets missed", n))
	}
	return failed
}

// cluster makes and starts n members below a directory of their own.
func (r *run) cluster(ctx context.Context, name string, n int, lines ...string) (*cluster.Cluster, error) {
	dir, err := os.MkdirTemp(r.dir, name+"-")
	if err != nil {
		return nil, err
	}
	c, err := cluster.New(cluster.Options{Members: n, Dir: dir, Kvd: r.bins.Kvd, ConfigLines: lines})
	if err != nil {
		return nil, err
	}
	start, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := c.Start(start); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}
