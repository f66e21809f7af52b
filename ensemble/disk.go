package ensemble

import (
	"errors"
	"fmt"
	"log/slog"

	"kvd/kv"
	"kvd/snapshot"
	"kvd/wal"
	"kvd/zab"
)

// storage is what a member finds on its disk at start.
type storage struct {
	log    *wal.Log
	report wal.Report
	store  snapshot.Store
	points []snapshot.Point // sound ones, oldest first
	view   *kv.View         // of the newest, brought up to the base
}

// snapshotCPUShare is the part of one core that writing a snapshot may use (design 5).
const snapshotCPUShare = 0.5

// openStorage opens the log and loads the newest sound snapshot. A damaged snapshot is replaced by the one before it
// and the log between them. If none is left and the log does not reach back to the beginning, the member has lost
// part of its history: the log is moved aside, so that the member neither votes nor serves on it and is synced
// from the others (design 8, S26).
func openStorage(cfg *Config, completed func(wal.Completion)) (st storage, err error) {
	st.store = cfg.Snapshots
	if st.store == nil {
		dir, err := snapshot.OpenDir(cfg.FS.PathJoin(cfg.DataDir, "snapshots"), snapshot.Options{CPUShare: snapshotCPUShare, Logger: cfg.Logger})
		if err != nil {
			return st, fmt.Errorf("snapshots: %w", err)
		}
		st.store = dir
	}
	asked := false // whose the store is
	for attempt := 0; ; attempt++ {
		st.log, st.report, err = wal.Open(cfg.DataDir, wal.Options{
			FS: cfg.FS, LogDir: cfg.LogDir, Logger: cfg.Logger, Completed: completed, UnsafeNoSync: cfg.UnsafeNoSync,
		})
		if err != nil {
			return st, err
		}
		if st.report.Damaged && !asked {
			// The store may be sound and another member's, as when two log directories were exchanged.
			asked = true
			if err := errors.Join(st.log.Close(), refuseForeignStore(cfg)); err != nil {
				return st, err
			}
			attempt--
			continue
		}
		if err := cfg.refuseAlone(&st); err != nil {
			return st, errors.Join(err, st.log.Close())
		}
		lost, err := st.load(cfg.Logger)
		if lost && err == nil && cfg.onlyVoter() {
			err = fmt.Errorf("%w: no snapshot can be read, the log does not reach back to the beginning, and there is no other voter to bring it back; nothing was changed: put a copy of the directory in its place",
				ErrNeedsRecovery)
		}
		if err == nil && !lost {
			return st, nil
		}
		if cerr := st.log.Close(); err != nil || cerr != nil || attempt > 0 {
			if lost && err == nil {
				err = errors.New("no snapshot can be read, and the log does not reach back to the beginning")
			}
			return st, errors.Join(err, cerr)
		}
		aside, err := wal.MoveAside(cfg.FS, cfg.LogDir)
		if err != nil {
			return st, err
		}
		cfg.Logger.Error("no snapshot can be read and the log does not reach back to the beginning: the member will be synced from the others",
			"log_moved_to", aside)
	}
}

// load finds the view to start from. lost: there is none.
func (st *storage) load(log *slog.Logger) (lost bool, err error) {
	state := st.log.State()
	if st.report.Damaged {
		st.view = kv.NewView() // the log shows an empty history and is replaced by the first sync
		return false, nil
	}
	view, points, skipped := loadNewest(st.store, state.Points)
	for _, e := range skipped {
		log.Error("snapshot damaged", "error", e)
	}
	if view == nil {
		if state.LogStart != 0 {
			return true, nil
		}
		view = kv.NewView()
	}
	if view.Zxid() < state.LogStart {
		return true, nil
	}
	st.points = points
	if view.Zxid() < state.Base {
		// The newest snapshot is damaged; what lies below it is committed and in the log.
		if view, err = replay(st.log, view, state.Base); err != nil {
			return false, fmt.Errorf("replaying the log after the snapshot of %v: %w", view.Zxid(), err)
		}
		log.Warn("tree rebuilt from an older snapshot and the log", "through", state.Base.String())
	}
	st.view = view
	return false, nil
}

// replay applies the log from a view on, up to through.
func replay(log logReader, v *kv.View, through kv.Zxid) (*kv.View, error) {
	tree := kv.NewTree(v)
	var batch []kv.Entry
	for z := v.Zxid(); z < through; {
		var err error
		if batch, err = log.Read(z, through, readChunkBytes, batch[:0]); err != nil {
			return v, err
		}
		if len(batch) == 0 {
			return v, fmt.Errorf("the log ends at %v, before %v", z, through)
		}
		if err := tree.Apply(batch, nil); err != nil {
			return v, err
		}
		z = batch[len(batch)-1].Zxid
	}
	return tree.View(), nil
}

// durableState translates the log's state for the core.
func durableState(s *wal.State) zab.DurableState {
	return zab.DurableState{
		Accepted: zab.Promise{Epoch: s.Accepted, To: zab.Incarnation(s.PromisedTo)}, Current: s.Current,
		Base: s.Base, BaseChain: s.BaseChain, LogStart: s.LogStart, LogStartChain: s.LogStartChain,
		Last: s.Last, LastChain: s.LastChain,
		Unknown: !s.Trusted || s.Suspect != "", Sole: s.Sole,
	}
}
