package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"kvd/integration/cluster"
	"kvd/kv"
)

// transcript records what commands print, for docs/operations.md.
type transcript struct {
	*testing.T
	text strings.Builder
}

// kvd runs a command on a member's directory, which it writes as data/kvd, and returns the exit code and all output.
func (r *transcript) kvd(ctx context.Context, m *cluster.Member, stdin string, args ...string) (code int, output string) {
	r.Helper()
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "data/kvd", m.DataDir())
	}
	cmd := exec.CommandContext(ctx, binaries(r.T).Kvd, args...)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &out
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		r.Fatal(err)
	}
	text := strings.ReplaceAll(out.String(), m.DataDir(), "data/kvd")
	if stdin != "" { // what a terminal would show
		text = strings.Replace(text, "to go on: ", "to go on: "+stdin, 1)
	}
	fmt.Fprintf(&r.text, "$ kvd %s\n%s", strings.ReplaceAll(strings.Join(args, " "), m.DataDir(), "data/kvd"), text)
	return cmd.ProcessState.ExitCode(), out.String()
}

// Zxids, counts, digests, times and ids differ from run to run.
var (
	clusterIDs = regexp.MustCompile(`\b([0-9a-f]{32}|[0-9a-f]{16})\b|checked in [0-9a-zµ.]+`)
	numbers    = regexp.MustCompile(`\d+`)
)

func withoutNumbers(s string) string {
	return numbers.ReplaceAllString(clusterIDs.ReplaceAllString(s, "ID"), "N")
}

// inDocs compares the transcript with the block of that name.
func (r *transcript) inDocs(name string) {
	r.Helper()
	const path = "../docs/operations.md"
	b, err := os.ReadFile(path)
	if err != nil {
		r.Fatal(err)
	}
	begin, end := "<!-- transcript: "+name+" -->\n```\n", "```\n<!-- end of transcript -->\n"
	head, rest, ok := strings.Cut(string(b), begin)
	block, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		r.Fatalf("%s has no transcript %q", path, name)
	}
	if got := r.text.String(); withoutNumbers(got) != withoutNumbers(block) {
		if *update {
			if err := os.WriteFile(path, []byte(head+begin+got+end+tail), 0o644); err != nil {
				r.Fatal(err)
			}
			return
		}
		r.Errorf("%s is stale (run this test with -update):\n%s\ngot:\n%s", path, block, got)
	}
}

// logged waits until a member's log matches, and returns the groups.
func logged(t *testing.T, ctx context.Context, m *cluster.Member, pattern string) (groups []string) {
	t.Helper()
	re := regexp.MustCompile(pattern)
	eventually(t, ctx, fmt.Sprintf("member %d logs %q", m.ID, pattern), func() error {
		b, err := os.ReadFile(m.LogFile())
		if err != nil {
			return err
		}
		if groups = re.FindStringSubmatch(string(b)); groups == nil {
			return errors.New("it does not")
		}
		return nil
	})
	return groups
}

