package replica

import (
	"bytes"
	"reflect"
	"testing"

	"kvd/kv"
)

// TestPayloadsSurviveTheWire encodes each payload and decodes it again; null and empty bodies stay apart.
func TestPayloadsSurviveTheWire(t *testing.T) {
	ops := []ClientOp{
		{Request: 1, Session: 2, Op: -11},
		{Request: 1<<64 - 1, Session: -1, Op: 5, Body: []byte{}, Auth: kv.Credentials("").With(kv.Identity{Scheme: "ip", ID: "::1"}), Local: true},
		{Request: 7, Session: 1 << 62, Op: 14, Body: bytes.Repeat([]byte("x"), 70_000)},
	}
	b := appendForwardHeader(nil, len(ops))
	size := 0
	for i := range ops {
		b = appendForwardOp(b, &ops[i])
		size += ops[i].size()
	}
	if len(b) > size+32 {
		t.Errorf("%d operations take %d bytes, accounted as %d", len(ops), len(b), size)
	}
	r := reader{b: b}
	if n := r.array(); n != 2+6*len(ops) {
		t.Fatalf("array of %d", n)
	}
	if k := r.uint32(); k != payloadForward {
		t.Fatalf("kind %d", k)
	}
	for n := r.uint32(); n > 0; n-- {
		if got, want := r.clientOp(), ops[len(ops)-int(n)]; !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if !r.done() {
		t.Error("bytes are left")
	}

	q := revalidation{request: 9, session: -5, password: [16]byte{1, 2, 3}, timeoutMs: 4000}
	r = reader{b: appendRevalidation(nil, &q)}
	if r.array(); r.uint32() != payloadRevalidate || r.revalidation() != q || !r.done() {
		t.Error("revalidation changed")
	}
	v := Revalidated{Request: 9, Session: -5, Validity: WrongPassword, TimeoutMs: 1, Claim: 1<<40 | 2, Fresh: kv.MakeZxid(3, 4)}
	r = reader{b: appendValidity(nil, &v)}
	if r.array(); r.uint32() != payloadValidity || r.validity() != v || !r.done() {
		t.Error("validity changed")
	}
	ts := []touch{{1, 100, 0}, {-1, 4000, 1<<32 | 7}}
	var got []touch
	if !eachTouch(appendTouches(nil, ts), func(x touch) { got = append(got, x) }) || !reflect.DeepEqual(got, ts) {
		t.Errorf("touches %v", got)
	}
	ms, pw, ok := decodeCreateSession(AppendCreateSession(nil, 1234, [16]byte{9}))
	if !ok || ms != 1234 || pw != [16]byte{9} {
		t.Error("createSession changed")
	}
}

// FuzzPayloads feeds arbitrary bytes to every decoder: none panics or allocates by what a header claims, and what is accepted
// is what would have been written.
func FuzzPayloads(f *testing.F) {
	op := ClientOp{Request: 1, Session: 2, Op: 5, Body: []byte("body")}
	f.Add(appendForwardOp(appendForwardHeader(nil, 1), &op))
	auth := ClientOp{Request: 2, Session: 9, Op: 1, Auth: kv.Credentials("").With(kv.Identity{Scheme: "digest", ID: "u:h"}), Local: true}
	f.Add(appendForwardOp(appendForwardHeader(nil, 1), &auth))
	f.Add(appendTouches(nil, []touch{{1, 2, 3}}))
	f.Add(appendRevalidation(nil, &revalidation{request: 3}))
	f.Add(appendValidity(nil, &Revalidated{Validity: Valid}))
	f.Add(AppendCreateSession(nil, 1, [16]byte{}))
	f.Fuzz(func(t *testing.T, b []byte) {
		eachTouch(b, func(touch) {})
		decodeCreateSession(b)
		r := reader{b: b}
		n, kind := r.array(), r.uint32()
		switch kind {
		case payloadForward:
			count := r.uint32()
			out := appendUint32(appendUint32(appendArray(nil, n), kind), count)
			for ; count > 0 && !r.bad; count-- {
				op := r.clientOp()
				out = appendForwardOp(out, &op)
			}
			if r.done() && !bytes.Equal(out, b) {
				t.Fatalf("%x decodes to %x", b, out)
			}
		case payloadRevalidate:
			if q := r.revalidation(); r.done() && n == 5 && !bytes.Equal(appendRevalidation(nil, &q), b) {
				t.Fatalf("%x decodes to %+v", b, q)
			}
		case payloadValidity:
			if v := r.validity(); r.done() && n == 6 && !bytes.Equal(appendValidity(nil, &v), b) {
				t.Fatalf("%x decodes to %+v", b, v)
			}
		}
	})
}
