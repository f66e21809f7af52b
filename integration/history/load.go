package history

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"kvd/kv"
	"kvd/kv/client"
	"kvd/kv/wire"
)

// When a group is retired: beyond that porcupine needs minutes for its history.
const (
	retireOps     = 500
	retireUnknown = 8
)

// GroupsRoot is the parent of the groups' nodes.
const GroupsRoot = Root + "/groups"

// group is a set of keys that several workers use at once.
type group struct {
	id           uint32
	keys         int
	ops, unknown atomic.Int32
	version      [MaxKeys]atomic.Int32 // newest seen, for conditions that have a chance
}

func (g *group) path(i int) string { return fmt.Sprintf("%s/%d-%d", GroupsRoot, g.id, i) }

func (g *group) retired() bool { return g.ops.Load() >= retireOps || g.unknown.Load() >= retireUnknown }

// Load drives clients that read and write the keys of groups, and records every operation. Run may be called by many
// goroutines; each is one client.
type Load struct {
	Log   Log
	Dial  Dial
	Pace  time.Duration // between the operations of one client; 0 is none
	Slots int           // groups in use at once
	Done  func()        // after every recorded operation, if set

	start    time.Time
	once     sync.Once
	slots    []slot
	lastID   atomic.Uint32
	sessions atomic.Uint32
	value    atomic.Uint64
}

type slot struct {
	mu sync.Mutex
	g  *group
}

func (l *Load) init() {
	l.once.Do(func() {
		l.start = time.Now()
		l.slots = make([]slot, l.Slots)
	})
}

func (l *Load) now() int64 { return int64(time.Since(l.start)) }

// call carries one call out. It ends when the reply is there or the client says that there will be none.
func call(c *client.Client, k *client.Call) error {
	done := make(chan struct{})
	k.Done = func(*client.Call) { close(done) }
	if err := c.Do(k); err != nil {
		return err
	}
	<-done
	return k.Err
}

// Run works until ctx ends. Every operation that was begun is recorded before it returns.
func (l *Load) Run(ctx context.Context, seed uint64) {
	l.init()
	rng := rand.New(rand.NewPCG(seed, 2))
	ops := l.Log.NewList()
	var c *client.Client
	var session uint32
	defer func() {
		if c != nil {
			c.Cut()
		}
	}()
	p := newPacer(l.Pace)
	for ctx.Err() == nil {
		if c == nil || c.Err() != nil {
			if c != nil {
				c.Cut()
			}
			var err error
			if c, err = l.Dial(ctx); err != nil {
				c = nil
				continue
			}
			session = l.sessions.Add(1)
		}
		if p.wait(ctx) != nil {
			return
		}
		s := &l.slots[rng.IntN(len(l.slots))]
		g := l.group(ctx, c, s, rng)
		if g == nil {
			continue
		}
		o := Op{Group: g.id, Session: session}
		if l.operate(c, g, rng, &o) {
			*ops = append(*ops, o)
			if l.Done != nil {
				l.Done()
			}
		}
	}
}

// group returns the slot's group, a new one in place of a retired one. It is nil if a new one could not be made.
func (l *Load) group(ctx context.Context, c *client.Client, s *slot, rng *rand.Rand) *group {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.g != nil && !s.g.retired() {
		return s.g
	}
	s.g = nil
	g := &group{id: l.lastID.Add(1), keys: 1 + 2*rng.IntN(2)}
	var make []client.Op
	for i := range g.keys {
		make = append(make, client.CreateOp(g.path(i), nil, kv.FlagPersistent))
	}
	k := client.Call{Op: wire.OpMulti, Ops: make}
	if call(c, &k) != nil || ctx.Err() != nil {
		return nil // its nodes may be there; nobody will use them
	}
	s.g = g
	return g
}

// operate does one operation and fills o; it reports whether there is anything to record.
func (l *Load) operate(c *client.Client, g *group, rng *rand.Rand, o *Op) bool {
	i := rng.IntN(g.keys)
	o.Mask, o.Expected = 1<<i, AnyVersion
	g.ops.Add(1)
	switch n := rng.IntN(100); {
	case n < 45:
		return l.read(c, g, i, o)
	case n < 70 && g.keys > 1:
		o.Mask = []uint8{0b011, 0b110, 0b101, 0b111}[rng.IntN(4)]
	}
	if rng.IntN(3) == 0 {
		o.Expected = g.version[o.First()].Load()
	}
	l.write(c, g, o)
	if o.Outcome == Unknown {
		g.unknown.Add(1)
	}
	return true
}

