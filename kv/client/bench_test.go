package client_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"kvd/kv"
	"kvd/kv/client"
	"kvd/kv/wire"
)

// asEcho in the environment makes this test binary a server that does nothing but answer.
const asEcho = "KVD_TEST_AS_ECHO"

// echo answers every handshake and every request at once, flushing what has gathered. It ends with its stdin.
func echo() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(l.Addr())
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		os.Exit(0)
	}()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go echoConn(c)
	}
}

func echoConn(c net.Conn) {
	defer c.Close()
	frames := wire.NewFrameReader(c, wire.DefaultMaxFrameBytes)
	if _, err := frames.Next(); err != nil {
		return
	}
	out, mark := wire.BeginFrame(nil)
	out = wire.EndFrame((&wire.ConnectResponse{TimeoutMs: 10_000, Session: 1, HasReadOnly: true}).AppendTo(out), mark)
	var stat kv.Stat
	zxid := int64(0)
	for {
		if !frames.Buffered() {
			if _, err := c.Write(out); err != nil {
				return
			}
			out = out[:0]
		}
		frame, err := frames.Next()
		if err != nil {
			return
		}
		h, _, err := wire.SplitRequest(frame)
		if err != nil {
			return
		}
		zxid++
		out, mark = wire.BeginFrame(out)
		out = (&wire.ReplyHeader{Xid: h.Xid, Zxid: zxid}).AppendTo(out)
		if h.Op == wire.OpSetData {
			out = wire.AppendStat(out, &stat)
		}
		out = wire.EndFrame(out, mark)
	}
}

func startEcho(b testing.TB) string {
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), asEcho+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(addr)
}

// cpu is what this process has used.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// 16 connections, each with 16 writes of 128 bytes outstanding: the client's CPU per write, system calls
// included, which the load generator's share of the machine follows.
func BenchmarkPipelinedSet(b *testing.B) {
	for _, mode := range []string{"callbacks", "goroutines"} {
		b.Run(mode, func(b *testing.B) {
			addr := startEcho(b)
			const conns, window = 16, 16
			var clients []*client.Client
			for range conns {
				c, err := client.Dial(b.Context(), addr)
				if err != nil {
					b.Fatal(err)
				}
				defer c.Close()
				clients = append(clients, c)
			}
			data := make([]byte, 128)
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			before := cpu(b)
			b.ReportAllocs()
			b.ResetTimer()
			for _, c := range clients {
				for range window {
					if mode == "goroutines" {
						wg.Go(func() {
							for left.Add(-1) >= 0 {
								if _, err := c.Set(b.Context(), "/bench/node", data, -1); err != nil {
									b.Error(err)
									return
								}
							}
						})
						continue
					}
					wg.Add(1)
					call := &client.Call{Op: wire.OpSetData, Path: "/bench/node", Data: data, Version: -1}
					call.Done = func(call *client.Call) {
						if call.Err != nil {
							b.Error(call.Err)
						}
						if left.Add(-1) < 0 {
							wg.Done()
						} else if err := c.Do(call); err != nil {
							b.Error(err)
						}
					}
					if err := c.Do(call); err != nil {
						b.Fatal(err)
					}
				}
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

// A pipelined write allocates nothing on the client's side, once the buffers have grown.
func TestPipelinedSetAllocatesNothing(t *testing.T) {
	c, err := client.Dial(context10(t), startEcho(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const calls = 64
	done := make(chan struct{}, calls)
	set := make([]*client.Call, calls)
	for i := range set {
		set[i] = &client.Call{Op: wire.OpSetData, Path: "/bench/node", Data: make([]byte, 128), Version: -1}
		set[i].Done = func(*client.Call) { done <- struct{}{} }
	}
	got := testing.AllocsPerRun(100, func() {
		for _, call := range set {
			if err := c.Do(call); err != nil {
				t.Fatal(err)
			}
		}
		for range set {
			<-done
		}
	})
	if got/calls > 0.1 {
		t.Errorf("%v allocations in %d writes", got, calls)
	}
	ctx := context10(t)
	data := make([]byte, 128)
	got = testing.AllocsPerRun(200, func() {
		if _, err := c.Set(ctx, "/bench/node", data, -1); err != nil {
			t.Fatal(err)
		}
	})
	if got > 1 {
		t.Errorf("%v allocations in a write that a goroutine waits for", got)
	}
}
