package blobs_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/blobs"
	"github.com/drowse-dev/drowse/internal/blobs/blobstest"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// files returns the paths below a directory, with their modes.
func files(t *testing.T, dir string) map[string]fs.FileMode {
	t.Helper()
	found := map[string]fs.FileMode{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		found[name] = info.Mode()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestDirectoryIsPrivateAndTidy(t *testing.T) {
	dir := t.TempDir()
	for _, url := range []string{dir, "file://" + dir, dir + "/"} {
		s := open(t, url)
		if left := files(t, dir); len(left) != 0 {
			t.Errorf("opened, it has %v", left)
		}
		if err := errors.Join(s.Put(t.Context(), "a/b/c", []byte("x")), s.Put(t.Context(), "a/d", nil)); err != nil {
			t.Fatal(err)
		}
		for name, mode := range files(t, dir) {
			want := fs.FileMode(0o600)
			if name == "a" || name == "a/b" {
				want = fs.ModeDir | 0o700
			}
			if mode != want {
				t.Errorf("%s has mode %s, want %s", name, mode, want)
			}
		}
		if err := s.Remove(t.Context(), "a/b/c"); err != nil {
			t.Error(err)
		}
		if left := files(t, dir); len(left) != 2 {
			t.Errorf("of a and a/d is left %v", left)
		}
		if err := s.Remove(t.Context(), "a/d"); err != nil {
			t.Error(err)
		}
		if left := files(t, dir); len(left) != 0 {
			t.Errorf("of nothing is left %v", left)
		}
		if s.String() != "directory "+dir {
			t.Errorf("its name is %s", s)
		}
	}
}

// TestDirectoryHasOthersFiles has in it what no Put has made, and what crashes leave.
func TestDirectoryHasOthersFiles(t *testing.T) {
	dir := t.TempDir()
	outside := t.TempDir()
	old, fresh := filepath.Join(dir, ".unfinished-OLD"), filepath.Join(dir, ".unfinished-FRESH")
	for _, path := range []string{old, fresh, filepath.Join(dir, "Upper"), filepath.Join(dir, ".hidden"), filepath.Join(outside, "secret")} {
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	day := time.Now().Add(-25 * time.Hour)
	if err := errors.Join(
		os.Chtimes(old, day, day),
		os.Symlink(outside, filepath.Join(dir, "link")),
		os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, "file")),
		unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	if found := blobstest.Keys(t, s, ""); len(found) != 0 {
		t.Errorf("listed: %v", found)
	}
	if _, err := os.Lstat(old); err == nil {
		t.Error("what a crash has left is not swept")
	}
	if _, err := os.Lstat(fresh); err != nil {
		t.Errorf("what another server writes is swept: %v", err)
	}
	// No link leads out of the directory.
	if err := s.Put(t.Context(), "link/k", []byte("x")); errdef.CodeOf(err) != "blobs_unavailable" {
		t.Errorf("put through a link: %v", err)
	}
	if got, err := s.Get(t.Context(), "file", 10); err == nil {
		t.Errorf("get through a link: %q", got)
	}
	if got, err := s.Get(t.Context(), "link/secret", 10); err == nil {
		t.Errorf("get through a link: %q", got)
	}
	if err := s.Remove(t.Context(), "link/secret"); err == nil {
		t.Error("remove through a link")
	}
	if left := files(t, outside); len(left) != 1 {
		t.Errorf("outside is %v", left)
	}
}

func TestDirectoryCannotBeUsed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	readonly := t.TempDir()
	mount(t, readonly, unix.MS_RDONLY, "")
	for path, says := range map[string]string{
		file + "-none": "no such file",
		file:           "not a directory",
		readonly:       "read-only",
	} {
		s, err := blobs.Open(t.Context(), path)
		if s != nil {
			t.Errorf("%s is open", path)
		}
		refused(t, path, err, "blobs_unusable", says)
	}
}

// mount mounts a file system in memory until the end of the test.
func mount(t *testing.T, dir string, flags uintptr, options string) {
	t.Helper()
	if err := unix.Mount("none", dir, "tmpfs", flags, options); err != nil {
		t.Fatalf("mount a tmpfs, for which the test needs to be root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

func TestDirectoryIsFull(t *testing.T) {
	dir := t.TempDir()
	mount(t, dir, 0, "size=1m")
	s := open(t, dir)
	if err := s.Put(t.Context(), "k/old", []byte("old")); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"k/new", "k/old"} {
		refused(t, "put "+key, s.Put(t.Context(), key, make([]byte, 2<<20)), "blobs_unavailable", "no space left")
	}
	if left := files(t, dir); len(left) != 2 {
		t.Errorf("there is %v, want k and k/old", left)
	}
	if got, err := s.Get(t.Context(), "k/old", 10); err != nil || string(got) != "old" {
		t.Errorf("%q, %v", got, err)
	}
	if err := s.Put(t.Context(), "k/new", []byte("fits")); err != nil {
		t.Error(err)
	}
}

// TestDirectoryIsMountedOver holds that nothing is written elsewhere when another file
// system is mounted where the directory was.
func TestDirectoryIsMountedOver(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	mount(t, dir, 0, "")
	if err := s.Put(t.Context(), "k", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if left := files(t, dir); len(left) != 0 {
		t.Errorf("what was mounted later has %v", left)
	}
}

// TestDirectoryHangs has a file system that does not answer the calls before.
func TestDirectoryHangs(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, err := blobs.OpenDirectory(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		release := blobs.Occupy(s)
		begin := time.Now()
		unavailable(t, s, "has not answered for 1m0s")
		if took := time.Since(begin); took != 5*time.Minute {
			t.Errorf("five calls took %s", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Put(ctx, "k", nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with a ctx of a second: %v", err)
		}
		release()
		if err := s.Put(t.Context(), "k", nil); err != nil {
			t.Error(err)
		}
	})
}

// TestPutLeavesNothing cuts Puts off, and holds that all that they have begun goes away.
func TestPutLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	for i := range 30 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*200*time.Microsecond)
		_ = s.Put(ctx, "k/v", make([]byte, 1<<20)) // either is fine
		cancel()
	}
	testmode.Eventually(t, "all that was unfinished is gone", func() bool {
		for name := range files(t, dir) {
			if name != "k" && name != "k/v" {
				return false
			}
		}
		return true
	})
}
