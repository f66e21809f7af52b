package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
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
	"minSessionTimeout=1000",
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

// terminal is the output of an interactive program, to be waited on. It is an io.Writer.
type terminal struct {
	mu   sync.Mutex
	text []byte
	at   int // what expect has seen
	more chan struct{}
}

func newTerminal() *terminal { return &terminal{more: make(chan struct{}, 1)} }

func (o *terminal) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, b...)
	select {
	case o.more <- struct{}{}:
	default:
	}
	return len(b), nil
}

// expect waits until want appears behind what was expected before.
func (o *terminal) expect(t *testing.T, ctx context.Context, want string) {
	t.Helper()
	for {
		o.mu.Lock()
		i := bytes.Index(o.text[o.at:], []byte(want))
		if i >= 0 {
			o.at += i + len(want)
		}
		text := string(o.text)
		o.mu.Unlock()
		if i >= 0 {
			return
		}
		select {
		case <-o.more:
		case <-ctx.Done():
			t.Fatalf("%q does not follow in:\n%s", want, text)
		}
	}
}

// zkCli.sh of Debian: one interactive session, then single commands and their exit codes.
//
// Each command is given when the one before has shown its effect: watch events are printed by a thread of their
// own, so the order of the output is that of the commands only if one waits.
func TestZkCli(t *testing.T) {
	zkCli := need(t, "/usr/share/zookeeper/bin/zkCli.sh", nil)
	c, ctx := startCluster(t, 3, ordinaryConfig...)
	cmd := foreign(t, ctx, zkCli, "-server", c.Servers(), "-waitforconnection")
	cmd.Dir = t.TempDir() // it may leave a history behind
	cmd.Env = append(os.Environ(), "HOME="+cmd.Dir, noReverseLookups)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	screen := newTerminal()
	cmd.Stdout, cmd.Stderr = screen, screen
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		command string
		want    []string
	}{
		{"create /zc one", []string{"Created /zc\n"}},
		{"create -e /zc/ephemeral mine", []string{"Created /zc/ephemeral\n"}},
		{"create -s /zc/seq- x", []string{"Created /zc/seq-0000000001\n"}},
		{"ls /zc", []string{"[ephemeral, seq-0000000001]\n"}},
		{"get /zc", []string{"one\n"}},
		{"get -w /zc", []string{"one\n"}},
		{"set /zc two", []string{"WatchedEvent state:SyncConnected type:NodeDataChanged path:/zc"}},
		{"get -s /zc", []string{"two\n", "dataVersion = 1\n", "numChildren = 2\n"}},
		{"set -v 7 /zc three", []string{"version No is not valid : /zc"}},
		{"delete /zc", []string{"Node not empty: /zc"}},
		{"delete /zc/seq-0000000001", nil},
		{"get /zc/none", []string{"Node does not exist: /zc/none"}},
		{"stat /zc/ephemeral", []string{"numChildren = 0\n"}},
		{"sync /zc", []string{"Sync is OK"}},
	} {
		if _, err := io.WriteString(stdin, step.command+"\n"); err != nil {
			t.Fatalf("%s: %v", step.command, err)
		}
		for _, want := range step.want {
			screen.expect(t, ctx, want)
		}
	}
	if _, err := io.WriteString(stdin, "quit\n"); err != nil {
		t.Fatal(err)
	}
	// In interactive mode the exit code is that of the last command.
	if err := cmd.Wait(); err != nil {
		t.Errorf("zkCli.sh: %v\n%s", err, screen.text)
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

// The walk of the README: create, get, watch, a change that the watch prints, kill -9 of the process that status calls
// leader, get.
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
	if got := kvOK("create", "/config", "v1"); got != "/config\n" {
		t.Fatalf("%q", got)
	}
	if got := kvOK("get", "/config"); got != "v1" {
		t.Fatalf("%q", got)
	}
	watching := exec.CommandContext(ctx, binaries(t).Kv, "watch", "/config", "--count", "1", "--server", c.Servers(), "--timeout", requestLimit)
	errs, err := watching.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	var seen strings.Builder
	watching.Stdout = &seen
	if err := watching.Start(); err != nil {
		t.Fatal(err)
	}
	const watched = "watching /config (version 0)\n"
	first := make([]byte, len(watched))
	if _, err := io.ReadFull(errs, first); err != nil || string(first) != watched {
		t.Fatalf("%q %v", first, err)
	}
	kvOK("set", "/config", "v2")
	var zxid uint64
	err = watching.Wait()
	if _, scan := fmt.Sscanf(seen.String(), "NodeDataChanged /config 0x%x\n", &zxid); err != nil || scan != nil || zxid == 0 {
		t.Errorf("watch: %v, %v, %q", err, scan, seen.String())
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
	ask := func() error {
		out, errs, code := runKv(ctx, t, c.Servers(), "status", "-o", "json")
		if code != 0 {
			return fmt.Errorf("status: exit %d: %s", code, errs)
		}
		status.Members = nil
		return json.Unmarshal([]byte(out), &status)
	}
	leader := 0
	eventually(t, ctx, "three healthy members", func() error {
		if err := ask(); err != nil {
			return err
		}
		leader = 0
		for i, m := range status.Members {
			if m.Pid != c.Members[i].Pid() || !m.Serving || m.Health != "ok" {
				return fmt.Errorf("%+v, pid %d", m, c.Members[i].Pid())
			}
			if m.Role == "leader" {
				leader = m.Member
			}
		}
		if len(status.Members) != 3 || leader == 0 {
			return fmt.Errorf("leader %d in %+v", leader, status)
		}
		return nil
	})
	if err := syscall.Kill(status.Members[leader-1].Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got := kvOK("get", "/config"); got != "v2" {
		t.Fatalf("after the leader's death: %q", got)
	}
	// A follower may take the write and only then notice that the leader is gone: "outcome unknown".
	eventually(t, ctx, "a write after the leader's death", func() error {
		_, errs, code := runKv(ctx, t, c.Servers(), "set", "/config", "v3")
		if code != 0 && code != 7 {
			t.Fatalf("exit %d: %s", code, errs)
		}
		if code == 7 {
			return errors.New(errs)
		}
		return nil
	})
	if got := kvOK("get", "/config"); got != "v3" {
		t.Fatalf("%q", got)
	}
	eventually(t, ctx, "all but the killed member are healthy", func() error {
		if err := ask(); err != nil {
			return err
		}
		for _, m := range status.Members {
			if (m.Member == leader) != (m.Health != "ok") {
				return fmt.Errorf("%+v", m)
			}
		}
		return nil
	})
	if err := c.Members[leader-1].Start(); err != nil {
		t.Fatal(err)
	}
	sameTree(t, ctx, c)
}
