package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"kvd/integration/cluster"
)

// common are the settings that both servers get. Sessions outlive a sequence, and nothing is reaped during one: what
// depends on the clock is tested elsewhere.
var common = []string{
	"4lw.commands.whitelist=*",
	"extendedTypesEnabled=true",
	"maxClientCnxns=0",
	"minSessionTimeout=300000",
	"maxSessionTimeout=3600000",
	"DigestAuthenticationProvider.superDigest=super:xQJmxLMiHGwaqBvst5y6rkB6HQs=",
}

// side is one of the two things compared: a server or an ensemble.
type side struct {
	name    string
	addrs   []string // of the members clients connect to: followers first, the leader last
	admins  []*admin // one per member
	env     []string // replacements of the own addresses in the configuration node
	logs    func() string
	stop    func()
	highest int64 // zxid seen in any answer

	zookeeper bool
	nudges    []int64 // zxids of writes that only released an answer, not yet told to the comparison
}

// zookeeperJars are where Debian puts the server.
var zookeeperJars = []string{
	"/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-log4j12.jar", "/usr/share/java/log4j-1.2.jar", "/usr/share/java/snappy-java.jar",
}

// workDir is a directory in memory if there is one: nothing here is about disks.
func workDir() (string, error) {
	for _, parent := range []string{"/dev/shm", ""} {
		if dir, err := os.MkdirTemp(parent, "difftest-"); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("no directory to work in")
}

func freePorts(host string, n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// process is a running ZooKeeper.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	log  string
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

const logging = "log4j.rootLogger=WARN, A\nlog4j.appender.A=org.apache.log4j.ConsoleAppender\nlog4j.appender.A.layout=org.apache.log4j.SimpleLayout\n"

// startZooKeeper runs members of ZooKeeper below dir. net3 is the third byte of their loopback addresses.
func startZooKeeper(ctx context.Context, dir string, members, net3 int) (*side, error) {
	java, err := exec.LookPath("java")
	if err != nil {
		return nil, err
	}
	s := &side{name: "zookeeper", zookeeper: true}
	var procs []*process
	s.stop = func() {
		for _, a := range s.admins {
			a.c.close()
		}
		for _, p := range procs {
			p.kill()
		}
	}
	s.logs = func() string {
		var b strings.Builder
		for _, p := range procs {
			b.WriteString(tail(p.log))
		}
		return b.String()
	}
	var lines strings.Builder
	type member struct {
		host  string
		ports []int
	}
	var all []member
	for id := 1; id <= members; id++ {
		host := fmt.Sprintf("127.0.%d.%d", net3, id)
		ports, err := freePorts(host, 3)
		if err != nil {
			return nil, err
		}
		all = append(all, member{host, ports})
		if members > 1 {
			fmt.Fprintf(&lines, "server.%d=%s:%d:%d;%s:%d\n", id, host, ports[1], ports[2], host, ports[0])
		}
		s.env = append(s.env, replacements(id, host, ports)...)
	}
	for i, m := range all {
		home := filepath.Join(dir, fmt.Sprintf("zookeeper-%d", i+1))
		if err := os.MkdirAll(filepath.Join(home, "data"), 0o755); err != nil {
			return nil, err
		}
		config := fmt.Sprintf("tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir=%s/data\nclientPort=%d\nclientPortAddress=%s\nadmin.enableServer=false\n%s\n%s",
			home, m.ports[0], m.host, strings.Join(common, "\n"), lines.String())
		err := errors.Join(
			os.WriteFile(filepath.Join(home, "zoo.cfg"), []byte(config), 0o644),
			os.WriteFile(filepath.Join(home, "log4j.properties"), []byte(logging), 0o644),
			os.WriteFile(filepath.Join(home, "data", "myid"), []byte(fmt.Sprintln(i+1)), 0o644),
		)
		if err != nil {
			return nil, err
		}
		p := &process{done: make(chan struct{}), log: filepath.Join(home, "log.txt")}
		log, err := os.Create(p.log)
		if err != nil {
			return nil, err
		}
		p.cmd = exec.Command(java, "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dznode.container.checkIntervalMs=86400000", "-Dzookeeper.forceSync=no",
			"-cp", strings.Join(append([]string{home}, zookeeperJars...), ":"), "org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(home, "zoo.cfg"))
		p.cmd.Stdout, p.cmd.Stderr = log, log
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := p.cmd.Start(); err != nil {
			return nil, err
		}
		go func() {
			_ = p.cmd.Wait()
			_ = log.Close()
			close(p.done)
		}()
		procs = append(procs, p)
		s.addrs = append(s.addrs, fmt.Sprintf("%s:%d", m.host, m.ports[0]))
	}
	if err := s.ready(ctx); err != nil {
		err = fmt.Errorf("%w\n%s", err, s.logs())
		s.stop()
		return nil, err
	}
	return s, nil
}

// replacements name a member's addresses alike on both sides.
func replacements(id int, host string, ports []int) []string {
	r := []string{fmt.Sprintf("%s:%d:%d", host, ports[1], ports[2]), fmt.Sprintf("member%d-peers", id)}
	for i, p := range ports {
		r = append(r, fmt.Sprintf("%s:%d", host, p), fmt.Sprintf("member%d-port%d", id, i))
	}
	return r
}

func tail(file string) string {
	b, _ := os.ReadFile(file)
	return string(b[max(0, len(b)-1500):])
}

// startKvd runs members of kvd below dir.
func startKvd(ctx context.Context, binary, dir string, members int) (*side, error) {
	home := filepath.Join(dir, "kvd")
	if err := os.MkdirAll(home, 0o755); err != nil {
		return nil, err
	}
	lines := append([]string{"admin.enableServer=false", "znode.container.checkIntervalMs=86400000"}, common...)
	c, err := cluster.New(cluster.Options{Members: members, Dir: home, Kvd: binary, ConfigLines: lines})
	if err != nil {
		return nil, err
	}
	s := &side{name: "kvd", logs: func() string { return c.Logs(1500) }}
	s.stop = func() {
		for _, a := range s.admins {
			a.c.close()
		}
		c.Stop()
	}
	for _, m := range c.Members {
		s.addrs = append(s.addrs, m.Client)
		text, err := os.ReadFile(filepath.Join(m.Dir, "zoo.cfg"))
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			var client, peer, election int
			var host string
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), fmt.Sprintf("server.%d=", m.ID)); ok {
				host, v, _ = strings.Cut(v, ":")
				if _, err := fmt.Sscanf(v, "%d:%d;"+host+":%d", &peer, &election, &client); err != nil {
					return nil, fmt.Errorf("%q: %w", line, err)
				}
				s.env = append(s.env, replacements(m.ID, host, []int{client, peer, election})...)
			}
		}
	}
	if err := c.Start(ctx); err != nil {
		s.stop()
		return nil, err
	}
	if err := s.ready(ctx); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// word sends a four-letter word and returns all of the answer.
func word(addr, w string) (string, error) {
	c, err := dialRaw(addr)
	if err != nil {
		return "", err
	}
	defer c.close()
	c.write([]byte(w))
	_ = c.nc.SetReadDeadline(time.Now().Add(patience))
	b, err := io.ReadAll(c.r)
	return string(b), err
}

// mode waits until a member says what it is.
func mode(ctx context.Context, addr string) (string, error) {
	for {
		text, err := word(addr, "srvr")
		if _, after, ok := strings.Cut(text, "\nMode: "); err == nil && ok {
			m, _, _ := strings.Cut(after, "\n")
			return m, nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%s does not serve: %w (%q, %w)", addr, context.Cause(ctx), text, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// ready waits until every member serves, puts the leader last and opens the admin sessions.
func (s *side) ready(ctx context.Context) error {
	var followers, leaders []string
	for _, a := range s.addrs {
		m, err := mode(ctx, a)
		if err != nil {
			return err
		}
		if m == "follower" {
			followers = append(followers, a)
		} else {
			leaders = append(leaders, a)
		}
	}
	if len(leaders) != 1 {
		return fmt.Errorf("%s has %d leaders", s.name, len(leaders))
	}
	s.addrs = append(followers, leaders...)
	for _, addr := range s.addrs {
		a, err := newAdmin(addr)
		if err != nil {
			return err
		}
		s.admins = append(s.admins, a)
	}
	return nil
}

// admin is the tester's own session with the leader.
func (s *side) admin() *admin { return s.admins[len(s.admins)-1] }

// heldAfter is how long a member of ZooKeeper's ensemble may be silent before a write is made to release its answer.
const heldAfter = time.Second

// do asks with the tester's own session. A member of ZooKeeper, the leader as well, may hold an answer until the next
// commit (protocol 15): a refused write at another one releases it, which is noted in nudges. An error says whose it is
// and how the members of that side are.
func (s *side) do(q Request) (item, error) {
	holds := s.zookeeper && len(s.admins) > 1
	wait := patience
	if holds {
		wait = heldAfter
	}
	a := s.admin()
	q.Xid = 1
	a.c.write(q.encode(0))
	b, err := a.c.frame(wait)
	for try := 0; holds && errors.Is(err, errSilent) && try < 20; try++ {
		nudge, nudgeErr := s.admins[0].do(Request{Op: opDelete, Path: ptr("/-barrier-/x"), Version: -1})
		if nudgeErr != nil {
			return item{}, fmt.Errorf("%s: %w", s.name, nudgeErr)
		}
		s.nudges = append(s.nudges, nudge.zxid)
		b, err = a.c.frame(wait)
	}
	if err == nil {
		return decodeReply(&q, b), nil
	}
	err = fmt.Errorf("%s: %v: %w", s.name, q, err)
	for _, addr := range s.addrs {
		text, wordErr := word(addr, "srvr")
		err = fmt.Errorf("%w\n%s: %v\n%s", err, addr, wordErr, text)
	}
	return item{}, err
}

// clientMembers is how many members the sequences use: the followers, or the only one.
func (s *side) clientMembers() int { return max(1, len(s.addrs)-1) }
