package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cespare/xxhash/v2"
	bolt "go.etcd.io/bbolt"

	"kvd/kv"
)

func openDir(t testing.TB, path string, o Options) *Dir {
	t.Helper()
	d, err := OpenDir(path, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func dirRig(t testing.TB) *rig {
	path := t.TempDir()
	d := openDir(t, path, Options{SyncBytes: 1 << 20})
	names := func() []string { return list(t, path) }
	return &rig{
		Store: d, names: names, reopen: func() Store { return openDir(t, path, Options{}) },
		flip:   func(name string, off int64) { flip(t, filepath.Join(path, name), off) },
		remove: func(name string) { _ = os.Remove(filepath.Join(path, name)) },
	}
}

// list returns every file of the directory, so that leftovers are seen too.
func list(t testing.TB, path string) []string {
	entries, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func flip(t testing.TB, path string, off int64) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], off); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b[:], off); err != nil {
		t.Fatal(err)
	}
}

// S23, for own snapshots and received ones: the process dies between any two steps, with what was not synced
// cut off or kept. After a restart the point that was in charge loads, the interrupted one either loads
// entirely or is gone after Retain, and no leftover remains.
func TestCrashBetweenAnyTwoSteps(t *testing.T) {
	before, after := sampleContent(), sampleContent()
	after["\x01/new"] = "n"
	src := dirRig(t)
	incoming := mustFull(t, src, 20, after)
	write := func(d *Dir, prev Point) (Point, error) {
		return d.WriteDelta(context.Background(), Meta{Zxid: 20}, after.since(before), prev)
	}
	receive := func(d *Dir, _ Point) (Point, error) {
		r, err := d.Receive(incoming)
		if err != nil {
			return Point{}, err
		}
		transfer(t, src, incoming, r, 1<<16, 1<<40)
		return incoming, r.Commit()
	}
	for _, c := range []struct {
		name  string
		steps []string
		run   func(*Dir, Point) (Point, error)
	}{
		{"own", []string{"created", "written", "synced", "renamed", "directory synced"}, write},
		{"received", []string{"received", "received file synced", "renamed", "directory synced"}, receive},
	} {
		for _, step := range c.steps {
			for _, lose := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/lose=%v", c.name, step, lose), func(t *testing.T) {
					path := t.TempDir()
					old := mustFull(t, openDir(t, path, Options{}), 10, before)
					reached := false
					d := openDir(t, path, Options{crash: func(at string) error {
						if at != step {
							return nil
						}
						reached = true
						return errCrash
					}})
					if _, err := c.run(d, old); !errors.Is(err, errCrash) || !reached {
						t.Fatalf("step %q: %v", step, err)
					}
					unsynced := step == "created" || step == "written" || step == "received"
					for _, name := range list(t, path) {
						if name == old.Files[0].Name || !lose {
							continue
						}
						full := filepath.Join(path, name)
						switch {
						case unsynced: // half of it reached the disk
							info, err := os.Stat(full)
							if err != nil {
								t.Fatal(err)
							}
							if err := os.Truncate(full, info.Size()/2); err != nil {
								t.Fatal(err)
							}
						case step == "renamed": // the new name did not
							tmp := strings.Replace(writePattern, "*", "1", 1)
							if c.name == "received" {
								tmp = name + receiveSuffix
							}
							if err := os.Rename(full, filepath.Join(path, tmp)); err != nil {
								t.Fatal(err)
							}
						}
					}
					d = openDir(t, path, Options{})
					same(t, loaded(t, d, old), before)
					for _, name := range list(t, path) {
						if strings.HasSuffix(name, ".tmp") {
							t.Errorf("leftover %s after OpenDir", name)
						}
					}
					p, err := c.run(d, old) // the caller simply tries again
					if err != nil {
						t.Fatal(err)
					}
					same(t, loaded(t, d, p), after)
					if err := d.Retain([]Point{p}); err != nil {
						t.Fatal(err)
					}
					var want []string
					for _, f := range p.Files {
						want = append(want, f.Name)
					}
					slices.Sort(want)
					if got := list(t, path); !slices.Equal(got, want) {
						t.Errorf("left %v, want %v", got, want)
					}
				})
			}
		}
	}
}

