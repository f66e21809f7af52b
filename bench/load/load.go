// Package load drives a store with a fixed pattern of requests and measures what its clients see. It knows no store: kvd and ZooKeeper are
// driven through the package's own Dial (package zk.go), etcd by a driver in a module of its own (bench/etcd), all by the same loop, so that
// only the store and its client library differ.
//
// A slot is one outstanding request: C connections with D slots each keep C×D requests outstanding (closed loop), or, with a
// rate, up to that many while requests begin at fixed times (open loop). In an open loop the latency of a request counts from
// the time at which it was to begin, so that a store that stalls is charged for what it kept waiting (coordinated omission).
package load

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Workload says what a slot asks for.
type Workload string

// The workloads. Each connection has a node of its own, except where another is named.
const (
	Set       Workload = "set"       // overwrite
	Create    Workload = "create"    // a new name each time
	Delete    Workload = "delete"    // of a node that the slot has just made, which is not counted
	Get       Workload = "get"       // read at the server that the connection has; at etcd a serializable read
	Mixed90   Workload = "mixed90"   // nine gets, one set
	Mixed50   Workload = "mixed50"   // get and set in turn
	Multi10   Workload = "multi10"   // ten sets in one transaction; counted as one
	Ephemeral Workload = "ephemeral" // make a node that ends with the session, remove it; two operations
	Sessions  Workload = "sessions"  // open a session and close it; at etcd grant a lease and revoke it
	Lock      Workload = "lock"      // take a lock that all want, give it back; each its own queue place and a watch of the one before
	Fanout    Workload = "fanout"    // one node changes, all connections watch it; an operation ends when the last has heard
)

// Workloads lists them all.
var Workloads = []Workload{Set, Create, Delete, Get, Mixed90, Mixed50, Multi10, Ephemeral, Sessions, Lock, Fanout}

// Kind is what one request does.
type Kind uint8

// The kinds.
const (
	KindSet Kind = iota
	KindCreate
	KindDelete
	KindGet
	KindMulti
	KindEphemeral // create one
	KindSession
	KindLock
	KindFanout
)

// Op is one request. Name is unique for creates; empty means the connection's own node.
type Op struct {
	Kind Kind
	Name string
}

// Slot carries out one request at a time. Do returns at once; done is called once, on any goroutine, and may call Do.
type Slot interface {
	Do(op Op, done func(error))
}

// Timed is a Slot that knows better than the loop how long its last request took, because it has to prepare each.
type Timed interface{ Took() time.Duration }

// Store opens connections to one running store.
type Store interface {
	// Open makes connections, and what they need in the store, with that many slots each. Servers are taken in turn, or the leader alone.
	Open(ctx context.Context, c Config) ([][]Slot, error)
	// Close ends the connections and removes nothing.
	Close() error
}

// Config is one measurement.
type Config struct {
	Workload    Workload
	Connections int
	Depth       int           // slots a connection
	Size        int           // bytes of a value
	Rate        float64       // requests a second in an open loop; 0: closed
	Warmup, For time.Duration // what is not measured, and what is
	LeaderOnly  bool
	Servers     []string // client addresses
}

// Result is what came of a measurement. Latencies are in microseconds.
type Result struct {
	Workload            Workload
	Connections, Depth  int
	Size                int
	Rate                float64 // asked for; 0 for a closed loop
	Seconds             float64
	Operations, Errors  int64
	FirstError          string `json:",omitempty"`
	PerSecond           float64
	P50, P99, P999, Max float64
	Mean                float64
	GeneratorCPU        float64 // microseconds an operation
	GeneratorShare      float64 // of all processors of the machine, 0 to 1
	ServerCPU           float64 // microseconds an operation, summed over the servers; filled in by who knows their processes
	ServerResident      int64   // bytes, summed
	ServerWritten       float64 // bytes to the disk an operation, summed
	MissedStarts        int64   // open loop: requests that began late because every slot was taken
}

// Marker is told of the beginning and of the end of what is measured, for taking figures of the servers at the same time.
type Marker interface {
	Begin()
	End()
}

const (
	phaseWarm int32 = iota
	phaseMeasure
	phaseStop
)

