package replica

import (
	"errors"
	"fmt"

	"kvd/fle"
	"kvd/kv"
	"kvd/zab"
	"kvd/zab/quorum"
)

// Replica is one member. Create it with New; see the package comment for the rules of use.
type Replica struct {
	cfg      Config
	zab      *zab.Peer
	election *fle.Election
	forming  forming
	view     func() *kv.View
	history  zab.History
	digests  Digests
	now      int64 // ticks of this run
	wallMs   int64 // newest clock reading
	deaf     bool  // of a mutation
	stampMs  int64 // newest stamp given to a transaction: stamps never go back within a run

	role zab.RoleChange // newest role and stage, as zab reported them
	// electing: the election runs; otherwise it waits for the disk to drain, for forming, or a term runs.
	electing  bool
	following following
	// wantElection: the role is Looking and no election has been started for it yet.
	wantElection bool
	aloneAt      int64 // tick from which on a sole survivor leads without votes

	clients clients
	lead    *leader // nil unless the role is Leading
	turns   turns
	audit   audit

	expired, reaped uint64 // sessions and nodes that this member as leader decided to end, in this run

	applied kv.Zxid // as reported by the applier
	handed  kv.Zxid // newest zxid handed to the applier
	levels  zab.Levels

	// link is this member's own to its leader, 0 if there is none.
	link zab.LinkID
	// closing are links on which something impossible arrived.
	closing     []zab.CloseLink
	serving     Serving
	stopping    bool
	stopAt      int64 // tick at which a shutdown stops waiting
	leaving     bool  // shutdown: the role has been given up or is being given up
	stopped     bool
	toldStopped bool

	// Two buffers: Ready hands out one and the inputs fill the other.
	outs [2]Ready
	cur  int
}

// New returns a member in the state that its disk holds. It starts to look for a leader at once, or to form
// an ensemble. It fails if cfg is impossible.
func New(cfg Config, st Start) (*Replica, error) {
	cfg = cfg.withDefaults()
	if err := errors.Join(cfg.validate(), st.validate()); err != nil {
		return nil, err
	}
	el := fle.New(fle.Config{
		ID: cfg.ID, Members: cfg.Members, Rand: cfg.Rand,
		FinalizeTicks: cfg.FinalizeTicks, ResendTicks: cfg.ResendTicks, ResendMaxTicks: cfg.ResendMaxTicks,
		Mutations: cfg.ElectionMutations,
	})
	r := &Replica{
		cfg: cfg, election: el, view: st.View, history: st.History, digests: st.Digests,
		applied: st.Applied, handed: st.Applied, levels: viewLevels(st.View()), wantElection: true,
	}
	if err := r.startBroadcast(st.Durable); err != nil {
		return nil, err
	}
	r.startForming(st)
	r.advanceElection()
	return r, nil
}

// startBroadcast creates the broadcast's state machine from what the disk holds.
func (r *Replica) startBroadcast(d zab.DurableState) error {
	cfg := &r.cfg
	p, err := zab.New(zab.Config{
		ID: cfg.ID, Members: cfg.Members, Incarnation: cfg.Incarnation,
		InitTicks: cfg.InitTicks, SyncTicks: cfg.SyncTicks, StallTicks: cfg.StallTicks, PingTicks: cfg.PingTicks,
		TailBytes: cfg.TailBytes, WindowBytes: cfg.WindowBytes, WindowEntries: cfg.WindowEntries,
		MaxOutstandingBytes: cfg.MaxOutstandingBytes, MaxOutstandingEntries: cfg.MaxOutstandingEntries,
		MaxBatchBytes: cfg.MaxBatchBytes, MaxPayloadBytes: cfg.MaxPayloadBytes, StageBytes: cfg.StageBytes,
		HangMs: cfg.HangMs, DiffShare: cfg.DiffShare,
		Protocol: cfg.Protocol, Format: cfg.Format, Levels: r.levels,
		RolloverCounter: cfg.RolloverCounter, Mutations: cfg.ZabMutations,
	}, d, r.history)
	if err != nil {
		return fmt.Errorf("broadcast: %w", err)
	}
	p.SetTouches(r.takeTouches)
	if r.digests != nil {
		p.SetDigests(r.digests.DigestAt)
	}
	r.zab = p
	return nil
}

func (r *Replica) out() *Ready { return &r.outs[r.cur] }

// Tick advances time by one tick of the shell's loop.
func (r *Replica) Tick(c Clock) {
	r.now++
	jumped := (c.WallMs - r.wallMs) / int64(r.cfg.TickMs)
	r.SetClock(c.WallMs)
	r.zab.Tick()
	r.election.Tick()
	r.tickForming()
	r.tickSole()
	r.tickClients()
	if r.lead != nil {
		r.tickLeader(c.Gap)
		if r.cfg.Mutations.WallClockExpiry && r.lead.open {
			for range jumped - 1 {
				r.expire()
			}
		}
	}
	r.tickTurns()
	r.tickAudit()
	r.tickShutdown()
	r.advanceElection()
}

