package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvd/kv/client/clienttest"
)

// zookeeperJars are where Debian puts the server.
var zookeeperJars = []string{
	"/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-log4j12.jar", "/usr/share/java/log4j-1.2.jar", "/usr/share/java/snappy-java.jar",
}

// startZooKeeper runs a single ZooKeeper server until the test ends and returns its address.
func startZooKeeper(t *testing.T, ctx context.Context) string {
	t.Helper()
	java := need(t, "java", func() error {
		_, err := os.Stat(zookeeperJars[0])
		return err
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	_, port, _ := net.SplitHostPort(addr)
	dir := t.TempDir()
	config := fmt.Sprintf("tickTime=2000\ndataDir=%s/data\nclientPort=%s\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n4lw.commands.whitelist=*\nextendedTypesEnabled=true\n", dir, port)
	logging := "log4j.rootLogger=WARN, A\nlog4j.appender.A=org.apache.log4j.ConsoleAppender\nlog4j.appender.A.layout=org.apache.log4j.SimpleLayout\n"
	for name, text := range map[string]string{"zoo.cfg": config, "log4j.properties": logging} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := foreign(t, ctx, java, "-Xmx256m", "-cp", strings.Join(append([]string{dir}, zookeeperJars...), ":"),
		"org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(dir, "zoo.cfg"))
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Cancel()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(output.String())
		}
	})
	return addr
}

// The Go client and kv work against ZooKeeper as they do against kvd.
func TestClientAgainstZooKeeper(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	addr := startZooKeeper(t, ctx)
	clienttest.Conformance(t, addr)
	clienttest.Surface(t, addr)

	if out, errs, code := runKv(ctx, t, addr, "set", "/a/b", "x"); code != 0 {
		t.Fatalf("%q %q %d", out, errs, code)
	}
	if out, errs, code := runKv(ctx, t, addr, "get", "/a/b"); code != 0 || out != "x" {
		t.Errorf("%q %q %d", out, errs, code)
	}
	if out, errs, code := runKv(ctx, t, addr, "rm", "-r", "/a"); code != 0 {
		t.Errorf("%q %q %d", out, errs, code)
	}
	if out, errs, code := runKv(ctx, t, addr, "get", "/a"); code != 3 {
		t.Errorf("%q %q %d", out, errs, code)
	}
	out, errs, code := runKv(ctx, t, addr, "status", "-o", "json")
	var status struct {
		Members []struct{ Server, Role, Health string }
	}
	if err := json.Unmarshal([]byte(out), &status); err != nil || code != 0 || len(status.Members) != 1 || status.Members[0].Role != "standalone" || status.Members[0].Health != "ok" {
		t.Errorf("%v %q %q %d", err, out, errs, code)
	}
}
