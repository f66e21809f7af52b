package wal

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"kvd/kv"
)

// Read appends to dst the entries after after, up to and including through, but never beyond the last
// completed write, and about maxBytes of payload (at least one entry if there is one). The payloads share one
// allocation per group read and belong to the caller.
// Errors: ErrCompacted if after lies before the log start; ErrNotFound if after is neither the log start nor an
// entry; ErrDamaged; ErrClosed. Any goroutine.
func (l *Log) Read(after, through kv.Zxid, maxBytes int, dst []kv.Entry) ([]kv.Entry, error) {
	if err := l.Err(); err != nil {
		return dst, err
	}
	l.mu.Lock()
	logStart, last, closed := l.done.LogStart, l.done.last, l.closed
	l.mu.Unlock()
	through = min(through, last)
	switch {
	case closed:
		return dst, ErrClosed
	case after < logStart:
		return dst, fmt.Errorf("%w: after %v, the log starts after %v", ErrCompacted, after, logStart)
	case after > last:
		return dst, fmt.Errorf("%w: %v, the log ends at %v", ErrNotFound, after, last)
	case after >= through:
		return dst, nil
	}
	got, err := guard(l.fs.health, func() ([]kv.Entry, error) {
		var got []kv.Entry
		err := l.iterate(entryKey(through+1), func(it *pebble.Iterator) (err error) {
			got, err = readEntries(it, after, through, maxBytes, nil)
			return err
		})
		if errors.Is(err, ErrDamaged) {
			err = l.damagedRead(err)
		}
		return got, err
	})
	return append(dst, got...), err
}

// damagedRead ends the log: what it holds cannot be trusted any more, and the next start will find the place.
func (l *Log) damagedRead(err error) error {
	l.storeMu.RLock()
	defer l.storeMu.RUnlock()
	if l.db == nil {
		return err
	}
	return l.db.watch.damaged(err)
}

// iterate opens an iterator over the groups below upper for f. Called through guard by everybody but the writer.
func (l *Log) iterate(upper []byte, f func(*pebble.Iterator) error) error {
	l.storeMu.RLock()
	defer l.storeMu.RUnlock()
	if l.db == nil {
		return ErrClosed
	}
	it, err := l.db.NewIter(&pebble.IterOptions{LowerBound: []byte{entryPrefix}, UpperBound: upper})
	if err != nil {
		return err
	}
	return errors.Join(f(it), it.Close())
}

// readEntries positions it in the group that holds after's successor and copies from there. The groups
// carry the entry before them, so whatever a concurrent purge removed shows as ErrCompacted, not as a hole.
func readEntries(it *pebble.Iterator, after, through kv.Zxid, maxBytes int, dst []kv.Entry) ([]kv.Entry, error) {
	ok := it.SeekLT(entryKey(after + 1))
	if !ok {
		if err := it.Error(); err != nil {
			return dst, err
		}
		ok = it.First()
	}
	prev, seen, n := kv.Zxid(0), false, 0
	for ; ok; ok = it.Next() {
		g, err := groupAt(it, true)
		if err != nil {
			return dst, err
		}
		if prev = g.prev; prev == after {
			seen = true
		}
		rd := g.reader()
		for {
			e, more, err := rd.next()
			if err != nil {
				return dst, err
			}
			if !more {
				break
			}
			if e.Zxid > through {
				return dst, nil
			}
			if e.Zxid > after {
				if !seen {
					return dst, missing(after, prev)
				}
				if n > 0 && n+len(e.Payload) > maxBytes {
					return dst, nil
				}
				dst = append(dst, e)
				n += len(e.Payload)
			}
			if prev = e.Zxid; prev == after {
				seen = true
			}
		}
	}
	if err := it.Error(); err != nil {
		return dst, err
	}
	if !seen {
		return dst, missing(after, prev)
	}
	return dst, nil
}

// missing tells a position that was purged meanwhile from one that never was in this history.
func missing(after, before kv.Zxid) error {
	if before > after {
		return fmt.Errorf("%w: after %v, the log starts after %v", ErrCompacted, after, before)
	}
	return fmt.Errorf("%w: %v, the nearest before is %v", ErrNotFound, after, before)
}

// groupAt decodes the group under the iterator, from a copy if it must outlive it.
func groupAt(it *pebble.Iterator, copied bool) (group, error) {
	first, err := entryKeyZxid(it.Key())
	if err != nil {
		return group{}, err
	}
	v, err := it.ValueAndErr()
	if err != nil {
		return group{}, fmt.Errorf("group %v: %w", first, err)
	}
	if copied {
		v = append(make([]byte, 0, len(v)), v...)
	}
	return decodeGroup(first, v)
}

// Locate returns the greatest point of the durable log at or before z (an entry, or the log start) with its
// chain value. ok is false if z lies before the log start, or the log died. One index seek. Any goroutine.
func (l *Log) Locate(z kv.Zxid) (at kv.Zxid, chain uint64, ok bool) {
	l.mu.Lock()
	last, lastChain, start, startChain := l.done.last, l.done.lastChain, l.done.LogStart, l.done.LogStartChain
	l.mu.Unlock()
	switch {
	case z >= last:
		return last, lastChain, true
	case z < start || l.Err() != nil:
		return 0, 0, false
	}
	e, err := guard(l.fs.health, func() (kv.Entry, error) {
		e := kv.Entry{Zxid: start, Chain: startChain}
		err := l.iterate([]byte{entryPrefixEnd}, func(it *pebble.Iterator) error {
			if !it.SeekLT(entryKey(z + 1)) {
				return it.Error()
			}
			g, err := groupAt(it, false)
			if err != nil {
				return err
			}
			found, ok, err := g.find(z)
			if err == nil && ok && found.Zxid > start {
				e = kv.Entry{Zxid: found.Zxid, Chain: found.Chain}
			}
			return err
		})
		return e, err
	})
	return e.Zxid, e.Chain, err == nil
}

// throughGroup is the part of a group up to some zxid.
type throughGroup struct {
	prev      kv.Zxid
	prevChain uint64
	entries   []kv.Entry // at least one; payloads are copies
	cut       bool       // the stored group has entries after these
}

// entriesThrough returns the entries <= z of the group that holds the greatest entry <= z, as last written,
// synced or not. Only the writer calls it.
func (l *Log) entriesThrough(z kv.Zxid) (t throughGroup, err error) {
	err = l.iterate([]byte{entryPrefixEnd}, func(it *pebble.Iterator) error {
		if !it.SeekLT(entryKey(z + 1)) {
			if err := it.Error(); err != nil {
				return err
			}
			return broken("no entry at or before %v", z)
		}
		g, err := groupAt(it, true)
		if err != nil {
			return err
		}
		t.prev, t.prevChain = g.prev, g.prevChain
		rd := g.reader()
		for {
			e, more, err := rd.next()
			if err != nil || !more {
				return err
			}
			if e.Zxid > z {
				t.cut = true
				return nil
			}
			t.entries = append(t.entries, e)
		}
	})
	return t, err
}
