package zab

import (
	"kvd/kv"
	"kvd/zab/quorum"
)

// Status is a member's view of itself, for operators, the replica and tests. It shares nothing with the Peer.
type Status struct {
	ID          quorum.MemberID
	Role        Role
	Stage       Stage
	Leader      quorum.MemberID // 0: none
	Epoch       kv.Epoch
	Incarnation Incarnation // of the attempt to lead, here or at the leader
	Durable     DurableState
	Last        kv.Zxid // end of the log, writes in flight included
	Committed   kv.Zxid
	Applied     kv.Zxid // reported by the applier

	// Only at a leader.
	Established      bool
	Resigning        bool
	OutstandingCount int
	OutstandingBytes int
	Learners         []LearnerStatus
	// Supported is the highest level of each kind that every configured voter can serve. It is meaningful only
	// if AllVoters is true: every configured voter is connected and has said what it can serve. The replica
	// proposes the raise.
	Supported Levels
	AllVoters bool
}

// LearnerStatus is one learner as the leader sees it.
type LearnerStatus struct {
	ID       quorum.MemberID
	Link     LinkID
	Voter    bool
	Stage    string
	Synced   bool // its acks count if it is a voter
	UpToDate bool
	Unknown  bool
	Sent     kv.Zxid
	Match    kv.Zxid
	// Lag counts the entries between Match and the end of the log; -1: more than what is kept in memory.
	Lag      int
	Applied  kv.Zxid
	Silent   int // ticks since it was heard
	Protocol VersionRange
	Format   VersionRange
}

// Status describes the member now.
func (p *Peer) Status() Status {
	s := Status{
		ID: p.cfg.ID, Role: p.role, Stage: p.stage, Leader: p.leaderID(), Epoch: p.epoch(), Durable: p.durable,
		Last: p.last, Committed: p.committed, Applied: p.applied,
	}
	if p.learn != nil {
		s.Incarnation = p.learn.inc
	}
	l := p.leader
	if l == nil {
		return s
	}
	s.Incarnation = l.inc
	s.Established, s.Resigning = p.stage == Broadcast, l.resigning
	s.OutstandingCount, s.OutstandingBytes = l.outstandingCount, l.outstandingBytes
	s.Supported, s.AllVoters = p.supported()
	for _, pr := range l.links {
		ls := LearnerStatus{
			ID: pr.peer, Link: pr.link, Voter: pr.voter, Stage: pr.stage.String(), Synced: pr.stage == linkLive, UpToDate: pr.upToDate,
			Unknown: pr.ack.Unknown && pr.stage != linkLive, Sent: pr.cursor, Match: pr.match, Silent: p.now - pr.heard,
			Protocol: pr.protocol, Format: pr.format, Lag: -1,
		}
		if n, _, ok := p.tail.between(pr.match, p.last); ok {
			ls.Lag = n
		}
		if pr.report != nil {
			ls.Applied = pr.report.Applied
		}
		s.Learners = append(s.Learners, ls)
	}
	return s
}

// supported is the highest level that all configured voters can serve, and whether all of them have said so on a
// link that is up: a member that is away may come back older.
func (p *Peer) supported() (Levels, bool) {
	v := Levels{Protocol: p.cfg.Protocol.Max, Format: p.cfg.Format.Max}
	for _, id := range p.cfg.Members.Voters {
		if id == p.cfg.ID {
			continue
		}
		pr := p.leader.find(id)
		if pr == nil || pr.stage == linkOpen {
			return p.cfg.Levels, false
		}
		v.Protocol = min(v.Protocol, pr.protocol.Max)
		v.Format = min(v.Format, pr.format.Max)
	}
	return v, true
}

// OldestNeeded is the oldest point that a running synchronization reads from: the purge must keep the entries
// after it. ok is false if there is no such restriction.
func (p *Peer) OldestNeeded() (z kv.Zxid, ok bool) {
	if p.leader == nil {
		return 0, false
	}
	for _, pr := range p.leader.links {
		switch pr.stage {
		case linkSnapping, linkHistory, linkProving, linkLive:
			if pr.cursor < p.tail.start && (!ok || pr.cursor < z) {
				z, ok = pr.cursor, true
			}
		case linkOpen, linkInfo, linkOffered, linkAcked, linkChoosing:
		}
	}
	return z, ok
}
