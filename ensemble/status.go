package ensemble

import (
	"time"

	"kvd/kv"
	"kvd/zab"
)

// Status is what a member knows about itself at one moment. It is a copy.
type Status struct {
	ID      MemberID
	Role    zab.Role
	Stage   zab.Stage
	Leader  MemberID // 0: none known
	Epoch   kv.Epoch
	Serving bool // clients are being answered
	// Applied is the newest transaction that reads of this member show; Durable the newest one on its disk;
	// Committed the newest one it knows to be committed.
	Applied, Committed, Durable kv.Zxid
	Sessions                    int   // replicated client sessions
	Connections                 int   // client connections of this member
	Refused                     int64 // client connections that a limit refused
	Outstanding                 int   // requests taken in and not answered
	Nodes                       int
	Digest                      uint64 // of the tree at Applied
	Uptime                      time.Duration
	// Suspect says why the member does not vote, empty if it does.
	Suspect string
	// Learners is filled by a leader.
	Learners []LearnerStatus
}

// LearnerStatus is what a leader knows about one learner.
type LearnerStatus struct {
	ID     MemberID
	Synced bool
	Match  kv.Zxid // durable there
	Lag    uint64  // transactions behind the leader's last
}
