package snapshot

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"

	"kvd/kv"
)

// manyRecords is a tree of n nodes: keys of about 40 bytes, values of about 130, as a million small nodes have.
func manyRecords(n int) Source {
	return SourceFunc(func(yield func(Record) error) error {
		key, value := make([]byte, 0, 64), make([]byte, 130)
		for i := range n {
			key = fmt.Appendf(key[:0], "/application/config/key-%016d", i)
			binary.BigEndian.PutUint64(value, uint64(i)*0x9e3779b97f4a7c15)
			if err := yield(Record{Table: 1, Key: key, Value: value}); err != nil {
				return err
			}
		}
		return nil
	})
}

// rss returns a line of /proc/self/status in MiB, 0 where there is none.
func rss(line string) float64 {
	b, _ := os.ReadFile("/proc/self/status")
	for _, l := range strings.Split(string(b), "\n") {
		if strings.HasPrefix(l, line+":") {
			var kb float64
			_, _ = fmt.Sscanf(strings.TrimSpace(l[len(line)+1:]), "%f", &kb)
			return kb / 1024
		}
	}
	return 0
}

func resetPeak() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }

const benchRecords = 1_000_000

func BenchmarkWriteFullMillion(b *testing.B) {
	d, err := OpenDir(b.TempDir(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	resetPeak()
	z := kv.MakeZxid(1, 0)
	for b.Loop() {
		z++
		p, err := d.WriteFull(context.Background(), Meta{Zxid: z}, manyRecords(benchRecords))
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(p.FullBytes())/1e6, "MB/file")
		if err := d.Retain(nil); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(rss("VmHWM"), "MiB-peak")
}

func BenchmarkLoadMillion(b *testing.B) {
	d, err := OpenDir(b.TempDir(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	p, err := d.WriteFull(context.Background(), Meta{Zxid: 1}, manyRecords(benchRecords))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	resetPeak()
	for b.Loop() {
		n := 0
		if err := d.Load(p, func(Record) error { n++; return nil }); err != nil || n != benchRecords {
			b.Fatal(n, err)
		}
	}
	b.ReportMetric(rss("VmHWM"), "MiB-peak")
}
