package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFields has the list of fields written from all suites, and held to them.
func TestFields(t *testing.T) {
	name := filepath.Join(t.TempDir(), "fields.txt")
	text := fieldsOf([]suite{{fields: []string{"POST /b z", "POST /a"}}, {}, {fields: []string{"POST /b z", "POST /b y"}}})
	if want := "POST /a\nPOST /b y\nPOST /b z\n"; text != want {
		t.Errorf("fields %q, want %q", text, want)
	}
	if err := hold(name, text, false); err == nil {
		t.Error("a list that is not there says what the run does")
	}
	if err := hold(name, text, true); err != nil {
		t.Fatal(err)
	}
	if err := hold(name, text, false); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(name, []byte("POST /a\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := hold(name, text, false); err == nil || !strings.Contains(err.Error(), "\n+ POST /b y\n+ POST /b z\n") {
		t.Errorf("an older list: %v", err)
	}
}
