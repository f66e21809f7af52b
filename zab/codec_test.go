package zab

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"runtime"
	"testing"
	"testing/quick"

	"kvd/kv"
)

// allMessages is one of each kind; the tests below fail if one is missing.
func allMessages() []Message {
	return []Message{
		&FollowerInfo{Accepted: 3, PromisedTo: 1 << 63, ConfigVersion: 7, Protocol: VersionRange{1, 2}, Format: VersionRange{3, 4}},
		&LeaderInfo{Epoch: 4, Incarnation: 5, ConfigVersion: 6, Levels: Levels{1, 2}, Protocol: VersionRange{1, 3}, Format: VersionRange{2, 4}},
		&AckEpoch{Epoch: 4, Current: 3, Last: kv.MakeZxid(3, 9), Chain: 1 << 60, Base: 5, AlreadyPromised: true, Unknown: true},
		&Diff{After: kv.MakeZxid(1, 2)}, &Trunc{To: 3, Chain: 4}, &Snap{Zxid: 5, Chain: 6}, &NeedSnapshot{Reason: "because"},
		&Proposal{Prev: 1, PrevChain: 2, Commit: 3, Entries: []kv.Entry{{Zxid: 4, Chain: 5, Payload: []byte("six")}, {Zxid: 7, Chain: 8, Payload: []byte{}}}},
		&Inform{Prev: 1, PrevChain: 2, Entries: []kv.Entry{{Zxid: 4, Chain: 5, Payload: bytes.Repeat([]byte{9}, 300)}}},
		&NewLeader{Epoch: 1, Last: 2, Chain: 3, Commit: 4}, &AckNewLeader{Epoch: 1, Last: 2}, &UpToDate{Epoch: 1, Commit: 2},
		&Ack{Epoch: 1, Zxid: 2}, &Commit{Epoch: 1, Zxid: 2}, &Ping{Epoch: 1, Probe: 2, Commit: 3, SnapshotTurn: true, DigestAt: 4, DivergedAt: 6, DivergedAfter: 5},
		&PingReply{Epoch: 1, Probe: 2, Applied: 3, OldestWriteMs: 4, FreeDisk: 1 << 40, WantSnapshot: true, SnapshotActive: true, DigestAt: 7, Digest: 1 << 63, Touched: []byte{1}},
		&Request{Payload: []byte("r")}, &Reply{Payload: []byte("s")}, &SyncRequest{ID: 1}, &SyncReply{ID: 1, Zxid: 2},
		&Resign{Epoch: 3}, &Refuse{Reason: "no", NotLeading: true}, &Received{Epoch: 1, Zxid: 2},
	}
}

// TestMessagesRoundTrip encodes and decodes each kind, and checks that a decoder neither accepts a cut message nor
// bytes behind one.
func TestMessagesRoundTrip(t *testing.T) {
	kinds := map[byte]bool{}
	for _, m := range allMessages() {
		b, err := AppendMessage([]byte("prefix"), m)
		if err != nil {
			t.Fatal(err)
		}
		b = b[len("prefix"):]
		kinds[b[0]] = true
		got, err := DecodeMessage(b)
		if err != nil {
			t.Fatalf("%T: %v", m, err)
		}
		if !reflect.DeepEqual(got, m) {
			t.Errorf("%T: got %+v, want %+v", m, got, m)
		}
		if b[0] == kindRequest || b[0] == kindReply || b[0] == kindPingReply {
			continue // end with opaque bytes: the frame says where they end
		}
		for i := range b {
			if _, err := DecodeMessage(b[:i]); err == nil {
				t.Errorf("%T cut to %d of %d bytes is accepted", m, i, len(b))
			}
		}
		if _, err := DecodeMessage(append(bytes.Clone(b), 0)); err == nil {
			t.Errorf("%T with a byte behind it is accepted", m)
		}
	}
	if len(kinds) != 23 {
		t.Errorf("%d kinds, want all 23", len(kinds))
	}
}

