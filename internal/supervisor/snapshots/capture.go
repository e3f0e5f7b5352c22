package snapshots

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/space"
	"github.com/drowse-dev/drowse/internal/sweep"
)

// Capture is the copy of a running sandbox that is being made beside it.
type Capture struct {
	Op      string // names the memory image
	Sandbox store.Sandbox
	Inst    runtime.Instance
	// Thaw lets the runtime go on, however often it must be tried. It returns false
	// if there is no runtime any more.
	Thaw func() bool
	// Mode is what is kept. A memory image is taken for any: it makes the guest's
	// kernel write files back.
	Mode lifecycle.Mode

	layer string       // what the copy of the top is called
	packs *layer.Packs // what the image has of others
}

// Capture copies memory and files of a running sandbox, in one moment in which it
// is frozen, and returns the checkpoint that they are, durable, and how long that
// moment was. gVisor keeps the connections of the runtime that goes on, and ends
// them in those that are restored. After an error nothing of it is left.
func (s *Shelf) Capture(ctx context.Context, c *Capture) (cp lifecycle.Checkpoint, frozen time.Duration, err error) {
	cp = lifecycle.Checkpoint{ID: c.Op, Mode: lifecycle.Memory, AgentToken: s.o.AgentToken(c.Sandbox.ID)}
	cp.Stack, cp.Layers = c.Sandbox.Record.Lowers()
	c.layer = sweep.SnapshotLayerID(c.Sandbox.ID, NewID())
	staging, err := s.o.Layers.Stage(c.Op)
	if err != nil {
		return cp, 0, err
	}
	defer s.o.Insist(staging.Remove, "unfinished snapshot could not be removed", "sandbox", c.Sandbox.ID)
	defer func() {
		if err != nil {
			s.Discard(c)
		}
	}()
	m, err := s.o.Checkpoints.Manifest(ctx, c.Sandbox, cp, c.Inst)
	if err != nil {
		return cp, 0, err
	}
	top, frozen, err := s.copyFrozen(ctx, c, staging, &m)
	if err != nil {
		return cp, frozen, err
	}
	if err = s.complete(ctx, c, staging, top, m, &cp); err != nil || c.Mode != lifecycle.Filesystem {
		return cp, frozen, err
	}
	s.o.Insist(func() error { return s.o.Layers.RemoveImage(c.Op) }, "memory image could not be removed", "sandbox", c.Sandbox.ID, "image", c.Op)
	return cp.Files(), frozen, nil
}

// copyFrozen does what must be done while the guest stands still. The layer comes
// after the image: taking the image can make the guest's kernel write files back.
func (s *Shelf) copyFrozen(ctx context.Context, c *Capture, staging *layer.Staging, m *layer.Manifest) (top *layer.LayerWriter, frozen time.Duration, err error) {
	began := time.Now()
	defer func() {
		if !c.Thaw() {
			err = errors.Join(err, errors.New("the runtime is gone"))
		}
		frozen = time.Since(began)
		if err != nil && top != nil {
			top.Abort()
		}
	}()
	if err := c.Inst.Freeze(ctx); err != nil {
		return nil, 0, err
	}
	if c.packs, err = s.o.Checkpoints.Write(ctx, c.Inst, c.Op, c.Sandbox); err != nil {
		return nil, 0, err
	}
	m.HostFiles = s.o.Checkpoints.HostFiles(c.Inst, c.Sandbox)
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	top, err = staging.CopyTop(ctx, c.Inst.ID(), 0, func() error { return s.o.Space.Check(space.Least) })
	return top, 0, err
}

// complete makes what was copied durable, and gives it its place.
func (s *Shelf) complete(ctx context.Context, c *Capture, staging *layer.Staging, top *layer.LayerWriter, m layer.Manifest, cp *lifecycle.Checkpoint) error {
	if top != nil {
		defer top.Abort()
		files, err := top.Close(ctx)
		if err != nil {
			return err
		}
		cp.Bytes = files.Bytes
		if files.Changed {
			cp.Stack, cp.Layers[c.layer] = append(cp.Stack, c.layer), files.Digest
			if err := staging.Place([]string{c.layer}, ""); err != nil {
				return err
			}
		}
	}
	m.Stack = cp.Stack
	digest, written, err := s.o.Layers.Seal(m, c.packs)
	cp.Digest, cp.Bytes = digest, cp.Bytes+written
	return errors.Join(err, s.o.Space.Check(space.Wake), ctx.Err())
}

// Discard removes what a capture has made that was not committed.
func (s *Shelf) Discard(c *Capture) {
	s.o.Layers.AbandonImage(c.Op)
	s.o.Insist(func() error {
		err := s.RemoveImage(c.Op, "")
		if c.layer != "" {
			err = errors.Join(err, s.RemoveLayer(c.layer, ""))
		}
		return err
	}, "unfinished snapshot could not be removed", "sandbox", c.Sandbox.ID)
}

// Describe says of a snapshot what the event log says.
func Describe(snap store.Snapshot) string {
	if snap.Name == "" {
		return snap.ID
	}
	return fmt.Sprintf("%s (%s)", snap.ID, snap.Name)
}
