package zab

import (
	"slices"
	"sort"

	"kvd/kv"
)

// chunkEntries is how many entries share one allocation. Chunks are append-only: a slice of one that was
// handed out in a Ready or a Proposal stays valid and unchanged for as long as anybody holds it.
const chunkEntries = 512

// chunkBytes closes a chunk early: whole chunks are what can be evicted, and 512 large payloads would be a lot.
const chunkBytes = 1 << 20

// entryOverhead is what an entry counts for in byte limits beside its payload.
const entryOverhead = 32

func entryBytes(e *kv.Entry) int { return len(e.Payload) + entryOverhead }

// tail holds the newest entries of the log in memory: everything that is outstanding, and what is recent.
// Streams to learners, the applier's batches and duplicates are served from it.
type tail struct {
	// start is the entry before the first one held (an entry, a base, or 0).
	start      kv.Zxid
	startChain uint64
	chunks     [][]kv.Entry
	bytes      int
	count      int
	newest     int // bytes in the newest chunk
}

func (t *tail) reset(start kv.Zxid, chain uint64) {
	*t = tail{start: start, startChain: chain}
}

// add appends e, whose predecessor must be the last entry, and returns the slice that ends with it: the
// caller extends its own slice of the same chunk. fresh is true if e is the first of a chunk.
func (t *tail) add(e kv.Entry) (chunk []kv.Entry, fresh bool) {
	n := len(t.chunks)
	if n == 0 || len(t.chunks[n-1]) == chunkEntries || t.newest >= chunkBytes {
		t.chunks = append(t.chunks, make([]kv.Entry, 0, chunkEntries))
		t.newest = 0
		n++
		fresh = true
	}
	c := append(t.chunks[n-1], e)
	t.chunks[n-1] = c
	size := entryBytes(&e)
	t.bytes += size
	t.newest += size
	t.count++
	return c, fresh
}

// find returns the chunk and index of the first entry > z; ok is false if there is none.
// z must not be below start.
func (t *tail) find(z kv.Zxid) (ci, i int, ok bool) {
	n := len(t.chunks)
	if n == 0 {
		return 0, 0, false
	}
	ci = n - 1
	if t.chunks[ci][0].Zxid > z { // not in the newest chunk, the usual case
		ci = sort.Search(n, func(k int) bool { c := t.chunks[k]; return c[len(c)-1].Zxid > z })
	}
	c := t.chunks[ci]
	last := c[len(c)-1].Zxid
	if last <= z {
		return 0, 0, false
	}
	// Within an epoch zxids are dense, so the distance from the end is the index: no search.
	if last.Epoch() == z.Epoch() {
		if k := len(c) - int(last.Counter()-z.Counter()); k >= 0 && c[k].Zxid == z+1 {
			return ci, k, true
		}
	}
	i = sort.Search(len(c), func(k int) bool { return c[k].Zxid > z })
	return ci, i, true
}

// after returns entries in (z, through], at least one and then up to maxBytes, from one chunk. The result
// is nil if there is none or z is below what is held.
func (t *tail) after(z, through kv.Zxid, maxBytes, maxEntries int) []kv.Entry {
	if z < t.start {
		return nil
	}
	ci, i, ok := t.find(z)
	if !ok {
		return nil
	}
	c := t.chunks[ci]
	j, size := i, 0
	for j < len(c) && c[j].Zxid <= through && j-i < maxEntries {
		size += entryBytes(&c[j])
		if j > i && size > maxBytes {
			break
		}
		j++
	}
	if i == j {
		return nil
	}
	return c[i:j:j]
}

// locate returns the greatest entry held (or start) at or below z; ok is false if z is below start.
func (t *tail) locate(z kv.Zxid) (at kv.Zxid, chain uint64, ok bool) {
	if z < t.start {
		return 0, 0, false
	}
	at, chain = t.start, t.startChain
	ci, i, more := t.find(z)
	switch {
	case !more && len(t.chunks) > 0:
		c := t.chunks[len(t.chunks)-1]
		e := &c[len(c)-1]
		at, chain = e.Zxid, e.Chain
	case more && i > 0:
		e := &t.chunks[ci][i-1]
		at, chain = e.Zxid, e.Chain
	case more && ci > 0:
		c := t.chunks[ci-1]
		e := &c[len(c)-1]
		at, chain = e.Zxid, e.Chain
	}
	return at, chain, true
}

// between returns the number and the bytes of the entries in (from, through]; ok is false if from is below
// what is held.
func (t *tail) between(from, through kv.Zxid) (entries, bytes int, ok bool) {
	if from < t.start {
		return 0, 0, false
	}
	ci, i, more := t.find(from)
	if !more {
		return 0, 0, true
	}
	for ; ci < len(t.chunks); ci++ {
		for c := t.chunks[ci]; i < len(c); i++ {
			if c[i].Zxid > through {
				return entries, bytes, true
			}
			entries++
			bytes += entryBytes(&c[i])
		}
		i = 0
	}
	return entries, bytes, true
}

// truncate drops every entry > z. The dropped slots are never reused: somebody may still hold them.
func (t *tail) truncate(z kv.Zxid, chain uint64) {
	if z < t.start || t.count == 0 && z != t.start {
		t.reset(z, chain)
		return
	}
	ci, i, ok := t.find(z)
	if !ok {
		return
	}
	for k := ci; k < len(t.chunks); k++ {
		from := 0
		if k == ci {
			from = i
		}
		for j := from; j < len(t.chunks[k]); j++ {
			t.bytes -= entryBytes(&t.chunks[k][j])
			t.count--
		}
	}
	if i > 0 {
		t.chunks[ci] = t.chunks[ci][:i:i]
		ci++
	}
	t.chunks = t.chunks[:ci]
	t.newest = chunkBytes // the cut chunk takes no more
}

// evict drops whole chunks from the old end while more than maxBytes are held and everything in the chunk is
// at or below z.
func (t *tail) evict(z kv.Zxid, maxBytes int) {
	for t.bytes > maxBytes && len(t.chunks) > 1 {
		c := t.chunks[0]
		last := &c[len(c)-1]
		if last.Zxid > z {
			return
		}
		for i := range c {
			t.bytes -= entryBytes(&c[i])
		}
		t.count -= len(c)
		t.start, t.startChain = last.Zxid, last.Chain
		t.chunks[0] = nil
		t.chunks = t.chunks[1:]
	}
}

// clone shares all entries. The newest chunk is cut to its length, so that what the copy adds goes into an array of its
// own and never into the original's.
func (t *tail) clone() tail {
	u := *t
	u.chunks = slices.Clone(t.chunks)
	if n := len(u.chunks); n > 0 {
		c := u.chunks[n-1]
		u.chunks[n-1] = c[:len(c):len(c)]
	}
	return u
}
