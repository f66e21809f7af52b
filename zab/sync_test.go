package zab

import (
	"testing"

	"kvd/kv"
)

// TestSyncTable asks every row of zab-rules c, phase 2. The leader's log is 1:1..1:5, 3:1..3:4 with log start 1:2; the
// learner's chain equals the leader's wherever the zxid does, unless a case says otherwise.
func TestSyncTable(t *testing.T) {
	z := kv.MakeZxid
	disk := &testDisk{}
	for _, id := range []kv.Zxid{z(1, 1), z(1, 2), z(1, 3), z(1, 4), z(1, 5), z(3, 1), z(3, 2), z(3, 3), z(3, 4)} {
		_, chain := disk.tip(len(disk.hist))
		disk.hist = append(disk.hist, kv.Entry{Zxid: id, Chain: kv.ChainDigest(chain, id, nil)})
	}
	chainAt := func(id kv.Zxid) uint64 {
		at, chain := disk.tip(disk.index(id))
		if at != id {
			return 99 // the leader has no such entry
		}
		return chain
	}
	whole := kv.Zxid(0)
	for _, tc := range []struct {
		name     string
		logStart kv.Zxid
		f        kv.Zxid
		base     kv.Zxid
		current  kv.Epoch
		change   func(*syncCase)
		kind     planKind
		row      int
		point    kv.Zxid
		alarm    bool
	}{
		{name: "row 0: newer current epoch", f: z(1, 3), current: 4, change: open, kind: planAbdicate, row: 0},
		{name: "row 0: newer zxid in the same current epoch", f: z(3, 5), current: 3, change: open, kind: planAbdicate, row: 0},
		{name: "row 0: larger zxid with an older current epoch is no reason", f: z(3, 5), current: 2, change: open, kind: planTrunc, row: 5, point: z(3, 4)},
		{name: "row 0: an observer's history decides nothing", f: z(1, 3), current: 4, change: func(c *syncCase) { open(c); c.mayLead = false }, kind: planDiff, row: 3, point: z(1, 3)},
		{name: "row 0: not once established", f: z(3, 5), current: 3, kind: planTrunc, row: 5, point: z(3, 4)},
		{name: "row 1: equal", f: z(3, 4), kind: planDiff, row: 1, point: z(3, 4)},
		{name: "row 2: empty learner, whole log", logStart: whole, f: 0, kind: planDiff, row: 2, point: 0},
		{name: "row 3: behind in the same epoch", f: z(3, 2), kind: planDiff, row: 3, point: z(3, 2)},
		{name: "row 3: at the end of an older epoch", f: z(1, 5), kind: planDiff, row: 3, point: z(1, 5)},
		{name: "row 3: exactly at the log start", logStart: z(1, 2), f: z(1, 2), kind: planDiff, row: 3, point: z(1, 2)},
		{name: "row 4: below the log start", logStart: z(1, 2), f: z(1, 1), kind: planSnap, row: 4},
		{name: "row 4: empty learner, compacted leader", logStart: z(1, 2), f: 0, kind: planSnap, row: 4},
		{name: "row 4: snapshot-only leader", logStart: z(3, 4), f: z(3, 3), kind: planSnap, row: 4},
		{name: "row 5a: ahead in the same epoch", f: z(3, 9), kind: planTrunc, row: 5, point: z(3, 4)},
		{name: "row 5b: an epoch the leader has no record of", f: z(2, 7), kind: planTrunc, row: 5, point: z(1, 5)},
		{name: "row 5b: a longer tail of an older epoch", f: z(1, 8), kind: planTrunc, row: 5, point: z(1, 5)},
		{name: "row 5: point equal to the learner's base", f: z(1, 8), base: z(1, 5), kind: planTrunc, row: 5, point: z(1, 5)},
		{name: "row 5: point at the leader's log start", logStart: z(1, 5), f: z(1, 8), kind: planTrunc, row: 5, point: z(1, 5)},
		{name: "row 5: nothing in common, everything goes", logStart: whole, f: z(0, 9), kind: planTrunc, row: 5, point: 0},
		{name: "row 6: the learner's snapshot holds what must go", f: z(1, 8), base: z(1, 7), kind: planSnap, row: 6},
		{name: "row 6: the learner refused", f: z(1, 8), change: func(c *syncCase) { c.needSnapshot = true }, kind: planSnap, row: 6},
		{name: "row 7: equal zxid, different digest", f: z(3, 2), change: func(c *syncCase) { c.chain++ }, kind: planSnap, row: 7, alarm: true},
		{name: "row 7: even at the end", f: z(3, 4), change: func(c *syncCase) { c.chain++ }, kind: planSnap, row: 7, alarm: true},
		{name: "row 8: too much to send", f: z(3, 2), change: func(c *syncCase) { c.diffTooLarge = true }, kind: planSnap, row: 8},
	} {
		t.Run(tc.name, func(t *testing.T) {
			disk.st.LogStart = tc.logStart
			c := syncCase{
				frozen: recency{3, z(3, 4)}, logStart: tc.logStart, last: z(3, 4), locate: disk.Locate,
				learner: recency{tc.current, tc.f}, chain: chainAt(tc.f), base: tc.base,
			}
			if tc.change != nil {
				tc.change(&c)
			}
			got := c.decide()
			if got.kind != tc.kind || got.row != tc.row || got.point != tc.point || got.alarm != tc.alarm {
				t.Errorf("got row %d %s %s alarm=%t, want row %d %s %s alarm=%t", got.row, got.kind, got.point, got.alarm, tc.row, tc.kind, tc.point, tc.alarm)
			}
			if tc.kind == planDiff || tc.kind == planTrunc {
				if want := chainAt(tc.point); got.chain != want {
					t.Errorf("chain at the point: got %d, want %d", got.chain, want)
				}
			}
		})
	}
}

