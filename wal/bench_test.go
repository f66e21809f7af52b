package wal

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"kvd/kv"
)

// BenchmarkAppend measures what a durable entry costs when n of them gather for one sync: wall time, and CPU
// time of the whole process (cpu-ns/entry, Pebble's background work included).
func BenchmarkAppend(b *testing.B) {
	for _, n := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("batch=%d", n), func(b *testing.B) {
			m, _ := openMember(b, b.TempDir(), Options{})
			defer m.close()
			m.form(1)
			h := newHistory()
			payload := make([]byte, 200)
			batch := make([]kv.Entry, n)
			b.ReportAllocs()
			b.ResetTimer()
			cpu := processCPU()
			before := m.log.Stats()
			for b.Loop() {
				for i := range batch {
					z := h.last + 1
					if h.last == 0 {
						z = kv.MakeZxid(1, 1)
					}
					h.chain = kv.ChainDigest(h.chain, z, payload)
					h.last = z
					batch[i] = kv.Entry{Zxid: z, Chain: h.chain, Payload: payload}
				}
				m.do(Write{Append: batch})
			}
			b.StopTimer()
			cpu = processCPU() - cpu
			s := m.log.Stats()
			entries := float64(s.Entries - before.Entries)
			b.ReportMetric(entries/b.Elapsed().Seconds(), "entries/s")
			b.ReportMetric(float64(cpu.Nanoseconds())/entries, "cpu-ns/entry")
			b.ReportMetric(float64((s.SyncTime-before.SyncTime).Microseconds())/float64(s.Batches-before.Batches), "µs/sync")
		})
	}
}

func processCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	runtime.KeepAlive(&u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
