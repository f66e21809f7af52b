package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"kvd/integration/conformance"
)

// curatorJars are where Debian puts Curator 5.4 and what it needs.
var curatorJars = []string{
	"zookeeper", "zookeeper-jute", "curator-client", "curator-framework", "curator-recipes", "guava", "slf4j-api", "slf4j-nop",
	"jackson-databind", "jackson-core", "jackson-annotations", "snappy-java",
}

// superDigest gives the super user the password "test".
const superDigest = "super:D/InIHSb7yEEbrWz8b9l71RjZJU="

// javaConfig has a short time between two looks for containers and nodes past their time.
var javaConfig = []string{
	"admin.enableServer=false",
	"extendedTypesEnabled=true",
	"znode.container.checkIntervalMs=500",
	"maxClientCnxns=0",
	"4lw.commands.whitelist=*",
	"DigestAuthenticationProvider.superDigest=" + superDigest,
}

// curatorChecks runs the recipes of Curator and its own operations.
func curatorChecks(t *testing.T) []conformance.Check { return runJava(t, "Curator") }

// javaChecks runs the calls of ZooKeeper's Java client.
func javaChecks(t *testing.T) []conformance.Check { return runJava(t, "Java") }

// compiled is the class path of scripts/curator and what it needs.
var compiled = sync.OnceValues(func() (string, error) {
	classes := filepath.Join(buildDir, "curator")
	path := []string{classes}
	for _, jar := range curatorJars {
		path = append(path, "/usr/share/java/"+jar+".jar")
	}
	classPath := strings.Join(path, string(filepath.ListSeparator))
	sources, err := filepath.Glob("scripts/curator/checks/*.java")
	if err != nil {
		return "", err
	}
	args := append([]string{"-Xlint:all,-processing,-classfile,-path,-try", "-Werror", "-d", classes, "-cp", classPath}, sources...)
	out, err := exec.Command("javac", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("javac: %w\n%s", err, out)
	}
	return classPath, nil
})

// runJava compiles scripts/curator and runs all checks of one client in one virtual machine. KVD_JAVA_RUN, a regular
// expression of Java, chooses checks by name.
func runJava(t *testing.T, client string) []conformance.Check {
	java := need(t, "java", func() error {
		_, err := os.Stat("/usr/share/java/curator-recipes.jar")
		return err
	})
	need(t, "javac", nil)
	classPath, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	s, ctx := startStage(t, javaConfig...)
	only := os.Getenv("KVD_JAVA_RUN")
	if only == "" {
		only = ".*"
		if judgeZooKeeper {
			only = ".*(?<!as in 3.9|unlike ZooKeeper)" // Debian's is 3.8
		}
	}
	checks := runClient(t, ctx, s, nil, java,
		"-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", // it lives for a minute or two
		// The client asks for the name of every server's address, for SASL, which takes ten seconds where nobody answers.
		"-Dzookeeper.sasl.client=false", "-Dzookeeper.sasl.client.canonicalize.hostname=false",
		"-Djute.maxbuffer=8388608",
		"-cp", classPath, "checks.Main", client, only)
	nothingLeft(t, ctx, s)
	return checks
}

// nothingLeft waits until no member has a watch, an ephemeral node or a client's connection, as must be when all
// sessions have ended.
func nothingLeft(t *testing.T, ctx context.Context, s *stage) {
	t.Helper()
	for _, m := range s.Members {
		eventually(t, ctx, "nothing is left of the sessions that ended", func() error {
			text, err := m.FourLetterWord(ctx, "mntr")
			if err != nil {
				return err
			}
			seen := 0
			for line := range strings.Lines(text) {
				key, value, _ := strings.Cut(strings.TrimSpace(line), "\t")
				var most int // the connection that asks may count
				switch key {
				case "zk_num_alive_connections":
					most = 1
				case "zk_watch_count", "zk_ephemerals_count":
				default:
					continue
				}
				seen++
				if n, err := strconv.Atoi(value); err != nil || n > most {
					return fmt.Errorf("member %d: %s", m.ID, strings.TrimSpace(line))
				}
			}
			if seen != 3 {
				return fmt.Errorf("member %d: mntr has %d of three figures: %q", m.ID, seen, text)
			}
			return nil
		})
	}
}
