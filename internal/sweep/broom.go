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
	Log    *slog.Logger
}

// Sweep removes what is due, and returns what must wait for its time.
func (b Broom) Sweep(ctx context.Context, things []Thing) (young []Thing) {
	for _, t := range things {
		switch {
		case t.Kept != "":
			b.Log.Warn("nobody owns it, and it is kept", "kind", t.Kind, "id", t.ID, "why", t.Kept)
		case t.Due().After(time.Now()):
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

// Later removes what no record knew at the start, when its time has come. Ids are
// never used again, so none can know it now. If ctx ends before, the next server
// finds it again.
func (b Broom) Later(ctx context.Context, things []Thing) {
	select {
	case <-time.After(Grace):
	case <-ctx.Done():
		return
	}
	for _, t := range things {
		b.remove(ctx, t)
	}
}
