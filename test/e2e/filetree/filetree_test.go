package filetree_test

import (
	"testing"

	"github.com/drowse-dev/drowse/test/e2e/filetree"
)

// TestModelAgreesWithDirectory holds the model to a real directory.
func TestModelAgreesWithDirectory(t *testing.T) {
	steps := []filetree.Step{
		{Do: filetree.Mkdir, Path: "a", Mode: 0o755},
		{Do: filetree.Mkdir, Path: "a/sub", Mode: 0o700},
		{Do: filetree.Write, Path: "a/one", Mode: 0o640, Seed: 1, Size: 5000},
		{Do: filetree.Write, Path: "a/sub/two", Mode: 0o600, Seed: 2},
		{Do: filetree.Write, Path: "a-file", Mode: 0o600, Seed: 3, Size: 1},
		{Do: filetree.Link, Path: "b", To: "a/one"},
		{Do: filetree.Link, Path: "a/sub/c", To: "b"},
		{Do: filetree.Symlink, Path: "s", To: "a/one"},
		{Do: filetree.Append, Path: "b", Seed: 4, Size: 10},
		{Do: filetree.Chmod, Path: "a/sub", Mode: 0o711},
		{Do: filetree.Rename, Path: "a/sub", To: "moved"},
		{Do: filetree.Rename, Path: "moved/two", To: "a-file"},
		{Do: filetree.Write, Path: "b", Mode: 0o400, Seed: 5, Size: 20},
		{Do: filetree.Remove, Path: "a"},
	}
	dir, model := t.TempDir(), filetree.NewModel()
	for i, s := range steps {
		if err := filetree.Apply(dir, []filetree.Step{s}); err != nil {
			t.Fatal(err)
		}
		model.Apply([]filetree.Step{s})
		got, err := filetree.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range filetree.Diff(got, model.List()) {
			t.Errorf("after step %d: %s", i+1, line)
		}
		if got.Hash() != model.List().Hash() {
			t.Errorf("after step %d: the hashes differ", i+1)
		}
	}
}
