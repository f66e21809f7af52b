package zab

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"kvd/kv"
)

// TestTailAgainstSlice drives a tail and a plain slice with the same random operations and compares every answer; what was
// handed out must never change afterwards.
func TestTailAgainstSlice(t *testing.T) {
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var tl tail
		tl.reset(0, kv.ChainSeed())
		var model []kv.Entry
		var held [][]kv.Entry
		var copies []string
		z, chain := kv.Zxid(0), kv.ChainSeed()
		for range 3000 {
			switch r := rnd.IntN(100); {
			case r < 80:
				if z == 0 || rnd.IntN(200) == 0 {
					z = kv.MakeZxid(z.Epoch()+1+kv.Epoch(rnd.IntN(2)), 1)
				} else {
					z++
				}
				payload := []byte{byte(rnd.IntN(256))}
				chain = kv.ChainDigest(chain, z, payload)
				e := kv.Entry{Zxid: z, Chain: chain, Payload: payload}
				tl.add(e)
				model = append(model, e)
			case r < 90 && len(model) > 0:
				from := model[rnd.IntN(len(model))].Zxid
				got := tl.after(from, z, 1+rnd.IntN(2000), 1+rnd.IntN(50))
				if from < tl.start {
					if got != nil {
						t.Fatalf("seed %d: entries from below the start", seed)
					}
					continue
				}
				i := indexOf(model, from) + 1
				for k := range got {
					if got[k].Zxid != model[i+k].Zxid {
						t.Fatalf("seed %d: after(%s)[%d] = %s, want %s", seed, from, k, got[k].Zxid, model[i+k].Zxid)
					}
				}
				if len(got) == 0 && i < len(model) {
					t.Fatalf("seed %d: after(%s) is empty, %s follows", seed, from, model[i].Zxid)
				}
				held = append(held, got)
				copies = append(copies, fmt.Sprint(got))
			case r < 95 && len(model) > 0:
				q := model[rnd.IntN(len(model))].Zxid + kv.Zxid(rnd.IntN(3))
				at, c, ok := tl.locate(q)
				if q < tl.start {
					if ok {
						t.Fatalf("seed %d: located below the start", seed)
					}
					continue
				}
				want := kv.Entry{Zxid: tl.start, Chain: tl.startChain}
				for _, e := range model {
					if e.Zxid <= q && e.Zxid > tl.start {
						want = e
					}
				}
				if !ok || at != want.Zxid || c != want.Chain {
					t.Fatalf("seed %d: locate(%s) = %s, want %s", seed, q, at, want.Zxid)
				}
			case r < 97 && len(model) > 0:
				i := rnd.IntN(len(model))
				if model[i].Zxid < tl.start {
					continue
				}
				model = model[:i+1]
				z, chain = model[i].Zxid, model[i].Chain
				tl.truncate(z, chain)
			case r < 98:
				tl.evict(z, 20000)
			}
			n, _, ok := tl.between(tl.start, z)
			if !ok || n != tl.count {
				t.Fatalf("seed %d: %d entries counted, %d held", seed, n, tl.count)
			}
		}
		for i := range held {
			if fmt.Sprint(held[i]) != copies[i] {
				t.Fatalf("seed %d: a slice that was handed out has changed", seed)
			}
		}
	}
}

func indexOf(es []kv.Entry, z kv.Zxid) int {
	for i := range es {
		if es[i].Zxid == z {
			return i
		}
	}
	return -1
}

// TestTailBytesAreExact: the byte count is what the entries held sum up to.
func TestTailBytesAreExact(t *testing.T) {
	var tl tail
	tl.reset(0, kv.ChainSeed())
	z := kv.MakeZxid(1, 1)
	for range 3 * chunkEntries {
		tl.add(kv.Entry{Zxid: z, Payload: make([]byte, z.Counter()%7)})
		z++
	}
	tl.truncate(kv.MakeZxid(1, 700), 0)
	tl.evict(z, 100)
	sum := 0
	for _, c := range tl.chunks {
		for i := range c {
			sum += entryBytes(&c[i])
		}
	}
	if tl.bytes != sum || tl.start != kv.MakeZxid(1, chunkEntries) {
		t.Errorf("bytes %d, want %d; start %s", tl.bytes, sum, tl.start)
	}
}

// TestLargePayloadsAreEvicted: the memory held does not depend on the number of entries in a chunk.
func TestLargePayloadsAreEvicted(t *testing.T) {
	var tl tail
	tl.reset(0, kv.ChainSeed())
	payload := make([]byte, 512<<10)
	for z := kv.MakeZxid(1, 1); z <= kv.MakeZxid(1, 200); z++ {
		tl.add(kv.Entry{Zxid: z, Payload: payload})
		tl.evict(z, 4<<20)
		if tl.bytes > 4<<20+chunkBytes+len(payload)+1000 {
			t.Fatalf("%d MiB held at %s", tl.bytes>>20, z)
		}
	}
}
