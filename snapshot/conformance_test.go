package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"kvd/kv"
)

// One suite for both stores: what it asks of Dir it asks of Memory, so that the simulator's stand-in stays honest.

// rig is a store with its way to be reopened: everything that was reported as done must still be there.
type rig struct {
	Store
	reopen func() Store
	names  func() []string // finished files
	flip   func(name string, off int64)
	remove func(name string)
}

func forEachStore(t *testing.T, test func(t *testing.T, s *rig)) {
	t.Run("dir", func(t *testing.T) { test(t, dirRig(t)) })
	t.Run("memory", func(t *testing.T) { test(t, memoryRig()) })
}

func memoryRig() *rig {
	m := NewMemory()
	return &rig{Store: m, names: m.Names, flip: m.Flip, remove: m.Remove, reopen: func() Store { m.Sync(); m.Crash(); return m }}
}

// content is a model of what a point holds: table byte + key → value.
type content map[string]string

func (c content) Records(yield func(Record) error) error {
	for _, k := range slices.Sorted(maps.Keys(c)) {
		if err := yield(Record{Table: k[0], Key: []byte(k[1:]), Value: append([]byte{}, c[k]...)}); err != nil {
			return err
		}
	}
	return nil
}

// since yields what changed from old to c, as kv.View.Diff does.
func (c content) since(old content) Source {
	all := maps.Clone(old)
	maps.Copy(all, c)
	return SourceFunc(func(yield func(Record) error) error {
		for _, k := range slices.Sorted(maps.Keys(all)) {
			now, there := c[k]
			before, was := old[k]
			r := Record{Table: k[0], Key: []byte(k[1:])}
			switch {
			case there && (!was || now != before):
				r.Value = append([]byte{}, now...)
			case !there:
			default:
				continue
			}
			if err := yield(r); err != nil {
				return err
			}
		}
		return nil
	})
}

func loaded(t testing.TB, s Store, p Point) content {
	t.Helper()
	c := content{}
	last := ""
	err := s.Load(p, func(r Record) error {
		if r.Value == nil {
			return fmt.Errorf("a deletion was loaded: %q", r.Key)
		}
		k := string(append([]byte{r.Table}, r.Key...))
		if len(c) > 0 && k <= last {
			return fmt.Errorf("%q after %q", k, last)
		}
		last = k
		c[k] = string(r.Value)
		return nil
	})
	if err != nil {
		t.Fatalf("loading %s: %v", p.Zxid, err)
	}
	return c
}

func mustFull(t testing.TB, s Store, z kv.Zxid, c content) Point {
	t.Helper()
	p, err := s.WriteFull(context.Background(), Meta{Zxid: z, Chain: uint64(z) * 3, Digest: uint64(z) * 5}, c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func same(t testing.TB, got, want content) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Fatalf("%d records differ from the %d written", len(got), len(want))
	}
}

func sampleContent() content {
	return content{
		"\x01/":           "",
		"\x01/a":          "x",
		"\x01/a/b":        string(bytes.Repeat([]byte{0, 255}, 700)),
		"\x01/zero\x00":   "\x00",
		"\x01/big":        string(bytes.Repeat([]byte("b"), 3<<20)), // beyond a transaction's arena
		"\x02":            "the empty key",
		"\xff/last\xff":   "",
		"\x05level":       "1",
		"\x05" + longText: "a long key",
	}
}

var longText = string(bytes.Repeat([]byte("k"), 32000)) // kv.MaxPathBytes

func TestRoundTrip(t *testing.T) {
	forEachStore(t, func(t *testing.T, s *rig) {
		for i, c := range []content{{}, {"\x01/": "root"}, sampleContent()} {
			z := kv.MakeZxid(1, uint32(i+1))
			p := mustFull(t, s, z, c)
			if p.Zxid != z || p.Chain != uint64(z)*3 || p.Digest != uint64(z)*5 || len(p.Files) != 1 || p.TotalBytes() != p.Files[0].Bytes {
				t.Errorf("point %+v", p)
			}
			same(t, loaded(t, s, p), c)
			decoded, err := DecodePoint(p.AppendTo(nil))
			if err != nil || !decoded.Equal(p) {
				t.Errorf("decoded %+v, %v", decoded, err)
			}
			same(t, loaded(t, s.reopen(), decoded), c)
		}
	})
}

