package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"testing"

	"kvd/kv"
)

// Whatever a decoder accepts, encoding gives bytes that decode to the same again: encode∘decode is the
// identity on the encoder's image. (The input itself may differ: a boolean of 2, bytes behind the record.)
func checkRecord(t *testing.T, body []byte, mk func() Record) {
	t.Helper()
	rec := mk()
	if Decode(body, rec) != nil {
		return
	}
	one := rec.AppendTo(nil)
	if len(one) > len(body) {
		// A list that was read as empty or a flag that was not there may not grow the record.
		if _, ok := rec.(*WhoAmIResponse); !ok {
			t.Fatalf("%T: %d bytes decode to a record of %d", rec, len(body), len(one))
		}
	}
	back := mk()
	if err := Decode(one, back); err != nil {
		t.Fatalf("%T: own encoding does not decode: %v", rec, err)
	}
	if two := back.AppendTo(nil); !bytes.Equal(one, two) {
		t.Fatalf("%T: %x becomes %x", rec, one, two)
	}
}

// checkWalk compares the walk over a setWatches with its record.
func checkWalk(t *testing.T, op Op, body []byte) {
	t.Helper()
	var q SetWatches2Request
	var err error
	if op == OpSetWatches {
		err = Decode(body, &q.SetWatchesRequest)
	} else {
		err = Decode(body, &q)
	}
	if _, walkErr := WalkWatches(op, body, nil); (walkErr != nil) != (err != nil) {
		t.Fatalf("%v: the walk says %v, the record %v", op, walkErr, err)
	}
	if err != nil {
		return
	}
	lists := [5][]string{}
	relative, _ := WalkWatches(op, body, func(list int, path string) bool {
		lists[list] = append(lists[list], path)
		return true
	})
	for i, want := range [][]string{q.Data, q.Exist, q.Child, q.Persistent, q.Recursive} {
		if !slices.Equal(lists[i], want) {
			t.Fatalf("%v: list %d is %q, want %q", op, i, lists[i], want)
		}
	}
	if relative != q.Relative {
		t.Fatalf("relative zxid %d, want %d", relative, q.Relative)
	}
}

func sortedOps() []Op {
	var ops []Op
	for op := range opTable {
		ops = append(ops, op)
	}
	slices.Sort(ops)
	return ops
}

func FuzzRecords(f *testing.F) {
	for _, op := range sortedOps() {
		if rec := op.NewRequest(); rec != nil {
			f.Add(int32(op), rec.AppendTo(nil))
			f.Add(int32(op), op.NewResponse().AppendTo(nil))
		}
	}
	f.Add(int32(OpCreate), (&CreateRequest{"/a", nil, []kv.ACL{{Perms: 31, Scheme: "world", ID: "anyone"}}, 2}).AppendTo(nil))
	f.Add(int32(OpSetWatches2), (&SetWatches2Request{SetWatchesRequest{7, []string{"/a"}, []string{""}, nil}, []string{"/p"}, []string{"/r", "/s"}}).AppendTo(nil))
	f.Add(int32(OpSetWatches), (&SetWatchesRequest{7, []string{"/a", "/b"}, nil, []string{""}}).AppendTo(nil))
	f.Fuzz(func(t *testing.T, op int32, body []byte) {
		if rec := Op(op).NewRequest(); rec != nil {
			checkRecord(t, body, Op(op).NewRequest)
			checkRecord(t, body, Op(op).NewResponse)
		}
		checkWalk(t, OpSetWatches, body)
		checkWalk(t, OpSetWatches2, body)
		if q := new(PathWatchRequest); Decode(body, q) == nil && TouchesWatches(OpGetData, body) != q.Watch {
			t.Fatalf("TouchesWatches says %v of %+v", !q.Watch, q)
		}
		checkRecord(t, body, func() Record { return new(RequestHeader) })
		checkRecord(t, body, func() Record { return new(ReplyHeader) })
		checkRecord(t, body, func() Record { return new(WatcherEvent) })
	})
}

func FuzzRequest(f *testing.F) {
	acl := []kv.ACL{{Perms: 31, Scheme: "world", ID: "anyone"}}
	multi := AppendMultiOp(nil, OpCreate, &CreateRequest{"/a", []byte("x"), acl, 1})
	multi = AppendMultiOp(multi, OpSetData, &SetDataRequest{"/a", nil, -1})
	multi = AppendMultiOp(multi, OpCheck, &PathVersionRequest{"/a", 3})
	multi = AppendMultiEnd(AppendMultiOp(multi, OpCreateTTL, &CreateTTLRequest{CreateRequest{"/a", nil, acl, 5}, 9}))
	f.Add(int32(OpMulti), multi)
	f.Add(int32(OpMulti), AppendMultiEnd(nil))
	f.Add(int32(OpSetData), (&SetDataRequest{"/a", []byte("x"), 4}).AppendTo(nil))
	f.Add(int32(OpSetACL), (&SetACLRequest{"/a", acl, 4}).AppendTo(nil))
	f.Add(int32(OpSetACL), (&SetACLRequest{"/a", []kv.ACL{{Perms: 1, Scheme: "world", ID: kv.NullID}}, 4}).AppendTo(nil))
	var sets []byte
	for range 20 {
		sets = AppendMultiOp(sets, OpSetData, &SetDataRequest{"/", nil, -1})
	}
	f.Add(int32(OpMulti), AppendMultiEnd(sets))
	f.Fuzz(func(t *testing.T, op int32, body []byte) {
		// A slice with old contents must not shine through.
		req := kv.Request{Path: "old", Data: []byte("old"), Ops: []kv.Request{{Path: "old", ACL: acl, Data: []byte("old")}}}
		if DecodeRequest(Op(op), body, &req) != nil {
			return
		}
		if n := ReplyBound(Op(op), body); n > MaxReplyGrowth*len(body)+ReplySlack {
			t.Fatalf("%d bytes may be answered with %d", len(body), n)
		}
		one := AppendRequest(nil, &req)
		if len(one) > len(body) {
			t.Fatalf("%d bytes decode to a request of %d", len(body), len(one))
		}
		if cap(req.Ops) > 1+len(body)/8 {
			t.Fatalf("%d bytes make room for %d operations", len(body), cap(req.Ops))
		}
		var back kv.Request
		if err := DecodeRequest(Op(op), one, &back); err != nil {
			t.Fatalf("own encoding does not decode: %v", err)
		}
		if two := AppendRequest(nil, &back); !bytes.Equal(one, two) {
			t.Fatalf("%x becomes %x", one, two)
		}
	})
}

