package supervisor

import (
	"context"

	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// noteFault notes what an attempt to resume from a checkpoint found.
func (b *box) noteFault(cp *lifecycle.Checkpoint, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if cp != nil {
		b.fault.Note(cp.ID, err)
	}
}

// suspect reports whether a checkpoint was found to be damaged, or unreadable.
func suspect(b *box, cp *lifecycle.Checkpoint) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return cp != nil && b.fault.Of(cp.ID, false) != nil
}

// inspect looks whether a sandbox that sleeps could wake, unless that is known.
func (b *box) inspect(ctx context.Context) {
	b.mu.Lock()
	sb, known := b.sb, b.fault
	b.mu.Unlock()
	cp := sb.Record.Checkpoint
	if sb.Record.State != lifecycle.Paused || sb.Record.Op != nil || cp == nil || known.Fresh(cp.ID) {
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
	if b.sb.Record.State != lifecycle.Paused || cp == nil {
		return nil
	}
	return b.fault.Of(cp.ID, b.sb.Record.Settings.FilesystemFallback)
}
