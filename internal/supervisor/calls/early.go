package calls

import (
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/planted"
)

// EarlyPhase is the phase of operations that are answered before anything of them
// is committed, by such bugs as planted.EarlyPause.
func EarlyPhase() lifecycle.Phase {
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

// ToldEarly is how such an operation, which is not committed yet, is told to have
// succeeded.
func ToldEarly(r lifecycle.Record) <-chan Ending {
	end := Ending{Record: r}
	switch op := r.Op; op.Phase {
	case lifecycle.Pausing:
		end.Type = lifecycle.EntryPaused
	case lifecycle.Resuming:
		end.Type = lifecycle.EntryResumed
		end.Record.State, end.Record.Generation, end.Record.EndAt = lifecycle.Running, op.Generation, op.StartedAt.Add(op.Timeout)
	}
	told := make(chan Ending, 1)
	told <- end
	return told
}
