package transport

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"kvd/zab"
	"kvd/zab/quorum"
)

// The first bytes on every connection, from the dialer:
//
//	0 magic "kvdP"       8 protocol min, max    48 instance: random, one per run of the dialer
//	4 version, uint16   16 cluster id, 16       56 nonce: number of this dial in that run
//	6 purpose           32 sender's id          64 knock: nonce of the last connection seen from the target,
//	7 flags: 1 blank    40 target's id             72 and the instance it came from; 80 bytes in all
//
// and the answer:
//
//	0 magic "kvdP"       6 verdict              16 cluster id, 16     48 length of the reason, uint16
//	4 version, uint16    7 flags: 1 blank       32 answerer's id      50 reason, text for the log
//	                     8 protocol min, max    40 instance
//
// Magic, version and the place of verdict and reason stay as they are in every version.
const (
	handshakeMagic   uint32 = 0x6b766450 // "kvdP"
	handshakeVersion uint16 = 1
	helloBytes              = 80
	answerBytes             = 50
	maxReasonBytes          = 512
)

// purpose says what a dialled connection is for. Part of the peer protocol.
type purpose uint8

const (
	purposeElection purpose = 1 // the larger id's dial: carries votes
	purposeKnock    purpose = 2 // the smaller id's dial: asks to be dialled
	purposeLearner  purpose = 3 // a link
	purposeProbe    purpose = 4 // asks for the answer and nothing else: who listens at this member's address
)

// Verdict is the answer to a hello: accepted, or the cause of the refusal. Part of the peer protocol.
type Verdict uint8

// The verdicts.
const (
	Accepted       Verdict = 0
	RefusedGarbage Verdict = 1 // not a hello at all
	RefusedVersion Verdict = 2 // no common protocol version
	RefusedSelf    Verdict = 3 // has my own id
	RefusedUnknown Verdict = 4 // not a configured member
	RefusedTarget  Verdict = 5 // was meant for another member
	RefusedCluster Verdict = 6 // belongs to another cluster
	RefusedPurpose Verdict = 7 // wrong port, or a dial in the wrong direction
	RefusedTwin    Verdict = 8 // another process with the sender's id answers at that member's address
	verdictCount           = 9
)

var verdictNames = [verdictCount]string{"accepted", "not a peer", "version", "own id", "unknown member", "wrong target", "another cluster", "wrong port or direction", "duplicate id"}

// String names the verdict as logs and counters do.
func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return fmt.Sprintf("verdict %d", uint8(v))
}

// RefusedError says that a handshake was refused, by whom and why.
type RefusedError struct {
	Verdict Verdict
	Reason  string
	ByPeer  bool // the peer refused us; otherwise we refused the peer
}

// Error names who refused and the reason.
func (e *RefusedError) Error() string {
	who := "refused"
	if e.ByPeer {
		who = "refused by the peer"
	}
	return fmt.Sprintf("%s (%s): %s", who, e.Verdict, e.Reason)
}

// hello is a decoded hello; the answer uses the same struct without purpose, to and nonces.
type hello struct {
	Hello
	version                 uint16
	purpose                 purpose
	from, to                quorum.MemberID
	instance, nonce         uint64
	seenNonce, seenInstance uint64
}

func (h *hello) encode() []byte {
	b := make([]byte, helloBytes)
	binary.BigEndian.PutUint32(b[0:], handshakeMagic)
	binary.BigEndian.PutUint16(b[4:], handshakeVersion)
	b[6] = byte(h.purpose)
	encodeIdentity(b, h.Hello)
	binary.BigEndian.PutUint64(b[32:], uint64(h.from))
	binary.BigEndian.PutUint64(b[40:], uint64(h.to))
	binary.BigEndian.PutUint64(b[48:], h.instance)
	binary.BigEndian.PutUint64(b[56:], h.nonce)
	binary.BigEndian.PutUint64(b[64:], h.seenNonce)
	binary.BigEndian.PutUint64(b[72:], h.seenInstance)
	return b
}

