// Package outcome says, in the errors that callers get, what became of a sandbox or
// of an operation on it. Each says what happened, the state now, and the next step.
package outcome

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/checkpoint"
)

// Alive returns an error unless the sandbox has run and has not ended.
func Alive(sb *store.Sandbox) error {
	switch sb.Record.State {
	case lifecycle.Terminated:
		_, err := lifecycle.Step(sb.Record, lifecycle.AccessRequested{}, time.Now())
		return err
	case lifecycle.Pending:
		return errdef.New(errdef.NotFound, "sandbox_not_found", "sandbox %q is being created", sb.ID)
	}
	return nil
}

// NotFound is what refuses an id that no sandbox has.
func NotFound(id string) error {
	return errdef.New(errdef.NotFound, "sandbox_not_found", "sandbox %q does not exist", id)
}

// Waited is why a caller waits no longer.
func Waited(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return errdef.New(errdef.Unavailable, "wait_timeout", "the operation is still in flight: %w", ctx.Err()).
			WithRemedy("it goes on; ask for the sandbox's state")
	}
	return ctx.Err()
}

// Overtaken is what a request gets that was overtaken by the sandbox's end, or by
// another change.
func Overtaken(sb store.Sandbox) error {
	if _, err := lifecycle.Step(sb.Record, lifecycle.PauseRequested{}, time.Now()); err != nil {
		return err
	}
	return errdef.New(errdef.Unavailable, "overtaken", "sandbox %s changed meanwhile", sb.ID).WithRemedy("try again")
}

// PauseFailed is what a pause gets that ended with an entry other than paused.
func PauseFailed(sb store.Sandbox, entry lifecycle.Entry) error {
	switch entry.Type {
	case lifecycle.EntryPauseFailed, lifecycle.EntryPauseCancelled:
		if by, so := entry.NotCapturable(); so {
			return notCapturable(fmt.Sprintf("sandbox %s could not be paused and runs on", sb.ID), by)
		}
		return errdef.New(errdef.Unavailable, "pause_failed", "sandbox %s could not be paused and runs on: %s", sb.ID, entry.Detail)
	}
	return Overtaken(sb)
}

// Unanswered is what a pause gets that is only to be with an agent that answers.
func Unanswered(id string, err error) error {
	return errdef.New(errdef.Unavailable, "agent_unreachable",
		"the agent of sandbox %s does not answer, and a strict pause was asked for: the sandbox runs on: %w", id, err).
		WithRemedy("try again, or pause without strict")
}

// NoSnapshot is what a snapshot gets that ended with an entry that says so, for err. What
// the store has refused keeps its code: no other try will succeed.
func NoSnapshot(id string, entry lifecycle.Entry, err error) error {
	what := fmt.Sprintf("no snapshot of sandbox %s was taken, and it runs on", id)
	if e, ok := errors.AsType[*errdef.Error](err); ok && store.Refused(err) {
		refused := *e
		refused.Message = what + ": " + e.Message
		return &refused
	}
	if by, so := entry.NotCapturable(); so {
		return notCapturable(what, by)
	}
	return errdef.New(errdef.Unavailable, "snapshot_failed", "%s: %s", what, entry.Detail)
}

// notCapturable is the answer to whoever wanted memory that cannot be saved.
func notCapturable(what, by string) error {
	return errdef.New(errdef.WrongState, runtime.CodeNotCapturable, "%s, because its memory cannot be saved: %s", what, by).
		WithRemedy("close that, or keep the files alone: mode filesystem")
}

// NotCreated is what a create gets that failed. unfit is what the host lacks for
// that; nil for nothing.
func NotCreated(sb store.Sandbox, unfit *errdef.Error) error {
	if unfit != nil {
		return hostLacks(fmt.Sprintf("sandbox %s did not start", sb.ID), unfit)
	}
	reason := "it was killed"
	if t := sb.Record.Tombstone; t != nil && t.Detail != "" {
		reason = t.Detail
	}
	return errdef.New(errdef.Unavailable, "sandbox_create_failed", "sandbox %s did not start: %s", sb.ID, reason).
		WithRemedy("see the server's log; drowse doctor checks what this machine lacks")
}

// CreatedBefore is what a create gets whose idempotency key has made a sandbox that
// has ended.
func CreatedBefore(id string, t lifecycle.Tombstone) error {
	return errdef.New(errdef.Conflict, "idempotency_sandbox_ended",
		"this idempotency key has made sandbox %s, which ended at %s: %s", id, t.At.Format(time.RFC3339), t.Reason).
		WithRemedy("use another key for another sandbox").
		With("sandbox", id).With("reason", t.Reason).With("endedAt", t.At.UTC().Format("2006-01-02T15:04:05.000000Z"))
}

// NotResumed is what those get who waited for a resume that ended with an entry.
// unfit is what the host lacks for it; nil for nothing.
func NotResumed(id string, entry lifecycle.Entry, unfit *errdef.Error) error {
	switch {
	case entry.Damaged:
		return errdef.New(errdef.Unavailable, checkpoint.CodeDamaged, "sandbox %s stays paused, because its checkpoint is not what was written: %s", id, entry.Detail).
			WithRemedy("put its files back from a backup and resume it again, or kill it; drowse fsck on the server says what else is damaged")
	case entry.Unreadable:
		return errdef.New(errdef.Unavailable, checkpoint.CodeUnreadable, "sandbox %s stays paused: %s", id, entry.Detail).
			WithRemedy("set its filesystemFallback to boot it afresh from its files, put back the drowse or the files that it was paused with, or kill it")
	case unfit != nil:
		return hostLacks(fmt.Sprintf("sandbox %s could not be resumed and stays paused", id), unfit)
	}
	return errdef.New(errdef.Unavailable, "resume_failed", "sandbox %s could not be resumed and stays paused: %s", id, entry.Detail).
		WithRemedy("try again; its checkpoint is untouched")
}

// NotRestored is why a sandbox does not run from the snapshot that it was to go back
// to.
func NotRestored(sb store.Sandbox, entry lifecycle.Entry, unfit *errdef.Error) error {
	switch entry.Type {
	case lifecycle.EntryRestoreFailed:
		if by, so := entry.NotCapturable(); so {
			return notCapturable(fmt.Sprintf("sandbox %s runs on as it was", sb.ID), by)
		}
		return errdef.New(errdef.Unavailable, "restore_failed", "sandbox %s runs on as it was, because that could not be kept: %s", sb.ID, entry.Detail).
			WithRemedy("try again, or have it discarded")
	case lifecycle.EntryResumeFailed:
		return fmt.Errorf("sandbox %s is at the snapshot: %w", sb.ID, NotResumed(sb.ID, entry, unfit))
	}
	return Overtaken(sb)
}

// Lasting returns the part of a failed start that is the host's, and goes on until
// someone repairs it; nil if there is none.
func Lasting(err error) *errdef.Error {
	e, ok := errors.AsType[*errdef.Error](err)
	if !ok || e.Class != errdef.Unfit {
		return nil
	}
	return e
}

// hostLacks is the answer to whoever wanted a sandbox to start.
func hostLacks(what string, e *errdef.Error) error {
	return errdef.New(errdef.Unfit, e.Code, "%s, and none does on this host as it is: %s", what, e.Message).
		WithRemedy("on the host: %s", e.Remedy)
}
