package wal

import "kvd/kv"

// indexEveryBytes is the distance of index marks: fine enough to choose a log start, coarse enough to be free.
const indexEveryBytes = 1 << 20

// indexMark remembers a point between two groups.
type indexMark struct {
	prev    kv.Zxid // last entry before the point
	entries int64   // entries before the point, since the beginning of this run's count
	bytes   int64   // stored bytes before it
}

// index answers how much log lies after a zxid without reading the store. Owned by Log.mu.
type index struct {
	marks   []indexMark
	entries int64
	bytes   int64
}

// indexBuilder places the marks of the scan.
type indexBuilder struct{ marks []indexMark }

func (b *indexBuilder) group(r *scanResult, first kv.Zxid) {
	if r.entries == 0 {
		return // before the first retained entry
	}
	if n := len(b.marks); n == 0 || r.bytes-b.marks[n-1].bytes >= indexEveryBytes {
		b.marks = append(b.marks, indexMark{prev: r.last, entries: r.entries, bytes: r.bytes})
	}
}

func (x *index) reset(r scanResult) {
	*x = index{marks: r.marks, entries: r.entries, bytes: r.bytes}
}

// add counts a group that was appended after prev.
func (x *index) add(prev kv.Zxid, entries, bytes int) {
	if n := len(x.marks); n == 0 || x.bytes-x.marks[n-1].bytes >= indexEveryBytes {
		x.marks = append(x.marks, indexMark{prev: prev, entries: x.entries, bytes: x.bytes})
	}
	x.entries += int64(entries)
	x.bytes += int64(bytes)
}

// truncate forgets what lies after z. Counts stay approximate within one mark.
func (x *index) truncate(z kv.Zxid) {
	n := len(x.marks)
	for n > 0 && x.marks[n-1].prev > z {
		n--
		x.entries, x.bytes = x.marks[n].entries, x.marks[n].bytes
	}
	x.marks = x.marks[:n]
}

// drop forgets the marks before z.
func (x *index) drop(z kv.Zxid) {
	n := 0
	for n < len(x.marks) && x.marks[n].prev < z {
		n++
	}
	x.marks = append(x.marks[:0], x.marks[n:]...)
}

// LogStartFor returns a log start for SnapshotPoint: the greatest zxid it knows that is at most limit and
// leaves at least minEntries entries or minBytes stored bytes after it. It returns the present log start
// if there is none. Cheap; any goroutine.
func (l *Log) LogStartFor(limit kv.Zxid, minEntries, minBytes int64) kv.Zxid {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := len(l.index.marks) - 1; i >= 0; i-- {
		m := l.index.marks[i]
		if m.prev <= limit && m.prev > l.done.LogStart &&
			(l.index.entries-m.entries >= minEntries || l.index.bytes-m.bytes >= minBytes) {
			return m.prev
		}
	}
	return l.done.LogStart
}

// BytesAfter estimates the stored bytes of the entries after z, to within indexEveryBytes.
func (l *Log) BytesAfter(z kv.Zxid) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if z >= l.done.last {
		return 0
	}
	for i := len(l.index.marks) - 1; i >= 0; i-- {
		if m := l.index.marks[i]; m.prev <= z {
			return l.index.bytes - m.bytes
		}
	}
	if len(l.index.marks) > 0 {
		return l.index.bytes - l.index.marks[0].bytes
	}
	return l.index.bytes
}
