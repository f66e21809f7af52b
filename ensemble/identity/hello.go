package identity

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"

	"github.com/hashicorp/go-msgpack/v2/codec"

	"kvd/kv"
	"kvd/zab/quorum"
)

// ClusterID names an ensemble for ever. The zero value means none.
type ClusterID [16]byte

// IsZero reports whether c names no cluster.
func (c ClusterID) IsZero() bool { return c == ClusterID{} }

// String is the id in hexadecimal, as logs and `kvd inspect` show it.
func (c ClusterID) String() string {
	if c.IsZero() {
		return "none"
	}
	return hex.EncodeToString(c[:])
}

// Hello reports what its sender is, to one voter or observer.
type Hello struct {
	From quorum.MemberID
	// Run numbers the sender's present run; Echo is the receiver's run as the sender last heard it, 0 if it
	// has not. A receiver counts the report only if Echo is its own run.
	Run, Echo uint64
	// Ask: the sender wants an answer.
	Ask bool
	// Cluster is the durable cluster id; zero for a blank member.
	Cluster ClusterID
	// Suspect: the sender may have forgotten something and is no voter yet.
	Suspect bool
	// Accepted and Last are the sender's durable accepted epoch and last zxid: both zero mean that it never
	// promised and holds nothing.
	Accepted kv.Epoch
	Last     kv.Zxid
}

// blank reports a sender that no cluster ever claimed.
func (h *Hello) blank() bool { return h.Cluster.IsZero() && !h.Suspect && h.fresh() }

// fresh reports a sender that has promised and logged nothing.
func (h *Hello) fresh() bool { return h.Accepted == 0 && h.Last == 0 }

// The wire form is one msgpack array of unsigned integers. A newer member may append fields; they are skipped.
// Part of the peer protocol.
const (
	helloFields = 9
	// MaxHelloBytes bounds an encoded hello. Longer input is refused unread.
	MaxHelloBytes = 256
)

// ErrMalformed is wrapped by every error of DecodeHello.
var ErrMalformed = errors.New("malformed identity hello")

// msgpackHandle is never changed after package initialisation, which makes it safe to share.
var msgpackHandle codec.MsgpackHandle

// Flags of the wire form.
const (
	flagAsk     = 1
	flagSuspect = 2
	flagsKnown  = flagAsk | flagSuspect
)

// AppendHello appends the wire form of h to dst.
func AppendHello(dst []byte, h Hello) []byte {
	var flags uint64
	if h.Ask {
		flags |= flagAsk
	}
	if h.Suspect {
		flags |= flagSuspect
	}
	f := [helloFields]uint64{
		uint64(h.From), h.Run, h.Echo, flags,
		binary.BigEndian.Uint64(h.Cluster[:8]), binary.BigEndian.Uint64(h.Cluster[8:]),
		uint64(h.Accepted), uint64(h.Last),
		0, // reserved
	}
	var out []byte
	if err := codec.NewEncoderBytes(&out, &msgpackHandle).Encode(f[:]); err != nil {
		panic(fmt.Sprintf("identity: encoding a slice of integers failed: %v", err)) // cannot happen: no I/O, no foreign type
	}
	return append(dst, out...)
}

// DecodeHello reads one hello. Its errors wrap ErrMalformed; the caller drops and counts the message.
func DecodeHello(b []byte) (Hello, error) {
	if len(b) > MaxHelloBytes {
		return Hello{}, fmt.Errorf("%w: %d bytes, at most %d allowed", ErrMalformed, len(b), MaxHelloBytes)
	}
	// The header is read here, so that one that claims thousands of millions of elements is refused unseen.
	short := len(b) >= 1 && b[0]&0xf0 == 0x90 && int(b[0]&0x0f) < len(b)
	long := len(b) >= 3 && b[0] == 0xdc && int(b[1])<<8|int(b[2]) < len(b)
	if !short && !long {
		return Hello{}, fmt.Errorf("%w: not an array that fits in %d bytes", ErrMalformed, len(b))
	}
	var f []uint64
	dec := codec.NewDecoderBytes(b, &msgpackHandle)
	if err := dec.Decode(&f); err != nil {
		return Hello{}, fmt.Errorf("%w: %v", ErrMalformed, err)
	}
	switch {
	case dec.NumBytesRead() != len(b):
		return Hello{}, fmt.Errorf("%w: %d bytes after the end", ErrMalformed, len(b)-dec.NumBytesRead())
	case len(f) < helloFields:
		return Hello{}, fmt.Errorf("%w: %d fields, want %d", ErrMalformed, len(f), helloFields)
	case f[0] == 0 || f[0] > 255:
		return Hello{}, fmt.Errorf("%w: sender %d", ErrMalformed, f[0])
	case f[1] == 0:
		return Hello{}, fmt.Errorf("%w: run 0", ErrMalformed)
	case f[3]&^flagsKnown != 0:
		return Hello{}, fmt.Errorf("%w: unknown flags %#x", ErrMalformed, f[3])
	case f[6] > math.MaxUint32:
		return Hello{}, fmt.Errorf("%w: accepted epoch %d", ErrMalformed, f[6])
	}
	h := Hello{From: quorum.MemberID(f[0]), Run: f[1], Echo: f[2], Ask: f[3]&flagAsk != 0, Suspect: f[3]&flagSuspect != 0,
		Accepted: kv.Epoch(f[6]), Last: kv.Zxid(f[7])}
	binary.BigEndian.PutUint64(h.Cluster[:8], f[4])
	binary.BigEndian.PutUint64(h.Cluster[8:], f[5])
	return h, nil
}
