// Command patroni shows that Patroni, with PostgreSQL below it, works with kvd as its store: a leader is elected, is
// replaced when it is killed, and stays when kvd's leader is killed. It is run by hand:
//
//	go run ./integration/patroni [-nodes 3] [-keep]
//
// It needs Debian's patroni, python3-kazoo and postgresql-15. PostgreSQL does not run as root; started by root, the
// command runs Patroni as the user postgres. Everything is on loopback, with ports from the kernel, below one temporary
// directory, and is ended by its process id. The transcript has a line PASS for each thing shown; the exit code is
// 1 if one did not come to pass.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"kvd/integration/cluster"
)

// patience ends what hangs. Patroni's key lives for ttl, and a standby needs a while to be built.
const patience = 3 * time.Minute

func main() {
	nodes := flag.Int("nodes", 3, "Patroni nodes, 2 or 3")
	keep := flag.Bool("keep", false, "keep the temporary directory")
	flag.Parse()
	if *nodes < 2 || *nodes > 3 || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "kvd-patroni-")
	if err == nil {
		err = os.Chmod(dir, 0o755) // another user goes through it
	}
	if err == nil {
		err = run(ctx, dir, *nodes)
	}
	if *keep || err != nil {
		say("logs and data are in %s", dir)
	} else {
		_ = os.RemoveAll(dir)
	}
	if err != nil {
		say("FAIL %v", err)
		os.Exit(1)
	}
	say("PASS all of it")
}

var begin = time.Now()

