package integration

import (
	"os/exec"
	"path/filepath"
	"testing"

	"kvd/integration/conformance"
)

// kazooChecks runs scripts/kazoo with Debian's kazoo and the system's python: the client's own calls, the recipes with
// several clients that contend, and what sessions live through.
func kazooChecks(t *testing.T) []conformance.Check {
	python := need(t, "/usr/bin/python3", func() error {
		return exec.Command("/usr/bin/python3", "-c", "import kazoo").Run()
	})
	s, ctx := startStage(t, ordinaryConfig...)
	var all []conformance.Check
	for _, script := range []string{"basics.py", "locks.py", "recipes.py", "sessions.py"} {
		all = append(all, runClient(t, ctx, s, []string{"PYTHONDONTWRITEBYTECODE=1"}, python, filepath.Join("scripts", "kazoo", script))...)
	}
	nothingLeft(t, ctx, s)
	return all
}
