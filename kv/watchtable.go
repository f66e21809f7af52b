package kv

import "math"

// watchModes are the watches that one watcher has at one path.
type watchModes uint32

const (
	modeData      watchModes = 1 << iota // one-shot, data table
	modeChild                            // one-shot, child table
	modePersist                          // persistent, both tables
	modeRecursive                        // recursive, data table; the path and everything below
	modeBits      = iota
	modeAll       = 1<<modeBits - 1
	modesInData   = modeData | modePersist | modeRecursive
	modesInChild  = modeChild | modePersist
)

// seat is one watcher's watches at one path: its number, and its modes in the low bits. Zero is none.
type seat uint32

func makeSeat(id uint32, m watchModes) seat { return seat(id<<modeBits | uint32(m)) }
func (s seat) id() uint32                   { return uint32(s) >> modeBits }
func (s seat) modes() watchModes            { return watchModes(s) & modeAll }

// maxWatchers is the greatest number of a watcher: a seat has four bits of modes, and one says that it is none.
const maxWatchers = 1<<(32-modeBits-1) - 1

// crowdMark marks a spot's who that is the index of a crowd.
const crowdMark = 1 << 31

// spot is a path that is watched. who is a seat if one watcher watches it, else crowdMark and the index of its crowd;
// zero if the slot is free.
type spot struct {
	hash      uint32
	off, size uint32 // of the path, in the table's text
	who       uint32
}

// watchTable maps paths to the watchers there. It is built for memory and for the garbage collector: a path that one
// watcher watches costs its text and about 24 bytes, and holds no pointer; one more watcher at the same path costs
// about 6 bytes. The zero value is empty, and memory shrinks with the content. It has no lock of its own.
//
// The spots are an open-addressed table. Callers pass the hash along with the path. Texts of paths lie one after the
// other in text; those of removed paths stay there as dead until the table is rebuilt.
type watchTable struct {
	spots  []spot
	n      int // spots in use
	text   []byte
	dead   int       // bytes of text that no spot refers to
	crowds []wordSet // of seats, keyed by watcher; at least two in each, none in a free one
	free   []uint32  // crowds not in use
}

// pathAt returns the path of a spot. It is valid until the table changes.
func (t *watchTable) pathAt(i int) string {
	s := &t.spots[i]
	return stringOf(t.text[s.off : s.off+s.size : s.off+s.size])
}

// spotHome is the slot at which the search for a hash begins. The low bits of the hash have chosen the stripe.
func spotHome(hash uint32, slots int) int { return int(uint64(hash) * uint64(slots) >> 32) }

// find returns the slot of path, or -1.
func (t *watchTable) find(path string, hash uint32) int {
	if t.n == 0 {
		return -1
	}
	for i := spotHome(hash, len(t.spots)); ; {
		s := &t.spots[i]
		if s.who == 0 {
			return -1
		}
		if s.hash == hash && t.pathAt(i) == path {
			return i
		}
		if i++; i == len(t.spots) {
			i = 0
		}
	}
}

// crowdAt returns the crowd of a spot, nil if one watcher is there.
func (t *watchTable) crowdAt(i int) *wordSet {
	if who := t.spots[i].who; who&crowdMark != 0 {
		return &t.crowds[who&^crowdMark]
	}
	return nil
}

// countAt returns the number of watchers at a spot.
func (t *watchTable) countAt(i int) int {
	if c := t.crowdAt(i); c != nil {
		return c.n
	}
	return 1
}

// modesAt returns the watches of a watcher at a spot.
func (t *watchTable) modesAt(i int, id uint32) watchModes {
	c := t.crowdAt(i)
	if c == nil {
		if s := seat(t.spots[i].who); s.id() == id {
			return s.modes()
		}
		return 0
	}
	if j := c.find(id, modeBits); j >= 0 {
		return seat(c.slots[j]).modes()
	}
	return 0
}

// modes returns the watches of a watcher at a path.
func (t *watchTable) modes(path string, hash, id uint32) watchModes {
	if i := t.find(path, hash); i >= 0 {
		return t.modesAt(i, id)
	}
	return 0
}

