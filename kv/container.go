package kv

import "math"

// The kinds of nodes that the leader removes by itself: containers, once their last child is gone, and nodes with a
// time to live (zookeeper-protocol 4.8, 4.9).

// ownerContainer marks a container. Session ids never have this value.
const ownerContainer = Owner(math.MinInt64)

// The form of the owner of a node with a time to live: the top byte, a feature number of zero, and milliseconds.
const (
	ownerTTL     uint64 = 0xff << 56
	ownerTTLMask uint64 = 0xffffff << 40
	// MaxTTL is the longest time to live, in milliseconds.
	MaxTTL int64 = 1<<40 - 1
)

// Ephemeral returns the owning session, or zero if the node is not ephemeral.
func (o Owner) Ephemeral() SessionID {
	if o == ownerContainer || uint64(o)>>56 == 0xff {
		return 0
	}
	return SessionID(o)
}

// Container reports whether the node is a container.
func (o Owner) Container() bool { return o == ownerContainer }

// TTL returns the node's time to live in milliseconds, zero if it has none.
func (o Owner) TTL() int64 {
	if uint64(o)&ownerTTLMask != ownerTTL {
		return 0
	}
	return int64(uint64(o) &^ ownerTTLMask)
}

// validTTL reports whether ttl, in milliseconds, is a time to live that can be stored.
func validTTL(ttl int64) bool { return ttl >= 1 && ttl <= MaxTTL }

// valid reports whether nodes can have this owner: the rest of the reserved range stands for nothing.
func (o Owner) valid() bool { return o == 0 || o.Ephemeral() != 0 || o.Container() || o.TTL() != 0 }

// ttlOwner returns the owner of a node with that valid time to live.
func ttlOwner(ttl int64) Owner { return Owner(ownerTTL | uint64(ttl)) }

// reapTable returns the index that lists the nodes of that owner, nil for an ordinary one.
func (s *state) reapTable(o Owner) *btree {
	switch {
	case o.Container():
		return &s.containers
	case o.TTL() != 0:
		return &s.ttls
	}
	return nil
}

// ContainerCount returns the number of containers.
func (v *View) ContainerCount() int { return v.containers.size }

// TTLCount returns the number of nodes with a time to live.
func (v *View) TTLCount() int { return v.ttls.size }

// Reapable calls yield with the path of every node that is to be removed at the time now (milliseconds since the Unix
// epoch), until it returns false: containers in the order of their keys, then nodes with a time to live. Children keep
// a node. A container goes if it had a child, or if neverUsed is positive and its data have not been written for longer
// than these milliseconds; a node with a time to live goes when its data have not been written for longer than that.
// The cost follows the number of containers and nodes with a time to live.
func (v *View) Reapable(now, neverUsed int64, yield func(path string) bool) {
	more := true
	for _, table := range [...]*btree{&v.containers, &v.ttls} {
		if !more {
			return
		}
		table.ascend("", func(rec string) bool {
			if key := recKey(rec); v.reapable(key, now, neverUsed) {
				more = yield(pathOfKey(key))
			}
			return more
		})
	}
}

// reapable is the rule of Reapable for the node with that key, by what the view knows.
func (s *state) reapable(key string, now, neverUsed int64) bool {
	rec, ok := s.nodes.get(key)
	if !ok {
		return false
	}
	var n node
	decodeNode(recValue(rec), &n)
	var f family
	if rec, ok = s.families.get(key); ok {
		f, _ = decodeFamily(recValue(rec))
	}
	facts := nodeFacts{exists: true, creates: f.creates, children: f.children, owner: n.owner, mtime: n.mtime}
	return facts.reapable(now, neverUsed)
}

// reapable is the rule itself.
func (n *nodeFacts) reapable(now, neverUsed int64) bool {
	unchanged := now - n.mtime
	switch {
	case !n.exists || n.children != 0:
		return false
	case n.owner.Container():
		return n.creates != 0 || neverUsed > 0 && unchanged > neverUsed
	}
	ttl := n.owner.TTL()
	return ttl != 0 && unchanged > ttl
}

// StillReapable reports whether the newest view has the node and lets it be removed (see View.Reapable), and nothing in
// flight touches it. Who proposes OpDeleteContainer asks it right before.
func (p *Preparer) StillReapable(path string, now, neverUsed int64) bool {
	v := p.view()
	if n, ok := p.nodes[watchPath(path)]; ok && n.zxid > v.zxid {
		return false
	}
	var buf keyBuffer
	return v.reapable(stringOf(appendKey(buf[:0], path)), now, neverUsed)
}

// deleteContainer removes a container or a node with a time to live for the leader, which found it in a view that may
// be older. So the rule is checked again, here against what is in flight: what was written or made anew since then
// stays (BadVersion, as ZooKeeper says for an ephemeral node). Request.TTL is Reapable's neverUsed.
func (p *Preparer) deleteContainer(dst []byte, z Zxid, r *Request) ([]byte, Code) {
	if !deletablePath(r.Path) {
		return dst, CodeBadArguments
	}
	n := p.facts(r.Path)
	switch {
	case !n.exists:
		return dst, CodeNoNode
	case n.children > 0:
		return dst, CodeNotEmpty
	case !n.reapable(p.now, r.TTL):
		return dst, CodeBadVersion
	}
	parentPath := parentOf(r.Path)
	p.removed(r.Path, n, parentPath, p.facts(parentPath), z)
	return appendTxnOp(dst, &TxnOp{Op: OpDeleteContainer, Path: r.Path}), CodeOK
}
