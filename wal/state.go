package wal

import (
	"encoding/binary"
	"fmt"

	"github.com/cespare/xxhash/v2"
	"github.com/hashicorp/go-msgpack/v2/codec"

	"kvd/kv"
)

// FormatVersion is the newest version of the directory's formats that this program writes and reads.
const FormatVersion = 1

// Identity says whose directory this is. It is kept twice, in the identity file and in the log store, so
// that the loss of either is noticed (design rule 8).
type Identity struct {
	ClusterID [16]byte
	Member    uint64
}

// IsZero reports whether no identity was ever given.
func (id Identity) IsZero() bool { return id == Identity{} }

// State is what the log durably holds.
//
// Invariant: LogStart <= Base <= Last; Current <= Accepted; the epoch of Last is at most Accepted.
type State struct {
	// ClusterID is zero and Member 0 while the member is blank.
	ClusterID     [16]byte
	Member        uint64
	FormatVersion uint32
	Accepted      kv.Epoch
	PromisedTo    uint64 // incarnation to which Accepted was promised
	Current       kv.Epoch
	Base          kv.Zxid // newest snapshot point, 0 if none
	BaseChain     uint64
	LogStart      kv.Zxid // zxid before the first retained entry
	LogStartChain uint64
	Last          kv.Zxid // last durable entry, or Base
	LastChain     uint64
	// Points are the caller's snapshot point records, oldest first. Read only.
	Points [][]byte
	// Suspect says why this member may have forgotten something; empty means sound. Its votes and epoch acks
	// must not count until a Write with Trusted completed.
	Suspect string
	// Trusted is the durable mark of a member that took part: set by Write.Trusted, cleared when a check
	// fails. A member votes only if Trusted and Suspect is empty.
	Trusted bool
	// Sole is the mark of MarkSole: until a Write takes it away this member may lead without a quorum of voters, to bring
	// blank and suspect members up to date.
	Sole bool
	// Generation counts the batches that truncated or installed (zab-rules f).
	Generation uint64
}

// Blank reports whether neither the identity file nor the store knows who this is.
func (s *State) Blank() bool { return s.ClusterID == [16]byte{} && s.Member == 0 && s.Suspect == "" }

// Promise is an accepted epoch and the incarnation it was promised to.
type Promise struct {
	Epoch kv.Epoch
	To    uint64
}

// Install makes a received snapshot the whole history: base and logStart become Zxid, the log is dropped
// and older snapshot points are forgotten.
type Install struct {
	Zxid  kv.Zxid
	Chain uint64
	Point []byte
}

// SnapshotPoint records an own snapshot: Zxid becomes the base, Points is the new list of kept points
// (oldest first), and entries up to and including LogStart may be dropped. LogStart is any entry of the log
// at most Zxid, also one within a group; a value at or below the present logStart drops nothing.
type SnapshotPoint struct {
	Zxid     kv.Zxid
	Chain    uint64
	Points   [][]byte
	LogStart kv.Zxid
}

// Write is one atomic, synced step of the log. The parts apply in field order.
type Write struct {
	// Seq is the caller's number, reported in Completion. Seqs of one log must not fall; 0 means "none".
	Seq uint64
	// Identity goes to the store and then to the identity file. Trusted is the only part that should come with
	// it: after a crash between the two a store that holds more is suspect.
	Identity *Identity
	Accepted *Promise
	Install  *Install
	Truncate *kv.Zxid   // drop every entry after this one
	Append   []kv.Entry // contiguous to what is there; payloads must stay unchanged until completion
	Current  kv.Epoch   // 0: unchanged
	Trusted  bool       // this batch makes the member trusted: clears State.Suspect
	Sole     *bool      // sets or takes away State.Sole
	Snapshot *SnapshotPoint
	// Done, if set, is called on completion of this very write, right before Completed, on the same goroutine.
	Done func(error)
}

// Completion reports that every write up to and including Seq is durable, or that the log is dead.
type Completion struct {
	Seq uint64
	Err error
}

// durable is the log's own view of what is on disk: the meta record plus the end of the log.
type durable struct {
	meta
	last      kv.Zxid
	lastChain uint64
}

// mark is what the ack watermark has to say once d is durable.
func (d *durable) mark() mark { return mark{generation: d.Generation, zxid: d.last, meta: d.Version} }

func (d *durable) state() State {
	return State{
		ClusterID: d.Identity.ClusterID, Member: d.Identity.Member, FormatVersion: FormatVersion,
		Accepted: d.Accepted, PromisedTo: d.PromisedTo, Current: d.Current,
		Base: d.Base, BaseChain: d.BaseChain, LogStart: d.LogStart, LogStartChain: d.LogStartChain,
		Last: d.last, LastChain: d.lastChain,
		Points: d.Points, Suspect: d.Suspect, Trusted: d.Trusted, Sole: d.Sole, Generation: d.Generation,
	}
}

// meta is everything of the state that does not follow from the entries. It is one record under one key,
// rewritten by each batch that changes any of it; plain appends do not.
type meta struct {
	Identity      Identity
	Accepted      kv.Epoch
	PromisedTo    uint64
	Current       kv.Epoch
	Base          kv.Zxid
	BaseChain     uint64
	LogStart      kv.Zxid
	LogStartChain uint64
	Generation    uint64
	Version       uint64 // counts the records written, so that a lost one shows in the ack watermark
	Trusted       bool
	Sole          bool
	Suspect       string
	Points        [][]byte
}

