package failpoint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// TestCatalogue holds that every point is in the catalogue once, with a
// description, and marks exactly one place. That operations come there,
// test/e2e holds.
func TestCatalogue(t *testing.T) {
	marks := marksBelow(t, "..")
	listed := map[Point]bool{}
	for _, s := range Catalogue() {
		if listed[s.Point] || s.Where == "" {
			t.Errorf("%s is listed twice, or without a description", s.Point)
		}
		listed[s.Point] = true
	}
	for name, p := range points(t) {
		if !listed[p] {
			t.Errorf("%s is not listed", p)
		}
		if marks[name] != 1 {
			t.Errorf("%s marks %d places, want 1", name, marks[name])
		}
		delete(listed, p)
	}
	for p := range listed {
		t.Errorf("%s has no constant", p)
	}
}

// points returns the constants, by name.
func points(t *testing.T) map[string]Point {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "catalogue.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]Point{}
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
			if lit, ok := v.Values[0].(*ast.BasicLit); ok {
				all[v.Names[0].Name] = Point(strings.Trim(lit.Value, `"`))
			}
		}
		return true
	})
	return all
}

// marksBelow counts, by constant, the places that are marked.
func marksBelow(t *testing.T, root string) map[string]int {
	t.Helper()
	marks := map[string]int{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && isPackage(s.X) && s.Sel.Name != "Fail" && s.Sel.Name != "Pass" {
				marks[s.Sel.Name]++
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return marks
}

func isPackage(x ast.Expr) bool {
	id, ok := x.(*ast.Ident)
	return ok && id.Name == "failpoint"
}
