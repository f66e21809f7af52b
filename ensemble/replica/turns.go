package replica

import (
	"fmt"
	"slices"

	"kvd/kv"
	"kvd/zab"
	"kvd/zab/quorum"
)

// firstLevel is what an ensemble starts with, before any level was replicated.
const firstLevel = 1

// levelsEvery is how often, in ticks, a leader looks whether the active levels could be raised.
const levelsEvery = 10

// turnPatience is how many ticks a member that was granted a snapshot turn may take to begin.
const turnPatience = 40

// turns lets one member at a time write a snapshot of its own (design 5). The leader grants, members report their
// wish and their progress in PING replies; a member without a leader grants itself.
type turns struct {
	want, active bool // of this member, as the shell said

	wishes  []turnWish // of learners, leader only, ascending by id
	holder  quorum.MemberID
	granted int64           // tick
	begun   bool            // the holder was seen writing
	last    quorum.MemberID // the latest holder
}

type turnWish struct {
	id           quorum.MemberID
	want, active bool
	at           int64 // tick of the report
}

// SetSnapshot tells whether this member would like to write a snapshot, and whether it is writing one.
func (r *Replica) SetSnapshot(want, active bool) {
	r.turns.want, r.turns.active = want, active
	r.zab.SetSnapshotState(want, active)
}

func (t *turns) reset() { t.wishes, t.holder, t.begun = nil, 0, false }

func (t *turns) report(p *zab.PeerReport, now int64) {
	w := turnWish{p.From, p.Reply.WantSnapshot, p.Reply.SnapshotActive, now}
	for i := range t.wishes {
		if t.wishes[i].id == p.From {
			t.wishes[i] = w
			return
		}
	}
	t.wishes = append(t.wishes, w)
}

// takeTurn passes a turn on to the shell, if it still wants it.
func (r *Replica) takeTurn() {
	if r.turns.want && !r.turns.active {
		r.out().SnapshotTurn = true
	}
}

func (r *Replica) tickTurns() {
	t := &r.turns
	switch {
	case r.role.Role == zab.Looking:
		if t.want && !t.active && t.granted+turnPatience <= r.now {
			t.granted = r.now
			r.takeTurn()
		}
		return
	case r.lead == nil || !r.lead.open:
		return
	}
	r.raiseLevels()
	// Who is silent for so long has died, perhaps while it wrote, or has no link: its turn is over.
	t.wishes = slices.DeleteFunc(t.wishes, func(w turnWish) bool { return r.now-w.at > int64(max(turnPatience, r.cfg.SyncTicks)) })
	if t.holder != 0 {
		want, active := t.want, t.active
		if t.holder != r.cfg.ID {
			want, active = false, false
			for _, w := range t.wishes {
				if w.id == t.holder {
					want, active = w.want, w.active
				}
			}
		}
		t.begun = t.begun || active
		late := r.now-t.granted > turnPatience
		if active || (!t.begun && want && !late) {
			return
		}
		t.holder, t.begun = 0, false
	}
	// The next one after the last holder, so that nobody is passed over for ever.
	next := quorum.MemberID(0)
	ids := append([]turnWish{{r.cfg.ID, t.want, t.active, r.now}}, t.wishes...)
	for _, w := range ids {
		if w.active {
			return // somebody still writes, from an earlier term perhaps
		}
	}
	for _, w := range ids {
		if w.want && (next == 0 || t.before(w.id, next)) {
			next = w.id
		}
	}
	if next == 0 {
		return
	}
	t.holder, t.granted, t.last = next, r.now, next
	if next == r.cfg.ID {
		r.takeTurn()
	} else {
		r.zab.GrantSnapshotTurn(next)
	}
}

// before orders candidates cyclically, starting after the last holder.
func (t *turns) before(a, b quorum.MemberID) bool {
	aw, bw := a <= t.last, b <= t.last
	if aw != bw {
		return bw
	}
	return a < b
}

func viewLevels(v *kv.View) zab.Levels {
	l := v.Levels()
	return zab.Levels{Protocol: max(l.Protocol, firstLevel), Format: max(l.Format, firstLevel)}
}

// raiseLevels proposes higher active levels when every configured voter is linked and supports them. A voter that
// is away might come back older; it can then be refused, but it is not this leader's place to shut it out.
func (r *Replica) raiseLevels() {
	if r.now%levelsEvery != 0 || r.stopping {
		return
	}
	st := r.zab.Status()
	if !st.AllVoters {
		return
	}
	want := st.Supported
	want.Protocol, want.Format = max(want.Protocol, r.levels.Protocol), max(want.Format, r.levels.Format)
	if want == r.levels || want == r.lead.proposedLevels {
		return
	}
	_, ok := r.propose(0, &ClientOp{Op: int32(kv.OpSetLevels), Body: appendUint32(appendUint32(nil, want.Protocol), want.Format)})
	if !ok {
		return // at the next look
	}
	r.lead.proposedLevels = want
	r.event("levels-raised", fmt.Sprintf("protocol=%d format=%d", want.Protocol, want.Format))
}

func (r *Replica) decodeLevels(op *ClientOp, origin quorum.MemberID) kv.Code {
	rd := reader{b: op.Body}
	l := kv.Levels{Protocol: rd.uint32(), Format: rd.uint32()}
	if origin != 0 || !rd.done() {
		return kv.CodeUnimplemented // a client's or a stranger's
	}
	r.lead.request.Levels = l
	return kv.CodeOK
}
