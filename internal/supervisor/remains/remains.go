// Package remains removes what runtimes leave on the host: their processes, mounts,
// layers and memory images. Each goes after what uses it is gone, and each removal
// can be repeated.
package remains

import (
	"context"
	"errors"
	"path/filepath"
	goruntime "runtime"

	"github.com/drowse-dev/drowse/internal/failpoint"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/ration"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/sweep"
)

// Parts removes parts of checkpoints that nobody needs any more, but for a sandbox that
// has ended, if that is named.
type Parts interface {
	RemoveLayer(id, but string) error
	RemoveImage(id, but string) error
}

// most is how many sandboxes are removed at once: thousands can end together, and
// what waits for the disk holds a thread. One API key has as many as there are CPUs
// while there are others: an end takes about as much of them as a start. It is more
// than a start may have, so that one that does not come to its end is not all.
const most = 16

// Remover removes what sandboxes leave. It is safe for concurrent use.
type Remover struct {
	driver runtime.Driver
	layers *layer.Store
	runDir string
	parts  Parts
	turns  *ration.Fair
}

// New returns what removes the runtimes of a driver, which have their mount points
// in runDir.
func New(driver runtime.Driver, layers *layer.Store, runDir string, parts Parts) *Remover {
	return &Remover{driver: driver, layers: layers, runDir: runDir, parts: parts, turns: ration.NewFair(most, goruntime.NumCPU())}
}

// Runtime destroys a runtime and its mounts, and its layer unless keep.
func (r *Remover) Runtime(ctx context.Context, id string, keep bool) error {
	if err := failpoint.Fail(failpoint.Remove); err != nil {
		return err
	}
	if err := r.driver.Remove(ctx, id); err != nil {
		return err
	}
	if keep {
		return layer.Unmount(r.rootfs(id))
	}
	return r.files(id, "")
}

// files removes the mounts and the layer of a runtime that is gone. While the layer
// is there, it is known that there may be mounts.
func (r *Remover) files(id, but string) error {
	if err := layer.Unmount(r.rootfs(id)); err != nil {
		return err
	}
	return r.parts.RemoveLayer(id, but)
}

func (r *Remover) rootfs(id string) string { return filepath.Join(r.runDir, id) }

// Runtimes destroys what runtimes there are of a sandbox, and their mounts.
func (r *Remover) Runtimes(ctx context.Context, sandbox string) error {
	runtimes, err := r.driver.List(ctx)
	if err != nil {
		return err
	}
	if err := failpoint.Fail(failpoint.KillAll); err != nil {
		return err
	}
	var errs []error
	for _, id := range runtimes {
		if sweep.SandboxOf(id) == sandbox {
			errs = append(errs, r.Runtime(ctx, id, true))
		}
	}
	return errors.Join(errs...)
}

// All removes everything of a sandbox of an API key. more are layers that it may have
// and that its record does not know.
func (r *Remover) All(ctx context.Context, key, sandbox string, record func() lifecycle.Record, more func() []string) error {
	leave, err := r.turns.Enter(ctx, key)
	if err != nil {
		return err
	}
	defer leave()
	if err := r.Runtimes(ctx, sandbox); err != nil {
		return err // what still runs needs its files
	}
	rec := record()
	var errs []error
	for _, id := range append(possibleLayers(sandbox, rec), more()...) {
		if r.layers.LayerRemains(id) {
			errs = append(errs, r.files(id, sandbox))
		}
	}
	if cp := rec.Checkpoint; cp != nil && cp.Mode == lifecycle.Memory {
		errs = append(errs, r.parts.RemoveImage(cp.ID, sandbox))
	}
	return errors.Join(errs...)
}

// possibleLayers returns the ids of all layers that a sandbox may have. Listing
// those of all sandboxes would take longer the more there are.
func possibleLayers(sandbox string, rec lifecycle.Record) []string {
	var ids []string
	for n := range rec.Launches {
		ids = append(ids, sweep.RuntimeID(sandbox, n+1))
	}
	if rec.Checkpoint != nil {
		ids = append(ids, rec.Checkpoint.Stack...)
	}
	return ids
}