func (l *Load) read(c *client.Client, g *group, i int, o *Op) bool {
	o.Kind, o.Invoke = SyncRead, l.now()
	if call(c, &client.Call{Op: wire.OpSync, Path: g.path(i)}) != nil {
		return false // neither happened nor says anything
	}
	k := client.Call{Op: wire.OpGetData, Path: g.path(i)}
	err := call(c, &k)
	o.Return = l.now()
	if err != nil && !errors.Is(err, kv.ErrNoNode) {
		return false
	}
	o.Outcome, o.Zxid, o.Mzxid = OK, k.Zxid, k.Stat.Mzxid
	o.Versions[i] = k.Stat.Version
	if err != nil {
		o.Versions[i] = -1 // nobody deletes: a state that no order explains
	} else if len(k.Value) > 0 {
		if o.Value, err = strconv.ParseUint(string(k.Value), 10, 64); err != nil {
			o.Versions[i] = -2
		}
	}
	g.saw(i, k.Stat.Version)
	return true
}

func (g *group) saw(i int, version int32) {
	for {
		old := g.version[i].Load()
		if old >= version || g.version[i].CompareAndSwap(old, version) {
			return
		}
	}
}

func (l *Load) write(c *client.Client, g *group, o *Op) {
	o.Kind, o.Value = Write, l.value.Add(1)
	data := strconv.AppendUint(nil, o.Value, 10)
	k := client.Call{Op: wire.OpSetData, Path: g.path(o.First()), Data: data, Version: o.Expected}
	if o.Mask&(o.Mask-1) != 0 {
		k = client.Call{Op: wire.OpMulti}
		for i := range g.keys {
			if !o.Has(i) {
				continue
			}
			version := AnyVersion
			if i == o.First() {
				version = o.Expected
			}
			k.Ops = append(k.Ops, client.SetOp(g.path(i), data, version))
		}
	}
	o.Invoke = l.now()
	err := call(c, &k)
	o.Return = l.now()
	o.Outcome = outcomeOf(err)
	o.Zxid = k.Zxid
	if err != nil {
		o.Mismatch = errors.Is(err, kv.ErrBadVersion)
		return
	}
	if k.Op == wire.OpSetData {
		o.Mzxid = k.Stat.Mzxid
		o.Versions[o.First()] = k.Stat.Version
		g.saw(o.First(), k.Stat.Version)
		return
	}
	n := 0
	for i := range g.keys {
		if o.Has(i) {
			o.Mzxid = k.Results[n].Stat.Mzxid
			o.Versions[i] = k.Results[n].Stat.Version
			g.saw(i, o.Versions[i])
			n++
		}
	}
}

// ReadGroups collects what one member holds of all groups, behind a sync. c must be connected to that member alone.
func ReadGroups(ctx context.Context, c *client.Client) (map[Key]Final, error) {
	if err := c.Sync(ctx, GroupsRoot); err != nil {
		return nil, err
	}
	names, _, err := c.Children(ctx, GroupsRoot)
	if err != nil {
		return nil, err
	}
	nodes := map[string]Node{}
	if err := readAll(ctx, c, GroupsRoot, names, nodes); err != nil {
		return nil, err
	}
	final := make(map[Key]Final, len(nodes))
	for path, n := range nodes {
		var k Key
		if _, err := fmt.Sscanf(path[len(GroupsRoot)+1:], "%d-%d", &k.Group, &k.Index); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		f := Final{Version: n.Version, Mzxid: n.Mzxid}
		if n.Value != "" {
			if f.Value, err = strconv.ParseUint(n.Value, 10, 64); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
		}
		final[k] = f
	}
	return final, nil
}

// pacer spaces operations out; what was missed during a stall is not made up for beyond a second.
type pacer struct {
	every time.Duration
	next  time.Time
	timer *time.Timer
}

func newPacer(every time.Duration) *pacer { return &pacer{every: every, next: time.Now()} }

func (p *pacer) wait(ctx context.Context) error {
	if p.every == 0 {
		return ctx.Err()
	}
	now := time.Now()
	if p.next = p.next.Add(p.every); now.Sub(p.next) > time.Second {
		p.next = now
	}
	d := p.next.Sub(now)
	if d <= 0 {
		return ctx.Err()
	}
	if p.timer == nil {
		p.timer = time.NewTimer(d)
	} else {
		p.timer.Reset(d)
	}
	select {
	case <-p.timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
