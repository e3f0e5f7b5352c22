package supervisor

import (
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/supervisor/calls"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
)

// answerEarly is the bugs of calls.EarlyPhase: if ev begins such an operation, its
// caller is told that it has succeeded, and it happens later. It is called with b.mu
// held, and only in builds that have the bug.
func (b *box) answerEarly(ev lifecycle.Event) (lifecycle.Result, <-chan calls.Ending, bool) {
	res, err := lifecycle.Step(b.sb.Record, ev, ids.Now())
	if err != nil || !res.Changed || res.Record.Phase() != calls.EarlyPhase() {
		return res, nil, false
	}
	b.s.work.Go(func() {
		time.Sleep(10 * time.Millisecond)
		_, _ = b.apply(ev)
	})
	return res, calls.ToldEarly(res.Record), true
}
