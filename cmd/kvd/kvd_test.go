package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"kvd/ensemble/ensembletest"
	"kvd/kv/client"
)

// The tests run the real command: the test binary starts itself again with KVD_TEST_MAIN set and is kvd then.
const runAsKvd = "KVD_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(runAsKvd) == "1" {
		main()
		return
	}
	os.Exit(m.Run())
}

// limit bounds every wait. It is far above what anything takes.
const limit = 60 * time.Second

// daemon is a running kvd.
type daemon struct {
	*testing.T
	cmd    *exec.Cmd
	stdout *lines
	stderr *lines
	done   chan struct{}
}

// lines collects output by line and lets a test wait for one.
type lines struct {
	mu   sync.Mutex
	cond *sync.Cond
	all  []string
	end  bool
}

func newLines(r io.Reader, wg *sync.WaitGroup) *lines {
	l := &lines{}
	l.cond = sync.NewCond(&l.mu)
	wg.Go(func() {
		s := bufio.NewScanner(r)
		for s.Scan() {
			l.mu.Lock()
			l.all = append(l.all, s.Text())
			l.cond.Broadcast()
			l.mu.Unlock()
		}
		l.mu.Lock()
		l.end = true
		l.cond.Broadcast()
		l.mu.Unlock()
	})
	return l
}

// find waits for a line that matches and returns its groups; nil if the output ended or time ran out.
func (l *lines) find(pattern string) []string {
	re := regexp.MustCompile(pattern)
	expired := false
	timer := time.AfterFunc(limit, func() {
		l.mu.Lock()
		expired = true
		l.cond.Broadcast()
		l.mu.Unlock()
	})
	defer timer.Stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := 0; ; {
		for ; i < len(l.all); i++ {
			if m := re.FindStringSubmatch(l.all[i]); m != nil {
				return m
			}
		}
		if l.end || expired {
			return nil
		}
		l.cond.Wait()
	}
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.all, "\n")
}

func kvdCommand(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "KVD_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, runAsKvd+"=1")
	return cmd
}

// start starts kvd; it is killed when the test ends.
func start(t *testing.T, cmd *exec.Cmd) *daemon {
	t.Helper()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var readers sync.WaitGroup
	d := &daemon{T: t, cmd: cmd, stdout: newLines(stdout, &readers), stderr: newLines(stderr, &readers), done: make(chan struct{})}
	go func() {
		readers.Wait()
		_ = cmd.Wait() // its ProcessState is what counts
		close(d.done)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-d.done
		if t.Failed() {
			t.Logf("%s\nstdout:\n%s\nstderr:\n%s", strings.Join(cmd.Args[1:], " "), d.stdout.text(), d.stderr.text())
		}
	})
	return d
}

// ready waits for the ready line and returns the addresses.
func (d *daemon) ready() string {
	d.Helper()
	m := d.stdout.find(`^ready (.*)$`)
	if m == nil {
		d.Fatal("no ready line")
	}
	return m[1]
}

// exit waits for the end and returns the exit code.
func (d *daemon) exit() int {
	d.Helper()
	select {
	case <-d.done:
		return d.cmd.ProcessState.ExitCode()
	case <-time.After(limit):
		d.Fatal("kvd does not end")
		return -1
	}
}

func (d *daemon) signal(s syscall.Signal) {
	d.Helper()
	if err := d.cmd.Process.Signal(s); err != nil {
		d.Fatal(err)
	}
}

// run runs kvd to its end.
func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := kvdCommand(args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	timer := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errOut.String()
}

// writeAndRead sets a node through one client and reads it through others, one per address.
func writeAndRead(t *testing.T, addrs, path string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c, err := client.Dial(ctx, addrs)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, _, err := c.Create(ctx, path, []byte("hello"), 0); err != nil {
		t.Fatalf("create %s: %v", path, err)
	}
	for _, addr := range strings.Split(addrs, ",") {
		r, err := client.Dial(ctx, addr)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Sync(ctx, path); err != nil {
			t.Fatalf("sync at %s: %v", addr, err)
		}
		if data, _, err := r.Get(ctx, path); err != nil || string(data) != "hello" {
			t.Errorf("get %s at %s: %q, %v", path, addr, data, err)
		}
		_ = r.Close()
	}
}

// onlyReady checks that stdout has the ready line and nothing else.
func (d *daemon) onlyReady() {
	d.Helper()
	if text := d.stdout.text(); !strings.HasPrefix(text, "ready ") || strings.Contains(text, "\n") {
		d.Errorf("stdout is %q, want one ready line", text)
	}
}

