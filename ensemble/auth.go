package ensemble

import (
	"slices"
	"strings"

	"kvd/kv"
	"kvd/kv/wire"
)

// maxCredentialBytes bounds the identities of one connection: each of its writes carries them all to the leader. It is
// room for a few hundred. ZooKeeper has no such bound.
const maxCredentialBytes = 16 << 10

// inProcessAddress is the address that a client inside the member's own program has: it comes from nowhere else.
const inProcessAddress = "127.0.0.1"

// firstCredentials are what a connection has without saying anything: its address (zookeeper-protocol 9.1). An IPv4
// address that came in an IPv6 socket is an IPv4 address. ip is "" in process.
func firstCredentials(ip string) kv.Credentials {
	if ip == "" {
		ip = inProcessAddress
	}
	return kv.Credentials("").With(kv.Identity{Scheme: "ip", ID: ip})
}

// credentials are the identities of the connection at this moment. Safe from any goroutine. A request has those that were
// there when it was decoded: slot.auth.
func (c *conn) credentials() kv.Credentials { return *c.creds.Load() }

// setCredentials is the reader's, which alone adds identities. Of a client inside the member's own program no scheme is
// demanded.
func (c *conn) setCredentials(a kv.Credentials) {
	c.auth = a
	c.creds.Store(&a)
	c.admitted = len(c.port.cfg.EnforceAuthSchemes) == 0 || c.ip == "" || slices.ContainsFunc(a.Identities(), func(id kv.Identity) bool {
		return slices.Contains(c.port.cfg.EnforceAuthSchemes, id.Scheme)
	})
}

// MayRead implements kv.Watcher: an event is delivered to who may read the node that it is about.
func (c *conn) MayRead(list kv.AccessList) bool {
	return c.port.cfg.SkipACL || list.Allows(c.credentials(), kv.PermRead)
}

// reader is the view of a slot as its client may see it.
func (c *conn) reader(s *slot) kv.Reader {
	if c.port.cfg.SkipACL {
		return s.view.As(kv.AllCredentials)
	}
	return s.view.As(s.auth)
}

// handleAuth takes an auth packet: it holds for the requests behind it, from now on, and not for those before it, which
// have been given the credentials that there were. The reply keeps its place among the others. An unknown scheme, and
// data that its scheme refuses, is answered -115 and ends the connection (zookeeper-protocol 3.8); a record that does
// not parse ends it at once.
func (c *conn) handleAuth(h wire.RequestHeader, body []byte) bool {
	var q wire.AuthRequest
	if err := wire.Decode(body, &q); err != nil {
		c.close("auth packet does not parse")
		return false
	}
	if !c.authenticate(&q) {
		c.port.counters.authFailed.Add(1)
		return c.enqueue(slot{kind: slotAside, xid: h.Xid, op: h.Op, code: kv.CodeAuthFailed, last: true}) && c.awaitEnd()
	}
	return c.enqueue(slot{kind: slotAside, xid: h.Xid, op: h.Op})
}

// authenticate adds the identities that an auth packet proves and reports whether its scheme took it.
func (c *conn) authenticate(q *wire.AuthRequest) bool {
	cfg := c.port.cfg
	switch q.Scheme {
	case "ip":
		return true // it has been there from the start
	case "digest":
		if cfg.DisableDigest || q.Auth == nil || len(q.Auth) > maxCredentialBytes {
			return false
		}
		id := kv.DigestIdentity(cfg.DigestAlgorithm, q.Auth)
		a := c.auth
		if cfg.SuperDigest != "" && id.ID == cfg.SuperDigest {
			a = a.With(kv.Identity{Scheme: kv.SchemeSuper})
		}
		if a = a.With(id); len(a) > maxCredentialBytes {
			return false
		}
		c.setCredentials(a)
		return true
	}
	return false
}

// handleSASL answers a member's lack of SASL as ZooKeeper does without a configuration for it: any token is answered
// with success and none in return, and a null one ends the connection (zookeeper-protocol 15).
func (c *conn) handleSASL(h wire.RequestHeader, body []byte) bool {
	var q wire.SASLRecord
	if err := wire.Decode(body, &q); err != nil || q.Token == nil {
		c.close("SASL packet without a token")
		return false
	}
	return c.enqueue(slot{kind: slotAside, xid: h.Xid, op: h.Op, reply: wire.AppendBuffer(nil, nil)})
}

// refuseUnauthenticated answers a request of a connection that has none of the demanded identities, and ends it.
func (c *conn) refuseUnauthenticated(h wire.RequestHeader) bool {
	c.port.counters.authFailed.Add(1)
	return c.enqueue(slot{kind: slotAside, xid: h.Xid, op: h.Op, code: kv.CodeSaslAuthRequired, last: true}) && c.awaitEnd()
}

// answerWhoAmI lists the identities of the connection: the address first, then in the order in which they were added.
func (c *conn) answerWhoAmI(s *slot) progress {
	ids := s.auth.Identities()
	size := 4
	for i := range ids {
		if ids[i].Scheme == "digest" {
			ids[i].ID, _, _ = strings.Cut(ids[i].ID, ":")
		}
		size += 8 + len(ids[i].Scheme) + len(ids[i].ID)
	}
	if !c.fits(size) {
		return c.refuse(s, kv.CodeMarshallingError)
	}
	if !c.beginReply(s, kv.CodeOK) {
		return broken
	}
	c.out = wire.AppendInt32(c.out, int32(len(ids)))
	for i := range ids {
		c.out = wire.AppendString(wire.AppendString(c.out, ids[i].Scheme), ids[i].ID)
	}
	return c.endReply()
}
