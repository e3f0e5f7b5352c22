package client_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"

	"github.com/drowse-dev/drowse/internal/supervisor/awake"
)

// TestHoldKinds: the client has a constant for each kind of hold that a server
// knows, and no other.
func TestHoldKinds(t *testing.T) {
	var want []string
	for _, kind := range awake.HoldKinds() {
		want = append(want, string(kind))
	}
	if got := constants(t, "../../client/lifecycle.go", "HoldKind"); !slices.Equal(got, want) {
		t.Errorf("the client has %q, the server %q", got, want)
	}
}

// constants returns the values of a file's constants of a string type.
func constants(t *testing.T, file, typ string) (values []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		c, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if of, ok := c.Type.(*ast.Ident); !ok || of.Name != typ {
			return true
		}
		for _, v := range c.Values {
			text, err := strconv.Unquote(v.(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, text)
		}
		return true
	})
	return values
}
