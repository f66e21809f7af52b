package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"kvd/bench/load"
	"kvd/integration/cluster"
)

// row is one workload of the comparison.
type row struct {
	Name string
	load.Config
}

// comparison is the columns of the table that the project states its targets for.
var comparison = []row{
	{"set 16x16", load.Config{Workload: load.Set, Connections: 16, Depth: 16, Size: 128}},
	{"create 16x16", load.Config{Workload: load.Create, Connections: 16, Depth: 16, Size: 128}},
	{"get 16x16", load.Config{Workload: load.Get, Connections: 16, Depth: 16, Size: 128}},
	{"mixed 90/10 16x16", load.Config{Workload: load.Mixed90, Connections: 16, Depth: 16, Size: 128}},
	{"set 64x32", load.Config{Workload: load.Set, Connections: 64, Depth: 32, Size: 128}},
	{"set 1x1", load.Config{Workload: load.Set, Connections: 1, Depth: 1, Size: 128, LeaderOnly: true}},
}

// Compared is all that a comparison has found, as -o json prints it.
type Compared struct {
	When     time.Time
	Machine  string
	Versions map[string]string
	Limits   limits
	// Rows has, for each workload and system, the median of the rounds by throughput, and all of them.
	Rows []ComparedRow
}

// ComparedRow is one workload at one system.
type ComparedRow struct {
	Workload string
	System   string
	Median   load.Result
	Rounds   []load.Result
}

var compareFlags = []cli.Flag{
	&cli.StringFlag{Name: "systems", Value: "kvd,zookeeper,etcd", Usage: "which to start, separated by commas"},
	&cli.IntFlag{Name: "members", Value: 3, Usage: "members of each"},
	&cli.IntFlag{Name: "rounds", Value: 2, Usage: "of everything, the systems in turn"},
	&cli.DurationFlag{Name: "for", Value: 8 * time.Second, Usage: "measured time of each row"},
	&cli.DurationFlag{Name: "warmup", Value: 2 * time.Second, Usage: "load before each row that is not measured"},
	&cli.DurationFlag{Name: "jvm-warmup", Value: 30 * time.Second, Usage: "load before the first row at ZooKeeper: its figures mean nothing before"},
	&cli.StringFlag{Name: "only", Usage: "rows, by parts of their names, separated by commas"},
	&cli.StringFlag{Name: "dir", Usage: "where data goes (default: a temporary directory)"},
	&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "table", Usage: "table, markdown or json"},
	&cli.StringFlag{Name: "etcd", Usage: "a binary built from bench/etcd (default: built now)"},
	&cli.StringFlag{Name: "kvd", Usage: "a kvd binary (default: built now)"},
}

