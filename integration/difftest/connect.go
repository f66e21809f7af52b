package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
)

const unknownSession = 0x7700000000001234

// connectRecord is a ConnectRequest (protocol 1.2).
func connectRecord(k *Connect, lastSeen, id int64, password []byte) []byte {
	var e enc
	e.int(k.Protocol)
	e.long(lastSeen)
	e.int(k.Timeout)
	e.long(id)
	switch k.Password {
	case "null":
		e.buffer(nil)
	case "empty":
		e.buffer([]byte{})
	case "short":
		e.buffer([]byte("short"))
	case "wrong":
		w := slices.Clone(password)
		if len(w) == 0 {
			w = make([]byte, 16)
		}
		w[3] ^= 0x40
		e.buffer(w)
	case "zero":
		e.buffer(make([]byte, 16))
	default:
		e.buffer(password)
	}
	if k.ReadOnly >= 0 {
		e.byte(byte(k.ReadOnly))
	}
	b := e.b
	if k.Cut > 0 {
		b = b[:max(0, len(b)-k.Cut)]
	}
	return append(b, k.Extra...)
}

// connect opens a connection to each side for a slot.
func (r *runner) connect(s *Step) error {
	k := s.Connect
	sn := r.m.sessions[s.Slot]
	own := k.Session == "own"
	if own && sn == nil || k.Session == "" && sn != nil && sn.alive {
		return nil
	}
	where := fmt.Sprintf("session %d, connect to member %d %+v", s.Slot, s.Member, *k)
	last := [2]int64{}
	last[0], last[1] = r.cmp.zxids.resolve(&k.LastSeen)
	// Not sent to ZooKeeper: it would close the living connection (rule wrong-password).
	withheld := !r.same && own && sn.alive && k.Password != "right" && sn.holds(s.Member) && k.LastSeen.Kind != "ahead" && k.Cut == 0
	var socks [2]*raw
	var items [2]item
	for i, side := range r.sides {
		if withheld && i == 0 {
			items[0] = item{what: "reply", fields: decodeConnect(invalidSession(k)).fields, rest: decodeConnect(invalidSession(k)).rest}
			continue
		}
		c, err := dialRaw(side.addrs[s.Member%side.clientMembers()])
		if err != nil {
			return err
		}
		socks[i] = c
		id, password := int64(0), make([]byte, 16)
		switch k.Session {
		case "own":
			id, password = sn.ids[i], sn.password[i]
		case "unknown":
			id = unknownSession
		}
		b, err := c.handshake(connectRecord(k, last[i], id, password))
		switch {
		case errors.Is(err, io.EOF):
			items[i] = item{what: "closed"}
		case err != nil:
			return fmt.Errorf("%s: %s: %w", side.name, where, err)
		default:
			items[i] = decodeConnect(b)
		}
	}
	if withheld {
		r.hits["wrong-password"]++
	}
	if !r.same && r.otherHistory(s, sn, &items) {
		r.hits["other-history"]++
	}
	accepted := items[0].what == "reply" && len(items[0].fields) > 0 && items[0].get("timeOut").num > 0
	if err := r.sameHandshake(where, s, items); err != nil {
		return err
	}
	if !accepted {
		if socks[0] != nil {
			if err := awaitClose(socks[0]); err != nil {
				return r.wrongModel(where, err.Error(), items[0], "closed")
			}
			socks[0].close()
		}
		if err := awaitClose(socks[1]); err != nil {
			return r.differ(where, err.Error(), items[0], "closed", items[1])
		}
		socks[1].close()
		// A connect request with the id of a living session closes its connections on that member (protocol 1.3).
		if own && sn.alive && items[0].what == "reply" && r.same {
			for _, c := range []*conn{sn.conn, sn.former} {
				if c != nil && c.member == s.Member {
					if err := r.awaitBoth(where, c); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}
	if !own {
		sn = &session{alive: true}
		r.m.sessions[s.Slot] = sn
		for i := range sn.ids {
			sn.ids[i] = items[i].get("sessionId").num
			sn.password[i] = []byte(items[i].get("passwd").text)
		}
	}
	if old := sn.conn; old != nil && old.member == s.Member {
		if err := r.awaitBoth(where, old); err != nil {
			return err
		}
	}
	if f := sn.former; f != nil {
		if f.member == s.Member {
			if err := r.awaitBoth(where, f); err != nil {
				return err
			}
		} else {
			for _, side := range f.sides {
				side.close()
			}
			r.lost(f)
		}
	}
	if sn.conn != nil {
		sn.former = sn.conn
	}
	c := &conn{slot: s.Slot, member: s.Member, sides: socks, ids: []identity{{"ip", "127.0.0.1"}}}
	sn.conn = c
	r.m.conns = append(r.m.conns, c)
	return nil
}

// otherHistory applies rule other-history: ZooKeeper closed the connection of a client that has seen more, kvd says that the
// session, which nobody knows, is gone. A member of several may not have heard of the session's end yet, and then closes too.
func (r *runner) otherHistory(s *Step, sn *session, items *[2]item) bool {
	k := s.Connect
	dead := k.Session == "unknown" || k.Session == "own" && !sn.alive
	whole := k.Password == "right" || k.Password == "wrong" || k.Password == "zero"
	if k.LastSeen.Kind != "ahead" || k.Cut != 0 || !dead || !whole || items[0].what != "closed" {
		return false
	}
	if items[1].what == "closed" && r.sides[1].clientMembers() > 1 {
		return false
	}
	d := decodeConnect(invalidSession(k))
	items[0] = item{what: "reply", fields: d.fields, rest: d.rest}
	return true
}

// holds tells whether the session has a connection to a member.
func (sn *session) holds(member int) bool {
	return sn.conn != nil && sn.conn.member == member || sn.former != nil && sn.former.member == member
}

// invalidSession is the answer to a session that cannot be resumed (protocol 14).
func invalidSession(k *Connect) []byte {
	var e enc
	e.int(0)
	e.int(0)
	e.long(0)
	e.buffer(make([]byte, 16))
	if k.ReadOnly >= 0 {
		e.byte(0)
	}
	return e.b
}

// sameHandshake compares two answers to a ConnectRequest. Passwords are each side's own, but always the same one of a
// session, and 16 bytes.
func (r *runner) sameHandshake(where string, s *Step, items [2]item) error {
	want, ours := items[0].clone(), items[1].clone()
	if want.what == "reply" && ours.what == "reply" && want.get("passwd") != nil && ours.get("passwd") != nil {
		a, b := want.get("passwd"), ours.get("passwd")
		valid := want.get("timeOut").num > 0
		switch {
		case valid && len(b.text) != 16 || valid && b.text == string(make([]byte, 16)):
			return r.differ(where, "not a password", items[0], items[0], items[1])
		case valid && s.Connect.Session == "own" && b.text != string(r.m.sessions[s.Slot].password[1]):
			return r.differ(where, "another password", items[0], items[0], items[1])
		case valid:
			b.text = a.text
		}
		if valid && s.Connect.Session == "own" && (a.text != string(r.m.sessions[s.Slot].password[0]) || want.get("sessionId").num != r.m.sessions[s.Slot].ids[0]) {
			return r.wrongModel(where, "another session", items[0], "the same")
		}
	}
	if err := r.cmp.item(want, ours); err != nil {
		return r.differ(where, err.Error(), items[0], want, items[1])
	}
	return nil
}

// awaitBoth waits until both sides have closed a connection, and forgets it.
func (r *runner) awaitBoth(where string, c *conn) error {
	for i, side := range c.sides {
		if err := awaitClose(side); err != nil {
			if i == 0 {
				return r.wrongModel(where, "the former connection is "+err.Error(), "open", "closed")
			}
			return r.differ(where, "the former connection is "+err.Error(), "closed", "closed", "open")
		}
		side.close()
	}
	r.lost(c)
	return nil
}

// raw sends first bytes that are no handshake; both sides must close, with the same bytes before.
func (r *runner) raw(s *Step) error {
	var got [2]string
	for i, side := range r.sides {
		c, err := dialRaw(side.addrs[s.Member%side.clientMembers()])
		if err != nil {
			return err
		}
		c.write(s.Raw)
		for {
			b, err := c.frame(patience)
			if errors.Is(err, io.EOF) {
				got[i] += "closed"
				break
			}
			if err != nil {
				c.close()
				return fmt.Errorf("%s: first bytes %x: %w", side.name, s.Raw, err)
			}
			got[i] += fmt.Sprintf("%x ", b)
		}
		c.close()
	}
	if got[0] != got[1] {
		return r.differ(fmt.Sprintf("first bytes %x", s.Raw), "another answer", got[0], got[0], got[1])
	}
	return nil
}
