package ensemble

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"kvd/kv"
	"kvd/snapshot"
	"kvd/wal"
)

// selfCheckShare is the part of one core that looking may use.
const selfCheckShare = 0.1

// selfChecker looks, at intervals and beside everything else, whether the member still holds what it should: the tree in
// memory, the snapshots, the log. What members cannot find out alone, that they agree, is compared by the leader (package
// replica, audit). One goroutine, part of the snapshotter's group.
//
// A wrong tree or a damaged log ends the member (ErrDiverged, wal.ErrDamaged; see Keeper). A damaged snapshot is replaced by
// a new one: the tree and the log have all of it.
type selfChecker struct {
	log      *slog.Logger
	tree     *kv.Tree
	wal      *wal.Log
	store    snapshot.Store
	inbox    *inbox
	ctx      context.Context
	interval time.Duration // 0: only when asked
	failed   func(error)
	asked    chan struct{} // capacity 1: look at the snapshots now
	points   chan []snapshot.Point
}

func newSelfChecker(m *Member, ctx context.Context) *selfChecker {
	return &selfChecker{
		log: m.log, tree: m.tree, wal: m.wal, store: m.snaps.store, inbox: m.inbox, ctx: ctx,
		interval: m.cfg.SelfCheckInterval, failed: m.fail, asked: make(chan struct{}, 1), points: make(chan []snapshot.Point, 1),
	}
}

// ask has the snapshots looked at soon. The loop calls it.
func (s *selfChecker) ask() {
	select {
	case s.asked <- struct{}{}:
	default:
	}
}

func (s *selfChecker) run() {
	var due <-chan time.Time
	if s.interval > 0 {
		t := time.NewTicker(s.interval)
		defer t.Stop()
		due = t.C
	}
	for {
		all := true
		select {
		case <-s.ctx.Done():
			return
		case <-s.asked:
			all = false
		case <-due:
		}
		began := time.Now()
		err := s.snapshots()
		if all && err == nil {
			if err = s.content(); err == nil {
				err = s.history()
			}
		}
		switch {
		case s.ctx.Err() != nil:
			return
		case err != nil:
			s.log.Warn("self-check not completed", "error", err) // findings are told where they are made
		default:
			s.log.Debug("self-check", "took", time.Since(began).Round(time.Millisecond).String())
		}
	}
}

// content hashes the tree again.
func (s *selfChecker) content() error {
	v := s.tree.View()
	began := time.Now()
	digest, err := v.Recompute(func() error {
		err := s.pace(began)
		began = time.Now()
		return err
	})
	if err != nil {
		return err
	}
	if digest != v.Digest() {
		err = fmt.Errorf("%w: at %v its content hashes to %016x, its changes add up to %016x", ErrDiverged, v.Zxid(), digest, v.Digest())
		s.failed(err)
	}
	return err
}

func (s *selfChecker) pace(began time.Time) error {
	t := time.NewTimer(time.Duration(float64(time.Since(began)) * (1 - selfCheckShare) / selfCheckShare))
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.ctx.Done():
	}
	return s.ctx.Err()
}

// history reads the log back. Damage has ended the log, and so the member.
func (s *selfChecker) history() error {
	_, err := s.wal.Verify(s.ctx, selfCheckShare)
	if errors.Is(err, wal.ErrCompacted) { // purged away beneath the walk again and again: the next look will do
		return nil
	}
	return err
}

// snapshots hashes the files of every point that the loop keeps.
func (s *selfChecker) snapshots() error {
	s.inbox.push(pointsWanted{}, false)
	var points []snapshot.Point
	select {
	case points = <-s.points:
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
	for _, p := range points {
		began := time.Now()
		err := s.store.Verify(p)
		var damage *snapshot.DamageError
		switch {
		case errors.As(err, &damage):
			s.inbox.push(pointDamaged{p, damage}, false)
		case err != nil:
			return err
		}
		if err := s.pace(began); err != nil {
			return err
		}
	}
	return nil
}

// pointsWanted asks the loop for the points that it keeps.
type pointsWanted struct{}

func (pointsWanted) deliver(l *loop) { l.check.points <- slices.Clone(l.snaps.points) }

// pointDamaged: a file of a point is not what was written, or was deleted meanwhile because nobody needs the point.
type pointDamaged struct {
	point  snapshot.Point
	damage *snapshot.DamageError
}

func (e pointDamaged) deliver(l *loop) { l.snaps.giveUp(l, e.point, e.damage) }

// giveUp drops a damaged point and all that stand on the same file, and has a full one written at once: until it is there a
// learner that needs a snapshot gets an older one, or waits. A transfer that is under way fails at the learner.
func (s *snapshotter) giveUp(l *loop, p snapshot.Point, damage *snapshot.DamageError) {
	if !slices.ContainsFunc(s.points, p.Equal) {
		return
	}
	s.bad = append(s.bad, damage.File)
	s.dropBad()
	s.lastView, s.retryAt, s.replace = nil, 0, true
	s.log.Error("snapshot damaged, it will be written again", "zxid", p.Zxid.String(), "error", damage)
	s.start(l)
}

// dropBad removes the points that stand on a damaged file.
func (s *snapshotter) dropBad() {
	s.points = slices.DeleteFunc(slices.Clone(s.points), func(p snapshot.Point) bool {
		return slices.ContainsFunc(p.Files, func(f snapshot.File) bool { return slices.Contains(s.bad, f.Name) })
	})
}