func encodeIdentity(b []byte, h Hello) {
	if h.Blank {
		b[7] = 1
	} else {
		copy(b[16:32], h.Cluster[:])
	}
	binary.BigEndian.PutUint32(b[8:], h.Protocol.Min)
	binary.BigEndian.PutUint32(b[12:], h.Protocol.Max)
}

func decodeIdentity(b []byte) Hello {
	h := Hello{Blank: b[7]&1 != 0, Protocol: zab.VersionRange{Min: binary.BigEndian.Uint32(b[8:]), Max: binary.BigEndian.Uint32(b[12:])}}
	copy(h.Cluster[:], b[16:32])
	return h
}

// readHello reads a hello. A wrong magic or version is a *RefusedError and leaves the rest unread.
func readHello(r io.Reader) (hello, error) {
	var b [helloBytes]byte
	if _, err := io.ReadFull(r, b[:8]); err != nil {
		return hello{}, err
	}
	if err := checkStart(b[:8]); err != nil {
		return hello{}, err
	}
	if _, err := io.ReadFull(r, b[8:]); err != nil {
		return hello{}, err
	}
	return hello{
		Hello: decodeIdentity(b[:]), version: binary.BigEndian.Uint16(b[4:]), purpose: purpose(b[6]),
		from: quorum.MemberID(binary.BigEndian.Uint64(b[32:])), to: quorum.MemberID(binary.BigEndian.Uint64(b[40:])),
		instance: binary.BigEndian.Uint64(b[48:]), nonce: binary.BigEndian.Uint64(b[56:]),
		seenNonce: binary.BigEndian.Uint64(b[64:]), seenInstance: binary.BigEndian.Uint64(b[72:]),
	}, nil
}

func checkStart(b []byte) *RefusedError {
	if m := binary.BigEndian.Uint32(b); m != handshakeMagic {
		return &RefusedError{Verdict: RefusedGarbage, Reason: fmt.Sprintf("it starts with %q", b[:4])}
	}
	if v := binary.BigEndian.Uint16(b[4:]); v != handshakeVersion {
		return &RefusedError{Verdict: RefusedVersion, Reason: fmt.Sprintf("handshake version %d, this build speaks %d", v, handshakeVersion)}
	}
	return nil
}

func encodeAnswer(h hello, v Verdict, reason string) []byte {
	reason = reason[:min(len(reason), maxReasonBytes)]
	b := make([]byte, answerBytes, answerBytes+len(reason))
	binary.BigEndian.PutUint32(b[0:], handshakeMagic)
	binary.BigEndian.PutUint16(b[4:], handshakeVersion)
	b[6] = byte(v)
	encodeIdentity(b, h.Hello)
	binary.BigEndian.PutUint64(b[32:], uint64(h.from))
	binary.BigEndian.PutUint64(b[40:], h.instance)
	binary.BigEndian.PutUint16(b[48:], uint16(len(reason)))
	return append(b, reason...)
}

// readAnswer reads the answer to a hello; a refusal is a *RefusedError.
func readAnswer(r io.Reader) (hello, error) {
	var b [answerBytes]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return hello{}, err
	}
	if m := binary.BigEndian.Uint32(b[:]); m != handshakeMagic {
		return hello{}, checkStart(b[:])
	}
	n := int(binary.BigEndian.Uint16(b[48:]))
	if n > maxReasonBytes {
		return hello{}, &RefusedError{Verdict: RefusedGarbage, Reason: fmt.Sprintf("reason of %d bytes", n)}
	}
	reason := make([]byte, n)
	if _, err := io.ReadFull(r, reason); err != nil {
		return hello{}, err
	}
	if v := Verdict(b[6]); v != Accepted {
		return hello{}, &RefusedError{Verdict: v, Reason: printable(reason), ByPeer: true}
	}
	if err := checkStart(b[:]); err != nil {
		return hello{}, err
	}
	return hello{Hello: decodeIdentity(b[:]), version: handshakeVersion,
		from: quorum.MemberID(binary.BigEndian.Uint64(b[32:])), instance: binary.BigEndian.Uint64(b[40:])}, nil
}

