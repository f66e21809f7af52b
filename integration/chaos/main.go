// Command chaos kills members with SIGKILL at random, the leader half of the time, while clients write, and checks
// at the end that nothing acknowledged is missing on any member, nothing refused is there, nothing is there
// twice, versions count exactly the writes applied, and all members hold the same tree.
//
//	go run ./integration/chaos --for 5m
//
// It exits 1 if anything contradicts, or if the run was too mild to mean something (--min-kills, --min-ok).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"kvd/integration/cluster"
	"kvd/integration/history"
	"kvd/kv/client"
	"kvd/kv/wire"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	flag.DurationVar(&o.length, "for", 5*time.Minute, "how long to kill and write")
	flag.IntVar(&o.members, "members", 3, "voting members")
	flag.IntVar(&o.writers, "writers", 24, "clients that write")
	flag.IntVar(&o.minKills, "min-kills", -1, "fail if fewer were killed (default: 100 for 5m, in proportion)")
	flag.IntVar(&o.minOK, "min-ok", -1, "fail if fewer writes were acknowledged (default: 100000 for 5m, in proportion)")
	flag.Uint64Var(&o.seed, "seed", 0, "seed of the choices (default: from the clock)")
	flag.StringVar(&o.kvd, "kvd", "", "binary (default: built now)")
	flag.Parse()
	if o.minKills < 0 {
		o.minKills = int(100 * o.length / (5 * time.Minute))
	}
	if o.minOK < 0 {
		o.minOK = int(100_000 * o.length / (5 * time.Minute))
	}
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano())
	}
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "chaos: FAILED:", err)
		os.Exit(1)
	}
}

type options struct {
	length          time.Duration
	members         int
	writers         int
	minKills, minOK int
	seed            uint64
	kvd             string
}

func run(ctx context.Context, o options) error {
	dir, err := os.MkdirTemp("", "kvd-chaos-")
	if err != nil {
		return err
	}
	if o.kvd == "" {
		bins, err := cluster.Build(dir)
		if err != nil {
			return err
		}
		o.kvd = bins.Kvd
	}
	c, err := cluster.New(cluster.Options{Members: o.members, Dir: dir, Kvd: o.kvd})
	if err != nil {
		return err
	}
	defer c.Stop()
	start, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := c.Start(start); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "chaos: seed %d, %d members, %d writers, %v, data in %s\n", o.seed, o.members, o.writers, o.length, dir)
	rec := history.NewRecorder()
	kills, err := storm(ctx, c, rec, o)
	if err != nil {
		return errors.Join(err, fmt.Errorf("logs:\n%s", c.Logs(4000)))
	}
	problems, err := judge(ctx, c, rec)
	n := rec.Counts()
	fmt.Printf("chaos: %d kills (%d of the leader, %d of all at once), %d ok, %d unknown, %d failed writes, %d problems, seed %d\n",
		kills.total, kills.leader, kills.all, n.OK, n.Unknown, n.Failed, problems, o.seed)
	switch {
	case err != nil:
		return errors.Join(err, fmt.Errorf("logs:\n%s", c.Logs(4000)))
	case problems > 0:
		return fmt.Errorf("%d contradictions; data and logs are kept in %s", problems, dir)
	case kills.total < o.minKills:
		return fmt.Errorf("only %d kills, %d wanted", kills.total, o.minKills)
	case n.OK < o.minOK:
		return fmt.Errorf("only %d acknowledged writes, %d wanted", n.OK, o.minOK)
	}
	c.Stop()
	return os.RemoveAll(dir)
}

type killCount struct{ total, leader, all int }

