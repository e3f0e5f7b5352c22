package launch

import (
	"context"
	"time"

	"github.com/drowse-dev/drowse/internal/egress"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/sweep"
)

// FindTries is how often a runtime is looked for, findRetry apart. What is wrong
// may be the machine's, and pass; giving up costs the sandbox its memory.
const (
	FindTries = 3
	findRetry = time.Second
)

// Find returns the runtime that the record of a sandbox tells of, nil if it is
// gone. One of a sandbox that runs serves then.
func (l *Launcher) Find(ctx context.Context, sb store.Sandbox, gate *egress.Gate) (runtime.Instance, error) {
	for n := range FindTries {
		inst, err := l.adopt(ctx, sb, gate)
		if err == nil || errdef.Is(err, errdef.NotFound) {
			return inst, nil
		}
		if sb.Record.State != lifecycle.Running {
			// It was being made or removed; the sweep takes the rest of it away.
			l.o.Log.Debug("runtime could not be adopted", "sandbox", sb.ID, "err", err)
			return nil, nil
		}
		l.o.Log.Error("runtime could not be adopted", "sandbox", sb.ID, "try", n+1, "err", err)
		select {
		case <-time.After(findRetry):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	// One that cannot be found again is lost; the others are not.
	return nil, nil
}

func (l *Launcher) adopt(ctx context.Context, sb store.Sandbox, gate *egress.Gate) (runtime.Instance, error) {
	if sb.Record.Launch == 0 {
		return nil, nil
	}
	inst, err := l.o.Driver.Adopt(ctx, sweep.RuntimeID(sb.ID, sb.Record.Launch))
	if err != nil {
		return nil, err
	}
	if sb.Record.State == lifecycle.Running {
		l.OpenNetwork(inst, sb.ID, gate)
		// It may have been frozen for a pause that did not commit.
		if err := inst.Thaw(ctx); err != nil {
			return nil, err
		}
	}
	return inst, nil
}

// OpenNetwork tells a runtime which addresses its gate is open for now. Where that
// fails the gate still judges every connection.
func (l *Launcher) OpenNetwork(inst runtime.Instance, sandbox string, gate *egress.Gate) {
	n, ok := inst.(runtime.Networked)
	if !ok {
		return
	}
	if err := n.SetNetwork(gate); err != nil {
		l.o.Log.Error("network could not be opened", "sandbox", sandbox, "runtime", inst.ID(), "err", err)
	}
}