// highest is the longest latency that is told apart.
const highest = int64(10 * time.Minute / time.Microsecond)

// connection gathers what its slots measure.
type connection struct {
	mu     sync.Mutex
	hist   *hdrhistogram.Histogram
	errors int64
	first  error
}

type runner struct {
	c       Config
	phase   atomic.Int32
	done    atomic.Int64 // operations in the measured time, for progress
	running sync.WaitGroup
	conns   []*connection
	missed  atomic.Int64
	// What began between these counts, whenever it ends: a stall at the end of a measurement is part of it. Nanoseconds since made.
	made       time.Time
	start, end atomic.Int64
}

// Run carries out one measurement. progress may be nil; it is told the operations so far, about once a second.
func Run(ctx context.Context, s Store, c Config, mark Marker, progress func(ops int64)) (Result, error) {
	if c.Connections < 1 || c.Depth < 1 || c.For <= 0 {
		return Result{}, fmt.Errorf("%d connections, %d outstanding, for %v: nothing to do", c.Connections, c.Depth, c.For)
	}
	slots, err := s.Open(ctx, c)
	if err != nil {
		return Result{}, err
	}
	r := &runner{c: c, made: time.Now()}
	r.start.Store(math.MaxInt64)
	r.end.Store(math.MaxInt64)
	for range slots {
		r.conns = append(r.conns, &connection{hist: hdrhistogram.New(1, highest, 3)})
	}
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	if c.Rate > 0 {
		r.running.Go(func() { r.open(stop, slots) })
	} else {
		for i, conn := range slots {
			for j, slot := range conn {
				r.running.Add(1)
				l := &closed{r: r, conn: r.conns[i], slot: slot, id: fmt.Sprintf("%d-%d", i, j)}
				l.again = l.next
				l.next(nil)
			}
		}
	}
	if err := wait(ctx, c.Warmup, nil); err != nil {
		r.phase.Store(phaseStop)
		return Result{}, err
	}
	own := cpu()
	mark.Begin()
	start := time.Now()
	r.start.Store(int64(time.Since(r.made)))
	r.phase.Store(phaseMeasure)
	err = wait(ctx, c.For, func() {
		if progress != nil {
			progress(r.done.Load())
		}
	})
	r.end.Store(int64(time.Since(r.made)))
	r.phase.Store(phaseStop)
	took := time.Since(start)
	mark.End()
	own = cpu() - own
	cancel()
	if err != nil {
		return Result{}, err
	}
	finished := make(chan struct{})
	go func() { r.running.Wait(); close(finished) }()
	select {
	case <-finished:
	case <-time.After(2 * time.Minute):
		return Result{}, errors.New("requests were not answered within two minutes of the end")
	}
	return r.result(took, own), nil
}

func (r *runner) result(took, own time.Duration) Result {
	all := hdrhistogram.New(1, highest, 3)
	res := Result{Workload: r.c.Workload, Connections: r.c.Connections, Depth: r.c.Depth, Size: r.c.Size, Rate: r.c.Rate, Seconds: took.Seconds(), MissedStarts: r.missed.Load()}
	for _, c := range r.conns {
		c.mu.Lock()
		all.Merge(c.hist)
		res.Errors += c.errors
		if c.first != nil && res.FirstError == "" {
			res.FirstError = c.first.Error()
		}
		c.mu.Unlock()
	}
	res.Operations = all.TotalCount()
	res.PerSecond = float64(res.Operations) / took.Seconds()
	res.P50, res.P99, res.P999 = float64(all.ValueAtQuantile(50)), float64(all.ValueAtQuantile(99)), float64(all.ValueAtQuantile(99.9))
	res.Max, res.Mean = float64(all.Max()), all.Mean()
	if res.Operations > 0 {
		res.GeneratorCPU = float64(own.Microseconds()) / float64(res.Operations)
	}
	res.GeneratorShare = own.Seconds() / took.Seconds() / float64(runtime.NumCPU())
	return res
}

