package outcome

import (
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// RuntimeGone is what an access gets of a sandbox whose runtime has just ended.
func RuntimeGone(id string) error {
	return errdef.New(errdef.Unavailable, "runtime_gone", "the runtime of sandbox %s is gone", id).
		WithRemedy("try again")
}

// PausedBy is why an operation that pauses a sandbox cuts its connections.
func PausedBy(op *lifecycle.Operation) error {
	if op != nil && op.Cause == lifecycle.CauseCheckpoint {
		return errdef.New(errdef.Unavailable, "checkpointed", "the sandbox was checkpointed, which ends its connections").
			WithRemedy("connect again: it runs on")
	}
	if op != nil && op.Cause == lifecycle.CauseRestore {
		return errdef.New(errdef.Unavailable, "restored", "the sandbox goes back to a snapshot, which ends its connections").
			WithRemedy("connect again: it runs on from there")
	}
	e := errdef.New(errdef.Unavailable, "put_to_sleep", "the sandbox was put to sleep").
		WithRemedy("resume it with connect; where autoResume is on, the next request wakes it")
	if op != nil {
		e = e.With("reason", op.Cause)
	}
	if op != nil && op.Cause == lifecycle.CauseDisk {
		e.Message += ", because its files take more than its disk limit"
		e.Remedy = "resume it with connect, and remove files in it"
	}
	return e
}

// Cut is why the connections of a sandbox end whose runtime goes.
func Cut(sb store.Sandbox) error {
	if err := Alive(&sb); err != nil {
		return err
	}
	if sb.Record.State == lifecycle.Paused && sb.Record.LastError != "" {
		return errdef.New(errdef.Unavailable, "runtime_gone", "the sandbox lost its runtime: %s", sb.Record.LastError).
			WithRemedy("resume it with connect")
	}
	return PausedBy(sb.Record.Op)
}
