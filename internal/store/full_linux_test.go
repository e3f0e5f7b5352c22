package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"modernc.org/sqlite"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// smallDisk mounts a file system of one MiB and returns its directory.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatalf("mount a small file system (needs root): %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

func remount(t *testing.T, dir string, flags uintptr, data string) {
	t.Helper()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|flags, data); err != nil {
		t.Fatalf("remount %s: %v", dir, err)
	}
}

// commitUntilFull commits until the disk is full and returns the last
// generation that was committed and the error.
func commitUntilFull(t *testing.T, s store.Store) (int64, error) {
	t.Helper()
	for n := int64(1); n < 10_000; n++ {
		sb := record("a", n)
		sb.Rev = revision(t.Context(), s, "a")
		if err := s.Commit(t.Context(), sb, lines(n, "first", strings.Repeat("x", 5000))); err != nil {
			return n - 1, err
		}
	}
	t.Fatal("a disk of one MiB never filled up")
	return 0, nil
}

// pairs returns 1 1 2 2 … n n.
func pairs(n int64) []int64 {
	var all []int64
	for i := range n {
		all = append(all, i+1, i+1)
	}
	return all
}

func TestFullDisk(t *testing.T) {
	dir := smallDisk(t)
	path := filepath.Join(dir, "drowse.db")
	s := open(t, path)
	last, err := commitUntilFull(t, s)
	t.Logf("full after %d commits: %v", last, err)
	wantError(t, err, errdef.Unavailable, "store_unavailable", "commit sandbox a", path, "free space")
	if _, ok := errors.AsType[*sqlite.Error](err); !ok {
		t.Errorf("%v does not wrap SQLite's error", err)
	}
	wantGenerations(t, s, "a", last, pairs(last)...)

	// The same for who opens what a crash at this moment leaves.
	copied := newPath(t)
	for _, suffix := range []string{"", "-wal"} {
		data, err := os.ReadFile(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(copied+suffix, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	wantGenerations(t, open(t, copied), "a", last, pairs(last)...)

	// It goes on by itself when there is room again.
	remount(t, dir, 0, "size=8m")
	commit(t, s, record("a", last+1), lines(last+1, "first", "second"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wantGenerations(t, open(t, path), "a", last+1, pairs(last+1)...)
}

func TestCommitTooBigForTheDisk(t *testing.T) {
	s := open(t, filepath.Join(smallDisk(t), "drowse.db"))
	commit(t, s, record("a", 1), lines(1, "one"))
	large := record("a", 2)
	large.Rev = 1
	err := s.Commit(t.Context(), large, lines(2, "two", strings.Repeat("x", 2<<20)))
	wantError(t, err, errdef.Unavailable, "store_unavailable")
	commit(t, s, record("a", 3), lines(3, "three"))
	wantGenerations(t, s, "a", 3, 1, 3)
}

func TestOpenOnFullDisk(t *testing.T) {
	dir := smallDisk(t)
	filler := make([]byte, 2<<20)
	if err := os.WriteFile(filepath.Join(dir, "filler"), filler, 0o600); err == nil {
		t.Fatal("two MiB fit on a disk of one")
	}
	path := filepath.Join(dir, "drowse.db")
	_, err := store.Open(t.Context(), path)
	wantError(t, err, errdef.Unavailable, "store_unavailable", "open store", path)

	if err := os.Remove(filepath.Join(dir, "filler")); err != nil {
		t.Fatal(err)
	}
	commit(t, open(t, path), record("a", 1), nil) // the file is there and empty
}

func TestOpenReadOnly(t *testing.T) {
	dir := smallDisk(t)
	path := filepath.Join(dir, "drowse.db")
	if err := open(t, path).Close(); err != nil {
		t.Fatal(err)
	}
	remount(t, dir, syscall.MS_RDONLY, "")
	for _, path := range []string{path, filepath.Join(dir, "new.db")} {
		_, err := store.Open(t.Context(), path)
		wantError(t, err, errdef.Unavailable, "store_unavailable", "read-only", path)
		if !errors.Is(err, syscall.EROFS) {
			t.Errorf("%v does not wrap its cause", err)
		}
	}
}
