package kv

import (
	"slices"
	"strconv"
	"strings"
)

// Quotas (zookeeper-protocol 5.4). A path P has one while the node /zookeeper/quota/P/zookeeper_limits exists; what is
// used is written into /zookeeper/quota/P/zookeeper_stats beside it, in place: neither version nor times of that node
// change and no watch fires. Both are ordinary nodes, made, written and deleted by clients. They are all the state there
// is: what is counted is added to the text in the node, so a member that replayed the history and one that loaded a
// snapshot agree. Only the list of paths that have limits is derived, and while it is empty quotas cost nothing.
//
// Text that cannot be read (ZooKeeper then refuses everything below P, or dies) is left alone: nothing is counted or
// refused until somebody repairs it. So is one longer than maxQuotaText: every write below P reads and writes these
// texts, on every member, so they must be small. A quota of the root is ignored, as ZooKeeper documents it; there its limits node
// kills the server.

const (
	quotaLimitsName = "zookeeper_limits"
	quotaStatsName  = "zookeeper_stats"

	quotaCountKey     = "count"
	quotaBytesKey     = "bytes"
	quotaCountHardKey = "countHardLimit"
	quotaBytesHardKey = "byteHardLimit"
	quotaNone         = int64(-1) // no limit, and what a missing figure counts as

	// maxQuotaText is the longest text of a quota that is read, in bytes. Those of ZooKeeper's tools have 150 at most.
	// Apply depends on it.
	maxQuotaText = 1 << 10
)

// quotaPart says which of the two nodes of a quota a path is.
type quotaPart uint8

const (
	quotaNeither quotaPart = iota
	quotaLimits
	quotaStats
)

// splitQuotaPath returns the path whose quota the node of path belongs to, empty for the root.
func splitQuotaPath(path string) (prefix string, part quotaPart) { return splitQuota(path, '/') }

// splitQuotaKey is splitQuotaPath for a stored key, whose last separator is NUL.
func splitQuotaKey(key string) (prefix string, part quotaPart) { return splitQuota(key, 0) }

func splitQuota(path string, last byte) (prefix string, part quotaPart) {
	below, ok := strings.CutPrefix(path, QuotaPath)
	if !ok || below == "" || below[0] != '/' && below[0] != last {
		return "", quotaNeither
	}
	i := strings.LastIndexByte(below, last)
	if i < 0 {
		return "", quotaNeither
	}
	switch below[i+1:] {
	case quotaLimitsName:
		part = quotaLimits
	case quotaStatsName:
		part = quotaStats
	default:
		return "", quotaNeither
	}
	return below[:i], part
}

// quotaNodePath returns the path of one of the two nodes.
func quotaNodePath(prefix, name string) string { return QuotaPath + prefix + "/" + name }

// quotaText is the content of either node: count and bytes, and what else there is, such as hard limits.
type quotaText struct {
	count, bytes int64
	more         []quotaFigure // sorted by key, each key once; never changed in place
}

type quotaFigure struct {
	key   string
	value int64
}

// parseQuota reads "count=2,bytes=-1=;byteHardLimit=5;countHardLimit=-1" as ZooKeeper does: pairs separated by commas or
// semicolons, key and value by "=", the rest of a pair ignored; the last of equal keys counts, a figure that is missing
// is -1. A text longer than maxQuotaText is not read.
func parseQuota(text string) (quotaText, bool) {
	q := quotaText{count: quotaNone, bytes: quotaNone}
	if len(text) > maxQuotaText {
		return q, false
	}
	isSeparator := func(c rune) bool { return c == ',' || c == ';' }
	text = strings.TrimRightFunc(text, isSeparator)
	if text == "" {
		return q, true
	}
	if isSeparator(rune(text[0])) {
		return q, false
	}
	for pair := range strings.FieldsFuncSeq(text, isSeparator) {
		key, value, ok := strings.Cut(strings.TrimRight(pair, "="), "=")
		if !ok {
			return q, false
		}
		value, _, _ = strings.Cut(value, "=")
		n := quotaNone
		if value != "" {
			var err error
			if n, err = strconv.ParseInt(value, 10, 64); err != nil {
				return q, false
			}
		}
		switch key {
		case quotaCountKey:
			q.count = n
		case quotaBytesKey:
			q.bytes = n
		default:
			i, found := slices.BinarySearchFunc(q.more, key, func(f quotaFigure, k string) int { return strings.Compare(f.key, k) })
			if found {
				q.more[i].value = n
			} else {
				q.more = slices.Insert(q.more, i, quotaFigure{key, n})
			}
		}
	}
	return q, true
}

