package zab

import (
	"testing"

	"kvd/kv"
	"kvd/zab/quorum"
)

// hotPath is three members whose links and disks are function calls: what remains is the cost of the cores.
type hotPath struct {
	peers   [4]*Peer
	links   [4]LinkID // of the follower
	queue   [4][]Outbound
	seq     [4]uint64
	applied int
	payload []byte
	// held keeps what a member's applier was given, in waiting.
	held    [4]bool
	waiting [4][]Apply
}

type emptyHistory struct{}

func (emptyHistory) Locate(kv.Zxid) (kv.Zxid, uint64, bool) { return 0, kv.ChainSeed(), true }

func newHotPath(tb testing.TB) *hotPath {
	h := &hotPath{payload: make([]byte, 150)}
	members, err := quorum.NewConfig(1, []quorum.MemberID{1, 2, 3}, nil)
	if err != nil {
		tb.Fatal(err)
	}
	for id := quorum.MemberID(1); id <= 3; id++ {
		cfg := testConfig()
		cfg.ID, cfg.Members = id, members
		cfg.Incarnation = func() Incarnation { return 1 }
		cfg.TailBytes = 1 << 20
		if h.peers[id], err = New(cfg, DurableState{}, emptyHistory{}); err != nil {
			tb.Fatal(err)
		}
	}
	h.peers[3].Lead()
	for id := quorum.MemberID(1); id <= 2; id++ {
		h.links[id] = LinkID(id)
		h.peers[id].Follow(3)
		h.peers[3].LinkUp(id, LinkID(id), false)
		h.peers[id].LinkUp(3, LinkID(id), true)
	}
	h.run()
	if !h.peers[3].Status().Established {
		tb.Fatal("not established")
	}
	return h
}

// run moves everything until nothing is left: one batch of proposals costs each member one write and one message.
func (h *hotPath) run() {
	for moved := true; moved; {
		moved = false
		for id := quorum.MemberID(3); id >= 1; id-- {
			p := h.peers[id]
			if !p.HasReady() {
				continue
			}
			rd := p.Ready()
			for _, o := range rd.Send {
				h.queue[o.To] = append(h.queue[o.To], Outbound{To: id, Link: o.Link, Msg: o.Msg})
			}
			if n := len(rd.Writes); n > 0 {
				h.seq[id] = rd.Writes[n-1].Seq
			}
			for _, a := range rd.Apply {
				if h.held[id] {
					h.waiting[id] = append(h.waiting[id], a)
					continue
				}
				h.applied += len(a.Entries)
				p.Applied(a.Through)
			}
			moved = true
		}
		for id := quorum.MemberID(1); id <= 3; id++ {
			for _, o := range h.queue[id] {
				h.peers[id].Step(o.To, o.Link, o.Msg)
				moved = true
			}
			h.queue[id] = h.queue[id][:0]
			if h.seq[id] != 0 {
				h.peers[id].Persisted(h.seq[id])
				h.seq[id] = 0
				moved = true
			}
		}
	}
}

func (h *hotPath) batch(tb testing.TB, n int) {
	for range n {
		if _, err := h.peers[3].Propose(h.payload); err != nil {
			tb.Fatal(err)
		}
	}
	h.run()
}

// BenchmarkPropose is one write of 150 bytes through all three cores: proposed, sent, logged, acked, committed and handed
// to three appliers. Divide by three for one member's share.
func BenchmarkPropose(b *testing.B) {
	for _, n := range []int{1, 16, 128} {
		b.Run(map[int]string{1: "batch=1", 16: "batch=16", 128: "batch=128"}[n], func(b *testing.B) {
			h := newHotPath(b)
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i += n {
				h.batch(b, n)
			}
		})
	}
}

// TestHotPathAllocationBudget: with 64 writes a batch, the three cores together allocate less than half an object a write.
func TestHotPathAllocationBudget(t *testing.T) {
	h := newHotPath(t)
	const n = 64
	for range 50 {
		h.batch(t, n)
	}
	before := h.applied
	got := testing.AllocsPerRun(200, func() { h.batch(t, n) })
	if h.applied-before != 3*n*201 {
		t.Fatalf("%d entries applied, want %d", h.applied-before, 3*n*201)
	}
	if got > n/4 {
		t.Errorf("%.1f allocations for %d writes through three members, budget %d", got, n, n/4)
	}
	t.Logf("%.1f allocations for %d writes", got, n)
}

// TestBatchesAreShared: many proposals between two Ready calls become one write and one message, and followers at the same
// cursor get the same pointer.
func TestBatchesAreShared(t *testing.T) {
	h := newHotPath(t)
	p := h.peers[3]
	for range 10 {
		if _, err := p.Propose(h.payload); err != nil {
			t.Fatal(err)
		}
	}
	rd := p.Ready()
	if len(rd.Writes) != 1 || len(rd.Writes[0].Append) != 10 {
		t.Fatalf("%d writes, want one with 10 entries", len(rd.Writes))
	}
	if len(rd.Send) != 2 || rd.Send[0].Msg != rd.Send[1].Msg {
		t.Fatalf("sent %v, want one message shared by two followers", rd.Send)
	}
	if m := rd.Send[0].Msg.(*Proposal); len(m.Entries) != 10 {
		t.Errorf("%d entries in the message, want 10", len(m.Entries))
	}
}
