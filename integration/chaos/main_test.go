package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"kvd/integration/cluster"
	"kvd/kv/wire"
)

// TestPlanted: a run in which syncs are no-ops, and one in which some writes are acknowledged and never sent, must not
// pass; run returns an error if one does. Proxies do, so no privilege is needed.
func TestPlanted(t *testing.T) {
	if os.Getenv("KVD_INTEGRATION") == "later" {
		t.Skip("KVD_INTEGRATION=later: another run does this")
	}
	bins, err := cluster.Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []options{
		{plant: plantSync, only: "partition-minority,one-way", length: 10 * time.Second},
		{plant: plantWrite, only: "kill-follower", length: 3 * time.Second},
	} {
		t.Run(o.plant, func(t *testing.T) {
			o.members, o.writers, o.rate, o.seed, o.kvd = 3, 12, 1000, 1, bins.Kvd
			o.network, o.disk = "proxy", "none"
			if err := run(context.Background(), o); err != nil {
				t.Error(err)
			}
		})
	}
}

// A planted mistake is the only thing that a liar changes: everything else passes byte for byte, however it is cut up.
func TestLiarPassesTheRest(t *testing.T) {
	var sent, want []byte
	add := func(op wire.Op, path string, lie bool) {
		body := binary.BigEndian.AppendUint32(nil, 7)
		body = binary.BigEndian.AppendUint32(body, uint32(op))
		body = binary.BigEndian.AppendUint32(body, uint32(len(path)))
		body = append(body, path...)
		f := append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
		sent = append(sent, f...)
		if lie {
			f = append(f, 0)
			binary.BigEndian.PutUint32(f, uint32(len(body)+1))
			binary.BigEndian.PutUint32(f[8:], uint32(wire.OpExists))
		}
		want = append(want, f...)
	}
	add(wire.OpSync, "/greeting", false) // the first frame is the connect request, whatever it looks like
	add(wire.OpGetData, "/a", false)
	add(wire.OpSync, "/a", true)
	add(wire.OpSetData, "/history/groups/1-0", false)
	rng := rand.New(rand.NewPCG(1, 1))
	for range 50 {
		client, server := net.Pipe()
		l := &liar{Conn: client, plant: plantSync, lies: map[int32]string{}}
		got := make(chan []byte)
		go func() {
			all, _ := io.ReadAll(server)
			got <- all
		}()
		for rest := sent; len(rest) > 0; {
			n := 1 + rng.IntN(len(rest))
			if _, err := l.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		_ = client.Close()
		if all := <-got; !bytes.Equal(all, want) {
			t.Fatalf("sent\n%x\narrived\n%x\nwant\n%x", sent, all, want)
		}
	}
}

// Every kind comes before one comes again beyond its first, so that a short run has them all.
func TestBagBeginsWithEveryKind(t *testing.T) {
	for seed := range uint64(20) {
		all := bag(faults, rand.New(rand.NewPCG(seed, 1)))
		seen := map[string]bool{}
		for _, f := range all[:len(faults)] {
			seen[f.name] = true
		}
		if len(seen) != len(faults) {
			t.Fatalf("seed %d: the first %d faults are of %d kinds", seed, len(faults), len(seen))
		}
	}
}