// add adds watches of a watcher at a path, copying the path, and returns those it had there.
func (t *watchTable) add(path string, hash, id uint32, m watchModes) watchModes {
	i := t.find(path, hash)
	if i < 0 {
		t.addSpot(path, hash, makeSeat(id, m))
		return 0
	}
	if c := t.crowdAt(i); c != nil {
		if j := c.find(id, modeBits); j >= 0 {
			was := seat(c.slots[j]).modes()
			c.slots[j] |= uint32(m)
			return was
		}
		c.add(uint32(makeSeat(id, m)), modeBits)
		return 0
	}
	s := seat(t.spots[i].who)
	if s.id() == id {
		t.spots[i].who |= uint32(m)
		return s.modes()
	}
	var c wordSet
	c.add(uint32(s), modeBits)
	c.add(uint32(makeSeat(id, m)), modeBits)
	t.spots[i].who = crowdMark | t.addCrowd(c)
	return 0
}

func (t *watchTable) addCrowd(c wordSet) uint32 {
	if n := len(t.free); n > 0 {
		at := t.free[n-1]
		t.free = t.free[:n-1]
		t.crowds[at] = c
		return at
	}
	t.crowds = append(t.crowds, c)
	return uint32(len(t.crowds) - 1)
}

func (t *watchTable) addSpot(path string, hash uint32, s seat) {
	if full(t.n+1, len(t.spots)) || tooLong(len(t.text)+len(path)) {
		t.rebuild(capacityFor(t.n + 1))
	}
	if tooLong(len(t.text) + len(path)) {
		panic("kv: watched paths of more than 4 GiB in one stripe") // of 256: not in any machine's memory
	}
	off := len(t.text)
	t.text = append(t.text, path...)
	t.place(spot{hash: hash, off: uint32(off), size: uint32(len(path)), who: uint32(s)})
	t.n++
}

// tooLong reports whether a text is too long for the offsets of spots.
func tooLong(n int) bool { return uint64(n) > math.MaxUint32 }

// place puts a spot into a free slot.
func (t *watchTable) place(s spot) {
	i := spotHome(s.hash, len(t.spots))
	for t.spots[i].who != 0 {
		if i++; i == len(t.spots) {
			i = 0
		}
	}
	t.spots[i] = s
}

// setModes makes m the watches of a watcher that has some at spot i; none removes it from there. The spot, and with
// it the positions of others, may be gone afterwards.
func (t *watchTable) setModes(i int, id uint32, m watchModes) {
	c := t.crowdAt(i)
	switch {
	case c == nil && m == 0:
		t.removeSpot(i)
	case c == nil:
		t.spots[i].who = uint32(makeSeat(id, m))
	default:
		j := c.find(id, modeBits)
		if m != 0 {
			c.slots[j] = uint32(makeSeat(id, m))
			return
		}
		c.removeAt(j, modeBits)
		t.settleCrowd(i)
	}
}

// settleCrowd turns a crowd of one or none, which is no crowd, into what it should be.
func (t *watchTable) settleCrowd(i int) {
	at := t.spots[i].who &^ crowdMark
	c := &t.crowds[at]
	if c.n > 1 {
		return
	}
	last := uint32(0)
	for _, w := range c.slots {
		last |= w
	}
	*c = wordSet{}
	t.free = append(t.free, at)
	if last == 0 {
		t.removeSpot(i)
		return
	}
	t.spots[i].who = last
	if len(t.free) > 8 && len(t.free) > len(t.crowds)/2 {
		t.rebuild(len(t.spots))
	}
}

// removeSpot removes a spot whose crowd, if it had one, is freed already.
func (t *watchTable) removeSpot(i int) {
	spots := t.spots
	t.dead += int(spots[i].size)
	for j := i; ; {
		if j++; j == len(spots) {
			j = 0
		}
		if spots[j].who == 0 {
			break
		}
		if between(i, spotHome(spots[j].hash, len(spots)), j) {
			continue
		}
		spots[i], i = spots[j], j
	}
	spots[i] = spot{}
	t.n--
	switch {
	case t.n == 0:
		*t = watchTable{}
	case sparse(t.n, len(spots)):
		t.rebuild(capacityFor(t.n))
	case t.dead > 512 && t.dead > len(t.text)/2, len(t.free) > 8 && len(t.free) > len(t.crowds)/2:
		t.rebuild(len(spots))
	}
}

