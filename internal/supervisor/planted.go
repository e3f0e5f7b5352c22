package supervisor

import (
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/planted"
	"github.com/drowse-dev/drowse/internal/supervisor/calls"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
)

// earliness is how long before an operation begins it is answered by such bugs as
// planted.EarlyPause.
const earliness = 10 * time.Millisecond

// earlyPhase is the phase of operations that are answered before anything of them
// is committed.
func earlyPhase() lifecycle.Phase {
	switch {
	case planted.In(planted.EarlyPause):
		return lifecycle.Pausing
	case planted.In(planted.EarlyResume):
		return lifecycle.Resuming
	case planted.In(planted.EarlyKill):
		return lifecycle.Killing
	}
	return lifecycle.None
}

// answerEarly is these bugs: if ev begins such an operation, its caller is told
// that it has succeeded, and it happens later. It is called with b.mu held, and
// only in builds that have the bug.
func (b *box) answerEarly(ev lifecycle.Event) (lifecycle.Result, <-chan calls.Ending, bool) {
	res, err := lifecycle.Step(b.sb.Record, ev, ids.Now())
	if err != nil || !res.Changed || res.Record.Phase() != earlyPhase() {
		return res, nil, false
	}
	end := calls.Ending{Record: res.Record}
	switch op := res.Record.Op; op.Phase {
	case lifecycle.Pausing:
		end.Type = lifecycle.EntryPaused
	case lifecycle.Resuming:
		end.Type = lifecycle.EntryResumed
		end.Record.State, end.Record.Generation, end.Record.EndAt = lifecycle.Running, op.Generation, op.StartedAt.Add(op.Timeout)
	}
	told := make(chan calls.Ending, 1)
	told <- end
	b.s.work.Go(func() {
		time.Sleep(earliness)
		_, _ = b.apply(ev)
	})
	return res, told, true
}
