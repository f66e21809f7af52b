// Command powerloss cuts the power of running members, which SIGKILL cannot show: a killed process leaves the
// kernel's caches behind, a power cut does not.
//
//	go run ./integration/powerloss            # 200 cuts; exits 0 if nothing was lost
//	go run ./integration/powerloss --no-sync  # the log's syncs do nothing: must report a loss, exits 1
//	go run ./integration/powerloss --no-sync --accept-losses   # and nobody says so: the comparison must find it
//
// Three members run in this process with the real log on Pebble's crashable in-memory file system and real
// snapshot files. Under load the power of all of them, or of one, goes: from one instant on no write or sync of
// the victim succeeds, its disk becomes what had been synced plus none, half or all of the rest, and snapshot files
// that were not durable are removed or cut. The members start again on what is left. Every acknowledged write must
// be there on every member, the ensemble must serve again by itself, and no member may call itself suspect.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"kvd/ensemble"
	"kvd/integration/history"
	"kvd/kv"
	"kvd/kv/client"
	"kvd/wal"
)

type options struct {
	cuts       int
	writers    int
	checkEvery int
	noSync     bool
	// accept: a member that finds that it has lost something is made to accept that at once, and votes.
	accept  bool
	seed    uint64
	verbose bool
	// serveLimit bounds how long the ensemble may take to serve again by itself.
	serveLimit time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	debug.SetGCPercent(40) // what a cut abandons stays: memory is dearer here than speed
	var o options
	flag.IntVar(&o.cuts, "cuts", 200, "power cuts")
	flag.IntVar(&o.writers, "writers", 12, "clients that write")
	flag.IntVar(&o.checkEvery, "check-every", 10, "cuts between two checks of all members (1 with --no-sync)")
	flag.BoolVar(&o.noSync, "no-sync", false, "make the log's sync a no-op: a loss must be reported")
	flag.BoolVar(&o.accept, "accept-losses", false, "with --no-sync: what a member knows to be lost is given up at once, as kvd recover does it, so that only the acknowledged writes tell")
	flag.Uint64Var(&o.seed, "seed", 0, "seed of the choices (default: from the clock); the timing is not replayed")
	flag.DurationVar(&o.serveLimit, "serve-limit", time.Minute, "how long the ensemble may take to serve again")
	flag.BoolVar(&o.verbose, "v", false, "the members' logs on stderr")
	flag.Parse()
	if o.accept && !o.noSync {
		fmt.Fprintln(os.Stderr, "powerloss: --accept-losses means something with --no-sync only")
		os.Exit(2)
	}
	if o.noSync {
		o.checkEvery = 1
	}
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano())
	}
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "powerloss: FAILED:", err)
		os.Exit(1)
	}
}

// errLost is what a run without syncs has to end with.
var errLost = errors.New("acknowledged writes were lost, or members contradict")

