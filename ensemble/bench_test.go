package ensemble

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"kvd/kv/client"
)

// load is 16 connections with 16 calls outstanding each, over TCP, on three members in this process. cpu-us/op is user
// and system time of the whole process, clients included, for each call.
func load(b *testing.B, call func(ctx context.Context, c *client.Client, path string) error) {
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	tr := startTrio(b, nil)
	tr.serving(ctx, 0, 1, 2)
	const conns, depth = 16, 16
	clients := make([]*client.Client, conns)
	for i := range clients {
		c, err := client.Dial(ctx, tr.peers[i%3].ClientAddr)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		clients[i] = c
		for j := range depth {
			write(b, ctx, c, fmt.Sprintf("/n%d-%d", i, j))
		}
	}
	left := make(chan struct{}, b.N)
	for range b.N {
		left <- struct{}{}
	}
	close(left)
	var before, after syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	b.ResetTimer()
	var wg sync.WaitGroup
	for i := range conns {
		for j := range depth {
			wg.Go(func() {
				path := fmt.Sprintf("/n%d-%d", i, j)
				for range left {
					if err := call(ctx, clients[i], path); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	b.StopTimer()
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	cpu := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
	b.ReportMetric(float64(cpu)/1e3/float64(b.N), "cpu-us/op")
}

// BenchmarkWrites is load with 128-byte setData.
func BenchmarkWrites(b *testing.B) {
	data := make([]byte, 128)
	load(b, func(ctx context.Context, c *client.Client, path string) error {
		_, err := c.Set(ctx, path, data, -1)
		return err
	})
}

// BenchmarkReads is load with getData.
func BenchmarkReads(b *testing.B) {
	load(b, func(ctx context.Context, c *client.Client, path string) error {
		_, _, err := c.Get(ctx, path)
		return err
	})
}
