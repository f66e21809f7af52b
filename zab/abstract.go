package zab

import (
	"encoding/binary"
	"fmt"
	"slices"

	"kvd/kv"
	"kvd/zab/quorum"
)

// AppendAbstract appends a form of the state that is equal for members that will behave equally from here on, whatever
// their past was. It forgets more than AppendCanonical and is for exhaustive exploration in which
//
//   - no limit of time or size of Config is ever reached, so that ticks only start PING rounds and due dials, and
//     ticks since start, ages of writes, of links and of phases, and window fill mean nothing;
//   - ConnectFailed, SetDisk, SetSnapshotState, SetTouches and SetLevels are not called, and Applied follows each Apply;
//   - Ready has been carried out (it panics otherwise), with the writes handed out described elsewhere.
//
// Numbers that are only ever compared for equality are named afresh: sequence numbers and generations relative to the
// present, attempts to dial not at all (only the newest is awaited), links by what link returns, which must be different for
// different links that are up at this member and may be anything for one that is down. Values that are overwritten
// before they are read again are left out; each such omission names its reason.
func (p *Peer) AppendAbstract(dst []byte, link func(LinkID) uint64) []byte {
	if p.dirty {
		panic("zab: AppendAbstract before Ready was carried out")
	}
	a := abstract{dst, link}
	d := &p.durable
	a.num(uint64(d.Accepted.Epoch), uint64(d.Accepted.To), uint64(d.Current), uint64(d.Base), uint64(d.LogStart), uint64(d.Last), d.LastChain, asBit(d.Unknown))
	a.num(uint64(p.last), p.lastChain, uint64(p.committed), uint64(p.applying), uint64(p.applied), uint64(p.role)<<8|uint64(p.stage))
	a.num(uint64(len(p.inflight)))
	for i := range p.inflight {
		w := &p.inflight[i]
		a.num(uint64(w.kind)<<1|asBit(w.generation == p.generation), a.name(w.link), uint64(w.epoch), uint64(w.current), uint64(w.last), w.lastChain, asBit(w.trusted))
		a.promise(w.promise)
		a.ref(w.install)
	}
	t := &p.tail
	a.num(uint64(t.start), t.startChain, uint64(len(t.chunks)), asBit(t.newest >= chunkBytes))
	for _, c := range t.chunks { // where chunks end decides where messages are cut
		a.entries(c)
	}
	a.ref(p.restore)
	a.num(asBit(p.start != nil))
	if p.start != nil {
		a.num(uint64(p.start.role), uint64(p.start.leader))
	}
	a.leader(p)
	a.learner(p.learn)
	a.num(uint64(len(p.parked)))
	for _, k := range p.parked {
		a.num(uint64(k.peer), a.name(k.link), uint64(len(k.msgs)))
		for _, m := range k.msgs {
			a.b = AppendMessageForm(a.b, m)
		}
	}
	return a.b
}

type abstract struct {
	b    []byte
	link func(LinkID) uint64
}

func asBit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func (a *abstract) num(vs ...uint64) {
	for _, v := range vs {
		a.b = binary.LittleEndian.AppendUint64(a.b, v)
	}
}

func (a *abstract) name(l LinkID) uint64 {
	if l == 0 {
		return 0
	}
	return 1 + a.link(l)
}

// entries: the digest stands for payload and past.
func (a *abstract) entries(es []kv.Entry) {
	a.num(uint64(len(es)))
	for i := range es {
		a.num(uint64(es[i].Zxid), es[i].Chain)
	}
}

func (a *abstract) promise(v *Promise) {
	if v == nil {
		a.num(0)
		return
	}
	a.num(1, uint64(v.Epoch), uint64(v.To))
}

func (a *abstract) ref(v *SnapshotRef) {
	if v == nil {
		a.num(0)
		return
	}
	a.num(1, uint64(v.Zxid), v.Chain, v.Handle)
}

