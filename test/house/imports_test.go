package house

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/drowse-dev/drowse/"

// arrows are imports that must not be, and why: where a path below from imports
// the package to.
var arrows = []struct {
	from, to string
	but      []string // paths below from that may
	why      string
}{
	{
		from: "internal/supervisor/", to: "internal/supervisor",
		why: "the supervisor is made of these packages, and each can be tested without it",
	},
	{
		from: "", to: "internal/runtime/gvisor", but: []string{"internal/runtime/gvisor", "internal/runtime/drivers"},
		why: "all go through package drivers, so that there can be another runtime",
	},
	{
		from: "internal/lifecycle", to: "internal/store",
		why: "the core does no I/O",
	},
}

// forbidden returns why a package must not import another; "" if it may.
func forbidden(pkg, imported string) string {
	for _, a := range arrows {
		inside := strings.HasPrefix(pkg+"/", a.from) && pkg+"/" != a.from
		if !inside || imported != a.to {
			continue
		}
		may := false
		for _, b := range a.but {
			may = may || pkg == b || strings.HasPrefix(pkg, b+"/")
		}
		if !may {
			return a.why
		}
	}
	return ""
}

func TestImports(t *testing.T) {
	if forbidden("internal/supervisor/quota", "internal/supervisor") == "" || forbidden("internal/supervisor", "internal/supervisor/quota") != "" || forbidden("internal/serve", "internal/runtime/gvisor") == "" {
		t.Fatal("the rules do not hold")
	}
	root, looked := filepath.Join("..", ".."), 0
	for _, top := range []string{"cmd", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
			if err != nil {
				return err
			}
			pkg, err := filepath.Rel(root, filepath.Dir(path))
			if err != nil {
				return err
			}
			for _, i := range file.Imports {
				looked++
				imported, _ := strconv.Unquote(i.Path.Value)
				if why := forbidden(pkg, strings.TrimPrefix(imported, module)); why != "" {
					t.Errorf("%s imports %s: %s", path, imported, why)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if looked < 1000 {
		t.Errorf("only %d imports were looked at", looked)
	}
}
