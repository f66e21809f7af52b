package sim

import (
	"kvd/zab"
	"kvd/zab/quorum"
)

// Point is a place in a member's work at which CrashAt can end it.
type Point uint8

// The points. A batch is atomic, so before and after are all there is to a disk write (zab-rules f).
const (
	// BeforeSend: a message is about to be handed to the network and is not.
	BeforeSend Point = iota
	// AfterSend: a message has been handed to the network.
	AfterSend
	// BeforePersist: a batch is about to become durable and does not.
	BeforePersist
	// AfterPersist: batches are durable and the member has not learned of it.
	AfterPersist
)

// CrashAt ends member id at the next point for which match returns true. m is nil at the disk's points.
func (s *Sim) CrashAt(id quorum.MemberID, match func(at Point, m *Message) bool) {
	s.member(id).crashAt = match
}

func (m *Member) crashesAt(at Point, msg *Message) bool {
	if m.crashAt == nil || !m.crashAt(at, msg) {
		return false
	}
	m.crashAt = nil
	m.sim.crash(m, 0)
	return true
}

// kindOf names a message as zab-rules c does.
func kindOf(z zab.Message) string {
	switch z.(type) {
	case *zab.FollowerInfo:
		return "FOLLOWERINFO"
	case *zab.LeaderInfo:
		return "LEADERINFO"
	case *zab.AckEpoch:
		return "ACKEPOCH"
	case *zab.Diff:
		return "DIFF"
	case *zab.Trunc:
		return "TRUNC"
	case *zab.Snap:
		return "SNAP"
	case *zab.NeedSnapshot:
		return "NEEDSNAPSHOT"
	case *zab.Proposal:
		return "PROPOSAL"
	case *zab.Inform:
		return "INFORM"
	case *zab.NewLeader:
		return "NEWLEADER"
	case *zab.AckNewLeader:
		return "ACKNEWLEADER"
	case *zab.UpToDate:
		return "UPTODATE"
	case *zab.Ack:
		return "ACK"
	case *zab.Commit:
		return "COMMIT"
	case *zab.Ping:
		return "PING"
	case *zab.PingReply:
		return "PINGREPLY"
	case *zab.Request:
		return "REQUEST"
	case *zab.Reply:
		return "REPLY"
	case *zab.SyncRequest:
		return "SYNC"
	case *zab.SyncReply:
		return "SYNCREPLY"
	case *zab.Received:
		return "RECEIVED"
	case *zab.Resign:
		return "RESIGN"
	case *zab.Refuse:
		return "REFUSE"
	}
	return "?"
}

// Is returns a filter for messages of a kind; from and to may be 0 for anybody.
func Is(kind string, from, to quorum.MemberID) func(*Message) bool {
	return func(m *Message) bool {
		return m.Kind == kind && (from == 0 || m.From == from) && (to == 0 || m.To == to)
	}
}
