package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// programs are those that Go tests run, each with the Debian package that has it;
// "" is for what Debian's base has, for Go, and for what a test looks for itself.
var programs = map[string]string{
	"apt-get":      "",
	"busybox":      "busybox-static",
	"chattr":       "e2fsprogs",
	"chromedriver": "chromium-driver",
	"cp":           "",
	"drowse":       "", // the test itself, by another name
	"curl":         "curl",
	"git":          "git",
	"go":           "",
	"ip":           "iproute2",
	"mke2fs":       "e2fsprogs",
	"mount":        "",
	"nginx":        "nginx-light",
	"node":         "", // script/node
	"pgrep":        "procps",
	"pkill":        "procps",
	"python3":      "python3",
	"sh":           "",
	"sleep":        "",
	"strace":       "strace",
	"stty":         "",
	"tar":          "",
	"taskset":      "util-linux",
	"tmux":         "tmux",
	"umoci":        "umoci",
	"unshare":      "util-linux",
}

// TestDependencies holds that script/deps installs what the Go tests run: a machine
// that has run them before would not show that it is missing.
func TestDependencies(t *testing.T) {
	root := filepath.Join("..", "..")
	script, err := os.ReadFile(filepath.Join(root, "script", "deps"))
	if err != nil {
		t.Fatal(err)
	}
	var installed []string
	for line := range strings.Lines(string(script)) {
		if list, ok := strings.CutPrefix(strings.TrimSpace(line), "test) packages=("); ok {
			list, _, _ = strings.Cut(list, ")")
			installed = strings.Fields(list)
		}
	}
	run := map[string]string{} // programs, each with a file that runs it
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{"bin", "node_modules", ".git", "hosts", "bench"}, d.Name()) {
			return fs.SkipDir // of the last two the programs are installed apart
		}
		if !strings.HasSuffix(path, ".go") || !strings.HasSuffix(path, "_test.go") && !strings.HasPrefix(path, filepath.Join(root, "test")) {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if name := started(n); name != "" {
				run[name] = path
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(run) < 10 {
		t.Fatalf("only %d programs were found", len(run))
	}
	for name, path := range run {
		pkg, known := programs[name]
		switch {
		case !known:
			t.Errorf("%s runs %s: name its Debian package here, and install it in script/deps", path, name)
		case pkg != "" && !slices.Contains(installed, pkg):
			t.Errorf("%s runs %s of package %s, which script/deps does not install", path, name, pkg)
		}
	}
}

// started is the name of the program that a call runs or looks for; "" if n is no such
// call, or the program has a path or is not known before the test runs.
func started(n ast.Node) string {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return ""
	}
	fun, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	at, ok := map[string]int{"Command": 0, "CommandContext": 1, "LookPath": 0}[fun.Sel.Name]
	if pkg, isName := fun.X.(*ast.Ident); !ok || !isName || pkg.Name != "exec" || len(call.Args) <= at {
		return ""
	}
	lit, ok := call.Args[at].(*ast.BasicLit)
	if !ok {
		return ""
	}
	name, err := strconv.Unquote(lit.Value)
	if err != nil || strings.Contains(name, "/") {
		return ""
	}
	return name
}
