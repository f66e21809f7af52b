package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"kvd/integration/cluster"
)

// comeback is how long all members may take to serve again behind a fault.
const comeback = 90 * time.Second

// storm is what a fault works with.
type storm struct {
	*stage
	kinds  []fault
	rng    *rand.Rand
	counts map[string]int
	leader *cluster.Member // when the fault began
}

// fault is one kind. Each leaves the members started, connected and with sound disks; run need not wait for them to serve.
type fault struct {
	name      string
	weight    int
	net, disk bool // needs it
	run       func(ctx context.Context, s *storm) error
}

var faults = []fault{
	{name: "kill-leader", weight: 5, run: func(ctx context.Context, s *storm) error { return s.kill(ctx, s.leader) }},
	{name: "kill-follower", weight: 3, run: func(ctx context.Context, s *storm) error { return s.kill(ctx, s.follower()) }},
	{name: "kill-all", weight: 2, run: func(ctx context.Context, s *storm) error { return s.kill(ctx, s.Members...) }},
	{name: "pause-leader", weight: 3, run: func(ctx context.Context, s *storm) error { return s.pause(ctx, s.leader) }},
	{name: "pause-follower", weight: 2, run: func(ctx context.Context, s *storm) error { return s.pause(ctx, s.follower()) }},
	{name: "rolling-restart", weight: 2, run: func(ctx context.Context, s *storm) error { return s.rolling(ctx) }},
	{name: "wipe", weight: 2, run: func(ctx context.Context, s *storm) error { return s.wipe(ctx) }},
	{name: "corrupt", weight: 2, run: func(ctx context.Context, s *storm) error { return s.corrupt(ctx) }},
	{name: "partition-minority", weight: 3, net: true, run: func(ctx context.Context, s *storm) error { return s.isolate(ctx, s.follower()) }},
	{name: "leader-alone", weight: 3, net: true, run: func(ctx context.Context, s *storm) error { return s.isolate(ctx, s.leader) }},
	{name: "one-way", weight: 3, net: true, run: func(ctx context.Context, s *storm) error { return s.oneWay(ctx) }},
	{name: "flapping", weight: 2, net: true, run: func(ctx context.Context, s *storm) error { return s.flap(ctx) }},
	{name: "slow-disk", weight: 2, disk: true, run: func(ctx context.Context, s *storm) error { return s.slowDisk(ctx) }},
	{name: "hung-disk", weight: 2, disk: true, run: func(ctx context.Context, s *storm) error { return s.hungDisk(ctx) }},
	{name: "full-disk", weight: 2, disk: true, run: func(ctx context.Context, s *storm) error { return s.fullDisk(ctx) }},
}

// possible are the kinds that the stage allows, or those of them that only names.
func (s *stage) possible(only string) ([]fault, error) {
	names := strings.FieldsFunc(only, func(r rune) bool { return r == ',' || r == ' ' })
	var kinds []fault
	known := ""
	for _, f := range faults {
		known += " " + f.name
		if f.net && s.net == nil || f.disk && s.disks == nil || only != "" && !slices.Contains(names, f.name) {
			continue
		}
		kinds = append(kinds, f)
	}
	if only != "" && len(kinds) != len(names) {
		return nil, fmt.Errorf("--faults %s: not all are known and possible here; known are%s", only, known)
	}
	return kinds, nil
}

// bag returns the kinds, each as often as its weight, in random order: every kind comes, also in a short run.
func bag(kinds []fault, rng *rand.Rand) []fault {
	var all []fault
	for _, f := range kinds {
		for range f.weight {
			all = append(all, f)
		}
	}
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	// One of each first.
	seen := map[string]bool{}
	rank := make(map[int]int, len(all))
	for i, f := range all {
		if seen[f.name] {
			rank[i] = 1
		}
		seen[f.name] = true
	}
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(rank[a], rank[b]) })
	sorted := make([]fault, len(all))
	for i, j := range order {
		sorted[i] = all[j]
	}
	return sorted
}

