package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"kvd/bench/load"
	"kvd/integration/cluster"
)

// TestMain lets this test's binary be the helper processes that the command starts of itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		if helper := helpers[os.Args[1]]; helper != nil {
			if err := helper(context.Background(), os.Args[2:]); err != nil {
				_, _ = io.WriteString(os.Stderr, err.Error()+"\n")
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

func compared() *Compared {
	o := &Compared{When: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Machine: "2 cores", Versions: map[string]string{"kvd": "1", "ZooKeeper": "3.8.0"},
		Limits: limits{DiskP50: time.Millisecond, DiskPer: 900, QuorumP50: 2 * time.Millisecond, EchoPer: 100_000}}
	for round := range 2 {
		o.add("set 16x16", "kvd", load.Result{Operations: 1, PerSecond: 50_000 + 20_000*float64(round), P50: 4000, P99: 9000, ServerCPU: 15, GeneratorShare: 0.1})
		o.add("set 16x16", "ZooKeeper", load.Result{Operations: 1, PerSecond: 5_000 + 2_000*float64(round), P50: 40_000, P99: 90_000, ServerCPU: 225, GeneratorShare: 0.5, Errors: 1})
	}
	o.settle()
	return o
}

// Of two rounds the table has the mean, and ratios of it; a row of which the generator took too much says so.
func TestComparedTable(t *testing.T) {
	o := compared()
	for _, format := range []string{"table", "markdown"} {
		var b bytes.Buffer
		if err := o.print(&b, format); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"60000", "6000", "10.0×", "15.0× less", "generator", "kvd 1, ZooKeeper 3.8.0", "1ms"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s has no %q:\n%s", format, want, b.String())
			}
		}
	}
	var b bytes.Buffer
	if err := o.print(&b, "json"); err != nil {
		t.Fatal(err)
	}
	var back Compared
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if len(back.Rows) != 2 || len(back.Rows[0].Rounds) != 2 || back.Rows[1].Median.Errors != 2 || back.Limits != o.Limits {
		t.Errorf("%+v", back)
	}
}

func TestChooseRows(t *testing.T) {
	if rows, err := chooseRows("16x16"); err != nil || len(rows) != 4 {
		t.Errorf("%v %v", rows, err)
	}
	if _, err := chooseRows("set,nothing"); err == nil {
		t.Error("a row that does not exist is accepted")
	}
}

// A chart is well-formed and has all its points, also on a logarithmic axis.
func TestChart(t *testing.T) {
	for _, logX := range []bool{false, true} {
		c := chart{title: "a < b & c", x: "x", y: "y", logX: logX, series: []series{{"one", []point{{1, 2}, {100, 7}, {65536, 3}}}, {"two", []point{{1, 1}}}}}
		var b bytes.Buffer
		if err := c.write(&b); err != nil {
			t.Fatal(err)
		}
		circles := 0
		for d := xml.NewDecoder(&b); ; {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if e, ok := token.(xml.StartElement); ok && e.Name.Local == "circle" {
				circles++
			}
		}
		if circles != 4 {
			t.Errorf("%d points are drawn, want 4", circles)
		}
	}
	if err := (&chart{title: "empty"}).write(io.Discard); err == nil {
		t.Error("an empty chart is drawn")
	}
}

// The limits are measured by processes of their own, and are no nonsense.
func TestLimits(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	l, err := measureLimits(t.Context(), t.TempDir(), 50)
	if err != nil {
		t.Fatal(err)
	}
	if l.DiskP50 <= 0 || l.QuorumP50 <= 0 || l.DiskPer <= 0 || l.EchoPer <= 0 {
		t.Errorf("%+v", l)
	}
}

// TestSystems: a driver process against each system that is installed; the servers' figures are those of their processes.
func TestSystems(t *testing.T) {
	if testing.Short() || os.Getenv("KVD_INTEGRATION") == "later" {
		t.Skip("starts servers")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	starts := map[string]func(dir string) (*system, error){
		"kvd": func(dir string) (*system, error) {
			b, err := cluster.Build(dir)
			if err != nil {
				return nil, err
			}
			return startKvd(ctx, b, dir, 3, 1)
		},
		"zookeeper": func(dir string) (*system, error) {
			if _, err := exec.LookPath("java"); err != nil && os.Getenv("KVD_NEED") == "" {
				t.Skip("java is not installed")
			}
			if _, err := os.Stat(zookeeperJars[0]); err != nil && os.Getenv("KVD_NEED") == "" {
				t.Skip("ZooKeeper is not installed")
			}
			return startZooKeeper(ctx, dir, 3)
		},
	}
	for name, start := range starts {
		t.Run(name, func(t *testing.T) {
			s, err := start(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			defer s.stop()
			r, err := s.measure(ctx, load.Config{Workload: load.Set, Connections: 4, Depth: 4, Size: 128, Warmup: 100 * time.Millisecond, For: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			if r.Operations == 0 || r.Errors != 0 || r.ServerCPU <= 0 || r.ServerResident <= 0 || s.version == "" {
				t.Errorf("version %q, %+v", s.version, r)
			}
		})
	}
}
