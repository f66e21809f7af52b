package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"kvd/bench/load"
	"kvd/integration/cluster"
)

// loadFlags describe one load.
var loadFlags = []cli.Flag{
	&cli.StringFlag{Name: "target", Value: "kvd", Usage: "`SYSTEM` to start here: kvd, zookeeper or etcd; SYSTEM=HOST:PORT,... uses one that runs (the cost of its servers is not known then)"},
	&cli.StringFlag{Name: "workload", Value: string(load.Set), Usage: "one of " + workloadNames()},
	&cli.IntFlag{Name: "connections", Value: 16},
	&cli.IntFlag{Name: "depth", Value: 16, Usage: "requests outstanding on each connection"},
	&cli.IntFlag{Name: "size", Value: 128, Usage: "bytes of a value, 0 to 65536"},
	&cli.BoolFlag{Name: "leader", Usage: "all connections to the leader (default: spread over the servers)"},
	&cli.IntFlag{Name: "members", Value: 3, Usage: "voters to start"},
	&cli.IntFlag{Name: "observers", Usage: "observers to start beside them (kvd)"},
	&cli.DurationFlag{Name: "for", Value: 10 * time.Second, Usage: "measured time"},
	&cli.DurationFlag{Name: "warmup", Value: 3 * time.Second, Usage: "load before that; a JVM needs 30s"},
	&cli.StringFlag{Name: "dir", Usage: "where data goes (default: a temporary directory)"},
	&cli.StringFlag{Name: "etcd", Usage: "a binary built from bench/etcd (default: built when needed)"},
	&cli.StringFlag{Name: "kvd", Usage: "a kvd binary (default: built when needed)"},
}

var runFlags = append(slices.Clone(loadFlags),
	&cli.Float64Flag{Name: "rate", Usage: "requests a second, begun at fixed times (open loop); 0: as many as are answered (closed loop)"},
	&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "table", Usage: "table, markdown or json"},
)

func workloadNames() string {
	names := make([]string, len(load.Workloads))
	for i, w := range load.Workloads {
		names[i] = string(w)
	}
	return strings.Join(names, ", ")
}

// loadOf reads loadFlags.
func loadOf(c *cli.Context) (load.Config, error) {
	l := load.Config{
		Workload: load.Workload(c.String("workload")), Connections: c.Int("connections"), Depth: c.Int("depth"), Size: c.Int("size"),
		LeaderOnly: c.Bool("leader"), Warmup: c.Duration("warmup"), For: c.Duration("for"),
	}
	switch {
	case !slices.Contains(load.Workloads, l.Workload):
		return l, fmt.Errorf("no workload is called %q; there are %s", l.Workload, workloadNames())
	case l.Connections < 1 || l.Depth < 1 || l.For <= 0 || l.Warmup < 0:
		return l, errors.New("--connections, --depth and --for must be positive")
	case l.Size < 0 || l.Size > 64<<10:
		return l, fmt.Errorf("--size %d is not between 0 and 65536", l.Size)
	case c.Int("members") < 1 || c.Int("observers") < 0:
		return l, errors.New("--members must be positive, --observers not negative")
	}
	return l, nil
}

// target starts or finds the system that --target names. stop is to be called in any case.
func target(ctx context.Context, c *cli.Context) (s *system, stop func() error, err error) {
	stop = func() error { return nil }
	name, addrs, running := strings.Cut(c.String("target"), "=")
	if !slices.Contains([]string{"kvd", "zookeeper", "etcd"}, name) {
		return nil, stop, fmt.Errorf("no system is called %q", name)
	}
	dir := c.String("dir")
	if dir == "" {
		if dir, err = os.MkdirTemp("", "kvd-bench-"); err != nil {
			return nil, stop, err
		}
		stop = func() error { return os.RemoveAll(dir) }
	}
	bin := c.String("etcd")
	if name == "etcd" && bin == "" {
		fmt.Fprintln(os.Stderr, "building etcd, which takes minutes the first time ...")
		if bin, err = buildEtcd(ctx, dir); err != nil {
			return nil, stop, err
		}
	}
	if running {
		s = &system{name: name, servers: strings.Split(addrs, ","), pids: func() []int { return nil }, driver: ownDriver(), stop: func() {}}
		if name == "etcd" {
			s.driver = []string{bin, "drive"}
		}
		return s, stop, nil
	}
	if c.Int("observers") > 0 && name != "kvd" {
		return nil, stop, errors.New("--observers is for kvd")
	}
	start, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	switch name {
	case "kvd":
		b := cluster.Binaries{Kvd: c.String("kvd")}
		if b.Kvd == "" {
			if b, err = cluster.Build(dir); err != nil {
				return nil, stop, err
			}
		}
		s, err = startKvd(start, b, dir, c.Int("members"), c.Int("observers"))
	case "zookeeper":
		s, err = startZooKeeper(start, dir, c.Int("members"))
	case "etcd":
		s, err = startEtcd(start, bin, dir, c.Int("members"))
	}
	if err != nil {
		return nil, stop, err
	}
	remove := stop
	return s, func() error { s.stop(); return remove() }, nil
}

func runOne(c *cli.Context) (err error) {
	l, err := loadOf(c)
	if err != nil {
		return err
	}
	if !slices.Contains([]string{"table", "markdown", "json"}, c.String("output")) {
		return fmt.Errorf("no output is called %q", c.String("output"))
	}
	if l.Rate = c.Float64("rate"); l.Rate < 0 {
		return errors.New("--rate must not be negative")
	}
	s, stop, err := target(c.Context, c)
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return err
	}
	res, err := s.measure(c.Context, l)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%s %dx%d", l.Workload, l.Connections, l.Depth)
	if c.String("output") == "json" {
		return json.NewEncoder(os.Stdout).Encode(ComparedRow{Workload: name, System: s.name, Median: res})
	}
	out := Compared{When: time.Now().UTC(), Machine: machine(), Versions: map[string]string{}}
	out.add(name, s.name, res)
	out.settle()
	if res.Rate > 0 {
		fmt.Fprintf(os.Stderr, "%d requests began late, because all %d slots were taken\n", res.MissedStarts, l.Connections*l.Depth)
	}
	if res.Errors > 0 {
		fmt.Fprintf(os.Stderr, "%d errors, the first: %s\n", res.Errors, res.FirstError)
	}
	return out.print(os.Stdout, c.String("output"))
}
