package wal

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"

	"kvd/kv"
)

// verifyChunkBytes is how much of the history Verify reads at once.
const verifyChunkBytes = 1 << 20

// Verified says what Verify has looked at.
type Verified struct {
	// Through is the end of the history whose chain was recomputed.
	Through kv.Zxid
	Entries int64
	// Tables is how many of the store's tables were read back from the disk, and Bytes their size.
	Tables int
	Bytes  int64
}

// Verify reads back what the log holds while it runs: the digest chain over all retained entries, and the checksums of
// every block of every table, past all caches. What it cannot see is the part that is only in Pebble's WAL files; the next
// Open reads those. share is the part of one core that it may use, above 0 and at most 1; the rest of the time it sleeps.
//
// An error that matches ErrDamaged has ended the log as a failed write does (Dead), and left a note because of which the
// next Open does not believe the store: the member is then synced from the others. Another error, as of a context that
// ends, says nothing about the log. Any goroutine, one at a time.
func (l *Log) Verify(ctx context.Context, share float64) (Verified, error) {
	v := &verifier{l: l, ctx: ctx, share: share}
	err := errors.Join(v.history(), v.tables())
	if errors.Is(err, ErrDamaged) && l.Err() == nil {
		err = l.damagedRead(err)
	}
	return v.found, err
}

// Condemn makes the store one that the next Open does not believe, whatever its own checks would say: reason, one line,
// is kept in the directory and becomes State.Suspect. The log ends, as by a failed write. It is for a member that found
// its state to be wrong although its log is readable.
func (l *Log) Condemn(reason string) error {
	l.storeMu.RLock()
	defer l.storeMu.RUnlock()
	if l.db == nil {
		return ErrClosed // damaged already, or closed
	}
	return l.db.watch.damaged(fmt.Errorf("%w: %s", ErrDamaged, reason))
}

// verifier is one run of Verify.
type verifier struct {
	l     *Log
	ctx   context.Context
	share float64
	found Verified
}

// dropPatience is how often in a row the history may be dropped beneath the walk before that is given up.
const dropPatience = 1000

// pace sleeps in proportion to the work done since began.
func (v *verifier) pace(began time.Time) error {
	if v.share == 1 {
		return v.ctx.Err()
	}
	return v.wait(time.Duration(float64(time.Since(began)) * (1 - v.share) / v.share))
}

func (v *verifier) wait(d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-v.ctx.Done():
	}
	return v.ctx.Err()
}

// history recomputes the chain. A purge may take away the entry that is next; the chain is then begun again at the new log
// start.
func (v *verifier) history() error {
	var after kv.Zxid
	var chain uint64
	var batch []kv.Entry
	behind := 0 // drops met in a row
	begin := func() {
		st := v.l.State()
		after, chain = st.LogStart, st.LogStartChain
	}
	for begin(); ; {
		began := time.Now()
		var err error
		batch, err = v.l.Read(after, ^kv.Zxid(0), verifyChunkBytes, batch[:0])
		switch {
		case errors.Is(err, ErrCompacted), errors.Is(err, ErrNotFound):
			// Dropped meanwhile, perhaps by a batch that is in the store and not completed yet: then the state still says the old
			// start for a moment.
			if behind++; behind > dropPatience {
				return err
			}
			if err := v.wait(10 * time.Millisecond); err != nil {
				return err
			}
			begin()
			continue
		case err != nil:
			return err
		case len(batch) == 0:
			return nil
		}
		for i := range batch {
			e := &batch[i]
			if chain = kv.ChainDigest(chain, e.Zxid, e.Payload); chain != e.Chain {
				return fmt.Errorf("%w: entry %v has chain %016x, computed %016x", ErrDamaged, e.Zxid, e.Chain, chain)
			}
			after = e.Zxid
		}
		behind = 0
		v.found.Through = after
		v.found.Entries += int64(len(batch))
		clear(batch)
		if err := v.pace(began); err != nil {
			return err
		}
	}
}

// tables reads every table of the store from its file. Those that a compaction or a purge has removed meanwhile do not
// count.
func (v *verifier) tables() error {
	present, err := v.list()
	if err != nil {
		return err
	}
	var defaults pebble.Options
	defaults.EnsureDefaults()
	options := defaults.MakeReaderOptions()
	for name := range present {
		began := time.Now()
		bytes, err := v.table(name, options)
		if err != nil {
			now, lerr := v.list()
			if lerr != nil {
				return lerr
			}
			if !now[name] {
				continue
			}
			return err
		}
		v.found.Tables++
		v.found.Bytes += bytes
		if err := v.pace(began); err != nil {
			return err
		}
	}
	return nil
}

// list names the files of the present tables.
func (v *verifier) list() (map[string]bool, error) {
	return guard(v.l.fs.health, func() (map[string]bool, error) {
		v.l.storeMu.RLock()
		defer v.l.storeMu.RUnlock()
		if v.l.db == nil {
			return nil, ErrClosed
		}
		levels, err := v.l.db.SSTables()
		if err != nil {
			return nil, err
		}
		names := make(map[string]bool)
		for _, level := range levels {
			for i := range level {
				names[level[i].BackingSSTNum.String()+".sst"] = true
			}
		}
		return names, nil
	})
}

// table checks one file.
func (v *verifier) table(name string, o sstable.ReaderOptions) (bytes int64, err error) {
	l := v.l
	path := l.fs.PathJoin(l.opts.LogDir, name)
	damaged := func(err error) error { return fmt.Errorf("%w: table %s: %s", ErrDamaged, name, shortReason(err)) }
	defer func() {
		if p := recover(); p != nil { // of the reader, over bytes that nobody wrote
			err = damaged(fmt.Errorf("unreadable: %v", p))
		}
	}()
	f, err := l.fs.FS.Open(path)
	if err != nil {
		return 0, damaged(err)
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return 0, errors.Join(damaged(err), f.Close())
	}
	r, err := sstable.NewReader(v.ctx, readable, o)
	if err != nil {
		return 0, errors.Join(v.judge(err, damaged), readable.Close())
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := r.ValidateBlockChecksums(); err != nil {
		return 0, v.judge(err, damaged)
	}
	return readable.Size(), nil
}

// judge tells damage, of which a place that the disk cannot read is one, from what has nothing to do with the file.
func (v *verifier) judge(err error, damaged func(error) error) error {
	var errno syscall.Errno
	if v.ctx.Err() != nil {
		return v.ctx.Err()
	}
	if errors.As(err, &errno) && errno != syscall.EIO {
		return err
	}
	return damaged(err)
}
