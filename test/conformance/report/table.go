package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode"
)

// column is an SDK in one version or, where it has both, one half of it.
type column struct {
	title string
	names map[string]string // methods, by key
	shown map[string]bool   // the keys of those that a case called
}

// table is what the document says.
type table struct {
	suites  []suite
	columns []column
	names   map[string]string // all methods by key, as the first SDK spells them
	gaps    []gap
	gapOf   map[string]int // the number of a method's gap
}

// key is the same for all spellings of a method: the SDKs' languages have their
// own.
func key(method string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(method, "async "), "_", ""))
}

// newTable puts the suites side by side. It fails if a case did, or if methods
// and gaps do not fit together.
func newTable(suites []suite, gaps []gap) (*table, error) {
	t := &table{suites: suites, gaps: gaps, names: map[string]string{}, gapOf: map[string]int{}}
	var errs []error
	for _, s := range suites {
		for _, c := range s.cases {
			if !c.OK {
				errs = append(errs, fmt.Errorf("%s: the case %s: %s failed", s.title(), c.Area, c.Case))
			}
		}
		if s.ofOthers() {
			continue
		}
		t.columns = append(t.columns, newColumn(s, ""))
		if s.hasAsync() {
			t.columns = append(t.columns, newColumn(s, "async "))
		}
	}
	for _, c := range t.columns {
		for k, name := range c.names {
			if t.names[k] == "" {
				t.names[k] = name
			}
		}
	}
	errs = append(errs, t.assignGaps()...)
	errs = append(errs, t.judge()...)
	return t, errors.Join(errs...)
}

func newColumn(s suite, prefix string) column {
	c := column{title: s.title(), names: map[string]string{}, shown: map[string]bool{}}
	if prefix != "" {
		c.title += ", " + strings.TrimSpace(prefix)
	}
	of := func(method string) bool { return strings.HasPrefix(method, "async ") == (prefix != "") }
	for _, m := range s.methods {
		if of(m) {
			c.names[key(m)] = strings.TrimPrefix(m, prefix)
		}
	}
	for _, r := range s.cases {
		for _, m := range r.Calls {
			if of(m) {
				c.shown[key(m)] = true
			}
		}
	}
	return c
}

// assignGaps finds out which gap each method is in.
func (t *table) assignGaps() []error {
	var errs []error
	for i, g := range t.gaps {
		for _, pattern := range g.methods {
			found := false
			for k, name := range t.names {
				if ok, err := path.Match(key(pattern), k); err != nil {
					errs = append(errs, fmt.Errorf("gap %s: %w", pattern, err))
				} else if ok {
					if other, twice := t.gapOf[k]; twice && other != i {
						errs = append(errs, fmt.Errorf("%s is in two gaps", name))
					}
					t.gapOf[k], found = i, true
				}
			}
			if !found {
				errs = append(errs, fmt.Errorf("the gap %s is of no method", pattern))
			}
		}
	}
	return errs
}

// judge wants each method of each column to be shown by a case, working or
// refused, or to be in a gap of those that are not.
func (t *table) judge() []error {
	var errs []error
	for _, c := range t.columns {
		for _, k := range slices.Sorted(maps.Keys(c.names)) {
			i, inGap := t.gapOf[k]
			if !c.shown[k] && (!inGap || t.gaps[i].refused) {
				errs = append(errs, fmt.Errorf("%s: %s has no case and no reason for that", c.title, c.names[k]))
			}
		}
	}
	return errs
}

// cell is what the document says of a method in a column.
func (t *table) cell(c column, k string) string {
	if c.names[k] == "" {
		return ""
	}
	if i, inGap := t.gapOf[k]; inGap {
		return fmt.Sprintf("refused (%d)", i+1)
	}
	return "✓"
}

func (t *table) markdown() string {
	var b strings.Builder
	fmt.Fprint(&b, `# What E2B's SDKs can do here

Written by test/conformance/conformance.sh --write; make conformance checks it. The published packages are run unmodified against a real server. Their methods are found in the packages themselves, so that none is forgotten. The last ones, which have a registry in place of a version, are the SDKs of other servers, by whose names their [cases](#cases) are listed; [works with](../works-with.md) says how they are pointed here.

`)
	row(&b, "SDK", "packages", "cases")
	row(&b, "---", "---", "--:")
	for _, s := range t.suites {
		title := s.title()
		if s.ofOthers() {
			title = s.registry + ", others"
		}
		row(&b, title, s.versions(), fmt.Sprint(len(s.cases)))
	}
	t.writeMethods(&b)
	t.writeGaps(&b)
	t.writeCases(&b)
	return b.String()
}