func compare(c *cli.Context) (err error) {
	ctx := c.Context
	dir := c.String("dir")
	if dir == "" {
		if dir, err = os.MkdirTemp("", "kvd-compare-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	if !slices.Contains([]string{"table", "markdown", "json"}, c.String("output")) {
		return fmt.Errorf("no output is called %q", c.String("output"))
	}
	rows, err := chooseRows(c.String("only"))
	if err != nil {
		return err
	}
	systems, stop, err := startSystems(ctx, c, dir)
	defer stop()
	if err != nil {
		return err
	}
	out := Compared{When: time.Now().UTC(), Machine: machine(), Versions: map[string]string{}}
	for _, s := range systems {
		out.Versions[s.name] = s.version
	}
	fmt.Fprintln(os.Stderr, "limits of this machine ...")
	if out.Limits, err = measureLimits(ctx, dir, appends); err != nil {
		return err
	}
	// Everybody's processes are there all the time; only one system is asked for anything at a time.
	for _, s := range systems {
		if s.name != "ZooKeeper" || c.Duration("jvm-warmup") == 0 {
			continue
		}
		fmt.Fprintln(os.Stderr, "ZooKeeper warms up ...")
		for _, w := range []load.Workload{load.Set, load.Mixed50} {
			if _, err := s.measure(ctx, load.Config{Workload: w, Connections: 16, Depth: 16, Size: 128, For: c.Duration("jvm-warmup") / 2}); err != nil {
				return err
			}
		}
	}
	for round := range c.Int("rounds") {
		for _, r := range rows {
			for i := range systems {
				s := systems[(i+round)%len(systems)] // nobody is always the first
				r.Warmup, r.For = c.Duration("warmup"), c.Duration("for")
				res, err := s.measure(ctx, r.Config)
				if err != nil {
					return fmt.Errorf("%s at %s: %w", r.Name, s.name, err)
				}
				fmt.Fprintf(os.Stderr, "round %d  %-18s %-10s %9.0f/s  p50 %6.2f ms  p99 %7.2f ms  servers %6.1f µs  generator %4.1f µs  errors %d\n",
					round+1, r.Name, s.name, res.PerSecond, res.P50/1000, res.P99/1000, res.ServerCPU, res.GeneratorCPU, res.Errors)
				out.add(r.Name, s.name, res)
			}
		}
	}
	out.settle()
	return out.print(os.Stdout, c.String("output"))
}

// chooseRows returns the rows whose names contain one of the parts.
func chooseRows(only string) (rows []row, err error) {
	if only == "" {
		return comparison, nil
	}
	for part := range strings.SplitSeq(only, ",") {
		n := len(rows)
		for _, r := range comparison {
			if strings.Contains(r.Name, strings.TrimSpace(part)) {
				rows = append(rows, r)
			}
		}
		if len(rows) == n {
			return nil, fmt.Errorf("no row is called like %q", part)
		}
	}
	return rows, nil
}

// startSystems builds and starts what is to be compared. stop is to be called in any case.
func startSystems(ctx context.Context, c *cli.Context, dir string) (systems []*system, stop func(), err error) {
	stop = func() {
		for _, s := range systems {
			s.stop()
		}
	}
	for name := range strings.SplitSeq(c.String("systems"), ",") {
		start, cancel := context.WithTimeout(ctx, 10*time.Minute)
		defer cancel()
		var s *system
		switch strings.TrimSpace(name) {
		case "kvd":
			b := cluster.Binaries{Kvd: c.String("kvd")}
			if b.Kvd == "" {
				if b, err = cluster.Build(dir); err != nil {
					return systems, stop, err
				}
			}
			s, err = startKvd(start, b, dir, c.Int("members"), 0)
		case "zookeeper":
			s, err = startZooKeeper(start, dir, c.Int("members"))
		case "etcd":
			bin := c.String("etcd")
			if bin == "" {
				fmt.Fprintln(os.Stderr, "building etcd, which takes minutes the first time ...")
				if bin, err = buildEtcd(start, dir); err != nil {
					return systems, stop, err
				}
			}
			s, err = startEtcd(start, bin, dir, c.Int("members"))
		default:
			err = fmt.Errorf("no system is called %q", name)
		}
		if err != nil {
			return systems, stop, err
		}
		systems = append(systems, s)
	}
	return systems, stop, nil
}

// machine is what figures depend on.
func machine() string {
	model := runtime.GOARCH
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				model = strings.TrimSpace(v)
				break
			}
		}
	}
	return fmt.Sprintf("%d cores, %s, %s", runtime.NumCPU(), model, runtime.Version())
}

func (o *Compared) add(workload, system string, r load.Result) {
	for i := range o.Rows {
		if o.Rows[i].Workload == workload && o.Rows[i].System == system {
			o.Rows[i].Rounds = append(o.Rows[i].Rounds, r)
			return
		}
	}
	o.Rows = append(o.Rows, ComparedRow{Workload: workload, System: system, Rounds: []load.Result{r}})
}

// settle chooses the median round of each row; of an even number the mean of throughput, latencies and costs of the two in the middle.
func (o *Compared) settle() {
	for i := range o.Rows {
		r := &o.Rows[i]
		by := slices.Clone(r.Rounds)
		slices.SortFunc(by, func(a, b load.Result) int { return int(a.PerSecond - b.PerSecond) })
		n := len(by)
		r.Median = by[n/2]
		if n%2 == 0 {
			a, b := by[n/2-1], by[n/2]
			for _, f := range []func(*load.Result) *float64{
				func(r *load.Result) *float64 { return &r.PerSecond }, func(r *load.Result) *float64 { return &r.P50 },
				func(r *load.Result) *float64 { return &r.P99 }, func(r *load.Result) *float64 { return &r.P999 },
				func(r *load.Result) *float64 { return &r.ServerCPU }, func(r *load.Result) *float64 { return &r.GeneratorCPU },
				func(r *load.Result) *float64 { return &r.ServerWritten }, func(r *load.Result) *float64 { return &r.GeneratorShare },
			} {
				*f(&r.Median) = (*f(&a) + *f(&b)) / 2
			}
		}
		r.Median.Max, r.Median.Errors, r.Median.ServerResident = 0, 0, 0
		for _, round := range by { // what went wrong in any round is not hidden by the choice of one
			r.Median.Max, r.Median.Errors = max(r.Median.Max, round.Max), r.Median.Errors+round.Errors
			r.Median.ServerResident = max(r.Median.ServerResident, round.ServerResident)
		}
	}
}

