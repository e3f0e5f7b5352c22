package errdef

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// use is a code that the source gives.
type use struct {
	code  string
	class string // the name of its class in the source, "" if that is not said there
	at    token.Position
}

// usesIn returns every code that the packages below root give.
func usesIn(t *testing.T, root string) []use {
	t.Helper()
	var uses []use
	dirs := map[string][]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != root) {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") && !strings.HasSuffix(path, ".pb.go") {
			dirs[filepath.Dir(path)] = append(dirs[filepath.Dir(path)], path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, files := range dirs {
		p := &source{fset: token.NewFileSet(), consts: map[string]string{}, makers: map[string]maker{}, done: map[ast.Expr]bool{}}
		for _, f := range files {
			parsed, err := parser.ParseFile(p.fset, f, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Logf("left out, it does not parse: %v", err)
				continue
			}
			p.files = append(p.files, parsed)
		}
		p.collect()
		uses = append(uses, p.uses...)
		for _, problem := range p.problems {
			t.Error(problem)
		}
	}
	return uses
}

// source is the files of a package, tests left out.
type source struct {
	fset     *token.FileSet
	files    []*ast.File
	consts   map[string]string // string constants of the package
	makers   map[string]maker
	done     map[ast.Expr]bool
	uses     []use
	problems []string
}

// maker is a function that makes an error of a code it is given.
type maker struct {
	index int    // of the code among its arguments
	class string // of what it makes
}

// collect looks until it has found every function that passes a code on.
func (p *source) collect() {
	for _, f := range p.files {
		for _, decl := range f.Decls {
			if d, ok := decl.(*ast.GenDecl); ok && d.Tok == token.CONST {
				p.constants(d)
			}
		}
	}
	for known := -1; known != len(p.makers); {
		known = len(p.makers)
		for _, f := range p.files {
			for _, decl := range f.Decls {
				if fn, ok := decl.(*ast.FuncDecl); ok && fn.Body != nil {
					p.function(fn.Name.Name, fn.Type, fn.Body, nil)
				}
			}
		}
	}
}

func (p *source) constants(d *ast.GenDecl) {
	for _, spec := range d.Specs {
		v := spec.(*ast.ValueSpec)
		for i, name := range v.Names {
			if i < len(v.Values) {
				if text, ok := literal(v.Values[i]); ok {
					p.consts[name.Name] = text
				}
			}
		}
	}
}

func literal(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}

// function looks for errors made in a function; closures that have a name are
// functions of their own.
func (p *source) function(name string, typ *ast.FuncType, body *ast.BlockStmt, outer []*ast.BlockStmt) {
	bodies := append([]*ast.BlockStmt{body}, outer...)
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, rhs := range n.Rhs {
				lit, isFunc := rhs.(*ast.FuncLit)
				if id, named := n.Lhs[min(i, len(n.Lhs)-1)].(*ast.Ident); isFunc && named {
					p.function(id.Name, lit.Type, lit.Body, bodies)
					return false
				}
			}
		case *ast.CallExpr:
			if class, code, ok := p.call(n); ok {
				p.code(name, typ, bodies, class, code)
			}
		case *ast.CompositeLit:
			if class, code, ok := p.composite(n); ok {
				p.code(name, typ, bodies, class, code)
			}
		}
		return true
	})
}

// call returns the class and the code of a call that makes an error.
func (p *source) call(c *ast.CallExpr) (class string, code ast.Expr, ok bool) {
	switch fn := c.Fun.(type) {
	case *ast.SelectorExpr:
		pkg, _ := fn.X.(*ast.Ident)
		if pkg != nil && pkg.Name == "errdef" && fn.Sel.Name == "New" && len(c.Args) > 1 {
			return className(c.Args[0]), c.Args[1], true
		}
	case *ast.Ident:
		if m, known := p.makers[fn.Name]; known && m.index < len(c.Args) {
			return m.class, c.Args[m.index], true
		}
	}
	return "", nil, false
}

// composite returns the class and the code of a literal of an error, errdef's
// own or a dialect's.
func (p *source) composite(c *ast.CompositeLit) (class string, code ast.Expr, ok bool) {
	field := ""
	switch typ := c.Type.(type) {
	case *ast.SelectorExpr:
		if pkg, _ := typ.X.(*ast.Ident); pkg != nil && pkg.Name == "errdef" && typ.Sel.Name == "Error" {
			field = "Code"
		}
	case *ast.Ident:
		if typ.Name == "failure" {
			field = "ErrorCode"
		}
	}
	for _, e := range c.Elts {
		kv, keyed := e.(*ast.KeyValueExpr)
		if !keyed || field == "" {
			continue
		}
		switch key, _ := kv.Key.(*ast.Ident); key.Name {
		case field:
			code = kv.Value
		case "Class":
			class = className(kv.Value)
		}
	}
	return class, code, code != nil
}

func className(e ast.Expr) string {
	if sel, ok := e.(*ast.SelectorExpr); ok {
		return sel.Sel.Name
	}
	return ""
}