func (t *table) writeMethods(b *strings.Builder) {
	fmt.Fprint(b, `
## Methods

✓: cases use it, and pass. Refused: cases show that the server refuses it by name; the number is that of the [gap](#gaps). Empty: this version does not have it. PyPI's names are the same in its spelling, get_info for getInfo.
`)
	classes := map[string][]string{}
	for k, name := range t.names {
		if i, inGap := t.gapOf[k]; inGap && !t.gaps[i].refused {
			continue
		}
		class, _, _ := strings.Cut(name, ".")
		classes[class] = append(classes[class], k)
	}
	for _, class := range slices.SortedFunc(maps.Keys(classes), byRank) {
		fmt.Fprintf(b, "\n### %s\n\n", class)
		header := []string{"method"}
		var columns []column
		for _, c := range t.columns {
			if slices.ContainsFunc(classes[class], func(k string) bool { return c.names[k] != "" }) {
				columns = append(columns, c)
				header = append(header, c.title)
			}
		}
		row(b, header...)
		row(b, slices.Repeat([]string{"---"}, len(header))...)
		slices.Sort(classes[class])
		for _, k := range classes[class] {
			_, method, _ := strings.Cut(t.names[k], ".")
			cells := []string{"`" + method + "`"}
			for _, c := range columns {
				cells = append(cells, t.cell(c, k))
			}
			row(b, cells...)
		}
	}
}

// ranked are the classes that come first, in this order.
var ranked = []string{"Sandbox", "Commands", "CommandHandle", "Filesystem", "WatchHandle", "Pty", "Git", "CodeInterpreter", "e2b sandbox"}

func byRank(a, b string) int {
	rank := func(class string) int {
		if i := slices.Index(ranked, class); i >= 0 {
			return i
		}
		return len(ranked)
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a, b))
}

func (t *table) writeGaps(b *strings.Builder) {
	fmt.Fprint(b, "\n## Gaps\n\n")
	row(b, "", "methods", "result", "why")
	row(b, "--:", "---", "---", "---")
	for i, g := range t.gaps {
		result := "not run"
		if g.refused {
			result = "refused"
		}
		row(b, fmt.Sprint(i+1), "`"+strings.Join(g.methods, "`, `")+"`", result, g.why)
	}
}

// area is one of what the cases are about.
type area struct {
	cases  []string                // names, as the first suite has them, in any order: some run at once
	passed map[int]map[string]bool // the keys of those that a suite has
}

func (t *table) areas() map[string]*area {
	areas := map[string]*area{}
	for i, s := range t.suites {
		for _, r := range s.cases {
			title := strings.ReplaceAll(r.Area, "_", "-")
			a := areas[title]
			if a == nil {
				a = &area{passed: map[int]map[string]bool{}}
				areas[title] = a
			}
			name := caseName(r.Case)
			if !slices.ContainsFunc(a.cases, func(other string) bool { return caseKey(other) == caseKey(name) }) {
				a.cases = append(a.cases, name)
			}
			if a.passed[i] == nil {
				a.passed[i] = map[string]bool{}
			}
			a.passed[i][caseKey(name)] = true
		}
	}
	return areas
}

func (t *table) writeCases(b *strings.Builder) {
	fmt.Fprint(b, "\n## Cases\n\n✓: it passes.\n")
	areas := t.areas()
	for _, title := range slices.Sorted(maps.Keys(areas)) {
		a := areas[title]
		fmt.Fprintf(b, "\n### %s\n\n", title)
		header, suites := []string{"case"}, slices.Sorted(maps.Keys(a.passed))
		for _, i := range suites {
			header = append(header, t.suites[i].title())
		}
		row(b, header...)
		row(b, slices.Repeat([]string{"---"}, len(header))...)
		slices.SortFunc(a.cases, func(x, y string) int { return cmp.Compare(caseKey(x), caseKey(y)) })
		for _, name := range a.cases {
			cells := []string{strings.ReplaceAll(name, "|", `\|`)}
			for _, i := range suites {
				cell := ""
				if a.passed[i][caseKey(name)] {
					cell = "✓"
				}
				cells = append(cells, cell)
			}
			row(b, cells...)
		}
	}
}

// caseName makes a sentence of the name of a Python test, whose parameters are
// left out.
func caseName(name string) string {
	rest, isPython := strings.CutPrefix(name, "test_")
	if !isPython {
		return name
	}
	rest, _, _ = strings.Cut(rest, "[")
	return strings.ReplaceAll(rest, "_", " ")
}

// caseKey is the same for cases that the suites have in common: Python's names
// have no punctuation.
func caseKey(name string) string {
	return strings.Join(strings.FieldsFunc(strings.ToLower(name), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}), " ")
}

func row(b *strings.Builder, cells ...string) {
	fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
}