func run(ctx context.Context, o options) (err error) {
	dir, err := os.MkdirTemp("", "kvd-powerloss-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	level := slog.Level(100)
	if o.verbose {
		level = slog.LevelInfo
	}
	s := &storm{
		o: o, rng: rand.New(rand.NewPCG(o.seed, 7)), rec: history.NewRecorder(),
		log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
	}
	fmt.Fprintf(os.Stderr, "powerloss: seed %d, %d cuts, %d writers, no-sync %v\n", o.seed, o.cuts, o.writers, o.noSync)
	if err := s.power(ctx, dir); err != nil {
		return err
	}
	defer s.off()
	s.makeWriters()
	err = s.run(ctx)
	n := s.rec.Counts()
	fmt.Printf("powerloss: %d cuts (%d of all, %d of one, %d of those the leader; kept 0%%: %d, 50%%: %d, 100%%: %d), %d ok, %d unknown, %d failed writes, %d problems, slowest return %v, seed %d\n",
		s.cuts, s.ofAll, s.cuts-s.ofAll, s.ofLeader, s.kept[0], s.kept[50], s.kept[100], n.OK, n.Unknown, n.Failed, s.problems,
		s.slowest.Round(time.Millisecond), o.seed)
	switch {
	case err != nil:
		return err
	case s.o.accept && s.problems > 0 && s.lost == 0:
		return fmt.Errorf("%d problems after %d cuts, and none of them is an acknowledged write", s.problems, s.cuts)
	case s.problems > 0:
		return fmt.Errorf("%w: %d problems after %d cuts, %d of them found in the writes", errLost, s.problems, s.cuts, s.lost)
	case n.OK < s.o.cuts:
		return fmt.Errorf("only %d acknowledged writes in %d cuts: the run means nothing", n.OK, s.cuts)
	}
	return nil
}

// storm is one run.
type storm struct {
	o       options
	rng     *rand.Rand
	rec     *history.Recorder
	log     *slog.Logger
	members []*member
	writers []*history.Writer

	cuts, ofAll, ofLeader int
	kept                  map[int]int
	problems              int
	lost                  int // of them: what the comparison with the recording found
	slowest               time.Duration
}

// power starts the ensemble for the first time.
func (s *storm) power(ctx context.Context, dir string) error {
	s.kept = map[int]int{}
	var err error
	if s.members, err = newMembers(dir, 3, s.o.noSync, s.log); err != nil {
		return err
	}
	for _, m := range s.members {
		if err := m.start(ctx); err != nil {
			return err
		}
	}
	if err := s.waitServing(ctx); err != nil {
		return err
	}
	c, err := s.members[0].dial(ctx)
	if err != nil {
		return err
	}
	defer c.Cut()
	return history.Prepare(ctx, c)
}

func (s *storm) off() {
	for _, m := range s.members {
		m.stop()
	}
}

func (s *storm) run(ctx context.Context) error {
	for s.cuts < s.o.cuts && s.problems == 0 {
		if err := s.round(ctx); err != nil {
			return fmt.Errorf("cut %d: %w", s.cuts, err)
		}
		if s.problems > 0 {
			return nil // a member said so itself; what follows would only repeat it
		}
		if s.cuts%s.o.checkEvery == 0 || s.cuts == s.o.cuts {
			if err := s.judge(ctx); err != nil {
				return fmt.Errorf("after cut %d: %w", s.cuts, err)
			}
		}
		if s.cuts%20 == 0 {
			fmt.Fprintf(os.Stderr, "powerloss: %d cuts, %d writes acknowledged, slowest return %v\n", s.cuts, s.rec.Counts().OK, s.slowest.Round(time.Millisecond))
		}
	}
	return nil
}

// round is one cut under load: when it returns everybody serves and nobody writes.
func (s *storm) round(ctx context.Context) error {
	load, stopLoad := context.WithCancel(ctx)
	var writers sync.WaitGroup
	defer writers.Wait()
	defer stopLoad()
	for _, w := range s.writers {
		writers.Go(func() { w.Run(load) })
	}
	s.pause(ctx, 30, 150)

	victims, what := s.choose()
	percent := []int{0, 50, 100}[s.rng.IntN(3)]
	s.cuts++
	s.kept[percent]++
	for _, m := range victims {
		m.cut(percent, rand.New(rand.NewPCG(s.rng.Uint64(), 3)))
	}
	if len(victims) == 1 {
		s.pause(ctx, 0, 200) // the others may go on, or not
	}
	for _, m := range victims {
		m.stop()
	}
	begin := time.Now()
	suspects := make([]string, len(victims))
	for i, m := range victims {
		var err error
		if suspects[i], err = m.lost(); err != nil {
			return fmt.Errorf("%s, %d%% kept: member %d: %w", what, percent, m.id, err)
		}
	}
	if s.o.accept {
		if err := s.acceptLosses(victims, suspects); err != nil {
			return err
		}
	}
	for i, m := range victims {
		if lost := suspects[i]; lost != "" {
			s.problem("cut %d (%s, %d%% kept): member %d knows that it lost something: %s", s.cuts, what, percent, m.id, lost)
		}
		if err := m.start(ctx); err != nil {
			return fmt.Errorf("%s, %d%% kept: member %d does not start: %w", what, percent, m.id, err)
		}
	}
	if s.problems > 0 {
		return nil
	}
	if err := s.waitServing(ctx); err != nil {
		return fmt.Errorf("%s, %d%% kept: the ensemble does not come back by itself: %w", what, percent, err)
	}
	s.slowest = max(s.slowest, time.Since(begin))
	s.pause(ctx, 0, 50)
	return nil
}

// acceptLosses takes away what members know of their losses: what is left of each log becomes its whole history. If that cannot be
// for one of them, all that lost power begin from nothing.
func (s *storm) acceptLosses(victims []*member, suspects []string) error {
	for i, m := range victims {
		if suspects[i] == "" {
			continue
		}
		if err := m.accept(); err != nil && !errors.Is(err, wal.ErrNotAccepted) {
			return fmt.Errorf("member %d accepts its losses: %w", m.id, err)
		} else if err != nil {
			for _, m := range victims {
				if err := m.wipe(); err != nil {
					return fmt.Errorf("member %d begins from nothing: %w", m.id, err)
				}
			}
			break
		}
	}
	clear(suspects)
	return nil
}

// makeWriters makes the writers once; each continues its own sequence in every round.
func (s *storm) makeWriters() {
	for i := range s.o.writers {
		pick := rand.New(rand.NewPCG(s.o.seed, uint64(100+i)))
		s.writers = append(s.writers, &history.Writer{
			Name: fmt.Sprintf("w%d", i), Rec: s.rec, CallTimeout: 20 * time.Second,
			Dial: func(ctx context.Context) (*client.Client, error) {
				dial, cancel := context.WithTimeout(ctx, 2*time.Second)
				defer cancel()
				c, err := s.members[pick.IntN(len(s.members))].dial(dial)
				if err != nil {
					_ = wait(ctx, 5*time.Millisecond) // that member is without power
				}
				return c, err
			},
		})
	}
}

// choose picks the victims: everybody half of the time, else the leader or anybody.
func (s *storm) choose() (victims []*member, what string) {
	if s.rng.IntN(2) == 0 {
		s.ofAll++
		return s.members, "all members"
	}
	m := s.members[s.rng.IntN(len(s.members))]
	if l := s.leader(); l != nil && s.rng.IntN(2) == 0 {
		m = l
	}
	what = fmt.Sprintf("member %d", m.id)
	if m == s.leader() {
		s.ofLeader++
		what += ", the leader"
	}
	return []*member{m}, what
}

func (s *storm) leader() *member {
	for _, m := range s.members {
		if st, ok := m.status(); ok && st.Serving && st.Leader == st.ID {
			return m
		}
	}
	return nil
}

func (s *storm) problem(format string, args ...any) {
	if s.problems++; s.problems <= 20 {
		fmt.Fprintf(os.Stderr, "powerloss: "+format+"\n", args...)
	}
}

func (s *storm) waitServing(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.o.serveLimit)
	defer cancel()
	for _, m := range s.members {
		if err := m.waitServing(ctx); err != nil {
			return fmt.Errorf("member %d does not serve: %w (%s)", m.id, err, s.describe())
		}
	}
	return nil
}

