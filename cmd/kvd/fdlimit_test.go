package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"kvd/kv"
	"kvd/kv/client"
)

// A member with few file descriptors survives clients that only connect: the log keeps what it needs, and everything
// acknowledged is there. The soft limit is raised to the hard one by itself.
func TestIdleConnectionsDoNotKillTheLog(t *testing.T) {
	daemon := kvdCommand("serve", "--data", t.TempDir(), "--listen", "127.0.0.1:0")
	shell := exec.Command("sh", "-c", `ulimit -Sn 60 && ulimit -Hn 120 && exec "$0" "$@"`)
	shell.Args = append(shell.Args, daemon.Args...)
	shell.Env = daemon.Env
	d := start(t, shell)
	addr := d.ready()
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", d.cmd.Process.Pid))
	if err == nil && strings.Contains(strings.Join(strings.Fields(string(limits)), " "), "Max open files 60 ") {
		t.Errorf("the soft limit was not raised:\n%s", limits)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c, err := client.Dial(ctx, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	for range 300 {
		nc, err := net.DialTimeout("tcp", addr, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = nc.Close() }()
	}
	if d.stderr.find("client refused: the other file descriptors are kept") == nil {
		t.Fatal("nobody was refused")
	}
	value := bytes.Repeat([]byte("0123456789abcdef"), 900<<10/16)
	if _, _, err := c.Create(ctx, "/big", value, kv.FlagPersistent); err != nil {
		t.Fatal(err)
	}
	for i := range 80 { // several tables of the log
		copy(value, fmt.Sprint(i))
		if _, err := c.Set(ctx, "/big", value, -1); err != nil {
			t.Fatalf("write %d: %v", i, err)
		}
	}
	if got, _, err := c.Get(ctx, "/big"); err != nil || !bytes.Equal(got, value) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