func (a *abstract) leader(p *Peer) {
	l := p.leader
	if l == nil {
		a.num(0)
		return
	}
	a.num(1, uint64(l.inc), uint64(l.epoch), asBit(l.promised)|asBit(l.selfSynced)<<1|asBit(l.everEstablished)<<2|asBit(l.resigning)<<3,
		uint64(l.wantEpoch), l.probe, uint64(len(l.links)), uint64(len(l.syncs)))
	if p.stage == Discovery { // a new epoch begins both anew; established, nobody asks for recency
		acks := slices.Clone(l.epochAcks)
		slices.Sort(acks)
		a.num(uint64(len(acks)))
		for _, id := range acks {
			a.num(uint64(id))
		}
	}
	if p.stage != Broadcast {
		a.num(uint64(l.frozen.current), uint64(l.frozen.last), l.frozenChain)
	} else {
		a.num(uint64(l.next))
	}
	for _, s := range l.syncs {
		a.num(uint64(s.to), a.name(s.link), s.id, s.probe, uint64(s.zxid))
	}
	for _, pr := range l.links {
		a.progress(pr)
	}
	if l.keptMatch != nil {
		for id := quorum.MemberID(1); id <= 255; id++ { // used by mutations only
			if l.keptMatch[id] != 0 || l.keptCursor[id] != 0 {
				a.num(uint64(id), uint64(l.keptMatch[id]), uint64(l.keptCursor[id]))
			}
		}
	}
}

func (a *abstract) progress(pr *progress) {
	a.num(uint64(pr.peer), a.name(pr.link), uint64(pr.stage), uint64(pr.accepted), pr.configVersion, pr.probe,
		asBit(pr.voter)|asBit(pr.waiting)<<1|asBit(pr.reading)<<2|asBit(pr.upToDate)<<3|asBit(pr.grantTurn)<<4,
		uint64(pr.cursor), pr.cursorChain, uint64(pr.match), uint64(pr.commitSent))
	if pr.stage < linkLive { // a live link never goes back to choosing a history, except through restart
		a.num(uint64(pr.target), uint64(pr.received), asBit(pr.needSnapshot), asBit(pr.diffOnly))
		a.b = AppendMessageForm(a.b, &pr.ack)
		a.num(uint64(pr.plan.kind), uint64(pr.plan.row), uint64(pr.plan.point), pr.plan.chain)
	}
}

func (a *abstract) learner(f *learner) {
	if f == nil {
		a.num(0)
		return
	}
	a.num(1, uint64(f.leader), a.name(f.link), uint64(f.stage), uint64(f.epoch), uint64(f.inc), asBit(f.retry), uint64(len(f.staged)), uint64(len(f.syncs)))
	a.num(f.syncs...)
	switch f.stage {
	case learnDialing, learnInfo, learnPromising, learnAcked, learnRefused, learnSnapshot, learnHistory:
		a.ref(f.install)
		a.num(asBit(f.truncate != nil))
		if f.truncate != nil {
			a.num(uint64(*f.truncate))
		}
		a.num(uint64(f.snapZxid), f.snapChain, uint64(f.received), f.receivedChain, uint64(f.receivedSent), uint64(f.pendingCommit))
		a.entries(f.buffer)
	case learnProving, learnProven, learnServing: // the stream has been handed to the disk
		a.num(uint64(f.pendingCommit))
		if f.stage != learnProving { // set with the ack of NEWLEADER
			a.num(uint64(f.ackSent))
		}
	}
}