// storm runs writers and the killer; when it returns all members run and nothing writes.
func storm(ctx context.Context, c *cluster.Cluster, rec *history.Recorder, o options) (killCount, error) {
	var kills killCount
	prepare, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cl, err := client.Dial(prepare, c.Servers())
	if err != nil {
		return kills, err
	}
	err = history.Prepare(prepare, cl)
	_ = cl.Close()
	if err != nil {
		return kills, err
	}
	loop, stop := context.WithTimeout(ctx, o.length)
	defer stop()
	var writers sync.WaitGroup
	defer writers.Wait()
	defer stop()
	var oks atomic.Int64
	for i := range o.writers {
		w := &history.Writer{
			Name: fmt.Sprintf("w%d", i), Rec: rec, CallTimeout: 10 * time.Second,
			LastOK: func() { oks.Add(1) },
			Dial: func(ctx context.Context) (*client.Client, error) {
				dial, cancel := context.WithTimeout(ctx, 10*time.Second)
				defer cancel()
				return client.Dial(dial, c.Servers(), client.WithBackoff(5*time.Millisecond, 100*time.Millisecond))
			},
		}
		writers.Go(func() { w.Run(loop) })
	}
	writers.Go(func() { progress(loop, &oks) })

	rng := rand.New(rand.NewPCG(o.seed, 1))
	for loop.Err() == nil {
		if wait(loop, time.Duration(150+rng.IntN(850))*time.Millisecond) != nil {
			break
		}
		victims, leader, err := choose(ctx, c, rng)
		if err != nil {
			return kills, err
		}
		for _, m := range victims {
			m.Kill()
			kills.total++
		}
		if leader {
			kills.leader++
		}
		if len(victims) == len(c.Members) {
			kills.all++
		}
		_ = wait(loop, time.Duration(rng.IntN(700))*time.Millisecond)
		for _, m := range victims {
			if err := m.Start(); err != nil {
				return kills, err
			}
		}
		if err := ready(ctx, victims); err != nil {
			return kills, err
		}
	}
	return kills, ctx.Err()
}

// choose picks whom to kill: the leader half of the time, else anybody; now and then everybody.
func choose(ctx context.Context, c *cluster.Cluster, rng *rand.Rand) (victims []*cluster.Member, leader bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	l, err := c.Leader(ctx)
	if err != nil {
		return nil, false, err
	}
	switch n := rng.IntN(20); {
	case n == 0:
		return c.Members, true, nil
	case n <= 10:
		return []*cluster.Member{l}, true, nil
	default:
		m := c.Members[rng.IntN(len(c.Members))]
		return []*cluster.Member{m}, m == l, nil
	}
}

func ready(ctx context.Context, members []*cluster.Member) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, m := range members {
		if err := m.WaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

func progress(ctx context.Context, oks *atomic.Int64) {
	t := time.NewTicker(15 * time.Second)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			fmt.Fprintf(os.Stderr, "chaos: %d writes acknowledged\n", oks.Load())
		case <-ctx.Done():
			return
		}
	}
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// judge checks every member against the recording and the members against each other.
func judge(ctx context.Context, c *cluster.Cluster, rec *history.Recorder) (problems int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for _, m := range c.Members {
		cl, err := client.Dial(ctx, m.Client)
		if err != nil {
			return problems, fmt.Errorf("member %d: %w", m.ID, err)
		}
		nodes, err := history.Read(ctx, cl)
		_ = cl.Close()
		if err != nil {
			return problems, fmt.Errorf("member %d: %w", m.ID, err)
		}
		for i, err := range rec.Check(nodes) {
			problems++
			if i < 20 {
				fmt.Fprintf(os.Stderr, "chaos: member %d: %v\n", m.ID, err)
			}
		}
	}
	if err := sameDigests(ctx, c); err != nil {
		problems++
		fmt.Fprintln(os.Stderr, "chaos:", err)
	}
	return problems, nil
}

// sameDigests waits until all members stand at one zxid, and compares their trees' digests there.
func sameDigests(ctx context.Context, c *cluster.Cluster) error {
	for {
		digests := map[string]int{}
		zxids := map[string]bool{}
		for _, m := range c.Members {
			text, err := m.FourLetterWord(ctx, "srvr")
			if err != nil {
				return err
			}
			s, err := wire.ParseSrvr([]byte(text))
			if err != nil {
				return fmt.Errorf("member %d: %w", m.ID, err)
			}
			zxids[fmt.Sprint(s.DigestZxid)] = true
			digests[fmt.Sprint(s.Digest)] = m.ID
		}
		if len(zxids) == 1 {
			if len(digests) != 1 {
				return fmt.Errorf("digests differ at one zxid: %v", digests)
			}
			return nil
		}
		if err := wait(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("the members do not come to rest at one zxid: %v: %w", zxids, err)
		}
	}
}
