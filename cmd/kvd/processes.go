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
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"kvd/ensemble"
)

// A child gets its three listening sockets as open files, so that the ports were never free for somebody else.
// Their numbers in the child follow stdin, stdout and stderr.
const (
	firstInherited = 3
	inheritedFiles = "client,learner,election"
)

// inheritListeners takes over the sockets that kvd dev opened for this process.
func inheritListeners(names string) (l ensemble.Listeners, err error) {
	for i, name := range strings.Split(names, ",") {
		f := os.NewFile(uintptr(firstInherited+i), name)
		ln, err := net.FileListener(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return l, fmt.Errorf("inherited %s socket: %w", name, err)
		}
		switch name {
		case "client":
			l.Client = append(l.Client, ln)
		case "learner":
			l.Learner = ln
		case "election":
			l.Election = ln
		default:
			return l, fmt.Errorf("inherited socket %q is not known", name)
		}
	}
	return l, nil
}

// childError is the end of a child that never served.
type childError struct {
	id   ensemble.MemberID
	code int
	err  error
}

func (e *childError) Error() string { return fmt.Sprintf("member %d did not start: %v", e.id, e.err) }
func (e *childError) Unwrap() error { return e.err }

// child is the process of one member.
type child struct {
	member *devMember
	cmd    *exec.Cmd
	stdout io.ReadCloser
}

// childEvent is what happened to a child: it is ready (end is false), or has ended with err.
type childEvent struct {
	*child
	end bool
	err error
}

// devProcesses runs one process for each member until a signal or the end of the last one.
func devProcesses(ctx context.Context, members []devMember, logLevel string, signals <-chan os.Signal, stdout, stderr io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		closeListeners(members)
		return err
	}
	children := make([]*child, len(members))
	for i := range members {
		if children[i], err = newChild(ctx, self, members, i, logLevel, stderr); err != nil {
			closeListeners(members)
			return err
		}
	}
	events := make(chan childEvent, 2*len(children))
	var watchers sync.WaitGroup
	startErr := startOnOneThread(children, func(c *child) {
		_, _ = fmt.Fprintf(stderr, "member %d pid %d client %s\n", c.member.peer.ID, c.cmd.Process.Pid, c.member.peer.ClientAddr)
		watchers.Go(func() { c.watch(events) })
	})
	// The children have their copies. Were these kept open, the port of a dead member would accept connections
	// that nobody serves.
	closeListeners(members)
	g := &childGroup{children: children, events: events, stderr: stderr, alive: map[*child]bool{}}
	for _, c := range children {
		if c.cmd.Process != nil {
			g.alive[c] = true
		}
	}
	defer watchers.Wait()
	defer g.killAll()
	if startErr != nil {
		return startErr
	}
	return g.run(signals, stdout, addresses(members))
}

// newChild prepares the command of one member.
func newChild(ctx context.Context, self string, members []devMember, i int, logLevel string, stderr io.Writer) (*child, error) {
	m := &members[i]
	args := []string{"--log-level", logLevel, "serve", "--id", strconv.FormatUint(uint64(m.peer.ID), 10), "--data", m.dir, "--listen", m.peer.ClientAddr, "--inherit", inheritedFiles}
	if len(members) > 1 {
		for _, o := range members {
			host, port, err := net.SplitHostPort(o.peer.ClientAddr)
			if err != nil {
				return nil, err
			}
			args = append(args, "--member", fmt.Sprintf("%d=%s:%d:%d;%s:%s", o.peer.ID, o.peer.Host, o.peer.LearnerPort, o.peer.ElectionPort, host, port))
		}
	}
	cmd := exec.CommandContext(ctx, self, args...)
	for _, v := range os.Environ() { // KVD_CONFIG and its like are about another member
		if !strings.HasPrefix(v, "KVD_") || strings.HasPrefix(v, "KVD_TEST_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Stderr = stderr
	cmd.SysProcAttr = childAttributes()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	for _, l := range []net.Listener{m.listeners.Client[0], m.listeners.Learner, m.listeners.Election} {
		f, err := l.(*net.TCPListener).File()
		if err != nil {
			return nil, err
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	return &child{member: m, cmd: cmd, stdout: stdout}, nil
}

// startOnOneThread starts the children on a thread that lives as long as this process: the kernel sends the
// parent-death signal when the thread that forked ends, which a thread of the Go scheduler may do any time.
func startOnOneThread(children []*child, started func(*child)) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		for _, c := range children {
			err := c.cmd.Start()
			for _, f := range c.cmd.ExtraFiles {
				err = errors.Join(err, f.Close())
			}
			if err != nil {
				result <- fmt.Errorf("member %d: %w", c.member.peer.ID, err)
				break
			}
			started(c)
		}
		close(result)
		select {}
	}()
	return <-result
}

// watch reports the ready line and the end.
func (c *child) watch(events chan<- childEvent) {
	r := bufio.NewReader(c.stdout)
	for {
		line, err := r.ReadString('\n')
		if strings.HasPrefix(line, "ready ") {
			events <- childEvent{child: c}
		}
		if err != nil {
			break
		}
	}
	events <- childEvent{c, true, c.cmd.Wait()}
}

// childGroup is the running children. It belongs to one goroutine.
type childGroup struct {
	children []*child
	events   chan childEvent
	stderr   io.Writer
	alive    map[*child]bool
	ready    int
	stopping bool
}

func (g *childGroup) run(signals <-chan os.Signal, stdout io.Writer, addrs string) error {
	for len(g.alive) > 0 {
		select {
		case e := <-g.events:
			if !e.end {
				if g.ready++; g.ready == len(g.children) {
					announce(stdout, g.stderr, addrs)
				}
				continue
			}
			delete(g.alive, e.child)
			if err := g.ended(e); err != nil {
				return err
			}
		case <-signals:
			// The children are in process groups of their own, so a Ctrl-C at a terminal reaches only this process:
			// passing it on is their first signal, or their second.
			g.stopping = true
			for c := range g.alive {
				_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may just have ended
			}
		}
	}
	if g.stopping {
		return nil
	}
	return errors.New("all members are dead")
}

// ended tells of the end of a child. It is an error if the ensemble never came up because of it.
func (g *childGroup) ended(e childEvent) error {
	if g.stopping {
		return nil
	}
	id, pid := e.member.peer.ID, e.cmd.Process.Pid
	code := e.cmd.ProcessState.ExitCode()
	if g.ready < len(g.children) && code > 0 {
		return &childError{id, code, e.err}
	}
	reason := "it exited with 0"
	if e.err != nil {
		reason = e.err.Error()
	}
	_, _ = fmt.Fprintf(g.stderr, "member %d pid %d died (%s); it stays dead\n", id, pid, reason)
	return nil
}

// killAll ends what is left when the parent gives up.
func (g *childGroup) killAll() {
	for c := range g.alive {
		_ = c.cmd.Process.Kill() // it may just have ended
	}
}