// TestMessageFormatIsStable pins the bytes: they are part of the format.
func TestMessageFormatIsStable(t *testing.T) {
	for _, tc := range []struct {
		m    Message
		want []byte
	}{
		{&Ack{Epoch: 3, Zxid: kv.MakeZxid(3, 7)}, []byte{13, 0x92, 3, 0xcf, 0, 0, 0, 3, 0, 0, 0, 7}},
		{&Refuse{Reason: "no"}, []byte{22, 0x92, 0xa2, 'n', 'o', 0xc2}},
		{&Proposal{Prev: 1, PrevChain: 2, Commit: 3, Entries: []kv.Entry{{Zxid: 4, Chain: 5, Payload: []byte("x")}}},
			[]byte{8, 5, 0x94, 1, 2, 3, 1, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 1, 'x'}},
	} {
		got, err := AppendMessage(nil, tc.m)
		if err != nil || !bytes.Equal(got, tc.want) {
			t.Errorf("%T: % x (%v), want % x", tc.m, got, err, tc.want)
		}
	}
}

// TestNewerMessageIsUnderstood: a newer version may append fields; an older one skips them.
func TestNewerMessageIsUnderstood(t *testing.T) {
	m, err := DecodeMessage([]byte{kindAck, 0x93, 1, 2, 0xa3, 'n', 'e', 'w'})
	if err != nil || *m.(*Ack) != (Ack{Epoch: 1, Zxid: 2}) {
		t.Errorf("got %v %v", m, err)
	}
}

func TestPayloadsAliasTheInput(t *testing.T) {
	b, _ := AppendMessage(nil, &Proposal{Entries: []kv.Entry{{Zxid: 1, Payload: []byte("abc")}}})
	m, err := DecodeMessage(b)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] = 'z'
	if got := string(m.(*Proposal).Entries[0].Payload); got != "abz" {
		t.Errorf("payload %q was copied", got)
	}
}

// TestEntriesRoundTrip is the entries' part with random content.
func TestEntriesRoundTrip(t *testing.T) {
	f := func(prev, chain uint64, zs []uint64, payloads [][]byte) bool {
		m := &Proposal{Prev: kv.Zxid(prev), PrevChain: chain, Entries: []kv.Entry{}}
		for i := range min(len(zs), len(payloads)) {
			m.Entries = append(m.Entries, kv.Entry{Zxid: kv.Zxid(zs[i]), Chain: zs[i] ^ chain, Payload: append([]byte{}, payloads[i]...)})
		}
		b, err := AppendMessage(nil, m)
		if err != nil {
			return false
		}
		got, err := DecodeMessage(b)
		return err == nil && reflect.DeepEqual(got, m)
	}
	if err := quick.Check(f, nil); err != nil {
		t.Error(err)
	}
}

// FuzzDecodeMessage: never a panic, never much more memory than the input, and what decodes encodes to something
// that decodes to the same.
func FuzzDecodeMessage(f *testing.F) {
	for _, m := range allMessages() {
		b, err := AppendMessage(nil, m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{kindProposal, 5, 0x94, 1, 2, 3, 0xce, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{kindRequest, 0x91, 0xc6, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{kindRefuse, 0xdd, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeMessage(b)
		if err != nil {
			return
		}
		again, err := AppendMessage(nil, m)
		if err != nil {
			t.Fatalf("decoded but does not encode: %v", err)
		}
		back, err := DecodeMessage(again)
		if err != nil || !reflect.DeepEqual(back, m) {
			t.Fatalf("%+v became %+v (%v)", m, back, err)
		}
	})
}

// TestHostileInputAllocatesLittle: huge lengths in small messages, and random damage to real ones, cost no memory.
func TestHostileInputAllocatesLittle(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const rounds = 20000
	var bytesIn uint64
	for i := range rounds {
		all := allMessages()
		b, _ := AppendMessage(nil, all[i%len(all)])
		switch i % 3 {
		case 0:
			for range 1 + rnd.IntN(4) {
				b[rnd.IntN(len(b))] = byte(rnd.IntN(256))
			}
		case 1: // array, bin, str and map headers with 32-bit lengths
			b = append(b[:1], []byte{0xdd, 0xc6, 0xdb, 0xdf}[rnd.IntN(4)], 0xff, 0xff, 0xff, 0xff)
		case 2:
			b = append(b[:1], 0x91, []byte{0xdd, 0xc6, 0xdb, 0xdf, 0xc9}[rnd.IntN(5)], 0x7f, 0xff, 0xff, 0xff, 0xff)
		}
		bytesIn += uint64(len(b))
		_, _ = DecodeMessage(b)
	}
	runtime.ReadMemStats(&after)
	if per := (after.TotalAlloc - before.TotalAlloc) / rounds; per > 8<<10 {
		t.Errorf("%d bytes allocated per hostile message of %d", per, bytesIn/rounds)
	}
}
