package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"kvd/kv"
)

var testIdentity = Identity{ClusterID: [16]byte{1, 2, 3, 15: 16}, Member: 2}

// history makes contiguous entries with right chain values.
type history struct {
	last  kv.Zxid
	chain uint64
	all   []kv.Entry
}

func newHistory() *history { return &history{chain: kv.ChainSeed()} }

// next appends n entries of about size bytes in epoch e and returns them.
func (h *history) next(e kv.Epoch, n, size int) []kv.Entry {
	from := len(h.all)
	for range n {
		z := h.last + 1
		if h.last.Epoch() != e {
			z = kv.MakeZxid(e, 1)
		}
		p := make([]byte, size)
		if size >= 8 {
			binary.BigEndian.PutUint64(p, uint64(z)*0x9e3779b97f4a7c15+uint64(len(h.all)))
		}
		h.chain = kv.ChainDigest(h.chain, z, p)
		h.last = z
		h.all = append(h.all, kv.Entry{Zxid: z, Chain: h.chain, Payload: p})
	}
	return h.all[from:len(h.all):len(h.all)]
}

// truncate goes back to z, which is an entry or 0.
func (h *history) truncate(z kv.Zxid) {
	for len(h.all) > 0 && h.all[len(h.all)-1].Zxid > z {
		h.all = h.all[:len(h.all)-1]
	}
	h.last, h.chain = 0, kv.ChainSeed()
	if n := len(h.all); n > 0 {
		h.last, h.chain = h.all[n-1].Zxid, h.all[n-1].Chain
	}
}

func (h *history) clone() *history {
	c := *h
	c.all = append([]kv.Entry(nil), h.all...)
	return &c
}

// member drives a Log: it numbers writes and records completions.
type member struct {
	t   testing.TB
	log *Log
	seq uint64

	mu              sync.Mutex
	cond            *sync.Cond
	completed       uint64
	err             error
	successAfterErr bool
}

func newMember(t testing.TB) *member {
	m := &member{t: t}
	m.cond = sync.NewCond(&m.mu)
	return m
}

func (m *member) onCompleted(c Completion) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case c.Err != nil:
		m.err = c.Err
	case m.err != nil:
		m.successAfterErr = true
	default:
		if c.Seq < m.completed {
			m.t.Errorf("completion %d after %d", c.Seq, m.completed)
		}
		m.completed = c.Seq
	}
	m.cond.Broadcast()
}

// small are options that make groups, tables and buffers small, so that little data meets every border.
func small(fs vfs.FS) Options {
	return Options{FS: fs, GroupBytes: 512, MemTableBytes: 256 << 10, CacheBytes: 1 << 20, WatermarkSyncEvery: 5 * time.Millisecond}
}

func openMember(t testing.TB, dir string, o Options) (*member, Report) {
	t.Helper()
	m := newMember(t)
	o.Completed = m.onCompleted
	l, r, err := Open(dir, o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	m.log = l
	return m, r
}

// submit queues w and returns its number.
func (m *member) submit(w Write) uint64 {
	m.seq++
	w.Seq = m.seq
	m.log.Submit(w)
	return m.seq
}

// patience bounds waits that end by themselves on a healthy log. Only a hang, not a loaded machine, may exceed it.
const patience = 5 * time.Minute

// wait returns when seq is completed, or the error that ended the log.
func (m *member) wait(seq uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	deadline := time.AfterFunc(patience, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.err = errors.Join(m.err, fmt.Errorf("no completion within %v", patience))
		m.cond.Broadcast()
	})
	defer deadline.Stop()
	for m.completed < seq && m.err == nil {
		m.cond.Wait()
	}
	if m.completed >= seq {
		return nil
	}
	return m.err
}

// do executes w and waits.
func (m *member) do(w Write) {
	m.t.Helper()
	if err := m.wait(m.submit(w)); err != nil {
		m.t.Fatalf("write: %v", err)
	}
}

func (m *member) close() {
	m.t.Helper()
	if err := m.log.Close(); err != nil {
		m.t.Fatalf("close: %v", err)
	}
}

// form makes a blank member an ordinary voter that promised and joined epoch e.
func (m *member) form(e kv.Epoch) {
	m.t.Helper()
	id := testIdentity
	m.do(Write{Identity: &id, Trusted: true})
	m.do(Write{Accepted: &Promise{Epoch: e, To: 7}})
	m.do(Write{Current: e})
}

// mustHold checks that the log reads back as exactly the entries of h after the log start.
func (m *member) mustHold(h *history) {
	m.t.Helper()
	st := m.log.State()
	if st.Last != h.last || st.LastChain != h.chain {
		m.t.Fatalf("log ends at %v (%x), want %v (%x)", st.Last, st.LastChain, h.last, h.chain)
	}
	got, err := readAll(m.log, st.LogStart)
	if err != nil {
		m.t.Fatalf("read: %v", err)
	}
	want := h.all
	for len(want) > 0 && want[0].Zxid <= st.LogStart {
		want = want[1:]
	}
	if err := equalEntries(got, want); err != nil {
		m.t.Fatal(err)
	}
}

func readAll(l *Log, after kv.Zxid) ([]kv.Entry, error) {
	var all []kv.Entry
	for {
		n := len(all)
		var err error
		if all, err = l.Read(after, ^kv.Zxid(0)-1, 10_000, all); err != nil {
			return all, err
		}
		if len(all) == n {
			return all, nil
		}
		after = all[len(all)-1].Zxid
	}
}

func equalEntries(got, want []kv.Entry) error {
	if len(got) != len(want) {
		return fmt.Errorf("got %d entries, want %d", len(got), len(want))
	}
	for i := range got {
		if got[i].Zxid != want[i].Zxid || got[i].Chain != want[i].Chain || string(got[i].Payload) != string(want[i].Payload) {
			return fmt.Errorf("entry %d is %v (chain %x), want %v (chain %x)", i, got[i].Zxid, got[i].Chain, want[i].Zxid, want[i].Chain)
		}
	}
	return nil
}

// memDisk is a disk in memory that a power cut can be tried on while it is in use. Pebble's own ReuseForWrite takes
// a lock shared twice, so a clone that asks for it in between would wait for ever, and everything else with it.
type memDisk struct {
	*vfs.MemFS
	cloning sync.RWMutex
}

func newMemDisk() *memDisk { return &memDisk{MemFS: vfs.NewCrashableMem()} }

func (d *memDisk) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	d.cloning.RLock()
	defer d.cloning.RUnlock()
	return d.MemFS.ReuseForWrite(from, to, c)
}

// crash returns what a power cut leaves of d, with percent of the unsynced blocks and names kept.
func crash(d *memDisk, percent int, rng *rand.Rand) *memDisk {
	d.cloning.Lock()
	defer d.cloning.Unlock()
	return &memDisk{MemFS: d.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})}
}

// eventually polls cond, which takes time by nature (background work of Pebble), until it holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("did not happen within %v: %s", patience, what)
		}
		time.Sleep(time.Millisecond)
	}
}
