package serve

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/drowse-dev/drowse/internal/backup"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/volume"
)

// TestBackupNeeds: what a database needs must be in a backup of it, and nothing of what is
// being killed, what is missing to begin with is named, and what vanishes meanwhile is
// found.
func TestBackupNeeds(t *testing.T) {
	cp := lifecycle.Checkpoint{ID: "image", Mode: lifecycle.Memory, Stack: []string{"below", "top"}}
	killed := lifecycle.Checkpoint{ID: "killed", Mode: lifecycle.Memory, Stack: []string{"killed"}}
	records := store.Inspection{
		Sandboxes: []store.Sandbox{
			{ID: "one", Config: store.Config{Template: "base"}, Record: lifecycle.Record{State: lifecycle.Paused, Checkpoint: &cp}},
			{ID: "two", Config: store.Config{Template: "gone"}, Record: lifecycle.Record{State: lifecycle.Running}},
			{ID: "three", Config: store.Config{Template: "killed"}, Record: lifecycle.Record{State: lifecycle.Terminated, Op: &lifecycle.Operation{ID: "op"}, Checkpoint: &killed}},
		},
		Volumes: []store.Volume{{ID: "vol1"}, {ID: "vol2"}},
	}
	for name, c := range map[string]struct {
		meanwhile func(dir string) error
		whole     bool
	}{
		"nothing happens":           {func(string) error { return nil }, true},
		"a volume is deleted":       {func(dir string) error { return os.Rename(dir+"/volumes/vol2", dir+"/volumes/vol2"+volume.Discarded) }, true},
		"a volume is removed":       {func(dir string) error { return os.RemoveAll(dir + "/volumes/vol2") }, false},
		"an image is being removed": {func(dir string) error { return os.Rename(dir+"/images/image", dir+"/images/image.deleted") }, false},
		"a layer is removed":        {func(dir string) error { return os.RemoveAll(dir + "/layers/below") }, false},
		"a template is removed":     {func(dir string) error { return os.RemoveAll(dir + "/templates/base") }, false},
	} {
		dir := t.TempDir()
		for _, path := range []string{"images/image", "images/other", "layers/below/.work", "layers/top/root", "layers/running/root", "images/killed", "layers/killed/root", "templates/base", "volumes/vol1", "volumes/vol2", "volumes/.writing", "run/x", ".trial/x"} {
			if err := os.MkdirAll(filepath.Join(dir, path), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		need := neededBy(dir, records)
		if want := []string{"templates/gone"}; !slices.Equal(need.missing, want) {
			t.Errorf("missing are %q, want %q", need.missing, want)
		}
		if err := need.complete(); err == nil {
			t.Errorf("%s: nothing was copied, and it is whole", name)
		}
		to := filepath.Join(t.TempDir(), "backup")
		_, err := backup.Create(t.Context(), backup.Source{Dir: dir, Skip: need.leavesOut, Apart: "volumes"}, to, func() error {
			return errors.Join(c.meanwhile(dir), need.complete())
		})
		if (err == nil) != c.whole || err != nil && !errdef.Is(err, errdef.Internal) {
			t.Errorf("%s: %v", name, err)
		}
		var got []string
		for _, in := range []string{"", "images", "layers", "layers/below", "volumes"} {
			entries, err := os.ReadDir(filepath.Join(to, "state", in))
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				got = append(got, filepath.Join(in, e.Name()))
			}
		}
		if want := []string{"images", "layers", "templates", "volumes", "images/image", "layers/below", "layers/top", "volumes/vol1", "volumes/vol2"}; !slices.Equal(got, want) {
			t.Errorf("%s: the backup has %q, want %q", name, got, want)
		}
	}
}

// TestBackupInside: no backup is made inside the directory that is backed up, by
// whatever name.
func TestBackupInside(t *testing.T) {
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	if err := errors.Join(os.MkdirAll(filepath.Join(state, "a"), 0o700), os.Symlink(state, filepath.Join(dir, "link")), os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{"state": true, "state/x/y": true, "state/a": true, "link": true, "link/x": true, "link/a/b": true, "other": false, "other/state": false, "state2": false, "file": false, "/": false} {
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		if got, err := isInside(path, state); got != want || err != nil {
			t.Errorf("%s: %v, %v; want %v", path, got, err, want)
		}
	}
}