// append appends the text. The "=" before further figures makes old parsers ignore them.
func (q *quotaText) append(dst []byte) []byte {
	dst = append(append(dst, quotaCountKey...), '=')
	dst = strconv.AppendInt(dst, q.count, 10)
	dst = append(append(append(dst, ','), quotaBytesKey...), '=')
	dst = strconv.AppendInt(dst, q.bytes, 10)
	if len(q.more) > 0 {
		dst = append(dst, '=')
	}
	for _, f := range q.more {
		dst = append(append(append(dst, ';'), f.key...), '=')
		dst = strconv.AppendInt(dst, f.value, 10)
	}
	return dst
}

// hard returns a hard limit, quotaNone if it is not set.
func (q *quotaText) hard(key string) int64 {
	for _, f := range q.more {
		if f.key == key {
			return f.value
		}
	}
	return quotaNone
}

// quotaOf returns the deepest path with a quota that the node of path is or lies below.
func (s *state) quotaOf(path string) (prefix string, ok bool) {
	if s.quotas.size == 0 {
		return "", false
	}
	for end := len(path); end > 0; end = strings.LastIndexByte(path[:end], '/') {
		if _, ok := s.quotas.get(path[:end]); ok {
			return path[:end], true
		}
	}
	return "", false
}

// charge adds to what is used of the quota that holds for path.
func (e *edit) charge(path string, count, bytes int64) {
	prefix, ok := e.quotaOf(path)
	if !ok {
		return
	}
	var n node
	stats := quotaNodePath(prefix, quotaStatsName)
	if !e.node(stats, &n) {
		return
	}
	q, ok := parseQuota(n.data)
	if !ok {
		return
	}
	q.count += count
	q.bytes += bytes
	e.writeUsage(stats, &n, &q)
}

// writeUsage replaces the data of a stats node in place.
func (e *edit) writeUsage(path string, n *node, q *quotaText) {
	text := string(q.append(nil))
	if !n.null && n.data == text {
		return
	}
	n.data, n.null = text, false
	e.putNode(path, n)
}

// quotaCreated is called when the node of path with so many bytes of data has been made. A stats node gets the real
// usage at once.
func (e *edit) quotaCreated(path string, bytes int64) {
	switch prefix, part := splitQuotaPath(path); {
	case part == quotaLimits && prefix != "":
		e.quotas.put(e.own, string(appendString(nil, prefix)))
	case part == quotaStats:
		var n node
		if e.node(path, &n) {
			q := quotaText{}
			q.count, q.bytes = e.usage(prefix)
			e.writeUsage(path, &n, &q)
		}
	}
	e.charge(path, 1, bytes)
}

// quotaRemoved is called when the node of path, which had so many bytes of data, is gone.
func (e *edit) quotaRemoved(path string, bytes int64) {
	if prefix, part := splitQuotaPath(path); part == quotaLimits {
		e.quotas.delete(e.own, prefix)
	}
	e.charge(path, -1, -bytes)
}

// usage counts the node of path and all below it, and their data. The empty path is the root. The first time it visits
// every node; sums are kept in the tree of nodes, so that afterwards the cost follows what has changed since.
func (s *state) usage(path string) (count, bytes int64) {
	if s.nodes.root == nil {
		return 0, 0
	}
	if path == "" {
		w := s.nodes.root.weigh()
		return w.records, w.bytes
	}
	rec, ok := s.lookup(path)
	if !ok {
		return 0, 0
	}
	sum := weight{1, dataBytes(rec)}
	for _, end := range subtreeRanges {
		sum.add(s.nodes.root.weighRange(path+end.from, path+end.to))
	}
	return sum.records, sum.bytes
}
