package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// limits are what this machine can do at most, measured in the same run as the stores: no store is faster than the disk that it
// waits for.
type limits struct {
	DiskP50   time.Duration // append 4 KiB + fdatasync, one process
	DiskPer   float64       // such appends a second
	QuorumP50 time.Duration // three processes do so at the same instant: the larger of the first and the faster of the other two
	EchoPer   float64       // framed requests of 128 bytes echoed over loopback, 16 connections × 16 outstanding, a second
}

// block is what one append writes.
const block = 4 << 10

// appender is one process's log file, which grows.
type appender struct {
	f   *os.File
	buf []byte
	at  int64
}

func newAppender(path string) (*appender, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return &appender{f: f, buf: make([]byte, block)}, nil
}

func (a *appender) append() (time.Duration, error) {
	start := time.Now()
	if _, err := a.f.WriteAt(a.buf, a.at); err != nil {
		return 0, err
	}
	if err := unix.Fdatasync(int(a.f.Fd())); err != nil {
		return 0, err
	}
	a.at += block
	return time.Since(start), nil
}

// appends is how many one measurement of the disk makes.
const appends = 2000

func measureDisk(ctx context.Context, dir string, appends int) (p50 time.Duration, perSecond float64, err error) {
	a, err := newAppender(filepath.Join(dir, "disk-limit"))
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, a.f.Close(), os.Remove(a.f.Name())) }()
	var took []time.Duration
	start := time.Now()
	for range appends {
		if ctx.Err() != nil {
			return 0, 0, context.Cause(ctx)
		}
		d, err := a.append()
		if err != nil {
			return 0, 0, err
		}
		took = append(took, d)
	}
	perSecond = float64(appends) / time.Since(start).Seconds()
	slices.Sort(took)
	return took[len(took)/2], perSecond, nil
}

// appendLoop is the helper process of measureQuorum: for each line that it reads it appends once and says how long that took.
func appendLoop(path string) error {
	a, err := newAppender(path)
	if err != nil {
		return err
	}
	defer func() { _ = a.f.Close() }()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		d, err := a.append()
		if err != nil {
			return err
		}
		if _, err := fmt.Println(int64(d)); err != nil {
			return err
		}
	}
	return nil
}

// measureQuorum is what a write costs that three processes must have on one file system, two of them at least, the first in any case: the least
// that a client of a leader waits.
func measureQuorum(ctx context.Context, dir string, appends int) (p50 time.Duration, err error) {
	type helper struct {
		cmd *exec.Cmd
		in  io.WriteCloser
		out *bufio.Scanner
	}
	var helpers []helper
	defer func() {
		for _, h := range helpers {
			err = errors.Join(err, h.in.Close(), h.cmd.Wait())
		}
	}()
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	for i := range 3 {
		path := filepath.Join(dir, fmt.Sprintf("quorum-limit-%d", i))
		defer func() { err = errors.Join(err, os.Remove(path)) }()
		cmd := exec.CommandContext(ctx, self, "append-loop", path)
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			return 0, err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return 0, err
		}
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		helpers = append(helpers, helper{cmd, in, bufio.NewScanner(out)})
	}
	var took []time.Duration
	for range appends {
		for _, h := range helpers {
			if _, err := io.WriteString(h.in, "\n"); err != nil {
				return 0, err
			}
		}
		var each [3]time.Duration
		for i, h := range helpers {
			if !h.out.Scan() {
				return 0, errors.New("a helper that appends has ended")
			}
			if _, err := fmt.Sscan(strings.TrimSpace(h.out.Text()), (*int64)(&each[i])); err != nil {
				return 0, err
			}
		}
		took = append(took, max(each[0], min(each[1], each[2])))
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// measureEcho is what two processes exchange at most over loopback: one that sends back each frame that it reads, all that has
// gathered at once, and this one, which keeps 16 connections with 16 frames each busy.
func measureEcho(ctx context.Context, d time.Duration) (perSecond float64, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, self, "echo-server")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	}()
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return 0, err
	}
	const conns, depth = 16, 16
	counts := make(chan int64, conns)
	start := time.Now()
	for range conns {
		go func() {
			n, err := echoClient(strings.TrimSpace(addr), depth, start.Add(d))
			if err != nil {
				n = -1
			}
			counts <- n
		}()
	}
	var sum int64
	for range conns {
		n := <-counts
		if n < 0 {
			return 0, errors.New("echo over loopback failed")
		}
		sum += n
	}
	return float64(sum) / time.Since(start).Seconds(), nil
}

// frameBytes is a setData of 128 bytes with its header.
const frameBytes = 176

func echoClient(addr string, depth int, end time.Time) (n int64, err error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	frame := binary.BigEndian.AppendUint32(nil, frameBytes)
	frame = append(frame, make([]byte, frameBytes)...)
	r, w := bufio.NewReaderSize(c, 64<<10), bufio.NewWriterSize(c, 64<<10)
	for range depth {
		_, _ = w.Write(frame) // Flush says it
	}
	for time.Now().Before(end) {
		if err := w.Flush(); err != nil {
			return n, err
		}
		for first := true; first || r.Buffered() >= len(frame); first = false {
			if _, err := io.ReadFull(r, frame); err != nil {
				return n, err
			}
			n++
			_, _ = w.Write(frame)
		}
	}
	return n, nil
}

// echoServer is the helper process of measureEcho.
func echoServer() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if _, err := fmt.Println(l.Addr()); err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer func() { _ = c.Close() }()
			r, w := bufio.NewReaderSize(c, 64<<10), bufio.NewWriterSize(c, 64<<10)
			buf := make([]byte, 4+frameBytes)
			for {
				if _, err := io.ReadFull(r, buf); err != nil {
					return
				}
				if _, err := w.Write(buf); err != nil {
					return
				}
				if r.Buffered() < len(buf) && w.Flush() != nil {
					return
				}
			}
		}()
	}
}

// measureLimits takes all limits, those of the disk with so many appends each.
func measureLimits(ctx context.Context, dir string, appends int) (l limits, err error) {
	if l.DiskP50, l.DiskPer, err = measureDisk(ctx, dir, appends); err != nil {
		return l, fmt.Errorf("disk: %w", err)
	}
	if l.QuorumP50, err = measureQuorum(ctx, dir, appends); err != nil {
		return l, fmt.Errorf("quorum sync: %w", err)
	}
	if l.EchoPer, err = measureEcho(ctx, 3*time.Second); err != nil {
		return l, fmt.Errorf("echo: %w", err)
	}
	return l, nil
}
