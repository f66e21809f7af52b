package kv

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// checkWatchSet checks that a set finds what it holds, has a free slot, and is not larger than it should be.
func checkWatchSet(s *wordSet, low uint) error {
	n := 0
	for _, w := range s.slots {
		if w == 0 {
			continue
		}
		n++
		if i := s.find(w>>low, low); i < 0 || s.slots[i]>>low != w>>low {
			return fmt.Errorf("word %#x is not found", w)
		}
	}
	switch {
	case n != s.n:
		return fmt.Errorf("%d words, counted %d", n, s.n)
	case n == 0 && s.slots != nil:
		return fmt.Errorf("an empty set keeps %d slots", len(s.slots))
	case n > 0 && full(n, len(s.slots)):
		return fmt.Errorf("%d words in %d slots", n, len(s.slots))
	case sparse(n, len(s.slots)):
		return fmt.Errorf("only %d words in %d slots", n, len(s.slots))
	}
	return nil
}

// checkWatchTable checks everything a table promises about itself.
func checkWatchTable(t *watchTable) error {
	n, text := 0, 0
	used := map[uint32]bool{}
	for i, s := range t.spots {
		if s.who == 0 {
			continue
		}
		n++
		text += int(s.size)
		if t.find(t.pathAt(i), s.hash) != i {
			return fmt.Errorf("the spot of %q is not found, or is there twice", t.pathAt(i))
		}
		c := t.crowdAt(i)
		if c == nil {
			if seat(s.who).modes() == 0 || seat(s.who).id() == 0 {
				return fmt.Errorf("%q: seat %#x", t.pathAt(i), s.who)
			}
			continue
		}
		if used[s.who&^crowdMark] {
			return fmt.Errorf("%q shares its crowd", t.pathAt(i))
		}
		used[s.who&^crowdMark] = true
		if c.n < 2 {
			return fmt.Errorf("%q: a crowd of %d", t.pathAt(i), c.n)
		}
		if err := checkWatchSet(c, modeBits); err != nil {
			return fmt.Errorf("%q: %w", t.pathAt(i), err)
		}
		ids := map[uint32]bool{}
		for _, w := range c.slots {
			if w != 0 && (seat(w).modes() == 0 || seat(w).id() == 0 || ids[seat(w).id()]) {
				return fmt.Errorf("%q: seat %#x", t.pathAt(i), w)
			}
			ids[seat(w).id()] = true
		}
	}
	for _, at := range t.free {
		if used[at] || t.crowds[at].n != 0 || t.crowds[at].slots != nil {
			return fmt.Errorf("crowd %d is free and used", at)
		}
		used[at] = true
	}
	switch {
	case n != t.n:
		return fmt.Errorf("%d spots, counted %d", n, t.n)
	case len(used) != len(t.crowds):
		return fmt.Errorf("%d crowds, %d known", len(t.crowds), len(used))
	case text+t.dead != len(t.text):
		return fmt.Errorf("%d bytes of text, %d live and %d dead", len(t.text), text, t.dead)
	case n == 0 && (t.spots != nil || t.text != nil || t.crowds != nil || t.free != nil):
		return fmt.Errorf("an empty table keeps memory")
	case n > 0 && full(n, len(t.spots)):
		return fmt.Errorf("%d spots in %d slots", n, len(t.spots))
	case sparse(n, len(t.spots)):
		return fmt.Errorf("only %d spots in %d slots", n, len(t.spots))
	case t.dead > 512 && t.dead > len(t.text)/2:
		return fmt.Errorf("%d of %d bytes of text are dead", t.dead, len(t.text))
	case len(t.free) > 8 && len(t.free) > len(t.crowds)/2:
		return fmt.Errorf("%d of %d crowds are free", len(t.free), len(t.crowds))
	}
	return nil
}

