package build

import (
	"context"

	"github.com/drowse-dev/drowse/internal/supervisor/insist"
)

// leftovers puts away what builds leave. What fails is tried again in the background until the
// server stops: nobody else asks for it again, and only the next start sweeps it up.
type leftovers struct {
	yard     Yard
	ctx      context.Context // of all tries after the first
	removals *insist.Remover
}

// end ends a sandbox. It returns after the first try.
func (l *leftovers) end(ctx context.Context, sandbox string) {
	l.insist(ctx, func(ctx context.Context) error { return l.yard.End(ctx, sandbox) },
		"sandbox of a build could not be ended", "sandbox", sandbox)
}

// drop removes a snapshot. It returns after the first try.
func (l *leftovers) drop(ctx context.Context, snapshot string) {
	l.insist(ctx, func(ctx context.Context) error { return l.yard.Drop(ctx, snapshot) },
		"snapshot of a build could not be removed", "snapshot", snapshot)
}

// insist calls do until it succeeds. Only the first try is bound to ctx, which may have ended by
// the second.
func (l *leftovers) insist(ctx context.Context, do func(ctx context.Context) error, failed string, args ...any) {
	l.removals.Insist(func() error {
		within, cancel := context.WithTimeout(ctx, leaveWithin)
		defer cancel()
		ctx = l.ctx
		return do(within)
	}, failed, args...)
}
