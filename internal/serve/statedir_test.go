package serve

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
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

// TestKeptBuilds: the doctor counts the builds that memory images need, and finds
// nothing wrong with a directory that has none.
func TestKeptBuilds(t *testing.T) {
	dir := t.TempDir()
	if f := keptBuilds(t.Context(), dir); !f.OK || !strings.Contains(f.Detail, "images: 0,") {
		t.Errorf("without any: %+v", f)
	}
	if err := os.Mkdir(buildsAt(dir).Path(""), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{strings.Repeat("0", 64), strings.Repeat("1", 64)} {
		if err := os.WriteFile(buildsAt(dir).Path(name), make([]byte, 1<<20), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if f := keptBuilds(t.Context(), dir); !f.OK || !strings.Contains(f.Detail, "images: 2,") || !strings.Contains(f.Detail, "2.0 MiB") {
		t.Errorf("with two: %+v", f)
	}
}

// TestKeepFile: a file that is as it is to be is left alone, because a full disk has no
// room for another; all else is replaced.
func TestKeepFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "url")
	inode := func() uint64 {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	if err := keepFile(path, "one"); err != nil {
		t.Fatal(err)
	}
	was := inode()
	if err := keepFile(path, "one"); err != nil || inode() != was {
		t.Errorf("it was written again, or: %v", err)
	}
	for what, spoil := range map[string]func() error{
		"another text": func() error { return os.WriteFile(path, []byte("two"), 0o600) },
		"open to all":  func() error { return os.Chmod(path, 0o644) },
		"a link": func() error {
			other := filepath.Join(dir, "other")
			return errors.Join(os.Rename(path, other), os.Symlink(other, path))
		},
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if err := keepFile(path, "one"); err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(path)
		text, err2 := os.ReadFile(path)
		if err != nil || err2 != nil || info.Mode() != 0o600 || string(text) != "one" {
			t.Errorf("%s: it is %v with %q", what, info.Mode(), text)
		}
	}
}
