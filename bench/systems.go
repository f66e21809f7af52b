package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"kvd/integration/cluster"
)

// system is one store under measurement: its running servers, and how a driver process for it is started.
type system struct {
	name    string
	version string
	servers []string // client addresses
	pids    func() []int
	driver  []string // command before Config.Args
	stop    func()
}

// startKvd starts members as they are shipped and configured by default.
func startKvd(ctx context.Context, b cluster.Binaries, dir string, members, observers int) (*system, error) {
	dir, err := os.MkdirTemp(dir, "kvd-")
	if err != nil {
		return nil, err
	}
	c, err := cluster.New(cluster.Options{Members: members, Observers: observers, Dir: dir, Kvd: b.Kvd, ConfigLines: []string{"maxClientCnxns=0"}})
	if err != nil {
		return nil, err
	}
	if err := c.Start(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	s := &system{name: "kvd", stop: c.Stop, driver: ownDriver(), pids: func() (pids []int) {
		for _, m := range c.Members {
			pids = append(pids, m.Pid())
		}
		return pids
	}}
	for _, m := range c.Members {
		s.servers = append(s.servers, m.Client)
	}
	text, err := word(s.servers[0], "srvr")
	if err != nil {
		c.Stop()
		return nil, err
	}
	if _, rest, ok := strings.Cut(text, "-kvd."); ok {
		s.version, _, _ = strings.Cut(rest, ",")
	}
	return s, nil
}

// ownDriver is this program as a driver process.
func ownDriver() []string {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	return []string{self, "drive"}
}

// group is processes that are started and ended together.
type group struct {
	mu   sync.Mutex
	cmds []*exec.Cmd
	log  string
}

// start runs a program in the background, its output in a file of its own.
func (g *group) start(dir, name string, args ...string) error {
	f, err := os.Create(filepath.Join(dir, "output.txt"))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // the process has its own
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = f, f
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cmds, g.log = append(g.cmds, cmd), f.Name()
	return nil
}

func (g *group) pids() (pids []int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.cmds {
		pids = append(pids, c.Process.Pid)
	}
	return pids
}

func (g *group) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.cmds {
		_ = c.Process.Kill()
	}
	for _, c := range g.cmds {
		_ = c.Wait() // killed
	}
	g.cmds = nil
}

// freePorts returns n ports of the kernel's choice that were free a moment ago.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// zookeeperJars are where Debian's package zookeeper has the server.
var zookeeperJars = []string{"/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-log4j12.jar", "/usr/share/java/log4j-1.2.jar", "/usr/share/java/snappy-java.jar"}

// startZooKeeper starts Debian's ZooKeeper with its own defaults: it syncs its log before it answers, as kvd does.
func startZooKeeper(ctx context.Context, dir string, members int) (*system, error) {
	java, err := exec.LookPath("java")
	if err == nil {
		_, err = os.Stat(zookeeperJars[0])
	}
	if err != nil {
		return nil, fmt.Errorf("ZooKeeper (Debian's package zookeeper) is not installed: %w", err)
	}
	if dir, err = os.MkdirTemp(dir, "zookeeper-"); err != nil {
		return nil, err
	}
	ports, err := freePorts(3 * members)
	if err != nil {
		return nil, err
	}
	var lines strings.Builder
	for i := range members {
		_, _ = fmt.Fprintf(&lines, "server.%d=127.0.0.1:%d:%d\n", i+1, ports[3*i], ports[3*i+1])
	}
	g := &group{}
	s := &system{name: "ZooKeeper", driver: ownDriver(), pids: g.pids, stop: g.stop}
	for i := range members {
		home := filepath.Join(dir, strconv.Itoa(i+1))
		data := filepath.Join(home, "data")
		cfg := fmt.Sprintf("tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir=%s\nclientPort=%d\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=*\n%s",
			data, ports[3*i+2], lines.String())
		logging := "log4j.rootLogger=WARN, A\nlog4j.appender.A=org.apache.log4j.ConsoleAppender\nlog4j.appender.A.layout=org.apache.log4j.SimpleLayout\n"
		err := errors.Join(os.MkdirAll(data, 0o755), os.WriteFile(filepath.Join(data, "myid"), fmt.Appendln(nil, i+1), 0o644),
			os.WriteFile(filepath.Join(home, "zoo.cfg"), []byte(cfg), 0o644), os.WriteFile(filepath.Join(home, "log4j.properties"), []byte(logging), 0o644))
		if err == nil {
			err = g.start(home, java, "-Xmx1g", "-cp", strings.Join(append([]string{home}, zookeeperJars...), ":"),
				"org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(home, "zoo.cfg"))
		}
		if err != nil {
			g.stop()
			return nil, err
		}
		s.servers = append(s.servers, fmt.Sprintf("127.0.0.1:%d", ports[3*i+2]))
	}
	for _, addr := range s.servers {
		if err := until(ctx, func() error {
			text, err := word(addr, "srvr")
			if err == nil && !strings.Contains(text, "Mode: ") {
				err = fmt.Errorf("%s: %s", addr, strings.TrimSpace(text))
			}
			if version, _, ok := strings.Cut(strings.TrimPrefix(text, "Zookeeper version: "), "-"); ok {
				s.version = version
			}
			return err
		}); err != nil {
			g.stop()
			return nil, fmt.Errorf("ZooKeeper does not serve: %w", err)
		}
	}
	return s, nil
}

// etcdModule is where the driver's source is, seen from the root of the repository.
const etcdModule = "bench/etcd"

// buildEtcd builds etcd and its driver, which takes some minutes the first time.
func buildEtcd(ctx context.Context, dir string) (string, error) {
	bin := filepath.Join(dir, "etcd")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", bin, ".")
	cmd.Dir = etcdModule
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=mod")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build etcd (run this in the root of the repository): %w\n%s", err, out)
	}
	return bin, nil
}

