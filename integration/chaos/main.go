// Command chaos does to real members what real machines do, while clients read, write, watch and lock, and judges
// at the end what the clients were told: every history of keys is linearizable (porcupine), all operations
// fit the order of zxids, no lock had two holders, no watch came late; every member holds every acknowledged
// write, nothing that was refused, nothing twice, and all hold the same tree.
//
//	go run ./integration/chaos --for 3m
//
// Members run in network namespaces and on small file systems of their own where the machine allows it (it takes root);
// what it does not allow is left out and said. It exits 1 if anything contradicts, or if the run was too mild to mean
// something (--min-faults, --min-kinds, --min-ok).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	flag.DurationVar(&o.length, "for", 5*time.Minute, "how long to break things and write")
	flag.IntVar(&o.members, "members", 3, "voting members")
	flag.IntVar(&o.writers, "writers", 24, "clients that read and write; some more watch and lock")
	flag.Float64Var(&o.rate, "rate", 1500, "operations a second of all of them together; 0: as many as go")
	flag.IntVar(&o.minFaults, "min-faults", -1, "fail if there were fewer faults (default: 200 for 30m, in proportion)")
	flag.IntVar(&o.minFaults, "min-kills", -1, "the same")
	flag.IntVar(&o.minKinds, "min-kinds", -1, "fail if there were fewer kinds of faults (default: 8 from 2m on)")
	flag.IntVar(&o.minOK, "min-ok", -1, "fail if fewer operations were recorded (default: 1000000 for 30m, in proportion)")
	flag.Uint64Var(&o.seed, "seed", 0, "seed of the choices (default: from the clock)")
	flag.StringVar(&o.kvd, "kvd", "", "binary (default: built now)")
	flag.StringVar(&o.network, "network", "auto", "netns: namespaces or fail; proxy: cutting proxies between the members; none; auto: namespaces if possible, else proxies")
	flag.StringVar(&o.only, "faults", "", "only these kinds, separated by commas")
	flag.StringVar(&o.plant, "plant", "", "sync: syncs are no-ops; write: some writes are acknowledged and never sent. The run must then fail: exit 0 if it does")
	flag.StringVar(&o.disk, "disk", "auto", "loop: own file systems or fail; none; auto: if possible")
	flag.Parse()
	if o.minFaults < 0 {
		o.minFaults = int(200 * o.length / (30 * time.Minute))
	}
	if o.minKinds < 0 && o.length >= 2*time.Minute {
		o.minKinds = 8
	}
	if o.minOK < 0 {
		o.minOK = int(1_000_000 * o.length / (30 * time.Minute))
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
	length                     time.Duration
	members, writers           int
	rate                       float64
	minFaults, minKinds, minOK int
	seed                       uint64
	kvd, network, disk         string
	only, plant                string
}

func run(ctx context.Context, o options) (err error) {
	s, err := newStage(o)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, s.close())
		if err == nil {
			err = os.RemoveAll(s.dir)
		}
	}()
	begin, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := s.Start(begin); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "chaos: seed %d, %d members, %d writers, %v, network %s, own file systems %v, data in %s\n",
		o.seed, o.members, o.writers, o.length, s.networkName(), s.disks != nil, s.dir)
	w, err := newWork(begin, s, o)
	if err != nil {
		return err
	}
	kinds, err := s.possible(o.only)
	if err != nil {
		return err
	}
	st := &storm{stage: s, kinds: kinds, rng: rand.New(rand.NewPCG(o.seed, 1)), counts: map[string]int{}}
	err = w.during(ctx, o, func(loop context.Context) error { return st.rage(ctx, loop) })
	if err != nil {
		return errors.Join(err, fmt.Errorf("logs:\n%s", s.Logs(4000)))
	}
	v, err := w.judge(ctx, s)
	total := 0
	var names []string
	for _, name := range sorted(st.counts) {
		total += st.counts[name]
		names = append(names, fmt.Sprintf("%s %d", name, st.counts[name]))
	}
	fmt.Printf("chaos: faults: %s\n", strings.Join(names, ", "))
	fmt.Printf("chaos: %s\n", v.detail)
	fmt.Printf("chaos: %d faults of %d kinds, %d operations (%d ok, %d unknown, %d failed), %s, %d problems, seed %d\n",
		total, len(names), v.operations, v.counts.OK, v.counts.Unknown, v.counts.Failed, v.linear, v.problems, o.seed)
	switch {
	case err != nil:
		return errors.Join(err, fmt.Errorf("logs:\n%s", s.Logs(4000)))
	case o.plant != "" && v.problems > 0:
		fmt.Printf("chaos: the planted mistake (%s) was found\n", o.plant)
		return nil
	case o.plant != "":
		return fmt.Errorf("the planted mistake (%s) was NOT found", o.plant)
	case v.problems > 0:
		return fmt.Errorf("%d contradictions; logs are kept in %s", v.problems, s.dir)
	case total < o.minFaults:
		return fmt.Errorf("only %d faults, %d wanted", total, o.minFaults)
	case len(names) < o.minKinds:
		return fmt.Errorf("only %d kinds of faults, %d wanted", len(names), o.minKinds)
	case v.operations < o.minOK:
		return fmt.Errorf("only %d operations, %d wanted", v.operations, o.minOK)
	}
	return nil
}

func sorted(m map[string]int) []string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
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
