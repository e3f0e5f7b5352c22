package supervisor

import (
	"context"
	"errors"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/supervisor/checkpoint"
)

// faultKept is how long it is not looked again whether a checkpoint is sound:
// that reads all of it.
const faultKept = time.Minute

// fault is what is known of the checkpoint of a sandbox that sleeps. It is
// guarded by box.mu.
type fault struct {
	checkpoint string // its id
	at         time.Time
	err        error // why it cannot be resumed from; nil if it can
}

// noteFault notes what an attempt to resume from a checkpoint found.
func (b *box) noteFault(cp *lifecycle.Checkpoint, err error) {
	if cp == nil || err != nil && !checkpoint.IsFault(err) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fault = fault{checkpoint: cp.ID, at: now(), err: err}
}

// inspect looks whether a sandbox that sleeps could wake, unless that is known.
func (b *box) inspect(ctx context.Context) {
	b.mu.Lock()
	sb, known := b.sb, b.fault
	b.mu.Unlock()
	cp := sb.Record.Checkpoint
	if sb.Record.State != lifecycle.Paused || sb.Record.Op != nil || cp == nil {
		return
	}
	if known.checkpoint == cp.ID && now().Sub(known.at) < faultKept {
		return
	}
	t, err := b.s.o.Templates.Resolve(sb.Config.Template)
	if err == nil {
		_, _, err = b.s.checkpoints.Image(ctx, sb, *cp, t)
	}
	b.noteFault(cp, err)
}

// faultLocked returns why the sandbox cannot wake; nil if nothing is known of
// that, or its owner lets it boot afresh instead.
func (b *box) faultLocked() error {
	cp := b.sb.Record.Checkpoint
	if b.sb.Record.State != lifecycle.Paused || cp == nil || b.fault.checkpoint != cp.ID || b.fault.err == nil {
		return nil
	}
	if e, ok := errors.AsType[*errdef.Error](b.fault.err); ok && e.Code == checkpoint.CodeUnreadable && b.sb.Record.Settings.FilesystemFallback {
		return nil
	}
	return b.fault.err
}
