package ensemble

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// claim takes the addresses that the configuration names and looks whether its directories can be used, before anything
// is written. All problems are in one *ConfigError; no listener is left open then.
func (c *Config) claim() error {
	var problems []error
	if c.FS == vfs.Default {
		for _, d := range []struct{ name, path string }{{"DataDir", c.DataDir}, {"LogDir", c.LogDir}} {
			if err := usableDirectory(d.path); err != nil {
				problems = append(problems, fmt.Errorf("%s %s cannot be used: %w", d.name, d.path, err))
			}
		}
	}
	for _, open := range []func() error{c.openClientListeners, c.openPeerListeners} {
		if err := open(); err != nil {
			problems = append(problems, err)
		}
	}
	if len(problems) == 0 {
		return nil
	}
	c.Listeners.close()
	return &ConfigError{Problems: problems}
}

// usableDirectory reports why a directory cannot be written, or cannot be made, without making it.
func usableDirectory(dir string) error {
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at):
			continue // it will be made
		case err != nil:
			return err
		case !info.IsDir():
			return fmt.Errorf("%s is no directory", at)
		}
		if err := writable(at); err != nil {
			return &fs.PathError{Op: "write", Path: at, Err: err}
		}
		return nil
	}
}

// openPeerListeners opens the member's own two peer ports if they were not handed in. A name that does not resolve yet is
// left to the transport, which tries again.
func (c *Config) openPeerListeners() error {
	own, ok := c.peer(c.ID)
	if c.alone() || !ok {
		return nil
	}
	var problems []error
	for _, p := range []struct {
		name string
		port int
		l    *net.Listener
	}{{"learner port", own.LearnerPort, &c.Listeners.Learner}, {"election port", own.ElectionPort, &c.Listeners.Election}} {
		if *p.l != nil {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort(own.Host, strconv.Itoa(p.port)))
		var name *net.DNSError
		switch {
		case err == nil:
			*p.l = l
		case !errors.As(err, &name):
			problems = append(problems, fmt.Errorf("%s: %w", p.name, err))
		}
	}
	return errors.Join(problems...)
}