// Every class of offset: bbolt's meta pages, page heads, elements, keys, values, free space, the last byte;
// each flipped, and the file cut there.
func TestFlipsAndTruncationsAreTyped(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, path, Options{})
	c := content{}
	for i := range 2000 {
		c[fmt.Sprintf("\x01/node-%04d", i)] = fmt.Sprint(i)
	}
	p := mustFull(t, d, 10, c)
	f := p.Files[0]
	name := filepath.Join(path, f.Name)
	sound, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var offsets []int64
	for page := int64(0); page < f.Bytes; page += pageBytes {
		for _, in := range []int64{0, 8, 12, 16, 20, 24, 40, 100, 1000, 4000, pageBytes - 1} {
			offsets = append(offsets, page+in)
		}
	}
	check := func(what string, off int64) {
		t.Helper()
		err := d.Load(p, func(Record) error { t.Fatal("yielded"); return nil })
		var damage *DamageError
		if !errors.As(err, &damage) || damage.File != f.Name || damage.Offset > off {
			t.Fatalf("%s at %d: %v", what, off, err)
		}
	}
	for _, off := range offsets {
		flip(t, name, off)
		check("flip", off)
		flip(t, name, off)
	}
	for _, off := range offsets {
		if err := os.WriteFile(name, sound[:off], 0o644); err != nil {
			t.Fatal(err)
		}
		check("cut", off)
	}
	if err := os.WriteFile(name, append(slices.Clone(sound), 0), 0o644); err != nil {
		t.Fatal(err)
	}
	check("a byte too many", f.Bytes)
	if err := os.WriteFile(name, sound, 0o644); err != nil {
		t.Fatal(err)
	}
	same(t, loaded(t, d, p), c)
}

// A file whose hash is right but whose content is not what we write (made by a broken member, or the disk fails
// under the mapping) is an error, never a crash: the contents are altered and the point is made to fit.
func TestWrongContentWithRightHash(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, path, Options{})
	c := content{}
	for i := range 500 {
		c[fmt.Sprintf("\x01/node-%04d", i)] = strings.Repeat("v", i)
	}
	p := mustFull(t, d, 10, c)
	sound, err := os.ReadFile(filepath.Join(path, p.Files[0].Name))
	if err != nil {
		t.Fatal(err)
	}
	load := func(b []byte) (int, error) {
		hash := xxhash.Sum64(b)
		f := File{Name: fileName(10, hash, false), Bytes: int64(len(b)), Hash: hash}
		if err := os.WriteFile(filepath.Join(path, f.Name), b, 0o644); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(filepath.Join(path, f.Name))
		n := 0
		err := d.Load(Point{Meta: p.Meta, Files: []File{f}}, func(Record) error { n++; return nil })
		if err != nil && !errors.Is(err, ErrDamaged) {
			t.Fatalf("untyped: %v", err)
		}
		return n, err
	}
	if n, err := load(sound); n != len(c) || err != nil {
		t.Fatal(n, err)
	}
	mustFail := map[string][]byte{
		"not bbolt":     []byte(strings.Repeat("kvd snapshot? no.", 1000)),
		"one byte":      {1},
		"meta only":     sound[:2*pageBytes],
		"second half 0": append(slices.Clone(sound[:len(sound)/2]), make([]byte, len(sound)-len(sound)/2)...),
		"cut in half":   sound[:len(sound)/2/pageBytes*pageBytes],
	}
	for name, b := range mustFail {
		if _, err := load(b); err == nil {
			t.Errorf("%s: loaded", name)
		}
	}
	noticed := 0
	for off := 2 * pageBytes; off < len(sound); off += 211 { // page heads, element tables, keys, values
		b := slices.Clone(sound)
		b[off] ^= 0x80
		if _, err := load(b); err != nil {
			noticed++
		}
	}
	if noticed == 0 {
		t.Error("no alteration was noticed at all")
	}
}

