package integration

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	goZookeeper    = "github.com/go-zookeeper/zk@v1.0.4"
	goZookeeperSum = "h1:DPzxraQx7OrPyXq2phlGlNSIyWEsAox0RJmjTseMV6I=" // of the module's zip, as in a go.sum
	goZookeeperMin = 45                                                // so many tests the module has, without the excluded ones
)

// goZookeeperExcluded are the two tests that change the membership at run time, which kvd does not do yet.
var goZookeeperExcluded = []string{"TestIntegration_IncrementalReconfig", "TestIntegration_Reconfig"}

// goZookeeperSource copies the module, whose sum is checked by the go command and once more here, to a place where
// its tests can run.
func goZookeeperSource(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module fetch\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", goZookeeper)
	cmd.Dir = dir
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	var module struct{ Dir, Sum, Error string }
	if err := errors.Join(err, json.Unmarshal(out, &module)); err != nil {
		missing(t, goZookeeper, fmt.Errorf("it cannot be fetched: %w\n%s%s", err, out, errs.String()))
	}
	if module.Sum != goZookeeperSum {
		t.Fatalf("%s has the sum %s, want %s", goZookeeper, module.Sum, goZookeeperSum)
	}
	source := filepath.Join(dir, "zk")
	if err := os.CopyFS(source, os.DirFS(module.Dir)); err != nil {
		t.Fatal(err)
	}
	// The module cache is read-only, and so is a copy of it; the temporary directory has to be removable.
	err = filepath.WalkDir(source, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			return os.Chmod(path, 0o755)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return source
}

// goTestResult is what `go test -json` says of one test.
type goTestResult struct {
	name    string
	verdict string // pass, fail, skip; "" if it never ended
	output  strings.Builder
}

// readGoTest follows `go test -json` and returns the results in the order in which the tests began. What belongs to
// no test is in the result with the name "".
func readGoTest(t *testing.T, r io.Reader) []*goTestResult {
	t.Helper()
	all := []*goTestResult{{}}
	byName := map[string]*goTestResult{"": all[0]}
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e struct{ Action, Test, Output string }
			if json.Unmarshal(line, &e) != nil {
				e.Output = string(line) // of the go command itself
			}
			res := byName[e.Test]
			if res == nil {
				res = &goTestResult{name: e.Test}
				byName[e.Test] = res
				all = append(all, res)
			}
			switch e.Action {
			case "pass", "fail", "skip":
				res.verdict = e.Action
			}
			res.output.WriteString(e.Output)
		}
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// The tests of go-zookeeper itself, unmodified, which start, kill and restart servers on ports of their own. Each of
// them becomes a subtest here.
func TestGoZookeeper(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	notNow(t)
	shim, err := filepath.Abs("scripts/go-zookeeper")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"test", "-json", "-count=1", "-p", "1", "-parallel", "1", "-vet=off", "-timeout", "10m",
		"-skip", "^(" + strings.Join(goZookeeperExcluded, "|") + ")$"}
	if run := os.Getenv("KVD_GOZK_RUN"); run != "" {
		args = append(args, "-run", run)
	}
	cmd := foreign(t, t.Context(), "go", append(args, ".")...)
	cmd.Dir = goZookeeperSource(t)
	cmd.Env = append(os.Environ(), "KVD="+binaries(t).Kvd, "ZOOKEEPER_BIN_PATH="+shim, "ZK_VERSION=3.9.5", "GOFLAGS=-mod=mod", "GOWORK=off")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	results := readGoTest(t, out)
	failed := cmd.Wait()
	t.Logf("%d tests of %s in %v", len(results)-1, goZookeeper, time.Since(started).Round(time.Second))

	topLevel := 0
	for _, res := range results[1:] {
		if !strings.Contains(res.name, "/") {
			topLevel++
		}
		t.Run(res.name, func(t *testing.T) {
			if res.verdict != "pass" { // a skipped one would hide something too
				t.Errorf("verdict %q\n%s", res.verdict, tail(res.output.String(), 8000))
			}
		})
		if slices.Contains(goZookeeperExcluded, res.name) {
			t.Errorf("%s was to be left out", res.name)
		}
	}
	if failed != nil || results[0].verdict != "pass" {
		t.Errorf("go test: %v, %q\n%s%s", failed, results[0].verdict, errs.String(), tail(results[0].output.String(), 8000))
	}
	if os.Getenv("KVD_GOZK_RUN") == "" && topLevel != goZookeeperMin {
		t.Errorf("%d tests ran, want %d", topLevel, goZookeeperMin)
	}
}
