package conformance

import (
	"strings"
	"testing"
)

const output = `starting
{"client":"kazoo","check":"Lock","ops":["create","delete"],"pass":true,"detail":""}
{"client": "kazoo", "check": "Queue", "ops": ["create", "getChildren"], "pass": false, "detail": "two got one"}
{"other":1}
`

func TestParseOutput(t *testing.T) {
	checks, err := ParseOutput([]byte(output))
	if err != nil || len(checks) != 2 || checks[0].Name != "Lock" || !checks[0].Pass || checks[1].Pass || checks[1].Detail != "two got one" {
		t.Fatalf("%+v %v", checks, err)
	}
	for _, bad := range []string{
		`{"client":"kazoo","check":"Lock"`,
		`{"client":"kazoo","check":"Lock","ops":["create"],"passed":true}`,
		`{"client":"kazoo","check":"","ops":["create"],"pass":true}`,
		`{"client":"kazoo","check":"A|B","ops":["create"],"pass":true}`,
		`{"client":"kazoo","check":"Lock","ops":[],"pass":true}`,
		`{"client":"kazoo","check":"Lock","ops":["rename"],"pass":true}`,
		`{"client":"kazoo","check":"Lock","ops":["create"],"pass":true}` + "\n" + `{"client":"kazoo","check":"Lock","ops":["create"],"pass":true}`,
	} {
		if checks, err := ParseOutput([]byte(bad)); err == nil {
			t.Errorf("%s: taken as %+v", bad, checks)
		}
	}
}

func TestTable(t *testing.T) {
	checks, err := ParseOutput([]byte(output))
	if err != nil {
		t.Fatal(err)
	}
	table := NewTable("kazoo", "C")
	table.Set("kazoo", checks)
	text := table.Markdown()
	for _, want := range []string{
		"| operation | kazoo | C |\n", "| create | FAIL | – |\n", "| delete | pass | – |\n", "| getChildren | FAIL | – |\n",
		"| Lock | create, delete | pass |\n", "| Queue | create, getChildren | FAIL |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}

	// A later run of one client keeps the other's column.
	again := NewTable("kazoo", "C")
	if err := again.Parse(text); err != nil {
		t.Fatal(err)
	}
	if d := Diff(text, again.Markdown()); d != "" {
		t.Fatal(d)
	}
	again.Set("C", []Check{{Client: "C", Name: "multi", Ops: []string{"multi"}, Pass: true}})
	merged := again.Markdown()
	if !strings.Contains(merged, "| create | FAIL | – |\n") || !strings.Contains(merged, "| multi | – | pass |\n") {
		t.Error(merged)
	}
	if d := Diff(text, merged); !strings.Contains(d, "| multi | – | pass |") {
		t.Errorf("%q", d)
	}
	if err := again.Parse("# Something else\n"); err == nil {
		t.Error("parsed anything")
	}
}
