package serve

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
)

func TestStateDirHasOnePath(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(base)
	want := filepath.Join(base, "disk", "state")
	if err := errors.Join(os.Mkdir("disk", 0o755), os.Symlink("disk", "link")); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"disk/state", "./link/state", base + "/link/../disk/state/", want} {
		if got, err := makeStateDir(dir); err != nil || got != want {
			t.Errorf("makeStateDir(%q) = %q, %v; want %q", dir, got, err, want)
		}
		if got, err := realDir(dir); err != nil || got != want {
			t.Errorf("realDir(%q) = %q, %v; want %q", dir, got, err, want)
		}
	}
}

func TestStateDirOnSmallFileSystem(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	_, err := makeStateDir(filepath.Join(dir, "state"))
	if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "state_dir_unusable" || e.Remedy == "" {
		t.Errorf("a state directory on 16 MiB: %v", err)
	}
}