func TestDev(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			cmd := kvdCommand("dev", "--port", "0", "--members", strconv.Itoa(n))
			tmp := t.TempDir()
			cmd.Env = append(cmd.Env, "TMPDIR="+tmp)
			d := start(t, cmd)
			addrs := d.ready()
			if got := len(strings.Split(addrs, ",")); got != n {
				t.Fatalf("ready with %s, want %d addresses", addrs, n)
			}
			if d.stderr.find(`^export KV_SERVER=`+regexp.QuoteMeta(addrs)+`$`) == nil {
				t.Error("no line to paste")
			}
			writeAndRead(t, addrs, "/a")
			d.signal(syscall.SIGTERM)
			if code := d.exit(); code != 0 {
				t.Errorf("exit code %d after SIGTERM", code)
			}
			d.onlyReady()
			if left, err := os.ReadDir(tmp); err != nil || len(left) != 0 {
				t.Errorf("left behind in the temporary directory: %v, %v", left, err)
			}
		})
	}
}

// Data in --dir is there again after a restart; ports are consecutive from --port.
func TestDevKeepsItsDirectory(t *testing.T) {
	dir := t.TempDir()
	d := start(t, kvdCommand("dev", "--dir", dir, "--port", "0"))
	writeAndRead(t, d.ready(), "/kept")
	d.signal(syscall.SIGINT)
	if code := d.exit(); code != 0 {
		t.Fatalf("exit code %d after SIGINT", code)
	}
	d = start(t, kvdCommand("dev", "--dir="+dir, "--port=0", "--processes"))
	addrs := d.ready()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c, err := client.Dial(ctx, addrs)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if data, _, err := c.Get(ctx, "/kept"); err != nil || string(data) != "hello" {
		t.Errorf("after a restart: %q, %v", data, err)
	}
}

// process is what kvd dev --processes prints about a member.
type process struct {
	pid  int
	addr string
}

func (d *daemon) processes(n int) []process {
	d.Helper()
	var all []process
	for id := 1; id <= n; id++ {
		m := d.stderr.find(fmt.Sprintf(`^member %d pid (\d+) client (.*)$`, id))
		if m == nil {
			d.Fatalf("no line about member %d", id)
		}
		pid, err := strconv.Atoi(m[1])
		if err != nil {
			d.Fatal(err)
		}
		all = append(all, process{pid, m[2]})
	}
	return all
}

// waitGone waits until a process has ended (a zombie that nobody reaps counts as ended).
func waitGone(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return
		}
		if _, rest, ok := strings.Cut(string(stat), ") "); ok && (rest[0] == 'Z' || rest[0] == 'X') {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d is still there: %s", pid, stat)
		}
	}
}

