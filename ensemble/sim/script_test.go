package sim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// The catalogue of failures (zab-rules e) as golden scripts: testdata/catalogue/sNN-short-name.txt, one file a scenario, each
// beginning with a comment that says what happens, where the scenario comes from and what is required.
//
// A paragraph of verbs, one a line, ends with ---- and the trace of what became of them: who was established, what each
// member that changed is now, what clients were told. The trace is golden (-rewrite writes it anew, the difference is
// reviewed like code). What is required is said by the verb expect, which fails the test whatever -rewrite says. All
// properties of zab-rules d are checked after every step, and every ensemble must end with settle: faults end,
// everybody comes back, and all agree.
//
// docs/testing.md, "Write a scenario", lists the verbs; they stand in script_verbs_test.go and script_expect_test.go.

func catalogue(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/catalogue/s*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no catalogue: %v", err)
	}
	return files
}

func TestCatalogue(t *testing.T) {
	for _, f := range catalogue(t) {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			x := &script{}
			t.Cleanup(func() {
				if t.Failed() && x.s != nil {
					trace := x.s.Trace()
					t.Logf("%s", trace[max(0, len(trace)-20_000):])
				}
			})
			datadriven.RunTest(t, f, func(t *testing.T, d *datadriven.TestData) string {
				out, err := x.paragraph(d.String())
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				return out
			})
			if err := x.end(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

var failsWith = regexp.MustCompile(`(?m)^# Fails with: (\w+) \(([^)]+)\)$`)

// TestCatalogueCatchesMistakes runs a script with a deliberate mistake switched on, as its header says ("# Fails with:
// MUTATION (WHAT, ...)"), and demands that it fails, with one of the named properties or, for "expect", with an
// expectation.
func TestCatalogueCatchesMistakes(t *testing.T) {
	pairs := 0
	for _, f := range catalogue(t) {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range failsWith.FindAllStringSubmatch(string(text), -1) {
			pairs++
			t.Run(strings.TrimSuffix(filepath.Base(f), ".txt")+"/"+m[1], func(t *testing.T) {
				x := &script{mutation: m[1]}
				err := x.all(string(text))
				if err == nil {
					t.Fatalf("passes with the mistake %s", m[1])
				}
				for _, want := range strings.Split(m[2], ", ") {
					var v *Violation
					var e *unmet
					switch {
					case errors.As(err, &v) && v.Property == want, want == "expect" && errors.As(err, &e):
						t.Logf("caught: %v", err)
						return
					}
				}
				t.Fatalf("fails with %v; want one of %s", err, m[2])
			})
		}
	}
	if pairs < minMutations {
		t.Errorf("%d mistakes are shown by scripts, want %d", pairs, minMutations)
	}
}

// minMutations is how many pairs of script and mistake there are at least.
const minMutations = 50

var (
	headLine     = regexp.MustCompile(`^# (S\d\d) \S`)
	sourceLine   = regexp.MustCompile(`(?m)^# Source: \S`)
	requiredLine = regexp.MustCompile(`(?m)^# Required: \S`)
	expectLine   = regexp.MustCompile(`(?m)^(expect|keep|test) `)
)

// catalogued is the number of scenarios that must have a file: S01 to this one.
const catalogued = 62

// open are the scenarios that ZooKeeper fails, or avoids only with a setting that is off by default (zab-rules e,
// [OPEN]). The README lists each with its script.
var open = []int{9, 11, 12, 24, 30, 31, 32, 36, 39, 40, 43, 44, 46, 58, 61, 62}

// TestCatalogueIsComplete demands a file for each scenario, a header in each file, an expectation in each, and the README's
// list of those that ZooKeeper fails.
func TestCatalogueIsComplete(t *testing.T) {
	have := map[string]string{}
	for _, f := range catalogue(t) {
		base := filepath.Base(f)
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		name := headLine.FindStringSubmatch(string(text))
		switch {
		case name == nil || !strings.HasPrefix(base, strings.ToLower(name[1])+"-"):
			t.Errorf("%s does not begin with its scenario", base)
		case !sourceLine.Match(text) || !requiredLine.Match(text):
			t.Errorf("%s does not say its source and what is required", base)
		case !expectLine.Match(text):
			t.Errorf("%s expects nothing", base)
		case have[name[1]] != "":
			t.Errorf("%s has two files", name[1])
		default:
			have[name[1]] = base
		}
	}
	for n := 1; n <= catalogued; n++ {
		if have[fmt.Sprintf("S%02d", n)] == "" {
			t.Errorf("S%02d has no file", n)
		}
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range open {
		if f := have[fmt.Sprintf("S%02d", n)]; f != "" && !strings.Contains(string(readme), "`"+strings.TrimSuffix(f, ".txt")+"`") {
			t.Errorf("README does not list %s", f)
		}
	}
}

// TestScriptsCanFail feeds the runner with scripts that demand what is not so. An expectation that cannot fail is worth
// nothing.
func TestScriptsCanFail(t *testing.T) {
	const begin = "ensemble\nstart all\nexpect leader s3 within=100\nexpect open all within=20\n"
	for _, c := range []string{
		"expect leader s1", "expect leader none", "expect leader s3 epoch=9", "expect role s1 leading", "expect down s1", "expect closed s1",
		"expect established 0", "expect committed 1:6", "expect uncommitted 1:5", "expect holds s1 2:9", "expect lacks s1 1:5",
		"expect applied s1 2:1", "expect disk s1 last=1:4", "expect disk s1 current=1", "expect disk s1 accepted=1", "expect disk s1 unknown",
		"expect arrived TRUNC", "expect arrived UPTODATE n=0", "expect row s1 SNAP", "expect order s3->s1 UPTODATE NEWLEADER",
		"expect event session-expired", "expect event role n=0", "mark\nexpect restarted s1",
		"write s1 a\nexpect ok b", "write s1 a\nexpect unknown a within=5", "write s1 a\nexpect ok a within=20\nexpect nowhere a",
		"write s1 a\nexpect ok a within=20\nexpect has s1 b", "write s1 a\nexpect ok a within=20\nexpect pending a",
		"crash s3\nexpect leader s3", "crash s3\nkeep leader s3 ticks=5", "keep established 0 ticks=1",
		"client c at=s1\nexpect session c gone", "client c at=s1\nsync-read c a\nexpect sync-read a found within=20", "expect quiet s1",
		"expect electing s1", "expect nonsense", "nonsense", "write s9 a", "test ./zab TestThatDoesNotExist", "expect equal s1 wrong=1",
		"expect follows s1 s2", "expect follows s3 s1", "hold PROPOSAL s3->s1\nwrite s3 a b\nexpect in-transit s3->s1 most=1",
		"hold ACK *->s3\nwrite s3 a\nexpect outstanding s3 most=0", "sessions 3 at=s1\nexpect live-sessions 2 s1",
		"open c at=s1\nexpect known c s1", "open c at=s1\nrun 5\nexpect unheard-of c s1", "forge s1->s2 ACK", "expect event notification-dropped",
	} {
		x := &script{}
		if _, err := x.paragraph(begin); err != nil {
			t.Fatal(err)
		}
		if _, err := x.paragraph(c); err == nil {
			t.Errorf("%q passes", c)
		}
	}
	x := &script{}
	if _, err := x.paragraph(begin); err != nil || x.end() == nil {
		t.Errorf("a script that does not settle passes: %v", err)
	}
}