// code records what an expression for a code can be, once.
func (p *source) code(name string, typ *ast.FuncType, bodies []*ast.BlockStmt, class string, code ast.Expr) {
	if i := paramIndex(typ, code); i >= 0 {
		p.makers[name] = maker{i, class}
	}
	if p.done[code] {
		return
	}
	p.done[code] = true
	if text, ok := p.text(code); ok {
		if text != "" {
			p.uses = append(p.uses, use{text, class, p.fset.Position(code.Pos())})
		}
		return
	}
	id, isIdent := code.(*ast.Ident)
	found := isIdent && paramIndex(typ, code) >= 0
	if isIdent {
		for _, body := range bodies {
			ast.Inspect(body, func(n ast.Node) bool {
				as, ok := n.(*ast.AssignStmt)
				if !ok || len(as.Lhs) != len(as.Rhs) {
					return true
				}
				for i := range as.Lhs {
					to, named := as.Lhs[i].(*ast.Ident)
					if text, ok := p.text(as.Rhs[i]); named && ok && to.Name == id.Name {
						p.uses = append(p.uses, use{text, class, p.fset.Position(as.Pos())})
						found = true
					}
				}
				return true
			})
		}
	}
	if _, passedOn := code.(*ast.SelectorExpr); !found && !passedOn { // such as e.Code, which was made elsewhere
		p.problems = append(p.problems, fmt.Sprintf("%s: cannot tell which code this is", p.fset.Position(code.Pos())))
	}
}

// text returns the value of a literal or a constant.
func (p *source) text(e ast.Expr) (string, bool) {
	if text, ok := literal(e); ok {
		return text, true
	}
	if id, ok := e.(*ast.Ident); ok {
		text, known := p.consts[id.Name]
		return text, known
	}
	return "", false
}

// paramIndex returns which parameter of a function an expression is, or -1.
func paramIndex(typ *ast.FuncType, e ast.Expr) int {
	id, ok := e.(*ast.Ident)
	if !ok || typ.Params == nil {
		return -1
	}
	i := 0
	for _, field := range typ.Params.List {
		for _, name := range field.Names {
			if name.Name == id.Name {
				return i
			}
			i++
		}
	}
	return -1
}

var classNames = map[string]Class{
	"NotFound": NotFound, "Exists": Exists, "Invalid": Invalid, "WrongState": WrongState, "Conflict": Conflict,
	"Exhausted": Exhausted, "Unavailable": Unavailable, "Unauthorized": Unauthorized, "Forbidden": Forbidden,
	"Unsupported": Unsupported, "Unfit": Unfit, "Internal": Internal, "Fenced": Fenced,
}

func TestCatalogueIsComplete(t *testing.T) {
	uses := usesIn(t, "../..")
	used := map[string]bool{}
	for _, u := range uses {
		used[u.code] = true
		entry, ok := Lookup(u.code)
		if !ok {
			t.Errorf("%s: code %q (class %s) is not in the catalogue", u.at, u.code, u.class)
			continue
		}
		if class, said := classNames[u.class]; said && class != entry.Class {
			t.Errorf("%s: code %q has class %s here and %s in the catalogue", u.at, u.code, class, entry.Class)
		}
	}
	for _, e := range Catalogue() {
		if !used[e.Code] {
			t.Errorf("code %q of the catalogue is used nowhere", e.Code)
		}
	}
}

// TestSourceIsRead holds the walker against every way in which the tree makes
// an error: without it, TestCatalogueIsComplete would hold by finding nothing.
func TestSourceIsRead(t *testing.T) {
	var found []string
	for _, u := range usesIn(t, "testdata") {
		t.Errorf("testdata is read: %v", u.at)
	}
	for _, u := range usesIn(t, "testdata/source") {
		found = append(found, u.code+" "+u.class)
	}
	slices.Sort(found)
	want := []string{
		"by_closure Invalid", "by_constant Exists", "by_dialect ", "by_literal NotFound", "by_maker Conflict",
		"by_second_maker Conflict", "by_struct Internal", "by_variable Internal",
	}
	if !slices.Equal(found, want) {
		t.Errorf("got  %q\nwant %q", found, want)
	}
}

func TestCatalogueIsWellFormed(t *testing.T) {
	all := Catalogue()
	if !slices.IsSortedFunc(all, func(a, b Entry) int { return strings.Compare(a.Code, b.Code) }) {
		t.Error("not sorted by code")
	}
	seen := map[string]bool{}
	for _, e := range all {
		if seen[e.Code] {
			t.Errorf("%s is there twice", e.Code)
		}
		seen[e.Code] = true
		known := false
		for _, c := range classNames {
			known = known || c == e.Class
		}
		if !known {
			t.Errorf("%s has class %q", e.Code, e.Class)
		}
		for _, text := range []string{e.Meaning, e.Remedy} {
			if end := strings.TrimRight(text, `)"`); !strings.HasSuffix(end, ".") && end == text {
				t.Errorf("%s: %q is no sentence", e.Code, text)
			}
		}
		if !slices.Contains([]giver{neither, native, inE2B, both}, e.given) {
			t.Errorf("%s is given by %q", e.Code, e.given)
		}
	}
}

func TestWithKeepsFacts(t *testing.T) {
	e := New(Invalid, "timeout_too_large", "too long").With("requestedSeconds", 3).With("allowedSeconds", 2)
	if len(e.Context) != 2 || e.Context["allowedSeconds"] != 2 || e.Error() != "too long" {
		t.Errorf("%v with %v", e, e.Context)
	}
	if _, ok := Lookup("nonsense"); ok {
		t.Error("a code that does not exist is known")
	}
}
