package sweep

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/template"
	"github.com/drowse-dev/drowse/internal/tree"
	"github.com/drowse-dev/drowse/internal/tree/treetest"
	"github.com/drowse-dev/drowse/internal/volume"
)

// TestHostileTreesGo finds and removes trees that are deeper than there are
// descriptors, and that no path leads through, in every place where something of a
// sandbox or of an image can be.
func TestHostileTreesGo(t *testing.T) {
	dir := t.TempDir()
	s := Sweeper{
		Runtimes: runtimes{filepath.Join(dir, "bundles")}, RunDir: filepath.Join(dir, "rootfs"),
		Layers: layer.At(dir), Templates: template.At(filepath.Join(dir, "templates")), Volumes: volume.At(filepath.Join(dir, "volumes"), 0),
	}
	if err := os.Mkdir(filepath.Join(dir, "bundles"), 0o700); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(dir, "outside")
	var want []string
	for _, place := range []string{
		"layers/" + RuntimeID(strings.Repeat("a", 20), 1),
		"layers/x.deleted",
		"imports/op",
		"images/x.deleted",
		"templates/.base-1",
		"templates/.img-1",
		"templates/oci/staging/new-1",
		"templates/oci/layers/" + strings.Repeat("0", 64),
		"volumes/volgone.deleted",
		"outside",
	} {
		path := filepath.Join(dir, place)
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
		treetest.Make(t, path, treetest.Shape{Deep: 500, Long: 18, Links: 10, Wide: 10})
		if path != outside {
			want = append(want, path)
			if err := os.Symlink(outside, filepath.Join(path, "link")); err != nil {
				t.Fatal(err)
			}
		}
	}
	kept := tree.DiskUsage(t.Context(), outside)

	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 200, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	})
	found, err := s.Find(t.Context(), Records{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range found {
		got = append(got, f.Path)
		if err := s.Remove(t.Context(), f); err != nil {
			t.Errorf("remove %s: %.300v", f.Path, err)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, path := range want {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
	if left := tree.DiskUsage(t.Context(), outside); left != kept {
		t.Errorf("%d bytes are left of %d that a link leads to", left, kept)
	}
}
