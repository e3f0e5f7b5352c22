// Package moving takes sandboxes out of a server and in again: it reads a
// checkpoint for a bundle, and makes one of a bundle. What comes in is checked as
// strictly as what a create is given, and is nowhere until it is complete.
package moving

import (
	"context"
	"errors"
	"io"
	"io/fs"

	"github.com/drowse-dev/drowse/internal/bundle"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// Arrival is a sandbox that is being imported: first what its manifest says, then
// the checkpoint that is received.
type Arrival struct {
	Op, ID     string
	Config     store.Config
	Actor      string
	Manifest   bundle.Manifest
	Mode       lifecycle.Mode
	Stack      []string     // what its layers will be called
	System     layer.System // what its programs run from here
	Build      string       // of the runtime that reads its memory here
	Staging    *layer.Staging
	LatePages  int64                // bytes of pages that the bundle has passed over; 0 for none
	Checkpoint lifecycle.Checkpoint // complete once it is received

	ctx    context.Context // of Receive
	layer  *layer.LayerWriter
	number int // of layer
}

// Event is what the lifecycle is told when the sandbox has arrived.
func (a *Arrival) Event() lifecycle.ImportRequested {
	return lifecycle.ImportRequested{
		Meta:     lifecycle.Meta{Op: a.Op, Actor: a.Actor, Cause: lifecycle.CauseCall},
		Settings: a.Manifest.Settings, Checkpoint: a.Checkpoint,
		Generation: a.Manifest.Generation, Launches: int64(len(a.Stack)), CreatedAt: a.Manifest.CreatedAt,
	}
}

// Taken is what the lifecycle of a sandbox of another server is told when its checkpoint
// has arrived, which lives where it was offered.
func (a *Arrival) Taken(sb store.Sandbox, offered bool) lifecycle.TakenOver {
	return lifecycle.TakenOver{Op: a.Op, From: sb.Owner, Offered: offered, Checkpoint: a.Checkpoint, Launches: sb.Record.Launches + int64(len(a.Stack))}
}

// Place gives what was received its place among the layers and images. It is an
// errdef.Exists where what a snapshot or a fork still has of the sandbox is in the way.
func (a *Arrival) Place() error {
	image := ""
	if a.Mode == lifecycle.Memory {
		image = a.Checkpoint.ID
	}
	err := a.Staging.Place(a.Stack, image)
	if errors.Is(err, fs.ErrExist) {
		return errdef.New(errdef.Exists, "sandbox_exists", "snapshots or forks of sandbox %s are here, and have its layers; nothing was imported", a.ID).
			WithRemedy("import it with a new id").With("sandbox", a.ID)
	}
	return err
}

// Receive takes the contents of the bundle, makes sure that they are what the
// manifest says, and makes of them the checkpoint.
func (a *Arrival) Receive(ctx context.Context, from *bundle.Reader) error {
	a.ctx, a.number = ctx, -1
	a.Checkpoint = lifecycle.Checkpoint{ID: a.Op, Mode: a.Mode, Stack: a.Stack, Layers: map[string]string{}, Bytes: a.Manifest.Bytes()}
	defer func() {
		if a.layer != nil {
			a.layer.Abort()
		}
	}()
	if err := from.Extract(a); err != nil {
		return err
	}
	if err := a.closeLayer(); err != nil {
		return err
	}
	if a.Mode != lifecycle.Memory {
		return nil
	}
	if a.LatePages > 0 {
		if err := a.Staging.LatePages(a.LatePages); err != nil {
			return err
		}
	}
	a.Checkpoint.AgentToken = a.Manifest.AgentToken
	m := layer.Manifest{ID: a.Checkpoint.ID, Runtime: a.Manifest.Needs.Runtime, Build: a.Build, Stack: a.Stack, Files: a.Manifest.Image.Files, System: &a.System}
	var err error
	a.Checkpoint.Digest, err = a.Staging.SealImage(m)
	return err
}

// Layer implements bundle.Sink.
func (a *Arrival) Layer(n int, e layer.Entry, data io.Reader) error {
	if n != a.number {
		if err := a.closeLayer(); err != nil {
			return err
		}
		var err error
		if a.layer, err = a.Staging.NewLayer(n); err != nil {
			return err
		}
		a.number = n
	}
	return a.layer.Add(e, data)
}

// closeLayer completes the layer that is being made, if there is one.
func (a *Arrival) closeLayer() error {
	if a.layer == nil {
		return nil
	}
	frozen, err := a.layer.Close(a.ctx)
	if err != nil {
		return err
	}
	if err := a.checkLayer(frozen); err != nil {
		return err
	}
	a.Checkpoint.Layers[a.Stack[a.number]] = frozen.Digest
	a.layer = nil
	return nil
}

// checkLayer holds that a layer is the one that was exported, be it by a program
// that knew layers by another digest.
func (a *Arrival) checkLayer(frozen layer.Frozen) error {
	want := a.Manifest.Layers[a.number].Digest
	if frozen.Digest == want && want != "" {
		return nil
	}
	flat, err := a.layer.FlatDigest(a.ctx)
	if err != nil {
		return err
	}
	if flat != want {
		return layer.Damaged("layer %d is not the one that was exported", a.number)
	}
	return nil
}

// ImageFile implements bundle.Sink.
func (a *Arrival) ImageFile(name string, size int64, data io.Reader) error {
	if a.Mode != lifecycle.Memory {
		_, err := io.Copy(io.Discard, data)
		return err
	}
	return a.Staging.AddImageFile(name, size, data)
}
