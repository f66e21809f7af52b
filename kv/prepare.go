package kv

import (
	"fmt"
	"slices"
)

// Preparer is the leader's door: it decides requests, in the order of their zxids, against the current view and
// what is in flight, and turns each into a transaction that every member can carry out blindly. It is owned by
// one goroutine, the member's loop. The tree may be applied to at the same time.
type Preparer struct {
	view func() *View
	opt  PreparerOptions
	overlay
	cur  *View // during Prepare
	seen int   // pending nodes looked at during Prepare to count what is used
	last Zxid  // of the newest prepared transaction
	now  int64 // of the transaction being prepared
	acl  []byte

	undoable bool // the last Prepare has not been undone
}

// PreparerOptions are the settings that a decision depends on. They are the leader's: members may differ in them for
// as long as they are being changed, since what was decided is carried out blindly.
type PreparerOptions struct {
	ExtendedTypes  bool // nodes with a time to live (extendedTypesEnabled)
	EnforceQuota   bool // hard quotas refuse (enforceQuota)
	SkipACL        bool // nobody is refused for a list (skipACL)
	DigestDisabled bool // lists cannot name the digest scheme (DigestAuthenticationProvider.enabled=false)
	X509, SASL     bool // lists can name these schemes, which members have that are configured for them
	Ensemble       bool // the data version of /zookeeper/config is -1 (zookeeper-protocol 5.3)

	Mutations Mutations
}

// Mutations are deliberate mistakes for the tests that show that a checker catches them. The zero value has none.
type Mutations struct {
	// IgnoreInFlight decides against what is applied, as if nothing were in flight.
	IgnoreInFlight bool
}

// NewPreparer returns a Preparer. view returns the newest applied view; its zxid never goes back between calls,
// except across a Reset.
func NewPreparer(view func() *View, o PreparerOptions) *Preparer {
	p := &Preparer{view: view, opt: o}
	p.init()
	return p
}

// Reset forgets everything in flight: the reign of this leader is over, or has not begun.
func (p *Preparer) Reset() {
	p.init()
	p.last, p.undoable = 0, false
}

// InFlight returns how many changed facts are newer than the view was at the last Prepare.
func (p *Preparer) InFlight() int { return len(p.marks) - p.head }

// Prepare decides r and appends the transaction's payload to dst. It always yields one: a request that is refused
// becomes a transaction that changes nothing and carries the reason. z is the zxid it will be proposed under; it
// must be greater than that of every earlier call since Reset. h says who asks (Origin, Request) and what time it
// is (Time); its other fields are filled in from r. The payload holds copies of r's data, but paths of r are kept
// until the transaction is applied, so they must be immutable strings of their own.
func (p *Preparer) Prepare(dst []byte, z Zxid, h TxnHeader, r *Request) []byte {
	if p.opt.Mutations.IgnoreInFlight {
		p.init()
	}
	p.cur, p.now, p.seen = p.view(), h.Time, 0
	p.enter(p.cur, z)
	h.Session, h.Kind, h.Err = r.Session, r.Op, CodeOK
	start := len(dst)
	dst = appendTxnHeader(slices.Grow(dst, payloadSize(r)), &h)
	var failed int
	if r.Op == OpMulti {
		dst, failed, h.Err = p.multi(dst, z, r)
	} else {
		var code Code
		if code = p.admit(r); code == CodeOK {
			dst, code = p.one(dst, z, r)
		}
		h.Err = code
	}
	if h.Err != CodeOK {
		p.rollback(z)
		dst = appendTxnHeader(dst[:start], &h)
		if r.Op == OpMulti {
			dst = appendRefusedMulti(dst, len(r.Ops), failed)
		}
	}
	p.cur = nil
	return dst
}

// payloadSize is a little more than what the transaction of r takes, so that a payload is allocated once.
func payloadSize(r *Request) int {
	n := 56 + len(r.Path) + len(r.Data) // header, lengths, versions, suffix
	for i := range r.ACL {
		n += 12 + len(r.ACL[i].Scheme) + len(r.ACL[i].ID)
	}
	for i := range r.Ops {
		n += payloadSize(&r.Ops[i])
	}
	return n
}

// PrepareError appends the payload of a transaction that changes nothing and tells the origin why its request was
// refused: one that could not be decoded, or whose session has moved. h.Session and h.Kind are the caller's. z is
// as in Prepare.
func (p *Preparer) PrepareError(dst []byte, z Zxid, h TxnHeader, code Code) []byte {
	if code == CodeOK {
		panic("kv: prepare an error without a code")
	}
	v := p.view()
	p.enter(v, z)
	h.Err = code
	dst = appendTxnHeader(dst, &h)
	if h.Kind == OpMulti {
		dst = appendRefusedMulti(dst, 0, -1)
	}
	return dst
}

// enter begins the transaction z against the view v.
func (p *Preparer) enter(v *View, z Zxid) {
	if z <= p.last || z <= v.zxid {
		panic(fmt.Sprintf("kv: prepare zxid %v, last prepared %v, applied %v", z, p.last, v.zxid))
	}
	p.trim(v.zxid)
	p.last, p.undoable = z, true
}

