// Command overlay edits the pinned gVisor where it is built, with no copy of it in
// this tree. From the root of the tree,
//
//	go run ./internal/runtime/gvisor/overlay DIR
//
// writes into DIR, which is below it, what "go build -modfile DIR/go.mod -overlay
// DIR/overlay.json" takes. Go replaces no file in its cache of modules. So DIR/gvisor
// is a link to the module, DIR/go.mod has the link in the place of the module, and
// overlay.json has edited files in the place of files below the link.
//
// Edits are tied to the contents of the files. With another gVisor it fails, and
// says what to look at.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: overlay DIR")
		os.Exit(2)
	}
	if err := write(filepath.Clean(os.Args[1])); err != nil {
		fmt.Fprintln(os.Stderr, "overlay:", err)
		os.Exit(1)
	}
}

const module = "gvisor.dev/gvisor"

// write puts the edited files, go.mod and overlay.json into dir.
func write(dir string) error {
	source, err := moduleDir()
	if err != nil {
		return err
	}
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	link := filepath.Join(dir, "gvisor")
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(source, link); err != nil {
		return err
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		if err := copyFile(name, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	// By a relative path, which is the same on every machine, in the program too.
	if _, err := output("go", "mod", "edit", "-replace", module+"=./"+filepath.ToSlash(link), filepath.Join(dir, "go.mod")); err != nil {
		return err
	}
	replace := map[string]string{}
	put := func(original, text string) error {
		edited := filepath.Join(root, dir, filepath.Base(original))
		replace[filepath.Join(root, original)] = edited
		return os.WriteFile(edited, []byte(text), 0o644)
	}
	for _, e := range edits {
		text, err := e.apply(source)
		if err != nil {
			return err
		}
		if err := put(filepath.Join(link, e.file), text); err != nil {
			return err
		}
	}
	if err := put(filepath.Join(link, addedFile), added); err != nil {
		return err
	}
	if err := put(markFile, mark); err != nil {
		return err
	}
	data, err := json.MarshalIndent(map[string]any{"Replace": replace}, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "overlay.json"), append(data, '\n'), 0o644)
}

// moduleDir is the directory of the pinned module, which is downloaded if it is not
// there: on a machine where nothing was built, "go list -m" names no directory.
func moduleDir() (string, error) {
	if _, err := output("go", "mod", "download", module); err != nil {
		return "", err
	}
	return output("go", "list", "-m", "-f", "{{.Dir}}", module)
}

// output runs a command and returns what it prints.
func output(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}

// apply returns the edited text of a file of the module in dir.
func (e edit) apply(dir string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, e.file))
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	if got := hex.EncodeToString(sum[:]); got != e.sha256 {
		return "", fmt.Errorf("the pinned gVisor has another %s (SHA-256 %s, the edit is for %s): "+
			"see whether internal/runtime/gvisor/overlay/edits.go still fits it, and is still needed", e.file, got, e.sha256)
	}
	text := string(data)
	for _, c := range e.changes {
		if n := strings.Count(text, c.old); n != 1 {
			return "", fmt.Errorf("%s has %d places like this, the edit needs 1:\n%s", e.file, n, c.old)
		}
		text = strings.Replace(text, c.old, c.new, 1)
	}
	return text, nil
}
