package history

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"kvd/kv"
	"kvd/kv/client"
	"kvd/kv/wire"
)

// LocksRoot is the parent of the locks.
const LocksRoot = Root + "/locks"

// Observer drives clients that hold locks and clients that watch, and records what they see.
type Observer struct {
	Dial  Dial
	Locks int           // locks that the lockers fight for
	Pace  time.Duration // between the calls of one client
	Load  *Load         // for its clock and its numbers of sessions

	mu     sync.Mutex
	holds  []Hold
	errs   []error
	events int
	calls  int
}

// Results are what was recorded; not beside running clients.
func (w *Observer) Results() (holds []Hold, events, calls int, errs []error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.holds, w.events, w.calls, w.errs
}

// RunLocker takes locks and gives them up, or now and then leaves its session to expire, until ctx ends.
func (w *Observer) RunLocker(ctx context.Context, seed uint64) {
	w.Load.init()
	rng := rand.New(rand.NewPCG(seed, 3))
	p := newPacer(w.Pace)
	for ctx.Err() == nil {
		c, err := w.Dial(ctx)
		if err != nil {
			continue
		}
		session := w.Load.sessions.Add(1)
		for c.Err() == nil && p.wait(ctx) == nil {
			if w.lock(ctx, c, p, session, rng) {
				break
			}
		}
		c.Cut()
	}
}

// lock tries for one lock, holds and releases it. It reports whether the session is to be abandoned.
func (w *Observer) lock(ctx context.Context, c *client.Client, p *pacer, session uint32, rng *rand.Rand) (abandon bool) {
	h := Hold{Lock: rng.IntN(w.Locks), Session: session, Asked: w.Load.now(), Timeout: c.SessionTimeout()}
	path := fmt.Sprintf("%s/%d", LocksRoot, h.Lock)
	k := client.Call{Op: wire.OpCreate2, Path: path, Flags: kv.FlagEphemeral}
	err := call(c, &k)
	w.count()
	if err != nil {
		return outcomeOf(err) == Unknown // it may have the lock without knowing: let the session go
	}
	h.Granted, h.Contact, h.Token = w.Load.now(), h.Asked, k.Stat.Czxid
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.holds = append(w.holds, h)
	}()
	for range 1 + rng.IntN(6) {
		if p.wait(ctx) != nil {
			return true
		}
		at := w.Load.now()
		k := client.Call{Op: wire.OpExists, Path: path}
		err := call(c, &k)
		w.count()
		if err != nil && c.Err() != nil {
			return true
		}
		if err != nil && k.Zxid == 0 {
			continue
		}
		h.Contact = at
		if err != nil || k.Stat.Czxid != h.Token {
			w.report("lock %d: session %d is alive (answered at %v) and its lock of token %v is gone: %v, %v", h.Lock, session, k.Zxid, h.Token, k.Stat.Czxid, err)
			return true
		}
		h.Confirmed = max(h.Confirmed, k.Zxid)
	}
	if rng.IntN(20) == 0 {
		return true
	}
	h.GivenUp = w.Load.now()
	d := client.Call{Op: wire.OpDelete, Path: path, Version: AnyVersion}
	if err := call(c, &d); err != nil {
		return true
	}
	w.count()
	h.Contact, h.Gone = h.GivenUp, d.Zxid
	return false
}

// RunWatcher watches keys of the load until ctx ends: behind a read that left a watch, no reply may show a change
// before the event, an event must carry the change, and what is read behind it must be as new.
func (w *Observer) RunWatcher(ctx context.Context, seed uint64) {
	w.Load.init()
	rng := rand.New(rand.NewPCG(seed, 4))
	p := newPacer(w.Pace)
	for ctx.Err() == nil {
		c, err := w.Dial(ctx)
		if err != nil {
			continue
		}
		for c.Err() == nil && p.wait(ctx) == nil {
			s := &w.Load.slots[rng.IntN(len(w.Load.slots))]
			s.mu.Lock()
			g := s.g
			s.mu.Unlock()
			if g != nil {
				w.watch(ctx, c, p, g.path(rng.IntN(g.keys)))
			}
		}
		c.Cut()
	}
}

// watch sets one watch and reads on until it fires, at most 20 times.
func (w *Observer) watch(ctx context.Context, c *client.Client, p *pacer, path string) {
	first := client.Call{Op: wire.OpGetData, Path: path, Watch: true}
	if call(c, &first) != nil {
		return
	}
	w.count()
	for range 20 {
		if p.wait(ctx) != nil {
			return
		}
		early := 0
		done := make(chan struct{})
		k := client.Call{Op: wire.OpGetData, Path: path}
		k.Done = func(*client.Call) {
			early = len(first.Watched) // events and replies are in one order on the client's reader
			close(done)
		}
		if c.Do(&k) != nil {
			return
		}
		<-done
		if k.Err != nil {
			return
		}
		w.count()
		changed := k.Stat.Mzxid != first.Stat.Mzxid
		if early == 0 {
			if changed {
				w.report("watch of %s: a reply showed %v, behind %v, before any event", path, k.Stat.Mzxid, first.Stat.Mzxid)
			}
			continue
		}
		e := <-first.Watched
		if e.Type == client.EventLost {
			return
		}
		w.mu.Lock()
		w.events++
		w.mu.Unlock()
		// What a new connection tells of the time between two has no zxid of its own.
		wrong := e.Zxid <= first.Stat.Mzxid || k.Stat.Mzxid < e.Zxid
		if e.Type != client.EventDataChanged || wrong && !e.CaughtUp || !changed {
			w.report("watch of %s at %v: event %v of %v, then a read of %v", path, first.Stat.Mzxid, e.Type, e.Zxid, k.Stat.Mzxid)
		}
		return
	}
}

func (w *Observer) count() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	if w.Load.Done != nil {
		w.Load.Done()
	}
}

func (w *Observer) report(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.errs = append(w.errs, fmt.Errorf(format, args...))
}
