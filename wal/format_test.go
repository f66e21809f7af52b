package wal

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"kvd/kv"
)

var rewriteFlag = flag.Bool("rewrite", false, "regenerate testdata")

func sampleEntries() (prev kv.Zxid, prevChain uint64, entries []kv.Entry) {
	prev, prevChain = kv.MakeZxid(2, 7), 0x1122334455667788
	chain := prevChain
	for _, e := range []kv.Entry{
		{Zxid: kv.MakeZxid(2, 8), Payload: []byte("set /a 1")},
		{Zxid: kv.MakeZxid(2, 9), Payload: nil},
		{Zxid: kv.MakeZxid(5, 1), Payload: bytes.Repeat([]byte("x"), 200)},
	} {
		chain = kv.ChainDigest(chain, e.Zxid, e.Payload)
		e.Chain = chain
		entries = append(entries, e)
	}
	return prev, prevChain, entries
}

func sampleGroup() []byte {
	prev, chain, entries := sampleEntries()
	b := make([]byte, groupBytes(prev, entries))
	encodeGroup(b, prev, chain, entries)
	return b
}

func sampleMeta() *meta {
	return &meta{
		Identity: testIdentity, Accepted: 9, PromisedTo: 77, Current: 8,
		Base: kv.MakeZxid(7, 100), BaseChain: 1, LogStart: kv.MakeZxid(3, 4), LogStartChain: 2,
		Generation: 5, Version: 60, Trusted: true, Suspect: "because", Points: [][]byte{[]byte("one"), {0, 255}},
	}
}

// The stored bytes of every format are fixed. A change here is a change of the format: raise the version, keep
// reading the old one, and add a line instead of changing one.
func TestFormatsAreGolden(t *testing.T) {
	metaRecord, err := encodeMeta(sampleMeta())
	if err != nil {
		t.Fatal(err)
	}
	slot := make([]byte, slotBytes)
	encodeSlot(slot, mark{generation: 3, zxid: kv.MakeZxid(2, 9), meta: 41})
	for name, b := range map[string][]byte{
		"group-v1":     sampleGroup(),
		"entry-key-v1": entryKey(kv.MakeZxid(2, 8)),
		"meta-v1":      metaRecord,
		"identity-v1":  encodeIdentity(testIdentity),
		"watermark-v1": slot,
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", name+".hex")
			got := hex.Dump(b)
			if *rewriteFlag {
				if err := os.MkdirAll("testdata", 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Fatalf("got\n%swant\n%s", got, want)
			}
		})
	}
}

func TestFormatsRoundTrip(t *testing.T) {
	prev, chain, entries := sampleEntries()
	g, err := decodeGroup(entries[0].Zxid, sampleGroup())
	if err != nil || g.prev != prev || g.prevChain != chain {
		t.Fatalf("%+v, %v", g, err)
	}
	if got := decodeAll(t, &g); equalEntries(got, entries) != nil {
		t.Fatalf("got %v", got)
	}
	if _, err := decodeGroup(entries[0].Zxid+1, sampleGroup()); !errors.Is(err, ErrDamaged) {
		t.Fatalf("a group under another key: %v", err)
	}
	b, err := encodeMeta(sampleMeta())
	if err != nil {
		t.Fatal(err)
	}
	m, err := decodeMeta(b)
	if err != nil {
		t.Fatal(err)
	}
	again, err := encodeMeta(&m)
	if err != nil || !bytes.Equal(b, again) {
		t.Fatalf("%x, %v", again, err)
	}
	id, err := decodeIdentity(encodeIdentity(testIdentity))
	if err != nil || id != testIdentity {
		t.Fatalf("%+v, %v", id, err)
	}
}

func decodeAll(t testing.TB, g *group) []kv.Entry {
	var all []kv.Entry
	for r := g.reader(); ; {
		e, ok, err := r.next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return all
		}
		all = append(all, e)
	}
}

// Every single flipped bit and every cut of every record is noticed.
func TestEveryFlippedBitIsNoticed(t *testing.T) {
	metaRecord, err := encodeMeta(sampleMeta())
	if err != nil {
		t.Fatal(err)
	}
	slot := make([]byte, slotBytes)
	encodeSlot(slot, mark{generation: 3, zxid: kv.MakeZxid(2, 9), meta: 41})
	for name, c := range map[string]struct {
		b      []byte
		decode func([]byte) error
	}{
		"group":     {sampleGroup(), func(b []byte) error { _, err := decodeGroup(kv.MakeZxid(2, 8), b); return err }},
		"meta":      {metaRecord, func(b []byte) error { _, err := decodeMeta(b); return err }},
		"identity":  {encodeIdentity(testIdentity), func(b []byte) error { _, err := decodeIdentity(b); return err }},
		"watermark": {slot, func(b []byte) error { _, _, err := decodeSlot(b); return err }},
	} {
		t.Run(name, func(t *testing.T) {
			if err := c.decode(c.b); err != nil {
				t.Fatal(err)
			}
			for i := range c.b {
				for bit := range 8 {
					d := bytes.Clone(c.b)
					d[i] ^= 1 << bit
					if err := c.decode(d); !errors.Is(err, ErrDamaged) {
						t.Fatalf("bit %d of byte %d: %v", bit, i, err)
					}
				}
				if name == "watermark" {
					continue // the file has a fixed length
				}
				if err := c.decode(c.b[:i]); !errors.Is(err, ErrDamaged) {
					t.Fatalf("cut at %d: %v", i, err)
				}
			}
		})
	}
}

