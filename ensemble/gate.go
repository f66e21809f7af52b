package ensemble

import (
	"sync"
	"sync/atomic"
)

// gate says whether clients may be answered: a leader is established, this member follows it up to date (or
// is it) and has applied what the term began with (P15). Only the loop opens and shuts it.
type gate struct {
	open atomic.Bool
	mu   sync.Mutex
	ch   chan struct{} // closed while the gate is open
	// shutSince is the tick at which the gate was last shut.
	shutSince atomic.Int64
}

func newGate() *gate { return &gate{ch: make(chan struct{})} }

func (g *gate) isOpen() bool { return g.open.Load() }

// opened returns a channel that is closed while the gate is open.
func (g *gate) opened() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ch
}

func (g *gate) set(open bool, now int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open.Load() == open {
		return
	}
	if open {
		close(g.ch)
	} else {
		g.ch = make(chan struct{})
		g.shutSince.Store(now)
	}
	g.open.Store(open)
}

// tickClock counts the ticks of the member's loop: the only time by which clients are judged, so that a
// paused or starved member judges nobody (design rule 10).
type tickClock struct{ n atomic.Int64 }

func (t *tickClock) now() int64 { return t.n.Load() }
func (t *tickClock) advance()   { t.n.Add(1) }
