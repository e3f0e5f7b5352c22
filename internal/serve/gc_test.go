package serve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/sweep"
	"github.com/drowse-dev/drowse/internal/tree"
	"github.com/drowse-dev/drowse/internal/tree/treetest"
)

// TestGCOfHostileTree collects what a hostile sandbox has left: it is counted below
// any path, each file once, and all of it goes.
func TestGCOfHostileTree(t *testing.T) {
	dir := t.TempDir()
	st, err := store.Open(t.Context(), databaseIn(dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	orphan := filepath.Join(dir, "layers", sweep.RuntimeID(strings.Repeat("a", 20), 1))
	if err := os.MkdirAll(orphan, 0o700); err != nil {
		t.Fatal(err)
	}
	treetest.Make(t, orphan, treetest.Hostile)
	const size, names = 64 << 20, 20
	bottom := treetest.Hostile.Bottom(t, orphan)
	at := func(name string) string { return tree.ProcPath(int(bottom.Fd()), name) }
	f, err := os.Create(at("much"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
		t.Fatal(err)
	}
	for i := range names {
		if err := os.Link(at("much"), at(fmt.Sprint("much", i))); err != nil {
			t.Fatal(err)
		}
	}
	before := time.Now().Add(-2 * sweep.Grace) // no record knows it
	if err := os.Chtimes(orphan, before, before); err != nil {
		t.Fatal(err)
	}

	for _, dry := range []bool{true, false} {
		var out bytes.Buffer
		if ok, err := GC(t.Context(), &out, UpkeepOptions{StateDir: dir, JSON: true, DryRun: dry}); err != nil || !ok {
			t.Fatalf("dry %v: %v, %.500v: %.500s", dry, ok, err, out.String())
		}
		var answer struct {
			Items []struct {
				Path    string
				Bytes   int64
				Removed bool
			}
		}
		if err := json.Unmarshal(out.Bytes(), &answer); err != nil || len(answer.Items) != 1 {
			t.Fatalf("dry %v: %v: %.500s", dry, err, out.String())
		}
		got := answer.Items[0]
		if got.Path != orphan || got.Removed == dry || got.Bytes < size || got.Bytes > 2*size {
			t.Errorf("dry %v: %+v, want about %d bytes of %s", dry, got, size, orphan)
		}
		if _, err := os.Lstat(orphan); (err == nil) != dry {
			t.Errorf("dry %v: afterwards %v", dry, err)
		}
	}
}
