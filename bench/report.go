package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// line is one row of the table.
type line struct {
	name     string
	target   string // empty: for information only
	measured string
	met      bool
}

// report collects rows in the order in which they were measured.
type report struct{ lines []line }

// add appends a row and says it at once on w, so that a long run shows its progress.
func (r *report) add(w io.Writer, l line) {
	r.lines = append(r.lines, l)
	_, _ = fmt.Fprintf(w, "  %-58s %s\n", l.name, l.measured)
}

// info appends a row without a target.
func (r *report) info(w io.Writer, name, measured string) {
	r.add(w, line{name: name, measured: measured, met: true})
}

// missed counts the targets that were not met.
func (r *report) missed() int {
	n := 0
	for _, l := range r.lines {
		if !l.met {
			n++
		}
	}
	return n
}

// print writes the whole table.
func (r *report) print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	_, _ = fmt.Fprintln(tw, "what\ttarget\tmeasured\tverdict")
	for _, l := range r.lines {
		verdict := "met"
		switch {
		case l.target == "":
			verdict = "-"
		case !l.met:
			verdict = "MISSED"
		}
		_, _ = fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", l.name, l.target, l.measured, verdict)
	}
	return tw.Flush()
}
