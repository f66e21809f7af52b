package ensemble

import (
	"testing"

	"kvd/ensemble/replica"
	"kvd/kv"
	"kvd/snapshot"
	"kvd/zab"
)

// What was chosen for a link, or waits for the first snapshot, is forgotten with the link, whoever ended it and in
// whatever order it is told: the files of a point that nobody will fetch need not stay.
func TestSnapshotPromisesEndWithTheirLink(t *testing.T) {
	promised := func() *loop {
		return &loop{
			chosen:           map[zab.LinkID]snapshot.Point{1: point(5), 2: point(5)},
			streaming:        map[zab.LinkID]snapshot.Point{},
			awaitingSnapshot: []zab.SendSnapshot{{Link: 3}, {Link: 4}},
		}
	}
	for name, end := range map[string]func(l *loop){
		"closed here":    func(l *loop) { l.promiseEnds(1); l.promiseEnds(3) },
		"twice":          func(l *loop) { l.promiseEnds(1); l.promiseEnds(3); l.promiseEnds(3); l.promiseEnds(1) },
		"never promised": func(l *loop) { l.promiseEnds(1); l.promiseEnds(3); l.promiseEnds(77) },
	} {
		l := promised()
		end(l)
		if len(l.chosen) != 1 || l.chosen[2].Zxid != 5 || len(l.awaitingSnapshot) != 1 || l.awaitingSnapshot[0].Link != 4 {
			t.Errorf("%s: chosen %v, awaiting %v", name, l.chosen, l.awaitingSnapshot)
		}
	}
}

// The same through the loop's own inputs: the end of a link by the transport, and one that the core asked for in the
// step that asked for the snapshot.
func TestLinkThatEndsTakesItsPromiseAlong(t *testing.T) {
	tr := startTrio(t, nil)
	ctx := t.Context()
	at := tr.serving(ctx, 0, 1, 2)
	m := tr.members[at]
	done := make(chan string, 1)
	m.inbox.push(onLoop(func(l *loop) {
		l.chosen[901] = point(5)
		l.awaitingSnapshot = append(l.awaitingSnapshot, zab.SendSnapshot{Link: 902})
		linkDown{peer: 9, link: 901}.deliver(l)
		linkDown{peer: 9, link: 902}.deliver(l)
		text := ""
		if len(l.chosen) != 0 || len(l.awaitingSnapshot) != 0 {
			text = "linkDown leaves a promise"
		}
		var r replica.Ready
		r.Snapshots = []zab.SendSnapshot{{Link: 903}}
		r.CloseLinks = []zab.CloseLink{{Peer: 9, Link: 903, Reason: "test"}}
		l.carryOut(r)
		if len(l.chosen) != 0 || len(l.awaitingSnapshot) != 0 {
			text = "a closed link leaves a promise"
		}
		done <- text
	}), false)
	if text := <-done; text != "" {
		t.Error(text)
	}
}

// onLoop runs on a member's loop.
type onLoop func(*loop)

func (f onLoop) deliver(l *loop) { f(l) }

func point(z kv.Zxid) (p snapshot.Point) {
	p.Zxid = z
	return p
}
