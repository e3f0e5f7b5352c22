package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestDocumentsAreCurrent(t *testing.T) {
	const dir = "../../../../docs/api"
	docs := documents()
	for name, want := range docs {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("docs/api/%s is not what the code says (%v): run go generate ./internal/api/v1", name, err)
		}
		if again := documents()[name]; !bytes.Equal(again, want) {
			t.Errorf("%s differs from one run to the next", name)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if docs[f.Name()] == nil {
			t.Errorf("docs/api/%s is not generated here", f.Name())
		}
	}
}

func TestRunWritesEveryDocument(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "api")
	if err := run([]string{dir}); err != nil {
		t.Fatal(err)
	}
	for name, want := range documents() {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if run(nil) == nil {
		t.Error("no directory is no error")
	}
}
