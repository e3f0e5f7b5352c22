// Package house holds the code to bounds that keep it readable: how many methods
// a type has, how many an interface asks for, and how long a package is. A type
// or package above the common bound has one of its own below. It may only be
// lowered: what grows past it belongs into a package of its own.
package house

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	// mostMethods is how many methods a type may have, and mostAsked how many
	// methods an interface may list. An interface that is made of others counts
	// those that it lists itself.
	mostMethods, mostAsked = 40, 7
)

// large are types with a bound above mostMethods.
var large = map[string]int{
	"internal/api/apitest.Fake":      55,
	"internal/api/e2b.server":        72,
	"internal/api/v1.server":         59,
	"internal/cli.app":               70,
	"internal/supervisor.Supervisor": 69,
	"internal/supervisor.box":        91,
}

// wide are interfaces with a bound above mostAsked.
var wide = map[string]int{}

// lengths bounds the lines of packages, tests left out.
var lengths = map[string]int{
	"internal/supervisor": 3545,
}

// counts is what there is of what has a bound.
type counts struct {
	methods map[string]int // of types, by package and name
	asked   map[string]int // of interfaces, likewise
	lines   map[string]int // of packages
}

func TestBounds(t *testing.T) {
	c := count(t, filepath.Join("..", ".."))
	if c.methods["internal/lifecycle.Record"] == 0 || c.asked["internal/store.Keys"] == 0 {
		t.Fatalf("nothing was counted: %d types, %d interfaces", len(c.methods), len(c.asked))
	}
	hold(t, "methods, and may have", c.methods, large, mostMethods)
	hold(t, "methods, and may list", c.asked, wide, mostAsked)
	for pkg, most := range lengths {
		if has := c.lines[pkg]; has > most {
			t.Errorf("%s has %d lines, and may have %d: give what was added a package of its own", pkg, has, most)
		}
	}
}

// hold holds every count to its own bound or to the common one, and every bound
// of its own to the count: one that is not needed any more goes.
func hold(t *testing.T, what string, counts, own map[string]int, most int) {
	t.Helper()
	for name, has := range counts {
		allowed := max(own[name], most)
		if has > allowed {
			t.Errorf("%s has %d %s %d: part it by what it is about", name, has, what, allowed)
		}
	}
	for name, bound := range own {
		if counts[name] <= most {
			t.Errorf("%s has %d methods: take its bound of %d out of the table", name, counts[name], bound)
		}
	}
}

// count parses what is written by hand below root.
func count(t *testing.T, root string) counts {
	t.Helper()
	c := counts{map[string]int{}, map[string]int{}, map[string]int{}}
	for _, top := range []string{"client", "cmd", "internal", "packaging"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && (d.Name() == "testdata" || d.Name() == "agentpb"): // the latter is generated
				return filepath.SkipDir
			case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			source, err := os.ReadFile(path)
			if err != nil || bytes.HasPrefix(source, []byte("// Code generated ")) {
				return err
			}
			pkg, err := filepath.Rel(root, filepath.Dir(path))
			if err != nil {
				return err
			}
			c.lines[pkg] += bytes.Count(source, []byte("\n"))
			file, err := parser.ParseFile(token.NewFileSet(), path, source, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			c.add(pkg, file)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// add counts the declarations of a file.
func (c counts) add(pkg string, file *ast.File) {
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil {
				c.methods[pkg+"."+receiver(d.Recv.List[0].Type)]++
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if s, ok := spec.(*ast.TypeSpec); ok {
					c.addInterface(pkg+"."+s.Name.Name, s.Type)
				}
			}
		}
	}
}

func (c counts) addInterface(name string, typ ast.Expr) {
	i, ok := typ.(*ast.InterfaceType)
	if !ok {
		return
	}
	for _, m := range i.Methods.List {
		c.asked[name] += len(m.Names) // embedded ones have none
	}
}

// receiver returns the name of the type that a method belongs to.
func receiver(typ ast.Expr) string {
	switch x := typ.(type) {
	case *ast.StarExpr:
		return receiver(x.X)
	case *ast.IndexExpr:
		return receiver(x.X)
	case *ast.IndexListExpr:
		return receiver(x.X)
	case *ast.Ident:
		return x.Name
	}
	return "?"
}
