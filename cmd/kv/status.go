package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"kvd/cmd/internal/cliargs"
	"kvd/kv"
	"kvd/kv/client"
	"kvd/kv/wire"
)

// memberStatus is what one server said.
type memberStatus struct {
	addr string
	wire.ServerStats
	err error
}

// status asks every member for `srvr`: the given ones, those they name, and (of a ZooKeeper) those in
// /zookeeper/config. It needs no session and no quorum.
func (p *program) status(c *cli.Context) error {
	if err := cliargs.NArgs(c, 0, 0); err != nil {
		return err
	}
	servers := c.String("server")
	addrs, _, err := client.ParseServers(servers)
	if err != nil {
		return &failure{what: "use --server", err: err, usage: true}
	}
	ctx, cancel := context.WithTimeout(c.Context, c.Duration("timeout"))
	defer cancel()
	list := askAll(ctx, addrs, nil)
	list = askAll(ctx, named(list), list)
	if more := configured(ctx, c, list); len(more) > 0 {
		list = askAll(ctx, more, list)
	}
	list = distinct(list)
	if err := p.printStatus(list); err != nil {
		return err
	}
	if !slices.ContainsFunc(list, func(m memberStatus) bool { return m.Serving }) {
		return &failure{what: "find a serving member among " + servers, err: fmt.Errorf("%w: none of %d serves", client.ErrUnavailable, len(list))}
	}
	return nil
}

// askAll asks the addresses that are not in the list yet, at once, and appends their answers.
func askAll(ctx context.Context, addrs []string, list []memberStatus) []memberStatus {
	begin := len(list)
	for _, addr := range addrs {
		if !slices.ContainsFunc(list, func(m memberStatus) bool { return m.addr == addr }) {
			list = append(list, memberStatus{addr: addr})
		}
	}
	var wg sync.WaitGroup
	for i := begin; i < len(list); i++ {
		wg.Go(func() { list[i].ServerStats, list[i].err = ask(ctx, list[i].addr) })
	}
	wg.Wait()
	return list
}

// askLimit bounds one server's answer: a black hole must not eat the time of the others.
const askLimit = 2 * time.Second

func ask(ctx context.Context, addr string) (wire.ServerStats, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return wire.ServerStats{}, err
	}
	defer conn.Close()
	unwatch := context.AfterFunc(ctx, func() { conn.Close() })
	defer unwatch()
	if _, err := io.WriteString(conn, string(wire.WordSrvr)); err != nil {
		return wire.ServerStats{}, err
	}
	text, err := io.ReadAll(io.LimitReader(conn, 1<<16))
	if ctx.Err() != nil {
		return wire.ServerStats{}, errors.New("no answer")
	}
	if err != nil {
		return wire.ServerStats{}, err
	}
	return wire.ParseSrvr(text)
}

// named lists the client addresses that the members told of each other.
func named(list []memberStatus) []string {
	var addrs []string
	for _, m := range list {
		for _, other := range m.Members {
			host, port, err := net.SplitHostPort(other.Addr)
			if err != nil || port == "0" || other.ID == m.Member {
				continue
			}
			if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
				continue // it listens everywhere and does not say under which name
			}
			addrs = append(addrs, other.Addr)
		}
	}
	return addrs
}

// configured reads the addresses of a ZooKeeper ensemble from its configuration node; kvd's members have named
// each other already. What goes wrong here only makes the list shorter.
func configured(ctx context.Context, c *cli.Context, list []memberStatus) []string {
	var serving []string
	for _, m := range list {
		if m.KvdVersion != "" {
			return nil
		}
		if m.Serving {
			serving = append(serving, m.addr)
		}
	}
	if len(serving) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	cl, err := client.Dial(ctx, strings.Join(serving, ","), client.WithSessionTimeout(c.Duration("session-timeout")))
	if err != nil {
		return nil
	}
	defer cl.Close()
	text, _, err := cl.Get(ctx, "/zookeeper/config")
	if err != nil {
		return nil
	}
	return parseConfig(string(text))
}

// parseConfig finds the client addresses in lines like server.1=host:2888:3888:participant;0.0.0.0:2181.
func parseConfig(text string) []string {
	var addrs []string
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || !strings.HasPrefix(key, "server.") {
			continue
		}
		peer, port, ok := strings.Cut(value, ";")
		if !ok {
			continue
		}
		host := peer[:max(strings.IndexByte(peer, ':'), 0)]
		if strings.HasPrefix(peer, "[") {
			host = peer[1:max(strings.IndexByte(peer, ']'), 1)]
		}
		if h, p, err := net.SplitHostPort(port); err == nil {
			port = p
			if ip := net.ParseIP(h); ip == nil || !ip.IsUnspecified() {
				host = h
			}
		}
		if host != "" {
			addrs = append(addrs, net.JoinHostPort(host, port))
		}
	}
	return addrs
}

