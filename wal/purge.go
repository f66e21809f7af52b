package wal

import (
	"errors"
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

// flushPurged flushes the write buffer after something was dropped: a range deletion frees nothing before
// it reaches a table, and on an idle member nothing else would make it (zab-rules: purge).
func (l *Log) flushPurged() {
	for {
		select {
		case <-l.stop:
			return
		case <-l.fs.health.dead:
			return
		case <-l.purge:
		}
		flushed, err := guard(l.fs.health, func() (<-chan struct{}, error) {
			l.storeMu.RLock()
			defer l.storeMu.RUnlock()
			if l.db == nil {
				return nil, ErrClosed
			}
			return l.db.AsyncFlush()
		})
		if errors.Is(err, ErrClosed) {
			return
		}
		if err != nil {
			_ = l.fs.health.fail(fmt.Errorf("flush after a purge: %w", err))
			return
		}
		select {
		case <-l.stop:
			return
		case <-l.fs.health.dead:
			return
		case <-flushed:
		}
	}
}
