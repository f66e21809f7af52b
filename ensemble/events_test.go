package ensemble

import (
	"math/rand/v2"
	"slices"
	"testing"

	"kvd/kv"
)

// Pending events are in zxid order, those of one zxid in the order in which they came; a late one is left out if another
// of its type and path is there. Checked against the plain way to say it, with the account of bytes.
func TestPendingEvents(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		c, _ := newTestConn(t, 1)
		var want []kv.Event
		var now kv.Zxid = 10
		for range 1 + rng.IntN(6) {
			var batch []kv.Event
			for range rng.IntN(8) {
				e := kv.Event{Type: kv.EventType(1 + rng.IntN(3)), Path: "/" + string(rune('a'+rng.IntN(5))), Zxid: now}
				if rng.IntN(3) == 0 {
					e.Late, e.Zxid = true, now-kv.Zxid(rng.IntN(8))
				} else if rng.IntN(2) == 0 {
					now++
				}
				batch = append(batch, e)
				c.Event(e)
			}
			c.mu.Lock()
			c.takeEvents()
			c.mu.Unlock()
			c.mergeEvents()
			want = pendingModel(want, batch)
			if got := c.pending[c.first:]; !slices.Equal(got, want) {
				t.Fatalf("pending\n%v, want\n%v\nafter %v", got, want, batch)
			}
			if n := rng.IntN(1 + len(want)); n > 0 { // what has been written
				for i := range n {
					c.releaseEvent(&c.pending[c.first+i])
				}
				c.first += n
				want = want[n:]
			}
		}
		var cost int64
		for _, e := range want {
			cost += int64(len(e.Path)) + eventOverhead
		}
		if all := c.port.eventBytes.Load(); c.pendingBytes != cost || all != cost {
			t.Fatalf("%d bytes on the connection's account, %d on the port's, want %d", c.pendingBytes, all, cost)
		}
	}
}

func pendingModel(have, batch []kv.Event) []kv.Event {
	out := slices.Clone(have)
	insert := func(e kv.Event) {
		at := len(out)
		for at > 0 && out[at-1].Zxid > e.Zxid {
			at--
		}
		out = slices.Insert(out, at, e)
	}
	for _, late := range []bool{false, true} {
		for _, e := range batch {
			double := slices.ContainsFunc(out, func(o kv.Event) bool { return o.Type == e.Type && o.Path == e.Path && o.Zxid >= e.Zxid })
			if e.Late != late || late && double {
				continue
			}
			e.Late = false
			insert(e)
		}
	}
	return out
}
