package supervisor

import (
	"context"
	"maps"
	"slices"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/supervisor/awake"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/insist"
	"github.com/drowse-dev/drowse/internal/trace"
)

// lastTransitions is how many entries of the log an explanation has.
const lastTransitions = 10

// Explain says what keeps a sandbox awake and what happens next. It looks
// inside a running one, which is no activity, and at the checkpoint of one that
// sleeps.
func (s *Supervisor) Explain(ctx context.Context, id string) (Explanation, error) {
	b, err := s.box(id)
	if err != nil {
		return Explanation{}, err
	}
	b.mu.Lock()
	inst := b.lookableLocked()
	b.mu.Unlock()
	if inst != nil {
		b.look(context.WithoutCancel(ctx), inst) // who asks and goes away says nothing of the sandbox
	}
	if sb := b.view(); !sb.Light { // which wakes without its image
		b.fault.Inspect(ctx, b.s.checkpoints, sb)
	}
	e := b.explain()
	e.Transitions, err = s.LastEvents(ctx, id, lastTransitions)
	return e, err
}

// lookers is how many sandboxes Outlooks looks inside at once.
const lookers = 8

// Outlooks explains sandboxes without their transitions; those that are not
// there are left out. It looks inside those with a clock that depends on that
// and into which nobody has looked lately, until ctx ends: of the others it
// tells what is known.
func (s *Supervisor) Outlooks(ctx context.Context, ids []string) map[string]Explanation {
	found := make(map[string]*box, len(ids))
	for _, id := range ids {
		if b, err := s.box(id); err == nil {
			found[id] = b
		}
	}
	insist.Each(lookers, maps.Values(found), func(b *box) {
		if inst := b.unseen(); inst != nil && ctx.Err() == nil {
			b.look(context.WithoutCancel(ctx), inst)
		}
	})
	outlooks := make(map[string]Explanation, len(found))
	for id, b := range found {
		outlooks[id] = b.explain()
	}
	return outlooks
}

// unseen returns the runtime to ask before the sandbox is called idle; nil if
// nothing depends on that or it was asked lately.
func (b *box) unseen() runtime.Instance {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.sb.Record.Settings.MeasuresWork() || b.work.Age(ids.Now()) < awake.PollInterval(b.sb.Record.Settings) {
		return nil
	}
	return b.lookableLocked()
}

func (b *box) explain() Explanation {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := ids.Now()
	act := b.activityLocked(t)
	e := Explanation{Sandbox: b.s.replicas.Describe(b.sb), Refusals: b.gate.Refusals()}
	e.Sandbox.Light = b.bed.Stays() != nil
	e.Sandbox.Record.EndAt = awake.SoftEnd(b.sb.Record, act, t)
	if e.LastActive = b.sb.ActiveAt; !e.Sandbox.Light {
		e.Fault = b.fault.Of(b.sb.Record)
	}
	if b.sb.Record.State == lifecycle.Running {
		e.Holds, e.Blindness = b.work.Holds(b.sb.Record, t), b.work.Blindness(b.sb.Record, t)
		e.LastActive, _ = b.lastActiveLocked(t)
	}
	e.Deadlines = b.sb.Record.Deadlines(act)
	slices.SortStableFunc(e.Deadlines, func(x, y lifecycle.Deadline) int { return x.At.Compare(y.At) })
	return e
}

// Traces returns what the time of the latest operations of a sandbox went into, oldest
// first: starts, wakes, pauses and snapshots since the server's start, also of one that
// has ended. It is no activity.
func (s *Supervisor) Traces(_ context.Context, id string) ([]trace.Operation, error) {
	b, err := s.box(id)
	if err != nil {
		return nil, err
	}
	return b.traces.All(), nil
}