// distinct drops a member that answered under two addresses, and sorts members by id, strangers last.
func distinct(list []memberStatus) []memberStatus {
	var out []memberStatus
	for _, m := range list {
		twice := m.Member != 0 && slices.ContainsFunc(out, func(o memberStatus) bool { return o.Member == m.Member && o.Pid == m.Pid })
		if !twice {
			out = append(out, m)
		}
	}
	// A member that does not answer gets the id that another one knows its address by.
	for i := range out {
		for _, m := range list {
			for _, other := range m.Members {
				if out[i].err != nil && other.Addr == out[i].addr {
					out[i].Member = other.ID
				}
			}
		}
	}
	slices.SortStableFunc(out, func(a, b memberStatus) int { return cmp.Compare(a.Member-1, b.Member-1) }) // 0 becomes the greatest
	return out
}

// lag is how many transactions a member is behind the furthest one; ok is false across epochs.
func lag(front, z kv.Zxid) (n uint64, ok bool) {
	if front.Epoch() != z.Epoch() {
		return 0, false
	}
	return uint64(front.Counter() - z.Counter()), true
}

func (p *program) printStatus(list []memberStatus) error {
	var front kv.Zxid
	for _, m := range list {
		front = max(front, m.Zxid)
	}
	if p.json {
		return p.printStatusJSON(list, front)
	}
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "SERVER\tMEMBER\tROLE\tPID\tEPOCH\tZXID\tLAG\tHEALTH")
	for _, m := range list {
		role, pid, epoch, zxid, behind := "-", "-", "-", "-", "-"
		if m.err == nil {
			role, epoch, zxid = string(m.Role), fmt.Sprint(m.Epoch), fmt.Sprintf("0x%x", uint64(m.Zxid))
			if n, ok := lag(front, m.Zxid); ok {
				behind = fmt.Sprint(n)
			} else {
				behind = fmt.Sprintf("%d epochs", front.Epoch()-m.Zxid.Epoch())
			}
		}
		if role == "" {
			role, epoch, zxid, behind = "-", "-", "-", "-"
		}
		if m.Pid != 0 {
			pid = fmt.Sprint(m.Pid)
		}
		id := "-"
		if m.Member != 0 {
			id = fmt.Sprint(m.Member)
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", m.addr, id, role, pid, epoch, zxid, behind, m.health())
	}
	return p.written(w.Flush())
}

// health is one line about the member.
func (m *memberStatus) health() string {
	switch {
	case m.err != nil:
		return "unreachable: " + reason(m.err)
	case m.Health != "":
		return m.Health
	case !m.Serving:
		return "not serving"
	}
	return "ok"
}

// reason leaves out the addresses, which the row says already.
func reason(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return op.Err.Error()
	}
	return err.Error()
}

type memberJSON struct {
	Server  string   `json:"server"`
	Member  uint64   `json:"member,omitempty"`
	Role    string   `json:"role,omitempty"`
	Serving bool     `json:"serving"`
	Pid     int      `json:"pid,omitempty"`
	Leader  uint64   `json:"leader,omitempty"`
	Epoch   uint32   `json:"epoch"`
	Zxid    *hexZxid `json:"zxid,omitempty"`
	Lag     *uint64  `json:"lag,omitempty"`
	Digest  string   `json:"digest,omitempty"`
	Version string   `json:"version,omitempty"`
	Health  string   `json:"health"`
}

func (p *program) printStatusJSON(list []memberStatus, front kv.Zxid) error {
	out := struct {
		Members []memberJSON `json:"members"`
	}{Members: []memberJSON{}}
	for _, m := range list {
		j := memberJSON{
			Server: m.addr, Member: m.Member, Role: string(m.Role), Serving: m.Serving, Pid: m.Pid, Leader: m.Leader,
			Epoch: uint32(m.Epoch), Version: m.KvdVersion, Health: m.health(),
		}
		if m.err == nil && m.Role != "" {
			z := hexZxid(m.Zxid)
			j.Zxid = &z
			if n, ok := lag(front, m.Zxid); ok {
				j.Lag = &n
			}
		}
		if m.Digest != 0 {
			j.Digest = fmt.Sprintf("0x%016x@0x%x", m.Digest, uint64(m.DigestZxid))
		}
		out.Members = append(out.Members, j)
	}
	return p.printJSON(out)
}
