package sweep

import (
	"context"
	"log/slog"
	"time"
)

// Broom removes what a Sweeper finds.
type Broom struct {
	Sweeper Sweeper
	// Insist removes something, and tries again for as long as it fails.
	Insist func(remove func() error, failed string, args ...any)
	// BackedUp reports whether a backup is being made, which may read files that nobody
	// owns any more. Nil is for none, ever.
	BackedUp func() bool
	Log      *slog.Logger
}

// waits reports whether something is left alone until a backup has ended.
func (b Broom) waits(t Thing) bool { return t.Kind != Runtime && b.BackedUp != nil && b.BackedUp() }

// Sweep removes what is due, and returns what must wait for its time.
func (b Broom) Sweep(ctx context.Context, things []Thing) (young []Thing) {
	for _, t := range things {
		switch {
		case t.Kept != "":
			b.Log.Warn("nobody owns it, and it is kept", "kind", t.Kind, "id", t.ID, "why", t.Kept)
		case t.Due().After(time.Now()), b.waits(t):
			young = append(young, t)
		default:
			b.remove(ctx, t)
		}
	}
	return young
}

func (b Broom) remove(ctx context.Context, t Thing) {
	b.Log.Info("removing what nobody owns", "kind", t.Kind, "id", t.ID, "why", t.Why)
	b.Insist(func() error { return b.Sweeper.Remove(context.WithoutCancel(ctx), t) },
		"what nobody owns could not be removed", "kind", t.Kind, "id", t.ID)
}

// Later removes what no record knew at the start, when its time has come, and what a
// backup may read when that has ended. Ids are never used again, so none can be needed
// by now. If ctx ends before, the next server finds it again.
func (b Broom) Later(ctx context.Context, things []Thing) {
	for first := true; first || b.BackedUp != nil && b.BackedUp(); first = false {
		select {
		case <-time.After(Grace):
		case <-ctx.Done():
			return
		}
	}
	for _, t := range things {
		b.remove(ctx, t)
	}
}
