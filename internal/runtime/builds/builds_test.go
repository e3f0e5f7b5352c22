package builds

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// program writes a program that says something, and reads it.
func program(t *testing.T, says string) *Program {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho "+says+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := Of(path)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestKeep: what is kept is there when its own name has gone or means another
// program, is for its owner alone, and is let go once.
func TestKeep(t *testing.T) {
	s := At(filepath.Join(t.TempDir(), "builds"))
	if names, err := s.Names(); err != nil || len(names) > 0 {
		t.Errorf("before the first there is %q, %v", names, err)
	}
	p := program(t, "first")
	for range 2 {
		if err := s.Keep(p); err != nil {
			t.Fatal(err)
		}
	}
	// As cp installs another version.
	if err := os.WriteFile(p.file.Name(), []byte("#!/bin/sh\necho second\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	kept, err := s.Open(p.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(kept.Path()); err != nil || !strings.Contains(string(data), "first") {
		t.Errorf("what is kept is %q, %v", data, err)
	}
	for path, mode := range map[string]os.FileMode{s.dir: 0o700 | os.ModeDir, s.Path(p.Digest): 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v; want mode %s", path, info, err, mode)
		}
	}
	if names, err := s.Names(); err != nil || len(names) != 1 || names[0] != p.Digest || !IsDigest(names[0]) {
		t.Errorf("it has %q, %v", names, err)
	}
	for range 2 {
		if err := s.Remove(p.Digest); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Open(p.Digest); !errors.Is(err, ErrMissing) {
		t.Errorf("after its removal: %v", err)
	}
}

// TestDamaged: a program that is not what its digest says is not used, also if
// it was all right before; and one that is put back is.
func TestDamaged(t *testing.T) {
	s := At(filepath.Join(t.TempDir(), "builds"))
	p := program(t, "whole")
	if err := s.Keep(p); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(p.Digest); err != nil {
		t.Fatal(err)
	}
	path := s.Path(p.Digest)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{"longer": string(whole) + "#", "another": strings.Replace(string(whole), "whole", "wrong", 1), "empty": ""} {
		if err := os.WriteFile(path, []byte(data), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Open(p.Digest); err == nil || !strings.Contains(err.Error(), "damaged") || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := s.Keep(p); err != nil { // its own file is whole
		t.Fatal(err)
	}
	if _, err := s.Open(p.Digest); err != nil {
		t.Errorf("after it was kept again: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/bin/true", path); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(p.Digest); err == nil {
		t.Error("a link is used")
	}
	if err := errors.Join(os.Remove(path), os.WriteFile(path, whole, 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(p.Digest); err != nil {
		t.Errorf("after it was put back: %v", err)
	}
	for _, digest := range []string{"", "../builds/" + p.Digest, strings.ToUpper(p.Digest)} {
		if _, err := s.Open(digest); err == nil {
			t.Errorf("%q is a program", digest)
		}
	}
}

// TestSelf: the program of this process can be kept, and run by its descriptor
// after its name has gone.
func TestSelf(t *testing.T) {
	self, err := Self()
	if err != nil {
		t.Fatal(err)
	}
	s := At(filepath.Join(t.TempDir(), "builds"))
	if err := s.Keep(self); err != nil {
		t.Fatal(err)
	}
	kept, err := s.Open(self.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if self.Is(s.Path(self.Digest)) {
		t.Error("what is kept is the same file, and changes with it")
	}
	if err := s.Remove(self.Digest); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(kept.Path(), "-test.list", "TestSelf").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "TestSelf") {
		t.Errorf("it says %q, %v", out, err)
	}
}
