package netns

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// missing skips the test for what cannot be made here, or fails it if KVD_NEED is set.
func missing(t *testing.T, what string, err error) {
	t.Helper()
	if os.Getenv("KVD_NEED") != "" {
		t.Fatalf("KVD_NEED is set and %s cannot be made: %v", what, err)
	}
	t.Skipf("%s cannot be made here: %v", what, err)
}

// TestCutIsOneWay sends datagrams between two hosts: what is cut does not arrive, what is not does, and Close and Sweep
// leave nothing.
func TestCutIsOneWay(t *testing.T) {
	n, err := New(2)
	if err != nil {
		missing(t, "namespaces", err)
	}
	closed := false
	defer func() {
		if !closed {
			_ = n.Close()
		}
	}()
	// arrives reports whether a connect from a to b is answered: refused by b, nobody listens there.
	arrives := func(from, to int) bool {
		t.Helper()
		line := append(n.Command(from), "timeout", "1", "bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s/9", n.Address(to)))
		out, err := exec.Command(line[0], line[1:]...).CombinedOutput()
		if err == nil {
			t.Fatalf("somebody listens on port 9: %s", out)
		}
		return strings.Contains(string(out), "refused")
	}
	if !arrives(1, 2) || !arrives(2, 1) {
		t.Fatal("the hosts do not reach each other")
	}
	if err := n.Cut(1, 2); err != nil {
		t.Fatal(err)
	}
	if arrives(1, 2) {
		t.Error("what was cut arrives")
	}
	// The answers of 1 to 2 are lost, too; that only one way is cut shows by what 2 sends.
	before := received(t, n, 1)
	_ = arrives(2, 1)
	if after := received(t, n, 1); after <= before {
		t.Errorf("what is not cut does not arrive: %d packets before, %d after", before, after)
	}
	c, err := net.DialTimeout("tcp", net.JoinHostPort(n.Address(1), "9"), time.Second)
	if err == nil {
		_ = c.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("the caller does not reach the host: %v", err)
	}
	if err := n.Heal(); err != nil {
		t.Fatal(err)
	}
	if !arrives(1, 2) {
		t.Error("the cut outlives Heal")
	}
	if err := Sweep(); err != nil || !arrives(2, 1) {
		t.Errorf("Sweep took the network of a living process away: %v", err)
	}
	closed = true
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob("/run/netns/" + n.name + "*"); left != nil {
		t.Errorf("left: %v", left)
	}
}

// received counts the packets that arrived at a host.
func received(t *testing.T, n *Net, host int) int {
	t.Helper()
	line := append(n.Command(host), "sh", "-c", "grep eth0 /proc/net/dev || cat /proc/self/net/dev")
	out, err := exec.Command(line[0], line[1:]...).CombinedOutput()
	if err != nil {
		t.Fatal(err, string(out))
	}
	for l := range strings.Lines(string(out)) {
		var bytes, packets int
		if name, rest, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(name) == "eth0" {
			if _, err := fmt.Sscan(rest, &bytes, &packets); err != nil {
				t.Fatal(err)
			}
			return packets
		}
	}
	t.Fatalf("no eth0 in %s", out)
	return 0
}

// What a process that was killed made is taken away.
func TestSweep(t *testing.T) {
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("%s%d", Prefix, dead.Process.Pid)
	if err := ip("netns", "add", name+"-1"); err != nil {
		missing(t, "namespaces", err)
	}
	if err := ip("link", "add", name, "type", "bridge"); err != nil {
		_ = remove(name)
		missing(t, "bridges", err)
	}
	if err := Sweep(); err != nil {
		t.Error(err)
	}
	for _, f := range []string{"/run/netns/" + name + "-1", "/sys/class/net/" + name} {
		if _, err := os.Stat(f); err == nil {
			t.Errorf("%s is still there", f)
		}
	}
}
