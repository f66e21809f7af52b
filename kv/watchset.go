package kv

// wordSet holds 32-bit words in an open-addressed table, without pointers: 5 to 7 bytes a word. Zero cannot be a word,
// it marks a free slot. The same word may be in it several times. The part of a word above the lowest `low` bits is
// its key, the rest is payload; all calls for one set use the same low. The zero value is empty and takes no
// memory, and memory shrinks with the content.
type wordSet struct {
	slots []uint32
	n     int
}

// capacityFor is the number of slots for n words, about two thirds full.
func capacityFor(n int) int { return n + n/2 + 2 }

// full reports whether a table of that many slots must not take an n-th entry: an eighth stays free, and one slot at
// least, because a search ends at a free slot.
func full(n, slots int) bool { return n >= slots-slots/8 }

// sparse reports whether a table is so empty that it should shrink. Far enough from full not to swing.
func sparse(n, slots int) bool { return slots > 8 && n < slots/4 }

// home is the slot at which the search for a key begins. Multiplied by the golden ratio, so that keys in sequence
// spread, and then scaled, so that the number of slots need not be a power of two.
func home(key uint32, slots int) int {
	return int(uint64(key*0x9e3779b1) * uint64(slots) >> 32)
}

// find returns the slot of a word with that key, or -1.
func (s *wordSet) find(key uint32, low uint) int {
	if s.n == 0 {
		return -1
	}
	for i := home(key, len(s.slots)); ; {
		w := s.slots[i]
		if w == 0 {
			return -1
		}
		if w>>low == key {
			return i
		}
		if i++; i == len(s.slots) {
			i = 0
		}
	}
}

// add inserts a word, whether or not one with its key is there.
func (s *wordSet) add(w uint32, low uint) {
	if full(s.n+1, len(s.slots)) {
		s.resize(capacityFor(s.n+1), low)
	}
	s.insert(w, low)
	s.n++
}

func (s *wordSet) insert(w uint32, low uint) {
	i := home(w>>low, len(s.slots))
	for s.slots[i] != 0 {
		if i++; i == len(s.slots) {
			i = 0
		}
	}
	s.slots[i] = w
}

func (s *wordSet) resize(slots int, low uint) {
	old := s.slots
	s.slots = make([]uint32, slots)
	for _, w := range old {
		if w != 0 {
			s.insert(w, low)
		}
	}
}

// removeAt removes the word in slot i: those behind it that were displaced by it move up.
func (s *wordSet) removeAt(i int, low uint) {
	slots := s.slots
	for j := i; ; {
		if j++; j == len(slots) {
			j = 0
		}
		w := slots[j]
		if w == 0 {
			break
		}
		// w may fill the hole unless its home lies behind the hole, cyclically in (i, j].
		if h := home(w>>low, len(slots)); between(i, h, j) {
			continue
		}
		slots[i], i = w, j
	}
	slots[i] = 0
	s.n--
	switch {
	case s.n == 0:
		s.slots = nil
	case sparse(s.n, len(slots)):
		s.resize(capacityFor(s.n), low)
	}
}

// between reports whether h lies in the cyclic interval (i, j].
func between(i, h, j int) bool {
	if i < j {
		return i < h && h <= j
	}
	return i < h || h <= j
}

// remove removes one word with that key and reports whether there was one.
func (s *wordSet) remove(key uint32, low uint) bool {
	i := s.find(key, low)
	if i < 0 {
		return false
	}
	s.removeAt(i, low)
	return true
}
