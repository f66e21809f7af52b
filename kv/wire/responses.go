package wire

import "kvd/kv"

// PathResponse answers create.
type PathResponse struct{ Path string }

// AppendTo implements Record.
func (p *PathResponse) AppendTo(dst []byte) []byte { return AppendString(dst, p.Path) }

// DecodeFrom implements Record.
func (p *PathResponse) DecodeFrom(r *Reader) { p.Path = r.String() }

// CreateResponse answers create2, createContainer and createTTL.
type CreateResponse struct {
	Path string
	Stat kv.Stat
}

// AppendTo implements Record.
func (p *CreateResponse) AppendTo(dst []byte) []byte {
	return AppendStat(AppendString(dst, p.Path), &p.Stat)
}

// DecodeFrom implements Record.
func (p *CreateResponse) DecodeFrom(r *Reader) { p.Path = r.String(); r.Stat(&p.Stat) }

// StatResponse answers exists, setData and setACL.
type StatResponse struct{ Stat kv.Stat }

// AppendTo implements Record.
func (p *StatResponse) AppendTo(dst []byte) []byte { return AppendStat(dst, &p.Stat) }

// DecodeFrom implements Record.
func (p *StatResponse) DecodeFrom(r *Reader) { r.Stat(&p.Stat) }

// DataResponse answers getData and reconfig. Nil data is null.
type DataResponse struct {
	Data []byte
	Stat kv.Stat
}

// AppendTo implements Record.
func (p *DataResponse) AppendTo(dst []byte) []byte {
	return AppendStat(AppendBuffer(dst, p.Data), &p.Stat)
}

// DecodeFrom implements Record.
func (p *DataResponse) DecodeFrom(r *Reader) { p.Data = r.Buffer(); r.Stat(&p.Stat) }

// ACLResponse answers getACL.
type ACLResponse struct {
	ACL  []kv.ACL
	Stat kv.Stat
}

// AppendTo implements Record.
func (p *ACLResponse) AppendTo(dst []byte) []byte { return AppendStat(AppendACL(dst, p.ACL), &p.Stat) }

// DecodeFrom implements Record.
func (p *ACLResponse) DecodeFrom(r *Reader) { p.ACL = r.ACL(); r.Stat(&p.Stat) }

// NamesResponse answers getChildren and getEphemerals.
type NamesResponse struct{ Names []string }

// AppendTo implements Record.
func (p *NamesResponse) AppendTo(dst []byte) []byte { return AppendStrings(dst, p.Names) }

// DecodeFrom implements Record. The slice is reused.
func (p *NamesResponse) DecodeFrom(r *Reader) { p.Names = r.Strings(p.Names) }

// NamesStatResponse answers getChildren2.
type NamesStatResponse struct {
	Names []string
	Stat  kv.Stat
}

// AppendTo implements Record.
func (p *NamesStatResponse) AppendTo(dst []byte) []byte {
	return AppendStat(AppendStrings(dst, p.Names), &p.Stat)
}

// DecodeFrom implements Record. The slice is reused.
func (p *NamesStatResponse) DecodeFrom(r *Reader) { p.Names = r.Strings(p.Names); r.Stat(&p.Stat) }

// NumberResponse answers getAllChildrenNumber, and addWatch with 0.
type NumberResponse struct{ Number int32 }

// AppendTo implements Record.
func (p *NumberResponse) AppendTo(dst []byte) []byte { return AppendInt32(dst, p.Number) }

// DecodeFrom implements Record.
func (p *NumberResponse) DecodeFrom(r *Reader) { p.Number = r.Int32() }

// Identity is one entry of a whoAmI reply.
type Identity struct{ Scheme, User string }

// WhoAmIResponse answers whoAmI.
type WhoAmIResponse struct{ Identities []Identity }

// AppendTo implements Record.
func (p *WhoAmIResponse) AppendTo(dst []byte) []byte {
	dst = AppendInt32(dst, int32(len(p.Identities)))
	for _, id := range p.Identities {
		dst = AppendString(AppendString(dst, id.Scheme), id.User)
	}
	return dst
}

// DecodeFrom implements Record. The slice is reused; a null vector is read as an empty one.
func (p *WhoAmIResponse) DecodeFrom(r *Reader) {
	n := r.count(8)
	p.Identities = grow(p.Identities, max(n, 0))
	for range n {
		p.Identities = append(p.Identities, Identity{Scheme: r.String(), User: r.String()})
	}
}

// WatcherEvent follows a ReplyHeader with xid -1.
type WatcherEvent struct {
	Type  int32
	State int32 // StateSyncConnected from every server
	Path  string
}

// AppendTo implements Record.
func (e *WatcherEvent) AppendTo(dst []byte) []byte {
	return AppendString(AppendInt32(AppendInt32(dst, e.Type), e.State), e.Path)
}

// DecodeFrom implements Record.
func (e *WatcherEvent) DecodeFrom(r *Reader) {
	e.Type, e.State, e.Path = r.Int32(), r.Int32(), r.String()
}

// AppendEventFrame appends a whole event frame. zxid is that of the change, -1 for an event raised by
// setWatches.
func AppendEventFrame(dst []byte, zxid int64, typ int32, path string) []byte {
	dst, mark := BeginFrame(dst)
	dst = (&ReplyHeader{Xid: XidEvent, Zxid: zxid}).AppendTo(dst)
	dst = (&WatcherEvent{Type: typ, State: StateSyncConnected, Path: path}).AppendTo(dst)
	return EndFrame(dst, mark)
}
