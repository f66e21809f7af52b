package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// Options describe a cluster.
type Options struct {
	Members int // voters, ids 1..Members. Default 3
	// Observers follow them, with the next ids.
	Observers int
	Dir       string // data, logs and configuration files go below it; it must exist
	Kvd       string // path of the binary
	// ConfigLines are added to each member's zoo.cfg, which the members are started with.
	ConfigLines []string
	// Args are added to `kvd serve`.
	Args []string
	// Env is added to the members' environment.
	Env []string
	// Host gives member id an address of its own in place of a loopback one, from which the caller must be able to reach
	// it, and Prefix what its command line begins with (a command that becomes the member, such as nsenter). nil: neither.
	Host   func(id int) string
	Prefix func(id int) []string
	// Via gives the address (host:port) by which member from reaches the given one of member to, such as that of a
	// proxy. nil: directly.
	Via func(from, to int, addr string) (string, error)
}

// Cluster is a set of members with fixed addresses. Starting and killing them is up to the caller.
type Cluster struct {
	Members []*Member
	opts    Options
}

// subnet numbers the clusters of this process, so that two of them never share an address.
var subnet atomic.Int32

// New writes one directory per member with zoo.cfg and myid. It starts nothing.
func New(o Options) (*Cluster, error) {
	if o.Members == 0 {
		o.Members = 3
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	o.Dir = dir
	c := &Cluster{opts: o}
	net3 := int(subnet.Add(1))
	all := o.Members + o.Observers
	lines := make([]strings.Builder, all) // the server lines, as each member sees them
	for id := 1; id <= all; id++ {
		host := fmt.Sprintf("127.0.%d.%d", net3%250+1, id)
		var prefix []string
		ports, err := []int{2181, 2888, 3888}, error(nil)
		if o.Host != nil {
			host = o.Host(id) // nobody else is there
		} else {
			ports, err = freePorts(host, 3)
		}
		if err != nil {
			return nil, err
		}
		if o.Prefix != nil {
			prefix = o.Prefix(id)
		}
		c.Members = append(c.Members, &Member{
			prefix: prefix,
			ID:     id,
			Dir:    filepath.Join(o.Dir, fmt.Sprintf("member-%d", id)),
			Client: net.JoinHostPort(host, fmt.Sprint(ports[0])),
			kvd:    o.Kvd,
			args:   o.Args,
			env:    o.Env,
		})
		for viewer := range lines {
			quorum, election := net.JoinHostPort(host, fmt.Sprint(ports[1])), net.JoinHostPort(host, fmt.Sprint(ports[2]))
			if o.Via != nil && viewer+1 != id {
				var err1, err2 error
				quorum, err1 = o.Via(viewer+1, id, quorum)
				election, err2 = o.Via(viewer+1, id, election)
				if err := errors.Join(err1, err2); err != nil {
					return nil, err
				}
			}
			at, port, err := net.SplitHostPort(election)
			if err != nil {
				return nil, err
			}
			role := ""
			if id > o.Members {
				role = ":observer"
			}
			fmt.Fprintf(&lines[viewer], "server.%d=%s:%s%s;%s:%d\n", id, quorum, port, role, host, ports[0])
			if other, _, err := net.SplitHostPort(quorum); err != nil || other != at {
				return nil, fmt.Errorf("one host for both ports of member %d: %s, %s", id, quorum, election)
			}
		}
	}
	for i, m := range c.Members {
		data := filepath.Join(m.Dir, "data")
		if err := os.MkdirAll(data, 0o755); err != nil {
			return nil, err
		}
		host, port, err := net.SplitHostPort(m.Client)
		if err != nil {
			return nil, err
		}
		text := fmt.Sprintf("tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir=%s\nclientPort=%s\nclientPortAddress=%s\n", data, port, host)
		if all > 1 {
			text += lines[i].String()
		}
		for _, l := range o.ConfigLines {
			text += l + "\n"
		}
		if err := errors.Join(
			os.WriteFile(filepath.Join(m.Dir, "zoo.cfg"), []byte(text), 0o644),
			os.WriteFile(filepath.Join(data, "myid"), []byte(fmt.Sprintln(m.ID)), 0o644),
		); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// freePorts returns n distinct ports that were free on host a moment ago.
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

// Servers are the client addresses of all members, separated by commas.
func (c *Cluster) Servers() string {
	var all []string
	for _, m := range c.Members {
		all = append(all, m.Client)
	}
	return strings.Join(all, ",")
}

// Start starts every member and waits until all are ready or ctx ends.
func (c *Cluster) Start(ctx context.Context) error {
	for _, m := range c.Members {
		if err := m.Start(); err != nil {
			return err
		}
	}
	for _, m := range c.Members {
		if err := m.WaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Stop kills every member that runs and waits for them.
func (c *Cluster) Stop() {
	for _, m := range c.Members {
		m.Kill()
	}
}

// Leader waits until a member says that it leads, and returns it.
func (c *Cluster) Leader(ctx context.Context) (*Member, error) {
	for {
		for _, m := range c.Members {
			if !m.Running() {
				continue
			}
			if mode, err := m.Mode(ctx); err == nil && (mode == "leader" || mode == "standalone") {
				return m, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("no member calls itself leader: %w", context.Cause(ctx))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Logs returns the end of every member's log, for the report of a failure.
func (c *Cluster) Logs(maxBytes int) string {
	var b strings.Builder
	for _, m := range c.Members {
		text, err := os.ReadFile(m.LogFile())
		if err != nil {
			text = []byte(err.Error())
		}
		if len(text) > maxBytes {
			text = text[len(text)-maxBytes:]
		}
		fmt.Fprintf(&b, "=== member %d (%s)\n%s\n", m.ID, m.Client, text)
	}
	return b.String()
}