func open(c *syncCase) { c.electionOpen, c.mayLead = true, true }

// costlyHistory makes every DIFF too large (row 8).
type costlyHistory struct{ emptyHistory }

func (costlyHistory) DiffBytes(kv.Zxid) int64 { return 1000 }
func (costlyHistory) SnapshotBytes() int64    { return 1 }

// TestNoSnapshotOlderThanTheLearner: row 8 saves bytes; it must not take back what the learner holds. A newer point is sent.
func TestNoSnapshotOlderThanTheLearner(t *testing.T) {
	for _, tc := range []struct {
		point int
		want  linkStage
	}{{4, linkHistory}, {6, linkHistory}, {7, linkSnapping}} {
		h := newHotPath(t)
		h.batch(t, 10)
		p := h.peers[3]
		p.hist, p.cfg.DiffShare = costlyHistory{}, 1
		pr := p.leader.find(1)
		at, chain, _ := p.locate(kv.MakeZxid(1, 6))
		pr.restart(p.now)
		pr.stage, pr.ack = linkAcked, AckEpoch{Epoch: 1, Current: 1, Last: at, Chain: chain}
		p.startSync(pr)
		if pr.stage != linkChoosing || pr.plan.row != 8 {
			t.Fatalf("at %s by row %d", pr.stage, pr.plan.row)
		}
		z, c, _ := p.locate(kv.MakeZxid(1, uint32(tc.point)))
		p.SnapshotChosen(pr.link, z, c, true)
		if pr.stage != tc.want {
			t.Errorf("a snapshot of %s for a learner at %s: %s, want %s", z, at, pr.stage, tc.want)
		}
	}
}

// TestProgressWhileASnapshotIsChosen: a leader that has no snapshot writes one first, and says that it does.
func TestProgressWhileASnapshotIsChosen(t *testing.T) {
	h := newHotPath(t)
	p := h.peers[3]
	pr := p.leader.find(1)
	pr.stage = linkChoosing
	for range 3 * p.cfg.InitTicks {
		p.Tick()
		p.SnapshotProgress(h.links[1])
		p.leader.find(2).heard = p.now
		p.Ready()
	}
	if p.leader == nil || p.leader.find(1) != pr {
		t.Error("the link was closed while the shell reported progress")
	}
}