// Three processes; any of them dies, stays dead with a line that says so, and the others serve.
func TestDevProcesses(t *testing.T) {
	d := start(t, kvdCommand("dev", "--processes", "--port", "0"))
	addrs := d.ready()
	members := d.processes(3)
	if want := members[0].addr + "," + members[1].addr + "," + members[2].addr; addrs != want {
		t.Errorf("ready with %s, the members have %s", addrs, want)
	}
	writeAndRead(t, addrs, "/a")
	for i, victim := range []int{2, 0} { // the first leader, then another with only one left: no quorum, no crash
		if err := syscall.Kill(members[victim].pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if d.stderr.find(fmt.Sprintf(`^member %d pid %d died \(signal: killed\); it stays dead$`, victim+1, members[victim].pid)) == nil {
			t.Fatalf("no line about the death of member %d", victim+1)
		}
		if conn, err := net.Dial("tcp", members[victim].addr); err == nil {
			_ = conn.Close()
			t.Errorf("the port of dead member %d accepts connections", victim+1)
		}
		if i == 0 {
			writeAndRead(t, members[0].addr+","+members[1].addr, "/b")
		}
	}
	d.signal(syscall.SIGTERM)
	if code := d.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	d.onlyReady()
	for _, m := range members {
		waitGone(t, m.pid)
	}
}

// When the last member is dead there is nothing left to do.
func TestDevProcessesAllDead(t *testing.T) {
	d := start(t, kvdCommand("dev", "--processes", "--port", "0", "--members", "2"))
	d.ready()
	for _, m := range d.processes(2) {
		if err := syscall.Kill(m.pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	if code := d.exit(); code != exitFailed || d.stderr.find("all members are dead") == nil {
		t.Errorf("exit code %d", code)
	}
}

// Children die with their parent, also if that is killed.
func TestChildrenDieWithTheirParent(t *testing.T) {
	d := start(t, kvdCommand("dev", "--processes", "--port", "0"))
	d.ready()
	members := d.processes(3)
	d.signal(syscall.SIGKILL)
	for _, m := range members {
		waitGone(t, m.pid)
	}
}

// A member that cannot start is a failure of the whole, with its exit code.
func TestDevProcessesRefusedDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "member-2", "version-2"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "member-2", "version-2", "log.1"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := run(t, "dev", "--processes", "--port", "0", "--dir", dir)
	if code != exitRefused || stdout != "" || !strings.Contains(stderr, "member 2 did not start") || !strings.Contains(stderr, "holds ZooKeeper's data") {
		t.Errorf("exit code %d, stdout %q, stderr %s", code, stdout, stderr)
	}
}

func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	port, data := l.Addr().(*net.TCPAddr).Port, t.TempDir()
	for _, args := range [][]string{
		{"dev", "--members", "1", "--port", strconv.Itoa(port)},
		{"dev", "--members", "1", "--port", strconv.Itoa(port), "--processes"},
		{"serve", "--data", data, "--listen", l.Addr().String()},
		{"serve", "--data", data, "--listen", "127.0.0.1:0", "--metrics-listen", l.Addr().String()},
	} {
		code, stdout, stderr := run(t, args...)
		if code != exitRefused || stdout != "" || !strings.Contains(stderr, "address already in use") {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", args, code, stdout, stderr)
		}
	}
	if left, err := os.ReadDir(data); err != nil || len(left) != 0 {
		t.Errorf("the data directory was touched: %v, %v", left, err)
	}
}

// zooCfg writes a configuration directory and returns the path of zoo.cfg and of dataDir.
func zooCfg(t *testing.T, lines ...string) (config, dataDir string) {
	t.Helper()
	dir := t.TempDir()
	dataDir = filepath.Join(dir, "data")
	if err := os.Mkdir(dataDir, 0o755); err != nil {
		t.Fatal(err)
	}
	config = filepath.Join(dir, "zoo.cfg")
	text := "dataDir=" + dataDir + "\n" + strings.Join(lines, "\n") + "\n"
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return config, dataDir
}

// freePort is a port that was free a moment ago.
func freePort(t *testing.T, host string) int {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// One member by zoo.cfg: what is ignored is said once, data lies in dataDir/kvd and survives; inspect tells about it.
func TestServeAndInspect(t *testing.T) {
	config, dataDir := zooCfg(t, "clientPort=1", "tickTime=2000", "admin.enableServer=false", "preAllocSize=100", "maxClientCnxns=0")
	serve := func() *daemon { return start(t, kvdCommand("serve", "--config", config, "--listen", "127.0.0.1:0")) }
	d := serve()
	addr := d.ready()
	if d.stderr.find(`preAllocSize is ignored: `) == nil || d.stderr.find(`snapshots are triggered by log bytes`) == nil {
		t.Error("warnings or notes are missing")
	}
	writeAndRead(t, addr, "/a")

	if code, _, stderr := run(t, "inspect", dataDir); code != exitRefused || !strings.Contains(stderr, "in use") {
		t.Errorf("inspect of a running member: exit code %d, %q", code, stderr)
	}
	if code, _, stderr := run(t, "serve", "--config", config, "--listen", "127.0.0.1:0"); code != exitRefused || !strings.Contains(stderr, "in use") {
		t.Errorf("a second member on the directory: exit code %d, %q", code, stderr)
	}
	d.signal(syscall.SIGTERM)
	if code := d.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	d.onlyReady()

	code, stdout, stderr := run(t, "inspect", dataDir)
	if code != 0 || !strings.Contains(stdout, "verdict         log is sound") || !strings.Contains(stdout, "member          1\n") {
		t.Errorf("inspect: exit code %d, %q, %q", code, stdout, stderr)
	}
	for _, args := range [][]string{{"inspect", "-o", "json", dataDir}, {"inspect", dataDir, "--output=json"}, {"inspect", filepath.Join(dataDir, "kvd"), "-o", "json"}} {
		code, stdout, _ = run(t, args...)
		var f finding
		if err := json.Unmarshal([]byte(stdout), &f); code != 0 || err != nil || !f.Sound || !f.Votes || f.Member != 1 || f.Entries < 2 || f.Last == "0:0" {
			t.Errorf("%v: exit code %d, %v, %+v", args, code, err, f)
		}
	}

	d = serve()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c, err := client.Dial(ctx, d.ready())
	if err != nil {
		t.Fatal(err)
	}
	if data, _, err := c.Get(ctx, "/a"); err != nil || string(data) != "hello" {
		t.Errorf("after a restart: %q, %v", data, err)
	}
	_ = c.Close()
	d.signal(syscall.SIGKILL)
	d.exit()

	// A member that lost its log says so, and inspect does too.
	if err := os.RemoveAll(filepath.Join(dataDir, "kvd", "log")); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr = run(t, "inspect", dataDir)
	if code != exitFailed || !strings.Contains(stdout, "votes           no") || !strings.Contains(stderr, "not sound") {
		t.Errorf("inspect of a damaged member: exit code %d, %q, %q", code, stdout, stderr)
	}
}

// Three processes by ordinary configuration files, as in ZooKeeper's documentation.
func TestServeEnsemble(t *testing.T) {
	var servers, addrs []string
	for id := 1; id <= 3; id++ {
		host := fmt.Sprintf("127.0.77.%d", id)
		client := freePort(t, host)
		addrs = append(addrs, net.JoinHostPort(host, strconv.Itoa(client)))
		learner, election := freePort(t, host), freePort(t, host)
		servers = append(servers, fmt.Sprintf("server.%d=%s:%d:%d;%s:%d", id, host, learner, election, host, client))
	}
	common := append([]string{"tickTime=2000", "initLimit=10", "syncLimit=5", "extendedTypesEnabled=true", "4lw.commands.whitelist=*",
		"DigestAuthenticationProvider.superDigest=super:D/InIHSb7yEEbrWz8b9l71RjZJU="}, servers...)
	var daemons []*daemon
	for id := 1; id <= 3; id++ {
		config, dataDir := zooCfg(t, common...)
		cmd := kvdCommand("serve")
		switch id { // three ways to say the same
		case 1:
			if err := os.WriteFile(filepath.Join(dataDir, "myid"), []byte("1\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			cmd.Args = append(cmd.Args, "--config", config)
		case 2:
			cmd.Env = append(cmd.Env, "KVD_CONFIG="+config, "KVD_ID=2")
		case 3:
			cmd.Args = append(cmd.Args, "--id", "3", "--data", dataDir)
			for _, s := range servers {
				cmd.Args = append(cmd.Args, "--member", strings.TrimPrefix(s, "server."))
			}
		}
		daemons = append(daemons, start(t, cmd))
	}
	for i, d := range daemons {
		if got := d.ready(); got != addrs[i] {
			t.Errorf("member %d is ready at %s, want %s", i+1, got, addrs[i])
		}
	}
	all := strings.Join(addrs, ",")
	writeAndRead(t, all, "/a")
	// SIGTERM hands over: the others serve on.
	daemons[2].signal(syscall.SIGTERM)
	if code := daemons[2].exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	writeAndRead(t, addrs[0]+","+addrs[1], "/b")
}

// Wrong configuration is 2 with all problems in one message, and nothing is touched.
func TestRefusedConfiguration(t *testing.T) {
	config, dataDir := zooCfg(t, "tickTime=x", "clientport=1", "secureClientPort=2281", "server.1=a:1:1")
	code, stdout, stderr := run(t, "serve", "--config", config)
	if code != exitRefused || stdout != "" {
		t.Errorf("exit code %d, stdout %q", code, stdout)
	}
	for _, want := range []string{"tickTime", "unknown key clientport; the nearest known one is clientPort", "secureClientPort is refused", "server.1=a:1:1", "no client port"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("%q is missing in %s", want, stderr)
		}
	}
	if left, err := os.ReadDir(dataDir); err != nil || len(left) != 0 {
		t.Errorf("dataDir was touched: %v, %v", left, err)
	}

	data := t.TempDir()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"serve"}, "no configuration"},
		{[]string{"serve", "--config", config, "--id", "1"}, "--id contradicts --config"},
		{[]string{"serve", "--data", data, "--listen", ":0", "--member", "1=h:1"}, `member "1=h:1"`},
		{[]string{"serve", "--data", data, "--listen", ":0", "--id", "300"}, "no member id between 1 and 255"},
		{[]string{"serve", "--config", "/nowhere/zoo.cfg"}, "no such file"},
		{[]string{"inspect", "/nowhere"}, "no directory"},
		{[]string{"inspect", data}, "neither a log nor an identity"},
	} {
		code, stdout, stderr := run(t, c.args...)
		if code != exitRefused || stdout != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: exit code %d, stdout %q, stderr %q; want %q", c.args, code, stdout, stderr, c.want)
		}
	}
	if left, err := os.ReadDir(data); err != nil || len(left) != 0 {
		t.Errorf("the data directory was touched: %v, %v", left, err)
	}
}

