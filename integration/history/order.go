package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"kvd/kv"
)

// Ordered checks all operations at once, in O(n log n), by the zxids that the answers carried:
//
//   - zxids respect real time: a write that began after another was acknowledged has a greater one, and a read
//     behind a sync was answered by a server that had applied everything acknowledged before it began;
//   - each version of a key was made by one write; versions grow by one in the order of zxids; what is missing in
//     between was made by writes of unknown outcome, of which there must be enough;
//   - a read shows a write that was sent, not one that was refused, at that write's version and zxid, and none
//     older than what was acknowledged before it began;
//   - within a session zxids never go back;
//   - the final tree holds the last write of every key, and no acknowledged write is missing below it.
//
// A write of unknown outcome counts as done when a read or the final tree shows its value. final may be nil: then
// what concerns it is left out. The result is in a stable order.
func Ordered(ops []Op, final map[Key]Final) []error {
	c := orderCheck{final: final, byValue: map[uint64]*Op{}, keys: map[Key]*keyHistory{}}
	for i := range ops {
		c.add(&ops[i])
	}
	c.sessions(ops)
	c.realTime(ops)
	for _, k := range slices.SortedFunc(maps.Keys(c.keys), compareKeys) {
		c.key(k, c.keys[k])
	}
	return c.errs
}

type orderCheck struct {
	final   map[Key]Final
	byValue map[uint64]*Op
	keys    map[Key]*keyHistory
	errs    []error
}

// keyHistory is what concerns one key.
type keyHistory struct {
	acked, unknown, reads []*Op
}

// made is one version of a key.
type made struct {
	version int32
	value   uint64
	zxid    kv.Zxid
}

func (c *orderCheck) bad(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf(format, args...))
}

func (c *orderCheck) add(o *Op) {
	if o.Kind == Write {
		if c.byValue[o.Value] != nil {
			c.bad("value %d was used twice: the recording is no good", o.Value)
		}
		c.byValue[o.Value] = o
	}
	for i := range MaxKeys {
		if !o.Has(i) {
			continue
		}
		k := Key{o.Group, i}
		h := c.keys[k]
		if h == nil {
			h = &keyHistory{}
			c.keys[k] = h
		}
		switch {
		case o.Kind == SyncRead && o.Outcome == OK:
			h.reads = append(h.reads, o)
		case o.Kind == Write && o.Outcome == OK:
			h.acked = append(h.acked, o)
		case o.Kind == Write && o.Outcome == Unknown:
			h.unknown = append(h.unknown, o)
		}
	}
}

// sessions: ops are in the order of each session's calls.
func (c *orderCheck) sessions(ops []Op) {
	last := map[uint32]kv.Zxid{}
	for i := range ops {
		o := &ops[i]
		if o.Zxid == 0 {
			continue
		}
		if o.Zxid < last[o.Session] {
			c.bad("session %d went back from %v to %v (%s)", o.Session, last[o.Session], o.Zxid, o)
		}
		last[o.Session] = max(last[o.Session], o.Zxid)
	}
}

func (c *orderCheck) realTime(ops []Op) {
	var calls, returns []*Op
	for i := range ops {
		o := &ops[i]
		if o.Outcome != OK {
			continue
		}
		calls = append(calls, o)
		if o.Kind == Write {
			returns = append(returns, o)
		}
	}
	slices.SortFunc(calls, func(a, b *Op) int { return cmp.Compare(a.Invoke, b.Invoke) })
	slices.SortFunc(returns, func(a, b *Op) int { return cmp.Compare(a.Return, b.Return) })
	var newest kv.Zxid
	by := map[kv.Zxid]*Op{}
	for _, o := range calls {
		for len(returns) > 0 && returns[0].Return < o.Invoke {
			newest = max(newest, returns[0].Mzxid)
			returns = returns[1:]
		}
		if o.Kind == SyncRead {
			if o.Zxid < newest {
				c.bad("STALE: a server that had applied %v answered a read behind a sync; %v was acknowledged before (%s)", o.Zxid, newest, o)
			}
			continue
		}
		if o.Mzxid <= newest {
			c.bad("write got %v although %v was acknowledged before it began (%s)", o.Mzxid, newest, o)
		}
		if other := by[o.Mzxid]; other != nil {
			c.bad("%v was given to two writes (%s) and (%s)", o.Mzxid, other, o)
		}
		by[o.Mzxid] = o
	}
}

