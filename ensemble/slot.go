package ensemble

import (
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// slotKind says where a slot's answer comes from.
type slotKind uint8

const (
	slotRead    slotKind = iota // a view of the tree
	slotWrite                   // the applier, when its transaction is applied
	slotSync                    // the applier, when the confirmed read point is applied
	slotCreate                  // handshake of a new session: as slotWrite, but not in the connection's ring
	slotResume                  // handshake of a session that exists: the leader's word
	slotRefused                 // code alone, with the zxid of the state before it
	slotAside                   // code, zxid and reply are there: of the connection, not of the state
	slotUpgrade                 // makes a local session global; not in the ring, nobody waits for it
)

// slot is one request of a connection from its frame to its reply.
//
// Its reader fills it and puts it into the connection's ring; slots with a token are also known to the
// intake until their result arrives. Fields below the line change under conn.mu.
type slot struct {
	conn *conn
	kind slotKind
	last bool // the connection ends after this reply
	// watching: it sets, asks for or takes away watches.
	watching bool
	op       wire.Op
	xid      int32
	token    uint64
	session  kv.SessionID
	body     []byte // request record, of the frame
	// auth are the credentials of the connection when the request was decoded; local says that its session is known to
	// this member alone (localsession.go).
	auth   kv.Credentials
	local  bool
	cost   int64  // bytes charged to the intake
	charge charge // by the port's limits
	at     time.Time

	// slotCreate, slotResume and slotUpgrade.
	password  [wire.PasswordBytes]byte
	timeoutMs int32

	// ---- under conn.mu ----

	done bool
	// begun: the applier has looked at wantView for the last time.
	// wantView: a read is queued behind this write and must see exactly the state this write made.
	begun, wantView bool
	// view: slotRead: what to read from, nil if that is the view of the slot before it; slotWrite with
	// wantView, slotSync: the state it made or confirmed, for the reads behind it.
	view *kv.View
	zxid kv.Zxid // of the reply
	code kv.Code
	// reply is the encoded record that follows the header.
	reply []byte

	validity resumeVerdict // slotResume
	fresh    kv.Zxid       // slotResume: the session is known at this zxid
	gone     bool          // slotResume: refused because there is no such session
}

// resumeVerdict is the outcome of a resume.
type resumeVerdict uint8

const (
	resumeNoAnswer resumeVerdict = iota // no leader could be asked
	resumeValid
	resumeRefused // gone, or the password is wrong
)

// ready reports whether the slot can be answered when it is at the head of its ring. conn.mu is held.
func (s *slot) ready() bool {
	return s.done || s.kind == slotRead || s.kind == slotRefused || s.kind == slotAside
}

// reset prepares a slot for another request, keeping its reply buffer.
func (s *slot) reset() {
	reply := s.reply[:0]
	if cap(reply) > maxSlotReply {
		reply = nil
	}
	*s = slot{conn: s.conn, reply: reply}
}

// maxSlotReply bounds the reply buffer that an idle slot keeps.
const maxSlotReply = 512
