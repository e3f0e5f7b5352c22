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

	"mvdan.cc/sh/v3/syntax"
)

// programs are those that tests and scripts run, each with the Debian package that has
// it; "" is for Go's, and for what a test or a script looks for itself. What every
// Debian has is in base.
var programs = map[string]string{
	"apt-get":            "",
	"busybox":            "busybox-static",
	"chattr":             "e2fsprogs",
	"chromedriver":       "chromium-driver",
	"curl":               "curl",
	"drowse":             "", // the test itself, by another name
	"git":                "git",
	"go":                 "",
	"gofmt":              "",
	"ip":                 "iproute2",
	"jq":                 "jq",
	"make":               "make",
	"mke2fs":             "e2fsprogs",
	"mmdebstrap":         "mmdebstrap",
	"nginx":              "nginx-light",
	"node":               "", // script/node
	"npm":                "", // script/deps, below its lists
	"pgrep":              "procps",
	"pkill":              "procps",
	"protoc":             "protobuf-compiler",
	"python3":            "python3",
	"qemu-system-x86_64": "qemu-system-x86",
	"rsync":              "rsync",
	"ssh-keygen":         "openssh-client",
	"strace":             "strace",
	"systemctl":          "", // in a virtual machine
	"tmux":               "tmux",
	"umoci":              "umoci",
}

// base are the programs of packages that no Debian can be without, and what is built
// into the shell.
var base = strings.Fields(`
	awk basename bash cat chmod chroot cmp cp cut date diff dirname dpkg dpkg-deb dpkg-query env find flock getconf grep gzip head id install ln ls
	mkdir mktemp mount mv nice nproc nsenter od pivot_root readlink realpath rm rmdir sed seq sh sha256sum sleep sort stat
	stty tail tar taskset tee timeout touch tr umount uname uniq unshare wc xargs
	. : [ break cd command continue echo eval exec exit false kill mapfile printf pwd read return set shift test trap true
	umask unset wait`)

// TestDependencies holds that script/deps installs what tests and scripts run: a
// machine that has run them before would not show that it is missing.
func TestDependencies(t *testing.T) {
	root := filepath.Join("..", "..")
	script, err := os.ReadFile(filepath.Join(root, "script", "deps"))
	if err != nil {
		t.Fatal(err)
	}
	installed := map[string][]string{} // packages, by script/deps' argument
	machines := ""
	for line := range strings.Lines(string(script)) {
		line = strings.TrimSpace(line)
		if list, ok := strings.CutPrefix(line, "machines=("); ok {
			machines = strings.TrimSuffix(list, ")")
		}
		name, list, ok := strings.Cut(line, ") packages=(")
		if ok {
			list, _, _ = strings.Cut(list, ")")
			installed[name] = strings.Fields(strings.ReplaceAll(list, `"${machines[@]}"`, machines))
		}
	}
	seen := map[string]bool{}
	for path, names := range runBy(t, root) {
		list := depsOf(path)
		for _, name := range names {
			seen[name] = true
			pkg, known := programs[name]
			switch {
			case slices.Contains(base, name):
			case !known:
				t.Errorf("%s runs %s: name its Debian package here, and install it in script/deps", path, name)
			case pkg != "" && !slices.Contains(installed[list], pkg):
				t.Errorf("%s runs %s of package %s, which \"script/deps %s\" does not install", path, name, pkg, list)
			}
		}
	}
	for name := range programs {
		if !seen[name] {
			t.Errorf("nothing runs %s", name)
		}
	}
}

// depsOf is what script/deps is called with before a file is used.
func depsOf(path string) string {
	for prefix, list := range map[string]string{
		"test/bench/": "bench",
		"test/hosts/": "hosts", "test/newcomer.sh": "hosts",
		"test/packages.sh": "hosts", "script/packages": "hosts", "script/image": "hosts",
	} {
		if strings.HasPrefix(path, prefix) {
			return list
		}
	}
	return "test"
}

// runBy returns, for each Go test and each script of this repository, the names of the
// programs that it runs. Paths are relative to root.
func runBy(t *testing.T, root string) map[string][]string {
	t.Helper()
	run := map[string][]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{"bin", "node_modules", ".git", "testdata"}, d.Name()) {
			return fs.SkipDir // testdata is for sandboxes
		}
		if !d.Type().IsRegular() {
			return nil
		}
		below, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch {
		case strings.HasSuffix(path, ".go"):
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			tests := func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing"` }
			if !strings.HasPrefix(below, "test/") && !slices.ContainsFunc(file.Imports, tests) {
				return nil
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if name := started(n); name != "" {
					run[below] = append(run[below], name)
				}
				return true
			})
		case strings.HasPrefix(below, "packaging/"): // it runs on users' machines
		case strings.HasPrefix(below, "script/"), strings.HasPrefix(below, ".ci/"), strings.HasSuffix(path, ".sh"):
			names, err := commandsOf(path)
			if err != nil {
				return err
			}
			run[below] = names
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// commandsOf returns the names of the commands that a shell script runs and does not
// define itself. What others run for it, such as env, is not seen.
func commandsOf(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	file, err := syntax.NewParser().Parse(f, path)
	if err != nil {
		return nil, err
	}
	var names []string
	defined := map[string]bool{}
	syntax.Walk(file, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.FuncDecl:
			defined[n.Name.Value] = true
		case *syntax.CallExpr:
			if len(n.Args) == 0 {
				break
			}
			if name := n.Args[0].Lit(); name != "" && !strings.Contains(name, "/") {
				names = append(names, name)
			}
		}
		return true
	})
	return slices.DeleteFunc(names, func(name string) bool { return defined[name] }), nil
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
