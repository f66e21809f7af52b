package kv

import "encoding/binary"

// Identity is one authenticated identity of a client connection (zookeeper-protocol 9.1): ("ip", address),
// ("digest", user:hash), ("super", ...). That everybody is world:anyone goes without saying.
type Identity struct {
	Scheme string
	ID     string
}

// SchemeSuper is the scheme of an identity that passes every check.
const SchemeSuper = "super"

// Credentials are the identities of one client connection, in the order in which they were added, in an encoded form
// that travels with each write as it is. They never change; the zero value holds none.
type Credentials string

// With returns the credentials with one more identity, or the same if it is there already.
func (c Credentials) With(id Identity) Credentials {
	for _, have := range c.Identities() {
		if have == id {
			return c
		}
	}
	b := appendString([]byte(c), id.Scheme)
	return Credentials(appendString(b, id.ID))
}

// Identities decodes the credentials. Malformed ones, which only a member that lies sends, hold what could be read.
func (c Credentials) Identities() []Identity {
	var out []Identity
	for rest := c; rest != ""; {
		var id Identity
		var ok bool
		if id, rest, ok = rest.next(); !ok {
			break
		}
		out = append(out, id)
	}
	return out
}

// Valid reports whether the credentials can be decoded to their end.
func (c Credentials) Valid() bool {
	for rest := c; rest != ""; {
		var ok bool
		if _, rest, ok = rest.next(); !ok {
			return false
		}
	}
	return true
}

// next splits off the first identity.
func (c Credentials) next() (id Identity, rest Credentials, ok bool) {
	scheme, rest, ok := c.text()
	if !ok {
		return Identity{}, "", false
	}
	name, rest, ok := rest.text()
	return Identity{scheme, name}, rest, ok
}

func (c Credentials) text() (s string, rest Credentials, ok bool) {
	n, w := binary.Uvarint(bytesOf(string(c)))
	if w <= 0 || n > uint64(len(c)-w) {
		return "", "", false
	}
	return string(c[w : w+int(n)]), c[w+int(n):], true
}

// Super reports whether the credentials pass every check.
func (c Credentials) Super() bool {
	for rest := c; rest != ""; {
		id, next, ok := rest.next()
		if !ok {
			return false
		}
		if id.Scheme == SchemeSuper {
			return true
		}
		rest = next
	}
	return false
}
