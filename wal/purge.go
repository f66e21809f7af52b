package wal

import (
	"context"
	"fmt"
	"time"
)

// syncWatermark syncs the ack watermark once per interval while it changes. A process crash loses nothing of
// it; a power cut at most one interval.
func (l *Log) syncWatermark() {
	t := time.NewTicker(l.opts.WatermarkSyncEvery)
	defer t.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-l.fs.health.dead:
			return
		case <-l.markDirty:
		}
		l.mu.Lock()
		file := l.markFile
		l.mu.Unlock()
		if file != nil && file.SyncData() != nil {
			return // the fence has told everybody
		}
		select {
		case <-l.stop:
			return
		case <-l.fs.health.dead:
			return
		case <-t.C:
		}
	}
}

// reclaim frees the space of what was dropped. The range deletion alone frees nothing on an idle member: it lies
// in the write buffer, and even flushed it does not reach the older tables beside it in level 0, where a log that
// grows in key order leaves them. A compaction of the dead range flushes it, reads the dead tables once, and writes
// again what little live data lies in the same tables.
func (l *Log) reclaim() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-l.stop:
		case <-l.fs.health.dead:
		case <-ctx.Done():
		}
		cancel()
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.purge:
		}
		l.mu.Lock()
		end := entryKey(l.done.LogStart + 1)
		l.mu.Unlock()
		_, err := guard(l.fs.health, func() (struct{}, error) {
			l.storeMu.RLock()
			defer l.storeMu.RUnlock()
			if l.db == nil {
				return struct{}{}, ErrClosed
			}
			return struct{}{}, l.db.Compact(ctx, []byte{entryPrefix}, end, false)
		})
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			_ = l.fs.health.fail(fmt.Errorf("compaction after a purge: %w", err))
			return
		}
	}
}
