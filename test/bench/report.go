package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// report collects what is printed at the end, as Markdown.
type report struct {
	machine  machine
	ratios   []string
	amounts  []string
	absolute []string
	proxies  []string
	notes    []string
}

// compared adds a comparison of latencies. A budget or goal of 0 is none.
func (r *report) compared(id, what, against string, c comparison, budget, goal float64) {
	p := c.latencies()
	cpuOurs, cpuRaw := c.cpu()
	r.ratios = append(r.ratios, row(id, what, against, len(p), spread(p.ours(), "ms"), spread(p.raw(), "ms"),
		p.ratio().String(), limit(budget), limit(goal), verdict(p.ratio().value, budget, goal),
		fmt.Sprintf("%.0f / %.0f", cpuOurs, cpuRaw)))
}

// measured adds a comparison of anything else.
func (r *report) measured(id, what, unit, against string, p pairs, budget, goal float64) {
	r.ratios = append(r.ratios, row(id, what, against, len(p), spread(p.ours(), unit), spread(p.raw(), unit),
		p.ratio().String(), limit(budget), limit(goal), verdict(p.ratio().value, budget, goal), "–"))
}

// wrote adds what pauses wrote.
func (r *report) wrote(what string, list []written) {
	var reported, device pairs
	var touched []float64
	for _, w := range list {
		reported = append(reported, pair{ours: float64(w.reported), raw: float64(w.touched)})
		device = append(device, pair{ours: float64(w.device), raw: float64(w.touched)})
		touched = append(touched, mebibytes(w.touched))
	}
	of := func(p pairs) string {
		return fmt.Sprintf("%.1f MiB, %s", median(p.ours())/(1<<20), p.ratio())
	}
	r.amounts = append(r.amounts, row("B8", what, len(list), fmt.Sprintf("%.1f MiB", median(touched)), of(reported), of(device),
		limit(1.1), limit(1.05), verdict(max(reported.ratio().value, device.ratio().value), 1.1, 1.05)))
}

// plain adds a measure that is compared with nothing but its goal.
func (r *report) plain(id, what, unit string, values []float64, goal float64) {
	r.absolute = append(r.absolute, row(id, what, len(values), spread(values, unit), limit(goal), verdict(median(values), 0, goal)))
}

// single adds one value, made of n samples, that is compared with nothing but
// its goal.
func (r *report) single(id, what, unit string, n int, value, goal float64) {
	r.absolute = append(r.absolute, row(id, what, n, fmt.Sprintf("%.1f %s", value, unit), limit(goal), verdict(value, 0, goal)))
}

// edge adds a comparison of proxies, by name. Of rates more is better: their
// limits are given as above 1 all the same, as how many times nginx may be
// better.
func (r *report) edge(id, what, unit string, values map[string][]float64, budget, goal float64) {
	ours, theirs := median(values["drowse"]), median(values["nginx"])
	ratio := ours / theirs
	worse := ratio
	if strings.HasSuffix(what, "per second") {
		worse = 1 / ratio
	}
	cells := []any{id, what, len(values["drowse"])}
	for _, name := range []string{"direct", "drowse", "nginx", "haproxy", "caddy"} {
		text := "–"
		if v := values[name]; len(v) > 0 {
			text = strings.TrimSpace(fmt.Sprintf("%.1f %s", median(v), unit))
		}
		cells = append(cells, text)
	}
	shown := func(x float64) string {
		if x != 0 && worse != ratio {
			x = 1 / x
		}
		return limit(x)
	}
	r.proxies = append(r.proxies, row(append(cells, fmt.Sprintf("%.2f", ratio), shown(budget), shown(goal), verdict(worse, budget, goal))...))
}

func (r *report) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

func row(cells ...any) string {
	var b strings.Builder
	for _, c := range cells {
		fmt.Fprintf(&b, "| %v ", c)
	}
	return b.String() + "|\n"
}

// spread shows the median and the 95th percentile.
func spread(values []float64, unit string) string {
	if len(values) == 1 {
		return fmt.Sprintf("%.1f %s", values[0], unit)
	}
	return fmt.Sprintf("%.1f / %.1f %s", median(values), quantile(values, 0.95), unit)
}

// String shows the estimate with its interval.
func (i interval) String() string { return fmt.Sprintf("%.2f (%.2f–%.2f)", i.value, i.low, i.high) }

func limit(x float64) string {
	if x == 0 {
		return "–"
	}
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", x), "0"), ".")
}

// verdict says how a value compares with what is asked of it; less is better.
func verdict(value, budget, goal float64) string {
	switch {
	case goal != 0 && value <= goal:
		return "goal met"
	case budget != 0 && value <= budget:
		return "budget met"
	case budget == 0 && goal == 0:
		return "–"
	}
	return "**not met**"
}

// markdown returns the whole report.
func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Machine: %s.\n", r.machine)
	section := func(title, head string, rows []string) {
		if len(rows) == 0 {
			return
		}
		rule := strings.Repeat("|---", strings.Count(head, "|")-1) + "|"
		fmt.Fprintf(&b, "\n### %s\n\n%s\n%s\n%s", title, head, rule, strings.Join(rows, ""))
	}
	section("Against the raw tool", "| Row | What | Raw tool | n | drowse p50 / p95 | raw p50 / p95 | ratio of p50 (95 % interval) | budget | goal | | CPU ms per operation, drowse / raw |", r.ratios)
	section("Bytes written by a pause", "| Row | Guest | n | touched | reported by the server, ratio | counted by the device, ratio | budget | goal | |", r.amounts)
	section("The edge beside other proxies", "| Row | What | n | direct | drowse | nginx | HAProxy | Caddy | drowse / nginx | budget | goal | |", r.proxies)
	section("The server", "| Row | What | n | p50 / p95 | goal | |", r.absolute)
	if len(r.notes) > 0 {
		b.WriteString("\n")
	}
	for _, n := range r.notes {
		fmt.Fprintf(&b, "* %s\n", n)
	}
	return b.String()
}

// What is between these lines of the documentation is replaced by each run.
const (
	docsBegin = "<!-- written by test/bench/run.sh: begin -->\n"
	docsEnd   = "<!-- written by test/bench/run.sh: end -->\n"
)

func writeDocs(path, text string) error {
	doc, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, begun := bytes.Cut(doc, []byte(docsBegin))
	_, after, ended := bytes.Cut(rest, []byte(docsEnd))
	if !begun || !ended {
		return fmt.Errorf("%s lacks the lines %q and %q", path, docsBegin, docsEnd)
	}
	doc = fmt.Appendf(nil, "%s%s%s%s%s", before, docsBegin, text, docsEnd, after)
	return os.WriteFile(path, doc, 0o644)
}
