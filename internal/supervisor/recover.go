package supervisor

import (
	"context"
	"fmt"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/snapshots"
	"github.com/drowse-dev/drowse/internal/sweep"
)

// recover finds every sandbox of the store again and brings it to a legal
// state, then removes what no record owns.
func (s *Supervisor) recover(ctx context.Context) error {
	list, err := s.o.Store.Sandboxes(ctx)
	if err != nil {
		return err
	}
	if s.Shelf, err = snapshots.Open(ctx, shelfOptions(s), list); err != nil {
		return err
	}
	for _, sb := range list {
		b := newBox(s, sb)
		s.boxes[sb.ID] = b
		s.slots.Hold(sb)
		s.creates.Restore(sb, b)
		if err := b.recover(ctx); err != nil {
			return fmt.Errorf("sandbox %s: %w", sb.ID, err)
		}
	}
	// What the records say is to be released goes first; the rest is swept.
	s.work.Wait()
	s.RemovePassing(ctx)
	return s.sweep(ctx)
}

// recover looks whether the runtime of the record's generation is alive, and
// lets the table decide what follows.
func (b *box) recover(ctx context.Context) error {
	rec := b.sb.Record
	if rec.State == lifecycle.Terminated && rec.Op == nil {
		b.arm()
		return nil
	}
	inst, err := b.find(ctx)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if inst != nil && rec.State == lifecycle.Running {
		b.serveLocked(inst)
		b.continueClocksLocked()
		b.watch(inst, rec.Generation)
	}
	if _, err := b.applyLocked(lifecycle.ServerStarted{Op: newOp(), Alive: inst != nil}); err != nil {
		return err
	}
	b.arm()
	return nil
}

// findTries is how often a runtime is looked for, findRetry apart. What is wrong
// may be the machine's, and pass; giving up costs the sandbox its memory.
const (
	findTries = 3
	findRetry = time.Second
)

// find returns the runtime that the record tells of, nil if it is gone.
func (b *box) find(ctx context.Context) (runtime.Instance, error) {
	for n := range findTries {
		inst, err := b.adopt(ctx)
		if err == nil || errdef.Is(err, errdef.NotFound) {
			return inst, nil
		}
		if b.sb.Record.State != lifecycle.Running {
			// It was being made or removed; the sweep takes the rest of it away.
			b.s.log.Debug("runtime could not be adopted", "sandbox", b.id, "err", err)
			return nil, nil
		}
		b.s.log.Error("runtime could not be adopted", "sandbox", b.id, "try", n+1, "err", err)
		select {
		case <-time.After(findRetry):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	// One that cannot be found again is lost; the others are not.
	return nil, nil
}

func (b *box) adopt(ctx context.Context) (runtime.Instance, error) {
	rec := b.sb.Record
	if rec.Launch == 0 {
		return nil, nil
	}
	inst, err := b.s.o.Driver.Adopt(ctx, runtimeID(b.id, rec.Launch))
	if err != nil {
		return nil, err
	}
	if rec.State == lifecycle.Running {
		b.openNetwork(inst)
		// It may have been frozen for a pause that did not commit.
		if err := inst.Thaw(ctx); err != nil {
			return nil, err
		}
	}
	return inst, nil
}

// sweep removes runtimes, mounts, layers and images that no record owns. This
// server is the only one on its state directory, and nothing is in flight yet
// but what the records say.
func (s *Supervisor) sweep(ctx context.Context) error {
	sweeper := sweep.Sweeper{Runtimes: s.o.Driver, RunDir: s.o.RunDir, Layers: s.o.Layers, Templates: s.o.Templates, Volumes: s.o.Volumes, Builds: s.o.Builds}
	var records []store.Sandbox
	for _, b := range s.boxes {
		records = append(records, b.snapshot())
	}
	things, err := sweeper.Find(ctx, sweep.Records{Sandboxes: records, Volumes: s.Known(), Snapshots: s.AllSnapshots()})
	if err != nil {
		return err
	}
	var young []sweep.Thing
	for _, t := range things {
		if t.Kept != "" {
			s.log.Warn("nobody owns it, and it is kept", "kind", t.Kind, "id", t.ID, "why", t.Kept)
			continue
		}
		if t.Due().After(now()) {
			young = append(young, t)
			continue
		}
		s.remove(ctx, sweeper, t)
	}
	if len(young) > 0 {
		s.work.Go(func() { s.sweepLater(sweeper, young) })
	}
	return nil
}

func (s *Supervisor) remove(ctx context.Context, sweeper sweep.Sweeper, t sweep.Thing) {
	s.log.Info("removing what nobody owns", "kind", t.Kind, "id", t.ID, "why", t.Why)
	s.insist(func() error { return sweeper.Remove(context.WithoutCancel(ctx), t) },
		"what nobody owns could not be removed", "kind", t.Kind, "id", t.ID)
}

// sweepLater removes what no record knew at the start. Ids are never used again,
// so none can know it now.
func (s *Supervisor) sweepLater(sweeper sweep.Sweeper, things []sweep.Thing) {
	select {
	case <-time.After(sweep.Grace):
	case <-s.ctx.Done():
		return // the next server finds it again
	}
	for _, t := range things {
		s.remove(s.ctx, sweeper, t)
	}
}
