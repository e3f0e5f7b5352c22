//go:build unix

package dockerfile

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestOddTrees: pipes and sockets are refused by name, links that lead in a circle are
// copied as links, and a deep tree is copied to its bottom.
func TestOddTrees(t *testing.T) {
	const deep = 300
	dir := directory(t, map[string]string{"loop/again": "->../loop", "new\nline": "N", "deep/" + strings.Repeat("d/", deep) + "end": "E", "pipes/a": "A"})
	if err := syscall.Mkfifo(filepath.Join(dir, "pipes/p"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := OpenContext(dir, filepath.Join(dir, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := Read(strings.NewReader("FROM a\nCOPY . /x/"), Options{Context: c}); err == nil || !strings.Contains(err.Error(), "line 2: pipes/p is no file, directory or link") {
		t.Errorf("with a pipe: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "pipes/p")); err != nil {
		t.Fatal(err)
	}
	r, err := Read(strings.NewReader("FROM a\nCOPY . /x/"), Options{Context: c})
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(archived(t, r.Steps[1].Files), "\n")
	for _, want := range []string{"files/loop/again=../loop", "files/new\nline=N", "files/deep/" + strings.Repeat("d/", deep) + "end=E"} {
		if !strings.Contains(got, want) {
			t.Errorf("%.80q is not among the files", want)
		}
	}
}