// ZooKeeper's own data is not started over by accident.
func TestZooKeeperData(t *testing.T) {
	config, dataDir := zooCfg(t, "clientPort=1")
	if err := os.MkdirAll(filepath.Join(dataDir, "version-2"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dataDir, "version-2", "snapshot.0"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := run(t, "serve", "--config", config)
	if code != exitRefused || !strings.Contains(stderr, "--ignore-zookeeper-data") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
	d := start(t, kvdCommand("serve", "--ignore-zookeeper-data", "--config", config, "--listen", "127.0.0.1:0"))
	d.ready()
}

func TestUsage(t *testing.T) {
	for line, want := range map[string]string{
		"":                                    "no command given",
		"serv":                                `unknown command "serv" (did you mean "serve"?)`,
		"serve now":                           `surplus argument "now"`,
		"serve --confg x":                     "unknown flag --confg",
		"serve --config":                      "needs a value",
		"dev --members many":                  "invalid value",
		"dev --members 0":                     "--members must be",
		"dev --members 99":                    "--members must be",
		"dev --port 65535":                    "--port must be",
		"dev --port -1":                       "--port must be",
		"dev 3":                               `surplus argument "3"`,
		"dev --processes --metrics-listen :0": "cannot be combined",
		"inspect":                             "missing argument: inspect wants DIR",
		"inspect a b":                         `surplus argument "b"`,
		"inspect a -o xml":                    "neither text nor json",
		"serve --log-level loud":              "--log-level",
		"--log-level loud dev":                "--log-level",
	} {
		code, stdout, stderr := run(t, strings.Fields(line)...)
		if code != exitRefused || stdout != "" || !strings.Contains(stderr, want) || !strings.Contains(stderr, "usage: kvd") {
			t.Errorf("kvd %s: exit code %d, stdout %q, stderr %q; want %q", line, code, stdout, stderr, want)
		}
	}
	for _, line := range []string{"--help", "help", "serve --help", "dev -h", "inspect --help"} {
		code, stdout, _ := run(t, strings.Fields(line)...)
		if code != 0 || !strings.Contains(stdout, "kvd") {
			t.Errorf("kvd %s: exit code %d, stdout %q", line, code, stdout)
		}
	}
}

func TestMetrics(t *testing.T) {
	d := start(t, kvdCommand("serve", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"))
	d.ready()
	m := d.stderr.find(`msg=metrics url=(http://\S+)/metrics`)
	if m == nil {
		t.Fatal("no metrics address in the log")
	}
	for path, want := range map[string]string{"/metrics": `kvd_serving{member="1"} 1`, "/debug/pprof/": "goroutine"} {
		resp, err := http.Get(m[1] + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s: %s, %v, %.2000s", path, resp.Status, err, body)
		}
	}
	if !strings.Contains(d.stdout.text(), "ready") || strings.Contains(d.stdout.text(), "metrics") {
		t.Errorf("stdout %q", d.stdout.text())
	}
}

// In one process too: a member that dies stays dead, with a line that says so, and the last one ends it all.
func TestDevMemberDies(t *testing.T) {
	e := ensembletest.Start(t, 3)
	r, w := io.Pipe()
	var reader sync.WaitGroup
	stderr := newLines(r, &reader)
	outR, outW := io.Pipe()
	stdout := newLines(outR, &reader)
	g := &devGroup{stderr: w}
	for _, m := range e.Members {
		g.members = append(g.members, m)
	}
	result := make(chan error)
	go func() {
		result <- g.run(context.Background(), nil, outW, nil, e.Servers())
	}()
	if m := stdout.find(`^ready (.*)$`); m == nil || m[1] != e.Servers() {
		t.Fatalf("ready line %q", m)
	}
	for i := range 3 {
		e.CloseMember(t, i)
		if stderr.find(fmt.Sprintf(`^member %d died: .*; it stays dead$`, i+1)) == nil {
			t.Errorf("no line about member %d", i+1)
		}
	}
	if err := <-result; err == nil || !strings.Contains(err.Error(), "all members are dead") {
		t.Errorf("got %v", err)
	}
	_, _ = w.Close(), outW.Close()
	reader.Wait()
}

// The second signal does not wait for what the first one began.
func TestSecondSignalStopsAtOnce(t *testing.T) {
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	again := make(chan os.Signal, 1)
	entered, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	result := make(chan error)
	go func() {
		result <- orderly(syscall.SIGTERM, again, log, func(context.Context) {
			close(entered)
			<-release // an orderly stop that never ends
		})
	}()
	<-entered
	select {
	case err := <-result:
		t.Fatalf("returned %v without a second signal", err)
	default:
	}
	again <- syscall.SIGTERM
	select {
	case err := <-result:
		if err != nil {
			t.Errorf("got %v", err)
		}
	case <-time.After(limit):
		t.Fatal("the second signal changed nothing")
	}
}
