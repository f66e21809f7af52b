package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"

	"github.com/urfave/cli/v2"

	"kvd/cmd/internal/cliargs"
	"kvd/kv"
	"kvd/kv/client"
	"kvd/kv/wire"
)

// set sets a value; without --existing or --version it creates what is missing.
func (p *program) set(c *cli.Context) error {
	path, err := pathArg(c, 2, 2)
	if err != nil {
		return err
	}
	version := wire.AnyVersion
	if c.IsSet("version") {
		if version, err = versionFlag(c); err != nil {
			return err
		}
	}
	value, err := p.valueArg(c, 1)
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
	stat, err := s.Set(ctx, path, value, version)
	if errors.Is(err, kv.ErrNoNode) && !c.Bool("existing") && !c.IsSet("version") {
		stat, err = s.createOrSet(ctx, path, value)
	}
	if err != nil {
		return s.fail(c.Context, "set", path, err)
	}
	if p.json {
		return p.printJSON(nodeJSON{Path: path, Stat: statJSON(stat)})
	}
	return nil
}

func versionFlag(c *cli.Context) (int32, error) {
	v := c.Int("version")
	if v < -1 || int(int32(v)) != v {
		return 0, cliargs.Usagef(c, "--version %d is no version", v)
	}
	return int32(v), nil
}

// createRounds bounds how often createOrSet begins again because somebody removes or creates the same nodes.
const createRounds = 10

// createOrSet makes the node, its missing parents first. Others may create and remove the same nodes meanwhile:
// then it starts again. The chroot is not among the parents: if it is missing, the error is kv.ErrNoNode.
func (s *session) createOrSet(ctx context.Context, p string, value []byte) (kv.Stat, error) {
	for round := 1; ; round++ {
		_, stat, err := s.Create(ctx, p, value, kv.FlagPersistent)
		switch {
		case errors.Is(err, kv.ErrNodeExists):
			if stat, err = s.Set(ctx, p, value, wire.AnyVersion); !errors.Is(err, kv.ErrNoNode) {
				return stat, err
			}
		case errors.Is(err, kv.ErrNoNode):
			if err := s.createParents(ctx, p); err != nil {
				return kv.Stat{}, err
			}
		default:
			return stat, err
		}
		if round == createRounds {
			return kv.Stat{}, fmt.Errorf("nodes are removed as fast as they are created: %w", kv.ErrNoNode)
		}
	}
}

// createParents makes every missing node above p. That the topmost one cannot be made either means that the
// chroot is missing.
func (s *session) createParents(ctx context.Context, p string) error {
	if s.chroot != "" {
		if _, err := s.Exists(ctx, "/"); errors.Is(err, kv.ErrNoNode) {
			return fmt.Errorf("the chroot %s does not exist: %w", s.chroot, kv.ErrNoNode)
		} else if err != nil {
			return err
		}
	}
	var missing []string
	for dir := path.Dir(p); dir != "/"; dir = path.Dir(dir) {
		missing = append(missing, dir)
	}
	for i := len(missing) - 1; i >= 0; i-- {
		_, _, err := s.Create(ctx, missing[i], []byte{}, kv.FlagPersistent)
		if errors.Is(err, kv.ErrNoNode) {
			return nil // a parent is gone again: the caller counts its rounds
		}
		if err != nil && !errors.Is(err, kv.ErrNodeExists) {
			return err
		}
	}
	return nil
}

