package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"kvd/integration/cluster"
	"kvd/integration/loopdisk"
	"kvd/integration/netns"
	"kvd/integration/proxy"
)

// network cuts what member from sends to member to, silently, and takes it back. Clients are not concerned.
type network interface {
	Cut(from, to int) error
	Heal() error
	Close() error
}

// stage is the members and what can be done to their network and disks; net and disks are nil where the machine does not
// allow it.
type stage struct {
	*cluster.Cluster
	dir   string
	net   network
	disks map[int]*loopdisk.Disk
}

// settings make things happen often that are rare in a short run: snapshots, purges of the log and with them members that
// come back too late for what is kept of it, and reading back what is on disk.
var settings = []string{
	"--set", "kvd.selfCheckInterval=10s",
	"--set", "kvd.snapshotLogBytes=1048576", "--set", "snapCount=5000",
	"--set", "kvd.retainBytes=262144",
	"--set", "kvd.retainEntries=5000",
}

// dirPrefix begins the names of all runs' directories.
const dirPrefix = "kvd-chaos-"

// newStage builds everything below a new directory. Where namespaces or loop devices cannot be had, and the options do not
// insist, it goes without and says so.
func newStage(o options) (s *stage, err error) {
	if err := errors.Join(netns.Sweep(), loopdisk.Sweep(dirPrefix)); err != nil {
		fmt.Fprintln(os.Stderr, "chaos: left behind by an earlier run:", err)
	}
	s = &stage{}
	if s.dir, err = os.MkdirTemp("", dirPrefix); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err := os.WriteFile(filepath.Join(s.dir, loopdisk.PidFile), fmt.Appendln(nil, os.Getpid()), 0o644); err != nil {
		return s, err
	}
	opts := cluster.Options{Members: o.members, Dir: s.dir, Kvd: o.kvd, Args: settings}
	if opts.Kvd == "" {
		bins, err := cluster.Build(s.dir)
		if err != nil {
			return s, err
		}
		opts.Kvd = bins.Kvd
	}
	if err := s.newNetwork(o, &opts); err != nil {
		return s, err
	}
	if o.disk != "none" {
		s.disks = map[int]*loopdisk.Disk{}
		for id := 1; id <= o.members && err == nil; id++ {
			var d *loopdisk.Disk
			d, err = loopdisk.New(filepath.Join(s.dir, fmt.Sprintf("member-%d", id)))
			if err == nil {
				s.disks[id] = d
			}
		}
		if err != nil && o.disk == "loop" {
			return s, err
		} else if err != nil {
			fmt.Fprintln(os.Stderr, "chaos: no faults of the disk:", err)
			for _, d := range s.disks {
				_ = d.Close()
			}
			s.disks, err = nil, nil
		}
	}
	s.Cluster, err = cluster.New(opts)
	return s, err
}

// newNetwork chooses how links are cut, and says what the members must know for it.
func (s *stage) newNetwork(o options, opts *cluster.Options) error {
	switch o.network {
	case "none":
		return nil
	case "auto", "netns", "proxy":
	default:
		return fmt.Errorf("--network %s: it is auto, netns, proxy or none", o.network)
	}
	if o.network != "proxy" {
		n, err := netns.New(o.members)
		if err == nil {
			s.net, opts.Host, opts.Prefix = n, n.Address, n.Command
			return nil
		}
		if o.network == "netns" {
			return err
		}
		fmt.Fprintln(os.Stderr, "chaos: proxies between the members, namespaces cannot be made:", err)
	}
	p := &proxies{links: map[[2]int][]*proxy.Proxy{}}
	s.net, opts.Via = p, p.via
	return nil
}

// networkName says how links are cut.
func (s *stage) networkName() string {
	switch s.net.(type) {
	case *netns.Net:
		return "of namespaces"
	case *proxies:
		return "of proxies"
	}
	return "of the machine, uncut"
}

// close ends the members and removes the network and the file systems. The directory stays.
func (s *stage) close() error {
	var errs []error
	for _, d := range s.disks {
		errs = append(errs, d.Thaw()) // a process that hangs in a write does not even die
	}
	if s.Cluster != nil {
		s.Stop()
	}
	for _, d := range s.disks {
		errs = append(errs, d.Close())
	}
	s.disks = nil
	if s.net != nil {
		errs = append(errs, s.net.Close())
		s.net = nil
	}
	return errors.Join(errs...)
}

// settled waits until every member serves and one of them leads.
func (s *stage) settled(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		leaders, followers := 0, 0
		modes := ""
		for _, m := range s.Members {
			mode, err := m.Mode(ctx)
			switch mode {
			case "leader", "standalone":
				leaders++
			case "follower":
				followers++
			}
			if err != nil {
				mode = err.Error()
			}
			modes += fmt.Sprintf(" %d:%s", m.ID, mode)
		}
		if leaders == 1 && followers == len(s.Members)-1 {
			return nil
		}
		if err := wait(ctx, 30*time.Millisecond); err != nil {
			return fmt.Errorf("the members do not all serve within %v:%s", limit, modes)
		}
	}
}
