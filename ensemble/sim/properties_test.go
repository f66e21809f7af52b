package sim

import (
	"bytes"
	"strings"
	"testing"

	"kvd/ensemble/replica"
	"kvd/fle"
	"kvd/kv"
	"kvd/zab"
	"kvd/zab/quorum"
)

// violated runs a scene with a mistake switched on and demands that one of the named properties breaks.
func violated(t *testing.T, s *Sim, properties ...string) {
	t.Helper()
	if s.failure == nil {
		t.Fatalf("nothing broke; want one of %v", properties)
	}
	for _, p := range properties {
		if strings.HasPrefix(s.failure.Error(), p+" ") {
			t.Logf("caught: %v", s.failure)
			s.failure = nil
			return
		}
	}
	t.Fatalf("broke %v; want one of %v", s.failure, properties)
}

// TestEveryPropertyCanFail breaks each property by hand in a healthy ensemble and demands that its checker, and no
// other, says so. A checker that cannot fail is worth nothing.
func TestEveryPropertyCanFail(t *testing.T) {
	// next is an entry that leader 3 could propose next.
	next := func(s *Sim) kv.Entry {
		last, chain := s.member(3).handed.last()
		return givenEntry(last+1, chain)
	}
	link := func(s *Sim, m quorum.MemberID) *link { // of a follower to the leader
		for _, l := range s.links {
			if l.dialler == s.member(m) && !l.down {
				return l
			}
		}
		t.Fatal("no link")
		return nil
	}
	for _, c := range []struct {
		property, what string
		spoil          func(s *Sim)
	}{
		{"P1", "an accepted epoch goes back", func(s *Sim) {
			s.member(1).diskApply(&diskWrite{w: zab.Write{Promise: &zab.Promise{Epoch: 1}}})
		}},
		{"P1", "a current epoch above the accepted one", func(s *Sim) { s.member(1).diskApply(&diskWrite{w: zab.Write{Current: 9}}) }},
		{"P2", "one epoch promised to two attempts", func(s *Sim) {
			s.ghost.promise(s.member(1), 7, 100)
			s.ghost.promise(s.member(1), 7, 101)
		}},
		{"P2", "phase 1 passed without a quorum", func(s *Sim) { s.ghost.promised(s.member(1), 9) }},
		{"P3", "two established leaders of an epoch", func(s *Sim) { s.ghost.establish(s.member(1), 2) }},
		{"P4", "a hole in a log", func(s *Sim) {
			s.member(1).disk.holes = true
			e := next(s)
			e.Zxid++
			s.member(1).diskApply(&diskWrite{w: zab.Write{Append: []kv.Entry{e}}})
		}},
		{"P5", "two histories under one zxid", func(s *Sim) {
			s.member(1).disk.holes = true
			e := next(s)
			s.member(1).diskApply(&diskWrite{w: zab.Write{Append: []kv.Entry{e}}})
			e.Chain++
			s.member(2).disk.holes = true
			s.member(2).diskApply(&diskWrite{w: zab.Write{Append: []kv.Entry{e}}})
		}},
		{"P6", "an uncommitted entry is applied", func(s *Sim) {
			e := next(s)
			s.ghost.appliedEntry(s.member(1), &e)
		}},
		{"P6", "an entry is applied twice", func(s *Sim) {
			e := s.member(1).disk.entries[len(s.member(1).disk.entries)-1]
			s.ghost.appliedEntry(s.member(1), &e)
		}},
		{"P6", "an uncommitted snapshot is loaded", func(s *Sim) {
			gm := s.ghost.of(s.member(1))
			gm.applied++
			s.ghost.checkApplied(s.member(1))
		}},
		{"P7", "a leader lacks what is committed", func(s *Sim) {
			s.member(1).handed = emptyContent()
			s.ghost.establish(s.member(1), 9)
		}},
		{"P8", "committed with one holder", func(s *Sim) {
			e := next(s)
			m := s.member(3)
			m.handed.entries = append(m.handed.entries, e)
			s.ghost.declare(m, e.Zxid)
		}},
		{"P9", "a skipped entry stays", func(s *Sim) {
			m := s.member(1)
			e := s.ghost.est[2]
			e.last--
			s.ghost.est[2] = e
			m.disk.base = e.last
			s.ghost.checkResurrection(m)
		}},
		{"P10", "an ack before the sync", func(s *Sim) {
			l := link(s, 1)
			s.ghost.sent(s.member(1), l, &Message{Zab: &zab.Ack{Epoch: 2, Zxid: next(s).Zxid}})
		}},
		{"P11", "an ack of NEWLEADER before its batch", func(s *Sim) {
			l := link(s, 1)
			s.ghost.of(s.member(1)).newLeader[l.id[0]] = &zab.NewLeader{Epoch: 3, Last: kv.MakeZxid(2, 1)}
			s.ghost.sent(s.member(1), l, &Message{Zab: &zab.AckNewLeader{Epoch: 3}})
		}},
		{"P11", "an epoch without its history", func(s *Sim) {
			m := s.member(1)
			m.disk.entries = m.disk.entries[:3]
			s.ghost.checkResurrection(m)
		}},
		{"P12", "an epoch offered before it is durable", func(s *Sim) {
			s.ghost.sent(s.member(3), link(s, 1), &Message{Zab: &zab.LeaderInfo{Epoch: 9}})
		}},
		{"P12", "an epoch acked before it is durable", func(s *Sim) {
			s.ghost.sent(s.member(1), link(s, 1), &Message{Zab: &zab.AckEpoch{Epoch: 9}})
		}},
		{"P13", "applied beyond the disk", func(s *Sim) {
			s.ghost.of(s.member(1)).applied += 5
			s.ghost.diskChanged(s.member(1), nil, 0)
		}},
		{"P14", "a truncation of what is committed", func(s *Sim) {
			to := kv.MakeZxid(1, 5)
			s.ghost.of(s.member(1)).applied = 0
			s.member(1).diskApply(&diskWrite{w: zab.Write{Truncate: &to}})
		}},
		{"P15", "an answer without a leader", func(s *Sim) {
			c := s.At(1)
			s.member(1).role.Role, s.member(1).serving.Open = zab.Looking, false
			c.saw(s.member(1), s.ghost.last(), "read")
		}},
		{"P15", "a learner answers that its leader has not released", func(s *Sim) {
			c := s.At(1)
			s.member(1).upToDate = 0
			c.saw(s.member(1), s.ghost.last(), "read")
		}},
		{"P15", "a leader answers that is not established", func(s *Sim) {
			c := s.At(3)
			delete(s.ghost.sessions.began, s.member(3).inc)
			c.saw(s.member(3), s.ghost.last(), "read")
		}},
		{"P16", "acks go back", func(s *Sim) {
			l, z := link(s, 1), s.member(1).Last()
			s.ghost.of(s.member(1)).ackSent[l.id[0]] = z
			s.ghost.sent(s.member(1), l, &Message{Zab: &zab.Ack{Epoch: 2, Zxid: z}})
		}},
		{"P16", "a commit point goes back", func(s *Sim) {
			l := link(s, 1)
			s.ghost.commitOnLink(s.member(3), l.id[1], s.ghost.last())
			s.ghost.commitOnLink(s.member(3), l.id[1], s.ghost.last()-1)
		}},
		{"P17", "a proposal is made twice", func(s *Sim) {
			e := s.member(3).disk.entries[len(s.member(3).disk.entries)-1]
			s.ghost.handed(s.member(3), &diskWrite{w: zab.Write{Append: []kv.Entry{e}}})
		}},
		{"P17", "an entry that nobody proposed is applied", func(s *Sim) {
			m, e := s.member(1), s.member(1).disk.entries[len(s.member(1).disk.entries)-1]
			delete(s.ghost.proposed, e.Zxid)
			s.ghost.of(m).applied--
			s.ghost.appliedEntry(m, &e)
		}},
		{"P18", "two members apply in different orders", func(s *Sim) {
			m, e := s.member(1), s.member(1).disk.entries[len(s.member(1).disk.entries)-1]
			s.ghost.followed[e.Zxid] = step{prev: 1, chain: e.Chain}
			s.ghost.of(m).applied--
			s.ghost.appliedEntry(m, &e)
		}},
		{"P19", "a leader proposes before it has applied the past", func(s *Sim) {
			s.ghost.of(s.member(3)).propEpoch = 0
			s.ghost.of(s.member(3)).applied = 0
			s.ghost.of(s.member(1)).applied = kv.MakeZxid(1, 5)
			s.ghost.handed(s.member(3), &diskWrite{w: zab.Write{Append: []kv.Entry{next(s)}}})
		}},
		{"P20", "trees differ at one zxid", func(s *Sim) {
			s.ghost.digests[s.ghost.last()]++
			s.ghost.appliedView(s.member(1), s.member(1).tree.View())
		}},
		{"P20", "a snapshot of what is not committed", func(s *Sim) {
			delete(s.ghost.pos, s.ghost.last())
			s.ghost.snapshot(s.member(1), s.member(1).tree.View())
		}},
		{"P21", "a vote that the disk does not bear out", func(s *Sim) {
			b := fle.AppendNotification(nil, fle.Notification{From: 1, SenderEpoch: 2, SenderZxid: s.member(1).Last() + 1})
			s.ghost.sentElection(s.member(1), &Message{payload: b})
		}},
		{"P21", "an epoch ack that the disk does not bear out", func(s *Sim) {
			s.ghost.sent(s.member(1), link(s, 1), &Message{Zab: &zab.AckEpoch{Epoch: 2, Current: 2, Last: s.member(1).Last() + 1, Unknown: true}})
		}},
		{"P22", "a leader declares another history", func(s *Sim) {
			m := s.member(3)
			m.handed.entries[len(m.handed.entries)-1].Chain++
			m.handed.entries = append(m.handed.entries, next(s))
			s.ghost.declare(m, m.handed.lastZxid())
		}},
		{"C1", "a write is committed twice", func(s *Sim) {
			e := s.member(3).disk.entries[len(s.member(3).disk.entries)-1]
			s.ghost.model.commit(&s.ghost, &e)
		}},
		{"C1", "an answer that was not decided", func(s *Sim) {
			op := s.clients[0].ops[len(s.clients[0].ops)-1]
			op.Path = "/other"
			s.ghost.answered(op)
		}},
		{"C1", "an OK that is nowhere", func(s *Sim) {
			op := s.clients[0].ops[len(s.clients[0].ops)-1]
			delete(s.ghost.inG, op.Token)
			s.ghost.account()
		}},
		{"C1", "a write that was not sent is committed", func(s *Sim) {
			s.clients[0].ops[len(s.clients[0].ops)-1].Outcome = NotSent
			s.ghost.account()
		}},
		{"C2", "a later write of a connection is executed without the one before it", func(s *Sim) {
			hold := s.Hold(Is("REQUEST", 1, 3))
			c := s.At(1)
			c.submit(kv.Request{Op: kv.OpCreate, Path: "/lost", ACL: kv.OpenACL()})
			c.sent++ // one more, which the member forgets
			c.submit(kv.Request{Op: kv.OpCreate, Path: "/later", ACL: kv.OpenACL()})
			s.member(1).run()
			s.Release(hold)
			s.Run(20)
		}},
		{"C2", "two writes of a connection are executed in the other order", func(s *Sim) {
			ops := s.clients[0].ops
			a, b := ops[len(ops)-2], ops[len(ops)-1]
			s.ghost.order[a.conn].places -= 2
			s.ghost.inOrder(b, s.ghost.last(), kv.CodeOK)
		}},
		{"C2", "a connection whose session has moved writes on", func(s *Sim) {
			op := s.clients[0].ops[len(s.clients[0].ops)-1]
			s.ghost.order[op.conn].places--
			s.ghost.order[op.conn].moved = true
			s.ghost.inOrder(op, s.ghost.last(), kv.CodeOK)
		}},
		{"C1", "a write is dropped, reported not sent, and executed", func(s *Sim) {
			s.clients[0].ops[len(s.clients[0].ops)-1].never = true
			s.ghost.account()
		}},
		{"C2", "a client sees the past", func(s *Sim) { s.clients[0].saw(s.member(1), 1, "read") }},
		{"C3", "a stale read after sync", func(s *Sim) {
			c := s.At(1)
			s.member(1).port.answerSync(&syncRead{c: c, conn: c.conn, floor: s.ghost.last() + 1})
		}},
		{"C4", "an ephemeral outlives its session", func(s *Sim) {
			s.ghost.model.closeSession(s.clients[0].session)
			s.ghost.compareTree(s.member(1))
		}},
		{"C4", "a session is gone and nobody ended it", func(s *Sim) { s.ghost.gone(s.clients[0]) }},
		{"L1", "no recovery", func(s *Sim) {
			s.opt.Tune = func(_ quorum.MemberID, c *replica.Config) { c.InitTicks = 1 }
			s.Drop(func(m *Message) bool { return m.Kind == "LEADERINFO" })
			s.rules[len(s.rules)-1].lose = true // not ended by Settle
			s.Crash(1)
			s.Crash(2)
			s.Crash(3)
			s.Settle()
		}},
		{"L4", "a leader without a quorum leads on", func(s *Sim) {
			s.syncTicks = -7
			s.Isolate(3)
			s.Run(8)
		}},
		{"L5", "an operation is never answered", func(s *Sim) {
			c := s.At(1)
			c.pending = append(c.pending, &Op{Client: c, since: 1 << 60})
			s.Settle()
		}},
		{"L6", "more operations on their way than the bound", func(s *Sim) {
			m := s.member(1)
			m.limits.MaxForwardedOps = 1
			s.Hold(Is("REQUEST", 1, 3))
			c := s.At(1)
			for range 3 {
				c.submit(kv.Request{Op: kv.OpCreate, Path: "/many", ACL: kv.OpenACL()})
			}
			m.run()
			s.Run(2)
		}},
	} {
		t.Run(c.property+" "+c.what, func(t *testing.T) {
			s := scene(t, Options{})
			led(t, s, 3)
			for i, via := range []quorum.MemberID{1, 2, 3, 1} {
				if !s.OK(s.W(via, string(rune('a'+i)))) {
					t.Fatal("no answer")
				}
			}
			s.Until(20, s.level)
			c.spoil(s)
			violated(t, s, c.property)
		})
	}
}

// TestSameSeedSameHistory runs schedules twice and compares everything that happened, byte for byte: one stray map
// order, clock or address in any package below shows here.
func TestSameSeedSameHistory(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 8
	}
	for seed := uint64(1); seed <= seeds; seed++ {
		a := Run(Schedule{Seed: seed, Steps: 800, Trace: true})
		b := Run(Schedule{Seed: seed, Steps: 800, Trace: true})
		if len(a.Trace) == 0 || !bytes.Equal(a.Trace, b.Trace) {
			t.Fatalf("seed %d: two runs differ from byte %d on", seed, firstDifference(a.Trace, b.Trace))
		}
	}
}

func firstDifference(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}