// printable keeps a peer's text from doing anything to a log but being read.
func printable(b []byte) string {
	out := make([]rune, 0, len(b))
	for _, r := range string(b) {
		if r < ' ' || r == 0x7f || r == '\ufffd' {
			r = '?'
		}
		out = append(out, r)
	}
	return string(out)
}

// compatible checks what must hold between any two members, whoever dialled (design 8, rule 8).
func compatible(mine, theirs Hello) *RefusedError {
	if theirs.Protocol.Min > theirs.Protocol.Max || theirs.Protocol.Max < mine.Protocol.Min || theirs.Protocol.Min > mine.Protocol.Max {
		return &RefusedError{Verdict: RefusedVersion, Reason: fmt.Sprintf("peer protocol %d..%d and %d..%d have nothing in common",
			theirs.Protocol.Min, theirs.Protocol.Max, mine.Protocol.Min, mine.Protocol.Max)}
	}
	if !mine.Blank && !theirs.Blank && mine.Cluster != theirs.Cluster {
		return &RefusedError{Verdict: RefusedCluster, Reason: fmt.Sprintf("cluster %x is not %x", theirs.Cluster, mine.Cluster)}
	}
	return nil
}

// judge decides about a hello received on the listener for learners or for elections.
func (t *Transport) judge(h hello, mine Hello, learnerPort bool) *RefusedError {
	_, known := t.peers[h.from]
	refuse := func(v Verdict, format string, args ...any) *RefusedError {
		return &RefusedError{Verdict: v, Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case h.from == t.o.ID:
		return refuse(RefusedSelf, "a peer calls itself member %d, which is me", h.from)
	case !known:
		return refuse(RefusedUnknown, "member %d is not configured here", h.from)
	case h.to != t.o.ID:
		return refuse(RefusedTarget, "member %d looks for member %d, this is %d", h.from, h.to, t.o.ID)
	}
	if r := compatible(mine, h.Hello); r != nil {
		r.Reason = fmt.Sprintf("member %d: %s", h.from, r.Reason)
		return r
	}
	switch {
	case learnerPort && h.purpose == purposeLearner:
	case !learnerPort && h.purpose == purposeElection && h.from > t.o.ID:
	case !learnerPort && h.purpose == purposeKnock && h.from < t.o.ID:
	case !learnerPort && h.purpose == purposeProbe:
	default:
		return refuse(RefusedPurpose, "member %d came with purpose %d to the %s port of member %d", h.from, h.purpose, portName(learnerPort), t.o.ID)
	}
	return nil
}

func portName(learner bool) string {
	if learner {
		return "learner"
	}
	return "election"
}

// greet runs the dialer's side of a handshake on c with peer id.
func (t *Transport) greet(c net.Conn, h hello) (hello, error) {
	mine := t.o.Hello()
	h.Hello, h.from, h.instance = mine, t.o.ID, t.instance
	_ = c.SetDeadline(time.Now().Add(t.o.Limits.HandshakeTimeout))
	if _, err := c.Write(h.encode()); err != nil {
		return hello{}, fmt.Errorf("handshake: %w", err)
	}
	answer, err := readAnswer(c)
	if err != nil {
		return hello{}, fmt.Errorf("handshake: %w", err)
	}
	if answer.from != h.to {
		return hello{}, &RefusedError{Verdict: RefusedTarget, Reason: fmt.Sprintf("looked for member %d, found member %d", h.to, answer.from)}
	}
	if r := compatible(mine, answer.Hello); r != nil {
		r.Reason = fmt.Sprintf("member %d: %s", h.to, r.Reason)
		return hello{}, r
	}
	_ = c.SetDeadline(time.Time{})
	return answer, nil
}
