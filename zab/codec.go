package zab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/go-msgpack/v2/codec"

	"kvd/kv"
)

// Message layout (part of the format, protocol level 1):
//
//	kind    1 byte, see the constants
//	body    msgpack array of the message's fields in the order of their declaration; more elements than this
//	        version knows are skipped, missing ones are zero
//
// For the kinds that carry entries:
//
//	kind    1 byte
//	length  uvarint, bytes of the head
//	head    msgpack array [Prev, PrevChain, Commit, count]
//	entries count times: zxid, chain (8 bytes each), payload length (4 bytes), payload; big-endian
//
// The entries stand outside msgpack so that encoding costs one copy per payload and decoding none. For the same
// reason Request and Reply are the kind byte and their payload, and PingReply is length, head and the touch table: the msgpack library reads byte strings in steps of
// MaxInitLen and copies what it has at each, which for a megabyte takes half a second.

// Message kinds. Part of the format.
const (
	kindFollowerInfo = 1
	kindLeaderInfo   = 2
	kindAckEpoch     = 3
	kindDiff         = 4
	kindTrunc        = 5
	kindSnap         = 6
	kindNeedSnapshot = 7
	kindProposal     = 8
	kindInform       = 9
	kindNewLeader    = 10
	kindAckNewLeader = 11
	kindUpToDate     = 12
	kindAck          = 13
	kindCommit       = 14
	kindPing         = 15
	kindPingReply    = 16
	kindRequest      = 17
	kindReply        = 18
	kindSyncRequest  = 19
	kindSyncReply    = 20
	kindResign       = 21
	kindRefuse       = 22
	kindReceived     = 23
)

// ErrMalformed is wrapped by every error of DecodeMessage.
var ErrMalformed = errors.New("malformed peer message")

const entryHead = 8 + 8 + 4

// pingReplyHead is a PingReply without the touch table, which follows it as it is.
type pingReplyHead struct {
	Epoch          kv.Epoch
	Probe          uint64
	Applied        kv.Zxid
	OldestWriteMs  uint32
	FreeDisk       uint64
	WantSnapshot   bool
	SnapshotActive bool
	DigestAt       kv.Zxid
	Digest         uint64
	LowDisk        bool
}

type entriesHead struct {
	Prev      kv.Zxid
	PrevChain uint64
	Commit    kv.Zxid
	Count     uint32
}

func newHandle() *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{}
	h.WriteExt = true // []byte as msgpack bin
	h.StructToArray = true
	h.MaxInitLen = 1024
	return h
}

var handle = newHandle()

// scratch keeps an encoder and a decoder with their buffers; they are costly to make and hold no state between
// uses.
type scratch struct {
	enc *codec.Encoder
	dec *codec.Decoder
	buf []byte
}

var scratches = sync.Pool{New: func() any {
	s := &scratch{buf: make([]byte, 0, 512)}
	s.enc = codec.NewEncoderBytes(&s.buf, handle)
	s.dec = codec.NewDecoderBytes(nil, handle)
	return s
}}

// AppendMessage appends the encoded message to dst. It fails only for a message of no known kind.
func AppendMessage(dst []byte, m Message) ([]byte, error) {
	var kind byte
	var body any = m
	var entries []kv.Entry
	var tail []byte
	switch m := m.(type) {
	case *FollowerInfo:
		kind = kindFollowerInfo
	case *LeaderInfo:
		kind = kindLeaderInfo
	case *AckEpoch:
		kind = kindAckEpoch
	case *Diff:
		kind = kindDiff
	case *Trunc:
		kind = kindTrunc
	case *Snap:
		kind = kindSnap
	case *NeedSnapshot:
		kind = kindNeedSnapshot
	case *Proposal:
		kind, entries = kindProposal, m.Entries
		body = &entriesHead{m.Prev, m.PrevChain, m.Commit, uint32(len(entries))}
	case *Inform:
		kind, entries = kindInform, m.Entries
		body = &entriesHead{m.Prev, m.PrevChain, 0, uint32(len(entries))}
	case *NewLeader:
		kind = kindNewLeader
	case *AckNewLeader:
		kind = kindAckNewLeader
	case *UpToDate:
		kind = kindUpToDate
	case *Ack:
		kind = kindAck
	case *Commit:
		kind = kindCommit
	case *Ping:
		kind = kindPing
	case *PingReply:
		kind, tail = kindPingReply, m.Touched
		body = &pingReplyHead{m.Epoch, m.Probe, m.Applied, m.OldestWriteMs, m.FreeDisk, m.WantSnapshot, m.SnapshotActive, m.DigestAt, m.Digest, m.LowDisk}
	case *Request:
		return append(append(dst, kindRequest), m.Payload...), nil
	case *Reply:
		return append(append(dst, kindReply), m.Payload...), nil
	case *SyncRequest:
		kind = kindSyncRequest
	case *SyncReply:
		kind = kindSyncReply
	case *Resign:
		kind = kindResign
	case *Refuse:
		kind = kindRefuse
	case *Received:
		kind = kindReceived
	default:
		return dst, fmt.Errorf("zab: no encoding for %T", m)
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	s.buf = s.buf[:0]
	s.enc.ResetBytes(&s.buf)
	if err := s.enc.Encode(body); err != nil {
		return dst, fmt.Errorf("zab: encode %T: %w", m, err)
	}
	dst = append(dst, kind)
	if kind != kindProposal && kind != kindInform && kind != kindPingReply {
		return append(dst, s.buf...), nil
	}
	dst = binary.AppendUvarint(dst, uint64(len(s.buf)))
	dst = append(dst, s.buf...)
	dst = append(dst, tail...)
	for i := range entries {
		e := &entries[i]
		dst = binary.BigEndian.AppendUint64(dst, uint64(e.Zxid))
		dst = binary.BigEndian.AppendUint64(dst, e.Chain)
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(e.Payload)))
		dst = append(dst, e.Payload...)
	}
	return dst, nil
}

