package integration

import (
	"os"
	"path/filepath"
	"testing"

	"kvd/integration/conformance"
)

// cChecks runs scripts/c, a program for the C client, compiled here.
func cChecks(t *testing.T) []conformance.Check {
	gcc := need(t, "gcc", func() error {
		_, err := os.Stat("/usr/include/zookeeper/zookeeper.h")
		return err
	})
	s, ctx := startStage(t, ordinaryConfig...)
	program := filepath.Join(t.TempDir(), "checks")
	compile(t, ctx, "", gcc, "-Wall", "-Wextra", "-Werror", "-DTHREADED", "-o", program,
		"scripts/c/checks.c", "scripts/c/stage.c", "-lzookeeper_mt")
	checks := runClient(t, ctx, s, nil, program)
	nothingLeft(t, ctx, s)
	return checks
}
