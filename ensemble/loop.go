package ensemble

import (
	"errors"
	"log/slog"
	"time"

	"kvd/ensemble/replica"
	"kvd/ensemble/transport"
	"kvd/kv"
	"kvd/snapshot"
	"kvd/wal"
	"kvd/zab"
)

// loop is the one goroutine that owns the replica. It takes everything that has gathered (events of the
// transport, requests of clients, completions of disk and applier), then ticks if a tick is due, then carries out
// what the replica asks for. Everything it calls is non-blocking and bounded by the protocol's limits.
type loop struct {
	cfg      *Config
	log      *slog.Logger
	replica  *replica.Replica
	inbox    *inbox
	intake   *intake
	wake     *waker // of inbox and intake
	port     *clientPort
	applier  *applier
	wal      *wal.Log
	net      *transport.Transport // nil: a single member
	snaps    *snapshotter
	check    *selfChecker
	reader   *historyReader
	disk     *diskWatch
	clock    *tickClock
	hello    *helloBox
	counters *memberCounters

	stop    chan struct{}
	done    chan struct{}
	fail    func(error) // ends the member
	condemn func(zab.Divergence)
	// stopped is closed when a shutdown has come to its end.
	stopped chan struct{}
	publish func(replica.Status)

	// Owned by the goroutine.
	events   inboxBatch
	requests intakeBatch
	touches  []touchedSession
	lastTick time.Time
	serving  replica.Serving
	applied  kv.Zxid
	// received holds snapshots that arrived and are not installed yet, by the handle the core knows them under.
	received   map[uint64]snapshot.Point
	nextHandle uint64
	// chosen holds the point promised to a link until the core has put its Snap message on it.
	chosen map[zab.LinkID]snapshot.Point
	// streaming holds the point that is being sent on a link: its files must stay.
	streaming map[zab.LinkID]snapshot.Point
	// awaitingSnapshot are requests for a point while there is none.
	awaitingSnapshot []zab.SendSnapshot
	closing          bool // shutdown was asked for
	condemned        bool // the tree is wrong: nobody is answered from it any more
	readOnly         readOnlyClock
	expired          uint64 // as the replica last said
	statusAt         int64
}

// run is the goroutine.
func (l *loop) run() {
	defer close(l.done)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	l.lastTick = time.Now()
	l.carryOutAll()
	for {
		select {
		case <-l.stop:
			return
		case <-l.wake.c:
		case <-ticker.C:
		}
		l.turn(time.Now())
	}
}

// turn is one round of the loop.
func (l *loop) turn(now time.Time) {
	l.replica.SetClock(now.UnixMilli())
	l.route()
	if late := now.Sub(l.lastTick); late >= tick {
		// However long the loop was away, it is one tick: deadlines count only time in which the loop ran, and
		// everything received meanwhile has just been processed (design rule 10).
		gap := late > 2*tick
		if gap {
			l.lastTick = now
		} else {
			l.lastTick = l.lastTick.Add(tick)
		}
		l.tick(now, gap)
	}
	l.carryOutAll()
}

// route hands everything that has gathered to the replica.
func (l *loop) route() {
	l.inbox.drain(&l.events)
	if l.events.persisted > 0 {
		l.replica.Persisted(l.events.persisted)
	}
	if l.events.isApplied {
		l.onApplied(l.events.applied, l.events.request)
	}
	for _, e := range l.events.events {
		e.deliver(l)
	}
	l.intake.drain(&l.requests)
	for i := range l.requests.ops {
		op := &l.requests.ops[i]
		if err := l.replica.Submit(*op); err != nil {
			l.refuse(op.Request, err)
		}
	}
	for _, token := range l.requests.syncs {
		l.replica.SyncRead(token)
	}
	for i := range l.requests.revalidates {
		r := &l.requests.revalidates[i]
		l.replica.Revalidate(r.conn, r.token, r.session, r.password, r.timeoutMs)
	}
	for _, conn := range l.requests.ends {
		l.replica.Cancel(conn)
	}
}

// refuse ends the connection of a request that the replica did not take.
func (l *loop) refuse(token uint64, err error) {
	s := l.intake.take(token)
	switch {
	case s == nil:
	case errors.Is(err, replica.ErrBroken):
		s.conn.close("") // the failure before it is the reason
	default:
		s.conn.close(err.Error())
	}
}

func (l *loop) onApplied(z kv.Zxid, request uint64) {
	l.applied = z
	l.replica.Applied(z, request)
	l.openGate()
}