// note counts one request that began at began.
func (r *runner) note(c *connection, began time.Time, took time.Duration, counts bool, err error) {
	if at := int64(began.Sub(r.made)); at < r.start.Load() || at > r.end.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		if c.errors++; c.first == nil {
			c.first = err
		}
		return
	}
	if counts {
		_ = c.hist.RecordValue(max(1, min(highest, took.Microseconds()))) // within its range
		r.done.Add(1)
	}
}

// closed is one slot in a closed loop.
type closed struct {
	r      *runner
	conn   *connection
	slot   Slot
	id     string
	n      int64
	made   string // what is to be deleted next
	began  time.Time
	count  bool // the request that runs counts
	again  func(error)
	failed error // open loop: of the request before
}

// took is how long the request that has just ended took, which was to begin at began.
func (l *closed) took(began time.Time) time.Duration {
	if t, ok := l.slot.(Timed); ok {
		return t.Took()
	}
	return time.Since(began)
}

// next begins the next request; it is called at the end of each.
func (l *closed) next(err error) {
	if !l.began.IsZero() {
		l.r.note(l.conn, l.began, l.took(l.began), l.count, err)
	}
	if l.r.phase.Load() == phaseStop {
		l.r.running.Done()
		return
	}
	op := l.op(err)
	l.began = time.Now()
	l.slot.Do(op, l.again)
}

// op is the next request of the slot's pattern.
func (l *closed) op(err error) Op {
	l.n++
	l.count = true
	unique := func() string { return fmt.Sprintf("%s-%d", l.id, l.n) }
	switch l.r.c.Workload {
	case Set:
		return Op{Kind: KindSet}
	case Create:
		return Op{Kind: KindCreate, Name: unique()}
	case Delete, Ephemeral:
		if l.made != "" && err == nil {
			name := l.made
			l.made = ""
			return Op{Kind: KindDelete, Name: name}
		}
		l.made = unique()
		if l.r.c.Workload == Ephemeral {
			return Op{Kind: KindEphemeral, Name: l.made}
		}
		l.count = false
		return Op{Kind: KindCreate, Name: l.made}
	case Get:
		return Op{Kind: KindGet}
	case Mixed90:
		if l.n%10 == 0 {
			return Op{Kind: KindSet}
		}
		return Op{Kind: KindGet}
	case Mixed50:
		if l.n%2 == 0 {
			return Op{Kind: KindSet}
		}
		return Op{Kind: KindGet}
	case Multi10:
		return Op{Kind: KindMulti}
	case Sessions:
		return Op{Kind: KindSession}
	case Lock:
		return Op{Kind: KindLock}
	}
	return Op{Kind: KindFanout}
}

// open begins requests at fixed times, each on the slot that has been free for longest.
func (r *runner) open(ctx context.Context, slots [][]Slot) {
	free := make(chan *closed, len(slots)*r.c.Depth)
	total := 0
	for j := range r.c.Depth { // connections in turn
		for i := range slots {
			if j < len(slots[i]) {
				free <- &closed{r: r, conn: r.conns[i], slot: slots[i][j], id: fmt.Sprintf("%d-%d", i, j)}
				total++
			}
		}
	}
	interval := time.Duration(float64(time.Second) / r.c.Rate)
	due := time.Now()
	for r.phase.Load() != phaseStop {
		due = due.Add(interval)
		if wait(ctx, time.Until(due), nil) != nil {
			break
		}
		var l *closed
		select {
		case l = <-free:
		default:
			r.missed.Add(1)
			select {
			case l = <-free:
			case <-ctx.Done():
			}
		}
		if l == nil {
			break
		}
		op := l.op(l.failed)
		began := due
		l.slot.Do(op, func(err error) {
			l.failed = err
			r.note(l.conn, began, time.Since(began), l.count, err) // from when it was to begin, whatever the slot says
			free <- l
		})
	}
	for range total { // what is under way ends
		<-free
	}
}

// wait lets d pass, with a call about once a second.
func wait(ctx context.Context, d time.Duration, each func()) error {
	if d <= 0 {
		return ctx.Err()
	}
	end := time.NewTimer(d)
	defer end.Stop()
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-end.C:
			return nil
		case <-second.C:
			if each != nil {
				each()
			}
		}
	}
}

// cpu is the processor time of this process so far.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
