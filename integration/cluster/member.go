package cluster

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
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Member is one process of a cluster, started and ended any number of times on the same directory. Its
// methods may be called from any goroutine.
type Member struct {
	ID     int
	Dir    string // holds zoo.cfg, data/ and log.txt
	Client string // host:port of the client port

	prefix []string // before the command line
	kvd    string
	args   []string
	env    []string

	mu      sync.Mutex
	process *process // nil: not running
}

// process is one run of a member.
type process struct {
	cmd   *exec.Cmd
	ready chan struct{} // closed when it printed its ready line
	done  chan struct{} // closed when it has ended
	err   error         // valid after done
}

// LogFile is where the stderr of all runs goes.
func (m *Member) LogFile() string { return filepath.Join(m.Dir, "log.txt") }

// DataDir is the directory that kvd writes to.
func (m *Member) DataDir() string { return filepath.Join(m.Dir, "data", "kvd") }

// Start starts the process. It does not wait until it serves.
func (m *Member) Start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.process != nil {
		select {
		case <-m.process.done:
		default:
			return fmt.Errorf("member %d runs already", m.ID)
		}
	}
	log, err := os.OpenFile(m.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	line := append(slices.Clone(m.prefix), m.kvd, "serve", "--config", filepath.Join(m.Dir, "zoo.cfg"))
	line = append(line, m.args...)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append(os.Environ(), m.env...)
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		_ = log.Close()
		return err
	}
	if err := cmd.Start(); err != nil {
		_ = log.Close()
		return fmt.Errorf("start member %d: %w", m.ID, err)
	}
	p := &process{cmd: cmd, ready: make(chan struct{}), done: make(chan struct{})}
	m.process = p
	go p.watch(stdout, log)
	return nil
}

// watch reads the ready line, then waits for the end. It is the only goroutine of a run.
func (p *process) watch(stdout io.Reader, log io.Closer) {
	r := bufio.NewReader(stdout)
	for {
		line, err := r.ReadString('\n')
		if strings.HasPrefix(line, "ready ") {
			close(p.ready)
			_, _ = io.Copy(io.Discard, r)
			break
		}
		if err != nil {
			break
		}
	}
	p.err = p.cmd.Wait()
	_ = log.Close()
	close(p.done)
}

func (m *Member) current() *process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.process
}

// Running reports whether the process is there (it may be stopped or hang).
func (m *Member) Running() bool {
	p := m.current()
	if p == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Pid is the process id of the current or last run, 0 if there was none.
func (m *Member) Pid() int {
	if p := m.current(); p != nil {
		return p.cmd.Process.Pid
	}
	return 0
}

// WaitReady waits for the ready line of the current run.
func (m *Member) WaitReady(ctx context.Context) error {
	p := m.current()
	if p == nil {
		return fmt.Errorf("member %d was not started", m.ID)
	}
	select {
	case <-p.ready:
		return nil
	case <-p.done:
		return fmt.Errorf("member %d ended before it was ready: %v\n%s", m.ID, p.err, m.tail())
	case <-ctx.Done():
		return fmt.Errorf("member %d is not ready: %w\n%s", m.ID, context.Cause(ctx), m.tail())
	}
}

func (m *Member) tail() string {
	text, _ := os.ReadFile(m.LogFile())
	if len(text) > 4000 {
		text = text[len(text)-4000:]
	}
	return string(text)
}

// Signal sends a signal to the process, by its id.
func (m *Member) Signal(s syscall.Signal) error {
	p := m.current()
	if p == nil {
		return fmt.Errorf("member %d was not started", m.ID)
	}
	return p.cmd.Process.Signal(s)
}

// Wait waits for the end of the current run and returns its error (*exec.ExitError unless it exited 0).
func (m *Member) Wait(ctx context.Context) error {
	p := m.current()
	if p == nil {
		return nil
	}
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("member %d has not ended: %w", m.ID, context.Cause(ctx))
	}
}

// Kill sends SIGKILL and waits until the process is gone. It does nothing if there is none.
func (m *Member) Kill() {
	p := m.current()
	if p == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	<-p.done
}

// FourLetterWord sends a word to the client port and returns the answer.
func (m *Member) FourLetterWord(ctx context.Context, word string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", m.Client)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	if err := errors.Join(conn.SetDeadline(deadline)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, word); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return string(answer), err
}

// Mode is what the member's srvr calls it: leader, follower, observer, standalone.
func (m *Member) Mode(ctx context.Context) (string, error) {
	text, err := m.FourLetterWord(ctx, "srvr")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		if mode, ok := strings.CutPrefix(line, "Mode: "); ok {
			return strings.TrimSpace(mode), nil
		}
	}
	return "", fmt.Errorf("member %d: srvr names no mode: %q", m.ID, text)
}
