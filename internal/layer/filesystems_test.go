package layer

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// newDisk makes a file system in a file, mounts it, and has tests keep their
// files there.
func newDisk(t *testing.T, options string, mkfs ...string) (dir string) {
	base := t.TempDir()
	image, dir := filepath.Join(base, "image"), filepath.Join(base, "disk")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 400<<20), os.Mkdir(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(mkfs[0], append(mkfs[1:], image)...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(mkfs, " "), err, out)
	}
	if out, err := exec.Command("mount", "-o", "loop,"+options, image, dir).CombinedOutput(); err != nil {
		if strings.Contains(string(out), "unknown filesystem type") || isWithoutCasefold(t, mkfs, string(out)) {
			t.Skipf("this kernel has no such file system: %s", out)
		}
		t.Fatalf("mount %s: %v: %s", mkfs[0], err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	t.Setenv("TMPDIR", dir)
	return dir
}

// TestFileSystems keeps layers on the file systems that a state directory may
// be on, mounted as administrators like to mount what holds data.
func TestFileSystems(t *testing.T) {
	for name, mkfs := range map[string][]string{
		"ext4":  {"mkfs.ext4", "-q", "-F"},
		"xfs":   {"mkfs.xfs", "-q"},
		"btrfs": {"mkfs.btrfs", "-q"},
	} {
		t.Run(name, func(t *testing.T) {
			newDisk(t, "noexec,nosuid,nodev,noatime", mkfs...)
			t.Run("each way", func(t *testing.T) {
				eachWay(t, func(t *testing.T, m mounter) {
					r := newRig(t)
					r.mounter = &m
					at := r.mount(nil, "a")
					tool := filepath.Join(at, "usr/bin/script")
					r.write(tool, "#!/bin/true\n")
					r.must(os.Chmod(tool, 0o4755))
					if err := exec.Command(tool).Run(); err != nil {
						t.Errorf("a program in a layer does not run: %v", err)
					}
				})
			})
			t.Run("names", func(t *testing.T) {
				m := newModel(t, 9)
				for range 150 {
					m.step()
				}
			})
			t.Run("merge", func(t *testing.T) {
				h := newHistory(t, 7)
				for len(h.stack) < 6 {
					h.layer()
				}
				want := h.view()
				h.merge(1, 5, "merged")
				diff(t, want, h.view())
			})
		})
	}
}

// isWithoutCasefold reports whether a mount failed because the kernel was built
// without names that ignore case. Its log has the reason; mount says "wrong fs type".
func isWithoutCasefold(t *testing.T, mkfs []string, out string) bool {
	t.Helper()
	if !slices.Contains(mkfs, "casefold") || !strings.Contains(out, "wrong fs type") {
		return false
	}
	_, err := os.Stat("/sys/fs/ext4/features/casefold") // there if ext4 was built with it
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return err != nil
}

// TestFileSystemThatIgnoresCase is refused, with the reason: ext4's casefold.
func TestFileSystemThatIgnoresCase(t *testing.T) {
	dir := newDisk(t, "rw", "mkfs.ext4", "-q", "-F", "-O", "casefold", "-E", "encoding=utf8")
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("chattr", "+F", state).CombinedOutput(); err != nil {
		t.Fatalf("chattr: %v: %s", err, out)
	}
	_, err := At(state).Probe()
	e, ok := errors.AsType[*errdef.Error](err)
	if !ok || e.Code != "state_dir_unusable" || !strings.Contains(e.Message, "case") || !strings.Contains(e.Remedy, "casefold") {
		t.Errorf("probe: %v", err)
	}
}

// TestFullFileSystem has no room for a trial: the server comes up all the same,
// with the way that every kernel has.
func TestFullFileSystem(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "nr_inodes=8"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s := At(dir)
	found, err := s.Probe()
	if err != nil || found.Way != "by descriptor" {
		t.Errorf("probe: %+v, %v", found, err)
	}
	if s.mounter != nil {
		t.Error("what could not be tried counts for later mounts")
	}
}
