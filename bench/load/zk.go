package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"kvd/kv"
	"kvd/kv/client"
	"kvd/kv/wire"
)

// zk drives whatever speaks ZooKeeper's protocol.
type zk struct {
	conns   []*client.Client
	servers []string
	cfg     Config

	fan *fanout // of the fanout workload
}

// ZooKeeper returns a Store for kvd and ZooKeeper, both driven by kv/client over TCP.
func ZooKeeper() Store { return &zk{} }

// root is the parent of all that a measurement makes; each has one of its own below it.
const root = "/bench"

// Open implements Store.
func (z *zk) Open(ctx context.Context, c Config) (_ [][]Slot, err error) {
	z.servers, z.cfg = c.Servers, c
	if c.LeaderOnly {
		leader, err := leaderOf(ctx, c.Servers)
		if err != nil {
			return nil, err
		}
		z.servers = []string{leader}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, z.Close())
		}
	}()
	dir := fmt.Sprintf("%s/%s-%d", root, c.Workload, time.Now().UnixNano())
	var slots [][]Slot
	for i := range c.Connections {
		k, err := client.Dial(ctx, z.servers[i%len(z.servers)], client.WithLimits(c.Depth*2+64, 64<<20))
		if err != nil {
			return nil, err
		}
		z.conns = append(z.conns, k)
		if i == 0 {
			for _, path := range []string{root, dir} {
				if _, _, err := k.Create(ctx, path, nil, kv.FlagPersistent, kv.OpenACL()...); err != nil && !errors.Is(err, kv.ErrNodeExists) {
					return nil, err
				}
			}
		} else if err := k.Sync(ctx, "/"); err != nil { // the parents are there for this one too
			return nil, err
		}
		own := fmt.Sprintf("%s/own-%d", dir, i)
		if _, _, err := k.Create(ctx, own, make([]byte, c.Size), kv.FlagPersistent, kv.OpenACL()...); err != nil {
			return nil, err
		}
		var tens []string
		for j := range 10 {
			if c.Workload != Multi10 {
				break
			}
			tens = append(tens, fmt.Sprintf("%s/%d", own, j))
			if _, _, err := k.Create(ctx, tens[j], make([]byte, c.Size), kv.FlagPersistent, kv.OpenACL()...); err != nil {
				return nil, err
			}
		}
		var of []Slot
		for range c.Depth {
			s := &zkSlot{z: z, k: k, own: own, dir: dir, tens: tens, data: make([]byte, c.Size)}
			s.call.Done = s.answered
			of = append(of, s)
		}
		slots = append(slots, of)
	}
	if c.Workload == Fanout {
		z.fan = &fanout{z: z, path: slots[0][0].(*zkSlot).own}
		slots = [][]Slot{{z.fan}} // the change is one client's; the others watch
		if err := z.fan.watch(ctx); err != nil {
			return nil, err
		}
	}
	return slots, nil
}

// Close implements Store.
func (z *zk) Close() error {
	var wg sync.WaitGroup
	for _, k := range z.conns {
		wg.Go(func() { _ = k.Close() }) // always nil
	}
	wg.Wait()
	z.conns = nil
	return nil
}

type zkSlot struct {
	z        *zk
	k        *client.Client
	own, dir string
	tens     []string // of the multi
	data     []byte
	call     client.Call
	done     func(error)
}

func (s *zkSlot) answered(c *client.Call) { s.done(c.Err) }

// Do implements Slot.
func (s *zkSlot) Do(op Op, done func(error)) {
	c := &s.call
	s.done = done
	path := s.own
	if op.Name != "" {
		path = s.dir + "/" + op.Name
	}
	c.Path, c.Data, c.Flags, c.Version, c.Ops = path, nil, 0, wire.AnyVersion, c.Ops[:0]
	switch op.Kind {
	case KindSet:
		c.Op, c.Data = wire.OpSetData, s.data
	case KindCreate:
		c.Op, c.Data = wire.OpCreate, s.data
	case KindEphemeral:
		c.Op, c.Data, c.Flags = wire.OpCreate, s.data, kv.FlagEphemeral
	case KindDelete:
		c.Op = wire.OpDelete
	case KindGet:
		c.Op = wire.OpGetData
	case KindMulti:
		c.Op = wire.OpMulti
		for _, path := range s.tens {
			c.Ops = append(c.Ops, client.SetOp(path, s.data, wire.AnyVersion))
		}
	case KindSession:
		go func() { done(s.session()) }()
		return
	case KindLock:
		go func() { done(s.lock()) }()
		return
	}
	if err := s.k.Do(c); err != nil {
		time.AfterFunc(refused, func() { done(err) })
	}
}