// loseTail takes away the end of what a killed member had acknowledged: the newest record of its write-ahead file.
func loseTail(t *testing.T, m *cluster.Member) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(m.DataDir(), "log", "*.log"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	slices.Sort(files)
	name := files[len(files)-1]
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	end := len(bytes.TrimRight(b, "\x00"))
	if end < 100 {
		t.Fatalf("%s holds %d bytes", name, end)
	}
	clear(b[end-20:])
	if err := os.WriteFile(name, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// exitCode waits for a member that ends by itself.
func exitCode(t *testing.T, ctx context.Context, m *cluster.Member) int {
	t.Helper()
	var exit *exec.ExitError
	if err := m.Wait(ctx); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit == nil {
		return 0
	}
	return exit.ExitCode()
}

// A single member whose acknowledged tail is gone refuses to start, names the command, and starts after it with everything
// before the damage.
func TestRecoverSingleMember(t *testing.T) {
	c, ctx := startCluster(t, 1)
	m := c.Members[0]
	k := dial(t, ctx, m.Client)
	for i := range 20 {
		if _, _, err := k.Create(ctx, fmt.Sprintf("/n%02d", i), []byte("v"), kv.FlagPersistent); err != nil {
			t.Fatal(err)
		}
	}
	r := transcript{T: t}
	if code, out := r.kvd(ctx, m, "", "recover", "data/kvd", "--accept-up-to", "1:5"); code != 2 || !strings.Contains(out, "in use") {
		t.Fatalf("recovery of a running member: exit %d, %s", code, out)
	}
	m.Kill()
	loseTail(t, m)
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, ctx, m); code != 2 {
		t.Fatalf("exit code %d", code)
	}
	z := logged(t, ctx, m, "`kvd recover "+regexp.QuoteMeta(m.DataDir())+" --accept-up-to ([0-9:]+)`")[1]

	r.text.Reset()
	if code, _ := r.kvd(ctx, m, "", "inspect", "data/kvd"); code != 1 {
		t.Fatalf("inspect: exit code %d", code)
	}
	_, out := (&transcript{T: t}).kvd(ctx, m, "", "inspect", "data/kvd", "-o", "json")
	cluster := regexp.MustCompile(`"cluster": "([0-9a-f]{32})"`).FindStringSubmatch(out)
	if cluster == nil {
		t.Fatal(out)
	}
	for _, refused := range [][]string{
		{"recover", "data/kvd", "--accept-up-to", z},
		{"recover", "data/kvd", "--accept-up-to", z, "--yes", strings.Repeat("0", 32)},
		{"recover", "data/kvd", "--accept-up-to", "9:9", "--yes", cluster[1]},
		{"recover", "data/kvd", "--sole-survivor", "--yes", cluster[1]},
		{"recover", "data/kvd", "--yes", cluster[1]},
	} {
		if code, out := (&transcript{T: t}).kvd(ctx, m, "", refused...); code != 2 {
			t.Errorf("%v: exit code %d, %s", refused, code, out)
		}
	}
	if code, out := r.kvd(ctx, m, cluster[1]+"\n", "recover", "data/kvd", "--accept-up-to", z); code != 0 {
		t.Fatalf("exit code %d: %s", code, out)
	}
	r.inDocs("accept-up-to")

	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	if err := m.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	k = dial(t, ctx, m.Client)
	// The last record is lost, and with it at most the last write.
	for i := range 19 {
		if data, _, err := k.Get(ctx, fmt.Sprintf("/n%02d", i)); err != nil || string(data) != "v" {
			t.Errorf("/n%02d: %q, %v", i, data, err)
		}
	}
	if _, _, err := k.Create(ctx, "/after", nil, kv.FlagPersistent); err != nil {
		t.Fatal(err)
	}
	if kept, err := filepath.Glob(filepath.Join(m.DataDir(), "log.given-up-1*")); err != nil || len(kept) != 2 {
		t.Errorf("kept: %v %v", kept, err)
	}
}

// wipe removes what a stopped member holds.
func wipe(t *testing.T, m *cluster.Member) {
	t.Helper()
	if err := os.RemoveAll(m.DataDir()); err != nil {
		t.Fatal(err)
	}
}

// One of three is wiped: it does not help the one that lacks the newest write to lead without the third, and takes
// everything over when that is there.
func TestWipedMemberRejoinsWithoutVoting(t *testing.T) {
	c, ctx := startCluster(t, 3, patient)
	k := dial(t, ctx, c.Servers())
	if _, _, err := k.Create(ctx, "/before", nil, kv.FlagPersistent); err != nil {
		t.Fatal(err)
	}
	sameTree(t, ctx, c)
	behind, wiped, holder := c.Members[0], c.Members[1], c.Members[2]
	behind.Kill()
	k = dial(t, ctx, wiped.Client+","+holder.Client)
	if _, _, err := k.Create(ctx, "/newest", nil, kv.FlagPersistent); err != nil {
		t.Fatal(err)
	}
	c.Stop()
	wipe(t, wiped)
	for _, m := range []*cluster.Member{behind, wiped} {
		if err := m.Start(); err != nil {
			t.Fatal(err)
		}
	}
	logged(t, ctx, behind, `no leader: 1 of 3 voters can be counted, 2 are needed; not connected: 3; blank or [^"]*: 2"`)
	for _, m := range []*cluster.Member{behind, wiped} {
		if s, err := stats(ctx, m); err == nil && s.Serving {
			t.Fatalf("member %d serves without the only one that holds the newest write", m.ID)
		}
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	for _, m := range c.Members {
		if err := m.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
	}
	sameTree(t, ctx, c)
	if _, err := dial(t, ctx, wiped.Client).Exists(ctx, "/newest"); err != nil {
		t.Error(err)
	}
	// It votes again: with it alone the third can be missed.
	holder.Kill()
	k = dial(t, ctx, wiped.Client+","+behind.Client)
	if _, _, err := k.Create(ctx, "/after", nil, kv.FlagPersistent); err != nil {
		t.Fatal(err)
	}
}

// Two of three are wiped at once: nothing forms, and the log names the command. After it the ensemble serves with
// everything that the survivor held.
func TestRecoverSoleSurvivor(t *testing.T) {
	c, ctx := startCluster(t, 3, patient)
	k := dial(t, ctx, c.Servers())
	for i := range 50 {
		if _, _, err := k.Create(ctx, fmt.Sprintf("/n%02d", i), []byte("v"), kv.FlagPersistent); err != nil {
			t.Fatal(err)
		}
	}
	sameTree(t, ctx, c)
	c.Stop()
	survivor := c.Members[1]
	for _, m := range c.Members {
		if m != survivor {
			wipe(t, m)
		}
		if err := m.Start(); err != nil {
			t.Fatal(err)
		}
	}
	logged(t, ctx, survivor, "no leader: 1 of 3 voters can be counted, 2 are needed; blank or [^\"]*: 1, 3; [^\"]*`kvd recover DIR --sole-survivor`")
	for _, m := range c.Members {
		if s, err := stats(ctx, m); err == nil && s.Serving {
			t.Fatalf("member %d serves", m.ID)
		}
	}
	if code, out := (&transcript{T: t}).kvd(ctx, survivor, "", "recover", "data/kvd", "--sole-survivor"); code != 2 || !strings.Contains(out, "in use") {
		t.Fatalf("recovery of a running member: exit %d, %s", code, out)
	}
	if err := survivor.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, ctx, survivor); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	_, out := (&transcript{T: t}).kvd(ctx, survivor, "", "inspect", "data/kvd", "-o", "json")
	cluster := regexp.MustCompile(`"cluster": "([0-9a-f]{32})"`).FindStringSubmatch(out)
	if cluster == nil {
		t.Fatal(out)
	}
	r := transcript{T: t}
	if code, out := r.kvd(ctx, survivor, cluster[1]+"\n", "recover", "data/kvd", "--sole-survivor"); code != 0 {
		t.Fatalf("exit code %d: %s", code, out)
	}
	r.inDocs("sole-survivor")
	if code, out := r.kvd(ctx, survivor, "", "recover", "data/kvd", "--sole-survivor", "--yes", cluster[1]); code != 0 || !strings.Contains(out, "marked already") {
		t.Fatalf("again: exit code %d: %s", code, out)
	}
	if err := survivor.Start(); err != nil {
		t.Fatal(err)
	}
	for _, m := range c.Members {
		if err := m.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
	}
	sameTree(t, ctx, c)
	for _, m := range c.Members {
		k := dial(t, ctx, m.Client)
		for i := range 50 {
			if data, _, err := k.Get(ctx, fmt.Sprintf("/n%02d", i)); err != nil || string(data) != "v" {
				t.Errorf("member %d: /n%02d: %q, %v", m.ID, i, data, err)
			}
		}
	}
	// They are ordinary voters now, and the mark is gone.
	survivor.Kill()
	k = dial(t, ctx, c.Members[0].Client+","+c.Members[2].Client)
	if _, _, err := k.Create(ctx, "/after", nil, kv.FlagPersistent); err != nil {
		t.Fatal(err)
	}
	if _, out := r.kvd(ctx, survivor, "", "inspect", "data/kvd"); strings.Contains(out, "sole survivor") {
		t.Errorf("the mark is still there: %s", out)
	}
}