// say is a line of the transcript, with the seconds since the start.
func say(format string, args ...any) {
	fmt.Printf("%6.1f  %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
}

// await asks until there is no complaint; the last one is the error.
func await(ctx context.Context, what string, condition func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := condition()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func run(ctx context.Context, dir string, count int) (err error) {
	binaries, err := cluster.Build(filepath.Join(dir, "bin"))
	if err != nil {
		return err
	}
	kvd, err := cluster.New(cluster.Options{Members: 3, Dir: dir, Kvd: binaries.Kvd, ConfigLines: []string{"4lw.commands.whitelist=*"}})
	if err != nil {
		return err
	}
	defer kvd.Stop()
	if err := kvd.Start(ctx); err != nil {
		return err
	}
	say("kvd: three members serve %s", kvd.Servers())

	p := &postgresCluster{dir: filepath.Join(dir, "patroni"), store: kvd.Servers()}
	if err := p.create(count); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	s := &script{kvd: kvd, pg: p}
	for _, step := range []func(context.Context) error{s.elect, s.failOver, s.rejoin, s.killStoreLeader, s.failOverWithTwo, s.switchOver} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// script is what is shown, step by step.
type script struct {
	kvd    *cluster.Cluster
	pg     *postgresCluster
	leader *node // of PostgreSQL
	rows   int   // acknowledged
}

// write inserts a row on the leader.
func (s *script) write(ctx context.Context) error {
	if _, err := s.leader.sql(ctx, fmt.Sprintf("insert into t values (%d)", s.rows+1)); err != nil {
		return err
	}
	s.rows++
	return nil
}

// verify compares the rows on a node with what was acknowledged.
func (s *script) verify(ctx context.Context, n *node) error {
	return await(ctx, "rows on "+n.name, func() error {
		got, err := n.sql(ctx, "select count(*) from t")
		if err == nil && got != fmt.Sprint(s.rows) {
			err = fmt.Errorf("%s rows, %d were acknowledged", got, s.rows)
		}
		return err
	})
}

func (s *script) elect(ctx context.Context) error {
	for _, n := range s.pg.nodes {
		if err := n.start(); err != nil {
			return err
		}
		say("%s: started, pid %d", n.name, n.pid())
	}
	err := await(ctx, "a leader and its standbys", func() (err error) {
		s.leader, err = s.pg.healthy(ctx, len(s.pg.nodes))
		return err
	})
	if err != nil {
		return err
	}
	if _, err := s.leader.sql(ctx, "create table t (n int primary key)"); err != nil {
		return err
	}
	if err := s.write(ctx); err != nil {
		return err
	}
	say("PASS a leader was elected: %s, with %d streaming standbys", s.leader.name, len(s.pg.nodes)-1)
	return s.pg.show(ctx)
}

// kill ends Patroni and PostgreSQL of the leader with SIGKILL and waits until another one leads.
func (s *script) kill(ctx context.Context) (gone *node, err error) {
	old := s.leader
	postmaster, err := old.postmaster()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	old.kill()
	if err := syscall.Kill(postmaster, syscall.SIGKILL); err != nil {
		return nil, fmt.Errorf("kill postgres of %s: %w", old.name, err)
	}
	say("%s: killed, Patroni and postgres %d", old.name, postmaster)
	err = await(ctx, "another leader", func() (err error) {
		s.leader, err = s.pg.healthy(ctx, len(s.pg.nodes)-1)
		if err == nil && s.leader == old {
			err = fmt.Errorf("%s still leads", old.name)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := await(ctx, "a write on the new leader", func() error { return s.write(ctx) }); err != nil {
		return nil, err
	}
	say("%s leads, and takes writes, %.1f s after the kill", s.leader.name, time.Since(start).Seconds())
	return old, s.verify(ctx, s.leader)
}

func (s *script) failOver(ctx context.Context) error {
	old, err := s.kill(ctx)
	if err != nil {
		return err
	}
	say("PASS fail-over from %s to %s; all %d acknowledged rows are there", old.name, s.leader.name, s.rows)
	return nil
}

func (s *script) rejoin(ctx context.Context) error {
	var back *node
	for _, n := range s.pg.nodes {
		if !n.running() {
			back = n
			if err := n.start(); err != nil {
				return err
			}
		}
	}
	leader := s.leader
	err := await(ctx, "the killed one returns as a standby", func() (err error) {
		s.leader, err = s.pg.healthy(ctx, len(s.pg.nodes))
		return err
	})
	if err != nil {
		return err
	}
	if s.leader != leader {
		return fmt.Errorf("%s leads since %s came back", s.leader.name, back.name)
	}
	if err := s.verify(ctx, back); err != nil {
		return err
	}
	say("PASS %s is back as a standby of %s", back.name, s.leader.name)
	return s.pg.show(ctx)
}

// killStoreLeader kills kvd's leader. For three times Patroni's ttl the same node must lead on the same timeline, and
// take every write.
func (s *script) killStoreLeader(ctx context.Context) error {
	timeline, err := s.leader.timeline(ctx)
	if err != nil {
		return err
	}
	m, err := s.kvd.Leader(ctx)
	if err != nil {
		return err
	}
	m.Kill()
	say("kvd: leader %d killed", m.ID)
	before := s.rows
	for end := time.Now().Add(3 * ttl * time.Second); time.Now().Before(end); {
		if err := s.write(ctx); err != nil {
			return fmt.Errorf("a write while kvd has two members: %w", err)
		}
		now, err := s.leader.timeline(ctx)
		if err != nil {
			return err
		}
		if now != timeline {
			return fmt.Errorf("%s is on timeline %s, was on %s", s.leader.name, now, timeline)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
	leader, err := s.pg.healthy(ctx, len(s.pg.nodes))
	if err != nil {
		return err
	}
	if leader != s.leader {
		return fmt.Errorf("%s leads now", leader.name)
	}
	next, err := s.kvd.Leader(ctx)
	if err != nil {
		return err
	}
	say("PASS %s led on, on timeline %s, through the death of kvd's leader (now %d); %d writes in %d s", leader.name, timeline, next.ID, s.rows-before, 3*ttl)
	return nil
}

// failOverWithTwo: kvd has lost a member; the other two carry an election.
func (s *script) failOverWithTwo(ctx context.Context) error {
	old, err := s.kill(ctx)
	if err != nil {
		return err
	}
	say("PASS fail-over from %s to %s with two members of kvd", old.name, s.leader.name)
	for _, m := range s.kvd.Members {
		if !m.Running() {
			if err := errors.Join(m.Start(), m.WaitReady(ctx)); err != nil {
				return err
			}
			say("kvd: member %d is back", m.ID)
		}
	}
	return s.rejoin(ctx)
}

// switchOver is the planned change, by Patroni's own tool.
func (s *script) switchOver(ctx context.Context) error {
	old := s.leader
	var to *node
	for _, n := range s.pg.nodes {
		if n != old {
			to = n
		}
	}
	out, err := s.pg.ctl(ctx, "switchover", s.pg.scope(), "--leader", old.name, "--candidate", to.name, "--force")
	if err != nil {
		return fmt.Errorf("patronictl switchover: %w\n%s", err, out)
	}
	err = await(ctx, "the switch-over", func() (err error) {
		s.leader, err = s.pg.healthy(ctx, len(s.pg.nodes))
		if err == nil && s.leader != to {
			err = fmt.Errorf("%s leads", s.leader.name)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := s.write(ctx); err != nil {
		return err
	}
	for _, n := range s.pg.nodes {
		if err := s.verify(ctx, n); err != nil {
			return err
		}
	}
	say("PASS switch-over from %s to %s; all nodes have the %d rows", old.name, to.name, s.rows)
	return s.pg.show(ctx)
}

func indent(text string) string {
	return "        " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n        ")
}
