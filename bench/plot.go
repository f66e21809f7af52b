package main

import (
	"errors"
	"fmt"
	"html"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"kvd/bench/load"
)

var plotFlags = append(append([]cli.Flag{}, loadFlags...),
	&cli.StringFlag{Name: "out", Value: ".", Usage: "`DIR` for latency.svg and cost.svg"},
)

// The points of the two plots: outstanding requests on each connection, and bytes of a value.
var (
	plotDepths = []int{1, 2, 4, 8, 16, 32, 64}
	plotSizes  = []int{0, 128, 1 << 10, 4 << 10, 16 << 10, 64 << 10}
)

// plot measures one system at several depths and sizes and draws what it finds.
func plot(c *cli.Context) (err error) {
	l, err := loadOf(c)
	if err != nil {
		return err
	}
	s, stop, err := target(c.Context, c)
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return err
	}
	at := func(depth, size int) (load.Result, error) {
		m := l
		m.Depth, m.Size = depth, size
		r, err := s.measure(c.Context, m)
		if err == nil {
			fmt.Fprintf(os.Stderr, "%d x %d, %d bytes: %.0f/s, p50 %.2f ms, p99 %.2f ms, servers %.1f µs\n", m.Connections, depth, size, r.PerSecond, r.P50/1000, r.P99/1000, r.ServerCPU)
		}
		return r, err
	}
	latency := chart{title: fmt.Sprintf("%s, %s of %d bytes: latency over throughput", s.name, l.Workload, l.Size), x: "operations a second", y: "ms"}
	p50, p99 := series{name: "p50"}, series{name: "p99"}
	for _, depth := range plotDepths {
		r, err := at(depth, l.Size)
		if err != nil {
			return err
		}
		p50.points = append(p50.points, point{r.PerSecond, r.P50 / 1000})
		p99.points = append(p99.points, point{r.PerSecond, r.P99 / 1000})
	}
	latency.series = []series{p50, p99}
	cost := chart{title: fmt.Sprintf("%s, %s %d x %d: cost over size", s.name, l.Workload, l.Connections, l.Depth), x: "bytes of a value", y: "µs of the servers' processors an operation", logX: true}
	servers := series{name: "servers"}
	for _, size := range plotSizes {
		r, err := at(l.Depth, size)
		if err != nil {
			return err
		}
		servers.points = append(servers.points, point{float64(max(size, 1)), r.ServerCPU})
	}
	cost.series = []series{servers}
	for name, ch := range map[string]*chart{"latency.svg": &latency, "cost.svg": &cost} {
		f, err := os.Create(filepath.Join(c.String("out"), name))
		if err != nil {
			return err
		}
		if err := errors.Join(ch.write(f), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

type point struct{ x, y float64 }

type series struct {
	name   string
	points []point
}

// chart is a plot of lines. Both axes begin at 0 unless x is logarithmic.
type chart struct {
	title, x, y string
	logX        bool
	series      []series
}

const (
	chartW, chartH            = 720.0, 440.0
	left, right, upper, lower = 80.0, 110.0, 50.0, 60.0
)

var colours = []string{"#1f5fa8", "#c0392b", "#2e8b57", "#8e44ad"}

// write draws the chart as SVG.
func (c *chart) write(w io.Writer) error {
	var maxX, maxY, minX float64
	minX = math.Inf(1)
	for _, s := range c.series {
		for _, p := range s.points {
			maxX, maxY, minX = max(maxX, p.x), max(maxY, p.y), min(minX, p.x)
		}
	}
	if maxX == 0 || maxY == 0 {
		return fmt.Errorf("%s: nothing to draw", c.title)
	}
	yStep, xStep := step(maxY), step(maxX)
	topY, topX := math.Ceil(maxY/yStep)*yStep, math.Ceil(maxX/xStep)*xStep
	px := func(x float64) float64 {
		if c.logX {
			if maxX == minX {
				return left
			}
			return left + (math.Log(x)-math.Log(minX))/(math.Log(maxX)-math.Log(minX))*(chartW-left-right)
		}
		return left + x/topX*(chartW-left-right)
	}
	py := func(y float64) float64 { return chartH - lower - y/topY*(chartH-upper-lower) }
	var b strings.Builder
	out := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	text := func(x, y float64, anchor, s string) {
		out(`<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`, x, y, anchor, html.EscapeString(s))
	}
	out(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="12">`, chartW, chartH)
	out(`<rect width="100%%" height="100%%" fill="white"/>`)
	text(chartW/2, 24, "middle", c.title)
	text((left+chartW-right)/2, chartH-16, "middle", c.x)
	out(`<text transform="translate(18 %.1f) rotate(-90)" text-anchor="middle">%s</text>`, (upper+chartH-lower)/2, html.EscapeString(c.y))
	for y := 0.0; y <= topY+yStep/2; y += yStep {
		out(`<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="#ddd"/>`, left, chartW-right, py(y), py(y))
		text(left-8, py(y)+4, "end", tick(y))
	}
	if c.logX {
		for _, p := range c.series[0].points {
			text(px(p.x), chartH-lower+18, "middle", tick(p.x))
		}
	} else {
		for x := 0.0; x <= topX+xStep/2; x += xStep {
			text(px(x), chartH-lower+18, "middle", tick(x))
		}
	}
	for i, s := range c.series {
		colour := colours[i%len(colours)]
		var line []string
		for _, p := range s.points {
			line = append(line, fmt.Sprintf("%.1f,%.1f", px(p.x), py(p.y)))
			out(`<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`, px(p.x), py(p.y), colour)
		}
		out(`<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`, strings.Join(line, " "), colour)
		out(`<text x="%.1f" y="%.1f" fill="%s">%s</text>`, chartW-right+12, upper+18*float64(i+1), colour, html.EscapeString(s.name))
	}
	out(`</svg>`)
	_, err := io.WriteString(w, b.String())
	return err
}

// step is a round distance of grid lines for values up to highest.
func step(highest float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(highest)))
	switch n := highest / p; {
	case n <= 2:
		return p / 4
	case n <= 5:
		return p / 2
	}
	return p
}

// tick prints a number of an axis.
func tick(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.3gM", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%.3gk", v/1e3)
	}
	return fmt.Sprintf("%.3g", v)
}