// checkWatches checks that the tables of a quiet tree and the lists of its watchers say the same.
func checkWatches(tree *Tree) error {
	a := &tree.watches
	places, roots := map[uint32][]uint32{}, map[uint32][]uint32{}
	inRecursive := map[string]bool{}
	check := func(table *watchTable, stripe int) (err error) {
		if err := checkWatchTable(table); err != nil {
			return err
		}
		table.eachSpot(func(i int) {
			path, hash := table.pathAt(i), table.spots[i].hash
			if a.hashOf(path) != hash || stripe >= 0 && hash%stripeCount != uint32(stripe) {
				err = fmt.Errorf("%q is in the wrong place", path)
			}
			table.each(i, func(s seat) {
				key := fmt.Sprintf("%d %s", s.id(), path)
				switch {
				case stripe < 0 && s.modes() != modeRecursive:
					err = fmt.Errorf("%q is in the recursive table with modes %#x", path, s.modes())
				case stripe < 0:
					inRecursive[key] = true
					roots[s.id()] = append(roots[s.id()], hash)
				default:
					places[s.id()] = append(places[s.id()], hash)
					if inRecursive[key] != (s.modes()&modeRecursive != 0) {
						err = fmt.Errorf("%q: recursive in one table only", path)
					}
					delete(inRecursive, key)
				}
			})
		})
		return err
	}
	if err := check(&a.recursive.table, -1); err != nil {
		return fmt.Errorf("recursive: %w", err)
	}
	for i := range a.stripes {
		if err := check(&a.stripes[i].table, i); err != nil {
			return fmt.Errorf("stripe %d: %w", i, err)
		}
	}
	if len(inRecursive) > 0 {
		return fmt.Errorf("only in the recursive table: %v", inRecursive)
	}
	list := *a.parties.numbers.Load()
	for w, p := range a.parties.known {
		if p.w != w || list[p.id] != p || p.gone {
			return fmt.Errorf("watcher %d is somebody else", p.id)
		}
		for _, c := range []struct {
			set  *wordSet
			want []uint32
		}{{&p.places, places[p.id]}, {&p.roots, roots[p.id]}} {
			if err := checkWatchSet(c.set, 0); err != nil {
				return fmt.Errorf("watcher %d: %w", p.id, err)
			}
			var got []uint32
			for _, h := range c.set.slots {
				if h != 0 {
					got = append(got, h)
				}
			}
			slices.Sort(got)
			slices.Sort(c.want)
			if !slices.Equal(got, c.want) {
				return fmt.Errorf("watcher %d has a list of %d paths, is at %d", p.id, len(got), len(c.want))
			}
		}
		delete(places, p.id)
		delete(roots, p.id)
	}
	if len(places)+len(roots) > 0 {
		return fmt.Errorf("watches of watchers that are gone: %v %v", places, roots)
	}
	if n := len(list) - 1; n != len(a.parties.known)+len(a.parties.unused) {
		return fmt.Errorf("%d numbers, %d in use, %d not", n, len(a.parties.known), len(a.parties.unused))
	}
	return nil
}

// TestWatchSet compares a set with a sorted slice over random additions and removals, growing and shrinking.
func TestWatchSet(t *testing.T) {
	for _, low := range []uint{0, modeBits} {
		g := rand.New(rand.NewPCG(uint64(low), 1))
		var s wordSet
		count := map[uint32]int{} // by key
		var keys []uint32
		for step := range 20_000 {
			growing := step/2000%2 == 0
			if len(keys) == 0 || g.IntN(8) < 3 || growing && g.IntN(2) == 0 {
				key := 1 + uint32(g.IntN(400))
				if g.IntN(2) == 0 {
					key = g.Uint32()>>low | 1
				}
				s.add(key<<low, low)
				count[key]++
				keys = append(keys, key)
			} else {
				i := g.IntN(len(keys))
				if !s.remove(keys[i], low) {
					t.Fatalf("step %d: %#x is not there", step, keys[i])
				}
				count[keys[i]]--
				keys = slices.Delete(keys, i, i+1)
			}
			key := 1 + uint32(g.IntN(400))
			if got := s.find(key, low) >= 0; got != (count[key] > 0) {
				t.Fatalf("step %d: %#x found: %v, there: %d", step, key, got, count[key])
			}
			if s.n != len(keys) {
				t.Fatalf("step %d: %d words, want %d", step, s.n, len(keys))
			}
			if step%64 == 0 {
				if err := checkWatchSet(&s, low); err != nil {
					t.Fatalf("step %d: %v", step, err)
				}
			}
		}
	}
}