// create makes a node and prints its real path. With -e it then holds the session until a signal.
func (p *program) create(c *cli.Context) error {
	if err := cliargs.NArgs(c, 1, 2); err != nil {
		return err
	}
	path := c.Args().First()
	sequential, ephemeral := c.Bool("sequential"), c.Bool("ephemeral")
	if !strings.HasPrefix(path, "/") {
		return cliargs.Usagef(c, "path %q does not begin with a slash", path)
	}
	if strings.HasSuffix(path, "/") && !sequential {
		return cliargs.Usagef(c, "path %q ends in a slash, which only -s allows", path)
	}
	named := path
	if sequential {
		named += "0" // the server appends a number
	}
	if err := validPath(c, named); err != nil {
		return err
	}
	flags := kv.FlagPersistent
	switch {
	case sequential && ephemeral:
		flags = kv.FlagEphemeralSequential
	case sequential:
		flags = kv.FlagSequential
	case ephemeral:
		flags = kv.FlagEphemeral
	}
	value := []byte{}
	if c.Args().Len() > 1 {
		var err error
		if value, err = p.valueArg(c, 1); err != nil {
			return err
		}
	}
	s, err := dial(c)
	if err != nil {
		return err
	}
	defer s.Close()
	ctx, cancel := s.limit(c.Context)
	defer cancel()
	name, stat, err := s.Create(ctx, path, value, flags)
	if err != nil {
		return s.fail(c.Context, "create", path, err)
	}
	if p.json {
		err = p.printJSON(nodeJSON{Path: name, Stat: statJSON(stat)})
	} else {
		err = p.println(name)
	}
	if err != nil || !ephemeral {
		return err
	}
	select {
	case <-c.Context.Done():
		return context.Cause(c.Context)
	case <-s.Done():
		return s.fail(c.Context, "hold", name, s.Err())
	}
}

// rm removes a node, with -r everything below it first.
func (p *program) rm(c *cli.Context) error {
	path, err := pathArg(c, 1, 1)
	if err != nil {
		return err
	}
	version := wire.AnyVersion
	if c.IsSet("version") {
		if version, err = versionFlag(c); err != nil {
			return err
		}
		if c.Bool("recursive") {
			return cliargs.Usagef(c, "--version and -r contradict each other")
		}
	}
	if path == "/" {
		return cliargs.Usagef(c, "the root cannot be removed")
	}
	s, err := dial(c)
	if err != nil {
		return err
	}
	defer s.Close()
	if c.Bool("recursive") {
		err = s.removeAll(c.Context, path)
	} else {
		ctx, cancel := s.limit(c.Context)
		defer cancel()
		err = s.Delete(ctx, path, version)
	}
	if errors.Is(err, kv.ErrNoNode) && c.Bool("force") {
		return nil
	}
	if err != nil {
		return s.fail(c.Context, "remove", path, err)
	}
	return nil
}

// removeRounds bounds how often removeAll begins again because somebody creates nodes where it removes.
const removeRounds = 10

// removeAll removes a node and everything below it, children first.
func (s *session) removeAll(ctx context.Context, path string) error {
	for round := 1; ; round++ {
		paths, err := s.walk(ctx, path)
		if err != nil {
			if round > 1 && errors.Is(err, kv.ErrNoNode) {
				return nil // another one was faster
			}
			return err
		}
		err = s.removeList(ctx, paths)
		if !errors.Is(err, kv.ErrNotEmpty) {
			return err
		}
		if round == removeRounds {
			return fmt.Errorf("nodes appear as fast as they are removed: %w", kv.ErrNotEmpty)
		}
	}
}

// removeWindow is how many removals are under way at once.
const removeWindow = 256

// removeList removes paths from the last to the first. They are pipelined: one session's requests are done in
// order. A node that is gone is no error.
func (s *session) removeList(ctx context.Context, paths []string) error {
	var mu sync.Mutex
	var first error
	note := func(err error) {
		if err == nil || errors.Is(err, kv.ErrNoNode) {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		// What is not a matter of nodes that appeared meanwhile counts more.
		if first == nil || errors.Is(first, kv.ErrNotEmpty) {
			first = err
		}
	}
	window := make(chan struct{}, removeWindow)
	for i := len(paths) - 1; i >= 0; i-- {
		limited, cancel := s.limit(ctx)
		select {
		case window <- struct{}{}:
			cancel()
		case <-limited.Done():
			cancel()
			s.Cut() // what is under way ends with an unknown outcome
			return fmt.Errorf("%w: %w", client.ErrUnknownOutcome, context.Cause(limited))
		}
		call := &client.Call{Op: wire.OpDelete, Path: paths[i], Version: wire.AnyVersion}
		call.Done = func(call *client.Call) {
			note(call.Err)
			<-window
		}
		if err := s.Do(call); err != nil {
			<-window
			note(err)
			break
		}
	}
	limited, cancel := s.limit(ctx)
	defer cancel()
	for range removeWindow {
		select {
		case window <- struct{}{}:
		case <-limited.Done():
			s.Cut()
			return fmt.Errorf("%w: %w", client.ErrUnknownOutcome, context.Cause(limited))
		}
	}
	mu.Lock()
	defer mu.Unlock()
	return first
}