// emptyMeta is the meta of an empty history.
func emptyMeta() meta {
	return meta{BaseChain: kv.ChainSeed(), LogStartChain: kv.ChainSeed()}
}

// metaRecord is meta as msgpack. The names are part of the format.
type metaRecord struct {
	Cluster       []byte   `codec:"cluster"`
	Member        uint64   `codec:"member"`
	Accepted      uint32   `codec:"accepted"`
	PromisedTo    uint64   `codec:"promised"`
	Current       uint32   `codec:"current"`
	Base          uint64   `codec:"base"`
	BaseChain     uint64   `codec:"base_chain"`
	LogStart      uint64   `codec:"log_start"`
	LogStartChain uint64   `codec:"log_start_chain"`
	Generation    uint64   `codec:"generation"`
	Version       uint64   `codec:"version"`
	Trusted       bool     `codec:"trusted"`
	Sole          bool     `codec:"sole,omitempty"`
	Suspect       string   `codec:"suspect"`
	Points        [][]byte `codec:"points"`
}

// metaSeed is the seed of the meta record's checksum. Part of the format.
const metaSeed uint64 = 0x6b76642d6d657461 // "kvd-meta"

// metaHeaderBytes is checksum and format version. Part of the format.
const metaHeaderBytes = 8 + 4

// maxMetaBytes bounds what a damaged record may make the decoder allocate.
const maxMetaBytes = 16 << 20

var msgpack = newMsgpackHandle()

func newMsgpackHandle() *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{}
	h.WriteExt = true // strings and byte strings keep their kinds
	h.Canonical = true
	h.ErrorIfNoField = false
	h.MaxInitLen = 1024
	return h
}

// encodeMeta returns checksum, version and msgpack body.
func encodeMeta(m *meta) ([]byte, error) {
	out := make([]byte, metaHeaderBytes, 512)
	var body []byte
	r := metaRecord{
		Cluster: m.Identity.ClusterID[:], Member: m.Identity.Member,
		Accepted: uint32(m.Accepted), PromisedTo: m.PromisedTo, Current: uint32(m.Current),
		Base: uint64(m.Base), BaseChain: m.BaseChain, LogStart: uint64(m.LogStart), LogStartChain: m.LogStartChain,
		Generation: m.Generation, Version: m.Version, Trusted: m.Trusted, Sole: m.Sole, Suspect: m.Suspect, Points: m.Points,
	}
	if err := codec.NewEncoderBytes(&body, msgpack).Encode(&r); err != nil {
		return nil, fmt.Errorf("wal: encode meta record: %w", err)
	}
	out = append(out, body...)
	binary.BigEndian.PutUint32(out[8:], FormatVersion)
	binary.BigEndian.PutUint64(out, seededSum(metaSeed, out[8:]))
	return out, nil
}

// decodeMeta checks checksum and version before it decodes.
func decodeMeta(b []byte) (m meta, err error) {
	if len(b) < metaHeaderBytes || len(b) > maxMetaBytes {
		return m, fmt.Errorf("%w: meta record has %d bytes", ErrDamaged, len(b))
	}
	// The checksum covers the version: a flipped bit there is damage, not a newer format.
	v := binary.BigEndian.Uint32(b[8:])
	if got, want := seededSum(metaSeed, b[8:]), binary.BigEndian.Uint64(b); got != want {
		return m, fmt.Errorf("%w: meta record: checksum is %016x, stored %016x", ErrDamaged, got, want)
	}
	if v > FormatVersion {
		return m, fmt.Errorf("%w: meta record has version %d, this program knows up to %d", ErrNewerFormat, v, FormatVersion)
	}
	if v == 0 {
		return m, fmt.Errorf("%w: meta record has version 0", ErrDamaged)
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: meta record: %v", ErrDamaged, p)
		}
	}()
	var r metaRecord
	if err := codec.NewDecoderBytes(b[metaHeaderBytes:], msgpack).Decode(&r); err != nil {
		return m, fmt.Errorf("%w: meta record: %w", ErrDamaged, err)
	}
	if len(r.Cluster) != 16 {
		return m, fmt.Errorf("%w: meta record: cluster id of %d bytes", ErrDamaged, len(r.Cluster))
	}
	m = meta{
		Accepted: kv.Epoch(r.Accepted), PromisedTo: r.PromisedTo, Current: kv.Epoch(r.Current),
		Base: kv.Zxid(r.Base), BaseChain: r.BaseChain, LogStart: kv.Zxid(r.LogStart), LogStartChain: r.LogStartChain,
		Generation: r.Generation, Version: r.Version, Trusted: r.Trusted, Sole: r.Sole, Suspect: r.Suspect, Points: r.Points,
	}
	copy(m.Identity.ClusterID[:], r.Cluster)
	m.Identity.Member = r.Member
	if m.Accepted < m.Current || m.LogStart > m.Base {
		return m, fmt.Errorf("%w: meta record: accepted epoch %d < current %d, or log start %v > base %v",
			ErrDamaged, m.Accepted, m.Current, m.LogStart, m.Base)
	}
	return m, nil
}

func seededSum(seed uint64, b []byte) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(seed)
	_, _ = d.Write(b)
	return d.Sum64()
}