// FuzzWatchTable drives a table with a script and compares it with a map. Hashes collide on purpose.
func FuzzWatchTable(f *testing.F) {
	f.Add([]byte("0123456789abcdefghijklmnopqrstuvwxyz"))
	g := rand.New(rand.NewPCG(2, 2))
	for range 20 {
		b := make([]byte, 3000)
		for i := range b {
			b[i] = byte(g.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		type pair struct {
			path string
			id   uint32
		}
		var table watchTable
		model := map[pair]watchModes{}
		hashOf := func(path string) uint32 { return uint32(path[1]&7) << 29 } // eight chains, equal hashes in each
		for i := 0; i+3 < len(script); i += 4 {
			op, a, b, c := script[i], script[i+1], script[i+2], script[i+3]
			id := uint32(b)%40 + 1
			path := fmt.Sprintf("/%c/%d", 'a'+a%16, a/16)
			if a >= 240 {
				path += string(make([]byte, 300))
			}
			hash := hashOf(path)
			k := pair{path, id}
			m := watchModes(c) & modeAll
			switch op % 8 {
			case 0, 1, 2, 3:
				if m == 0 {
					m = modeData
				}
				if was := table.add(path, hash, id, m); was != model[k] {
					t.Fatalf("add %v: had %#x, want %#x", k, was, model[k])
				}
				model[k] |= m
			case 4, 5:
				at := table.find(path, hash)
				if at >= 0 && table.modesAt(at, id) != 0 {
					keep := table.modesAt(at, id) &^ m
					table.setModes(at, id, keep)
					if model[k] &^= m; model[k] == 0 {
						delete(model, k)
					}
				}
			case 6:
				at := table.find(path, hash)
				consume := watchModes(c>>4) & modeAll
				told := map[uint32]bool{}
				if at >= 0 {
					table.take(at, m, consume, func(s seat, keeps watchModes) {
						k := pair{path, s.id()}
						if told[s.id()] || model[k] != s.modes() || keeps != s.modes()&^consume || keeps != 0 && keeps&^model[k] != 0 {
							t.Fatalf("take %v: seat %#x keeps %#x, model %#x", k, uint32(s), keeps, model[k])
						}
						told[s.id()] = true
					})
				}
				for k, has := range model {
					if k.path != path {
						continue
					}
					if told[k.id] != (has&m != 0) {
						t.Fatalf("take %v (%#x) of %#x: told %v", k, has, m, told[k.id])
					}
					if told[k.id] {
						if model[k] = has &^ consume; model[k] == 0 {
							delete(model, k)
						}
					}
				}
			case 7:
				want := 0
				for k := range model {
					if k.id == id && hashOf(k.path) == hash {
						want++
						delete(model, k)
					}
				}
				if got := table.removeHash(hash, id); got != want {
					t.Fatalf("removeHash of %d: %d paths, want %d", id, got, want)
				}
			}
			if i%128 == 0 || i+7 >= len(script) {
				if err := checkWatchTable(&table); err != nil {
					t.Fatal(err)
				}
				got := 0
				table.eachSpot(func(i int) {
					table.each(i, func(s seat) {
						got++
						if model[pair{table.pathAt(i), s.id()}] != s.modes() {
							t.Fatalf("%q of %d: %#x", table.pathAt(i), s.id(), s.modes())
						}
					})
				})
				if got != len(model) {
					t.Fatalf("%d pairs, want %d", got, len(model))
				}
			}
		}
	})
}
