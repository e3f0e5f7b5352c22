package house

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the package diagram into docs/architecture.md")

const (
	diagramBegin = "<!-- go test ./test/house -run TestMap -update: begin -->\n"
	diagramEnd   = "<!-- end -->\n"

	// mostWords is how long the map may be: one that is not read is none.
	mostWords = 1500
)

// TestMap holds docs/architecture.md to the packages that there are, to the
// design pages, and to a length.
func TestMap(t *testing.T) {
	file := filepath.Join("..", "..", "docs", "architecture.md")
	doc, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begun := strings.Cut(string(doc), diagramBegin)
	has, after, ended := strings.Cut(rest, diagramEnd)
	if !begun || !ended {
		t.Fatalf("%s lacks the lines %q and %q", file, diagramBegin, diagramEnd)
	}
	if want := diagram(t); has != want {
		if !*update {
			t.Errorf("the package diagram of %s is out of date: run go test ./test/house -run TestMap -update", file)
		} else if err := os.WriteFile(file, []byte(before+diagramBegin+want+diagramEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if words := len(strings.Fields(string(doc))); words > mostWords {
		t.Errorf("%s has %d words, and may have %d: move what explains one subject to docs/design", file, words, mostWords)
	}
	designs, err := filepath.Glob(filepath.Join("..", "..", "docs", "design", "*.md"))
	if err != nil || len(designs) == 0 {
		t.Fatalf("pages of docs/design: %d, %v", len(designs), err)
	}
	for _, d := range designs {
		if !strings.Contains(string(doc), "(design/"+filepath.Base(d)+")") {
			t.Errorf("%s does not link to design/%s", file, filepath.Base(d))
		}
	}
}

// box returns the box of the diagram that a package is drawn in; "" for what is
// left out: tests' own packages and the base, which everything imports.
func box(pkg string) string {
	l := layerOf(pkg)
	if l == nil || l.name == "tests" || l.name == "base" || strings.HasSuffix(pkg, "/gen") {
		return ""
	}
	parts := strings.Split(pkg, "/")
	if parts[0] == "client" {
		return "client"
	}
	return strings.Join(parts[:min(2, len(parts))], "/")
}

// drawn is box, but for parts of the supervisor, which share one beside its own.
func drawn(pkg string) string {
	b := box(pkg)
	if b == "internal/supervisor" && pkg != b {
		return "internal/supervisor/*"
	}
	return b
}

// diagram draws which packages import which, in Mermaid. An arrow is left out if
// others lead to the same place.
func diagram(t *testing.T) string {
	arrows := map[string]map[string]bool{}
	imports(t, func(_, pkg, imported string) {
		from := drawn(pkg)
		if from == "" {
			return
		}
		if arrows[from] == nil {
			arrows[from] = map[string]bool{}
		}
		if own, ok := strings.CutPrefix(imported, module); ok && drawn(own) != "" && drawn(own) != from {
			arrows[from][drawn(own)] = true
		}
	})
	var b strings.Builder
	b.WriteString("```mermaid\nflowchart TD\n")
	for _, l := range layers {
		var inside []string
		for _, name := range slices.Sorted(maps.Keys(arrows)) {
			if layerOf(strings.Replace(name, "*", "quota", 1)).name == l.name {
				inside = append(inside, fmt.Sprintf("    %s[%q]\n", node(name), strings.TrimPrefix(name, "internal/")))
			}
		}
		if len(inside) > 0 {
			fmt.Fprintf(&b, "  subgraph %s[%q]\n%s  end\n", strings.ReplaceAll(l.name, " ", "_")+"_layer", l.name, strings.Join(inside, ""))
		}
	}
	for _, from := range slices.Sorted(maps.Keys(arrows)) {
		var to []string
		for _, name := range slices.Sorted(maps.Keys(arrows[from])) {
			if !leads(arrows, from, name) {
				to = append(to, node(name))
			}
		}
		if len(to) > 0 {
			fmt.Fprintf(&b, "  %s --> %s\n", node(from), strings.Join(to, " & "))
		}
	}
	b.WriteString("```\n")
	return b.String()
}

// node returns the name of a box within the diagram's text.
func node(name string) string {
	switch name {
	case "internal/supervisor/*":
		return "parts"
	case "cmd/drowse", "cmd/drowse-agent":
		return "cmd_" + strings.ReplaceAll(path.Base(name), "-", "_")
	}
	return path.Base(name)
}

// leads says whether there is a way of two or more arrows.
func leads(arrows map[string]map[string]bool, from, to string) bool {
	seen := map[string]bool{}
	var visit func(string) bool
	visit = func(at string) bool {
		for next := range arrows[at] {
			if next == to && at != from {
				return true
			}
			if !seen[next] && next != to {
				seen[next] = true
				if visit(next) {
					return true
				}
			}
		}
		return false
	}
	return visit(from)
}
