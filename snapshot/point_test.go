package snapshot

import (
	"bytes"
	"strings"
	"testing"

	"kvd/kv"
)

func samplePoint() Point {
	p := Point{Meta: Meta{Zxid: kv.MakeZxid(2, 7), Chain: 0xfedcba9876543210, Digest: 42}}
	for i, z := range []kv.Zxid{kv.MakeZxid(1, 100), kv.MakeZxid(2, 3), kv.MakeZxid(2, 7)} {
		hash := uint64(0x1111111111111111) * uint64(i+1)
		p.Files = append(p.Files, File{Name: fileName(z, hash, i > 0), Bytes: int64(1000 * (i + 1)), Hash: hash, Delta: i > 0})
	}
	return p
}

// hostilePoints are points that no store makes.
func hostilePoints() []Point {
	change := func(f func(*Point)) Point {
		p := samplePoint()
		f(&p)
		return p
	}
	rename := func(name string) Point { return change(func(p *Point) { p.Files[0].Name = name }) }
	return []Point{
		{},
		change(func(p *Point) { p.Files = nil }),
		rename("../../etc/passwd"), rename(""), rename("/0000000100000064-1111111111111111.full"),
		rename(strings.ToUpper(fileName(0xabc, samplePoint().Files[0].Hash, false))),
		rename(samplePoint().Files[0].Name + "\x00"),
		rename("+000000100000064-1111111111111111.full"),
		change(func(p *Point) { p.Files[0].Hash++ }),
		change(func(p *Point) { p.Files[1].Bytes = -1 }),
		change(func(p *Point) { p.Files[1].Bytes = 0 }),
		change(func(p *Point) { p.Files[1].Bytes = 1 << 60 }),
		change(func(p *Point) { p.Files[0].Delta = true }),
		change(func(p *Point) { p.Files = p.Files[1:] }),
		change(func(p *Point) { p.Files = append(p.Files[:1:1], p.Files...) }),
		change(func(p *Point) { p.Files[1], p.Files[2] = p.Files[2], p.Files[1] }),
		change(func(p *Point) { p.Zxid++ }),
		change(func(p *Point) {
			for len(p.Files) <= MaxFiles {
				p.Files = append(p.Files, p.Files[2])
			}
		}),
	}
}

func TestPointValidate(t *testing.T) {
	if err := samplePoint().Validate(); err != nil {
		t.Fatal(err)
	}
	for i, p := range hostilePoints() {
		if p.Validate() == nil {
			t.Errorf("point %d is accepted: %+v", i, p)
		}
		if len(p.Files) > 0 {
			if _, err := DecodePoint(p.AppendTo(nil)); err == nil {
				t.Errorf("point %d is decoded: %+v", i, p)
			}
		}
	}
}

// The encoding is part of the log store's format and of the peer protocol.
func TestPointEncodingIsGolden(t *testing.T) {
	want := "\x95\x01" + "\xcf\x00\x00\x00\x02\x00\x00\x00\x07" + "\xcf\xfe\xdc\xba\x98\x76\x54\x32\x10" + "\x2a" + "\x93" +
		"\x94\xd9\x260000000100000064-1111111111111111.full\xd1\x03\xe8\xcf\x11\x11\x11\x11\x11\x11\x11\x11\xc2" +
		"\x94\xd9\x270000000200000003-2222222222222222.delta\xd1\x07\xd0\xcf\x22\x22\x22\x22\x22\x22\x22\x22\xc3" +
		"\x94\xd9\x270000000200000007-3333333333333333.delta\xd1\x0b\xb8\xcf\x33\x33\x33\x33\x33\x33\x33\x33\xc3"
	got := samplePoint().AppendTo([]byte("before"))
	if string(got) != "before"+want {
		t.Errorf("got  %q\nwant %q", got[6:], want)
	}
	p, err := DecodePoint([]byte(want))
	if err != nil || !p.Equal(samplePoint()) {
		t.Errorf("decoded %+v, %v", p, err)
	}
}

func TestDecodePointRefuses(t *testing.T) {
	good := samplePoint().AppendTo(nil)
	for n := range good {
		if _, err := DecodePoint(good[:n]); err == nil {
			t.Fatalf("the first %d of %d bytes are accepted", n, len(good))
		}
	}
	if _, err := DecodePoint(append(bytes.Clone(good), 0)); err == nil {
		t.Error("a trailing byte is accepted")
	}
	newer := bytes.Clone(good)
	newer[1]++
	if _, err := DecodePoint(newer); err == nil || !strings.Contains(err.Error(), "version byte 2, this build reads 1") {
		t.Errorf("newer version: %v", err)
	}
	if _, err := DecodePoint(make([]byte, MaxPointBytes+1)); err == nil {
		t.Error("too many bytes are accepted")
	}
}

// FuzzDecodePoint: never a panic, and what is accepted is valid and encodes to the same bytes.
func FuzzDecodePoint(f *testing.F) {
	f.Add(samplePoint().AppendTo(nil))
	f.Add([]byte{0x95, 1, 0xcf})
	f.Add([]byte("\x95\x01\x00\x00\x00\xdd\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := DecodePoint(b)
		if err != nil {
			return
		}
		if p.Validate() != nil || !bytes.Equal(p.AppendTo(nil), b) {
			t.Errorf("%q was accepted as %+v", b, p)
		}
	})
}

func TestTriggerDue(t *testing.T) {
	full := func(mib int64) Point { return Point{Files: []File{{Bytes: mib << 20}}} }
	var tr Trigger
	tr.EnsureDefaults()
	for _, c := range []struct {
		name    string
		mib     int64
		entries uint64
		last    Point
		want    bool
	}{
		{"nothing logged", 0, 0, Point{}, false},
		{"enough bytes, first point", 64, 100_000, Point{}, true},
		{"few but large entries", 640, 99_999, Point{}, false},
		{"many small entries", 63, 10_000_000, Point{}, false},
		{"small full file", 64, 100_000, full(256), true},
		{"quarter of a large one not reached", 249, 1_000_000, full(1000), false},
		{"quarter of a large one reached", 250, 1_000_000, full(1000), true},
	} {
		if got := tr.Due(c.mib<<20, c.entries, c.last); got != c.want {
			t.Errorf("%s: due = %v", c.name, got)
		}
	}
}

func TestNeedFull(t *testing.T) {
	chain := func(full int64, deltas ...int64) Point {
		p := Point{Files: []File{{Bytes: full}}}
		for _, d := range deltas {
			p.Files = append(p.Files, File{Bytes: d, Delta: true})
		}
		return p
	}
	for _, c := range []struct {
		name string
		p    Point
		want bool
	}{
		{"no point yet", Point{}, true},
		{"only a full one", chain(100), false},
		{"deltas of half", chain(100, 30, 20), false},
		{"deltas of more than half", chain(100, 30, 21), true},
		{"as many as may be merged", chain(1000, make([]int64, maxChain-2)...), false},
		{"too many to merge", chain(1000, make([]int64, maxChain-1)...), true},
	} {
		if got := NeedFull(c.p); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	if maxChain >= MaxFiles {
		t.Error("a chain may grow beyond what a point can carry")
	}
}