// Session returns a session as it will be when everything in flight is applied.
func (p *Preparer) Session(id SessionID) (Session, bool) {
	v := p.view()
	if s := p.sessions[id]; s != nil && s.zxid > v.zxid {
		if !s.open {
			return Session{}, false
		}
		if s.made != nil {
			return *s.made, true
		}
	}
	return v.Session(id)
}

// Undo takes back the last Prepare, whose transaction was not proposed after all. It must come before the next
// Prepare; the same zxid may then be used again.
func (p *Preparer) Undo() {
	if !p.undoable {
		panic("kv: nothing to undo")
	}
	p.undoable = false
	p.rollback(p.last)
	p.last--
}

// appendRefusedMulti ends the payload of a refused multi; failed is -1 if it was refused as a whole.
func appendRefusedMulti(dst []byte, total, failed int) []byte {
	if failed < 0 {
		return appendUvarint(dst, 0)
	}
	return appendUvarint(appendUvarint(dst, uint64(total)), uint64(failed))
}

// admit makes the checks that come before those of the operation itself.
func (p *Preparer) admit(r *Request) Code {
	switch r.Op {
	case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL:
		if code := p.checkForm(r); code != CodeOK {
			return code
		}
		if code := p.checkSession(r); code != CodeOK {
			return code
		}
		return checkLocal(r)
	case OpDelete, OpSetData, OpSetACL:
		return p.checkSession(r)
	case OpDeleteContainer:
		if r.Session == 0 {
			return CodeOK
		}
	case OpCreateSession, OpCloseSession, OpSetLevels, OpSetConfig:
		return CodeOK
	}
	return CodeUnimplemented
}

// isCreate reports whether an operation makes a node.
func isCreate(o Op) bool {
	switch o {
	case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL:
		return true
	}
	return false
}

// checkForm makes the checks of a create that come before the session's (zookeeper-protocol 3.3, checks 2 to 4). A
// createTTL of a mode that has no time to live is refused in every case, also the one that ZooKeeper lets pass and dies
// of.
func (p *Preparer) checkForm(r *Request) Code {
	withTTL := r.Flags == FlagTTL || r.Flags == FlagSequentialTTL
	switch {
	case r.Flags < 0 || r.Flags > maxCreateFlag:
		return CodeBadArguments
	case withTTL && !p.opt.ExtendedTypes:
		return CodeUnimplemented
	case withTTL != (r.Op == OpCreateTTL):
		return CodeBadArguments
	case withTTL && !validTTL(r.TTL):
		return CodeBadArguments
	}
	return CodeOK
}

// checkSession refuses a session that is closed or being closed.
func (p *Preparer) checkSession(r *Request) Code {
	if !r.Local && !p.sessionOpen(r.Session) {
		return CodeSessionExpired
	}
	return CodeOK
}

// checkLocal refuses ephemeral nodes to a session that the other members do not know.
func checkLocal(r *Request) Code {
	if r.Local && (r.Flags == FlagEphemeral || r.Flags == FlagEphemeralSequential) {
		return CodeEphemeralOnLocalSession
	}
	return CodeOK
}

// may reports whether the request passes a list. The leader's own requests pass every list.
func (p *Preparer) may(r *Request, l AccessList, perms int32) bool {
	return l == "" || r.Session == 0 || p.opt.SkipACL || l.Allows(r.Auth, perms)
}

// sessionOpen reports whether a session may still write. Session 0 is the leader itself.
func (p *Preparer) sessionOpen(id SessionID) bool {
	if id == 0 {
		return true
	}
	if s := p.sessions[id]; s != nil {
		return s.open
	}
	return p.cur.hasSession(id)
}

// facts returns the facts of a node after everything in flight.
func (p *Preparer) facts(path string) nodeFacts {
	if n, ok := p.nodes[watchPath(path)]; ok {
		return n.facts
	}
	f := p.cur.facts(path)
	if p.opt.Ensemble && path == ConfigPath {
		f.version = -1
	}
	return f
}

// multi decides a multi: all of its operations or none. failed is the operation that was refused, -1 if the multi
// is refused as a whole.
func (p *Preparer) multi(dst []byte, z Zxid, r *Request) (_ []byte, failed int, _ Code) {
	if len(r.Ops) > maxTxnOps {
		return dst, -1, CodeMarshallingError
	}
	for i := range r.Ops {
		o := &r.Ops[i]
		if !inMulti(o.Op) {
			return dst, -1, CodeMarshallingError
		}
		if isCreate(o.Op) && (o.Flags < 0 || o.Flags > maxCreateFlag) {
			return dst, -1, CodeMarshallingError
		}
	}
	if code := p.checkSession(r); code != CodeOK {
		return dst, -1, code
	}
	dst = appendUvarint(dst, uint64(len(r.Ops)))
	for i := range r.Ops {
		o := r.Ops[i]
		o.Session, o.Auth, o.Local = r.Session, r.Auth, r.Local
		code := CodeOK
		if isCreate(o.Op) {
			if code = p.checkForm(&o); code == CodeOK {
				code = checkLocal(&o)
			}
		}
		if code == CodeOK {
			dst = appendVarint(dst, int64(o.Op))
			dst, code = p.one(dst, z, &o)
		}
		if code != CodeOK {
			return dst, i, code
		}
	}
	return dst, 0, CodeOK
}
