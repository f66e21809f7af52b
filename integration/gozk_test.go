package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"kvd/integration/conformance"
)

// gozkChecks runs scripts/gozk, a program for go-zookeeper in a module of its own, whose go.sum has the client's sum.
// KVD_GOZK_CHECKS, a regular expression, chooses checks by name.
func gozkChecks(t *testing.T) []conformance.Check {
	notNow(t)
	s, ctx := startStage(t, javaConfig...)
	const module = "scripts/gozk"
	env := append(os.Environ(), "GOFLAGS=-mod=readonly -buildvcs=false", "GOWORK=off")
	download := foreign(t, ctx, "go", "mod", "download")
	download.Dir, download.Env = module, env
	if out, err := download.CombinedOutput(); err != nil {
		missing(t, goZookeeper, fmt.Errorf("it cannot be fetched: %w\n%s", err, out))
	}
	program := filepath.Join(t.TempDir(), "gozk")
	build := foreign(t, ctx, "go", "build", "-o", program, ".")
	build.Dir, build.Env = module, env
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", module, err, out)
	}
	checks := runClient(t, ctx, s, nil, program, os.Getenv("KVD_GOZK_CHECKS"))
	nothingLeft(t, ctx, s)
	return checks
}