func (c *orderCheck) key(k Key, h *keyHistory) {
	versions := map[int32]made{}
	put := func(m made, from string) {
		old, ok := versions[m.version]
		if !ok {
			versions[m.version] = m
		} else if old != m {
			c.bad("group %d key %d: version %d is value %d at %v and (%s) value %d at %v", k.Group, k.Index, m.version, old.value, old.zxid, from, m.value, m.zxid)
		}
	}
	for _, o := range h.acked {
		if o.Expected != AnyVersion && o.First() == k.Index && o.Versions[k.Index] != o.Expected+1 {
			c.bad("group %d key %d: a set on version %d was acknowledged as version %d", k.Group, k.Index, o.Expected, o.Versions[k.Index])
		}
		put(made{o.Versions[k.Index], o.Value, o.Mzxid}, "acknowledged")
	}
	for _, o := range h.reads {
		c.source(k, o.Value, o.Versions[k.Index], o.Return)
		if o.Value != 0 {
			put(made{o.Versions[k.Index], o.Value, o.Mzxid}, "read")
		}
	}
	c.fresh(k, h)
	end, ended := c.final[k]
	if ended {
		c.source(k, end.Value, end.Version, 1<<62)
		if end.Value != 0 {
			put(made{end.Version, end.Value, end.Mzxid}, "in the final tree")
		}
	} else if c.final != nil && len(h.acked) > 0 {
		c.bad("LOST: group %d key %d is not in the final tree; %d writes were acknowledged", k.Group, k.Index, len(h.acked))
	}
	c.chain(k, h, versions, end, ended)
}

// chain: versions grow with zxids, and what is missing was made by a write of unknown outcome.
func (c *orderCheck) chain(k Key, h *keyHistory, versions map[int32]made, end Final, ended bool) {
	all := make([]made, 0, len(versions))
	seen := map[uint64]bool{}
	for _, m := range versions {
		all = append(all, m)
		if seen[m.value] {
			c.bad("group %d key %d: value %d made two versions", k.Group, k.Index, m.value)
		}
		seen[m.value] = true
	}
	slices.SortFunc(all, func(a, b made) int { return cmp.Compare(a.version, b.version) })
	open := 0 // unknown writes that nothing shows
	for _, o := range h.unknown {
		if !seen[o.Value] {
			open++
		}
	}
	missing, last := 0, made{}
	for _, m := range all {
		if m.zxid <= last.zxid {
			c.bad("group %d key %d: version %d has %v, version %d has %v", k.Group, k.Index, last.version, last.zxid, m.version, m.zxid)
		}
		missing += int(m.version - last.version - 1)
		last = m
		if ended && m.version > end.Version {
			c.bad("LOST: group %d key %d: version %d (value %d, %v) was seen; the final tree has version %d", k.Group, k.Index, m.version, m.value, m.zxid, end.Version)
		}
	}
	if missing > open {
		c.bad("group %d key %d: %d versions were made by no write that was acknowledged or unknown", k.Group, k.Index, missing-open)
	}
}

// source: a value seen was written by a write that may have happened, called before it was seen.
func (c *orderCheck) source(k Key, value uint64, version int32, seen int64) {
	if value == 0 {
		if version != 0 {
			c.bad("group %d key %d: empty at version %d", k.Group, k.Index, version)
		}
		return
	}
	o := c.byValue[value]
	switch {
	case o == nil || o.Group != k.Group || !o.Has(k.Index):
		c.bad("group %d key %d: value %d was never written to it", k.Group, k.Index, value)
	case o.Outcome == Failed:
		c.bad("group %d key %d: value %d is seen although its write was refused", k.Group, k.Index, value)
	case o.Invoke > seen:
		c.bad("group %d key %d: value %d was read before it was written", k.Group, k.Index, value)
	case o.Expected != AnyVersion && o.First() == k.Index && version != o.Expected+1:
		c.bad("group %d key %d: value %d was for version %d and is at version %d", k.Group, k.Index, value, o.Expected+1, version)
	}
}

// fresh: no read behind a sync shows less than what was acknowledged, or read so, before it began.
func (c *orderCheck) fresh(k Key, h *keyHistory) {
	returns := slices.Concat(h.acked, h.reads)
	slices.SortFunc(returns, func(a, b *Op) int { return cmp.Compare(a.Return, b.Return) })
	calls := slices.Clone(h.reads)
	slices.SortFunc(calls, func(a, b *Op) int { return cmp.Compare(a.Invoke, b.Invoke) })
	newest := int32(0)
	for _, o := range calls {
		for len(returns) > 0 && returns[0].Return < o.Invoke {
			newest = max(newest, returns[0].Versions[k.Index])
			returns = returns[1:]
		}
		if o.Versions[k.Index] < newest {
			c.bad("STALE: group %d key %d: a read behind a sync showed version %d; version %d was known before it began (%s)", k.Group, k.Index, o.Versions[k.Index], newest, o)
		}
	}
}

// String describes an operation for a report.
func (o *Op) String() string {
	kind := "write"
	if o.Kind == SyncRead {
		kind = "read"
	}
	return fmt.Sprintf("%s %s of group %d keys %03b, session %d, value %d, expected %d, versions %v, mzxid %v, zxid %v, %d..%d",
		o.Outcome, kind, o.Group, o.Mask, o.Session, o.Value, o.Expected, o.Versions, o.Mzxid, o.Zxid, o.Invoke, o.Return)
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Index, b.Index))
}
