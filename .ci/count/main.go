// Command count reads the `go test -json` streams of a CI run and prints what failed, or the totals.
//
//	count -failures FILE        the output of every failed test, and of packages that failed without one
//	count FILE...               the closing line: N passed, N failed, N skipped
//
// A package that failed although none of its tests did (it did not build, or its process died) counts as
// one failure. A file that is missing or cut short counts for what it holds: the line is printed also
// when the run was killed.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

type event struct {
	Action      string
	Package     string
	ImportPath  string
	Test        string
	Output      string
	FailedBuild string
}

type tally struct {
	passed, failed, skipped int
	failures                map[string][]string // "package test" -> output
	output                  map[string][]string
	failedTests             map[string]bool // packages with at least one failed test
	failedPackages          []string
}

func newTally() *tally {
	return &tally{failures: map[string][]string{}, output: map[string][]string{}, failedTests: map[string]bool{}}
}

func (t *tally) read(name string) {
	f, err := os.Open(name)
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	r := bufio.NewReaderSize(f, 1<<20)
	for {
		line, err := r.ReadString('\n')
		var e event
		if json.Unmarshal([]byte(line), &e) == nil {
			t.add(e)
		}
		if err != nil {
			break
		}
	}
	for _, p := range t.failedPackages {
		if !t.failedTests[p] {
			t.failed++
			t.failures[p] = t.output[p]
		}
	}
	t.failedPackages = nil
	clear(t.output)
	clear(t.failedTests)
}

func (t *tally) add(e event) {
	if e.Action == "build-output" {
		p, _, _ := strings.Cut(e.ImportPath, " ")
		t.output[p] = append(t.output[p], e.Output)
		return
	}
	key := e.Package
	if e.Test != "" {
		key += " " + e.Test
	}
	switch e.Action {
	case "output":
		t.output[key] = append(t.output[key], e.Output)
	case "pass":
		if e.Test != "" {
			t.passed++
		}
		delete(t.output, key)
	case "skip":
		if e.Test != "" {
			t.skipped++
		}
		delete(t.output, key)
	case "fail":
		if e.Test == "" {
			t.failedPackages = append(t.failedPackages, e.Package)
			return
		}
		t.failed++
		t.failedTests[e.Package] = true
		t.failures[key] = t.output[key]
	}
}

func main() {
	args := os.Args[1:]
	t := newTally()
	if len(args) > 0 && args[0] == "-failures" {
		for _, name := range args[1:] {
			t.read(name)
		}
		keys := make([]string, 0, len(t.failures))
		for k := range t.failures {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			out := strings.Join(t.failures[k], "")
			const most = 20000
			if len(out) > most {
				out = out[:most/2] + "\n...\n" + out[len(out)-most/2:]
			}
			fmt.Printf("--- %s\n%s\n", k, out)
		}
		return
	}
	for _, name := range args {
		t.read(name)
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", t.passed, t.failed, t.skipped)
}
