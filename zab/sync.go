package zab

import "kvd/kv"

// planKind is the answer of the synchronization table.
type planKind uint8

const (
	planDiff     planKind = iota // only add, after point
	planTrunc                    // drop what is after point, then add
	planSnap                     // install a snapshot, then add
	planAbdicate                 // the learner is ahead: this member must not lead
)

func (k planKind) String() string {
	return [...]string{"DIFF", "TRUNC", "SNAP", "ABDICATE"}[k]
}

// syncPlan says how one learner is brought to the leader's history.
type syncPlan struct {
	kind  planKind
	row   int     // of the table in zab-rules c, phase 2
	point kv.Zxid // DIFF, TRUNC: where the stream starts
	chain uint64  // the leader's digest chain there
	alarm bool    // equal zxids with unequal digests: corruption or a bug
}

// recency is the pair that decides whose history is newer: current epoch first, then the last zxid
// (zab-rules b, vote order; c, phase 1 step 4; S04).
type recency struct {
	current kv.Epoch
	last    kv.Zxid
}

func (a recency) greater(b recency) bool {
	if a.current != b.current {
		return a.current > b.current
	}
	return a.last > b.last
}

// syncCase is the input of the table.
type syncCase struct {
	// The leader: electionOpen until it is established; frozen is its pair at its own epoch ack.
	electionOpen bool
	frozen       recency
	logStart     kv.Zxid
	last         kv.Zxid // end of the whole log, outstanding proposals included
	// locate looks into the whole log: the greatest entry (or log start) at or below z.
	locate func(z kv.Zxid) (at kv.Zxid, chain uint64, ok bool)
	// The learner, as its ACKEPOCH says.
	learner      recency
	chain        uint64
	base         kv.Zxid
	mayLead      bool // a trusted voter: only then is its being ahead a reason to abdicate
	needSnapshot bool // it has refused a DIFF or TRUNC
	diffTooLarge bool // row 8
}

// decide is the synchronization table of zab-rules c, phase 2: rows 0 to 8. The order of the tests is not the
// order of the rows, but exactly one row applies.
func (c *syncCase) decide() syncPlan {
	f := c.learner.last
	if c.electionOpen && c.mayLead && c.learner.greater(c.frozen) {
		return syncPlan{kind: planAbdicate, row: 0}
	}
	if c.needSnapshot {
		return syncPlan{kind: planSnap, row: 6} // "p not present at the follower"
	}
	if f < c.logStart {
		return syncPlan{kind: planSnap, row: 4}
	}
	p, chain, ok := c.locate(f)
	if !ok {
		return syncPlan{kind: planSnap, row: 4}
	}
	switch {
	case p == f && chain != c.chain:
		return syncPlan{kind: planSnap, row: 7, alarm: true}
	case p == f && c.diffTooLarge:
		return syncPlan{kind: planSnap, row: 8}
	case p == f && f == c.last:
		return syncPlan{kind: planDiff, row: 1, point: f, chain: chain}
	case p == f && f == 0:
		return syncPlan{kind: planDiff, row: 2, point: 0, chain: chain}
	case p == f:
		return syncPlan{kind: planDiff, row: 3, point: f, chain: chain}
	case p < c.base:
		return syncPlan{kind: planSnap, row: 6}
	default:
		return syncPlan{kind: planTrunc, row: 5, point: p, chain: chain}
	}
}