// Random histories: at each step the chain of deltas loads to exactly what a full file of the same state loads to.
func TestDeltaChainEqualsFull(t *testing.T) {
	forEachStore(t, func(t *testing.T, s *rig) {
		for seed := range uint64(6) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			state := content{}
			var chain Point
			for step := range 12 {
				before := maps.Clone(state)
				for range rnd.IntN(60) {
					k := string([]byte{byte(rnd.IntN(3))}) + fmt.Sprintf("/%d", rnd.IntN(80))
					if rnd.IntN(3) == 0 {
						delete(state, k)
					} else {
						state[k] = string(bytes.Repeat([]byte{byte(rnd.IntN(256))}, rnd.IntN(200)))
					}
				}
				m := Meta{Zxid: kv.MakeZxid(kv.Epoch(seed+1), uint32(2*step+1)), Chain: rnd.Uint64(), Digest: rnd.Uint64()}
				var err error
				if chain.IsZero() {
					chain, err = s.WriteFull(context.Background(), m, state)
				} else {
					chain, err = s.WriteDelta(context.Background(), m, state.since(before), chain)
				}
				if err != nil {
					t.Fatal(err)
				}
				same(t, loaded(t, s, chain), state)
				if step%4 == 3 {
					same(t, loaded(t, s.reopen(), mustFull(t, s, m.Zxid+1, state)), state)
				}
			}
			if len(chain.Files) != 12 || chain.FullBytes()+chain.DeltaBytes() != chain.TotalBytes() {
				t.Errorf("chain %+v", chain)
			}
		}
	})
}

// A source that breaks its contract, fails, or is cancelled leaves nothing behind.
func TestFailedWriteLeavesNothing(t *testing.T) {
	rec := func(table uint8, key, value string) Record {
		return Record{Table: table, Key: []byte(key), Value: []byte(value)}
	}
	boom := errors.New("boom")
	sources := map[string]struct {
		records []Record
		err     error
		want    error
	}{
		"out of order":        {records: []Record{rec(1, "/b", ""), rec(1, "/a", "")}, want: ErrOrder},
		"twice":               {records: []Record{rec(1, "/b", "1"), rec(1, "/b", "2")}, want: ErrOrder},
		"tables out of order": {records: []Record{rec(2, "/a", ""), rec(1, "/b", "")}, want: ErrOrder},
		"deletion in full":    {records: []Record{{Table: 1, Key: []byte("/a")}}, want: ErrOrder},
		"failing source":      {records: []Record{rec(1, "/a", "")}, err: boom, want: boom},
	}
	forEachStore(t, func(t *testing.T, s *rig) {
		for name, c := range sources {
			t.Run(name, func(t *testing.T) {
				_, err := s.WriteFull(context.Background(), Meta{Zxid: 9}, SourceFunc(func(yield func(Record) error) error {
					for _, r := range c.records {
						if err := yield(r); err != nil {
							return err
						}
					}
					return c.err
				}))
				if !errors.Is(err, c.want) {
					t.Errorf("got %v, want %v", err, c.want)
				}
			})
		}
		for _, at := range []int{0, 50_000} {
			ctx, cancel := context.WithCancelCause(context.Background())
			if at == 0 {
				cancel(boom)
			}
			n := 0
			_, err := s.WriteFull(ctx, Meta{Zxid: 9}, SourceFunc(func(yield func(Record) error) error {
				return manyRecords(100_000).Records(func(r Record) error {
					if n++; n == at {
						cancel(boom)
					}
					return yield(r)
				})
			}))
			if !errors.Is(err, boom) || at > 0 && n > at+20_000 {
				t.Errorf("cancelled at %d: %v after %d records", at, err, n)
			}
			cancel(nil)
		}
		if left := s.names(); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
		same(t, loaded(t, s, mustFull(t, s, 9, sampleContent())), sampleContent())
	})
}

func TestDeltaIsRefusedOnWrongPoint(t *testing.T) {
	forEachStore(t, func(t *testing.T, s *rig) {
		p := mustFull(t, s, 10, content{"\x01/": ""})
		for name, c := range map[string]struct {
			z    kv.Zxid
			prev Point
		}{"same zxid": {10, p}, "older": {9, p}, "no point": {11, Point{}}} {
			if _, err := s.WriteDelta(context.Background(), Meta{Zxid: c.z}, content{}, c.prev); err == nil {
				t.Errorf("%s: accepted", name)
			}
		}
	})
}

