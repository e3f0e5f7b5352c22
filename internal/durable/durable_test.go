package durable

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReplace: the file has the new contents and the mode, whatever was there.
func TestReplace(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	for name, before := range map[string]func(path string) error{
		"no file":  func(string) error { return nil },
		"old file": func(path string) error { return os.WriteFile(path, []byte("older and longer"), 0o644) },
		"left by a crash": func(path string) error {
			return os.WriteFile(path+".new", []byte("half of something longer"), 0o666)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			if err := before(path); err != nil {
				t.Fatal(err)
			}
			if err := Replace(path, []byte("new"), 0o640); err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(path)
			if err != nil || info.Mode() != 0o640 {
				t.Errorf("it is %v, %v", info, err)
			}
			alone(t, path, "new")
		})
	}
}

// TestReplaceFails: the old contents stay, and nothing else is left.
func TestReplaceFails(t *testing.T) {
	t.Run("full disk", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("/dev/full", path+".new"); err != nil {
			t.Fatal(err)
		}
		if err := Replace(path, []byte("new"), 0o600); err == nil || !strings.Contains(err.Error(), "no space left") {
			t.Errorf("error %v", err)
		}
		alone(t, path, "old")
	})
	t.Run("not to be renamed", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "dir", "file")
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := Replace(filepath.Dir(path), []byte("new"), 0o600); err == nil {
			t.Error("a directory was replaced")
		}
		if names, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(path)), "*")); len(names) != 1 || err != nil {
			t.Errorf("there are %v, %v", names, err)
		}
	})
	t.Run("not to be made", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.Mkdir(path+".new", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := Replace(path, []byte("new"), 0o600); err == nil {
			t.Error("it was replaced")
		}
		if _, err := os.Stat(path + ".new"); err != nil {
			t.Errorf("what somebody else made is gone: %v", err)
		}
	})
}

// alone fails the test unless the file is all that its directory has.
func alone(t *testing.T, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("it has %q, %v; want %q", got, err, want)
	}
	if names, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*")); len(names) != 1 || err != nil {
		t.Errorf("there are %v, %v", names, err)
	}
}
