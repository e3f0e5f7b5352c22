package sweep

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/runtime/builds"
)

// TestBroomWaitsForBackups: what a backup may need stays until it has ended, and what can
// come into use again until the next start.
func TestBroomWaitsForBackups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		there := func(path string) bool {
			_, err := os.Lstat(filepath.Join(dir, path))
			return !errors.Is(err, fs.ErrNotExist)
		}
		for _, path := range []string{"layers/a", "builds/b"} {
			if err := os.MkdirAll(filepath.Join(dir, path), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		var made atomic.Bool
		made.Store(true)
		b := Broom{
			Sweeper:     Sweeper{Layers: layer.At(dir), Builds: builds.At(filepath.Join(dir, "builds"))},
			Insist:      func(remove func() error, _ string, _ ...any) { _ = remove() },
			BackupNeeds: func(string) bool { return made.Load() },
			Log:         slog.New(slog.DiscardHandler),
		}
		young := b.Sweep(t.Context(), []Thing{{Kind: Layer, ID: "a", Path: filepath.Join(dir, "layers/a")}, {Kind: Build, ID: "b", Path: filepath.Join(dir, "builds/b")}})
		if len(young) != 1 || young[0].Kind != Layer {
			t.Fatalf("to be removed later: %v", young)
		}
		done := make(chan struct{})
		go func() { defer close(done); b.Later(t.Context(), young) }()
		time.Sleep(10 * Grace)
		synctest.Wait()
		if !there("layers/a") || !there("builds/b") {
			t.Error("it is removed while a backup is made")
		}
		made.Store(false)
		<-done
		if there("layers/a") || !there("builds/b") {
			t.Error("after the backup the layer is not removed, or the build is")
		}
	})
}