// openGate opens the client port's gate once the term's beginning is applied here.
func (l *loop) openGate() {
	if l.serving.Open && !l.condemned && l.applied >= l.serving.Since && !l.port.gate.isOpen() {
		l.port.ids.skip(l.port.tree.View())
		if l.port.setGate(true) {
			l.port.touchAll()
			l.counters.gate(true, time.Now())
			l.publish(l.replica.Status())
		}
	}
}

func (l *loop) tick(now time.Time, gap bool) {
	l.clock.advance()
	l.touches = l.port.takeTouches(l.touches)
	for _, t := range l.touches {
		l.replica.Touch(t.id, t.timeoutMs, t.claim)
	}
	l.replica.SetDisk(uint32(l.wal.OldestWrite().Milliseconds()), l.disk.free.Load())
	l.replica.SetDiskLow(l.disk.low.Load())
	if last, ok := l.snaps.newest(); ok {
		l.disk.snapshot.Store(uint64(last.TotalBytes()))
	}
	l.port.full.Store(l.replica.Full())
	l.snaps.tick(l)
	l.replica.Tick(replica.Clock{WallMs: now.UnixMilli(), Gap: gap})
	l.tickReadOnly()
	if n := l.replica.Expired(); n != l.expired {
		l.port.counters.sessionsExpired.Add(int64(n - l.expired))
		l.expired = n
	}
	if l.statusAt++; l.statusAt%statusTicks == 0 {
		l.publish(l.replica.Status())
	}
}

// statusTicks is how often the published status is renewed without any other reason.
const statusTicks = 4

// carryOutAll carries out everything that the replica wants.
func (l *loop) carryOutAll() {
	for l.replica.HasReady() {
		l.carryOut(l.replica.Ready())
	}
}

func (e electionUp) deliver(l *loop)   { l.replica.ElectionUp(e.peer) }
func (e electionDown) deliver(l *loop) { l.replica.ElectionDown(e.peer) }
func (e electionMessage) deliver(l *loop) {
	if kind, ok := replicaKind(e.kind); ok {
		l.replica.ElectionMessage(e.peer, kind, e.payload)
	}
}
func (e linkUp) deliver(l *loop) { l.replica.LinkUp(e.peer, e.link, e.dialled) }
func (e linkDown) deliver(l *loop) {
	l.promiseEnds(e.link)
	delete(l.streaming, e.link)
	l.replica.LinkDown(e.peer, e.link)
}
func (e linkMessage) deliver(l *loop)      { l.replica.PeerMessage(e.peer, e.link, e.msg) }
func (e connectFailed) deliver(l *loop)    { l.replica.ConnectFailed(e.attempt) }
func (e snapshotProgress) deliver(l *loop) { l.replica.SnapshotProgress(e.link) }
func (e snapshotSent) deliver(l *loop) {
	delete(l.streaming, e.link)
	l.check.ask() // only the learner sees whether what arrives is sound
	l.replica.SnapshotSent(e.link, e.err == nil)
}
func (e snapshotReceived) deliver(l *loop) {
	if e.err != nil {
		l.log.Warn("snapshot not received", "error", e.err)
		l.replica.SnapshotReceived(e.link, zab.SnapshotRef{}, false)
		return
	}
	l.nextHandle++
	l.received[l.nextHandle] = e.point
	l.replica.SnapshotReceived(e.link, zab.SnapshotRef{Zxid: e.point.Zxid, Chain: e.point.Chain, Handle: l.nextHandle}, true)
}

// shutdownAsked starts the replica's way out.
type shutdownAsked struct{}

func (shutdownAsked) deliver(l *loop) {
	if !l.closing {
		l.closing = true
		l.port.draining.Store(true)
		l.replica.Shutdown()
	}
}

// identityDone reports a durable identity.
type identityDone struct{}

func (identityDone) deliver(l *loop) {
	l.replica.IdentityPersisted()
	if l.net != nil {
		l.net.IdentityChanged() // connections of the blank time to another cluster's members end
	}
}

// historyRead answers a ReadLog.
type historyRead struct {
	link    zab.LinkID
	after   kv.Zxid
	entries []kv.Entry
	err     error
}

func (e historyRead) deliver(l *loop) { l.replica.LogRead(e.link, e.after, e.entries, e.err) }

// replicaKind and transportKind translate the kinds of election payloads.
func replicaKind(transportKind byte) (byte, bool) {
	switch transportKind {
	case transport.KindNotification:
		return replica.KindNotification, true
	case transport.KindIdentity:
		return replica.KindIdentity, true
	}
	return 0, false
}

func transportKind(replicaKind byte) byte {
	if replicaKind == replica.KindIdentity {
		return transport.KindIdentity
	}
	return transport.KindNotification
}