// A delta put on another full file than the one it was made for is noticed, although every file is sound by itself.
func TestDeltaOfAnotherChainIsDamage(t *testing.T) {
	forEachStore(t, func(t *testing.T, s *rig) {
		a, b := mustFull(t, s, 10, content{"\x01/": "a"}), mustFull(t, s, 10, content{"\x01/": "b"})
		d, err := s.WriteDelta(context.Background(), Meta{Zxid: 11}, content{"\x01/x": ""}, a)
		if err != nil {
			t.Fatal(err)
		}
		same(t, loaded(t, s, d), content{"\x01/": "a", "\x01/x": ""})
		d.Files[0] = b.Files[0]
		other := d
		other.Digest++
		for _, p := range []Point{d, other} {
			if err := s.Load(p, func(Record) error { return nil }); !errors.Is(err, ErrDamaged) {
				t.Errorf("loaded: %v", err)
			}
		}
	})
}

// Damage of any file of a point is found before anything is yielded, and names the file.
func TestDamageIsFoundBeforeLoading(t *testing.T) {
	forEachStore(t, func(t *testing.T, s *rig) {
		full := mustFull(t, s, 10, content{"\x01/": "a", "\x01/b": "b"})
		p, err := s.WriteDelta(context.Background(), Meta{Zxid: 12}, content{"\x01/c": "c"}, full)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range p.Files {
			for _, off := range []int64{0, 8, f.Bytes / 2, f.Bytes - 1} {
				s.flip(f.Name, off)
				err := s.Load(p, func(Record) error { t.Error("yielded"); return nil })
				var damage *DamageError
				if !errors.As(err, &damage) || damage.File != f.Name || !errors.Is(err, ErrDamaged) {
					t.Errorf("%s, byte %d: %v", f.Name, off, err)
				}
				if err := s.Verify(p); !errors.Is(err, ErrDamaged) {
					t.Errorf("Verify: %v", err)
				}
				s.flip(f.Name, off)
			}
		}
		if err := s.Verify(p); err != nil {
			t.Fatalf("repaired: %v", err)
		}
		s.remove(p.Files[1].Name) // S26
		if err := s.Load(p, nil); !errors.Is(err, ErrDamaged) {
			t.Errorf("missing file: %v", err)
		}
		if _, err := s.OpenFile(p.Files[1].Name); !errors.Is(err, ErrDamaged) {
			t.Errorf("missing file opened: %v", err)
		}
		same(t, loaded(t, s, full), content{"\x01/": "a", "\x01/b": "b"}) // the point before is still good
	})
}

// What the caller's function returns or throws comes back unchanged, not as damage.
func TestErrorsOfYieldPassThrough(t *testing.T) {
	forEachStore(t, func(t *testing.T, s *rig) {
		p := mustFull(t, s, 10, sampleContent())
		boom := errors.New("boom")
		n := 0
		if err := s.Load(p, func(Record) error { n++; return boom }); err != boom || n != 1 { //nolint:errorlint // unchanged is the claim
			t.Errorf("%v after %d records", err, n)
		}
		defer func() {
			if r := recover(); r != "ouch" {
				t.Errorf("recovered %v", r)
			}
		}()
		_ = s.Load(p, func(Record) error { panic("ouch") })
	})
}

func TestRetainDeletesWhatNobodyReferences(t *testing.T) {
	forEachStore(t, func(t *testing.T, s *rig) {
		a := mustFull(t, s, 10, content{"\x01/": "a"})
		b := mustFull(t, s, 20, content{"\x01/": "b"})
		c, err := s.WriteDelta(context.Background(), Meta{Zxid: 30}, content{"\x01/c": ""}, b)
		if err != nil {
			t.Fatal(err)
		}
		open, err := s.OpenFile(a.Files[0].Name)
		if err != nil {
			t.Fatal(err)
		}
		defer open.Close()
		if err := s.Retain([]Point{c}); err != nil {
			t.Fatal(err)
		}
		want := []string{b.Files[0].Name, c.Files[1].Name}
		if got := s.names(); !slices.Equal(got, want) {
			t.Errorf("kept %v, want %v", got, want)
		}
		var buf bytes.Buffer
		if n, err := io.Copy(&buf, io.NewSectionReader(open, 0, a.FullBytes()+1)); n != a.FullBytes() || err != nil {
			t.Errorf("an open file after Retain: %d bytes, %v", n, err)
		}
		if err := s.Retain(nil); err != nil || len(s.names()) != 0 {
			t.Errorf("Retain(nil): %v, left %v", err, s.names())
		}
	})
}

