package main

import (
	"strings"
	"syscall"
	"testing"
)

// A data directory that another member owns is refused by name with exit 2, as a configuration error is.
func TestServeRefusesAnotherMembersDirectory(t *testing.T) {
	dir := t.TempDir()
	args := func(id string) []string {
		return []string{"serve", "--id", id, "--data", dir, "--listen", "127.0.0.1:0"}
	}
	d := start(t, kvdCommand(args("1")...))
	d.ready()
	d.signal(syscall.SIGTERM)
	if code := d.exit(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	code, stdout, stderr := run(t, args("2")...)
	if code != exitRefused || stdout != "" || !strings.Contains(stderr, "data directory refused") || !strings.Contains(stderr, "belongs to member 1 ") ||
		!strings.Contains(stderr, "configured as 2") {
		t.Errorf("exit code %d, stdout %q, stderr %s", code, stdout, stderr)
	}
	d = start(t, kvdCommand(args("1")...)) // and is its owner's still
	d.ready()
}
