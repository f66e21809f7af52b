// Package netns gives processes network namespaces of their own on one bridge, and cuts the links between them in
// either direction, silently, as a dead cable or switch does: no reset, no error, packets are gone.
//
// A cut from A to B is a permanent neighbour entry in A's namespace that gives B a hardware address that nobody has. That
// needs neither a firewall nor a traffic shaper in the kernel. It needs root; New fails where namespaces cannot be made.
//
// Everything that is made has a name that begins with Prefix and the process id of its maker, so that Sweep can remove what
// a run left behind that was killed.
package netns

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Prefix begins the names of all bridges and namespaces of this package.
const Prefix = "kvdns"

const nobody = "02:6b:76:64:ff:ff"

// Net is one bridge with hosts 1..n. Its methods are for one goroutine.
type Net struct {
	name  string // of the bridge; hosts are name-N
	hosts int
	octet int
}

// ip runs the ip command.
func ip(args ...string) error {
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// New makes a bridge, whose own address is in the caller's namespace, and n hosts on it.
func New(hosts int) (*Net, error) {
	n := &Net{name: fmt.Sprintf("%s%d", Prefix, os.Getpid()), hosts: hosts, octet: os.Getpid() % 254}
	if err := n.choose(); err != nil {
		return nil, err
	}
	steps := [][]string{
		{"link", "add", n.name, "type", "bridge"},
		{"addr", "add", n.address(254) + "/24", "dev", n.name},
		{"link", "set", n.name, "up"},
	}
	for i := 1; i <= hosts; i++ {
		ns, veth := n.Namespace(i), fmt.Sprintf("%sv%d", n.name, i)
		steps = append(steps,
			[]string{"netns", "add", ns},
			[]string{"link", "add", veth, "type", "veth", "peer", "name", "eth0", "address", mac(i), "netns", ns},
			[]string{"link", "set", veth, "master", n.name},
			[]string{"link", "set", veth, "up"},
			[]string{"-n", ns, "addr", "add", n.address(i) + "/24", "dev", "eth0"},
			[]string{"-n", ns, "link", "set", "eth0", "up"},
			[]string{"-n", ns, "link", "set", "lo", "up"},
		)
	}
	for _, s := range steps {
		if err := ip(s...); err != nil {
			return nil, errors.Join(err, n.Close())
		}
	}
	return n, n.Heal()
}

// choose takes a subnet that no other bridge of this machine has.
func (n *Net) choose() error {
	taken, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	for range 254 {
		n.octet = n.octet%254 + 1
		free := !slices.ContainsFunc(taken, func(a net.Addr) bool { return strings.HasPrefix(a.String(), n.address(254)+"/") })
		if free {
			return nil
		}
	}
	return errors.New("every subnet of 10.213.0.0/16 is taken")
}

func mac(i int) string { return fmt.Sprintf("02:6b:76:64:00:%02x", i) }

func (n *Net) address(i int) string { return fmt.Sprintf("10.213.%d.%d", n.octet, i) }

// Address is the IPv4 address of host i, reachable from the caller's namespace.
func (n *Net) Address(i int) string { return n.address(i) }

// Namespace is the name of host i's namespace.
func (n *Net) Namespace(i int) string { return fmt.Sprintf("%s-%d", n.name, i) }

// Command is what to put before a command line to run it on host i. The process keeps its id.
func (n *Net) Command(i int) []string {
	return []string{"nsenter", "--net=" + filepath.Join("/run/netns", n.Namespace(i))}
}

// Cut drops everything that host from sends to host to, until Heal.
func (n *Net) Cut(from, to int) error { return n.neighbour(from, to, nobody) }

// Join takes a Cut back.
func (n *Net) Join(from, to int) error { return n.neighbour(from, to, mac(to)) }

func (n *Net) neighbour(from, to int, hw string) error {
	return ip("-n", n.Namespace(from), "neigh", "replace", n.address(to), "lladdr", hw, "dev", "eth0", "nud", "permanent")
}

// Heal takes all cuts back.
func (n *Net) Heal() error {
	var errs []error
	for a := 1; a <= n.hosts; a++ {
		for b := 1; b <= n.hosts; b++ {
			if a != b {
				errs = append(errs, n.Join(a, b))
			}
		}
	}
	return errors.Join(errs...)
}

// Close removes the bridge and the namespaces. Processes in them go on without a network.
func (n *Net) Close() error { return remove(n.name) }

func remove(bridge string) error {
	var errs []error
	spaces, _ := filepath.Glob("/run/netns/" + bridge + "-*")
	for _, s := range spaces {
		errs = append(errs, ip("netns", "delete", filepath.Base(s)))
	}
	if _, err := os.Stat("/sys/class/net/" + bridge); err == nil {
		errs = append(errs, ip("link", "delete", bridge))
	}
	return errors.Join(errs...)
}

// Sweep removes what processes that no longer live have left behind.
func Sweep() error {
	var errs []error
	names := map[string]bool{}
	for _, glob := range []string{"/run/netns/" + Prefix + "*", "/sys/class/net/" + Prefix + "*"} {
		found, _ := filepath.Glob(glob)
		for _, f := range found {
			name, _, _ := strings.Cut(filepath.Base(f), "-")
			names[name] = true
		}
	}
	for name := range names {
		pid, err := strconv.Atoi(strings.TrimPrefix(name, Prefix))
		if err != nil { // a veth, which goes with its namespace
			continue
		}
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
			continue
		}
		errs = append(errs, remove(name))
	}
	return errors.Join(errs...)
}
