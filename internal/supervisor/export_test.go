package supervisor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/drowse-dev/drowse/internal/store"
)

// OpenForContract returns a supervisor in a world of its own, for tests that see no
// more of it than its callers do, and in which sandboxes sleep lightly first or not. Its template has the name "base".
func OpenForContract(t *testing.T, light bool) *Supervisor {
	w := newWorld(t)
	w.light = light
	if err := os.Symlink("test", filepath.Join(w.dir, "templates", "base")); err != nil {
		t.Fatal(err)
	}
	w.tune = func(o *Options) { o.Limits = store.Limits{CPUs: 2, MemoryMiB: 512, DiskMiB: 1024, PIDs: 512} }
	srv := w.mustOpen(t)
	t.Cleanup(func() {
		w.end(t, srv)
	})
	return srv.s
}