// transfer feeds files of p from src into r until limit bytes have been taken, in chunks of about `chunk` bytes.
func transfer(t testing.TB, src Store, p Point, r Receiver, chunk, limit int64) (taken int64) {
	t.Helper()
	for i, f := range p.Files {
		in, err := src.OpenFile(f.Name)
		if err != nil {
			t.Fatal(err)
		}
		for off := r.Have()[i]; off < f.Bytes && taken < limit; {
			buf := make([]byte, min(chunk, f.Bytes-off))
			if _, err := in.ReadAt(buf, off); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			if err := r.WriteChunk(i, off, buf, ChunkHash(buf)); err != nil {
				t.Fatal(err)
			}
			off += int64(len(buf))
			taken += int64(len(buf))
		}
		_ = in.Close()
	}
	return taken
}

// A transfer that is cut goes on where it stopped, in the same process and after a restart; what the receiver
// has already is not sent again.
func TestReceiveResumes(t *testing.T) {
	source := memoryRigOrDir // see below
	forEachStore(t, func(t *testing.T, s *rig) {
		src := source(t, s)
		full := mustFull(t, src, 10, sampleContent())
		p, err := src.WriteDelta(context.Background(), Meta{Zxid: 11}, content{"\x01/new": "n"}, full)
		if err != nil {
			t.Fatal(err)
		}
		want := loaded(t, src, p)
		r, err := s.Receive(p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Receive(p); !errors.Is(err, ErrBusy) {
			t.Errorf("a second receiver: %v", err)
		}
		if got := r.Have(); !slices.Equal(got, []int64{0, 0}) {
			t.Errorf("has %v of nothing", got)
		}
		first := transfer(t, src, p, r, 1000, 2<<20)
		if err := r.Commit(); err == nil {
			t.Error("an incomplete snapshot was committed")
		}
		store := s.reopen()
		if r, err = store.Receive(p); err != nil {
			t.Fatal(err)
		}
		if got := r.Have()[0]; got != first {
			t.Errorf("%d bytes kept, want %d", got, first)
		}
		second := transfer(t, src, p, r, 100_000, 1<<40)
		if first+second != p.TotalBytes() {
			t.Errorf("%d + %d bytes were sent of %d", first, second, p.TotalBytes())
		}
		if err := r.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := r.WriteChunk(0, 0, nil, ChunkHash(nil)); err == nil {
			t.Error("a chunk after Commit")
		}
		_ = r.Close()
		same(t, loaded(t, store, p), want)

		next, err := src.WriteDelta(context.Background(), Meta{Zxid: 12}, content{"\x01/newer": ""}, p)
		if err != nil {
			t.Fatal(err)
		}
		if r, err = store.Receive(next); err != nil {
			t.Fatal(err)
		}
		if got := r.Have(); got[0] != p.Files[0].Bytes || got[1] != p.Files[1].Bytes || got[2] != 0 {
			t.Errorf("files that are there count as %v", got)
		}
		transfer(t, src, next, r, 1<<20, 1<<40)
		if err := r.Commit(); err != nil {
			t.Fatal(err)
		}
		want["\x01/newer"] = ""
		same(t, loaded(t, s.reopen(), next), want)
	})
}

func memoryRigOrDir(t *testing.T, like *rig) *rig {
	if _, ok := like.Store.(*Memory); ok {
		return memoryRig()
	}
	return dirRig(t)
}

// Everything a hostile or broken sender can say is refused without effect; wrong bytes with right chunk hashes
// are found by Commit, and the next attempt begins again.
func TestReceiveRefusesWrongChunks(t *testing.T) {
	forEachStore(t, func(t *testing.T, s *rig) {
		src := memoryRigOrDir(t, s)
		p := mustFull(t, src, 10, content{"\x01/": string(bytes.Repeat([]byte("x"), 100))})
		good := make([]byte, p.FullBytes())
		in, err := src.OpenFile(p.Files[0].Name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := in.ReadAt(good, 0); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		_ = in.Close()
		r, err := s.Receive(p)
		if err != nil {
			t.Fatal(err)
		}
		n := p.FullBytes()
		if err := r.WriteChunk(0, 0, good[:10], ChunkHash(good[:10])); err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]struct {
			file int
			off  int64
			data []byte
			hash uint64
		}{
			"no such file":      {1, 0, good[:1], ChunkHash(good[:1])},
			"negative file":     {-1, 0, good[:1], ChunkHash(good[:1])},
			"gap":               {0, 11, good[11:20], ChunkHash(good[11:20])},
			"back":              {0, 0, good[:10], ChunkHash(good[:10])},
			"negative offset":   {0, -1, good[:1], ChunkHash(good[:1])},
			"beyond the end":    {0, 10, append(good[10:n:n], 0), ChunkHash(append(good[10:n:n], 0))},
			"wrong hash":        {0, 10, good[10:20], ChunkHash(good[10:20]) + 1},
			"offset overflowed": {0, 1<<63 - 1, good[:2], ChunkHash(good[:2])},
		} {
			if err := r.WriteChunk(c.file, c.off, c.data, c.hash); !errors.Is(err, ErrBadChunk) {
				t.Errorf("%s: %v", name, err)
			}
			if got := r.Have()[0]; got != 10 {
				t.Fatalf("%s: has %d bytes now", name, got)
			}
		}
		bad := bytes.Clone(good[10:])
		bad[0] ^= 1
		if err := r.WriteChunk(0, 10, bad, ChunkHash(bad)); err != nil {
			t.Fatal(err)
		}
		var damage *DamageError
		if err := r.Commit(); !errors.As(err, &damage) || damage.File != p.Files[0].Name {
			t.Fatalf("committed wrong bytes: %v", err)
		}
		if r, err = s.Receive(p); err != nil {
			t.Fatal(err)
		}
		if r.Have()[0] != 0 {
			t.Error("wrong bytes were kept for the next attempt")
		}
		transfer(t, src, p, r, 64, 1<<40)
		if err := r.Commit(); err != nil {
			t.Fatal(err)
		}
		same(t, loaded(t, s, p), loaded(t, src, p))
		for _, p := range hostilePoints() {
			if _, err := s.Receive(p); err == nil {
				t.Errorf("receiving %+v", p)
			}
			if err := s.Load(p, nil); err == nil {
				t.Errorf("loaded %+v", p)
			}
		}
	})
}

// Parts of an abandoned transfer go away: with a transfer of another point, or once this member is past them by
// itself.
func TestAbandonedPartsAreRemoved(t *testing.T) {
	forEachStore(t, func(t *testing.T, s *rig) {
		src := memoryRigOrDir(t, s)
		a, b := mustFull(t, src, 10, sampleContent()), mustFull(t, src, 20, sampleContent())
		begin := func(p Point) Receiver {
			r, err := s.Receive(p)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		r := begin(a)
		transfer(t, src, a, r, 1000, 5000)
		if err := s.Retain([]Point{b}); err != nil {
			t.Fatal(err)
		}
		_ = r.Close()
		r = begin(a)
		if r.Have()[0] != 5000 {
			t.Errorf("Retain removed a file being received: has %d", r.Have()[0])
		}
		_ = r.Close()
		r = begin(b)
		transfer(t, src, b, r, 1000, 3000)
		_ = r.Close()
		if err := s.Retain([]Point{a}); err != nil { // older than b: b's parts may still be wanted
			t.Fatal(err)
		}
		r = begin(b)
		if r.Have()[0] != 3000 {
			t.Errorf("has %d of a newer point", r.Have()[0])
		}
		_ = r.Close()
		if err := s.Retain([]Point{b}); err != nil {
			t.Fatal(err)
		}
		r = begin(b)
		if r.Have()[0] != 0 {
			t.Error("parts of a point that is not newer were kept")
		}
		_ = r.Close()
		if r = begin(a); r.Have()[0] != 0 {
			t.Error("parts of another point were kept")
		}
		_ = r.Close()
	})
}
