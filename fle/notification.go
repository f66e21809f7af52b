package fle

import (
	"errors"
	"fmt"
	"math"

	"github.com/hashicorp/go-msgpack/v2/codec"

	"kvd/kv"
	"kvd/zab/quorum"
)

// State is what a member is doing as far as elections go.
type State uint8

// The states. Looking is the zero value.
const (
	Looking State = iota
	Following
	Leading
	Observing
)

// String names the state as ZooKeeper's logs do.
func (s State) String() string {
	switch s {
	case Looking:
		return "LOOKING"
	case Following:
		return "FOLLOWING"
	case Leading:
		return "LEADING"
	case Observing:
		return "OBSERVING"
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// VersionRange is the span of versions that a member can serve.
type VersionRange struct{ Min, Max uint32 }

// Notification reports the state of its sender (zab-rules b, Notification).
type Notification struct {
	From  quorum.MemberID
	State State
	Round Round
	// Vote is the current vote of a LOOKING sender, or the one it settled on.
	Vote Vote
	// SenderEpoch and SenderZxid are the sender's own durable state when it last began to look.
	SenderEpoch kv.Epoch
	SenderZxid  kv.Zxid
	Unknown     bool // the sender may have forgotten something: it has no vote
	Sole        bool // the sender may lead without a quorum of votes (Candidate.Sole)
	// ConfigVersion is the membership the sender works with.
	ConfigVersion uint64
	// Established is the epoch of the leader the sender is synced with (or is), 0 before that; Incarnation
	// names that leader's attempt to lead.
	Established kv.Epoch
	Incarnation uint64
	Protocol    VersionRange
	Format      VersionRange
}

// String is one line for logs and golden files.
func (n Notification) String() string {
	s := fmt.Sprintf("%d %s %s round=%d", n.From, n.State, n.Vote, n.Round)
	if n.Unknown {
		s += " unknown"
	}
	if n.Established != 0 {
		s += fmt.Sprintf(" established=%d", n.Established)
	}
	return s
}

// coherent reports whether the fields can have been sent by a correct member with the given roles.
func (n *Notification) coherent() bool {
	switch n.State {
	case Leading:
		return n.Vote.Leader == n.From
	case Following, Observing:
		return n.Vote.Leader != n.From
	}
	return true
}

// The wire form is one msgpack array of unsigned integers in the order of notificationFields. A newer
// member may append fields; they are skipped. Part of the peer protocol.
const (
	notificationFields = 17
	// MaxNotificationBytes bounds an encoded notification. Longer input is refused unread.
	MaxNotificationBytes = 512
)

// ErrMalformed is wrapped by every error of DecodeNotification.
var ErrMalformed = errors.New("malformed election notification")

// msgpackHandle is never changed after package initialisation, which makes it safe to share.
var msgpackHandle codec.MsgpackHandle

// AppendNotification appends the wire form of n to dst.
func AppendNotification(dst []byte, n Notification) []byte {
	f := [notificationFields]uint64{
		uint64(n.From), uint64(n.State), uint64(n.Round),
		uint64(n.Vote.Leader), uint64(n.Vote.Epoch), uint64(n.Vote.Zxid),
		uint64(n.SenderEpoch), uint64(n.SenderZxid), bit(n.Unknown),
		n.ConfigVersion, uint64(n.Established), n.Incarnation,
		uint64(n.Protocol.Min), uint64(n.Protocol.Max), uint64(n.Format.Min), uint64(n.Format.Max),
		bit(n.Sole), // flags
	}
	var out []byte
	if err := codec.NewEncoderBytes(&out, &msgpackHandle).Encode(f[:]); err != nil {
		panic(fmt.Sprintf("fle: encoding a slice of integers failed: %v", err)) // cannot happen: no I/O, no foreign type
	}
	return append(dst, out...)
}

// DecodeNotification reads one notification. Its errors wrap ErrMalformed; the caller drops and counts the
// message (ZK-3769, S50). It allocates at most a small multiple of MaxNotificationBytes.
func DecodeNotification(b []byte) (Notification, error) {
	if len(b) > MaxNotificationBytes {
		return Notification{}, fmt.Errorf("%w: %d bytes, at most %d allowed", ErrMalformed, len(b), MaxNotificationBytes)
	}
	if n, ok := arrayLen(b); !ok || n > len(b) {
		return Notification{}, fmt.Errorf("%w: not an array that fits in %d bytes", ErrMalformed, len(b))
	}
	var f []uint64
	dec := codec.NewDecoderBytes(b, &msgpackHandle)
	if err := dec.Decode(&f); err != nil {
		return Notification{}, fmt.Errorf("%w: %v", ErrMalformed, err)
	}
	if got := dec.NumBytesRead(); got != len(b) {
		return Notification{}, fmt.Errorf("%w: %d bytes after the end", ErrMalformed, len(b)-got)
	}
	if len(f) < notificationFields {
		return Notification{}, fmt.Errorf("%w: %d fields, want %d", ErrMalformed, len(f), notificationFields)
	}
	for _, c := range [...]struct {
		name  string
		field int
		max   uint64
	}{
		{"sender", 0, 255}, {"state", 1, uint64(Observing)}, {"round", 2, uint64(maxRound)}, {"leader", 3, 255},
		{"vote epoch", 4, math.MaxUint32}, {"sender epoch", 6, math.MaxUint32}, {"unknown flag", 8, 1},
		{"established epoch", 10, math.MaxUint32}, {"protocol min", 12, math.MaxUint32}, {"protocol max", 13, math.MaxUint32},
		{"format min", 14, math.MaxUint32}, {"format max", 15, math.MaxUint32}, {"flags", 16, 1},
	} {
		if f[c.field] > c.max {
			return Notification{}, fmt.Errorf("%w: %s %d is above %d", ErrMalformed, c.name, f[c.field], c.max)
		}
	}
	n := Notification{
		From: quorum.MemberID(f[0]), State: State(f[1]), Round: Round(f[2]),
		Vote:        Vote{Leader: quorum.MemberID(f[3]), Epoch: kv.Epoch(f[4]), Zxid: kv.Zxid(f[5])},
		SenderEpoch: kv.Epoch(f[6]), SenderZxid: kv.Zxid(f[7]), Unknown: f[8] == 1,
		ConfigVersion: f[9], Established: kv.Epoch(f[10]), Incarnation: f[11],
		Protocol: VersionRange{uint32(f[12]), uint32(f[13])}, Format: VersionRange{uint32(f[14]), uint32(f[15])},
		Sole: f[16] == 1,
	}
	if n.From == 0 {
		return Notification{}, fmt.Errorf("%w: sender 0", ErrMalformed)
	}
	if !n.coherent() {
		return Notification{}, fmt.Errorf("%w: %d says %s and names %d", ErrMalformed, n.From, n.State, n.Vote.Leader)
	}
	return n, nil
}

// arrayLen reads a msgpack array header. Checked before the library sees the input, so that a header
// claiming four thousand million elements is refused without a look at them.
func arrayLen(b []byte) (int, bool) {
	switch {
	case len(b) >= 1 && b[0]&0xf0 == 0x90:
		return int(b[0] & 0x0f), true
	case len(b) >= 3 && b[0] == 0xdc:
		return int(b[1])<<8 | int(b[2]), true
	}
	return 0, false // array32 cannot be needed below MaxNotificationBytes
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
