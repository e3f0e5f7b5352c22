package tree_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/tree"
	"github.com/drowse-dev/drowse/internal/tree/treetest"
)

// TestWalkIsInOrder compares a walk with the standard library's, which goes by
// paths.
func TestWalkIsInOrder(t *testing.T) {
	dir := t.TempDir()
	treetest.Make(t, dir, treetest.Shape{Deep: 200, Long: 3, Links: 20, Wide: 50})
	var want, got []string
	if err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, path)
		want = append(want, rel)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := tree.Walk(t.Context(), dir, func(e *tree.Entry) error {
		path := e.Path().String()
		if n := e.Path().Length(); n != len(path) {
			t.Errorf("%q has length %d", path, n)
		}
		got = append(got, path)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %d paths, want %d: %.500q, want %.500q", len(got), len(want), got, want)
	}
}

// TestHostileTreeWithFewDescriptors walks and removes a tree that is deeper than
// there are descriptors, and that no path leads through.
func TestHostileTreeWithFewDescriptors(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	treetest.Make(t, dir, treetest.Hostile)
	deepest, count := 0, 0
	if err := tree.Walk(t.Context(), dir, func(e *tree.Entry) error {
		deepest = max(deepest, e.Depth)
		if count++; count%500 == 0 {
			if open, err := os.ReadDir("/proc/self/fd"); err != nil || len(open) > 60 {
				return fmt.Errorf("%d descriptors are open, %w", len(open), err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	h := treetest.Hostile
	if least := h.Deep + h.Long + h.Links + h.Wide; deepest != h.Deep+2 || count < least {
		t.Errorf("%d entries, the deepest at %d; want %d at least, and %d", count, deepest, least, h.Deep+2)
	}
	if err := tree.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if err := tree.Remove(dir); err != nil {
		t.Errorf("again: %v", err)
	}
}

// TestStandardRemovalNeedsDescriptors: os.RemoveAll removes a tree of any depth, but
// keeps each directory above the one at hand open. A tree that is deeper than there are
// descriptors takes them all from the process, and stays: hence Remove.
func TestStandardRemovalNeedsDescriptors(t *testing.T) {
	few(t, 100)
	for _, c := range []struct {
		deep int
		want error
	}{{50, nil}, {200, unix.EMFILE}} {
		dir := filepath.Join(t.TempDir(), "tree")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		treetest.Make(t, dir, treetest.Shape{Deep: c.deep, Long: 18}) // with paths that are too long
		if err := os.RemoveAll(dir); !errors.Is(err, c.want) {
			t.Errorf("os.RemoveAll of %d directories: %.300s, want %v", c.deep, fmt.Sprint(err), c.want)
		}
		if err := tree.Remove(dir); err != nil {
			t.Errorf("of %d directories: %.300v", c.deep, err)
		}
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("of %d directories some are still there: %v", c.deep, err)
		}
	}
}

// few leaves the process few descriptors while a test runs.
func few(t *testing.T, n uint64) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	})
}

// TestDiskUsage counts what is too deep for paths, a file of many names once, and
// nothing for what a link leads to.
func TestDiskUsage(t *testing.T) {
	dir := t.TempDir()
	treetest.Make(t, dir, treetest.Hostile)
	const size = 1 << 20
	bottom := treetest.Hostile.Bottom(t, dir)
	at := func(name string) string { return tree.ProcPath(int(bottom.Fd()), name) }
	before := tree.DiskUsage(t.Context(), dir)
	if err := os.WriteFile(at("much"), make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if err := os.Link(at("much"), at(fmt.Sprint("much", i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(dir, at("link")); err != nil {
		t.Fatal(err)
	}
	if grown := tree.DiskUsage(t.Context(), dir) - before; grown < size || grown > size+size/2 {
		t.Errorf("a file of 1 MiB with 11 names at the bottom takes %d bytes", grown)
	}
	if n := tree.DiskUsage(t.Context(), at("much")); n < size || n > size+size/2 {
		t.Errorf("a file of 1 MiB takes %d bytes", n)
	}
	if n := tree.DiskUsage(t.Context(), at("link")); n > size/2 {
		t.Errorf("a link takes %d bytes", n)
	}
	if n := tree.DiskUsage(t.Context(), at("nothing")); n != 0 {
		t.Errorf("nothing takes %d bytes", n)
	}
}

// TestRemoveFollowsNothing removes links, not what they lead to.
func TestRemoveFollowsNothing(t *testing.T) {
	dir := t.TempDir()
	outside, link := filepath.Join(dir, "outside"), filepath.Join(dir, "link")
	for _, err := range []error{os.Mkdir(outside, 0o700), os.WriteFile(filepath.Join(outside, "kept"), nil, 0o600), os.Mkdir(filepath.Join(dir, "tree"), 0o700),
		os.Symlink(outside, link), os.Symlink(outside, filepath.Join(dir, "tree", "link"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"link", "tree"} {
		if err := tree.Remove(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(outside, "kept")); err != nil {
		t.Error(err)
	}
}

// TestLiveWalkStaysInside moves directories from above a walk: it must notice, and
// neither go on elsewhere nor miss it.
func TestLiveWalkStaysInside(t *testing.T) {
	dir := t.TempDir()
	inside := filepath.Join(dir, "inside")
	deep := filepath.Join(inside, "a", strings.Repeat("d/", 100))
	for _, err := range []error{os.MkdirAll(deep, 0o700), os.Mkdir(filepath.Join(dir, "outside"), 0o700), os.WriteFile(filepath.Join(dir, "outside", "secret"), nil, 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	moved := false
	err := tree.WalkLive(t.Context(), inside, func(e *tree.Entry) error {
		if strings.Contains(e.Name, "secret") {
			t.Error("the walk left its tree")
		}
		if e.Depth == 99 && !moved {
			moved = true
			return os.Rename(filepath.Join(inside, "a", strings.Repeat("d/", 50)), filepath.Join(dir, "outside", "z"))
		}
		return nil
	})
	if !moved || !errors.Is(err, tree.ErrMoved) {
		t.Errorf("moved %v: %v, want it noticed", moved, err)
	}
}

// TestNamesInPasses reads a directory whose names do not fit into memory at once.
func TestNamesInPasses(t *testing.T) {
	dir := t.TempDir()
	var want []string
	for n := range 3000 {
		name := fmt.Sprintf("%05d", n*7919%3000)
		want = append(want, name)
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(want)
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var got []string
	passes, more := 0, true
	for last := ""; more; passes++ {
		var names []string
		if names, more, err = tree.NamesWithin(last, 10_000, d, d); err != nil {
			t.Fatal(err)
		}
		if len(names) > 2000 {
			t.Errorf("%d names at once", len(names))
		}
		if len(names) > 0 {
			last = names[len(names)-1]
		}
		got = append(got, names...)
	}
	if !slices.Equal(got, want) || passes < 3 {
		t.Errorf("%d names in %d passes, want %d", len(got), passes, len(want))
	}
}

// TestOpenBelow follows neither links nor "..", on paths of any length.
func TestOpenBelow(t *testing.T) {
	dir := t.TempDir()
	treetest.Make(t, dir, treetest.Shape{Long: 40, Links: 1})
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	long := "long/" + strings.Repeat(strings.Repeat("n", 250)+"/", 40)
	f, err := tree.OpenBelow(d, long+"linked", unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if text, err := io.ReadAll(f); err != nil || string(text) != "one file" {
		t.Errorf("%q, %v", text, err)
	}
	for _, path := range []string{"special/out", "../" + filepath.Base(dir), "long/../../x", "special/loop/x", long + "none", "/etc/passwd", strings.Repeat("x", 5000)} {
		if f, err := tree.OpenBelow(d, path, unix.O_RDONLY); err == nil {
			t.Errorf("%.50q was opened", path)
			_ = f.Close()
		}
	}
}

// TestWalkEndsWithItsContext.
func TestWalkEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	dir := t.TempDir()
	treetest.Make(t, dir, treetest.Shape{Wide: 10})
	err := tree.Walk(ctx, dir, func(e *tree.Entry) error {
		if e.Depth == 2 {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
