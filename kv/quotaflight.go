package kv

import "strings"

// Hard limits, which only the leader looks at: what is used is known here as it will be when everything in flight is
// applied. (ZooKeeper looks at what is applied, so requests in flight together can exceed a limit.) Nothing here runs
// unless quotas are enforced and there is one.

// quotaFacts is what is known about the quota of a path.
type quotaFacts struct {
	limits, stats quotaNode
}

// quotaNode is one of its two nodes.
type quotaNode struct {
	exists, readable bool
	text             quotaText
}

func makeQuotaNode(data string) quotaNode {
	text, ok := parseQuota(data)
	return quotaNode{true, ok, text}
}

// pendingQuota is a quota as the newest prepared transaction that touches it leaves it.
type pendingQuota struct {
	facts quotaFacts
	zxid  Zxid
}

// quotaNode reads one of the nodes of a quota.
func (s *state) quotaNode(prefix, name string) quotaNode {
	var n node
	if !s.node(quotaNodePath(prefix, name), &n) {
		return quotaNode{}
	}
	return makeQuotaNode(n.data)
}

// quotasMatter reports whether anything has to be looked at.
func (p *Preparer) quotasMatter() bool {
	return p.opt.EnforceQuota && (p.cur.quotas.size > 0 || p.quotaAt > p.cur.zxid)
}

// quotaFacts returns the facts of a quota after everything in flight.
func (p *Preparer) quotaFacts(prefix string) quotaFacts {
	if q, ok := p.quotas[prefix]; ok && q.zxid > p.cur.zxid {
		return q.facts
	}
	return quotaFacts{p.cur.quotaNode(prefix, quotaLimitsName), p.cur.quotaNode(prefix, quotaStatsName)}
}

// quotaFor returns the deepest path with a quota that path is or lies below, after everything in flight.
func (p *Preparer) quotaFor(path string) (prefix string, ok bool) {
	for end := len(path); end > 0; end = strings.LastIndexByte(path[:end], '/') {
		if q, pending := p.quotas[path[:end]]; pending && q.zxid > p.cur.zxid {
			ok = q.facts.limits.exists
		} else {
			_, ok = p.cur.quotas.get(path[:end])
		}
		if ok {
			return path[:end], true
		}
	}
	return "", false
}

// overQuota reports whether so many more nodes and bytes at path would exceed a hard limit. A change of nothing never
// does, also above the limit.
func (p *Preparer) overQuota(path string, count, bytes int64) bool {
	if !p.quotasMatter() {
		return false
	}
	prefix, ok := p.quotaFor(path)
	if !ok {
		return false
	}
	f := p.quotaFacts(prefix)
	if !f.limits.readable || !f.stats.readable {
		return false
	}
	exceeds := func(more, used, limit int64) bool { return more != 0 && limit > quotaNone && used+more > limit }
	return exceeds(count, f.stats.text.count, f.limits.text.hard(quotaCountHardKey)) ||
		exceeds(bytes, f.stats.text.bytes, f.limits.text.hard(quotaBytesHardKey))
}

// quotaCreated records that transaction z makes the node of path, after its facts were recorded.
func (p *Preparer) quotaCreated(path string, data []byte, z Zxid) {
	if !p.opt.EnforceQuota {
		return
	}
	switch prefix, part := splitQuotaPath(path); {
	case part == quotaLimits && prefix != "":
		p.quotaAt = z
		p.quotaNodeWritten(prefix, part, string(data), z)
	case part == quotaStats:
		f := p.quotaFacts(prefix)
		f.stats = quotaNode{exists: true, readable: true}
		f.stats.text.count, f.stats.text.bytes = p.usage(prefix)
		p.setQuota(prefix, f, z)
	}
	p.chargeQuota(path, 1, int64(len(data)), z)
}

// quotaWritten records that transaction z writes the data of the node of path, which had so many bytes.
func (p *Preparer) quotaWritten(path string, data []byte, was int32, z Zxid) {
	if !p.opt.EnforceQuota {
		return
	}
	if prefix, part := splitQuotaPath(path); part != quotaNeither {
		p.quotaNodeWritten(prefix, part, string(data), z)
	}
	p.chargeQuota(path, 0, int64(len(data))-int64(was), z)
}

// quotaRemoved records that transaction z removes the node of path.
func (p *Preparer) quotaRemoved(path string, bytes int64, z Zxid) {
	if !p.opt.EnforceQuota {
		return
	}
	if prefix, part := splitQuotaPath(path); part != quotaNeither {
		f := p.quotaFacts(prefix)
		if part == quotaLimits {
			f.limits = quotaNode{}
		} else {
			f.stats = quotaNode{}
		}
		p.setQuota(prefix, f, z)
	}
	p.chargeQuota(path, -1, -bytes, z)
}

func (p *Preparer) quotaNodeWritten(prefix string, part quotaPart, data string, z Zxid) {
	f := p.quotaFacts(prefix)
	if part == quotaLimits {
		f.limits = makeQuotaNode(data)
	} else {
		f.stats = makeQuotaNode(data)
	}
	p.setQuota(prefix, f, z)
}

// chargeQuota is edit.charge for what is in flight.
func (p *Preparer) chargeQuota(path string, count, bytes int64, z Zxid) {
	if !p.quotasMatter() {
		return
	}
	prefix, ok := p.quotaFor(path)
	if !ok {
		return
	}
	f := p.quotaFacts(prefix)
	if !f.stats.readable {
		return
	}
	f.stats.text.count += count
	f.stats.text.bytes += bytes
	p.setQuota(prefix, f, z)
}

// maxCounted bounds the pending nodes that one transaction has the leader look at to count what is used, after the first
// time: a multi could make it do so for each of its operations.
const maxCounted = 1 << 18

// mayCount reports whether the node of path may be made as far as the cost of counting goes.
func (p *Preparer) mayCount(path string) bool {
	if !p.opt.EnforceQuota {
		return true
	}
	if _, part := splitQuotaPath(path); part != quotaStats {
		return true
	}
	before := p.seen
	p.seen += len(p.nodes) + 1
	return before == 0 || p.seen <= maxCounted
}

// usage is state.usage after everything in flight.
func (p *Preparer) usage(prefix string) (count, bytes int64) {
	count, bytes = p.cur.usage(prefix)
	below := prefix + "/"
	for path, n := range p.nodes { // in any order: a sum
		if path != prefix && !strings.HasPrefix(path, below) {
			continue
		}
		if was := p.cur.facts(path); was.exists {
			count--
			bytes -= int64(was.dataLen)
		}
		if n.facts.exists {
			count++
			bytes += int64(n.facts.dataLen)
		}
	}
	return count, bytes
}
