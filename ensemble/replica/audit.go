package replica

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"kvd/kv"
	"kvd/zab"
	"kvd/zab/quorum"
)

// auditPatience is how long, in ticks, a leader waits for the answers.
const auditPatience = 40

// audit compares the trees of members. All have applied the same transactions (the digest chain of the log sees to that), so
// all must have the same digest right after the same one; a member that has another applied one wrongly, or its memory has
// changed beneath it. The leader asks in its PINGs for the digest at one zxid and waits until everybody who follows it has
// answered. Who differs from what a quorum of voters has is wrong, be it the leader itself. Without such a quorum nobody can be
// told to be wrong: it is reported, and everybody goes on.
type audit struct {
	at      kv.Zxid // asked for, 0: nothing
	own     uint64
	until   int64 // tick
	next    int64 // tick of the next question
	answers map[quorum.MemberID]uint64
	// agreed is up to where each member was last seen to agree with the leader, in this term.
	agreed map[quorum.MemberID]kv.Zxid
	last   kv.Zxid // asked for last
	idle   kv.Zxid // applied at the last look
	// told is the finding without a quorum that was reported last.
	told       string
	mismatches uint64
}

func (a *audit) reset() { *a = audit{mismatches: a.mismatches} }

// report takes a learner's answer.
func (a *audit) report(p *zab.PeerReport) {
	if a.at != 0 && p.Reply.DigestAt == a.at {
		a.answers[p.From] = p.Reply.Digest
	}
}

func (r *Replica) tickAudit() {
	a := &r.audit
	if r.lead == nil || !r.lead.open || r.digests == nil {
		return
	}
	if a.at != 0 {
		if r.auditComplete() || r.now >= a.until {
			r.judge()
		}
		return
	}
	if r.now < a.next {
		return
	}
	a.next = r.now + int64(r.cfg.AuditTicks)
	r.askDigests()
}

// askDigests begins a comparison at a zxid that the others have, or will have, a digest of.
func (r *Replica) askDigests() {
	a := &r.audit
	newest := r.digests.NewestDigest()
	at, digest := newest.Zxid, newest.Digest
	now := r.view().Zxid()
	if d, ok := r.digests.DigestAt(now); ok && now == a.idle { // nothing comes: the others end at the same place
		at, digest = now, d
	}
	a.idle = now
	if at == 0 || at < a.last || r.learners() == 0 {
		return
	}
	a.at, a.own, a.until, a.last = at, digest, r.now+auditPatience, at
	a.answers = make(map[quorum.MemberID]uint64)
	r.zab.AskDigests(at)
}

// auditComplete says whether everybody who follows has answered.
func (r *Replica) auditComplete() bool {
	st := r.zab.Status()
	for i := range st.Learners {
		if l := &st.Learners[i]; l.Synced {
			if _, ok := r.audit.answers[l.ID]; !ok {
				return false
			}
		}
	}
	return true
}

// judge ends a comparison.
func (r *Replica) judge() {
	a := &r.audit
	at := a.at
	a.at = 0
	r.zab.AskDigests(0)
	if a.agreed == nil {
		a.agreed = make(map[quorum.MemberID]kv.Zxid)
	}
	var wrong []quorum.MemberID
	for _, id := range slices.Sorted(maps.Keys(a.answers)) {
		if a.answers[id] == a.own {
			a.agreed[id] = at
		} else {
			wrong = append(wrong, id)
		}
	}
	if len(wrong) == 0 {
		a.told = ""
		return
	}
	a.mismatches += uint64(len(wrong))
	digest, known := a.majority(r.cfg.ID, r.cfg.Members)
	switch {
	case !known:
		r.undecided(at, wrong)
	case digest == a.own:
		for _, id := range wrong {
			d := zab.Divergence{After: a.agreed[id], At: at}
			r.event("diverged", fmt.Sprintf("member=%d after=%v at=%v: its tree is not what a quorum has; it is synced again", uint64(id), d.After, d.At))
			r.zab.TellDiverged(id, d)
		}
	default:
		after := kv.Zxid(0)
		for _, id := range wrong {
			after = max(after, a.agreed[id])
		}
		r.out().Diverged = &zab.Divergence{After: after, At: at}
	}
}

// majority is the digest that a quorum of voters has.
func (a *audit) majority(self quorum.MemberID, members quorum.Config) (digest uint64, ok bool) {
	for _, d := range append(slices.Collect(maps.Values(a.answers)), a.own) {
		if members.HasQuorum(func(id quorum.MemberID) bool {
			if id == self {
				return a.own == d
			}
			answer, ok := a.answers[id]
			return ok && answer == d
		}) {
			return d, true
		}
	}
	return 0, false
}

// undecided reports a difference that nobody can judge, once.
func (r *Replica) undecided(at kv.Zxid, wrong []quorum.MemberID) {
	var ids []string
	for _, id := range wrong {
		ids = append(ids, fmt.Sprint(uint64(id)))
	}
	if who := strings.Join(ids, ","); who != r.audit.told {
		r.audit.told = who
		r.event("digests-differ", fmt.Sprintf("at=%v members=%s: their trees differ from the leader's, and no quorum of voters has the same one; nobody is stopped", at, who))
	}
}
