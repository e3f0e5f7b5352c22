package client_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// module is the path of the client's module, which is below that of the server's.
const module = "github.com/drowse-dev/drowse/client"

// allowed are the modules that a program gets which uses the client, with the reason
// for each. Of those in graph no code is built: others name them in their go.mod.
var (
	allowed = map[string]string{
		module:                       "the client",
		"connectrpc.com/connect":     "speaks to the agent inside a sandbox: commands and files",
		"google.golang.org/protobuf": "the messages of that",
	}
	graph = map[string]string{
		"github.com/google/go-cmp":   "tests of connect and protobuf use it",
		"github.com/golang/protobuf": "an old go-cmp's requirement, which protobuf's go.mod keeps",
	}
)

// source returns the absolute directory of the client's module.
func source(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", "..", "client"))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// goIn runs the go command in a directory, as a machine without a network does that
// has the modules which the server's module needs.
func goIn(t *testing.T, dir, system string, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOPROXY=off", "GOWORK=off", "GOFLAGS=-buildvcs=false", "CGO_ENABLED=0", "GOOS="+system)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s for %s: %v\n%s", strings.Join(cmd.Args, " "), system, err, &problems)
	}
	return string(out)
}

// only fails for every module in a list of paths that is not allowed, and returns
// how many different ones are listed.
func only(t *testing.T, what, list string, allowed ...map[string]string) int {
	t.Helper()
	seen := map[string]bool{"": true} // the standard library
	for _, path := range strings.Split(list, "\n") {
		if seen[path] {
			continue
		}
		seen[path] = true
		known := false
		for _, m := range allowed {
			known = known || m[path] != ""
		}
		if !known {
			t.Errorf("%s has %s: every program that uses the client would get it. "+
				"Do without it, or add it to the lists in test/client/module_test.go with the reason", what, path)
		}
	}
	return len(seen) - 1
}

// TestModule holds that the client's module is small, and needs the versions that
// this repository tests it with.
func TestModule(t *testing.T) {
	dir := source(t)
	if n := only(t, "its module graph", goIn(t, dir, "linux", "list", "-m", "-f", "{{.Path}}", "all"), allowed, graph); n < len(allowed) {
		t.Errorf("%d modules were listed", n)
	}
	if n := only(t, "what it links", goIn(t, dir, "linux", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "./..."), allowed); n != len(allowed) {
		t.Errorf("%d modules are linked, and %d may be: take what is not needed any more out of the list", n, len(allowed))
	}
	for path := range allowed {
		if path == module {
			continue
		}
		list := []string{"list", "-m", "-f", "{{.Version}}", path}
		own, tested := goIn(t, dir, "linux", list...), goIn(t, filepath.Dir(dir), "linux", list...)
		if own != tested {
			t.Errorf("client/go.mod requires %s %s, and is tested with %s: make them one", path, strings.TrimSpace(own), strings.TrimSpace(tested))
		}
	}
}

// outside is a program of somebody else that uses the client.
const outside = `package main

import (
	"context"
	"fmt"
	"os"

	"github.com/drowse-dev/drowse/client"
)

func main() {
	c, err := client.New(client.Options{URL: "http://127.0.0.1:3000", APIKey: os.Getenv("DROWSE_API_KEY")})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if len(os.Args) > 1 {
		sb, _, err := c.Open(context.Background(), os.Args[1])
		if err == nil {
			_, err = sb.Run(context.Background(), client.Command{Args: []string{"date"}, Stdout: os.Stdout})
		}
		fmt.Println(err)
	}
	fmt.Println("the client is for", c.URL())
}
`

// TestOutsideProgram compiles a program outside of this repository that uses the
// client, on each system that the client is for. It gets nothing of the server.
func TestOutsideProgram(t *testing.T) {
	dir, from := t.TempDir(), source(t)
	write := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sums, err := os.ReadFile(filepath.Join(from, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	write("main.go", []byte(outside))
	write("go.mod", []byte("module example.com/outside\n\ngo 1.26.3\n\nreplace "+module+" => "+from+"\n"))
	write("go.sum", sums)
	goIn(t, dir, "linux", "get", module+"@v0.0.0")
	if n := only(t, "an outside program's graph", goIn(t, dir, "linux", "list", "-m", "-f", "{{if not .Main}}{{.Path}}{{end}}", "all"), allowed, graph); n < len(allowed) {
		t.Errorf("%d modules were listed", n)
	}
	for _, system := range []string{"linux", "darwin", "windows"} {
		goIn(t, dir, system, "build", "-o", filepath.Join(dir, system), ".")
	}
	if out, err := exec.Command(filepath.Join(dir, "linux")).CombinedOutput(); err != nil || string(out) != "the client is for http://127.0.0.1:3000\n" {
		t.Errorf("it prints %q, %v", out, err)
	}
}
