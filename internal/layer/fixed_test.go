package layer

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFixed puts into the place of a fixed directory whatever a sandbox can. A
// mount shows the true one, read-only, and touches nothing that a link points to.
func TestFixed(t *testing.T) {
	source := t.TempDir()
	if err := os.WriteFile(filepath.Join(source, "agent"), []byte("true"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, prepare := range map[string]func(at, outside string) error{
		"as it was": func(at, _ string) error { return os.Mkdir(filepath.Join(at, "lib/drowse"), 0o755) },
		"nothing":   func(string, string) error { return nil },
		"a file":    func(at, _ string) error { return os.WriteFile(filepath.Join(at, "lib/drowse"), nil, 0o644) },
		"a link":    func(at, outside string) error { return os.Symlink(outside, filepath.Join(at, "lib/drowse")) },
		"a false one": func(at, _ string) error {
			return errors.Join(os.Mkdir(filepath.Join(at, "lib/drowse"), 0o755), os.WriteFile(filepath.Join(at, "lib/drowse/agent"), []byte("false"), 0o755))
		},
		"a fifo": func(at, _ string) error { return unix.Mkfifo(filepath.Join(at, "lib/drowse"), 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			at, outside := t.TempDir(), t.TempDir()
			if err := errors.Join(os.Mkdir(filepath.Join(at, "lib"), 0o755), prepare(at, outside)); err != nil {
				t.Fatal(err)
			}
			if err := mountFixed(at, Fixed{Path: "lib/drowse", Source: source}); err != nil {
				t.Fatal(err)
			}
			agent := filepath.Join(at, "lib/drowse/agent")
			if text, err := os.ReadFile(agent); err != nil || string(text) != "true" {
				t.Errorf("the agent is %q, %v", text, err)
			}
			if err := os.WriteFile(agent, nil, 0o755); !errors.Is(err, unix.EROFS) {
				t.Errorf("it is written: %v", err)
			}
			if err := unix.Unmount(filepath.Join(at, "lib/drowse"), unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
			if found, err := os.ReadDir(outside); err != nil || len(found) > 0 {
				t.Errorf("outside there is %v, %v", found, err)
			}
		})
	}
	// Links above are not followed, and nothing is made where they point to.
	at, outside := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(at, "lib")); err != nil {
		t.Fatal(err)
	}
	if err := mountFixed(at, Fixed{Path: "lib/drowse", Source: source}); !errors.Is(err, errReplaced) {
		t.Errorf("through a link: %v", err)
	}
	if found, err := os.ReadDir(outside); err != nil || len(found) > 0 {
		t.Errorf("outside there is %v, %v", found, err)
	}
}
