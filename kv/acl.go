package kv

import (
	"slices"
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

// NullID stands for an id that the client sent as null, which no ACL of the tree has. An entry with it is malformed rather
// than invalid, unless its scheme does not look at the id.
const NullID = "\x00"

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

// aclRules are the schemes that are valid in a list besides world, auth and ip.
type aclRules struct {
	digest, x509, sasl bool
}

// normalizeACL drops repeated entries, keeping the order, checks each one, and replaces every "auth" entry by one for
// each authenticated identity of the connection, in the order in which they were added (zookeeper-protocol 9.4). The
// result is not rid of repetitions again, as in ZooKeeper. What comes for "auth" may be maxAuthBytes long in all, so that a
// small request does not become a list of gigabytes. The given slice is not changed.
func (rules aclRules) normalizeACL(list []ACL, c Credentials) ([]ACL, Code) {
	if len(list) == 0 {
		return nil, CodeInvalidACL
	}
	if len(list) == 1 && list[0].Scheme != schemeAuth {
		return list, rules.check(list[0])
	}
	identities, room := c.Identities(), maxAuthBytes
	var seen map[ACL]struct{}
	if len(list) > fewEntries {
		seen = make(map[ACL]struct{}, len(list))
	}
	out := make([]ACL, 0, len(list))
	for i, a := range list {
		if seen == nil && slices.Contains(list[:i], a) {
			continue
		}
		if seen != nil {
			if _, dup := seen[a]; dup {
				continue
			}
			seen[a] = struct{}{}
		}
		switch {
		case a.Scheme == schemeAuth:
			before := len(out)
			for _, id := range identities {
				if rules.authenticated(id.Scheme) {
					out = append(out, ACL{a.Perms, id.Scheme, id.ID})
					room -= aclOverhead + len(id.Scheme) + len(id.ID)
				}
				if room < 0 {
					return nil, CodeInvalidACL
				}
			}
			if len(out) == before {
				return nil, CodeInvalidACL
			}
		default:
			if code := rules.check(a); code != CodeOK {
				return nil, code
			}
			out = append(out, a)
		}
	}
	return out, CodeOK
}

// schemeAuth stands for the identities of the connection. It is never stored.
const schemeAuth = "auth"

// maxAuthBytes bounds what the entries of scheme auth in one list become, counted as in a request: that much is what a
// request can hold by default. aclOverhead is what an entry takes besides its texts.
const (
	maxAuthBytes = 1 << 20
	aclOverhead  = 12
)

// fewEntries is the length up to which repetitions are found by comparing.
const fewEntries = 16

// authenticated reports whether an identity of that scheme counts for "auth": an address does not.
func (rules aclRules) authenticated(scheme string) bool {
	switch scheme {
	case "digest":
		return rules.digest
	case "x509":
		return rules.x509
	case "sasl":
		return rules.sasl
	}
	return false
}

// check says what is wrong with an entry.
func (rules aclRules) check(a ACL) Code {
	switch {
	case a.ID == NullID && (a.Scheme == "world" || a.Scheme == "ip" || rules.authenticated(a.Scheme)):
		return CodeMarshallingError
	case !rules.valid(a):
		return CodeInvalidACL
	}
	return CodeOK
}

// valid checks the form of an entry. A scheme that the ensemble does not have is as invalid as an unknown one.
func (rules aclRules) valid(a ACL) bool {
	switch a.Scheme {
	case "world":
		return a.ID == "anyone"
	case "ip":
		_, ok := parseNetwork(a.ID)
		return ok
	case "digest":
		return rules.digest && validDigest(a.ID)
	case "x509":
		return rules.x509 && validName(a.ID)
	case "sasl":
		return rules.sasl && validPrincipal(a.ID)
	}
	return false
}

// validDigest reports whether Java's split at colons gives two parts: empty ones at the end do not count, so that
// "a:b:" is valid, and the user may be empty.
func validDigest(id string) bool {
	id = strings.TrimRight(id, ":")
	return strings.Count(id, ":") == 1
}

// validName reports whether id looks like a distinguished name (RFC 2253): type=value, separated by commas, plus signs
// or semicolons that are neither escaped nor quoted.
func validName(id string) bool {
	if strings.TrimSpace(id) == "" {
		return true
	}
	quoted, typed, start := false, false, 0
	for i := 0; i <= len(id); i++ {
		switch {
		case i == len(id) || !quoted && (id[i] == ',' || id[i] == '+' || id[i] == ';'):
			if !typed {
				return false
			}
			typed, start = false, i+1
		case id[i] == '\\':
			i++
		case id[i] == '"':
			quoted = !quoted
		case id[i] == '=' && !typed:
			if typed = strings.TrimSpace(id[start:i]) != ""; !typed {
				return false
			}
		}
	}
	return !quoted
}

// validPrincipal reports whether id is a plain name or name[/host]@realm.
func validPrincipal(id string) bool {
	name, realm, ok := strings.Cut(id, "@")
	return !ok || !strings.ContainsAny(realm, "/@") && strings.Count(name, "/") <= 1
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