// AppendMessageForm appends m in a form that is equal for equal messages: for state hashing, with none of the care for other
// versions that the wire takes. Texts are left out: they are for people.
func AppendMessageForm(dst []byte, m Message) []byte {
	a := abstract{b: dst}
	switch m := m.(type) {
	case *FollowerInfo:
		a.num(kindFollowerInfo, uint64(m.Accepted), uint64(m.PromisedTo), m.ConfigVersion,
			uint64(m.Protocol.Min), uint64(m.Protocol.Max), uint64(m.Format.Min), uint64(m.Format.Max))
	case *LeaderInfo:
		a.num(kindLeaderInfo, uint64(m.Epoch), uint64(m.Incarnation), m.ConfigVersion, uint64(m.Levels.Protocol), uint64(m.Levels.Format),
			uint64(m.Protocol.Min), uint64(m.Protocol.Max), uint64(m.Format.Min), uint64(m.Format.Max))
	case *AckEpoch:
		a.num(kindAckEpoch, uint64(m.Epoch), uint64(m.Current), uint64(m.Last), m.Chain, uint64(m.Base), asBit(m.AlreadyPromised)|asBit(m.Unknown)<<1)
	case *Diff:
		a.num(kindDiff, uint64(m.After))
	case *Trunc:
		a.num(kindTrunc, uint64(m.To), m.Chain)
	case *Snap:
		a.num(kindSnap, uint64(m.Zxid), m.Chain)
	case *NeedSnapshot:
		a.num(kindNeedSnapshot)
	case *Proposal:
		a.num(kindProposal, uint64(m.Prev), m.PrevChain, uint64(m.Commit))
		a.entries(m.Entries)
	case *Inform:
		a.num(kindInform, uint64(m.Prev), m.PrevChain)
		a.entries(m.Entries)
	case *NewLeader:
		a.num(kindNewLeader, uint64(m.Epoch), uint64(m.Last), m.Chain, uint64(m.Commit))
	case *AckNewLeader:
		a.num(kindAckNewLeader, uint64(m.Epoch), uint64(m.Last))
	case *UpToDate:
		a.num(kindUpToDate, uint64(m.Epoch), uint64(m.Commit))
	case *Ack:
		a.num(kindAck, uint64(m.Epoch), uint64(m.Zxid))
	case *Commit:
		a.num(kindCommit, uint64(m.Epoch), uint64(m.Zxid))
	case *Ping:
		a.num(kindPing, uint64(m.Epoch), m.Probe, uint64(m.Commit), asBit(m.SnapshotTurn))
	case *PingReply:
		a.num(kindPingReply, uint64(m.Epoch), m.Probe, uint64(m.Applied))
	case *Request:
		a.num(kindRequest, uint64(len(m.Payload)))
		a.b = append(a.b, m.Payload...)
	case *Reply:
		a.num(kindReply, uint64(len(m.Payload)))
		a.b = append(a.b, m.Payload...)
	case *SyncRequest:
		a.num(kindSyncRequest, m.ID)
	case *SyncReply:
		a.num(kindSyncReply, m.ID, uint64(m.Zxid))
	case *Resign:
		a.num(kindResign, uint64(m.Epoch))
	case *Refuse:
		a.num(kindRefuse, asBit(m.NotLeading))
	case *Received:
		a.num(kindReceived, uint64(m.Epoch), uint64(m.Zxid))
	default:
		panic(fmt.Sprintf("zab: no form for %T", m))
	}
	return a.b
}

// Glance is what an exploration and its checkers ask after every step. Unlike Status it costs nothing.
type Glance struct {
	Role        Role
	Stage       Stage
	Leader      quorum.MemberID
	Epoch       kv.Epoch
	Incarnation Incarnation
	Committed   kv.Zxid
	// Reigns: this member leads and has been established in this attempt, whatever the stage is now.
	Reigns bool
	// Redial: it waits for a tick to dial its leader again.
	Redial bool
}

// Glance describes the member now.
func (p *Peer) Glance() Glance {
	g := Glance{Role: p.role, Stage: p.stage, Leader: p.leaderID(), Epoch: p.epoch(), Committed: p.committed}
	if l := p.leader; l != nil {
		g.Incarnation, g.Reigns = l.inc, l.everEstablished
	}
	if f := p.learn; f != nil {
		g.Incarnation, g.Redial = f.inc, f.retry && f.link == 0
	}
	return g
}
