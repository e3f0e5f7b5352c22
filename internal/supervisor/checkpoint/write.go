package checkpoint

import (
	"context"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
)

// Write makes the memory image id of a frozen runtime, which Seal then makes durable.
// Where that is wanted and possible, the image has only those pages for itself that
// differ from the image of the sandbox's checkpoint; packs then says what else it has.
//
// A sandbox with a last hook has whole images: a kill during a capture of changes can
// lose the runtime, and the hook with it.
func (x Reader) Write(ctx context.Context, inst runtime.Instance, id string, sb store.Sandbox) (packs *layer.Packs, err error) {
	changes, ok := inst.(runtime.ChangeCapturer)
	if !ok || sb.Config.Hooks.PreKill.Command != "" || !changes.CapturesChanges() || !x.large(inst) {
		dir, err := x.Layers.NewImage(id)
		if err != nil {
			return nil, err
		}
		return nil, inst.Checkpoint(ctx, dir)
	}
	base, digest := "", ""
	previous := sb.Record.Checkpoint
	if previous != nil && previous.Mode == lifecycle.Memory {
		base, digest = previous.ID, previous.Digest
	}
	dir, packs, err := x.Layers.NewImageOver(id, base, digest)
	if err != nil {
		return nil, err
	}
	return packs, changes.CheckpointChanges(ctx, dir, runtime.Changes{Pack: packs.Own, Base: packs.Base, Keep: packs.Keep})
}

// large reports whether a runtime uses so much memory that its capture is to leave out
// what has not changed.
func (x Reader) large(inst runtime.Instance) bool {
	meter, ok := inst.(runtime.UsageMeter)
	if x.Deltas <= 0 || !ok {
		return false
	}
	used, err := meter.Usage()
	if err != nil {
		x.Log.Warn("memory could not be measured: its whole image is written", "runtime", inst.ID(), "err", err)
	}
	return err == nil && used.Memory >= x.Deltas
}
