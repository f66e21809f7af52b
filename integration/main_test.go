package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"kvd/integration/cluster"
	"kvd/kv"
	"kvd/kv/client"
	"kvd/kv/wire"
)

// The limits only end what hangs: on a loaded machine everything may take many times as long as usual.
const (
	limit        = 5 * time.Minute // of a whole test
	commandLimit = 4 * time.Minute // of one run of a foreign program
	requestLimit = "60s"           // of one request of kv
)

var (
	buildDir string
	build    = sync.OnceValues(func() (cluster.Binaries, error) { return cluster.Build(buildDir) })
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "kvd-integration-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	buildDir = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func binaries(t *testing.T) cluster.Binaries {
	t.Helper()
	b, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// startCluster runs members with ordinary configuration files until the test ends. When the test has failed,
// their logs are printed.
func startCluster(t *testing.T, members int, lines ...string) (*cluster.Cluster, context.Context) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts processes")
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	c, err := cluster.New(cluster.Options{Members: members, Dir: t.TempDir(), Kvd: binaries(t).Kvd, ConfigLines: lines})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Stop()
		if t.Failed() {
			t.Log(c.Logs(6000))
		}
	})
	if err := c.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return c, ctx
}

func dial(t *testing.T, ctx context.Context, servers string, opts ...client.Option) *client.Client {
	t.Helper()
	c, err := client.Dial(ctx, servers, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// eventually asks until the condition holds; the last complaint is the failure.
func eventually(t *testing.T, ctx context.Context, what string, condition func() error) {
	t.Helper()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stats asks a member for srvr.
func stats(ctx context.Context, m *cluster.Member) (wire.ServerStats, error) {
	text, err := m.FourLetterWord(ctx, "srvr")
	if err != nil {
		return wire.ServerStats{}, err
	}
	return wire.ParseSrvr([]byte(text))
}

// sameTree waits until all members serve, show the same transaction, and have the same digest there.
func sameTree(t *testing.T, ctx context.Context, c *cluster.Cluster) {
	t.Helper()
	eventually(t, ctx, "members agree", func() error {
		var first wire.ServerStats
		for i, m := range c.Members {
			s, err := stats(ctx, m)
			switch {
			case err != nil:
				return err
			case !s.Serving:
				return fmt.Errorf("member %d does not serve: %s", m.ID, s.Health)
			case s.Digest == 0 || s.DigestZxid != s.Zxid:
				return fmt.Errorf("member %d shows the digest %x of %v at %v", m.ID, s.Digest, s.DigestZxid, s.Zxid)
			case i == 0:
				first = s
			case s.Zxid != first.Zxid:
				return fmt.Errorf("member %d is at %v, member %d at %v", m.ID, s.Zxid, c.Members[0].ID, first.Zxid)
			case s.Digest != first.Digest:
				t.Fatalf("members %d and %d differ at %v: digests %x and %x", m.ID, c.Members[0].ID, s.Zxid, s.Digest, first.Digest)
			}
		}
		return nil
	})
}

// writeMany overwrites a node n times, pipelined, and waits for every answer.
func writeMany(t *testing.T, c *client.Client, path string, n, size int) kv.Zxid {
	t.Helper()
	const window = 512
	free := make(chan *client.Call, window)
	var mu sync.Mutex
	var failed error
	var last kv.Zxid
	data := make([]byte, size)
	for range window {
		call := &client.Call{Op: wire.OpSetData, Path: path, Data: data, Version: wire.AnyVersion}
		call.Done = func(call *client.Call) {
			mu.Lock()
			if call.Err != nil {
				failed = call.Err
			}
			last = max(last, call.Stat.Mzxid)
			mu.Unlock()
			free <- call
		}
		free <- call
	}
	for range n {
		if err := c.Do(<-free); err != nil {
			t.Fatal(err)
		}
	}
	for range window {
		<-free
	}
	if failed != nil {
		t.Fatal(failed)
	}
	return last
}

// notNow skips what is long in a run of everything that is followed by a run of these tests alone, as in .ci/run.
func notNow(t *testing.T) {
	t.Helper()
	if os.Getenv("KVD_INTEGRATION") == "later" {
		t.Skip("KVD_INTEGRATION=later: another run does this")
	}
}

// need finds a program; without it the test is skipped, or fails if KVD_NEED is set.
func need(t *testing.T, program string, works func() error) string {
	t.Helper()
	notNow(t)
	path, err := exec.LookPath(program)
	if err == nil && works != nil {
		err = works()
	}
	if err != nil {
		missing(t, program, err)
	}
	return path
}

// missing skips the test for what is not there, or fails it if KVD_NEED is set.
func missing(t *testing.T, what string, err error) {
	t.Helper()
	if os.Getenv("KVD_NEED") != "" {
		t.Fatalf("KVD_NEED is set and %s is missing: %v", what, err)
	}
	t.Skipf("%s is missing: %v", what, err)
}

// runKv runs the built kv on the servers.
func runKv(ctx context.Context, t *testing.T, servers string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(ctx, binaries(t).Kv, args...)
	cmd.Env = append(os.Environ(), "KV_SERVER="+servers, "KV_TIMEOUT="+requestLimit)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// foreign prepares a program in a process group of its own, so that what it starts ends with it.
func foreign(t *testing.T, ctx context.Context, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	return cmd
}