// rebuild moves everything into new slots, leaving dead text and free crowds behind.
func (t *watchTable) rebuild(slots int) {
	old := *t
	*t = watchTable{spots: make([]spot, slots), n: old.n, text: make([]byte, 0, len(old.text)-old.dead+64)}
	if used := len(old.crowds) - len(old.free); used > 0 {
		t.crowds = make([]wordSet, 0, used)
	}
	for i, s := range old.spots {
		if s.who == 0 {
			continue
		}
		off := len(t.text)
		t.text = append(t.text, old.pathAt(i)...)
		s.off = uint32(off)
		if s.who&crowdMark != 0 {
			s.who = crowdMark | t.addCrowd(old.crowds[s.who&^crowdMark])
		}
		t.place(s)
	}
}

// removeHash removes one watcher's watches at every path with that hash (nearly always one) and returns how many
// paths they were.
func (t *watchTable) removeHash(hash, id uint32) int {
	removed := 0
	for {
		i := t.findHash(hash, id)
		if i < 0 {
			return removed
		}
		t.setModes(i, id, 0)
		removed++
	}
}

// findHash returns a spot with that hash where the watcher has watches, or -1.
func (t *watchTable) findHash(hash, id uint32) int {
	found := -1
	t.eachHash(hash, func(i int) bool {
		if t.modesAt(i, id) != 0 {
			found = i
		}
		return found < 0
	})
	return found
}

// eachHash calls fn with every spot of that hash until it returns false. fn must not change the table.
func (t *watchTable) eachHash(hash uint32, fn func(i int) bool) {
	if t.n == 0 {
		return
	}
	for i := spotHome(hash, len(t.spots)); t.spots[i].who != 0; {
		if t.spots[i].hash == hash && !fn(i) {
			return
		}
		if i++; i == len(t.spots) {
			i = 0
		}
	}
}

// take calls fn for every seat of spot i that has one of the wanted modes, with the modes that it keeps: all but the
// consumed ones. Afterwards the spot, and with it the positions of others, may be gone. fn must not use the table.
func (t *watchTable) take(i int, want, consume watchModes, fn func(s seat, keeps watchModes)) {
	c := t.crowdAt(i)
	if c == nil {
		s := seat(t.spots[i].who)
		if s.modes()&want == 0 {
			return
		}
		keeps := s.modes() &^ consume
		fn(s, keeps)
		if keeps != s.modes() {
			t.setModes(i, s.id(), keeps)
		}
		return
	}
	emptied := 0
	for j, w := range c.slots {
		s := seat(w)
		if s.modes()&want == 0 {
			continue
		}
		keeps := s.modes() &^ consume
		fn(s, keeps)
		c.slots[j] = uint32(makeSeat(s.id(), keeps))
		if keeps == 0 {
			emptied++
		}
	}
	if emptied == 0 {
		return
	}
	var rest wordSet
	if n := c.n - emptied; n > 0 {
		rest.slots = make([]uint32, capacityFor(n))
		for _, w := range c.slots {
			if seat(w).modes() != 0 {
				rest.insert(w, modeBits)
				rest.n++
			}
		}
	}
	*c = rest
	t.settleCrowd(i)
}

// eachSpot calls fn with every spot in use. fn must not change the table.
func (t *watchTable) eachSpot(fn func(i int)) {
	for i := range t.spots {
		if t.spots[i].who != 0 {
			fn(i)
		}
	}
}

// each calls fn with the seats of spot i.
func (t *watchTable) each(i int, fn func(seat)) {
	c := t.crowdAt(i)
	if c == nil {
		fn(seat(t.spots[i].who))
		return
	}
	for _, w := range c.slots {
		if w != 0 {
			fn(seat(w))
		}
	}
}
