package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	ttl       = 20 // seconds; the least that Patroni allows
	pgBin     = "/usr/lib/postgresql/15/bin"
	pgUser    = "postgres"
	superuser = "super"
)

// postgresCluster is a set of Patroni nodes with one store.
type postgresCluster struct {
	dir   string
	store string // host:port,...
	nodes []*node
	owner *syscall.Credential // nil: Patroni runs as we do
}

// node is one Patroni with its PostgreSQL. It is used by one goroutine.
type node struct {
	name, dir  string
	rest       string // host:port of Patroni's API
	host, port string // of PostgreSQL
	owner      *syscall.Credential
	cmd        *exec.Cmd
	exited     chan struct{}
}

func (p *postgresCluster) scope() string { return "kvd" }

// create writes the nodes' configuration files.
func (p *postgresCluster) create(count int) error {
	for _, program := range []string{"patroni", "patronictl", filepath.Join(pgBin, "postgres"), "psql"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w (Debian: patroni, python3-kazoo, postgresql-15)", err)
		}
	}
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		u, err := user.Lookup(pgUser)
		if err != nil {
			return err
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		p.owner = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	for i := 1; i <= count; i++ {
		host := fmt.Sprintf("127.1.0.%d", i)
		rest, err := freePort(host)
		if err != nil {
			return err
		}
		port, err := freePort(host)
		if err != nil {
			return err
		}
		n := &node{name: fmt.Sprintf("pg%d", i), dir: filepath.Join(p.dir, fmt.Sprintf("pg%d", i)), host: host, port: port,
			rest: net.JoinHostPort(host, rest), owner: p.owner}
		p.nodes = append(p.nodes, n)
		if err := os.Mkdir(n.dir, 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(n.config(), []byte(p.configuration(n)), 0o644); err != nil {
			return err
		}
		if p.owner != nil {
			if err := errors.Join(os.Chown(n.dir, int(p.owner.Uid), int(p.owner.Gid)), os.Chown(n.config(), int(p.owner.Uid), int(p.owner.Gid))); err != nil {
				return err
			}
		}
	}
	return nil
}

func freePort(host string) (string, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

func (n *node) config() string { return filepath.Join(n.dir, "patroni.yml") }
func (n *node) data() string   { return filepath.Join(n.dir, "data") }

// configuration is a patroni.yml; what is in it of the store is what one has for ZooKeeper.
func (p *postgresCluster) configuration(n *node) string {
	var hosts []string
	for _, h := range strings.Split(p.store, ",") {
		hosts = append(hosts, "'"+h+"'")
	}
	return fmt.Sprintf(`scope: %[1]s
name: %[2]s
zookeeper:
  hosts: [%[3]s]
restapi:
  listen: %[4]s
  connect_address: %[4]s
bootstrap:
  dcs:
    ttl: %[5]d
    loop_wait: 2
    retry_timeout: 5
    maximum_lag_on_failover: 1048576
    postgresql:
      use_pg_rewind: true
      use_slots: true
      parameters:
        wal_keep_size: 128MB
        max_connections: 20
        shared_buffers: 16MB
        unix_socket_directories: '%[6]s'
  initdb:
    - encoding: UTF8
    - data-checksums
postgresql:
  listen: %[7]s:%[8]s
  connect_address: %[7]s:%[8]s
  data_dir: %[9]s
  bin_dir: %[10]s
  pgpass: %[6]s/pgpass
  pg_hba:
    - local all all trust
    - host all all 127.0.0.0/8 trust
    - host replication all 127.0.0.0/8 trust
  authentication:
    superuser: {username: %[11]s, password: super}
    replication: {username: replicator, password: replicator}
    rewind: {username: rewind, password: rewind}
`, p.scope(), n.name, strings.Join(hosts, ", "), n.rest, ttl, n.dir, n.host, n.port, n.data(), pgBin, superuser)
}

func (n *node) start() error {
	log, err := os.OpenFile(filepath.Join(n.dir, "patroni.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	n.cmd = exec.Command("patroni", n.config())
	n.cmd.Dir = n.dir
	n.cmd.Env = []string{"PATH=/usr/bin:/bin:" + pgBin, "HOME=" + n.dir, "LC_ALL=C.UTF-8"}
	n.cmd.Stdout, n.cmd.Stderr = log, log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: n.owner, Setpgid: true}
	if err := n.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", n.name, err)
	}
	exited := make(chan struct{})
	n.exited = exited
	go func(cmd *exec.Cmd) {
		_ = cmd.Wait()
		close(exited)
	}(n.cmd)
	return nil
}

func (n *node) pid() int { return n.cmd.Process.Pid }

func (n *node) running() bool {
	if n.exited == nil {
		return false
	}
	select {
	case <-n.exited:
		return false
	default:
		return true
	}
}

func (n *node) kill() {
	_ = n.cmd.Process.Kill()
	<-n.exited
}

// postmaster is the process id of PostgreSQL, 0 and an error if it has not written one.
func (n *node) postmaster() (int, error) {
	text, err := os.ReadFile(filepath.Join(n.data(), "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	return strconv.Atoi(strings.TrimSpace(first))
}

// member is one line of Patroni's view of the cluster.
type member struct {
	Name, Role, State string
	Timeline          int
}

// ask gets the cluster as one node sees it.
func (n *node) ask(ctx context.Context) ([]member, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.rest+"/cluster", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	var view struct{ Members []member }
	return view.Members, json.NewDecoder(resp.Body).Decode(&view)
}

// healthy returns the leader if every running node names it, and its standbys, count nodes in all, run on its timeline.
func (p *postgresCluster) healthy(ctx context.Context, count int) (*node, error) {
	var leader string
	for _, n := range p.nodes {
		if !n.running() {
			continue
		}
		members, err := n.ask(ctx)
		if err != nil {
			return nil, err
		}
		sees, well, timeline := "", 0, 0
		for _, m := range members {
			if m.Role == "leader" && m.State == "running" {
				sees, timeline = m.Name, m.Timeline
			}
		}
		for _, m := range members {
			if (m.State == "running" || m.State == "streaming") && m.Timeline == timeline {
				well++
			}
		}
		if sees == "" || well < count || (leader != "" && sees != leader) {
			return nil, fmt.Errorf("%s sees %+v", n.name, members)
		}
		leader = sees
	}
	for _, n := range p.nodes {
		if n.name == leader && n.running() {
			// Only a server that accepts writes is one.
			if out, err := n.sql(ctx, "select pg_is_in_recovery()"); err != nil || out != "f" {
				return nil, fmt.Errorf("%s in recovery: %q %w", leader, out, err)
			}
			return n, nil
		}
	}
	return nil, fmt.Errorf("no running leader, %q is named", leader)
}

// sql runs one statement and returns what it prints.
func (n *node) sql(ctx context.Context, statement string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", n.host, "-p", n.port, "-U", superuser, "-d", "postgres", "-c", statement)
	cmd.Env = append(os.Environ(), "PGCONNECT_TIMEOUT=5", "PGPASSWORD=super")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %s: %w: %s", n.name, statement, err, strings.TrimSpace(string(out)))
	}
	return strings.TrimSpace(string(out)), nil
}

func (n *node) timeline(ctx context.Context) (string, error) {
	return n.sql(ctx, "select timeline_id from pg_control_checkpoint()")
}

// ctl runs patronictl.
func (p *postgresCluster) ctl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "patronictl", append([]string{"-c", p.nodes[0].config()}, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// show prints what patronictl says of the cluster.
func (p *postgresCluster) show(ctx context.Context) error {
	out, err := p.ctl(ctx, "list", p.scope())
	if err != nil {
		return fmt.Errorf("patronictl list: %w\n%s", err, out)
	}
	fmt.Println(indent(out))
	return nil
}

// stop ends every node by its process id: Patroni stops its PostgreSQL when asked to; what does not end is killed.
func (p *postgresCluster) stop() error {
	for _, n := range p.nodes {
		if n.running() {
			_ = n.cmd.Process.Signal(syscall.SIGTERM)
		}
	}
	var errs []error
	for _, n := range p.nodes {
		if n.exited == nil {
			continue
		}
		select {
		case <-n.exited:
		case <-time.After(time.Minute):
			errs = append(errs, fmt.Errorf("%s did not stop when asked to", n.name))
			n.kill()
		}
		// A postgres whose Patroni was killed stays; its pid file says so.
		if pid, err := n.postmaster(); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	say("stopped")
	return errors.Join(errs...)
}
