package explore

import "sync"

// table is a set of fingerprints: 64 shards of open addressing with linear probing, at most three quarters full. It
// takes 11 to 21 bytes a state and is safe for concurrent use.
type table struct{ shards [64]shard }

type shard struct {
	mu    sync.Mutex
	slots []uint64 // 0: free
	n     int
}

// add inserts fp and reports whether it was new. The fingerprint 0 shares its place with 1.
func (t *table) add(fp uint64) bool {
	if fp == 0 {
		fp = 1
	}
	s := &t.shards[fp>>58]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n >= len(s.slots)/4*3 {
		s.grow()
	}
	if !place(s.slots, fp) {
		return false
	}
	s.n++
	return true
}

// place puts fp into a table with free slots; false if it is there.
func place(slots []uint64, fp uint64) bool {
	mask := uint64(len(slots) - 1)
	for i := fp & mask; ; i = (i + 1) & mask {
		switch slots[i] {
		case fp:
			return false
		case 0:
			slots[i] = fp
			return true
		}
	}
}

func (s *shard) grow() {
	bigger := make([]uint64, max(1024, 2*len(s.slots)))
	for _, fp := range s.slots {
		if fp != 0 {
			place(bigger, fp)
		}
	}
	s.slots = bigger
}

func (t *table) bytes() int {
	n := 0
	for i := range t.shards {
		t.shards[i].mu.Lock()
		n += 8 * len(t.shards[i].slots)
		t.shards[i].mu.Unlock()
	}
	return n
}