// A member's directory written by this version's first release is opened by every later build.
func TestDirectoryOfFormat1Opens(t *testing.T) {
	dir := filepath.Join("testdata", "directory-v1")
	h := newHistory()
	h.next(1, 20, 40)
	h.next(3, 5, 40)
	if *rewriteFlag {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		o := small(nil)
		m, _ := openMember(t, dir, o)
		m.form(3)
		m.do(Write{Append: h.all})
		m.do(Write{Snapshot: &SnapshotPoint{Zxid: h.all[10].Zxid, Chain: h.all[10].Chain, Points: [][]byte{[]byte("p")}, LogStart: h.all[4].Zxid}})
		m.close()
	}
	// Opening writes, so a copy is opened.
	fs := vfs.NewMem()
	if ok, err := vfs.Clone(vfs.Default, fs, dir, "d", vfs.CloneSync); err != nil || !ok {
		t.Fatalf("copy: %v %v", ok, err)
	}
	m, r := openMember(t, "d", small(fs))
	defer m.close()
	st := m.log.State()
	if r.Suspect != "" || !st.Trusted || st.Member != testIdentity.Member || st.Base != h.all[10].Zxid || st.LogStart != h.all[4].Zxid || len(st.Points) != 1 {
		t.Fatalf("%v %+v", r, st)
	}
	m.mustHold(h)
}

// FuzzDecodeGroup: the decoder never panics, never yields a hole, allocates nothing for what it refuses, and what
// it accepts encodes to the same bytes.
func FuzzDecodeGroup(f *testing.F) {
	f.Add(uint64(kv.MakeZxid(2, 8)), sampleGroup()[8:])
	f.Add(uint64(1), []byte{1})
	f.Add(uint64(kv.MakeZxid(1, 1)), append([]byte{1}, make([]byte, 60)...))
	f.Fuzz(func(t *testing.T, first uint64, rest []byte) {
		// The checksum is made right, otherwise nothing would get past it.
		b := make([]byte, 8, 8+len(rest))
		b = append(b, rest...)
		sum := groupChecksum(kv.Zxid(first), rest)
		for i := range 8 {
			b[i] = byte(sum >> (56 - 8*i))
		}
		g, err := decodeGroup(kv.Zxid(first), b)
		if err != nil {
			return
		}
		var all []kv.Entry
		prev := g.prev
		for r := g.reader(); ; {
			e, ok, err := r.next()
			if err != nil {
				if !errors.Is(err, ErrDamaged) {
					t.Fatalf("error without kind: %v", err)
				}
				return
			}
			if !ok {
				break
			}
			if !e.Zxid.Follows(prev) {
				t.Fatalf("%v after %v", e.Zxid, prev)
			}
			prev = e.Zxid
			all = append(all, e)
		}
		if len(all) != g.count {
			t.Fatalf("%d entries, header says %d", len(all), g.count)
		}
		again := make([]byte, groupBytes(g.prev, all))
		encodeGroup(again, g.prev, g.prevChain, all)
		if !bytes.Equal(again, b) {
			t.Fatalf("encodes to\n%x, was\n%x", again, b)
		}
	})
}

// FuzzDecodeSmall: the other decoders never panic.
func FuzzDecodeSmall(f *testing.F) {
	b, err := encodeMeta(sampleMeta())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b[8:])
	f.Add(encodeIdentity(testIdentity)[16:])
	f.Fuzz(func(t *testing.T, rest []byte) {
		for _, seed := range []uint64{metaSeed, identitySeed, watermarkSeed} {
			sum := seededSum(seed, rest)
			var head [8]byte
			for i := range 8 {
				head[i] = byte(sum >> (56 - 8*i))
			}
			if m, err := decodeMeta(append(bytes.Clone(head[:]), rest...)); err == nil && seed == metaSeed {
				if _, err := encodeMeta(&m); err != nil {
					t.Fatal(err)
				}
			}
			_, _ = decodeIdentity([]byte(identityMagic + string(head[:]) + string(rest)))
			if len(rest) >= slotBytes {
				_, _, _ = decodeSlot([]byte(watermarkMagic + string(head[:]) + string(rest)))
			}
		}
	})
}

// The hot path's allocations are a budget: per write of 64 entries, whatever the payload.
func TestAllocationBudget(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	prev, chain, entries := sampleEntries()
	dst := make([]byte, groupBytes(prev, entries))
	if n := testing.AllocsPerRun(100, func() { encodeGroup(dst, prev, chain, entries) }); n != 0 {
		t.Errorf("encodeGroup allocates %v times", n)
	}
	if n := testing.AllocsPerRun(100, func() {
		g, err := decodeGroup(entries[0].Zxid, dst)
		if err != nil {
			t.Fatal(err)
		}
		r := g.reader()
		for _, ok, _ := r.next(); ok; _, ok, _ = r.next() {
		}
	}); n != 0 {
		t.Errorf("decoding a group allocates %v times", n)
	}
	m, _ := openMember(t, "d", Options{FS: vfs.NewMem()})
	defer m.close()
	m.form(1)
	h := newHistory()
	h.next(1, 64*220, 100)
	all := h.all
	perWrite := testing.AllocsPerRun(200, func() {
		m.do(Write{Append: all[:64]})
		all = all[64:]
	})
	t.Logf("%v allocations for a synced write of 64 entries", perWrite)
	if perWrite > 12 { // 4 measured, the test's own deadline included; Pebble rotates its buffers now and then
		t.Errorf("a write of 64 entries allocates %v times", perWrite)
	}
}

func TestReportIsOneLine(t *testing.T) {
	for _, r := range []Report{{}, {Blank: true}, {Suspect: "x"}, {Suspect: "x", Damaged: true, Repaired: []string{"a", "b"}}} {
		if s := r.String(); s == "" || strings.Contains(s, "\n") {
			t.Errorf("%q", s)
		}
	}
}
