package ensemble

import (
	"testing"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// benchPipelined answers batches of 64 equal requests over one TCP connection: what the read path costs, and whether it
// allocates.
func benchPipelined(b *testing.B, op wire.Op, rec wire.Record) {
	_, addr := startSingle(b, nil)
	r := dialRaw(b, addr)
	r.session()
	r.send(request(1, wire.OpCreate, record(&wire.CreateRequest{Path: "/bench", Data: make([]byte, 128), ACL: openACL})))
	r.wantReply(1, kv.CodeOK)
	for i := range 8 {
		r.send(createRequest(1, "/bench/child-"+string(rune('a'+i)), 0))
		r.wantReply(1, kv.CodeOK)
	}
	var batch []byte
	const each = 64
	for range each {
		batch = append(batch, request(1, op, record(rec))...)
	}
	_ = r.nc.SetDeadline(time.Time{})
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%each != 0 {
			continue
		}
		r.send(batch)
		for range each {
			if _, err := r.fr.Next(); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func BenchmarkAnswerGetData(b *testing.B) {
	benchPipelined(b, wire.OpGetData, &wire.PathWatchRequest{Path: "/bench"})
}

func BenchmarkAnswerExists(b *testing.B) {
	benchPipelined(b, wire.OpExists, &wire.PathWatchRequest{Path: "/bench"})
}

func BenchmarkAnswerGetChildren(b *testing.B) {
	benchPipelined(b, wire.OpGetChildren2, &wire.PathWatchRequest{Path: "/bench"})
}
