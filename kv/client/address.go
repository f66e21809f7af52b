package client

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"kvd/kv"
)

// DefaultPort is the port of a server named without one.
const DefaultPort = "2181"

// ParseServers splits "h1:p1,[::1]:p2,h3/chroot" into addresses with ports and the chroot, which is empty or
// begins with a slash and does not end in one.
func ParseServers(servers string) (addrs []string, chroot string, err error) {
	list := servers
	if i := strings.IndexByte(servers, '/'); i >= 0 {
		list, chroot = servers[:i], servers[i:]
		if chroot == "/" {
			chroot = ""
		} else if err := kv.ValidatePath(chroot); err != nil {
			return nil, "", fmt.Errorf("client: servers %q: chroot %q: %w", servers, chroot, err)
		}
	}
	for addr := range strings.SplitSeq(list, ",") {
		addr = strings.TrimSpace(addr)
		if addr == "" {
			continue
		}
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			// Without a port: a name, an IPv4 address, or an IPv6 address in brackets or bare.
			host, port = strings.TrimSuffix(strings.TrimPrefix(addr, "["), "]"), DefaultPort
			if strings.Contains(host, ":") && net.ParseIP(host) == nil {
				return nil, "", fmt.Errorf("client: servers %q: address %q: %w", servers, addr, err)
			}
		}
		if port == "" {
			port = DefaultPort
		}
		if host == "" {
			return nil, "", fmt.Errorf("client: servers %q: address %q has no host", servers, addr)
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, "", fmt.Errorf("client: servers %q: address %q: port %q is no number from 1 to 65535", servers, addr, port)
		}
		addrs = append(addrs, net.JoinHostPort(host, port))
	}
	if len(addrs) == 0 {
		return nil, "", fmt.Errorf("client: servers %q name no address", servers)
	}
	return addrs, chroot, nil
}
