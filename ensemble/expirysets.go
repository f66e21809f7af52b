package ensemble

import (
	"cmp"
	"slices"
	"time"
)

// expirySets groups things by the time at which they expire, in buckets, for the word dump.
type expirySets[T any] struct {
	bucket time.Duration
	all    []expiring[T]
}

type expiring[T any] struct {
	at   int64 // milliseconds since 1970: the end of the bucket
	what T
}

// add puts one thing into the bucket that ends strictly after at.
func (s *expirySets[T]) add(at time.Time, what T) {
	b := max(s.bucket.Milliseconds(), 1)
	s.all = append(s.all, expiring[T]{(at.UnixMilli()/b + 1) * b, what})
}

// sort brings the buckets into the order of time.
func (s *expirySets[T]) sort() {
	slices.SortStableFunc(s.all, func(a, b expiring[T]) int { return cmp.Compare(a.at, b.at) })
}

// next is the end of the bucket that begins at i.
func (s *expirySets[T]) next(i int) int {
	n := i + 1
	for n < len(s.all) && s.all[n].at == s.all[i].at {
		n++
	}
	return n
}

// count is the number of buckets.
func (s *expirySets[T]) count() (n int) {
	for i := 0; i < len(s.all); i = s.next(i) {
		n++
	}
	return n
}

// dumpTime is how dump prints times.
const dumpTime = "Mon Jan 02 15:04:05 MST 2006"

// write writes the buckets with a line for each thing.
func (s *expirySets[T]) write(w *wordWriter, line func(T) string) {
	for i := 0; i < len(s.all); {
		n := s.next(i)
		w.printf("%d expire at %s:\n", n-i, time.UnixMilli(s.all[i].at).Format(dumpTime))
		for ; i < n; i++ {
			if !w.text(line(s.all[i].what)) {
				return
			}
		}
	}
}
