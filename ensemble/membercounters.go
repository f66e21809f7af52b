package ensemble

import (
	"sync/atomic"
	"time"

	"kvd/ensemble/replica"
	"kvd/kv"
	"kvd/zab"
)

// memberCounters count what `mntr` shows of the member's part in the ensemble (zookeeper-protocol 10.3). The loop
// writes them, words read them.
type memberCounters struct {
	proposals, learnerProposals atomic.Int64 // proposal_count, learner_proposal_received_count
	commits, learnerCommits     atomic.Int64 // commit_count, learner_commit_received_count
	looking                     atomic.Int64 // looking_count: elections begun
	diffs, snaps                atomic.Int64 // diff_count, snap_count: learners synced from the log, from a snapshot
	proposalSize                sizeGauge    // of this member's proposals since it leads
	leadingSince                atomic.Int64 // milliseconds since 1970; 0: it does not lead

	election, unavailable, leaderUnavailable summary // µs
	followerSync, observerSync               summary
	snapshot, open                           summary

	// Owned by the loop.
	role      zab.Role
	stage     zab.Stage
	lookingAt time.Time // when the present or last election began
	joinedAt  time.Time // when the present leader was found
	shutAt    time.Time // since when clients are not answered; zero: they are
}

// begin starts the clocks of a member that looks for a leader.
func (c *memberCounters) begin(now time.Time) {
	c.lookingAt, c.shutAt = now, now
	c.role = zab.Looking
	c.looking.Add(1)
}

// changed notes a change of role or stage.
func (c *memberCounters) changed(to zab.RoleChange, now time.Time) {
	was := c.role
	c.role, c.stage = to.Role, to.Stage
	if to.Role == zab.Looking {
		c.leadingSince.Store(0)
		if was != zab.Looking {
			c.looking.Add(1)
			c.lookingAt = now
		}
		return
	}
	if was == zab.Looking {
		c.election.addDuration(now.Sub(c.lookingAt))
		c.joinedAt = now
	}
	if to.Role == zab.Leading && was != zab.Leading {
		c.leadingSince.Store(now.UnixMilli())
		c.proposalSize.reset()
	}
}

// gate notes that clients are answered from now on, or no more.
func (c *memberCounters) gate(open bool, now time.Time) {
	if !open {
		if c.shutAt.IsZero() {
			c.shutAt = now
		}
		return
	}
	if c.shutAt.IsZero() {
		return
	}
	c.unavailable.addDuration(now.Sub(c.shutAt))
	switch c.role {
	case zab.Leading:
		c.leaderUnavailable.addDuration(now.Sub(c.shutAt))
	case zab.Following:
		c.followerSync.addDuration(now.Sub(c.joinedAt))
	case zab.Observing:
		c.observerSync.addDuration(now.Sub(c.joinedAt))
	case zab.Looking:
	}
	c.shutAt = time.Time{}
}

// step notes what a step of the replica writes, sends and commits. It is on the path of every write: it looks at
// batches, not at entries, but for the sizes of a leader's proposals.
func (c *memberCounters) step(r *replica.Ready) {
	leads := c.role == zab.Leading
	for i := range r.Writes {
		entries := r.Writes[i].Append
		switch {
		case len(entries) == 0:
		case !leads:
			c.learnerProposals.Add(int64(len(entries)))
		case c.stage == zab.Broadcast:
			c.proposals.Add(int64(len(entries)))
			c.noteSizes(entries)
		}
	}
	if leads {
		for i := range r.Send {
			switch r.Send[i].Msg.(type) {
			case *zab.Diff:
				c.diffs.Add(1)
			case *zab.Snap:
				c.snaps.Add(1)
			}
		}
	}
	for i := range r.Apply {
		n := int64(len(r.Apply[i].Entries))
		if from, to := r.Apply[i].After, r.Apply[i].Through; n == 0 && from.Epoch() == to.Epoch() {
			n = int64(to - from)
		}
		if leads {
			c.commits.Add(n)
		} else {
			c.learnerCommits.Add(n)
		}
	}
}

func (c *memberCounters) noteSizes(entries []kv.Entry) {
	least, most := int64(len(entries[0].Payload)), int64(0)
	for i := range entries {
		n := int64(len(entries[i].Payload))
		least, most = min(least, n), max(most, n)
	}
	c.proposalSize.note(least)
	c.proposalSize.note(most)
	c.proposalSize.note(int64(len(entries[len(entries)-1].Payload)))
}
