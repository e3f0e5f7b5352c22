package supervisor

import (
	"context"
	"sync"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/supervisor/calls"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/moving"
	"github.com/drowse-dev/drowse/internal/supervisor/outcome"
	"github.com/drowse-dev/drowse/internal/supervisor/snapshots"
)

// Export is the right to read a paused sandbox as one stream.
type Export = moving.Export

// Export returns what reads a paused sandbox, after its checkpoint was verified
// in full. An operation in flight is waited for; a sandbox that runs is an
// errdef.WrongState with code "not_paused". It wakes nothing, and the sandbox may
// wake meanwhile.
func (s *Supervisor) Export(ctx context.Context, id string) (*Export, error) {
	return export(ctx, s, id, lifecycle.Paused)
}

// exportCopy is Export for the copy of a sandbox that has a checkpoint, or of a snapshot.
func exportCopy(ctx context.Context, s *Supervisor, id string) (*Export, error) {
	if snapshots.IsID(id) {
		return snapshots.Export(ctx, s.Shelf, s.ctx, s.carrier, id)
	}
	return export(ctx, s, id, lifecycle.Running)
}

// export is Export of a sandbox that is paused, or in another state and has a checkpoint.
func export(ctx context.Context, s *Supervisor, id string, or lifecycle.State) (*Export, error) {
	b, err := s.box(id)
	if err != nil {
		return nil, err
	}
	for {
		right, ended, err := b.beginExport(or)
		if err != nil {
			return nil, err
		}
		if ended != nil {
			if _, err := calls.Wait(ctx, ended); err != nil {
				return nil, err
			}
			continue
		}
		return s.carrier.Export(ctx, right)
	}
}

// beginExport takes the right to read the checkpoint, or returns what tells the
// end of the operation in flight.
func (b *box) beginExport(or lifecycle.State) (moving.Right, <-chan calls.Ending, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	rec := b.sb.Record
	switch {
	case outcome.Alive(&b.sb) != nil:
		return moving.Right{}, nil, outcome.Alive(&b.sb)
	case rec.Op != nil:
		return moving.Right{}, b.awaitLocked(), nil
	case rec.State != lifecycle.Paused && (rec.State != or || rec.Checkpoint == nil):
		return moving.Right{}, nil, errdef.New(errdef.WrongState, "not_paused", "the sandbox is %s; only a paused one can be exported", rec.State).
			WithRemedy("pause it first")
	}
	ctx, done := b.tasks.Begin(b.s.ctx, "export-"+ids.NewOp())
	cp := rec.Checkpoint
	read := b.s.Read(*cp)
	var once sync.Once
	release := func() {
		once.Do(func() {
			read()
			done()
			b.background(func(context.Context) { b.dropCheckpoint(cp) }) // it may have slept anew since
		})
	}
	return moving.Right{Context: ctx, Sandbox: b.sb, Release: release}, nil, nil
}
