package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"kvd/integration/cluster"
	"kvd/kv"
	"kvd/kv/client"
	"kvd/kv/wire"
)

// A list of children that is far larger than what a frame of a request may be.
const (
	manyChildren   = 200_000
	childNameBytes = 100
	// memorySlack is what a member may hold more, a minute after such replies.
	memorySlack = 50 << 20
)

// childrenClients are the programs of scripts/children, each built once: SERVER PATH are their arguments.
func childrenClients(t *testing.T, ctx context.Context) map[string][]string {
	t.Helper()
	dir := t.TempDir()
	clients := map[string][]string{}

	python := need(t, "/usr/bin/python3", func() error { return exec.Command("/usr/bin/python3", "-c", "import kazoo").Run() })
	clients["kazoo"] = []string{python, "scripts/children/children.py"}

	gcc := need(t, "gcc", func() error {
		_, err := os.Stat("/usr/include/zookeeper/zookeeper.h")
		return err
	})
	built := filepath.Join(dir, "children")
	compile(t, ctx, "", gcc, "-Wall", "-DTHREADED", "-o", built, "scripts/children/children.c", "-lzookeeper_mt")
	clients["c"] = []string{built}

	javac := need(t, "javac", func() error {
		_, err := os.Stat("/usr/share/java/zookeeper.jar")
		return err
	})
	var jars []string
	for _, jar := range []string{"zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-nop"} {
		jars = append(jars, "/usr/share/java/"+jar+".jar")
	}
	classpath := strings.Join(append(jars, dir), ":")
	compile(t, ctx, "", javac, "-cp", classpath, "-d", dir, "scripts/children/Children.java")
	clients["java"] = []string{"java", "-Djute.maxbuffer=67108864", "-Dzookeeper.sasl.client=false", "-cp", classpath, "Children"}

	module := filepath.Join(dir, "gozk")
	source, err := os.ReadFile("scripts/children/children.go.txt")
	if err == nil {
		err = os.Mkdir(module, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(module, "main.go"), source, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	compile(t, ctx, module, "go", "mod", "init", "children")
	get := foreign(t, ctx, "go", "get", goZookeeper)
	get.Dir = module
	if out, err := get.CombinedOutput(); err != nil {
		missing(t, goZookeeper, fmt.Errorf("it cannot be fetched: %w\n%s", err, out))
	}
	compile(t, ctx, module, "go", "build", "-o", "children", ".")
	clients["go-zookeeper"] = []string{filepath.Join(module, "children")}
	return clients
}

// compile runs one step of building a client.
func compile(t *testing.T, ctx context.Context, dir, name string, args ...string) {
	t.Helper()
	cmd := foreign(t, ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// fill makes n children below path, in multis that fit a frame.
func fill(t *testing.T, ctx context.Context, c *client.Client, path string, n int, name func(int) string, flags int32) {
	t.Helper()
	if _, _, err := c.Create(ctx, path, nil, kv.FlagPersistent, kv.OpenACL()...); err != nil && !errors.Is(err, kv.ErrNodeExists) {
		t.Fatal(err)
	}
	const batch = 2000
	for from := 0; from < n; from += batch {
		ops := make([]client.Op, 0, batch)
		for i := from; i < min(n, from+batch); i++ {
			ops = append(ops, client.CreateOp(path+"/"+name(i), nil, flags, kv.OpenACL()...))
		}
		if _, err := c.Multi(ctx, ops...); err != nil {
			t.Fatalf("children %d and on: %v", from, err)
		}
	}
}

// paddedName is a child's name of an exact length.
func paddedName(bytes int) func(int) string {
	return func(i int) string { return fmt.Sprintf("%0*d", bytes, i) }
}

// TestChildrenBeyondTheFrame reads one node's 200,000 children with four clients. No other session notices, and the
// member's memory comes back.
func TestChildrenBeyondTheFrame(t *testing.T) {
	c, ctx := startCluster(t, 3, "maxClientCnxns=0", "4lw.commands.whitelist=*")
	clients := childrenClients(t, ctx)
	member := c.Members[0]
	bystander := bystand(t, ctx, member)
	fill(t, ctx, dial(t, ctx, c.Servers()), "/many", manyChildren, paddedName(childNameBytes), kv.FlagPersistent)
	eventually(t, ctx, "the member has all children", func() error {
		stat, err := bystander.Exists(ctx, "/many")
		if err == nil && stat.NumChildren != manyChildren {
			err = fmt.Errorf("%d children", stat.NumChildren)
		}
		return err
	})
	before := settledMemory(t, ctx, member)
	for name, command := range clients {
		out := runChildren(t, ctx, command, member)
		if want := fmt.Sprintf("names %d\nconnects 1\n", manyChildren); out != want {
			t.Errorf("%s printed %q, want %q", name, out, want)
		}
	}
	memoryReturns(t, ctx, member, before)
	stillThere(t, ctx, bystander)
}

// TestReplyBound reads the same with the bound that protects clients of a small buffer: each gets -5, once, and
// keeps its connection.
func TestReplyBound(t *testing.T) {
	c, ctx := startCluster(t, 3, "maxClientCnxns=0", "4lw.commands.whitelist=*", "kvd.maxReplyBytes=1048575")
	clients := childrenClients(t, ctx)
	member := c.Members[0]
	bystander := bystand(t, ctx, member)
	fill(t, ctx, dial(t, ctx, c.Servers()), "/many", manyChildren, paddedName(childNameBytes), kv.FlagPersistent)
	if err := bystander.Sync(ctx, "/"); err != nil {
		t.Fatal(err)
	}
	before := settledMemory(t, ctx, member)
	for name, command := range clients {
		if out := runChildren(t, ctx, command, member); out != "code -5\nconnects 1\n" {
			t.Errorf("%s printed %q, want code -5 on its first connection", name, out)
		}
	}
	if _, _, watch, err := bystander.ChildrenWatch(ctx, "/many"); watch != nil || !errors.Is(err, kv.ErrMarshalling) {
		t.Errorf("a list beyond the bound with a watch: %v", err)
	}
	eventually(t, ctx, "no watch is set by a refused read", func() error {
		return mntrIs(ctx, member, "zk_watch_count", "0")
	})
	memoryReturns(t, ctx, member, before)
	stillThere(t, ctx, bystander)
}

func runChildren(t *testing.T, ctx context.Context, command []string, m *cluster.Member) string {
	t.Helper()
	cmd := foreign(t, ctx, command[0], append(command[1:], m.Client, "/many")...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%s: %v\n%s", command, err, errs.String())
	}
	return string(out)
}

// bystand opens the session of somebody who only wants not to be disturbed.
func bystand(t *testing.T, ctx context.Context, m *cluster.Member) *client.Client {
	t.Helper()
	c := dial(t, ctx, m.Client, client.WithSessionTimeout(4*time.Second))
	if _, _, err := c.Create(ctx, "/bystander", nil, kv.FlagEphemeral, kv.OpenACL()...); err != nil {
		t.Fatal(err)
	}
	return c
}

func stillThere(t *testing.T, ctx context.Context, c *client.Client) {
	t.Helper()
	stat, err := c.Exists(ctx, "/bystander")
	if err != nil || stat.EphemeralOwner != c.Session() {
		t.Errorf("the other session's node: owner %v, %v; its session is %v", stat.EphemeralOwner, err, c.Session())
	}
}

// settledMemory is the resident memory of a member once it has stopped falling after a load.
func settledMemory(t *testing.T, ctx context.Context, m *cluster.Member) int64 {
	t.Helper()
	low, unchanged := int64(1)<<62, 0
	for unchanged < 5 {
		mem, err := cluster.MemoryOf(m.Pid())
		if err != nil {
			t.Fatal(err)
		}
		if unchanged++; mem.Resident < low-1<<20 {
			low, unchanged = mem.Resident, 0
		}
		select {
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		case <-time.After(time.Second):
		}
	}
	return low
}

// memoryReturns waits until a member's resident memory is near what it was.
func memoryReturns(t *testing.T, ctx context.Context, m *cluster.Member, before int64) {
	t.Helper()
	started := time.Now()
	eventually(t, ctx, "memory after large replies", func() error {
		mem, err := cluster.MemoryOf(m.Pid())
		if err == nil && mem.Resident > before+memorySlack {
			err = fmt.Errorf("%d MiB resident, %d MiB before", mem.Resident>>20, before>>20)
		}
		return err
	})
	mem, _ := cluster.MemoryOf(m.Pid())
	t.Logf("resident %d MiB before, %d MiB %v after, peak %d MiB", before>>20, mem.Resident>>20, time.Since(started).Round(time.Second), mem.Peak>>20)
}

// mntrIs says whether a member's mntr shows a value.
func mntrIs(ctx context.Context, m *cluster.Member, key, want string) error {
	v, err := mntrText(ctx, m, key)
	if err == nil && v != want {
		err = fmt.Errorf("member %d: %s is %s, want %s", m.ID, key, v, want)
	}
	return err
}

// mntrValue is a number in a member's mntr.
func mntrValue(ctx context.Context, m *cluster.Member, key string) (int, error) {
	v, err := mntrText(ctx, m, key)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(v)
}

func mntrText(ctx context.Context, m *cluster.Member, key string) (string, error) {
	text, err := m.FourLetterWord(ctx, "mntr")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t"); ok && k == key {
			return v, nil
		}
	}
	return "", fmt.Errorf("member %d: mntr has no %s", m.ID, key)
}

// TestLargeTransactions: what is at the edge of what can be logged is applied whole on every member or refused with
// a named code before it is logged; then everything survives the death of all members at once.
func TestLargeTransactions(t *testing.T) {
	notNow(t)
	c, ctx := startCluster(t, 3, "maxClientCnxns=0")
	writer := dial(t, ctx, c.Servers())

	t.Run("multi of 1 MiB", func(t *testing.T) {
		// One byte less than a frame's limit goes through whole; a frame over it closes the connection, and nothing of it
		// is applied.
		const parts = 4
		for _, over := range []bool{false, true} {
			ops := make([]client.Op, parts)
			path := fmt.Sprintf("/mib-%v", over)
			for i := range ops {
				ops[i] = client.CreateOp(fmt.Sprintf("%s-%d", path, i), make([]byte, (1<<20)/parts), kv.FlagPersistent, kv.OpenACL()...)
			}
			if !over {
				ops[0] = client.CreateOp(path+"-0", make([]byte, (1<<20)/parts-1024), kv.FlagPersistent, kv.OpenACL()...)
			}
			user := dial(t, ctx, c.Servers(), client.WithMaxFrame(8<<20, 8<<20))
			_, err := user.Multi(ctx, ops...)
			switch {
			case !over && err != nil:
				t.Errorf("a multi within the frame limit: %v", err)
			case over && !errors.Is(err, client.ErrUnknownOutcome):
				t.Errorf("a multi beyond the frame limit: %v, want the connection closed", err)
			}
			if err := writer.Sync(ctx, "/"); err != nil {
				t.Fatal(err)
			}
			for i := range ops {
				_, err := writer.Exists(ctx, fmt.Sprintf("%s-%d", path, i))
				if over != errors.Is(err, kv.ErrNoNode) {
					t.Errorf("part %d (beyond the limit: %v): %v", i, over, err)
				}
			}
		}
	})

	t.Run("multi of 100,000 operations", func(t *testing.T) {
		// Beyond the ordinary frame: the ensemble of this test gets a larger one.
		big, bctx := startCluster(t, 3, "maxClientCnxns=0", "jute.maxbuffer=16777216")
		user := dial(t, bctx, big.Servers(), client.WithMaxFrame(16<<20, 64<<20), client.WithLimits(1024, 64<<20))
		const n = 100_000
		ops := make([]client.Op, n)
		for i := range ops {
			ops[i] = client.CreateOp(fmt.Sprintf("/n%06d", i), nil, kv.FlagPersistent, kv.OpenACL()...)
		}
		results, err := user.Multi(bctx, ops...)
		if err != nil || len(results) != n {
			t.Fatalf("%d results, %v", len(results), err)
		}
		stat, err := user.Exists(bctx, "/")
		if err != nil || stat.NumChildren != n+1 {
			t.Fatalf("%d children of the root, %v", stat.NumChildren, err)
		}
		killAllAndAgree(t, bctx, big, "/", n+1)
	})

	t.Run("close-session with 100,000 ephemerals", func(t *testing.T) {
		user, err := client.Dial(ctx, c.Servers())
		if err != nil {
			t.Fatal(err)
		}
		const n = 100_000
		fill(t, ctx, user, "/ephemerals", n, paddedName(200), kv.FlagEphemeral)
		if err := writer.Sync(ctx, "/"); err != nil {
			t.Fatal(err)
		}
		if stat, err := writer.Exists(ctx, "/ephemerals"); err != nil || stat.NumChildren != n {
			t.Fatalf("%d children, %v", stat.NumChildren, err)
		}
		if err := user.Close(); err != nil {
			t.Fatal(err)
		}
		if err := writer.Sync(ctx, "/"); err != nil {
			t.Fatal(err)
		}
		stat, err := writer.Exists(ctx, "/ephemerals")
		if err != nil || stat.NumChildren != 0 {
			t.Fatalf("%d children are left, %v", stat.NumChildren, err)
		}
	})
	killAllAndAgree(t, ctx, c, "/ephemerals", 0)
}

// killAllAndAgree compares the members, kills them all, starts them again and compares once more.
func killAllAndAgree(t *testing.T, ctx context.Context, c *cluster.Cluster, path string, children int32) {
	t.Helper()
	sameTree(t, ctx, c)
	c.Stop()
	if err := c.Start(ctx); err != nil {
		t.Fatal(err)
	}
	sameTree(t, ctx, c)
	for _, m := range c.Members {
		stat, err := dial(t, ctx, m.Client).Exists(ctx, path)
		if err != nil || stat.NumChildren != children {
			t.Errorf("member %d: %s has %d children, %v; want %d", m.ID, path, stat.NumChildren, err, children)
		}
	}
}

// TestWatchMemory: a thousand sessions with a thousand watches each, all on different nodes, on one member.
func TestWatchMemory(t *testing.T) {
	notNow(t)
	c, ctx := startCluster(t, 1, "maxClientCnxns=0", "4lw.commands.whitelist=*", "maxSessionTimeout=600000")
	const sessions, each = 1000, 1000
	m := c.Members[0]
	setup := dial(t, ctx, m.Client)
	for s := range sessions {
		fill(t, ctx, setup, fmt.Sprintf("/s%04d", s), each, paddedName(8), kv.FlagPersistent)
	}
	before := settledMemory(t, ctx, m)
	clients := make([]*client.Client, sessions)
	for s := range clients {
		clients[s] = dial(t, ctx, m.Client, client.WithSessionTimeout(10*time.Minute))
	}
	errs := make(chan error, sessions)
	for s, user := range clients {
		go func() { errs <- watchAll(user, fmt.Sprintf("/s%04d", s), each) }()
	}
	for range clients {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	if err := mntrIs(ctx, m, "zk_watch_count", fmt.Sprint(sessions*each)); err != nil {
		t.Fatal(err)
	}
	after := settledMemory(t, ctx, m)
	t.Logf("resident %d MiB before %d watches of %d sessions, %d MiB with them", before>>20, sessions*each, sessions, after>>20)
	if grown := after - before; grown > 200<<20 {
		t.Errorf("the watches cost %d MiB, more than 200", grown>>20)
	}
	for _, user := range clients {
		if err := user.Close(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, ctx, "no watch outlives its session", func() error { return mntrIs(ctx, m, "zk_watch_count", "0") })
}

// watchAll sets a data watch on each of the nodes, pipelined.
func watchAll(c *client.Client, dir string, n int) error {
	done := make(chan error, n)
	for i := range n {
		call := &client.Call{Op: wire.OpGetData, Path: dir + "/" + paddedName(8)(i), Watch: true}
		call.Done = func(call *client.Call) { done <- call.Err }
		if err := c.Do(call); err != nil {
			return err
		}
	}
	for range n {
		if err := <-done; err != nil {
			return err
		}
	}
	return nil
}
