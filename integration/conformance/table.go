package conformance

import (
	"fmt"
	"slices"
	"strings"
)

// The cells of the table.
const (
	pass = "pass"
	fail = "FAIL"
	none = "–" // the client does not use it
)

// Table is what docs/conformance.md says: per client the operations and the checks.
type Table struct {
	clients []string                     // columns
	ops     map[string]map[string]string // client -> operation -> cell
	checks  map[string][]result          // client -> its checks, in the order they ran in
}

type result struct{ name, ops, cell string }

// NewTable returns a table with these columns and nothing in them.
func NewTable(clients ...string) *Table {
	return &Table{clients: clients, ops: map[string]map[string]string{}, checks: map[string][]result{}}
}

// Set replaces a client's column by these checks. An operation passes if every check that names it does.
func (t *Table) Set(client string, checks []Check) {
	ops := map[string]string{}
	var results []result
	for _, c := range checks {
		cell := pass
		if !c.Pass {
			cell = fail
		}
		for _, op := range c.Ops {
			if ops[op] != fail {
				ops[op] = cell
			}
		}
		results = append(results, result{c.Name, strings.Join(c.Ops, ", "), cell})
	}
	slices.SortFunc(results, func(a, b result) int { return strings.Compare(a.name, b.name) })
	t.ops[client], t.checks[client] = ops, results
}

const preamble = `# Clients

What was seen when the programs of the integration tests used a cluster of three kvd members, through proxies that cut their connections, and through the death of the leader. Written by

    KVD_NEED=1 go test ./integration -run Conformance -update

and compared with every run of the tests: a row that changes fails them. "pass" means that every check that depends on the operation passed; "–" that the client, or its program, does not use it.

`

// Markdown renders the table.
func (t *Table) Markdown() string {
	var b strings.Builder
	b.WriteString(preamble)
	row := func(cells ...string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	rule := func(n int) { b.WriteString(strings.Repeat("|---", n) + "|\n") }
	b.WriteString("## Operations\n\n")
	row(append([]string{"operation"}, t.clients...)...)
	rule(1 + len(t.clients))
	for _, op := range Operations {
		cells := []string{op}
		for _, c := range t.clients {
			cell := t.ops[c][op]
			if cell == "" {
				cell = none
			}
			cells = append(cells, cell)
		}
		row(cells...)
	}
	for _, c := range t.clients {
		fmt.Fprintf(&b, "\n## %s\n\n", c)
		row("check", "operations", "")
		rule(3)
		for _, r := range t.checks[c] {
			row(r.name, r.ops, r.cell)
		}
	}
	return b.String()
}

// Parse reads what Markdown wrote. It takes over columns of the clients that the table has; what it does not
// understand is an error.
func (t *Table) Parse(text string) error {
	rest, ok := strings.CutPrefix(text, preamble)
	if !ok {
		return fmt.Errorf("the introduction is another one")
	}
	section := ""
	var columns []string
	for line := range strings.Lines(rest) {
		line = strings.TrimSuffix(line, "\n")
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section = title
			continue
		}
		inner, ok := strings.CutPrefix(line, "| ")
		if !ok {
			continue
		}
		cells := strings.Split(strings.TrimSuffix(inner, " |"), " | ")
		switch {
		case section == "Operations" && cells[0] == "operation":
			columns = cells[1:]
			for _, c := range columns {
				t.ops[c] = map[string]string{}
			}
		case section == "Operations":
			if len(cells) != len(columns)+1 {
				return fmt.Errorf("%q: want %d cells", line, len(columns)+1)
			}
			for i, c := range columns {
				if cells[i+1] != none {
					t.ops[c][cells[0]] = cells[i+1]
				}
			}
		case cells[0] == "check" || len(cells) != 3:
		default:
			t.checks[section] = append(t.checks[section], result{cells[0], cells[1], cells[2]})
		}
	}
	return nil
}

// Diff names the first line in which two renderings differ; "" if they do not.
func Diff(have, want string) string {
	h, w := strings.Split(have, "\n"), strings.Split(want, "\n")
	for i := range max(len(h), len(w)) {
		var a, b string
		if i < len(h) {
			a = h[i]
		}
		if i < len(w) {
			b = w[i]
		}
		if a != b {
			return fmt.Sprintf("line %d: the file has\n\t%s\nthe run gives\n\t%s", i+1, a, b)
		}
	}
	return ""
}
