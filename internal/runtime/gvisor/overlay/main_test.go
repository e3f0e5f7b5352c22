package main

import (
	"go/format"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEditsFit applies the edits to the gVisor that go.mod names. Where it fails
// after an upgrade, look at the file that it names: the edits may be needed no more,
// or in another place.
func TestEditsFit(t *testing.T) {
	source, err := output("go", "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range edits {
		text, err := e.apply(source)
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err := format.Source([]byte(text)); err != nil {
			t.Errorf("%s is no Go after the edit: %v", e.file, err)
		}
		original, err := os.ReadFile(filepath.Join(source, e.file))
		if err != nil {
			t.Fatal(err)
		}
		if text == string(original) {
			t.Errorf("the edit of %s changes nothing", e.file)
		}
	}
	for file := range added {
		if _, err := os.Stat(filepath.Join(source, file)); err == nil {
			t.Errorf("gVisor has a %s of its own", file)
		}
	}
	if _, err := os.Stat(filepath.Join("../../../..", markFile)); err != nil {
		t.Errorf("the file that says how a program was built: %v", err)
	}
}

// TestEditsRefuseAnotherFile changes a byte of a file, as an upgrade would.
func TestEditsRefuseAnotherFile(t *testing.T) {
	source, err := output("go", "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, e := range edits {
		data, err := os.ReadFile(filepath.Join(source, e.file))
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, e.file)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, append(data, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := e.apply(dir); err == nil || !strings.Contains(err.Error(), e.file) {
			t.Errorf("apply to a changed %s: %v; want an error that names it", e.file, err)
		}
	}
}