// DecodeMessage decodes one message. Payloads alias b, which must not change afterwards. Errors wrap ErrMalformed.
// Whatever b holds, it allocates no more than a small multiple of len(b).
func DecodeMessage(b []byte) (Message, error) {
	if len(b) == 0 {
		return nil, fmt.Errorf("%w: empty", ErrMalformed)
	}
	var m Message
	switch b[0] {
	case kindFollowerInfo:
		m = new(FollowerInfo)
	case kindLeaderInfo:
		m = new(LeaderInfo)
	case kindAckEpoch:
		m = new(AckEpoch)
	case kindDiff:
		m = new(Diff)
	case kindTrunc:
		m = new(Trunc)
	case kindSnap:
		m = new(Snap)
	case kindNeedSnapshot:
		m = new(NeedSnapshot)
	case kindProposal, kindInform:
		return decodeEntries(b[0], b[1:])
	case kindNewLeader:
		m = new(NewLeader)
	case kindAckNewLeader:
		m = new(AckNewLeader)
	case kindUpToDate:
		m = new(UpToDate)
	case kindAck:
		m = new(Ack)
	case kindCommit:
		m = new(Commit)
	case kindPing:
		m = new(Ping)
	case kindPingReply:
		var h pingReplyHead
		rest, err := decodeHead(b[1:], &h)
		if err != nil {
			return nil, err
		}
		r := &PingReply{
			Epoch: h.Epoch, Probe: h.Probe, Applied: h.Applied, OldestWriteMs: h.OldestWriteMs, FreeDisk: h.FreeDisk,
			WantSnapshot: h.WantSnapshot, SnapshotActive: h.SnapshotActive, DigestAt: h.DigestAt, Digest: h.Digest, LowDisk: h.LowDisk,
		}
		if len(rest) > 0 {
			r.Touched = rest
		}
		return r, nil
	case kindRequest:
		return &Request{Payload: b[1:len(b):len(b)]}, nil
	case kindReply:
		return &Reply{Payload: b[1:len(b):len(b)]}, nil
	case kindSyncRequest:
		m = new(SyncRequest)
	case kindSyncReply:
		m = new(SyncReply)
	case kindResign:
		m = new(Resign)
	case kindRefuse:
		m = new(Refuse)
	case kindReceived:
		m = new(Received)
	default:
		return nil, fmt.Errorf("%w: unknown kind %d", ErrMalformed, b[0])
	}
	if err := decodeBody(b[1:], m); err != nil {
		return nil, err
	}
	return m, nil
}

func decodeBody(b []byte, into any) (err error) {
	if len(b) == 0 || b[0]&0xf0 != 0x90 && b[0] != 0xdc && b[0] != 0xdd {
		return fmt.Errorf("%w: %T is not an array", ErrMalformed, into)
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	s.dec.ResetBytes(b)
	if err := s.dec.Decode(into); err != nil {
		return fmt.Errorf("%w: %T: %v", ErrMalformed, into, err)
	}
	if n := s.dec.NumBytesRead(); n != len(b) {
		return fmt.Errorf("%w: %T: %d bytes behind the body", ErrMalformed, into, len(b)-n)
	}
	return nil
}

// decodeHead decodes a head behind its length and returns what follows it.
func decodeHead(b []byte, into any) (rest []byte, err error) {
	n, k := binary.Uvarint(b)
	if k <= 0 || n > uint64(len(b)-k) {
		return nil, fmt.Errorf("%w: length of the head", ErrMalformed)
	}
	end := k + int(n)
	if err := decodeBody(b[k:end], into); err != nil {
		return nil, err
	}
	return b[end:len(b):len(b)], nil
}

func decodeEntries(kind byte, b []byte) (Message, error) {
	var head entriesHead
	b, err := decodeHead(b, &head)
	if err != nil {
		return nil, err
	}
	if uint64(head.Count)*entryHead > uint64(len(b)) {
		return nil, fmt.Errorf("%w: %d entries in %d bytes", ErrMalformed, head.Count, len(b))
	}
	entries := make([]kv.Entry, head.Count)
	for i := range entries {
		if len(b) < entryHead {
			return nil, fmt.Errorf("%w: entry %d is cut", ErrMalformed, i)
		}
		size := uint64(binary.BigEndian.Uint32(b[16:]))
		if size > uint64(len(b)-entryHead) {
			return nil, fmt.Errorf("%w: payload of entry %d is cut", ErrMalformed, i)
		}
		end := entryHead + int(size)
		entries[i] = kv.Entry{
			Zxid: kv.Zxid(binary.BigEndian.Uint64(b)), Chain: binary.BigEndian.Uint64(b[8:]), Payload: b[entryHead:end:end],
		}
		b = b[end:]
	}
	if len(b) != 0 {
		return nil, fmt.Errorf("%w: %d bytes behind the entries", ErrMalformed, len(b))
	}
	if kind == kindInform {
		return &Inform{Prev: head.Prev, PrevChain: head.PrevChain, Entries: entries}, nil
	}
	return &Proposal{Prev: head.Prev, PrevChain: head.PrevChain, Entries: entries, Commit: head.Commit}, nil
}
