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
	"bytes"
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
	if at, err := os.Readlink(link); err != nil || at != source {
		if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Symlink(source, link); err != nil {
			return err
		}
	}
	sums, err := os.ReadFile("go.sum")
	if err != nil {
		return err
	}
	if err := place(filepath.Join(dir, "go.sum"), sums); err != nil {
		return err
	}
	mod, err := replaced(link)
	if err != nil {
		return err
	}
	if err := place(filepath.Join(dir, "go.mod"), mod); err != nil {
		return err
	}
	replace := map[string]string{}
	put := func(original, text string) error {
		in := strings.TrimPrefix(original, link+"/")
		edited := filepath.Join(root, dir, strings.ReplaceAll(in, "/", "-"))
		replace[filepath.Join(root, original)] = edited
		return place(edited, []byte(text))
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
	for file, text := range added {
		if err := put(filepath.Join(link, file), text); err != nil {
			return err
		}
	}
	if err := put(markFile, mark); err != nil {
		return err
	}
	data, err := json.MarshalIndent(map[string]any{"Replace": replace}, "", "\t")
	if err != nil {
		return err
	}
	return place(filepath.Join(dir, "overlay.json"), append(data, '\n'))
}

// replaced is go.mod with the module in the place of the link: by a relative path,
// which is the same on every machine, in the program too.
func replaced(link string) ([]byte, error) {
	temp, err := os.MkdirTemp("", "overlay")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temp)
	mod := filepath.Join(temp, "go.mod")
	data, err := os.ReadFile("go.mod")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(mod, data, 0o644); err != nil {
		return nil, err
	}
	if _, err := output("go", "mod", "edit", "-replace", module+"=./"+filepath.ToSlash(link), mod); err != nil {
		return nil, err
	}
	return os.ReadFile(mod)
}

// place writes a file whole or not at all, and leaves one alone that has the data: a
// build beside this one may be reading it.
func place(path string, data []byte) error {
	if was, err := os.ReadFile(path); err == nil && bytes.Equal(was, data) {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
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
