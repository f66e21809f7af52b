package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"kvd/bench/load"
)

// store drives etcd. A connection is one client with a connection of its own to one server; each slot is a goroutine that makes blocking
// calls, which is how etcd's client is used.
type store struct {
	conns []*clientv3.Client
	fan   *fanout
}

const (
	patience = time.Minute
	leaseTTL = 60 // seconds
)

// Open implements load.Store.
func (s *store) Open(ctx context.Context, c load.Config) ([][]load.Slot, error) {
	servers := c.Servers
	if c.LeaderOnly {
		leader, err := leaderOf(ctx, servers)
		if err != nil {
			return nil, err
		}
		servers = []string{leader}
	}
	dir := fmt.Sprintf("bench/%s-%d", c.Workload, time.Now().UnixNano())
	var slots [][]load.Slot
	for i := range c.Connections {
		k, err := clientv3.New(clientv3.Config{Endpoints: []string{servers[i%len(servers)]}, DialTimeout: patience})
		if err != nil {
			return nil, err
		}
		s.conns = append(s.conns, k)
		own := fmt.Sprintf("%s/own-%d", dir, i)
		if _, err := k.Put(ctx, own, string(make([]byte, c.Size))); err != nil {
			return nil, err
		}
		lease := clientv3.NoLease
		if c.Workload == load.Ephemeral {
			l, err := k.Grant(ctx, leaseTTL)
			if err != nil {
				return nil, err
			}
			if _, err := k.KeepAlive(context.Background(), l.ID); err != nil {
				return nil, err
			}
			lease = l.ID
		}
		var of []load.Slot
		for range c.Depth {
			var session *concurrency.Session // one contender each
			if c.Workload == load.Lock {
				if session, err = concurrency.NewSession(k, concurrency.WithTTL(leaseTTL)); err != nil {
					return nil, err
				}
			}
			sl := &slot{k: k, own: own, dir: dir, data: string(make([]byte, c.Size)), lease: lease, session: session, ops: make(chan request, 1)}
			go sl.run()
			of = append(of, sl)
		}
		slots = append(slots, of)
	}
	if c.Workload == load.Fanout {
		s.fan = &fanout{s: s, key: dir + "/own-0", size: c.Size}
		if err := s.fan.watch(ctx); err != nil {
			return nil, err
		}
		return [][]load.Slot{{s.fan}}, nil
	}
	return slots, nil
}

// Close implements load.Store.
func (s *store) Close() error {
	var errs []error
	for _, k := range s.conns {
		errs = append(errs, k.Close())
	}
	return errors.Join(errs...)
}

type request struct {
	op   load.Op
	done func(error)
}

type slot struct {
	k        *clientv3.Client
	own, dir string
	data     string
	lease    clientv3.LeaseID
	session  *concurrency.Session
	ops      chan request
}

// Do implements load.Slot.
func (s *slot) Do(op load.Op, done func(error)) { s.ops <- request{op, done} }

func (s *slot) run() {
	for r := range s.ops {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		err := s.call(ctx, r.op)
		cancel()
		r.done(err)
	}
}

func (s *slot) call(ctx context.Context, op load.Op) (err error) {
	key := s.own
	if op.Name != "" {
		key = s.dir + "/" + op.Name
	}
	switch op.Kind {
	case load.KindSet, load.KindCreate:
		_, err = s.k.Put(ctx, key, s.data)
	case load.KindEphemeral:
		_, err = s.k.Put(ctx, key, s.data, clientv3.WithLease(s.lease))
	case load.KindDelete:
		_, err = s.k.Delete(ctx, key)
	case load.KindGet:
		_, err = s.k.Get(ctx, key, clientv3.WithSerializable())
	case load.KindMulti:
		ops := make([]clientv3.Op, 10) // of ten keys: etcd takes no key twice in a transaction
		for i := range ops {
			ops[i] = clientv3.OpPut(fmt.Sprintf("%s/%d", key, i), s.data)
		}
		_, err = s.k.Txn(ctx).Then(ops...).Commit()
	case load.KindSession:
		var l *clientv3.LeaseGrantResponse
		if l, err = s.k.Grant(ctx, leaseTTL); err == nil {
			_, err = s.k.Revoke(ctx, l.ID)
		}
	case load.KindLock:
		m := concurrency.NewMutex(s.session, s.dir+"/lock")
		if err = m.Lock(ctx); err == nil {
			err = m.Unlock(ctx)
		}
	}
	return err
}

// fanout is load's fan-out for etcd: one key changes, every connection watches it.
type fanout struct {
	s       *store
	key     string
	size    int
	heard   []clientv3.WatchChan
	last    time.Duration
	counter int
}

// Took implements load.Timed.
func (f *fanout) Took() time.Duration { return f.last }

// watch begins everybody's watch, which lasts.
func (f *fanout) watch(ctx context.Context) error {
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	f.heard = make([]clientv3.WatchChan, len(f.s.conns))
	for i, k := range f.s.conns {
		wg.Go(func() {
			f.heard[i] = k.Watch(context.Background(), f.key, clientv3.WithCreatedNotify())
			select {
			case <-f.heard[i]:
			case <-ctx.Done():
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, ctx.Err())
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Do implements load.Slot.
func (f *fanout) Do(_ load.Op, done func(error)) {
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		began := time.Now()
		if _, err := f.s.conns[0].Put(ctx, f.key, string(make([]byte, f.size))); err != nil {
			done(err)
			return
		}
		for _, heard := range f.heard {
			select {
			case _, ok := <-heard:
				if !ok {
					done(errors.New("a watch has ended"))
					return
				}
			case <-ctx.Done():
				done(ctx.Err())
				return
			}
		}
		f.last = time.Since(began)
		done(nil)
	}()
}

// leaderOf asks the servers which of them leads.
func leaderOf(ctx context.Context, servers []string) (string, error) {
	k, err := clientv3.New(clientv3.Config{Endpoints: servers, DialTimeout: patience})
	if err != nil {
		return "", err
	}
	defer func() { _ = k.Close() }()
	for _, addr := range servers {
		st, err := k.Status(ctx, addr)
		if err != nil {
			return "", err
		}
		if st.Leader == st.Header.MemberId {
			return addr, nil
		}
	}
	return "", fmt.Errorf("none of %v leads", servers)
}