// describe says what each member believes, for a failure.
func (s *storm) describe() string {
	text := ""
	for _, m := range s.members {
		st, _ := m.status()
		text += fmt.Sprintf("[member %d: role %d stage %d leader %d epoch %d durable %v suspect %q]", m.id, st.Role, st.Stage, st.Leader, st.Epoch, st.Durable, st.Suspect)
	}
	return text
}

func (s *storm) pause(ctx context.Context, low, high int) {
	_ = wait(ctx, time.Duration(low+s.rng.IntN(high-low))*time.Millisecond)
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// judge checks every member against the recording, and the members against each other.
func (s *storm) judge(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for _, m := range s.members {
		c, err := m.dial(ctx)
		if err != nil {
			return fmt.Errorf("member %d: %w", m.id, err)
		}
		nodes, err := history.Read(ctx, c)
		c.Cut()
		if errors.Is(err, kv.ErrNoNode) { // even the parents are gone
			nodes, err = nil, nil
		}
		if err != nil {
			return fmt.Errorf("member %d: %w", m.id, err)
		}
		for _, err := range s.rec.Check(nodes) {
			s.lost++
			s.problem("after cut %d, member %d: %v", s.cuts, m.id, err)
		}
	}
	return s.sameDigests(ctx)
}

// sameDigests waits until all members stand at one zxid, and compares their trees there.
func (s *storm) sameDigests(ctx context.Context) error {
	for {
		var first ensemble.Status
		same, equal := true, true
		for i, m := range s.members {
			st, ok := m.status()
			if i == 0 {
				first = st
			}
			same = same && ok && st.Applied == first.Applied
			equal = equal && st.Digest == first.Digest
		}
		if same {
			if !equal {
				s.problem("after cut %d: digests differ at %v", s.cuts, first.Applied)
			}
			return nil
		}
		if err := wait(ctx, 2*time.Millisecond); err != nil {
			return fmt.Errorf("the members do not come to rest at one zxid: %w", err)
		}
	}
}
