package sim

import (
	"kvd/kv"
	"kvd/zab"
	"kvd/zab/quorum"
)

// What directed scenarios do that no member does by itself: bytes and messages that nobody sent, transfers that take their time,
// configurations that differ.

// Inject hands a member bytes as if they had come on the election connection of member from. They need not be a
// notification, and from need not be a member.
func (s *Sim) Inject(from, to quorum.MemberID, kind byte, payload []byte) {
	m := s.member(to)
	s.logf("inject %d->%d kind %d, %d bytes", from, to, kind, len(payload))
	if !m.Up {
		return
	}
	m.rep.ElectionMessage(from, kind, payload)
	m.run()
}

// Forge puts a message on the link from one member to the other, as if its sender had made it. It reports false if there
// is no link. The checks of what a member sends are not asked.
func (s *Sim) Forge(from, to quorum.MemberID, z zab.Message) bool {
	for _, l := range s.links {
		if l.down {
			continue
		}
		for side := range 2 {
			if l.end(side).ID == from && l.end(1-side).ID == to && !l.told[side] && !l.told[1-side] {
				s.logf("forge %d->%d %s", from, to, kindOf(z))
				s.sendLink(l, side, Message{From: from, To: to, Kind: kindOf(z), Zab: z})
				return true
			}
		}
	}
	return false
}

// SlowStreams makes every transfer of a snapshot that begins from now on take so many ticks. Both sides see it move, as
// the transport tells them; 0 ends it.
func (s *Sim) SlowStreams(ticks int) { s.slowStream = ticks }

// trickle is one tick of a slow transfer.
func (s *Sim) trickle(m *Member, l *link, id zab.LinkID, left int, done func()) {
	if left == 0 {
		done()
		return
	}
	s.after(tickMs, m, "snapshot trickle", func() {
		if l.down {
			return
		}
		side := l.side(m)
		m.rep.SnapshotProgress(id)
		if o := l.end(1 - side); o.Up && o.life == l.life[1-side] && s.reachable(m, o) {
			o.rep.SnapshotProgress(l.id[1-side])
			o.run()
		}
		s.trickle(m, l, id, left-1, done)
	})
}

// Configure gives one member another configuration from its next start on: the others do not know of it.
func (s *Sim) Configure(id quorum.MemberID, version uint64, voters []quorum.MemberID, observers []quorum.MemberID) error {
	c, err := quorum.NewConfig(version, voters, observers)
	if err != nil {
		return err
	}
	s.logf("configure %d: voters %v observers %v", id, voters, observers)
	s.member(id).config = &c
	return nil
}

// exists reports whether the simulation has a member of this id: a member's own configuration may name one that
// does not exist.
func (s *Sim) exists(id quorum.MemberID) bool { return id > 0 && int(id) <= len(s.members) }

// InTransit is how many entries and bytes of payload are on their way from one member to another.
func (s *Sim) InTransit(from, to quorum.MemberID) (entries, bytes int) {
	for _, l := range s.links {
		for side := range 2 {
			if l.end(side).ID != from || l.end(1-side).ID != to || l.pipe[side].closed {
				continue // what a side sent before it closed is no longer its own
			}
			for i := range l.pipe[side].queue {
				var es []kv.Entry
				switch z := l.pipe[side].queue[i].msg.Zab.(type) {
				case *zab.Proposal:
					es = z.Entries
				case *zab.Inform:
					es = z.Entries
				}
				entries += len(es)
				for j := range es {
					bytes += len(es[j].Payload)
				}
			}
		}
	}
	return entries, bytes
}

// ShellMutations are deliberate mistakes of the part that carries out what a replica wants, for tests; zero = none.
type ShellMutations struct {
	// IgnoreFailedSync: a write whose sync failed is believed to be on the disk when the next sync succeeds (S32, S33).
	IgnoreFailedSync bool
	// DamageIsATornTail: a member whose last durable entries are gone votes as if they had never been (S35).
	DamageIsATornTail bool
	// SnapshotAhead labels a snapshot with the zxid before the one that it shows.
	SnapshotAhead bool
	// ReferUnsynced has the log refer to a snapshot whose files are not synced.
	ReferUnsynced bool
	// EventsBehindReplies delivers the events of a batch after the replies to what caused them.
	EventsBehindReplies bool
	// NoCatchUp sets a client's watches again when it reconnects, and does not tell what it has missed.
	NoCatchUp bool
}