// of finds a row.
func (o *Compared) of(workload, system string) *load.Result {
	for i := range o.Rows {
		if o.Rows[i].Workload == workload && o.Rows[i].System == system {
			return &o.Rows[i].Median
		}
	}
	return nil
}

// boundBy says that a row is judged by what its servers used: the generator took so much of the machine that the servers could not have
// the rest.
func boundBy(r *load.Result) string {
	if r.GeneratorShare > generatorBound {
		return "generator"
	}
	return ""
}

// times prints a ratio.
func times(a, b float64) string {
	if b == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f×", a/b)
}

// cells are the table, its first row the heading.
func (o *Compared) cells() [][]string {
	t := [][]string{{"workload", "system", "ops/s", "p50 ms", "p99 ms", "p99.9 ms", "max ms", "servers µs/op", "generator µs/op", "written B/op", "resident MiB", "errors", "bound by", "kvd: throughput", "kvd: server CPU", "kvd: p99"}}
	for i := range o.Rows {
		r := &o.Rows[i]
		m := &r.Median
		ratios := []string{"", "", ""}
		if k := o.of(r.Workload, "kvd"); k != nil && r.System != "kvd" {
			ratios = []string{times(k.PerSecond, m.PerSecond), times(m.ServerCPU, k.ServerCPU) + " less", times(m.P99, k.P99) + " less"}
		}
		ms := func(us float64) string { return fmt.Sprintf("%.2f", us/1000) }
		t = append(t, append([]string{r.Workload, r.System, fmt.Sprintf("%.0f", m.PerSecond), ms(m.P50), ms(m.P99), ms(m.P999), ms(m.Max),
			fmt.Sprintf("%.1f", m.ServerCPU), fmt.Sprintf("%.1f", m.GeneratorCPU), fmt.Sprintf("%.0f", m.ServerWritten), fmt.Sprint(m.ServerResident >> 20),
			fmt.Sprint(m.Errors), boundBy(m)}, ratios...))
	}
	return t
}

// heading says what the figures depend on.
func (o *Compared) heading() []string {
	var v []string
	for _, name := range []string{"kvd", "ZooKeeper", "etcd"} {
		if version, ok := o.Versions[name]; ok {
			v = append(v, name+" "+version)
		}
	}
	l := o.Limits
	lines := []string{fmt.Sprintf("%s, %s, %s", o.When.Format(time.DateOnly), o.Machine, strings.Join(v, ", "))}
	if l != (limits{}) {
		lines = append(lines, fmt.Sprintf("limits: append 4 KiB and sync %v at the median (%.0f/s), by a quorum of three processes %v; echo of frames over loopback %.0f/s",
			l.DiskP50.Round(10*time.Microsecond), l.DiskPer, l.QuorumP50.Round(10*time.Microsecond), l.EchoPer))
	}
	for i := range o.Rows {
		r := &o.Rows[i]
		if r.Workload == "set 1x1" && l.QuorumP50 > 0 {
			lines = append(lines, fmt.Sprintf("%s, one client, one set at a time: p50 is %.2f of the quorum's sync", r.System, r.Median.P50/float64(l.QuorumP50.Microseconds())))
		}
		if r.Workload == "get 16x16" && l.EchoPer > 0 {
			lines = append(lines, fmt.Sprintf("%s, gets: %.0f %% of the echo", r.System, 100*r.Median.PerSecond/l.EchoPer))
		}
	}
	return lines
}

func (o *Compared) print(w io.Writer, format string) error {
	switch format {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(o)
	case "markdown":
		var b strings.Builder
		for _, line := range o.heading() {
			b.WriteString(line + "  \n")
		}
		b.WriteString("\n")
		for i, cells := range o.cells() {
			b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
			if i == 0 {
				b.WriteString("|" + strings.Repeat("---|", len(cells)) + "\n")
			}
		}
		_, err := io.WriteString(w, b.String())
		return err
	}
	for _, line := range o.heading() {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', tabwriter.AlignRight)
	for _, cells := range o.cells() {
		_, _ = fmt.Fprintln(tw, strings.Join(cells, "\t")+"\t") // Flush says it
	}
	return tw.Flush()
}