// refused is the pause behind a request that the client library did not take, so that a store that is gone is not asked in a tight loop.
const refused = 10 * time.Millisecond

// patience bounds what a slot waits for.
const patience = time.Minute

// session opens one and closes it.
func (s *zkSlot) session() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	k, err := client.Dial(ctx, s.k.Server())
	if err != nil {
		return err
	}
	return k.Close()
}

// lock takes the lock that everybody wants and gives it back: ZooKeeper's recipe, a sequential ephemeral node each, and a watch of the one
// before one's own.
func (s *zkSlot) lock() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	mine, _, err := s.k.Create(ctx, s.dir+"/lock-", nil, kv.FlagEphemeralSequential, kv.OpenACL()...)
	if err != nil {
		return err
	}
	for {
		before, err := s.before(ctx, mine)
		if err != nil {
			return err
		}
		if before == "" {
			return s.k.Delete(ctx, mine, wire.AnyVersion)
		}
		_, _, gone, err := s.k.GetWatch(ctx, before)
		switch {
		case errors.Is(err, kv.ErrNoNode):
			continue
		case err != nil:
			return err
		}
		select {
		case <-gone:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// before is the node in front of mine in the queue, empty if there is none.
func (s *zkSlot) before(ctx context.Context, mine string) (string, error) {
	names, _, err := s.k.Children(ctx, s.dir) // sorted
	if err != nil {
		return "", err
	}
	last := ""
	for _, name := range names {
		switch path := s.dir + "/" + name; {
		case path == mine:
			return last, nil
		case len(name) > 5 && name[:5] == "lock-":
			last = path
		}
	}
	return "", fmt.Errorf("%s is gone", mine)
}

// fanout changes a node that every connection watches, and waits until the last of them has heard.
type fanout struct {
	z     *zk
	path  string
	heard []<-chan client.Event
	last  time.Duration
}

// Took implements Timed.
func (f *fanout) Took() time.Duration { return f.last }

// watch sets everybody's watch.
func (f *fanout) watch(ctx context.Context) error {
	f.heard = make([]<-chan client.Event, len(f.z.conns))
	errs := make([]error, len(f.z.conns))
	var wg sync.WaitGroup
	for i, k := range f.z.conns {
		wg.Go(func() {
			if errs[i] = k.Sync(ctx, f.path); errs[i] == nil {
				_, _, f.heard[i], errs[i] = k.GetWatch(ctx, f.path)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Do implements Slot. Setting the watches again is not part of what is measured.
func (f *fanout) Do(_ Op, done func(error)) {
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		began := time.Now()
		if _, err := f.z.conns[0].Set(ctx, f.path, make([]byte, f.z.cfg.Size), wire.AnyVersion); err != nil {
			done(err)
			return
		}
		for _, heard := range f.heard {
			select {
			case <-heard:
			case <-ctx.Done():
				done(ctx.Err())
				return
			}
		}
		f.last = time.Since(began)
		done(f.watch(ctx))
	}()
}

// leaderOf asks the servers which of them leads.
func leaderOf(ctx context.Context, servers []string) (string, error) {
	for _, addr := range servers {
		stats, err := srvr(ctx, addr)
		if err != nil {
			return "", err
		}
		if stats.Mode == wire.ModeLeader || stats.Mode == wire.ModeStandalone {
			return addr, nil
		}
	}
	return "", fmt.Errorf("none of %v leads", servers)
}

// srvr asks one server for its four-letter word of that name.
func srvr(ctx context.Context, addr string) (wire.ServerStats, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return wire.ServerStats{}, err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return wire.ServerStats{}, err
	}
	if _, err := io.WriteString(conn, string(wire.WordSrvr)); err != nil {
		return wire.ServerStats{}, err
	}
	text, err := io.ReadAll(conn)
	if err != nil {
		return wire.ServerStats{}, err
	}
	return wire.ParseSrvr(text)
}
