package supervisor

import (
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/planted"
)

// earliness is how long before an operation begins planted.EarlyAnswer answers.
const earliness = 10 * time.Millisecond

// answerEarly is planted.EarlyAnswer: if ev begins such an operation, its caller
// is told that it has succeeded, and it happens later. It is called with b.mu
// held, and only in builds that have the bug.
func (b *box) answerEarly(ev lifecycle.Event) (lifecycle.Result, <-chan ending, bool) {
	res, err := lifecycle.Step(b.sb.Record, ev, now())
	if err != nil || !res.Changed || string(res.Record.Phase()) != planted.EarlyAnswer {
		return res, nil, false
	}
	end := ending{record: res.Record}
	switch op := res.Record.Op; op.Phase {
	case lifecycle.Pausing:
		end.Type = lifecycle.EntryPaused
	case lifecycle.Resuming:
		end.Type = lifecycle.EntryResumed
		end.record.State, end.record.Generation, end.record.EndAt = lifecycle.Running, op.Generation, op.StartedAt.Add(op.Timeout)
	}
	told := make(chan ending, 1)
	told <- end
	b.s.work.Go(func() {
		time.Sleep(earliness)
		_, _ = b.apply(ev)
	})
	return res, told, true
}