// bbolt itself finds nothing wrong with our files, and they say what they are to whoever opens them.
func TestFilesAreSoundBbolt(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, path, Options{})
	full, err := d.WriteFull(context.Background(), Meta{Zxid: kv.MakeZxid(1, 5), Chain: 6, Digest: 7}, manyRecords(50_000))
	if err != nil {
		t.Fatal(err)
	}
	p, err := d.WriteDelta(context.Background(), Meta{Zxid: kv.MakeZxid(1, 9), Chain: 8, Digest: 9}, SourceFunc(func(yield func(Record) error) error {
		return errors.Join(yield(Record{Table: 1, Key: []byte("/a"), Value: []byte("new")}), yield(Record{Table: 1, Key: []byte("/gone")}))
	}), full)
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range p.Files {
		db, err := bolt.Open(filepath.Join(path, f.Name), 0, &bolt.Options{ReadOnly: true, PreLoadFreelist: true})
		if err != nil {
			t.Fatal(err)
		}
		err = db.View(func(tx *bolt.Tx) error {
			for err := range tx.Check() {
				t.Errorf("%s: %v", f.Name, err)
			}
			want := map[string]uint64{"format": 1, "kind": uint64(i), "complete": 1, "zxid": []uint64{1<<32 | 5, 1<<32 | 9}[i],
				"chain": []uint64{6, 8}[i], "digest": []uint64{7, 9}[i], "records": []uint64{50_000, 1}[i], "deleted": uint64(i), "prev-hash": []uint64{0, full.Files[0].Hash}[i]}
			for key, value := range want {
				if got, ok := metaNumber(tx.Bucket([]byte("meta")), []byte(key)); !ok || got != value {
					t.Errorf("%s: %s is %d, want %d", f.Name, key, got, value)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		_ = db.Close()
	}
}

// A directory written by the first release of the format is read by every later build; equal content gives
// equal bytes.
func TestGoldenFiles(t *testing.T) {
	c := sampleContent()
	delete(c, "\x01/big")
	delete(c, "\x05"+longText)
	next := maps.Clone(c)
	delete(next, "\x01/a")
	next["\x01/c"] = "added"
	path := t.TempDir()
	d := openDir(t, path, Options{})
	full := mustFull(t, d, kv.MakeZxid(3, 4), c)
	p, err := d.WriteDelta(context.Background(), Meta{Zxid: kv.MakeZxid(3, 9), Chain: 1, Digest: 2}, next.since(c), full)
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "format1")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.RemoveAll(golden); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(golden, os.DirFS(path)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(golden, "point"), p.AppendTo(nil), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(filepath.Join(golden, "point"))
	if err != nil {
		t.Fatal(err)
	}
	old, err := DecodePoint(b)
	if err != nil {
		t.Fatal(err)
	}
	copied := t.TempDir()
	if err := os.CopyFS(copied, os.DirFS(golden)); err != nil {
		t.Fatal(err)
	}
	same(t, loaded(t, openDir(t, copied, Options{}), old), next)
	if !old.Equal(p) {
		t.Errorf("the same content makes other files now:\n%+v\n%+v", p, old)
	}
}

// A newer format is refused by name.
func TestNewerFormatIsRefused(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, path, Options{})
	p := mustFull(t, d, 10, content{"\x01/": ""})
	name := filepath.Join(path, p.Files[0].Name)
	db, err := bolt.Open(name, 0o644, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketMeta).Put(keyFormat, []byte{0, 0, 0, 0, 0, 0, 0, 2})
	})
	if err != nil || db.Close() != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	f := File{Bytes: int64(len(b)), Hash: xxhash.Sum64(b)}
	f.Name = fileName(10, f.Hash, false)
	if err := os.Rename(name, filepath.Join(path, f.Name)); err != nil {
		t.Fatal(err)
	}
	p.Files[0] = f
	if err := d.Load(p, nil); err == nil || !strings.Contains(err.Error(), "format 2, this build reads 1") {
		t.Errorf("%v", err)
	}
}

// 100,000 records: round trip, several transactions and syncs, and the memory that Load leaves mapped does not
// grow with the file.
func TestHundredThousandRecords(t *testing.T) {
	d := openDir(t, t.TempDir(), Options{SyncBytes: 4 << 20})
	p, err := d.WriteFull(context.Background(), Meta{Zxid: 1}, manyRecords(100_000))
	if err != nil {
		t.Fatal(err)
	}
	want := make(chan Record)
	go func() {
		defer close(want)
		_ = manyRecords(100_000).Records(func(r Record) error {
			want <- Record{Table: r.Table, Key: slices.Clone(r.Key), Value: slices.Clone(r.Value)}
			return nil
		})
	}()
	n := 0
	err = d.Load(p, func(r Record) error {
		w := <-want
		if r.Table != w.Table || string(r.Key) != string(w.Key) || string(r.Value) != string(w.Value) {
			return fmt.Errorf("record %d is %q", n, r.Key)
		}
		n++
		return nil
	})
	if err != nil || n != 100_000 {
		t.Fatal(n, err)
	}
	if limit := int64(100_000 * 220); p.FullBytes() > limit {
		t.Errorf("%d bytes for 100,000 records of 170", p.FullBytes())
	}
}