// startEtcd starts etcd with its own defaults: it syncs its log before it answers.
func startEtcd(ctx context.Context, bin, dir string, members int) (*system, error) {
	dir, err := os.MkdirTemp(dir, "etcd-")
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(2 * members)
	if err != nil {
		return nil, err
	}
	var initial []string
	for i := range members {
		initial = append(initial, fmt.Sprintf("m%d=http://127.0.0.1:%d", i+1, ports[2*i]))
	}
	g := &group{}
	s := &system{name: "etcd", driver: []string{bin, "drive"}, pids: g.pids, stop: g.stop, version: etcdVersion()}
	for i := range members {
		home := filepath.Join(dir, strconv.Itoa(i+1))
		peer, client := fmt.Sprintf("http://127.0.0.1:%d", ports[2*i]), fmt.Sprintf("http://127.0.0.1:%d", ports[2*i+1])
		err := os.MkdirAll(home, 0o755)
		if err == nil {
			err = g.start(home, bin, "serve", "--name", fmt.Sprintf("m%d", i+1), "--data-dir", filepath.Join(home, "data"), "--log-level", "error",
				"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--listen-client-urls", client, "--advertise-client-urls", client,
				"--initial-cluster", strings.Join(initial, ","), "--quota-backend-bytes", strconv.Itoa(8<<30))
		}
		if err != nil {
			g.stop()
			return nil, err
		}
		s.servers = append(s.servers, fmt.Sprintf("127.0.0.1:%d", ports[2*i+1]))
	}
	for _, addr := range s.servers {
		if err := until(ctx, func() error {
			c, err := net.DialTimeout("tcp", addr, time.Second)
			if err == nil {
				err = c.Close()
			}
			return err
		}); err != nil {
			g.stop()
			return nil, fmt.Errorf("etcd does not serve: %w", err)
		}
	}
	return s, nil
}

// etcdVersion is the version of the server in the driver's module.
func etcdVersion() string {
	text, err := os.ReadFile(filepath.Join(etcdModule, "go.mod"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require ")); len(f) >= 2 && f[0] == "go.etcd.io/etcd/server/v3" {
			return strings.TrimPrefix(f[1], "v")
		}
	}
	return ""
}

// until asks until there is no complaint or ctx ends.
func until(ctx context.Context, condition func() error) error {
	for {
		err := condition()
		if err == nil {
			return nil
		}
		if pause(ctx, 50*time.Millisecond) != nil {
			return err
		}
	}
}

// word sends a four-letter word.
func word(addr, w string) (string, error) {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(c, w); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

// usage is what the servers have used since they started.
type usage struct {
	cpu      time.Duration
	resident int64
	written  int64 // bytes to the disk
}

func (s *system) usage() (u usage, err error) {
	for _, pid := range s.pids() {
		cpu, err := cluster.CPU(pid)
		if err != nil {
			return u, err
		}
		mem, err := cluster.MemoryOf(pid)
		if err != nil {
			return u, err
		}
		written, err := writtenBy(pid)
		if err != nil {
			return u, err
		}
		u.cpu, u.resident, u.written = u.cpu+cpu, u.resident+mem.Resident, u.written+written
	}
	return u, nil
}

// writtenBy is how many bytes a process has caused to be written to the disk.
func writtenBy(pid int) (int64, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	for in := bufio.NewScanner(f); in.Scan(); {
		if v, ok := strings.CutPrefix(in.Text(), "write_bytes: "); ok {
			return strconv.ParseInt(v, 10, 64)
		}
	}
	return 0, errors.New("no write_bytes in /proc/PID/io")
}

// interrupted reports whether a process was ended by us.
func interrupted(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	ws, ok := exit.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled()
}
