package replica

import (
	"slices"
	"testing"

	"kvd/kv"
)

// take delivers what is on its way now; what that causes stays on its way.
func (l *lab) take() (arrived []func()) {
	arrived, l.pending = l.pending, nil
	return arrived
}

// step carries out what nd has to do, and delivers nothing.
func (nd *node) step() {
	for nd.r.HasReady() {
		rd := nd.r.Ready()
		nd.carryOut(&rd)
	}
}

// TestOnlyARoundAfterTheLastPauseReleases: sessions expire again after a quorum round that began after the newest pause
// (design rule 10). The answers to the round of the pause before it are no such round.
func TestOnlyARoundAfterTheLastPauseReleases(t *testing.T) {
	l := newLab(t, 3, nil)
	ld := l.leader()
	ld.open(1, 100)
	deliver := func(what []func()) {
		for _, do := range what {
			do()
		}
	}
	ld.r.Tick(Clock{WallMs: l.wall + 50, Gap: true})
	ld.step()
	deliver(l.take())
	l.nodes[0].step()
	l.nodes[1].step()
	first := l.take() // the answers of the first round
	ld.r.Tick(Clock{WallMs: l.wall + 100, Gap: true})
	ld.step()
	deliver(first)
	ld.step()
	if !ld.r.lead.sessions.held {
		t.Error("the round of the first pause released the sessions after the second one")
	}
	if n := len(ld.r.clients.syncs); n != 1 {
		t.Errorf("%d rounds are waited for after two pauses", n)
	}
	l.run() // the round of the second pause
	if ld.r.lead.sessions.held || len(ld.r.clients.syncs) != 0 {
		t.Errorf("held %v with %d rounds, though the round of the second pause is complete", ld.r.lead.sessions.held, len(ld.r.clients.syncs))
	}
}

// TestRoundOfALostTermIsForgotten: a term that ends between the pause and the answer takes its question along.
func TestRoundOfALostTermIsForgotten(t *testing.T) {
	l := newLab(t, 3, nil)
	ld := l.leader()
	ld.r.Tick(Clock{WallMs: l.wall + 50, Gap: true})
	if len(ld.r.clients.syncs) != 1 {
		t.Fatal("no round was asked for")
	}
	ld.r.zab.Look("test")
	ld.step()
	if n := len(ld.r.clients.syncs); n != 0 {
		t.Errorf("%d rounds survived the term", n)
	}
}

// TestStaleTouchMovesNoSession: the leader's own port hands over, at the next tick, a touch that it recorded before the
// session moved to another member.
func TestStaleTouchMovesNoSession(t *testing.T) {
	l := newLab(t, 3, nil)
	b, ld := l.nodes[1], l.leader()
	ld.open(1, 100)
	revalidate(b.r, 77, 100)
	l.run()
	if len(b.answers) != 1 || b.answers[0].Validity != Valid {
		t.Fatalf("not resumed: %+v", b.answers)
	}
	ld.r.Touch(100, 4000, BirthClaim(kv.MakeZxid(1, 1)))
	if err := b.r.Submit(create(2, 100, "/x")); err != nil {
		t.Fatal(err)
	}
	l.run()
	if !slices.Equal(b.results, []kv.Code{kv.CodeOK}) {
		t.Errorf("results %v: the session belongs to member 2", b.results)
	}
}

// TestTurnOfADeadMemberEnds: a member that dies while it writes its snapshot, or was granted a turn, does not keep the
// others from theirs.
func TestTurnOfADeadMemberEnds(t *testing.T) {
	for _, writing := range []bool{true, false} {
		l := newLab(t, 3, nil)
		a, b := l.nodes[0], l.nodes[1]
		a.r.SetSnapshot(true, false)
		for range 40 {
			l.tick(false)
		}
		if a.turns == 0 {
			t.Fatal("no turn for member 1")
		}
		a.r.SetSnapshot(!writing, writing)
		for range 20 {
			l.tick(false)
		}
		a.down = true
		l.breakLinks(a)
		l.run()
		b.r.SetSnapshot(true, false)
		ticks := 0
		for ; b.turns == 0 && ticks < 1000; ticks++ {
			l.tick(false)
		}
		if limit := 2*turnPatience + 20; ticks > limit {
			t.Errorf("writing %v: member 2 waited %d ticks for its turn, limit %d", writing, ticks, limit)
		}
	}
}

func revalidate(r *Replica, token uint64, id kv.SessionID) {
	r.Revalidate(token, token, id, [16]byte{7}, 4000)
}
