package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// zxids is an order-preserving bijection between the zxids of both servers, built from those that appear at the
// same place of the same answer. The equality and the order of any two zxids must be the same on both sides.
type zxids struct {
	a, b   []int64         // sorted, a[i] is b[i]
	recent []int64         // of a, in order of first appearance
	ghosts map[int64]int64 // zxids that only ZooKeeper has, and the one that counts in their place
}

func newZxids() *zxids { return &zxids{ghosts: map[int64]int64{}} }

// ghost says that the transaction a of ZooKeeper has no counterpart; whatever shows it shows what was newest before.
func (z *zxids) ghost(a int64) {
	if i, known := slices.BinarySearch(z.a, a); !known && i > 0 {
		z.ghosts[a] = z.a[i-1]
	}
}

// fresh tells whether a was never seen.
func (z *zxids) fresh(a int64) bool {
	_, known := slices.BinarySearch(z.a, a)
	_, ghost := z.ghosts[a]
	return a > 0 && !known && !ghost
}

func (z *zxids) real(a int64) int64 {
	if r, ok := z.ghosts[a]; ok {
		return r
	}
	return a
}

// pair notes that a and b stand at the same place.
func (z *zxids) pair(a, b int64) error {
	if a <= 0 || b <= 0 {
		if a != b {
			return fmt.Errorf("0x%x for 0x%x", uint64(b), uint64(a))
		}
		return nil
	}
	a = z.real(a)
	i, known := slices.BinarySearch(z.a, a)
	if known {
		if z.b[i] != b {
			return fmt.Errorf("0x%x for 0x%x, which was 0x%x elsewhere", b, a, z.b[i])
		}
		return nil
	}
	if i > 0 && z.b[i-1] >= b {
		return fmt.Errorf("0x%x for 0x%x, but 0x%x for the older 0x%x", b, a, z.b[i-1], z.a[i-1])
	}
	if i < len(z.b) && z.b[i] <= b {
		return fmt.Errorf("0x%x for 0x%x, but 0x%x for the newer 0x%x", b, a, z.b[i], z.a[i])
	}
	z.a, z.b = slices.Insert(z.a, i, a), slices.Insert(z.b, i, b)
	z.recent = append(z.recent, a)
	return nil
}

// resolve gives both servers' number for a reference.
func (z *zxids) resolve(r *ZxidRef) (a, b int64) {
	if r == nil || r.Kind == "" {
		if r == nil {
			return 0, 0
		}
		return r.N, r.N
	}
	if len(z.a) == 0 {
		return 0, 0
	}
	if r.Kind == "ahead" {
		return z.a[len(z.a)-1] + r.N, z.b[len(z.b)-1] + r.N
	}
	a = z.recent[max(0, len(z.recent)-1-int(r.N))]
	i, _ := slices.BinarySearch(z.a, a)
	return a, z.b[i]
}

// newestOurs is kvd's newest zxid that has a counterpart.
func (z *zxids) newestOurs() int64 {
	if len(z.b) == 0 {
		return 0
	}
	return z.b[len(z.b)-1]
}

// between tells whether b is a transaction that both know, from lo to hi.
func (z *zxids) between(b, lo, hi int64) bool {
	_, known := slices.BinarySearch(z.b, b)
	return known && lo <= b && b <= hi
}

// times are the times of transactions of one server: everything that one of them wrote shows the same time.
type times map[int64]int64

func (t times) check(theirs, f field, from, to int64) error {
	if f.at == 0 {
		// There from the beginning: no time, but for the configuration of an ensemble, which has that of the start.
		if (f.num == 0) != (theirs.num == 0) || f.num > to {
			return fmt.Errorf("time %d for %d of a node that was there from the beginning", f.num, theirs.num)
		}
		return nil
	}
	if known, ok := t[f.at]; ok && known != f.num {
		return fmt.Errorf("time %d, but transaction 0x%x was at %d", f.num, f.at, known)
	}
	if f.num < from || f.num > to {
		return fmt.Errorf("time %d is not between %d and %d", f.num, from, to)
	}
	t[f.at] = f.num
	return nil
}

// comparer holds what the normalisation of a sequence knows.
type comparer struct {
	zxids    *zxids
	times    times // of kvd
	sessions map[int64]int64
	base     [2]map[string]int64 // counters of built-in nodes at the start
	env      [2]*strings.Replacer
	from, to int64 // ms, between which transactions may be dated
}

func (c *comparer) session(a, b int64) error {
	if a == 0 || b == 0 {
		if a != b {
			return fmt.Errorf("session 0x%x for 0x%x", uint64(b), uint64(a))
		}
		return nil
	}
	if known, ok := c.sessions[a]; ok && known != b {
		return fmt.Errorf("session 0x%x for 0x%x, which is 0x%x", uint64(b), uint64(a), uint64(known))
	}
	for k, v := range c.sessions {
		if v == b && k != a {
			return fmt.Errorf("session 0x%x for both 0x%x and 0x%x", uint64(b), uint64(a), uint64(k))
		}
	}
	c.sessions[a] = b
	return nil
}

func (c *comparer) field(a, b field) error {
	if a.name != b.name || a.kind != b.kind {
		return fmt.Errorf("%v for %v", b, a)
	}
	switch a.kind {
	case kindZxid:
		return c.zxids.pair(a.num, b.num)
	case kindTime:
		return c.times.check(a, b, c.from, c.to)
	case kindSession:
		return c.session(a.num, b.num)
	case kindVersion:
		if x, y := a.num-c.base[0][a.text], b.num-c.base[1][b.text]; x != y {
			return fmt.Errorf("%d for %d (since the start %d for %d)", b.num, a.num, y, x)
		}
	case kindEnv:
		if x, y := c.env[0].Replace(a.text), c.env[1].Replace(b.text); x != y || a.num != b.num {
			return fmt.Errorf("%q for %q", y, x)
		}
	default:
		if a.num != b.num || a.text != b.text {
			return fmt.Errorf("%v for %v", b, a)
		}
	}
	return nil
}

// item compares what is expected of kvd, in ZooKeeper's numbers, with what it sent.
func (c *comparer) item(want, got item) error {
	if want.what != got.what {
		return fmt.Errorf("%s for %s", got.what, want.what)
	}
	if want.xid != got.xid || want.err != got.err {
		return fmt.Errorf("xid %d err %d for xid %d err %d", got.xid, got.err, want.xid, want.err)
	}
	if err := c.zxids.pair(want.zxid, got.zxid); err != nil {
		return fmt.Errorf("header zxid: %w", err)
	}
	if len(want.fields) != len(got.fields) {
		return fmt.Errorf("%d fields for %d", len(got.fields), len(want.fields))
	}
	for i := range want.fields {
		if err := c.field(want.fields[i], got.fields[i]); err != nil {
			return fmt.Errorf("%s: %w", want.fields[i].name, err)
		}
	}
	if !bytes.Equal(want.rest, got.rest) {
		return fmt.Errorf("undecoded %x for %x", got.rest, want.rest)
	}
	return nil
}