func FuzzMultiResults(f *testing.F) {
	f.Add(AppendMultiEnd(nil))
	f.Add(AppendMultiEnd(AppendMultiError(AppendMultiError(nil, 0), -101)))
	f.Add(AppendMultiEnd(AppendMultiResult(AppendMultiResult(nil, OpCreate2, "/a", &kv.Stat{}), OpDelete, "", nil)))
	f.Fuzz(func(t *testing.T, body []byte) {
		if res, err := DecodeMultiResults(body, nil); err == nil {
			one := AppendMultiResults(nil, res)
			back, err := DecodeMultiResults(one, nil)
			if err != nil {
				t.Fatalf("own encoding does not decode: %v", err)
			}
			if two := AppendMultiResults(nil, back); !bytes.Equal(one, two) {
				t.Fatalf("%x becomes %x", one, two)
			}
		}
		if ops, _, err := DecodeMultiRead(body, nil); err == nil {
			one := AppendMultiRead(nil, ops)
			if back, _, err := DecodeMultiRead(one, nil); err != nil || !slices.Equal(back, ops) {
				t.Fatalf("%+v becomes %+v, %v", ops, back, err)
			}
		}
	})
}

// pieces hands out data in reads of changing sizes.
type pieces struct {
	data []byte
	step []byte
	i    int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.data) == 0 {
		return 0, io.EOF
	}
	n := 1
	if len(p.step) > 0 {
		n = 1 + int(p.step[p.i%len(p.step)])
		p.i++
	}
	n = copy(b, p.data[:min(n, len(p.data))])
	p.data = p.data[n:]
	return n, nil
}

// The stream cut anywhere gives the frames of the naive cut, kept frames stay as they were, and memory
// follows what arrived.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 7, 0, 0, 0, 0, 0, 0, 0, 2, 1, 2}, []byte{0, 3}, uint16(5))
	f.Add([]byte("ruok"), []byte{1}, uint16(1000))
	f.Add(bytes.Repeat([]byte{0, 0, 0, 3, 1, 2, 3}, 3000), []byte{255, 255, 255}, uint16(3))
	f.Fuzz(func(t *testing.T, stream, step []byte, limit uint16) {
		fr := NewFrameReader(&pieces{data: stream, step: step}, int(limit))
		var kept, want [][]byte
		for i := 0; ; i++ {
			body, err := fr.Next()
			var naive []byte
			var wantErr error
			switch n := 0; {
			case len(stream) == 0:
				wantErr = io.EOF
			case len(stream) < 4:
				wantErr = io.ErrUnexpectedEOF
			default:
				n = int(int32(binary.BigEndian.Uint32(stream)))
				if n < 0 || n > int(limit) {
					wantErr = ErrFrameLength
				} else if len(stream)-4 < n {
					wantErr = io.ErrUnexpectedEOF
				} else {
					naive, stream = stream[4:4+n], stream[4+n:]
				}
			}
			if !errors.Is(err, wantErr) {
				t.Fatalf("frame %d: %v, want %v", i, err, wantErr)
			}
			if err != nil {
				break
			}
			if !bytes.Equal(body, naive) {
				t.Fatalf("frame %d is %x, want %x", i, body, naive)
			}
			if i%3 == 0 {
				fr.Keep()
				kept, want = append(kept, body), append(want, bytes.Clone(body))
			}
			if len(fr.buf) > 2*maxChunkBytes+2*int(limit) {
				t.Fatalf("buffer of %d bytes with a limit of %d", len(fr.buf), limit)
			}
		}
		for i := range kept {
			if !bytes.Equal(kept[i], want[i]) {
				t.Fatalf("kept frame %d was overwritten", i)
			}
		}
	})
}

func FuzzSrvr(f *testing.F) {
	f.Add(AppendSrvr(nil, &ServerStats{Serving: true, Version: "3.9.5-kvd.1", Mode: ModeLeader, KvdVersion: "1", Members: []MemberAddr{{1, "h:1", true}}}))
	f.Add(AppendSrvr(nil, &ServerStats{KvdVersion: "1", Pid: 5}))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := ParseSrvr(text)
		if err == nil && s.KvdVersion != "" {
			if _, err := ParseSrvr(AppendSrvr(nil, &s)); err != nil {
				t.Fatalf("own text does not parse: %v", err)
			}
		}
	})
}
