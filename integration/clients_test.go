package integration

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"kvd/kv"
)

// ordinaryConfig are lines that people have in the zoo.cfg of an ensemble.
var ordinaryConfig = []string{
	"admin.enableServer=false",
	"extendedTypesEnabled=true",
	"maxClientCnxns=0",
	"4lw.commands.whitelist=*",
	"DigestAuthenticationProvider.superDigest=super:xQJmxLMiHGwaqBvst5y6rkB6HQs=",
}

// kazoo of Debian, with the system's python.
func TestKazoo(t *testing.T) {
	python := need(t, "/usr/bin/python3", func() error {
		return exec.Command("/usr/bin/python3", "-c", "import kazoo").Run()
	})
	c, ctx := startCluster(t, 3, ordinaryConfig...)
	out, err := foreign(t, ctx, python, "scripts/kazoo_basics.py", c.Servers()).CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !strings.HasSuffix(string(out), "ok close\n") {
		t.Fatalf("kazoo_basics.py: %v", err)
	}
}

// noReverseLookups: the Java client asks for the name of every server's address, for SASL, which takes ten seconds
// where nobody answers for 127.0.x.y.
const noReverseLookups = "CLIENT_JVMFLAGS=-Dzookeeper.sasl.client=false -Dzookeeper.sasl.client.canonicalize.hostname=false"

// zkCli.sh of Debian: one interactive session, then single commands and their exit codes.
func TestZkCli(t *testing.T) {
	zkCli := need(t, "/usr/share/zookeeper/bin/zkCli.sh", nil)
	c, ctx := startCluster(t, 3, ordinaryConfig...)
	cmd := foreign(t, ctx, zkCli, "-server", c.Servers(), "-waitforconnection")
	cmd.Dir = t.TempDir() // it may leave a history behind
	cmd.Env = append(os.Environ(), "HOME="+cmd.Dir, noReverseLookups)
	cmd.Stdin = strings.NewReader(strings.Join([]string{
		"create /zc one",
		"create -e /zc/ephemeral mine",
		"create -s /zc/seq- x",
		"ls /zc",
		"get /zc",
		"get -w /zc",
		"set /zc two",
		"get -s /zc",
		"set -v 7 /zc three",
		"delete /zc",
		"delete /zc/seq-0000000001",
		"get /zc/none",
		"stat /zc/ephemeral",
		"sync /zc",
		"quit",
		"",
	}, "\n"))
	out, err := cmd.CombinedOutput()
	text := string(out)
	// In interactive mode the exit code is that of the last command.
	if err != nil {
		t.Errorf("zkCli.sh: %v", err)
	}
	at := 0
	for _, want := range []string{
		"Created /zc\n",
		"Created /zc/ephemeral\n",
		"Created /zc/seq-0000000001\n",
		"[ephemeral, seq-0000000001]\n",
		"one\n",
		"one\n",
		"WatchedEvent state:SyncConnected type:NodeDataChanged path:/zc",
		"two\n",
		"dataVersion = 1\n",
		"numChildren = 2\n",
		"version No is not valid : /zc",
		"Node not empty: /zc",
		"Node does not exist: /zc/none",
		"numChildren = 0\n",
		"Sync is OK",
	} {
		i := strings.Index(text[at:], want)
		if i < 0 {
			t.Fatalf("%q does not follow in:\n%s", want, text)
		}
		at += i + len(want)
	}

	k := dial(t, ctx, c.Servers())
	if err := k.Sync(ctx, "/"); err != nil {
		t.Fatal(err)
	}
	if names, _, err := k.Children(ctx, "/zc"); err != nil || len(names) != 0 {
		t.Errorf("after the session's end: %v %v", names, err)
	}
	for _, one := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"get", "/zc"}, 0, "two"},
		{[]string{"create", "/zc", "again"}, 1, "Node already exists: /zc"},
		{[]string{"deleteall", "/zc"}, 0, ""},
	} {
		cmd := foreign(t, ctx, zkCli, append([]string{"-server", c.Members[1].Client, "-waitforconnection"}, one.args...)...)
		cmd.Env = append(os.Environ(), noReverseLookups)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		code := 0
		if errors.As(err, &exit) {
			code = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if code != one.code || !strings.Contains(string(out), one.want) {
			t.Errorf("zkCli.sh %q: exit %d, want %d and %q:\n%s", one.args, code, one.code, one.want, out)
		}
	}
	if err := k.Sync(ctx, "/"); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Exists(ctx, "/zc"); !errors.Is(err, kv.ErrNoNode) {
		t.Errorf("after deleteall: %v", err)
	}
}

// The five commands of the README: create, get, watch, kill -9 of the process that status calls leader, get.
func TestReadmeWalk(t *testing.T) {
	c, ctx := startCluster(t, 3)
	kvOK := func(args ...string) string {
		t.Helper()
		out, errs, code := runKv(ctx, t, c.Servers(), args...)
		if code != 0 {
			t.Fatalf("kv %q: exit %d: %s", args, code, errs)
		}
		return out
	}
	kvOK("set", "/app/config", "hello")
	if got := kvOK("get", "/app/config"); got != "hello" {
		t.Fatalf("%q", got)
	}
	watching := exec.CommandContext(ctx, binaries(t).Kv, "watch", "/app/config", "--count", "1", "--server", c.Servers())
	errs, err := watching.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	var seen strings.Builder
	watching.Stdout = &seen
	if err := watching.Start(); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, len("watching"))
	if _, err := errs.Read(first); err != nil || string(first) != "watching" {
		t.Fatalf("%q %v", first, err)
	}

	var status struct {
		Members []struct {
			Member  int
			Role    string
			Pid     int
			Serving bool
			Health  string
		}
	}
	ask := func() {
		t.Helper()
		status.Members = nil
		if err := json.Unmarshal([]byte(kvOK("status", "-o", "json")), &status); err != nil {
			t.Fatal(err)
		}
	}
	ask()
	if len(status.Members) != 3 {
		t.Fatalf("%+v", status)
	}
	leader := 0
	for i, m := range status.Members {
		if m.Pid != c.Members[i].Pid() || !m.Serving || m.Health != "ok" {
			t.Errorf("%+v, pid %d", m, c.Members[i].Pid())
		}
		if m.Role == "leader" {
			leader = m.Member
			if err := syscall.Kill(m.Pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	if leader == 0 {
		t.Fatalf("no leader in %+v", status)
	}
	if got := kvOK("get", "/app/config"); got != "hello" {
		t.Fatalf("after the leader's death: %q", got)
	}
	kvOK("set", "/app/config", "world")
	if got := kvOK("get", "/app/config"); got != "world" {
		t.Fatalf("%q", got)
	}
	if err := watching.Wait(); err != nil || !strings.HasPrefix(seen.String(), "NodeDataChanged /app/config 0x2") {
		t.Errorf("watch: %v, %q", err, seen.String())
	}
	ask()
	for _, m := range status.Members {
		if (m.Member == leader) != (m.Health != "ok") {
			t.Errorf("%+v", m)
		}
	}
	if err := c.Members[leader-1].Start(); err != nil {
		t.Fatal(err)
	}
	sameTree(t, ctx, c)
}
