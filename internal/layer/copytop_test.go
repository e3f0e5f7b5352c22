package layer

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCopyTop copies a top with everything that can be in one. The copy is what
// the top was then, also after the top has changed and while the copy is not
// durable yet; and the same as if the top had been frozen.
func TestCopyTop(t *testing.T) {
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	variety(t, s, "top")
	for name, kind := range map[string]uint32{"pipe": unix.S_IFIFO, "socket": unix.S_IFSOCK} { // no export has these
		if err := unix.Mknod(filepath.Join(s.LayerDir("top"), "root", name), kind|0o640, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(s.LayerDir("top"), workDir, "root", "work"), 0o700); err != nil {
		t.Fatal(err)
	}
	st, err := s.Stage("op")
	if err != nil {
		t.Fatal(err)
	}
	w, err := st.CopyTop(t.Context(), "top", 0, plenty)
	if err != nil {
		t.Fatal(err)
	}
	frozen, err := s.Freeze(t.Context(), "top")
	if err != nil {
		t.Fatal(err)
	}
	before := seen(t, s.LayerDir("top"))
	if err := os.WriteFile(filepath.Join(s.LayerDir("top"), "root", "later"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := w.Close(t.Context())
	if err != nil || got.Digest != frozen.Digest || got.Bytes != frozen.Bytes {
		t.Fatalf("the copy is %+v, %v; want %+v", got, err, frozen)
	}
	if err := st.Place([]string{"copy"}, ""); err != nil {
		t.Fatal(err)
	}
	if err := st.Remove(); err != nil {
		t.Fatal(err)
	}
	if err := s.VerifyLayer(t.Context(), "copy", frozen.Digest); err != nil {
		t.Error(err)
	}
	if after := seen(t, s.LayerDir("copy")); !slices.Equal(before, after) {
		t.Errorf("the copy differs:\n%q\nfrom\n%q", after, before)
	}
}

func plenty() error { return nil }

// TestCopyTopStopsForWantOfSpace in the middle of a file: what a guest has written
// may be more than there is space for, and others need some as well.
func TestCopyTopStopsForWantOfSpace(t *testing.T) {
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(s.LayerDir("top"), "root")
	if err := errors.Join(os.MkdirAll(root, 0o700), os.WriteFile(filepath.Join(root, "large"), make([]byte, 5*copyStep), 0o600)); err != nil {
		t.Fatal(err)
	}
	st, err := s.Stage("op")
	if err != nil {
		t.Fatal(err)
	}
	full, asked := errors.New("full"), 0
	room := func() error {
		// Once for the root and for each file, and once for each step.
		if asked++; asked > 4 {
			return full
		}
		return nil
	}
	if w, err := st.CopyTop(t.Context(), "top", 0, room); w != nil || !errors.Is(err, full) {
		t.Errorf("%v, %v; want that it is full", w, err)
	}
	if err := st.Remove(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(s.imports); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// TestCopyTopOfNothing: a template without trees has no top.
func TestCopyTopOfNothing(t *testing.T) {
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	st, err := s.Stage("op")
	if err != nil {
		t.Fatal(err)
	}
	if w, err := st.CopyTop(t.Context(), "none", 0, plenty); w != nil || err != nil {
		t.Errorf("%v, %v", w, err)
	}
}
