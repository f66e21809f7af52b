package main

import (
	"context"
	"errors"

	"github.com/urfave/cli/v2"

	"kvd/cmd/internal/cliargs"
	"kvd/kv"
)

// get prints exactly the value's bytes, with a newline behind them only on a terminal.
func (p *program) get(c *cli.Context) error {
	path, err := pathArg(c, 1, 1)
	if err != nil {
		return err
	}
	s, err := dial(c)
	if err != nil {
		return err
	}
	defer s.Close()
	ctx, cancel := s.limit(c.Context)
	defer cancel()
	data, stat, err := s.Get(ctx, path)
	if err != nil {
		return s.fail(c.Context, "get", path, err)
	}
	if p.json {
		value, encoding := encodeValue(data)
		return p.printJSON(nodeJSON{Path: path, Value: &value, Encoding: encoding, Stat: statJSON(stat)})
	}
	if isTerminal(p.stdout) {
		data = append(data, '\n')
	}
	_, err = p.stdout.Write(data)
	return p.written(err)
}

// stat prints a node's Stat.
func (p *program) stat(c *cli.Context) error {
	path, err := pathArg(c, 1, 1)
	if err != nil {
		return err
	}
	s, err := dial(c)
	if err != nil {
		return err
	}
	defer s.Close()
	ctx, cancel := s.limit(c.Context)
	defer cancel()
	stat, err := s.Exists(ctx, path)
	if err != nil {
		return s.fail(c.Context, "stat", path, err)
	}
	if p.json {
		return p.printJSON(nodeJSON{Path: path, Stat: statJSON(stat)})
	}
	_, err = p.stdout.Write([]byte(statLines(stat)))
	return p.written(err)
}

// ls prints the sorted names of a node's children, or with -R the paths of everything from the node on.
func (p *program) ls(c *cli.Context) error {
	path := "/"
	if c.Args().Len() > 0 {
		var err error
		if path, err = pathArg(c, 1, 1); err != nil {
			return err
		}
	} else if err := cliargs.NArgs(c, 0, 1); err != nil {
		return err
	}
	s, err := dial(c)
	if err != nil {
		return err
	}
	defer s.Close()
	if c.Bool("recursive") {
		paths, err := s.walk(c.Context, path)
		if err != nil {
			return s.fail(c.Context, "list", path, err)
		}
		if p.json {
			return p.printJSON(nodeJSON{Path: path, Paths: &paths})
		}
		return p.printLines(paths)
	}
	ctx, cancel := s.limit(c.Context)
	defer cancel()
	names, stat, err := s.Children(ctx, path)
	if err != nil {
		return s.fail(c.Context, "list", path, err)
	}
	if p.json {
		if names == nil {
			names = []string{}
		}
		return p.printJSON(nodeJSON{Path: path, Children: &names, Stat: statJSON(stat)})
	}
	return p.printLines(names)
}

func (p *program) printLines(lines []string) error {
	var text []byte
	for _, line := range lines {
		text = append(append(text, line...), '\n')
	}
	_, err := p.stdout.Write(text)
	return p.written(err)
}

// walk returns the path and everything below it, depth first, each node before its children. Nodes that go
// away meanwhile are left out; only the first must exist.
func (s *session) walk(ctx context.Context, path string) ([]string, error) {
	var paths []string
	pending := []string{path}
	for len(pending) > 0 {
		next := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		limited, cancel := s.limit(ctx)
		names, _, err := s.Children(limited, next)
		cancel()
		if errors.Is(err, kv.ErrNoNode) && next != path {
			continue
		}
		if err != nil {
			return nil, err
		}
		paths = append(paths, next)
		for i := len(names) - 1; i >= 0; i-- {
			pending = append(pending, join(next, names[i]))
		}
	}
	return paths, nil
}

func join(parent, name string) string {
	if parent == "/" {
		return "/" + name
	}
	return parent + "/" + name
}