// SetClock tells the wall clock between ticks, so that stamps are finer than a tick.
func (r *Replica) SetClock(wallMs int64) { r.wallMs = wallMs }

// stamp is the time of a transaction decided now: the wall clock, kept from going back.
func (r *Replica) stamp() int64 {
	r.stampMs = max(r.stampMs, r.wallMs)
	return r.stampMs
}

// LinkUp reports a new link: a learner's to this member, or this member's own dial (dialled).
func (r *Replica) LinkUp(peer quorum.MemberID, link zab.LinkID, dialled bool) {
	r.clients.blocked = false
	if dialled {
		r.clients.endTerm(r) // whether or not the end of the link before was told: nothing more is sure to come of it
		r.link = link
	} else {
		r.election.Followed(peer)
	}
	r.zab.LinkUp(peer, link, dialled)
}

// LinkDown reports the end of a link, for whatever reason.
func (r *Replica) LinkDown(peer quorum.MemberID, link zab.LinkID) {
	r.clients.blocked = false
	if r.lead != nil {
		r.lead.forget(link)
	} else if link == r.link {
		// What was forwarded on it is unknown from here on, also if the same leader is found again at once.
		r.link = 0
		r.clients.endTerm(r)
	}
	r.zab.LinkDown(peer, link)
	r.refreshServing() // a re-epoch that loses its link is no pause any more (P15)
}

// ConnectFailed reports that the dial of zab.Connect.Attempt failed.
func (r *Replica) ConnectFailed(attempt uint64) { r.zab.ConnectFailed(attempt) }

// PeerMessage hands in a message that arrived on a link.
func (r *Replica) PeerMessage(from quorum.MemberID, link zab.LinkID, m zab.Message) {
	r.clients.blocked = false
	r.zab.Step(from, link, m)
}

// Persisted reports that all writes up to seq are durable. A failed write is never reported: the shell stops.
func (r *Replica) Persisted(seq uint64) {
	r.clients.blocked = false
	r.zab.Persisted(seq)
	r.formingDurable()
	r.advanceElection()
}

// Applied reports that the applier has published everything up to z. request is the newest token among the
// applied transactions whose Origin is this member, 0 if there was none: it settles the outstanding
// operations up to it.
func (r *Replica) Applied(z kv.Zxid, request uint64) {
	r.applied = z
	r.clients.blocked = false
	r.clients.settle(request)
	r.zab.Applied(z)
	if lv := viewLevels(r.view()); lv != r.levels {
		r.levels = lv
		r.zab.SetLevels(lv)
		r.event("levels", fmt.Sprintf("protocol=%d format=%d", lv.Protocol, lv.Format))
	}
	r.openLeader()
	if r.lead != nil {
		r.lead.appliedEnds(z)
		r.answerAsked()
	}
	r.refreshServing()
}

// LogRead and the Snapshot methods below, down to SnapshotTaken, answer the
// requests of the same names in zab.Ready; see zab.Peer.
func (r *Replica) LogRead(link zab.LinkID, after kv.Zxid, entries []kv.Entry, err error) {
	r.zab.LogRead(link, after, entries, err)
}

// SnapshotChosen answers a request of zab, like LogRead.
func (r *Replica) SnapshotChosen(link zab.LinkID, z kv.Zxid, chain uint64, ok bool) {
	r.zab.SnapshotChosen(link, z, chain, ok)
}

// SnapshotSent answers a request of zab, like LogRead.
func (r *Replica) SnapshotSent(link zab.LinkID, ok bool) { r.zab.SnapshotSent(link, ok) }

// SnapshotProgress tells zab of a transfer, like LogRead.
func (r *Replica) SnapshotProgress(link zab.LinkID) { r.zab.SnapshotProgress(link) }

// SnapshotReceived answers a request of zab, like LogRead.
func (r *Replica) SnapshotReceived(link zab.LinkID, ref zab.SnapshotRef, ok bool) {
	r.zab.SnapshotReceived(link, ref, ok)
}

// SnapshotTaken reports that a snapshot of this member's own is durable and referenced: base and log start moved.
func (r *Replica) SnapshotTaken(z kv.Zxid, chain uint64, logStart kv.Zxid, logStartChain uint64) {
	r.zab.SnapshotTaken(z, chain, logStart, logStartChain)
}

// SetDisk tells the age of the oldest unfinished write in milliseconds and the free bytes, about once a tick.
func (r *Replica) SetDisk(oldestWriteMs uint32, free uint64) { r.zab.SetDisk(oldestWriteMs, free) }

// SetDiskLow says whether the space for the log is below the low mark.
func (r *Replica) SetDiskLow(low bool) { r.zab.SetLow(low) }

// Full reports that operations which add data are refused with SystemError: see zab.Peer.Full. A shell may refuse them
// itself, in their place in the order, so that they cost no transaction.
func (r *Replica) Full() bool { return r.zab.Full() }

