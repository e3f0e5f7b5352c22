package supervisor

import (
	"context"
	"math"

	"github.com/drowse-dev/drowse/internal/agent/agentapi"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/supervisor/journal"
	"github.com/drowse-dev/drowse/internal/supervisor/outcome"
)

// maxLogEvents is how many entries of the event log are shown as lines.
const maxLogEvents = 1000

func (s *Supervisor) logs() journal.Dir { return journal.Dir(s.o.LogDir) }

// SandboxLog returns the log of a sandbox that has not ended, oldest first: what
// happened in it through the API, and what happened to it. A running one is
// asked for what is new, which is no activity; a paused one is not woken.
func (s *Supervisor) SandboxLog(ctx context.Context, id string) ([]journal.Line, error) {
	b, err := s.box(id)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	err = outcome.Alive(&b.sb)
	inst := b.lookableLocked()
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	b.fetchLog(ctx, inst)
	lines, err := s.logs().Read(id)
	if err != nil {
		return nil, err
	}
	events, err := s.o.Store.EventsBefore(ctx, id, math.MaxInt64, maxLogEvents)
	if err != nil {
		return nil, err
	}
	return journal.Merge(lines, events), nil
}

// fetchLogSometimes is fetchLog if there may be something new that has been with
// the agent alone for long.
func (b *box) fetchLogSometimes(inst runtime.Instance) {
	b.mu.Lock()
	used := b.journal.Due(b.work.Last, ids.Now()) && b.lookableLocked() == inst
	b.mu.Unlock()
	if used {
		b.s.work.Go(func() { b.fetchLog(b.s.ctx, inst) })
	}
}

// fetchLastLog is fetchLog for a sandbox that is about to be frozen, unless nobody
// has used it.
func (b *box) fetchLastLog(ctx context.Context, inst runtime.Instance) {
	b.mu.Lock()
	used := !b.work.Last.IsZero()
	b.mu.Unlock()
	if used {
		b.fetchLog(ctx, inst)
	}
}

// fetchLog asks the agent for what is new in its log, and stores it. What cannot
// be had is left for the next time.
func (b *box) fetchLog(ctx context.Context, inst runtime.Instance) {
	err := b.journal.Fetch(ctx, b.s.logs(), b.id, inst, func(ctx context.Context, after int64) ([]*agentapi.LogLine, error) {
		return b.agent(inst).Log(ctx, after)
	})
	if err != nil {
		b.s.log.Debug("log of a sandbox could not be fetched", "sandbox", b.id, "err", err)
	}
}
