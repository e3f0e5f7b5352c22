package supervisor

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
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
	if s.Shelf, err = snapshots.Open(ctx, shelfOptions(s)); err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(sb store.Sandbox) bool { return sb.Owner != s.o.Store.Self() })
	slices.SortStableFunc(list, func(a, b store.Sandbox) int { return a.Record.EndedAt().Compare(b.Record.EndedAt()) })
	for _, sb := range list {
		b := newBox(s, sb)
		register(s, b)
		s.replicas.Follow(lifecycle.Record{}, sb)
		s.Complete(sb)
		if err := b.recover(ctx); err != nil {
			return fmt.Errorf("sandbox %s: %w", sb.ID, err)
		}
	}
	// What the records say is to be released goes first; the rest is swept.
	s.work.Wait()
	s.RemoveLeft(ctx, list)
	return s.sweep(ctx)
}

// register makes a sandbox known that is in the store.
func register(s *Supervisor, b *box) {
	s.slots.Hold(b.sb)
	s.creates.Restore(b.sb, b)
	s.Note(b.sb)
	s.mu.Lock() // one before may be forgotten
	defer s.mu.Unlock()
	s.boxes[b.id] = b
}

// recover looks whether the runtime of the record's generation is alive, and
// lets the table decide what follows.
func (b *box) recover(ctx context.Context) error {
	rec := b.sb.Record
	if rec.State == lifecycle.Terminated && rec.Op == nil {
		bury(b)
		b.arm()
		return nil
	}
	if err := b.s.tenure.Wait(ctx); err != nil {
		return err
	}
	inst, err := b.s.launcher.Find(ctx, b.sb, b.gate)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if inst != nil && rec.State == lifecycle.Running {
		b.serveLocked(inst)
		b.work.Continue(b.sb)
	}
	if _, err := b.applyLocked(lifecycle.ServerStarted{Op: ids.NewOp(), Alive: inst != nil}); err != nil {
		return err
	}
	b.arm()
	return nil
}

// sweep removes runtimes, mounts, layers and images that no record owns. This server is the only
// one on its state directory, and nothing is in flight yet but what the records say.
func (s *Supervisor) sweep(ctx context.Context) error {
	sweeper := sweep.Sweeper{Runtimes: s.o.Driver, RunDir: s.o.RunDir, Layers: s.o.Layers, Templates: s.o.Templates, Volumes: s.o.Volumes, Builds: s.o.Builds}
	var records []store.Sandbox
	for _, b := range s.boxes {
		records = append(records, b.snapshot())
	}
	things, err := sweeper.Find(ctx, sweep.Records{Sandboxes: records, Volumes: s.Known(), Snapshots: s.AllSnapshots()})
	if err = cmp.Or(err, s.tenure.Check()); err != nil { // what was listed before is of before any successor
		return err
	}
	broom := sweep.Broom{Sweeper: sweeper, Insist: s.removals.Insist, BackupNeeds: s.putOff.Needs, Log: s.log}
	if young := broom.Sweep(ctx, things); len(young) > 0 {
		s.work.Go(func() { broom.Later(s.ctx, young) })
	}
	return nil
}
