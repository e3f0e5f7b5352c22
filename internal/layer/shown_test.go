package layer

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/drowse-dev/drowse/internal/testmode"
)

// TestShownIsWhatAMergeLeaves makes random stacks, and counts before a merge what it
// leaves: all at once, and with the uppermost layer as the top of a running sandbox.
func TestShownIsWhatAMergeLeaves(t *testing.T) {
	for n := range 4 {
		h := newHistory(t, testmode.Seed()+uint64(n))
		for len(h.stack) < 4 {
			h.layer()
		}
		all, err := Shown(t.Context(), h.Store, h.stack, "")
		h.must(err)
		below, err := Shown(t.Context(), h.Store, h.stack[:3], h.stack[3])
		h.must(err)
		h.merge(0, 4, "merged")
		h.must(os.Remove(filepath.Join(h.LayerDir("merged"), listingName)))
		left, _, err := h.Usage(t.Context(), "merged", Unbounded)
		h.must(err)
		if all.Files != left.Files || all.NameBytes != left.NameBytes {
			t.Errorf("seed %d: shown %+v, a merge left %+v\n%v", n, all, left, h.done)
		}
		if below.Exceeds(all) {
			t.Errorf("seed %d: below the top %+v is shown, of %+v", n, below, all)
		}
	}
}

// TestShownBelowATop hides parts of a frozen layer in each way there is.
func TestShownBelowATop(t *testing.T) {
	const mib = 1 << 20
	h := newHistory(t, 1)
	h.frozen("below", func(at string) {
		for _, path := range []string{"removed", "replaced", "moved/a", "anew/b", "gone/c/d", "kept"} {
			h.write(filepath.Join(at, path), string(make([]byte, mib)))
		}
		h.write(filepath.Join(at, "cut"), string(make([]byte, mib)))
		h.write(filepath.Join(at, "name"), string(make([]byte, mib)))
		h.must(os.Link(filepath.Join(at, "name"), filepath.Join(at, "another")))
		h.write(filepath.Join(at, "sparse"), "")
		h.must(os.Truncate(filepath.Join(at, "sparse"), 1<<30))
	})
	h.frozen("top", func(at string) {
		h.must(os.Remove(filepath.Join(at, "removed")))
		h.write(filepath.Join(at, "replaced"), "new")
		h.must(os.Truncate(filepath.Join(at, "cut"), 10))
		h.must(os.Rename(filepath.Join(at, "moved"), filepath.Join(at, "to")))
		for _, dir := range []string{"anew", "gone"} {
			h.must(os.RemoveAll(filepath.Join(at, dir)))
		}
		h.must(os.Mkdir(filepath.Join(at, "anew"), 0o755))
	})
	u, err := Shown(t.Context(), h.Store, []string{"below"}, "top")
	h.must(err)
	if u.Bytes < 3*mib || u.Bytes >= 4*mib { // what was moved, what was kept, and the file with two names
		t.Errorf("%d bytes are shown, want 3 MiB and some blocks", u.Bytes)
	}
}
