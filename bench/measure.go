package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"kvd/bench/load"
)

// measure runs one driver process against a system and adds what its servers used meanwhile.
func (s *system) measure(ctx context.Context, c load.Config) (res load.Result, err error) {
	c.Servers = s.servers
	cmd := exec.CommandContext(ctx, s.driver[0], append(s.driver[1:len(s.driver):len(s.driver)], c.Args()...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return res, err
	}
	if err := cmd.Start(); err != nil {
		return res, err
	}
	defer func() {
		if werr := cmd.Wait(); err == nil && werr != nil && !interrupted(werr) {
			err = fmt.Errorf("driver of %s: %w", s.name, werr)
		}
	}()
	progress := isTerminal(os.Stderr)
	var before, after usage
	in, began, found := bufio.NewScanner(out), time.Time{}, false
	for in.Scan() {
		switch line := in.Text(); {
		case line == load.LineBegin:
			began = time.Now()
			if before, err = s.usage(); err != nil {
				return res, err
			}
		case line == load.LineEnd:
			if after, err = s.usage(); err != nil {
				return res, err
			}
		case strings.HasPrefix(line, load.LineProgress):
			if progress {
				fmt.Fprintf(os.Stderr, "\r  %s %s: %3.0f s, %s operations\x1b[K", s.name, c.Workload, time.Since(began).Seconds(), strings.TrimPrefix(line, load.LineProgress+" "))
			}
		default:
			found = true
			if err := json.Unmarshal([]byte(line), &res); err != nil {
				return res, fmt.Errorf("driver of %s: %q: %w", s.name, line, err)
			}
		}
	}
	if progress {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
	switch {
	case in.Err() != nil:
		return res, in.Err()
	case ctx.Err() != nil:
		return res, context.Cause(ctx)
	case !found:
		return res, fmt.Errorf("driver of %s ended without a result", s.name)
	case res.Operations == 0:
		return res, fmt.Errorf("%s answered nothing (%d errors, the first: %s)", s.name, res.Errors, res.FirstError)
	}
	n := float64(res.Operations)
	res.ServerCPU = float64((after.cpu - before.cpu).Microseconds()) / n
	res.ServerResident = after.resident
	res.ServerWritten = float64(after.written-before.written) / n
	return res, nil
}

// generatorBound is the share of the machine from which on a row says more of the generator than of the servers.
const generatorBound = 0.4

// isTerminal reports whether a file is a terminal.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
