package kv

import (
	"net/netip"
	"strconv"
	"strings"
)

// Permission bits of an ACL entry. Other bits are stored and returned unchanged.
const (
	PermRead   int32 = 1
	PermWrite  int32 = 2
	PermCreate int32 = 4
	PermDelete int32 = 8
	PermAdmin  int32 = 16
	PermAll    int32 = 31
)

// ACL is one entry of a node's access control list.
type ACL struct {
	Perms  int32
	Scheme string
	ID     string
}

// AccessList is a node's access control list in the encoded form in which the tree stores it; "" is the open list.
type AccessList string

// OpenACL is world:anyone with all permissions, the list nearly every node has.
func OpenACL() []ACL { return []ACL{{PermAll, "world", "anyone"}} }

// ACL lists are stored once and named by number. These two always exist; the others are counted and vanish with
// their last node. Part of the record format.
const (
	aclOpen     uint32 = 1 // world:anyone, all
	aclReadOnly uint32 = 2 // world:anyone, read
	aclFirst    uint32 = 3 // first number given out
)

// encodedOpenACL and encodedReadACL are the two lists that need no table entry.
var (
	encodedOpenACL = string(appendACL(nil, OpenACL()))
	encodedReadACL = string(appendACL(nil, []ACL{{PermRead, "world", "anyone"}}))
)

// normalizeACL drops repeated entries, keeping the order, and checks each one (ZooKeeper: fixupACL). An "auth"
// entry stands for the identities of the connection; a request carries none yet, so it is invalid. The
// given slice is not changed.
func normalizeACL(list []ACL) ([]ACL, Code) {
	if len(list) == 0 {
		return nil, CodeInvalidACL
	}
	for i := range list {
		if !validACL(list[i]) {
			return nil, CodeInvalidACL
		}
	}
	if len(list) == 1 {
		return list, CodeOK
	}
	seen := make(map[ACL]struct{}, len(list))
	out := make([]ACL, 0, len(list))
	for _, a := range list {
		if _, dup := seen[a]; dup {
			continue
		}
		seen[a] = struct{}{}
		out = append(out, a)
	}
	return out, CodeOK
}

func validACL(a ACL) bool {
	switch a.Scheme {
	case "world":
		return a.ID == "anyone"
	case "digest":
		user, hash, ok := strings.Cut(a.ID, ":")
		return ok && user != "" && hash != "" && !strings.Contains(hash, ":")
	case "ip":
		return validIPExpression(a.ID)
	}
	return false
}

// validIPExpression reports whether s is an address, optionally with "/bits".
func validIPExpression(s string) bool {
	text, bits, masked := strings.Cut(s, "/")
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" {
		return false
	}
	if !masked {
		return true
	}
	n, err := strconv.Atoi(bits)
	return err == nil && n >= 0 && n <= addr.BitLen()
}

// appendACL appends the stored form of a list: count, then permissions, scheme and id of each.
func appendACL(dst []byte, list []ACL) []byte {
	dst = appendUvarint(dst, uint64(len(list)))
	for i := range list {
		dst = appendVarint(dst, int64(list[i].Perms))
		dst = appendString(dst, list[i].Scheme)
		dst = appendString(dst, list[i].ID)
	}
	return dst
}

// skipACL moves r past one stored list and returns its bytes.
func skipACL(r *reader) []byte {
	start := r.off
	n := r.uvarint()
	for range n {
		p := r.varint()
		if p != int64(int32(p)) {
			r.fail()
		}
		r.bytes()
		r.bytes()
		if r.bad {
			return nil
		}
	}
	if r.bad {
		return nil
	}
	return r.buf[start:r.off]
}

// decodeACL decodes a stored list; the strings are copies.
func decodeACL(b string) ([]ACL, bool) {
	r := reader{buf: bytesOf(b)}
	n := r.uvarint()
	if r.bad || n > uint64(len(b)) {
		return nil, false
	}
	out := make([]ACL, 0, min(n, 64))
	for range n {
		p := r.varint()
		scheme := string(r.bytes())
		id := string(r.bytes())
		if r.bad || p != int64(int32(p)) {
			return nil, false
		}
		out = append(out, ACL{int32(p), scheme, id})
	}
	return out, r.off == len(r.buf)
}
