package integration

import (
	"context"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvd/integration/conformance"
)

var update = flag.Bool("update", false, "write docs/conformance.md from what the client programs report")

// clientPrograms are the columns of docs/conformance.md. Each runs its programs and returns what they reported; run
// by runClient, a failed check has failed a subtest by then.
var clientPrograms = []struct {
	client string // also the subtest
	run    func(t *testing.T) []conformance.Check
}{
	{"kazoo", kazooChecks},
	{"c", cChecks},
	{"Curator", curatorChecks},
	{"Java", javaChecks},
	{"go-zookeeper", gozkChecks},
}

// The programs of other people's clients against three members, through proxies that cut, with the death of the
// leader; their reports are docs/conformance.md.
func TestConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	var names []string
	for _, p := range clientPrograms {
		names = append(names, p.client)
	}
	const file = "../docs/conformance.md"
	table := conformance.NewTable(names...)
	text, err := os.ReadFile(file)
	if err != nil && !*update && !judgeZooKeeper {
		t.Fatal(err)
	}
	if err := table.Parse(string(text)); err != nil && !*update && !judgeZooKeeper {
		t.Errorf("%s: %v", file, err)
	}
	ran := 0
	for _, p := range clientPrograms {
		t.Run(p.client, func(t *testing.T) {
			checks := p.run(t)
			if len(checks) == 0 {
				t.Fatal("no checks were reported")
			}
			table.Set(p.client, checks)
			ran++
		})
	}
	if ran == 0 || judgeZooKeeper {
		return
	}
	if *update {
		if err := os.WriteFile(file, []byte(table.Markdown()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := conformance.Diff(string(text), table.Markdown()); d != "" {
		t.Errorf("%s is not what the run gave; if that is meant, run with -update. %s", file, d)
	}
}

// runClient runs a program (its command line) on the stage, with KVD_SERVERS and KVD_CONTROL in the environment, and
// makes a subtest of every check in its output. What else it prints, and how it exits, counts as one more check if it
// is not 0.
func runClient(t *testing.T, ctx context.Context, s *stage, env []string, name string, args ...string) []conformance.Check {
	t.Helper()
	cmd := foreign(t, ctx, name, args...)
	cmd.Env = append(s.Env(), env...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if testing.Verbose() { // one sees it come
		cmd.Stdout, cmd.Stderr = io.MultiWriter(&stdout, t.Output()), io.MultiWriter(&stderr, t.Output())
	}
	runErr := cmd.Run()
	checks, err := conformance.ParseOutput([]byte(stdout.String()))
	for _, c := range checks {
		t.Run(c.Name, func(t *testing.T) {
			if !c.Pass {
				t.Error(c.Detail)
			}
		})
	}
	program := filepath.Base(strings.Join(append([]string{name}, args...), " "))
	if err != nil {
		t.Errorf("%s: %v", program, err)
	}
	if runErr != nil {
		t.Errorf("%s: %v", program, runErr)
	}
	if t.Failed() {
		t.Logf("%s printed\n%s%s", program, tail(stdout.String(), 20000), tail(stderr.String(), 20000))
	}
	return checks
}

func tail(s string, n int) string {
	if len(s) > n {
		return "..." + s[len(s)-n:]
	}
	return s
}
