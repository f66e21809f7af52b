package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"kvd/cmd/internal/cliargs"
	"kvd/ensemble"
)

func devCommand() *cli.Command {
	return &cli.Command{
		Name:  "dev",
		Usage: "run several members on the loopback interface",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "members", Value: 3, Usage: "`NUMBER` of members"},
			&cli.IntFlag{Name: "port", Value: 2181, Usage: "client `PORT` of the first member, the others follow; 0 takes them from the kernel"},
			&cli.StringFlag{Name: "dir", Usage: "keep the data in `DIR` (default: a temporary directory, removed at the end)"},
			&cli.BoolFlag{Name: "processes", Usage: "one process for each member, to be killed one by one"},
			&cli.StringFlag{Name: "metrics-listen", Usage: "serve /metrics (Prometheus) and /debug/pprof on `HOST:PORT`; not with --processes"},
		},
		Action: dev,
	}
}

// maxDevMembers keeps a typing error from starting hundreds of members.
const maxDevMembers = 15

func dev(c *cli.Context) (err error) {
	if err := cliargs.NArgs(c, 0, 0); err != nil {
		return err
	}
	n, port := c.Int("members"), c.Int("port")
	if n < 1 || n > maxDevMembers {
		return cliargs.Usagef(c, "--members must be 1 to %d", maxDevMembers)
	}
	if port < 0 || port+n-1 > 65535 {
		return cliargs.Usagef(c, "--port must be 0 to %d", 65536-n)
	}
	if c.Bool("processes") && c.String("metrics-listen") != "" {
		return cliargs.Usagef(c, "--metrics-listen cannot be combined with --processes")
	}
	log, err := newLogger(c)
	if err != nil {
		return err
	}
	// From here on a signal must not skip the removal of a temporary directory.
	signals, release := stopSignals()
	defer release()
	dir := c.String("dir")
	if dir == "" {
		if dir, err = os.MkdirTemp("", "kvd-dev-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	members, err := listenDev(n, port, dir)
	if err != nil {
		return err
	}
	stderr := c.App.ErrWriter
	if c.Bool("processes") {
		return devProcesses(c.Context, members, c.String("log-level"), signals, c.App.Writer, stderr)
	}

	metrics, err := listenMetrics(c.String("metrics-listen"))
	if err != nil {
		closeListeners(members)
		return err
	}
	if os.Getenv("GOGC") == "" {
		defer ensemble.TuneGC()()
	}
	g := &devGroup{stderr: stderr}
	for i := range members {
		cfg := members[i].config(members)
		cfg.Logger = log
		var m *ensemble.Keeper
		early, err := untilSignal(c.Context, signals, func(ctx context.Context) (err error) {
			m, err = ensemble.Keep(ctx, cfg)
			return err
		})
		if m != nil {
			g.members = append(g.members, m)
		}
		if err != nil || early != nil {
			closeListeners(members[i+1:])
			g.close()
			if early != nil && (err == nil || errors.Is(err, context.Canceled)) {
				return nil
			}
			return err
		}
	}
	defer serveMetrics(metrics, g.members, log)()
	return g.run(c.Context, signals, c.App.Writer, func(s os.Signal) error { return stopMembers(g.members, s, signals, log) }, addresses(members))
}

// devMember is one member to be started.
type devMember struct {
	peer      ensemble.Peer
	dir       string
	listeners ensemble.Listeners
}

// listenDev opens every port first: the members must know each other's, and a port that is taken is one error.
func listenDev(n, port int, dir string) ([]devMember, error) {
	members := make([]devMember, n)
	for i := range members {
		m := &members[i]
		m.dir = filepath.Join(dir, fmt.Sprintf("member-%d", i+1))
		m.peer = ensemble.Peer{ID: ensemble.MemberID(i + 1), Host: "127.0.0.1"}
		clientPort := 0
		if port != 0 {
			clientPort = port + i
		}
		client, err := listenLoopback(clientPort)
		if err == nil {
			m.listeners.Client = []net.Listener{client}
			m.peer.ClientAddr = client.Addr().String()
			if m.listeners.Learner, err = listenLoopback(0); err == nil {
				m.listeners.Election, err = listenLoopback(0)
			}
		}
		if err != nil {
			closeListeners(members)
			if clientPort != 0 {
				err = fmt.Errorf("%w (--port 0 takes free ports)", err)
			}
			return nil, err
		}
		m.peer.LearnerPort, m.peer.ElectionPort = portOf(m.listeners.Learner), portOf(m.listeners.Election)
	}
	return members, nil
}

func listenLoopback(port int) (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
}

func portOf(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

// closeListeners closes what is open; Close of a listener fails only if it is closed already.
func closeListeners(members []devMember) {
	for _, m := range members {
		for _, l := range append([]net.Listener{m.listeners.Learner, m.listeners.Election}, m.listeners.Client...) {
			if l != nil {
				_ = l.Close()
			}
		}
	}
}

// config is the member's configuration in this process. A single member stands alone.
func (m *devMember) config(all []devMember) ensemble.Config {
	cfg := ensemble.Config{ID: m.peer.ID, DataDir: m.dir, Listeners: m.listeners}
	if len(all) > 1 {
		for i := range all {
			cfg.Members = append(cfg.Members, all[i].peer)
		}
		return cfg
	}
	_ = m.listeners.Learner.Close()
	_ = m.listeners.Election.Close()
	cfg.Listeners = ensemble.Listeners{Client: m.listeners.Client}
	return cfg
}

func addresses(members []devMember) string {
	var all []string
	for i := range members {
		all = append(all, members[i].peer.ClientAddr)
	}
	return strings.Join(all, ",")
}

// announce prints what to paste, then the line that says that writes are served.
func announce(stdout, stderr io.Writer, addrs string) {
	_, _ = fmt.Fprintf(stderr, "export KV_SERVER=%s\n", addrs)
	printReady(stdout, addrs)
}

// devGroup is the members of this process.
type devGroup struct {
	members []runningMember
	stderr  io.Writer
}

func (g *devGroup) close() {
	for _, m := range g.members {
		_ = m.Close() // the error that led here is the one to report
	}
}

// run waits for all members to serve, then for a signal or the end of the last member.
func (g *devGroup) run(ctx context.Context, signals <-chan os.Signal, stdout io.Writer, stop func(os.Signal) error, addrs string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ready := make(chan error, 1)
	go func() {
		for _, m := range g.members {
			if err := m.WaitServing(ctx); err != nil {
				ready <- err
				return
			}
		}
		ready <- nil
	}()
	ended := make(chan runningMember, len(g.members))
	for _, m := range g.members {
		go func() {
			<-m.Done()
			ended <- m
		}()
	}
	left := len(g.members)
	for {
		select {
		case err := <-ready:
			if err != nil {
				g.close()
				return err
			}
			announce(stdout, g.stderr, addrs)
		case m := <-ended:
			left--
			_, _ = fmt.Fprintf(g.stderr, "member %d died: %v; it stays dead\n", m.ID(), memberEnd(m))
			if left == 0 {
				return errors.New("all members are dead")
			}
		case s := <-signals:
			return stop(s)
		}
	}
}