func TestOneWriterAtATime(t *testing.T) {
	d := openDir(t, t.TempDir(), Options{})
	_, err := d.WriteFull(context.Background(), Meta{Zxid: 1}, SourceFunc(func(func(Record) error) error {
		_, err := d.WriteFull(context.Background(), Meta{Zxid: 2}, content{})
		if !errors.Is(err, ErrBusy) {
			t.Errorf("a second writer: %v", err)
		}
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
}

func TestPauseLeavesTheShare(t *testing.T) {
	for _, c := range []struct {
		work  time.Duration
		share float64
		want  time.Duration
	}{{time.Second, 1, 0}, {time.Second, 0.5, time.Second}, {time.Second, 0.25, 3 * time.Second}, {0, 0.1, 0}} {
		if got := pause(c.work, c.share); got != c.want {
			t.Errorf("pause(%v, %v) = %v, want %v", c.work, c.share, got, c.want)
		}
	}
	if _, err := OpenDir(t.TempDir(), Options{CPUShare: 1.5}); err == nil {
		t.Error("a share above 1 is accepted")
	}
}

// The writer's sleep takes as long as asked, in virtual time, and ends at once with the context.
func TestRestEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if err := rest(t.Context(), time.Hour); err != nil || time.Since(start) != time.Hour {
			t.Errorf("rested %v, %v", time.Since(start), err)
		}
		boom := errors.New("boom")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(boom) })
		start = time.Now()
		if err := rest(ctx, time.Hour); !errors.Is(err, boom) || time.Since(start) != time.Minute {
			t.Errorf("rested %v, %v", time.Since(start), err)
		}
		if err := rest(ctx, 0); !errors.Is(err, boom) {
			t.Errorf("no rest: %v", err)
		}
	})
}

// A failed sync is final for its file: nothing of it is used by the next attempt, which writes or fetches all
// of it again.
func TestFailedSyncIsFinal(t *testing.T) {
	src := dirRig(t)
	p := mustFull(t, src, 10, sampleContent())
	boom := errors.New("boom")
	for _, at := range []int{1, 2} { // while chunks arrive, and in Commit
		path := t.TempDir()
		syncs := 0
		d := openDir(t, path, Options{SyncBytes: p.FullBytes()*2/3 + 1, sync: func(f *os.File) error {
			if syncs++; syncs == at {
				return boom
			}
			return f.Sync()
		}})
		r, err := d.Receive(p)
		if err != nil {
			t.Fatal(err)
		}
		in, err := src.OpenFile(p.Files[0].Name)
		if err != nil {
			t.Fatal(err)
		}
		all := make([]byte, p.FullBytes())
		if _, err := in.ReadAt(all, 0); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		_ = in.Close()
		cut := len(all) * 3 / 4
		err = r.WriteChunk(0, 0, all[:cut], ChunkHash(all[:cut]))
		if at == 2 {
			if err == nil {
				err = r.WriteChunk(0, int64(cut), all[cut:], ChunkHash(all[cut:]))
			}
			if err != nil {
				t.Fatal(err)
			}
			err = r.Commit()
		}
		if !errors.Is(err, boom) {
			t.Fatalf("sync %d: %v", at, err)
		}
		if r.Commit() == nil {
			t.Error("committed after a failed sync")
		}
		if left := list(t, path); len(left) != 0 {
			t.Errorf("sync %d left %v", at, left)
		}
		if r, err = d.Receive(p); err != nil || r.Have()[0] != 0 {
			t.Fatalf("sync %d: the next attempt has %v, %v", at, r.Have(), err)
		}
		transfer(t, src, p, r, 1<<20, 1<<40)
		if err := r.Commit(); err != nil {
			t.Fatal(err)
		}
		same(t, loaded(t, d, p), sampleContent())
	}
	failing := openDir(t, t.TempDir(), Options{sync: func(*os.File) error { return boom }})
	if _, err := failing.WriteFull(context.Background(), Meta{Zxid: 1}, sampleContent()); !errors.Is(err, boom) {
		t.Errorf("written without a sync: %v", err)
	}
	if left := list(t, failing.Path()); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}

// OpenFile gives no other file than a snapshot's.
func TestOpenFileStaysInside(t *testing.T) {
	d := openDir(t, t.TempDir(), Options{})
	for _, p := range hostilePoints() {
		for _, f := range p.Files {
			if r, err := d.OpenFile(f.Name); err == nil {
				b, _ := io.ReadAll(io.NewSectionReader(r, 0, 10))
				t.Errorf("opened %q: %q", f.Name, b)
			}
		}
	}
}
