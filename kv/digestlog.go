package kv

import "sync"

// DigestInterval and digestsKept say at which zxids a Tree remembers its digest, and how many of them. Members that
// applied the same transactions have the same digests at the same zxids.
const (
	DigestInterval = 128
	digestsKept    = 1024
)

// DigestAt is the digest of the tree right after a transaction.
type DigestAt struct {
	Zxid   Zxid
	Digest uint64
}

// digestLog is a ring of the newest ones.
type digestLog struct {
	mu   sync.Mutex
	ring []DigestAt
	next int
}

func (l *digestLog) add(d DigestAt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ring) < digestsKept {
		l.ring = append(l.ring, d)
		return
	}
	l.ring[l.next] = d
	l.next = (l.next + 1) % digestsKept
}

// DigestAt returns the digest of the tree right after the transaction z, if that is the newest one, or is divisible by
// DigestInterval and one of the newest thousand of those applied in this run. Any goroutine.
func (t *Tree) DigestAt(z Zxid) (digest uint64, ok bool) {
	if v := t.View(); v.Zxid() == z {
		return v.Digest(), true
	}
	l := &t.digests
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.ring {
		if l.ring[i].Zxid == z {
			return l.ring[i].Digest, true
		}
	}
	return 0, false
}

// NewestDigest is the newest of Digests, the zero value if there is none. Any goroutine.
func (t *Tree) NewestDigest() DigestAt {
	l := &t.digests
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.ring)
	if n == 0 {
		return DigestAt{}
	}
	return l.ring[(l.next+n-1)%n]
}

// Digests returns the digests at zxids divisible by DigestInterval that were applied in this run, the oldest first.
func (t *Tree) Digests() []DigestAt {
	l := &t.digests
	l.mu.Lock()
	defer l.mu.Unlock()
	return append(append([]DigestAt(nil), l.ring[l.next:]...), l.ring[:l.next]...)
}
