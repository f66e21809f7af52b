package zab

// Mutations are deliberate mistakes, switched on by tests only. Each one breaks a rule that a checker must
// notice; a checker that stays silent under one of them proves nothing (zab-rules d, mutation list).
type Mutations struct {
	// AckBeforeSync: a learner acks an entry when it hands the write out, and the leader counts its own
	// entries at once (zab-rules, idea 3).
	AckBeforeSync bool
	// AckNewLeaderBeforeBatch: ACK(NEWLEADER) leaves when NEWLEADER arrives (S15).
	AckNewLeaderBeforeBatch bool
	// CurrentEpochBeforeHistory: the current epoch is one write, the history a second, later one (S14).
	CurrentEpochBeforeHistory bool
	// RecencyCheckSkipped: a prospective leader never abdicates on an ACKEPOCH (S10).
	RecencyCheckSkipped bool
	// RecencyByZxidOnly: the check compares the last zxid and ignores the current epoch (S04).
	RecencyByZxidOnly bool
	// TruncateAgainstCommitted: the synchronization point is looked up in the committed part of the leader's
	// log only, and the acks of a member's earlier link keep counting.
	TruncateAgainstCommitted bool
	// RegistrationKeptAcrossLinks: the cursor of a member's earlier link goes on on its new link, whatever
	// the synchronization says. In this design the learner would notice at once, because each batch names its
	// predecessor; so the learner's check is off too, which is what ZooKeeper's learners do.
	RegistrationKeptAcrossLinks bool
	// CountAlreadyPromised: an ACKEPOCH with the "already promised" mark counts (S07).
	CountAlreadyPromised bool
	// AcceptHoles: a learner appends a batch whatever precedes it. It shows only where something loses a
	// message in the middle of a link, so a checker has to do that too.
	AcceptHoles bool

	// The following are noticed by the catalogue's scripts in ensemble/sim, each by that of its scenario.

	// SyncWithoutRound: a leader answers SYNC from its own commit point, without asking anybody (S36).
	SyncWithoutRound bool
	// CommitNewestAck: the newest ack commits, however few hold the entry (S37).
	CommitNewestAck bool
	// RolloverByElection: a leader whose counter is exhausted steps down (S39).
	RolloverByElection bool
	// IgnoreSilence: a learner whose link stands counts as heard from, however long it says nothing (S41, S42, S44).
	IgnoreSilence bool
	// IgnoreOwnHang: a leader does not look at the age of its own writes (S43).
	IgnoreOwnHang bool
	// CountObservers: a leader keeps its place with the observers that it hears (S54).
	CountObservers bool
	// AbsoluteInitLimit: the progress of a snapshot transfer does not move its deadline (S55).
	AbsoluteInitLimit bool
	// WaitForSlowest: a leader takes no proposals while a learner's window is full (S56).
	WaitForSlowest bool
	// RefuseHigherPromise: a learner that has promised more than this epoch is turned away, until some later
	// election happens to exceed its promise (S62).
	RefuseHigherPromise bool
	// OfferBeforePromise: LEADERINFO leaves when the leader's own promise is handed to the disk (S08).
	OfferBeforePromise bool
	// PromiseCountsOnce: a learner that comes again says "already promised", also to the attempt that it promised to (S09).
	PromiseCountsOnce bool
	// HideUnknown: a member that may have forgotten something says nothing of it, and votes (S27).
	HideUnknown bool
}
