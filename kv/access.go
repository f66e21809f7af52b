package kv

import (
	"net/netip"
	"strconv"
	"strings"
)

// AccessList is a node's access control list in the encoded form in which the tree stores it; "" is the open list,
// which lets everybody do everything. It never changes and may be kept; it shares memory with the view it came from.
type AccessList string

// EncodeACL returns the stored form of a list. It checks nothing.
func EncodeACL(list []ACL) AccessList {
	s := string(appendACL(nil, list))
	if s == encodedOpenACL {
		return ""
	}
	return AccessList(s)
}

// Entries decodes the list. Error: ErrInvalidACL if it is malformed, which one that the tree stores never is.
func (l AccessList) Entries() ([]ACL, error) {
	if l == "" {
		return OpenACL(), nil
	}
	list, ok := decodeACL(string(l))
	if !ok {
		return nil, ErrInvalidACL
	}
	return list, nil
}

// Allows reports whether a connection with these credentials may do what needs one of the permissions in perms: the
// list is open, or has an entry that shares a bit with perms and whose identity the connection has, or the connection
// is a super user's (zookeeper-protocol 9.3). It does not allocate, unless both are unusually long. A malformed list lets
// only a super user pass.
func (l AccessList) Allows(c Credentials, perms int32) bool {
	if l == "" {
		return true
	}
	match := c.match
	if len(l) > longList && len(c) > longCredentials {
		match = c.matcher()
	}
	r := reader{buf: bytesOf(string(l))}
	for n := r.uvarint(); n > 0; n-- {
		p := r.varint()
		scheme, id := stringOf(r.bytes()), stringOf(r.bytes())
		if r.bad {
			break
		}
		if int32(p)&perms != 0 && match(scheme, id) {
			return true
		}
	}
	return c.Super()
}

// match reports whether the credentials hold what an entry names.
func (c Credentials) match(scheme, id string) bool {
	if scheme == "world" {
		return id == "anyone"
	}
	for rest := c; rest != ""; {
		have, next, ok := rest.next()
		if !ok {
			return false
		}
		if have.Scheme == scheme && identityMatches(scheme, id, have.ID) {
			return true
		}
		rest = next
	}
	return false
}

// Lengths in bytes from which on not every entry is compared with every identity: a request that has to pass a list of a
// megabyte with hundreds of identities would take a good part of a second.
const (
	longList        = 4 << 10
	longCredentials = 512
)

// matcher returns a function that does what match does, after a preparation whose cost follows the number of identities.
func (c Credentials) matcher() func(scheme, id string) bool {
	ids := c.Identities()
	exact := make(map[Identity]struct{}, len(ids))
	var others Credentials // whose match is not plain equality
	for _, id := range ids {
		if id.Scheme == "ip" || id.Scheme == "sasl" {
			others = others.With(id)
		} else {
			exact[id] = struct{}{}
		}
	}
	return func(scheme, id string) bool {
		if scheme == "world" || scheme == "ip" || scheme == "sasl" {
			return others.match(scheme, id)
		}
		_, ok := exact[Identity{scheme, id}]
		return ok
	}
}

// identityMatches compares the id of an entry with that of a connection, both of the same scheme
// (zookeeper-protocol 9.1).
func identityMatches(scheme, entry, have string) bool {
	switch scheme {
	case "ip":
		return ipMatches(entry, have)
	case "sasl":
		return entry == have || have == "super"
	}
	return entry == have
}

// ipMatches reports whether the address of a connection lies in the network of an entry.
func ipMatches(entry, have string) bool {
	network, ok := parseNetwork(entry)
	if !ok {
		return false
	}
	addr, ok := parseAddress(have)
	return ok && network.Contains(addr)
}

// parseNetwork parses an address that may be followed by "/bits". As in ZooKeeper, the address may have bits set
// beyond those that count.
func parseNetwork(s string) (netip.Prefix, bool) {
	text, bits, masked := strings.Cut(s, "/")
	addr, ok := parseAddress(text)
	if !ok {
		return netip.Prefix{}, false
	}
	n := addr.BitLen()
	if masked {
		var err error
		if n, err = strconv.Atoi(bits); err != nil || n < 0 || n > addr.BitLen() {
			return netip.Prefix{}, false
		}
	}
	return netip.PrefixFrom(addr, n), true
}

// parseAddress parses an IPv4 address as ZooKeeper's reader of four integers does (leading zeros are fine), or an
// IPv6 address without a zone. An IPv4 address in an IPv6 one is the IPv4 address, as Java has it.
func parseAddress(s string) (netip.Addr, bool) {
	if strings.IndexByte(s, ':') >= 0 {
		addr, err := netip.ParseAddr(s)
		if err != nil || addr.Zone() != "" {
			return netip.Addr{}, false
		}
		return addr.Unmap(), true
	}
	var four [4]byte
	for i := range four {
		part, rest, more := strings.Cut(s, ".")
		if more == (i == len(four)-1) {
			return netip.Addr{}, false
		}
		v, err := strconv.Atoi(part)
		if err != nil || v < 0 || v > 255 {
			return netip.Addr{}, false
		}
		four[i], s = byte(v), rest
	}
	return netip.AddrFrom4(four), true
}
