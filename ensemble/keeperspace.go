package ensemble

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"
)

// A member that may not be started for want of disk space waits here.

// spaceLineEvery is how often a wait says so.
const spaceLineEvery = 30 * time.Second

// spaceWait asks once a second whether there is room, until stop is closed.
func spaceWait(cfg *Config, stop <-chan struct{}) {
	t := time.NewTicker(spaceEvery)
	defer t.Stop()
	var said time.Time
	for {
		err := cfg.missingSpace()
		if err == nil {
			cfg.Logger.Info("there is disk space again: starting", "member", uint64(cfg.ID))
			return
		}
		if now := time.Now(); now.Sub(said) >= spaceLineEvery {
			said = now
			cfg.Logger.Warn("waiting for disk space", "member", uint64(cfg.ID), "because", err)
		}
		select {
		case <-stop:
			return
		case <-t.C:
		}
	}
}

// awaitFirstSpace returns when a first start need not wait for disk space. What is wrong with cfg is told by the start.
func awaitFirstSpace(ctx context.Context, cfg Config) error {
	cfg.EnsureDefaults()
	if cfg.Validate() != nil || cfg.missingSpace() == nil {
		return nil
	}
	spaceWait(&cfg, ctx.Done())
	return ctx.Err()
}

// awaitSpace waits between two members. Whoever connects meanwhile is turned away at once: a connection that waits in a
// queue of the kernel would hold its client up.
func (k *Keeper) awaitSpace() {
	cfg := k.cfg
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	listeners, err := k.sockets.again()
	if err != nil { // the Keeper is being stopped
		return
	}
	var group sync.WaitGroup
	for _, l := range append([]net.Listener{listeners.Learner, listeners.Election}, listeners.Client...) {
		if l == nil {
			continue
		}
		group.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = c.Close()
			}
		})
	}
	spaceWait(&cfg, k.stop)
	listeners.close()
	group.Wait()
}
