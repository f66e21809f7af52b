package zab

import (
	"kvd/kv"
	"kvd/zab/quorum"
)

// linkStage is how far a learner has come on its link in the current epoch.
type linkStage uint8

const (
	linkOpen     linkStage = iota // nothing heard
	linkInfo                      // FOLLOWERINFO received: waits for the epoch
	linkOffered                   // LEADERINFO sent
	linkAcked                     // ACKEPOCH received: waits for its synchronization to begin
	linkChoosing                  // asked the shell for a snapshot
	linkSnapping                  // SNAP sent, the shell streams files
	linkHistory                   // history is streamed
	linkProving                   // NEWLEADER sent
	linkLive                      // ACK(NEWLEADER) received: its acks count if it is a voter
)

// String names the stage for Status and golden files.
func (s linkStage) String() string {
	return [...]string{"open", "info", "offered", "acked", "choosing", "snapping", "history", "proving", "live"}[s]
}

// progress is one learner as the leader sees it. It belongs to a link: a new link starts with a new one, so no
// credit and no registration survives (design rule 7).
type progress struct {
	peer  quorum.MemberID
	link  LinkID
	voter bool
	stage linkStage
	// waiting: LEADERINFO of the current epoch is due once the running snapshot transfer has ended.
	waiting bool

	// From FOLLOWERINFO.
	accepted         kv.Epoch
	configVersion    uint64
	protocol, format VersionRange
	// From ACKEPOCH of this epoch.
	ack          AckEpoch
	needSnapshot bool
	diffOnly     bool // no snapshot is newer than what it has
	plan         syncPlan

	// cursor is the last entry sent, target where NEWLEADER goes.
	// Invariant: match <= cursor <= last of the leader.
	cursor      kv.Zxid
	cursorChain uint64
	target      kv.Zxid
	match       kv.Zxid // proven durable in this epoch, on this link
	received    kv.Zxid // taken in: flow control only
	window      window
	reading     bool
	upToDate    bool
	commitSent  kv.Zxid

	heard      int // tick of the newest message
	progressAt int // tick of the newest step forward, before linkLive
	probe      uint64
	report     *PingReply
	reportAt   int
	grantTurn  bool
	diverged   Divergence // to be told
}

// counted reports whether the learner's acks count towards a quorum.
func (pr *progress) counted() bool { return pr.voter && pr.stage == linkLive }

// inTransfer reports whether the shell is busy with a snapshot for this link.
func (pr *progress) inTransfer() bool { return pr.stage == linkChoosing || pr.stage == linkSnapping }

// restart forgets everything that belonged to the previous epoch: credit is per link and epoch.
func (pr *progress) restart(now int) {
	pr.ack, pr.needSnapshot, pr.diffOnly, pr.plan = AckEpoch{}, false, false, syncPlan{}
	pr.cursor, pr.cursorChain, pr.target, pr.match, pr.received = 0, 0, 0, 0, 0
	pr.window.clear()
	pr.reading, pr.upToDate, pr.commitSent = false, false, 0
	pr.probe = 0
	pr.progressAt = now
}

// window counts what is on the way to one learner, or to the applier.
type window struct {
	batches []sentBatch // oldest first
	entries int
	bytes   int
}

type sentBatch struct {
	last    kv.Zxid
	entries int
	bytes   int
	sent    int // tick
}

func (w *window) add(b sentBatch) {
	w.batches = append(w.batches, b)
	w.entries += b.entries
	w.bytes += b.bytes
}

// ack opens the window for everything up to z.
func (w *window) ack(z kv.Zxid) {
	n := 0
	for n < len(w.batches) && w.batches[n].last <= z {
		w.entries -= w.batches[n].entries
		w.bytes -= w.batches[n].bytes
		n++
	}
	if n > 0 {
		w.batches = w.batches[:copy(w.batches, w.batches[n:])]
	}
}

// windowFull is for a mutation: some learner takes no more for now.
func (l *leader) windowFull(entries int) bool {
	for _, pr := range l.links {
		if pr.stage == linkLive && pr.window.entries >= entries {
			return true
		}
	}
	return false
}

func (w *window) clear() { *w = window{batches: w.batches[:0]} }

// oldest returns the tick at which the oldest unacked batch was sent.
func (w *window) oldest() (tick int, ok bool) {
	if len(w.batches) == 0 {
		return 0, false
	}
	return w.batches[0].sent, true
}
