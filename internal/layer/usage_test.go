package layer

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

func TestUsage(t *testing.T) {
	s := At(t.TempDir())
	dir := filepath.Join(s.LayerDir("l"), "root")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700))
	must(os.WriteFile(filepath.Join(dir, "a", "b", "whole"), make([]byte, 1<<20), 0o600))
	must(os.Link(filepath.Join(dir, "a", "b", "whole"), filepath.Join(dir, "again")))
	must(os.WriteFile(filepath.Join(dir, "sparse"), nil, 0o600))
	must(os.Truncate(filepath.Join(dir, "sparse"), 1<<40))
	must(os.Symlink("/", filepath.Join(dir, "out")))
	must(unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))

	must(unix.Mknod(filepath.Join(dir, "gone"), unix.S_IFCHR, 0))
	must(os.Link(filepath.Join(dir, "gone"), filepath.Join(dir, "gone too")))
	must(unix.Mknod(filepath.Join(dir, "null"), unix.S_IFCHR, int(unix.Mkdev(1, 3))))

	u, whiteouts, err := s.Usage(t.Context(), "l", Unbounded)
	must(err)
	if want := (Usage{Files: 2, NameBytes: int64(len("gone" + "gone too"))}); whiteouts != want {
		t.Errorf("whiteouts %+v, want %+v", whiteouts, want)
	}
	const files = 11 // root a b whole again sparse out fifo gone gone-too null
	if u.Files != files || u.Bytes < 1<<20 || u.Bytes > 1<<20+files*4096 {
		t.Errorf("%+v, want %d files of 1 MiB and some blocks", u, files)
	}
	if _, _, err := s.Usage(t.Context(), "none", Unbounded); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no layer: %v", err)
	}
}

// TestUsageOfEnough counts no further than it must.
func TestUsageOfEnough(t *testing.T) {
	s := At(t.TempDir())
	dir := s.LayerDir("l")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	u, _, err := s.Usage(t.Context(), "l", Usage{Bytes: math.MaxInt64, Files: 10, NameBytes: math.MaxInt64})
	if err != nil || u.Files <= 10 || u.Files > 11 {
		t.Errorf("%+v, %v", u, err)
	}
}

// TestUsageWhileItChanges has directories become links to far larger ones, and
// back, while they are counted: none is followed.
func TestUsageWhileItChanges(t *testing.T) {
	s := At(t.TempDir())
	dir := s.LayerDir("l")
	if err := os.MkdirAll(filepath.Join(dir, "real", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	outside := t.TempDir()
	for i := range 100 {
		if err := os.WriteFile(filepath.Join(outside, strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, "real"), unix.AT_FDCWD, filepath.Join(dir, "link"), unix.RENAME_EXCHANGE)
			}
		}
	}()
	for range 2000 {
		if u, _, err := s.Usage(t.Context(), "l", Unbounded); err != nil || u.Files > 4 {
			t.Errorf("%+v, %v", u, err)
			break
		}
	}
	close(stop)
	<-done
}