// OldestNeeded is the zxid after which the log must be kept, if a synchronization reads it.
func (r *Replica) OldestNeeded() (kv.Zxid, bool) { return r.zab.OldestNeeded() }

// Durable is what this member holds durably, as far as writes have been reported.
func (r *Replica) Durable() zab.DurableState { return r.zab.Durable() }

// HasReady reports whether Ready would return anything.
func (r *Replica) HasReady() bool {
	return r.zab.HasReady() || r.canPump() || r.hasOut() || (r.stopped && !r.toldStopped)
}

func (r *Replica) hasOut() bool {
	o := r.out()
	return len(o.Elections) > 0 || len(o.Failed) > 0 || len(o.Revalidated) > 0 || len(o.Synced) > 0 ||
		len(o.Events) > 0 || len(r.closing) > 0 || o.Identity != nil || o.Serving != nil || o.SnapshotTurn || o.Diverged != nil
}

// Ready returns what is to be done, in the order of its fields, and expects it to be done. What operations have
// gathered since the last call travels in one batch.
func (r *Replica) Ready() Ready {
	r.pump()
	zr := r.zab.Ready()
	r.absorb(&zr)
	r.advanceElection()

	o := r.out()
	if len(o.Events) > 0 { // gathered by the replica; zab's own come first
		zr.Events = append(append([]zab.Event(nil), zr.Events...), o.Events...)
	}
	if len(r.closing) > 0 {
		zr.CloseLinks = append(append([]zab.CloseLink(nil), zr.CloseLinks...), r.closing...)
		r.closing = nil
	}
	zr.Synced = o.Synced // zab's answers have been turned into these
	res := *o
	res.Ready = zr
	if r.stopped {
		res.Stopped, r.toldStopped = true, true
	}
	r.cur ^= 1
	next := r.out()
	*next = Ready{
		Ready:       zab.Ready{Synced: next.Synced[:0], Events: next.Events[:0]},
		Elections:   next.Elections[:0],
		Failed:      next.Failed[:0],
		Revalidated: next.Revalidated[:0],
	}
	return res
}

// absorb takes from zab's Ready what is addressed to the replica itself.
func (r *Replica) absorb(zr *zab.Ready) {
	for i := range zr.Inbound {
		r.inbound(&zr.Inbound[i])
	}
	for i := range zr.Reports {
		r.report(&zr.Reports[i])
	}
	for _, s := range zr.Synced {
		r.synced(s)
	}
	if zr.Diverged != nil {
		r.out().Diverged, zr.Diverged = zr.Diverged, nil
	}
	if zr.SnapshotTurn {
		r.takeTurn()
	}
	if zr.Restore != nil {
		// A snapshot has no results: what it contains of this member's own operations is never reported. (A re-epoch
		// over existing links can end in one.)
		r.clients.endTerm(r)
		r.handed = max(r.handed, zr.Restore.Zxid)
	}
	for i := range zr.Apply {
		r.handed = zr.Apply[i].Through
	}
	if zr.Role != nil {
		r.roleChanged(*zr.Role)
	}
	zr.Inbound, zr.Reports = nil, nil
}

func (r *Replica) event(kind, text string) {
	o := r.out()
	o.Events = append(o.Events, zab.Event{Kind: kind, Text: text})
}

// Status is a picture of the member for people and metrics.
type Status struct {
	zab.Status
	Serving                       Serving
	Electing                      bool
	Forming                       string // what forming waits for, empty when formed
	Queued, QueuedBytes           int
	Outstanding, OutstandingBytes int
	Connections                   int // that submitted something and were not cancelled
	Syncs                         int // asked for here and not confirmed
	Sessions                      int // with deadlines here; leader only
	// Expired sessions, and containers and nodes with a time to live removed, by this member as leader in this run.
	Expired, Reaped uint64
	// Mismatches is how often this member, as leader, found another member's tree to differ from its own, in this run.
	Mismatches uint64
}

// Expired is how many sessions this member, as leader, has decided to end in this run.
func (r *Replica) Expired() uint64 { return r.expired }

// Status returns the present picture.
func (r *Replica) Status() Status {
	s := Status{
		Status: r.zab.Status(), Serving: r.serving, Electing: r.electing, Forming: r.formingStatus(),
		Queued: r.clients.queue.len(), QueuedBytes: r.clients.queuedBytes,
		Outstanding: r.clients.outstanding.len(), OutstandingBytes: r.clients.outstandingBytes,
		Connections: len(r.clients.conns), Expired: r.expired, Reaped: r.reaped, Mismatches: r.audit.mismatches,
	}
	for i := range r.clients.syncs {
		s.Syncs += len(r.clients.syncs[i].requests)
	}
	if r.lead != nil && r.lead.sessions != nil {
		s.Sessions = len(r.lead.sessions.all)
	}
	return s
}
