package fle

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"testing"

	"kvd/kv"
	"kvd/zab/quorum"
)

func memberOf(id uint8) quorum.MemberID { return quorum.MemberID(id) }

func fullNotification() Notification {
	return Notification{From: 255, State: Following, Round: maxRound, Vote: Vote{7, math.MaxUint32, math.MaxUint64},
		SenderEpoch: math.MaxUint32 - 1, SenderZxid: kv.MakeZxid(9, 9), Unknown: true, ConfigVersion: math.MaxUint64,
		Established: 12, Incarnation: math.MaxUint64, Protocol: VersionRange{1, 2}, Format: VersionRange{3, math.MaxUint32}}
}

// The wire form is part of the peer protocol: it must not change by accident.
func TestNotificationGolden(t *testing.T) {
	n := Notification{From: 1, State: Leading, Round: 3, Vote: Vote{1, 2, kv.MakeZxid(1, 11)}, SenderEpoch: 1, SenderZxid: kv.MakeZxid(1, 11),
		ConfigVersion: 1, Established: 2, Incarnation: 300, Protocol: VersionRange{1, 1}, Format: VersionRange{1, 2}}
	const want = "dc0011" + "01" + "02" + "03" + "01" + "02" + "cf000000010000000b" + "01" + "cf000000010000000b" + "00" + "01" + "02" + "cd012c" + "01" + "01" + "01" + "02" + "00"
	if got := hex.EncodeToString(AppendNotification(nil, n)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestNotificationRoundTrip(t *testing.T) {
	for _, n := range []Notification{fullNotification(), {From: 1}, {From: 2, State: Leading, Vote: Vote{Leader: 2}}} {
		b := AppendNotification([]byte("prefix"), n)
		got, err := DecodeNotification(b[len("prefix"):])
		if err != nil || got != n {
			t.Errorf("got %+v, %v, want %+v", got, err, n)
		}
		if len(b) > MaxNotificationBytes {
			t.Errorf("%d bytes are more than a receiver takes", len(b))
		}
	}
}

// S50 (ZK-3769): short, long, negative, huge and nonsensical input is refused with ErrMalformed.
func TestDecodeNotificationRefuses(t *testing.T) {
	good := AppendNotification(nil, fullNotification())
	refuse := func(name string, b []byte) {
		t.Helper()
		if n, err := DecodeNotification(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: got %+v, %v, want ErrMalformed", name, n, err)
		}
	}
	for i := range good {
		refuse("cut short", good[:i])
	}
	for n := range 40 {
		refuse("zeros", make([]byte, n))
		refuse("ones", bytes.Repeat([]byte{0xff}, n))
	}
	refuse("bytes after the end", append(bytes.Clone(good), 0))
	refuse("longer than the limit", append(bytes.Clone(good), make([]byte, MaxNotificationBytes)...))
	refuse("huge array16", []byte{0xdc, 0xff, 0xff, 1, 2, 3})
	refuse("huge array32", binary.BigEndian.AppendUint32([]byte{0xdd}, math.MaxUint32))
	refuse("array32 of the right length", append([]byte{0xdd, 0, 0}, good[1:]...))
	refuse("huge string inside", append([]byte{0xdc, 0, 17, 0xdb}, bytes.Repeat([]byte{0xff}, 20)...))
	refuse("negative round", bytes.Replace(AppendNotification(nil, Notification{From: 1, Round: 33}), []byte{33}, []byte{0xff}, 1))
	refuse("a map", []byte{0x81, 1, 2})

	for name, damage := range map[string]func(*Notification){
		"sender 0":                  func(n *Notification) { n.From = 0 },
		"sender above 255":          func(n *Notification) { n.From = 256 },
		"unknown state":             func(n *Notification) { n.State = 4 },
		"leader above 255":          func(n *Notification) { n.Vote.Leader = 1 << 40 },
		"round near the end":        func(n *Notification) { n.Round = math.MaxUint64 },
		"leading for somebody else": func(n *Notification) { n.State = Leading },
		"following itself":          func(n *Notification) { n.Vote.Leader = n.From },
	} {
		n := fullNotification()
		damage(&n)
		refuse(name, AppendNotification(nil, n))
	}
}

// A newer member may append fields.
func TestDecodeNotificationSkipsNewFields(t *testing.T) {
	b := AppendNotification(nil, fullNotification())
	b[2]++
	b = append(b, 0x2a)
	if got, err := DecodeNotification(b); err != nil || got != fullNotification() {
		t.Errorf("got %+v, %v", got, err)
	}
}

// The decoder never panics, never accepts what a receiver could stumble over, and what it accepts survives
// another trip.
func FuzzDecodeNotification(f *testing.F) {
	f.Add(AppendNotification(nil, fullNotification()))
	f.Add(AppendNotification(nil, Notification{From: 1}))
	f.Add([]byte{0xdd, 0xff, 0xff, 0xff, 0xff})
	cfg, err := quorum.NewConfig(1, []quorum.MemberID{1, 2, 3}, []quorum.MemberID{4})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := DecodeNotification(b)
		if err != nil {
			return
		}
		again, err := DecodeNotification(AppendNotification(nil, n))
		if err != nil || again != n {
			t.Fatalf("%+v came back as %+v, %v", n, again, err)
		}
		e := New(Config{ID: 2, Members: cfg})
		e.Step(n) // before Look: ignored
		e.Look(Candidate{Epoch: 1, Zxid: kv.MakeZxid(1, 5)})
		for range 3 {
			e.Step(n)
			e.Tick()
			e.Ready()
		}
	})
}
