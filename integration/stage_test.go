package integration

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"kvd/integration/cluster"
	"kvd/integration/proxy"
)

// stage is a cluster behind cutting proxies, which a foreign program may command over a TCP connection: it finds the
// address in KVD_CONTROL, and the proxies' in KVD_SERVERS (members in order, separated by commas). One line a command,
// one line an answer, "ok ..." or "error ...":
//
//	leader                 the number of the leader (members count from 1)
//	kill N, start N        SIGKILL of a member; start it and wait until it serves
//	pause N, continue N    SIGSTOP and SIGCONT
//	cut N, cut all         reset the connections through the proxy of member N; answers how many
//	cutafter N up|down B   let B more bytes pass in this direction, then reset
//	stall N up|down        let nothing pass in this direction; "flow N up|down" undoes it
//	refuse N, accept N     reset new connections, or take them again
//	conns N                connections through the proxy
//	direct N               host:port of the member itself
//	word N WORD            the answer to a four-letter word, quoted as in Go
//	heal                   accept and flow everywhere, start what is not running
type stage struct {
	*cluster.Cluster
	proxies []*proxy.Proxy
	control string
}

// judgeZooKeeper: run the client programs against three real ZooKeeper servers, to see that the programs are right.
var judgeZooKeeper = os.Getenv("KVD_JUDGE") == "zookeeper"

// startStage runs three members until the test ends.
func startStage(t *testing.T, lines ...string) (*stage, context.Context) {
	t.Helper()
	var c *cluster.Cluster
	var ctx context.Context
	if judgeZooKeeper {
		c, ctx = startRealCluster(t, 3, lines...)
	} else {
		c, ctx = startCluster(t, 3, lines...)
	}
	s := &stage{Cluster: c}
	for _, m := range c.Members {
		p, err := proxy.New(m.Client)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		s.proxies = append(s.proxies, p)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.control = l.Addr().String()
	ctx, cancel := context.WithCancel(ctx)
	var serving sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		_ = l.Close()
		serving.Wait()
	})
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { s.serveControl(ctx, conn) })
		}
	})
	return s, ctx
}

// Proxied are the addresses for clients.
func (s *stage) Proxied() string {
	var all []string
	for _, p := range s.proxies {
		all = append(all, p.Addr())
	}
	return strings.Join(all, ",")
}

// Env is what a program needs to know.
func (s *stage) Env() []string {
	judge := "kvd"
	if judgeZooKeeper {
		judge = "zookeeper"
	}
	return append(os.Environ(), "KVD_SERVERS="+s.Proxied(), "KVD_CONTROL="+s.control, "KVD_JUDGED="+judge)
}

func (s *stage) serveControl(ctx context.Context, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		stop()
		_ = conn.Close()
	}()
	in := bufio.NewScanner(conn)
	for in.Scan() {
		answer, err := s.do(ctx, strings.Fields(in.Text()))
		if err != nil {
			answer = "error " + strconv.Quote(err.Error())
		} else {
			answer = strings.TrimSpace("ok " + answer)
		}
		if _, err := fmt.Fprintln(conn, answer); err != nil {
			return
		}
	}
}

