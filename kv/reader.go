package kv

import (
	"fmt"
	"strings"
)

// Reader is a View as a client with certain credentials sees it: every read makes the checks of the operation that
// clients have, in ZooKeeper's order (zookeeper-protocol 3.5, 9.5). It is a value to be passed and thrown away.
type Reader struct {
	v *View
	c Credentials
}

// AllCredentials pass every check: a super user's, and everybody's where lists are not enforced (skipACL).
const AllCredentials Credentials = "\x05" + SchemeSuper + "\x00"

// As returns the view as a client with these credentials sees it.
func (v *View) As(c Credentials) Reader { return Reader{v, c} }

// node finds the node of path. Errors: ErrNoNode, ErrNoAuth.
func (r Reader) node(path string, n *node, perms int32) error {
	if !r.v.node(path, n) {
		return ErrNoNode
	}
	if !r.may(n, perms) {
		return ErrNoAuth
	}
	return nil
}

func (r Reader) may(n *node, perms int32) bool {
	return n.acl == aclOpen || r.v.access(n.acl).Allows(r.c, perms)
}

// Exists returns the node's Stat. Errors: ErrBadArguments for a path with NUL; ErrNoNode; ErrNoAuth without READ.
func (r Reader) Exists(path string) (Stat, error) {
	if strings.IndexByte(path, 0) >= 0 {
		return Stat{}, ErrBadArguments
	}
	var n node
	if err := r.node(path, &n, PermRead); err != nil {
		return Stat{}, err
	}
	return n.stat(r.v.family(path, &n)), nil
}

// Get returns the node's data, nil if it is null, and Stat. The data belongs to the view and must not be written
// to. Errors: ErrNoNode; ErrNoAuth without READ.
func (r Reader) Get(path string) ([]byte, Stat, error) {
	var n node
	if err := r.node(path, &n, PermRead); err != nil {
		return nil, Stat{}, err
	}
	return n.bytes(), n.stat(r.v.family(path, &n)), nil
}

// Children appends the names of the node's children to dst, in byte order, and returns the node's Stat. The names
// share memory with the view: clone those that are kept. Errors: ErrNoNode; ErrNoAuth without READ.
func (r Reader) Children(path string, dst []string) ([]string, Stat, error) {
	var n node
	if err := r.node(path, &n, PermRead); err != nil {
		return dst, Stat{}, err
	}
	f := r.v.family(path, &n)
	return r.v.appendChildren(dst, path, f), n.stat(f), nil
}

// ACL returns the node's access control list and Stat. Who may not change it (ADMIN) sees "user:x" instead of the
// hashes of the digest scheme. Errors: ErrNoNode; ErrNoAuth without READ and ADMIN.
func (r Reader) ACL(path string) ([]ACL, Stat, error) {
	var n node
	if err := r.node(path, &n, PermRead|PermAdmin); err != nil {
		return nil, Stat{}, err
	}
	list, err := r.v.access(n.acl).Entries()
	if err != nil {
		return nil, Stat{}, fmt.Errorf("access control list %d of %q: %w", n.acl, path, ErrSystemError)
	}
	if !r.may(&n, PermAdmin) {
		for i := range list {
			if user, _, ok := strings.Cut(list[i].ID, ":"); ok && list[i].Scheme == "digest" {
				list[i].ID = user + ":x"
			}
		}
	}
	return list, n.stat(r.v.family(path, &n)), nil
}

// Descendants returns the number of nodes below the node. Nothing is collected and no record is looked at but those at
// the two ends: the cost is a visit to each leaf of the tree of nodes, 32 to 64 nodes each. Errors: ErrNoNode;
// ErrNoAuth without READ.
func (r Reader) Descendants(path string) (int32, error) {
	var n node
	if err := r.node(path, &n, PermRead); err != nil {
		return 0, err
	}
	switch path {
	case RootPath:
		return int32(r.v.nodes.size - 1), nil
	case "": // the other name of the root is no node above it, so ZooKeeper counts the root as well
		return int32(r.v.nodes.size), nil
	}
	if !n.parent {
		return 0, nil
	}
	count := 0
	for _, end := range subtreeRanges {
		count += r.v.nodes.count(path+end.from, path+end.to)
	}
	return int32(count), nil
}

// subtreeRanges are the two ranges of keys below a node: its children, and what is further down. Keys of other nodes
// ("/a!b" and its children, seen from "/a") lie between them.
var subtreeRanges = [...]struct{ from, to string }{{"\x00", "\x01"}, {"/", "0"}}

// EphemeralsWithPrefix appends the paths of the session's ephemeral nodes that begin with prefix, taken as text and
// not by component (zookeeper-protocol 3.5). A blank prefix and "/" mean all of them.
func (v *View) EphemeralsWithPrefix(id SessionID, prefix string, dst []string) []string {
	if text := strings.TrimSpace(prefix); text == "" || text == RootPath {
		prefix = ""
	}
	v.eachEphemeral(id, func(key string) bool {
		if keyHasPathPrefix(key, prefix) {
			dst = append(dst, pathOfKey(key))
		}
		return true
	})
	return dst
}

// keyHasPathPrefix reports whether the path of a stored key begins with prefix.
func keyHasPathPrefix(key, prefix string) bool {
	if len(key) < len(prefix) {
		return false
	}
	for i := range len(prefix) {
		c := key[i]
		if c == 0 {
			c = '/'
		}
		if c != prefix[i] {
			return false
		}
	}
	return true
}