// rage does one fault after another until loop ends, and then leaves all members serving.
func (s *storm) rage(ctx, loop context.Context) error {
	var todo []fault
	for loop.Err() == nil {
		if err := s.settled(ctx, comeback); err != nil {
			return err
		}
		if wait(loop, s.between(100, 900)) != nil {
			break
		}
		if len(todo) == 0 {
			todo = bag(s.kinds, s.rng)
		}
		f := todo[0]
		todo = todo[1:]
		find, cancel := context.WithTimeout(ctx, comeback)
		leader, err := s.Leader(find)
		cancel()
		if err != nil {
			return err
		}
		s.leader = leader
		s.counts[f.name]++
		start := time.Now()
		if err := f.run(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if err := s.settled(ctx, comeback); err != nil {
			return fmt.Errorf("behind %s (leader was %d): %w", f.name, leader.ID, err)
		}
		if took := time.Since(start); took > 20*time.Second {
			fmt.Fprintf(os.Stderr, "chaos: %s took %v until all served\n", f.name, took.Round(time.Millisecond))
		}
	}
	return ctx.Err()
}

func (s *storm) between(low, high int) time.Duration {
	return time.Duration(low+s.rng.IntN(high-low)) * time.Millisecond
}

func (s *storm) anybody() *cluster.Member { return s.Members[s.rng.IntN(len(s.Members))] }

func (s *storm) follower() *cluster.Member {
	for {
		if m := s.anybody(); m != s.leader || len(s.Members) == 1 {
			return m
		}
	}
}

func (s *storm) kill(ctx context.Context, victims ...*cluster.Member) error {
	for _, m := range victims {
		m.Kill()
	}
	_ = wait(ctx, s.between(0, 1500))
	return start(victims...)
}

func start(members ...*cluster.Member) error {
	for _, m := range members {
		if err := m.Start(); err != nil {
			return err
		}
	}
	return nil
}

func (s *storm) pause(ctx context.Context, m *cluster.Member) error {
	if err := m.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	_ = wait(ctx, s.between(200, 6000))
	return m.Signal(syscall.SIGCONT)
}

// rolling restarts all in turn, in order, as an upgrade does: the next when the one before serves.
func (s *storm) rolling(ctx context.Context) error {
	for _, m := range s.Members {
		if err := m.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		end, cancel := context.WithTimeout(ctx, 30*time.Second)
		err := m.Wait(end)
		cancel()
		if err != nil {
			return fmt.Errorf("member %d, after SIGTERM: %w", m.ID, err)
		}
		if err := m.Start(); err != nil {
			return err
		}
		if err := s.settled(ctx, comeback); err != nil {
			return err
		}
	}
	return nil
}

// wipe takes one member's data away, as a new machine would have it.
func (s *storm) wipe(ctx context.Context) error {
	m := s.anybody()
	m.Kill()
	_ = wait(ctx, s.between(0, 1000))
	if err := os.RemoveAll(m.DataDir()); err != nil {
		return err
	}
	return m.Start()
}

// corrupt changes bytes of a log or snapshot file, half of the time under the running member, which finds it by its
// self-check or at its next start.
func (s *storm) corrupt(ctx context.Context) error {
	m := s.anybody()
	running := s.rng.IntN(2) == 0
	if !running {
		m.Kill()
	}
	if err := s.flip(m); err != nil {
		return err
	}
	if running {
		// Longer than the interval of the self-check: nobody else is damaged before this is mended.
		_ = wait(ctx, 12*time.Second)
		if err := s.settled(ctx, comeback); err != nil {
			return err
		}
		m.Kill()
	}
	return m.Start()
}

func (s *storm) flip(m *cluster.Member) error {
	var files []string
	for _, glob := range []string{"log/*.log", "log/*.sst", "snapshots/*"} {
		found, _ := filepath.Glob(filepath.Join(m.DataDir(), glob))
		for _, f := range found {
			if st, err := os.Stat(f); err == nil && st.Mode().IsRegular() && st.Size() > 0 && !strings.HasSuffix(f, ".tmp") {
				files = append(files, f)
			}
		}
	}
	if len(files) == 0 {
		return fmt.Errorf("member %d has no files below %s", m.ID, m.DataDir())
	}
	f, err := os.OpenFile(files[s.rng.IntN(len(files))], os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // purged meanwhile
	}
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	at := s.rng.Int64N(max(1, st.Size()))
	buf := make([]byte, min(8, st.Size()-at))
	_, err = f.ReadAt(buf, at)
	for i := range buf {
		buf[i] ^= 0xA5
	}
	if err == nil {
		_, err = f.WriteAt(buf, at)
	}
	return errors.Join(err, f.Close())
}

// isolate cuts one member off all others, both ways; clients reach it.
func (s *storm) isolate(ctx context.Context, m *cluster.Member) error {
	if err := s.cut(m); err != nil {
		return err
	}
	_ = wait(ctx, s.between(500, 6000))
	return s.net.Heal()
}

func (s *storm) cut(m *cluster.Member) error {
	for _, other := range s.Members {
		if other != m {
			if err := errors.Join(s.net.Cut(m.ID, other.ID), s.net.Cut(other.ID, m.ID)); err != nil {
				return err
			}
		}
	}
	return nil
}

// oneWay loses everything in one direction of one link, or of all links of one member.
func (s *storm) oneWay(ctx context.Context) error {
	m, in, all := s.anybody(), s.rng.IntN(2) == 0, s.rng.IntN(2) == 0
	for _, other := range s.Members {
		if other == m {
			continue
		}
		from, to := m.ID, other.ID
		if in {
			from, to = to, from
		}
		if err := s.net.Cut(from, to); err != nil {
			return err
		}
		if !all {
			break
		}
	}
	_ = wait(ctx, s.between(500, 6000))
	return s.net.Heal()
}

func (s *storm) flap(ctx context.Context) error {
	m := s.anybody()
	for range 3 + s.rng.IntN(6) {
		if err := s.cut(m); err != nil {
			return err
		}
		_ = wait(ctx, s.between(50, 1200))
		if err := s.net.Heal(); err != nil {
			return err
		}
		_ = wait(ctx, s.between(50, 600))
	}
	return nil
}

// slowDisk freezes and thaws one member's file system again and again: every sync takes some 100 ms.
func (s *storm) slowDisk(ctx context.Context) error {
	d := s.disks[s.anybody().ID]
	for end := time.Now().Add(s.between(2000, 6000)); time.Now().Before(end) && ctx.Err() == nil; {
		if err := d.Freeze(); err != nil {
			return err
		}
		_ = wait(ctx, s.between(30, 250))
		if err := d.Thaw(); err != nil {
			return err
		}
		_ = wait(ctx, s.between(5, 30))
	}
	return nil
}

func (s *storm) hungDisk(ctx context.Context) error {
	m := s.anybody()
	if s.rng.IntN(2) == 0 {
		m = s.leader
	}
	d := s.disks[m.ID]
	if err := d.Freeze(); err != nil {
		return err
	}
	_ = wait(ctx, s.between(1500, 6000))
	return d.Thaw()
}

// fullDisk leaves one member next to no space for a while. It must come back by itself, as behind every fault.
func (s *storm) fullDisk(ctx context.Context) error {
	m := s.anybody()
	d := s.disks[m.ID]
	if err := d.Fill(int64(s.rng.IntN(64 << 10))); err != nil {
		return err
	}
	_ = wait(ctx, s.between(2000, 8000))
	if err := d.Free(); err != nil {
		return err
	}
	if !m.Running() {
		return fmt.Errorf("member %d has ended behind a full disk", m.ID)
	}
	return nil
}