func (s *stage) do(ctx context.Context, args []string) (string, error) {
	if len(args) == 0 {
		return "", fmt.Errorf("no command")
	}
	switch args[0] {
	case "leader":
		m, err := s.Leader(ctx)
		if err != nil {
			return "", err
		}
		return strconv.Itoa(m.ID), nil
	case "heal":
		return "", s.heal(ctx)
	}
	if len(args) < 2 {
		return "", fmt.Errorf("%s: which member?", args[0])
	}
	if args[0] == "cut" && args[1] == "all" {
		n := 0
		for _, p := range s.proxies {
			n += p.Cut()
		}
		return strconv.Itoa(n), nil
	}
	id, err := strconv.Atoi(args[1])
	if err != nil || id < 1 || id > len(s.Members) {
		return "", fmt.Errorf("%s: no member %q", args[0], args[1])
	}
	m, p := s.Members[id-1], s.proxies[id-1]
	var direction proxy.Direction
	switch args[0] {
	case "cutafter", "stall", "flow":
		if len(args) < 3 || (args[2] != "up" && args[2] != "down") {
			return "", fmt.Errorf("%s: up or down?", args[0])
		}
		if args[2] == "down" {
			direction = proxy.Down
		}
	}
	switch args[0] {
	case "kill":
		m.Kill()
	case "start":
		return "", startMember(ctx, m)
	case "pause":
		return "", m.Signal(syscall.SIGSTOP)
	case "continue":
		return "", m.Signal(syscall.SIGCONT)
	case "cut":
		return strconv.Itoa(p.Cut()), nil
	case "cutafter":
		if len(args) != 4 {
			return "", fmt.Errorf("cutafter: how many bytes?")
		}
		n, err := strconv.ParseInt(args[3], 10, 64)
		if err != nil {
			return "", err
		}
		p.CutAfter(direction, n)
	case "stall":
		p.Stall(direction, true)
	case "flow":
		p.Stall(direction, false)
	case "refuse":
		p.Refuse(true)
	case "accept":
		p.Refuse(false)
	case "conns":
		return strconv.Itoa(p.Conns()), nil
	case "direct":
		return m.Client, nil
	case "word":
		if len(args) != 3 {
			return "", fmt.Errorf("word: which?")
		}
		text, err := m.FourLetterWord(ctx, args[2])
		return strconv.Quote(text), err
	default:
		return "", fmt.Errorf("unknown command %q", args[0])
	}
	return "", nil
}

// startMember starts a member unless it runs, and waits until it serves.
func startMember(ctx context.Context, m *cluster.Member) error {
	if !m.Running() {
		if err := m.Start(); err != nil {
			return err
		}
	}
	if err := m.WaitReady(ctx); err != nil {
		return err
	}
	for {
		_, err := m.Mode(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// heal undoes whatever a check did.
func (s *stage) heal(ctx context.Context) error {
	for i, p := range s.proxies {
		p.Refuse(false)
		for _, d := range []proxy.Direction{proxy.Up, proxy.Down} {
			p.Stall(d, false)
			p.CutAfter(d, -1)
		}
		if m := s.Members[i]; m.Running() {
			_ = m.Signal(syscall.SIGCONT)
		}
	}
	for _, m := range s.Members {
		if err := startMember(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// zookeeperProperties are settings that ZooKeeper takes as system properties only.
const zookeeperProperties = "-Dzookeeper.extendedTypesEnabled=true -Dznode.container.checkIntervalMs=500 " +
	"-Dzookeeper.DigestAuthenticationProvider.superDigest=" + superDigest

// startRealCluster is startCluster with ZooKeeper's server in the place of kvd, on the same configuration files.
func startRealCluster(t *testing.T, members int, lines ...string) (*cluster.Cluster, context.Context) {
	t.Helper()
	java := need(t, "java", func() error {
		_, err := os.Stat(zookeeperJars[0])
		return err
	})
	dir := t.TempDir()
	logging := "log4j.rootLogger=WARN, A\nlog4j.appender.A=org.apache.log4j.ConsoleAppender\nlog4j.appender.A.target=System.err\n" +
		"log4j.appender.A.layout=org.apache.log4j.PatternLayout\nlog4j.appender.A.layout.ConversionPattern=%d{HH:mm:ss,SSS} %p %c{1} %m%n\n"
	// Called as kvd is: serve --config FILE. It says ready at once; startMember asks until it serves.
	script := fmt.Sprintf("#!/bin/sh\necho ready zookeeper\nexec %s -Xmx256m -XX:+UseSerialGC %s -cp %s:%s org.apache.zookeeper.server.quorum.QuorumPeerMain \"$3\"\n",
		java, zookeeperProperties, dir, strings.Join(zookeeperJars, ":"))
	binary := filepath.Join(dir, "zookeeper")
	for name, text := range map[string]string{"zookeeper": script, "log4j.properties": logging} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	var own []string
	for _, l := range lines {
		if !strings.HasPrefix(l, "kvd.") {
			own = append(own, l)
		}
	}
	c, err := cluster.New(cluster.Options{Members: members, Dir: t.TempDir(), Kvd: binary, ConfigLines: own})
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
	for _, m := range c.Members {
		if err := startMember(ctx, m); err != nil {
			t.Fatal(err)
		}
	}
	return c, ctx
}
