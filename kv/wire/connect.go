package wire

import "kvd/kv"

// PasswordBytes is the length of a session's password.
const PasswordBytes = 16

// ConnectRequest is the first frame of a client.
type ConnectRequest struct {
	ProtocolVersion int32 // clients send 0; ignored
	LastZxidSeen    int64
	TimeoutMs       int32
	Session         kv.SessionID // 0: a new session
	Password        []byte       // any length parses, null too; only 16 bytes can be right
	// HasReadOnly: the request carried the flag, which clients up to 3.3 and some others leave out. The reply
	// carries it exactly then: the C client reads a fixed number of bytes.
	HasReadOnly bool
	ReadOnly    bool
}

// AppendTo implements Record.
func (q *ConnectRequest) AppendTo(dst []byte) []byte {
	dst = AppendInt32(dst, q.ProtocolVersion)
	dst = AppendInt64(dst, q.LastZxidSeen)
	dst = AppendInt32(dst, q.TimeoutMs)
	dst = AppendInt64(dst, int64(q.Session))
	dst = AppendBuffer(dst, q.Password)
	if q.HasReadOnly {
		dst = AppendBool(dst, q.ReadOnly)
	}
	return dst
}

// DecodeFrom implements Record.
func (q *ConnectRequest) DecodeFrom(r *Reader) {
	q.ProtocolVersion = r.Int32()
	q.LastZxidSeen = r.Int64()
	q.TimeoutMs = r.Int32()
	q.Session = kv.SessionID(r.Int64())
	q.Password = r.Buffer()
	q.HasReadOnly = r.Len() > 0
	q.ReadOnly = q.HasReadOnly && r.Bool()
}

// ConnectResponse answers it. TimeoutMs 0 with Session 0 and a password of zeros says that the session is
// unknown, expired, or that its password was wrong; the server then closes the connection.
type ConnectResponse struct {
	ProtocolVersion int32 // always 0
	TimeoutMs       int32
	Session         kv.SessionID
	Password        [PasswordBytes]byte
	HasReadOnly     bool // as in the request
	ReadOnly        bool
}

// AppendTo implements Record.
func (p *ConnectResponse) AppendTo(dst []byte) []byte {
	dst = AppendInt32(dst, p.ProtocolVersion)
	dst = AppendInt32(dst, p.TimeoutMs)
	dst = AppendInt64(dst, int64(p.Session))
	dst = AppendInt32(dst, PasswordBytes)
	dst = append(dst, p.Password[:]...)
	if p.HasReadOnly {
		dst = AppendBool(dst, p.ReadOnly)
	}
	return dst
}

// DecodeFrom implements Record. A password that is not 16 bytes long fails.
func (p *ConnectResponse) DecodeFrom(r *Reader) {
	p.ProtocolVersion = r.Int32()
	p.TimeoutMs = r.Int32()
	p.Session = kv.SessionID(r.Int64())
	password := r.Buffer()
	if len(password) != PasswordBytes {
		r.fail()
	}
	copy(p.Password[:], password)
	p.HasReadOnly = r.Len() > 0
	p.ReadOnly = p.HasReadOnly && r.Bool()
}
